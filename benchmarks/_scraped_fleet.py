"""Hours of a fleet in a real Prometheus as it was scraped: through translators, from a collector, or without either.

Counters and histograms of a process rise together with what it does, at random from a seed; the scrapes of each have
times of their own, but those of a collector, whose page has all of them.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks._fleet_history import Fleet, encode_labels, encode_series, send
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.contract.metrics import METRICS, REPLICA_START_TIME, SAMPLE_FAMILIES
from servescope.contract.own_metrics import PROBED_JOB
from servescope.contract.samples import Labels, make_labels
from servescope.contract.types import DEFAULT_WINDOW

SCRAPE_MS: Final = 15_000
_ROUND_SCRAPES: Final = 240
_SAMPLES_AT_ONCE: Final = 500_000
_INFO: Final = ("servescope_target_info", {"source": "vllm", "version": "0.32", "layer": "engine"})
_WATCHDOG: Final = {"__name__": "ALERTS", "alertname": "ServescopeWatchdog", "alertstate": "firing"}
_LABELS: Final = (*DEPLOYMENT_LABELS, "role")

Floats = NDArray[np.float64]
Own = tuple[str, Mapping[str, str]]
"""A series of a process: its name and the labels beside those of the process."""


@dataclass(frozen=True, slots=True)
class Form:
    """A way in which a fleet comes into a Prometheus: the job, the series of each target beside its own, and whether
    rules record figures; where one collector exposes all, they are those that it derives.
    """

    job: str
    beside: tuple[Own, ...]
    recorded: bool = False
    collected: bool = False


def _named(*names: str) -> tuple[Own, ...]:
    return tuple((name, {}) for name in names)


FORMS: Final[Mapping[str, Form]] = MappingProxyType(
    {
        "translated": Form(
            PROBED_JOB,
            (*_named("up", "scrape_duration_seconds", "servescope_probe_success"), _INFO),
            recorded=True,
        ),
        "collected": Form(
            "servescope",
            (*_named("servescope_target_up", "servescope_target_samples"), _INFO),
            collected=True,
        ),
        "bare": Form("engines", _named("up")),
    }
)
"""The forms by name: `translated` by `servescope translate`, with all rules; on the page of a collector; `bare`, our
instruments where nothing else is.
"""


@dataclass(frozen=True, slots=True, eq=False)
class _Process:
    """The labels of each series, encoded, its values, and the times of the scrapes."""

    labels: Sequence[bytes]
    values: Floats
    times: NDArray[np.int64]


def write_fleet(form: Form, replicas: int, port: int, *, start_ms: int, end_ms: int) -> int:
    """Write what the fleet showed from start to end to the Prometheus on this port; the number of series."""
    times = np.arange(start_ms, end_ms + 1, SCRAPE_MS, dtype=np.int64)
    fleet = Fleet(replicas)
    written = [*_processes(form, fleet, times), _derived(form, fleet, times)]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    for first in range(0, len(times), _ROUND_SCRAPES):
        part: list[bytes] = []
        for each in written:
            span = slice(first, first + _ROUND_SCRAPES)
            part.append(encode_series(each.labels, each.values[:, span], each.times[span]))
            if sum(map(len, part)) > 18 * _SAMPLES_AT_ONCE:
                send(connection, b"".join(part))
                part = []
        send(connection, b"".join(part))
    connection.close()
    return sum(len(each.labels) for each in written)


# --- The processes ----------------------------------------------------------------------------------------------------


def _processes(form: Form, fleet: Fleet, times: NDArray[np.int64]) -> Iterator[_Process]:
    random = np.random.default_rng(1)
    for number, (labels, series) in enumerate(_series_by_process(fleet).items()):
        place = {"job": form.job, "instance": "collector:9900" if form.collected else f"10.0.0.{number}:8000"}
        own = [*series, *form.beside]
        steps = random.gamma(4.0, 1.5 + number % 3, len(times))
        yield _Process(
            [encode_labels({**dict(labels), **place, **extra, "__name__": name}) for name, extra in own],
            _move(own, steps, float(times[0])),
            times - (0 if form.collected else int(random.integers(SCRAPE_MS))),
        )


def _series_by_process(fleet: Fleet) -> Mapping[Labels, list[Own]]:
    found: dict[Labels, list[Own]] = {}
    for each in fleet.series:
        identity = {name: each.labels[name] for name in _LABELS if name in each.labels}
        own = {name: value for name, value in each.labels.items() if name not in identity}
        for number in range(each.count if "role" in identity else 0):
            replica = f"{identity['deployment_id']}-{identity['role']}-{number}"
            found.setdefault(make_labels({**identity, "replica": replica}), []).append((each.name, own))
    return found


def _move(series: Sequence[Own], steps: Floats, start_ms: float) -> Floats:
    """The values of the series of one process (m, n), which did so much within the n intervals."""
    done = np.cumsum(steps)
    rows = np.empty((len(series), len(steps)))
    for row, (name, own) in enumerate(series):
        metric = METRICS.get(SAMPLE_FAMILIES.get(name, ""))
        if name == REPLICA_START_TIME:
            rows[row] = start_ms / 1000 - 3600
        elif metric is None:
            rows[row] = 1.0
        elif metric.kind == "histogram":
            buckets = _buckets(len(metric.edges or ()) + 1, done)
            edges = [*(metric.edges or ()), np.inf]
            rows[row] = done * 0.73 if name.endswith("_sum") else buckets[edges.index(float(own.get("le", "inf")))]
        elif metric.kind == "counter":
            rows[row] = np.floor(done * (1.0 if own.get("outcome", "ok") == "ok" else 0.01))
        else:
            rows[row] = np.clip(steps / 100, 0, 1) if metric.unit == "ratio" else np.floor(steps)
    return rows


def _buckets(count: int, done: Floats) -> Floats:
    """Cumulative buckets that whole observations fell into, most of them in the middle ones."""
    shares = np.exp(-(((np.arange(count) / count - 0.45) / 0.18) ** 2))
    buckets: Floats = np.floor(done * (shares / shares.sum())[:, None]).cumsum(axis=0)
    return buckets


# --- What is derived of them ------------------------------------------------------------------------------------------


def _derived(form: Form, fleet: Fleet, times: NDArray[np.int64]) -> _Process:
    """The figures and the health that rules record, or a collector exposes; their values do not matter."""
    labels = [*_recorded(fleet)] if form.recorded else [*_exposed(fleet)] if form.collected else []
    values = np.repeat(0.1 + np.arange(len(labels))[:, None] / 1000, len(times), axis=1) + times / times[-1] / 100
    for row, each in enumerate(labels):
        if each["__name__"] in ("up", "ALERTS", "servescope_target_up"):
            values[row] = 1.0
    return _Process([encode_labels(each) for each in labels], values, times)


def _recorded(fleet: Fleet) -> Iterator[dict[str, str]]:
    for each in fleet.series:
        if "role" not in each.labels:
            yield {**each.labels, "__name__": each.name}
    for labels in _series_by_process(fleet):
        for name in ("servescope_target_up", "servescope_target_scrape_duration_seconds"):
            yield {**dict(labels), "__name__": name}
    yield _WATCHDOG


def _exposed(fleet: Fleet) -> Iterator[dict[str, str]]:
    page = {"job": "servescope", "instance": "collector:9900"}
    names = {figure.record(): figure.exposed for figure in FIGURES.values()}
    for each in fleet.series:
        if exposed := names.get(each.name):
            yield {**each.labels, **page, "__name__": exposed, "window": DEFAULT_WINDOW}
    yield from ({**page, "__name__": name} for name in ("up", "servescope_build_info"))
