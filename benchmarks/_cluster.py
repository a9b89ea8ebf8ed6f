"""What a system uses to scrape a simulated fleet: the CPU and memory of each part, bytes, lag, the first paint."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np

from app.charts.tables import SPARK_FIGURE
from app.data import queries
from app.selection import TimeRange
from benchmarks import _fleet
from benchmarks._processes import Measured, collecting
from servescope.store.history import History
from tests.proofs.live.stack import Program
from tests.support.past_one_machine import TARGETS_JOB, PastOneMachine, address_of, past_one_machine
from tests.support.prometheus import Prometheus
from tests.support.victoria_cluster import VictoriaCluster, victoria_cluster

VICTORIA_PART = 4
"""VictoriaMetrics scrapes one in so many of the fleet's targets, each twice."""

_EVALUATION_SECONDS = 15
_POLL_SECONDS = 0.25
_PAINTED_SECONDS = 3600
_PAINTS = 3
# Targets whose samples are waited for, one in so many.
_FOLLOWED_EVERY = 97


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds between scrapes, seconds before what is measured, and seconds measured."""

    interval: int
    warm_up: int
    seconds: int


@dataclass(frozen=True, slots=True)
class Part:
    """What one kind of program used: CPU seconds of all of them together within the span, and memory at its end."""

    name: str
    programs: int
    cpu_seconds: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class System:
    """One system in a span: `samples` of the contract became queryable, of `series` different ones of `targets`.

    `wire` and `disk` are bytes a sample by what they are, `lag_seconds` from scrapes until their samples could be
    queried, `paint_seconds` the queries of the console's page of the fleet, which found `painted` deployments.
    """

    name: str
    targets: int
    interval: int
    parts: Sequence[Part]
    samples: float
    series: float
    wire: Mapping[str, float]
    disk: Mapping[str, float]
    lag_seconds: Sequence[float]
    paint_seconds: float
    painted: int

    def cpu_per_sample(self, part: Part) -> float:
        """Seconds of CPU that a part used for each sample."""
        return part.cpu_seconds / self.samples


def measure_collector(fleet: _fleet.Fleet, folder: Path, span: Span) -> System:
    """One collector with its store."""
    folder.mkdir()
    settings = {
        "scrape_interval": f"{span.interval}s",
        "evaluation_interval": f"{_EVALUATION_SECONDS}s",
        "scrape_timeout": f"{min(10, span.interval)}s",
    }
    configuration, port = _fleet.write_configuration(fleet, folder, settings)
    with collecting(configuration, port) as collector:
        time.sleep(span.warm_up)
        began = time.time()
        (part,), _ = _used([("collector", [collector])], lambda: time.sleep(span.seconds))
        ended = time.time()
        held = collector.stored_samples()
        # Of all scrapes so far: a page that took long to render is shown again for a while.
        own = collector.series()
        lag = own["servescope_scrape_duration_seconds_sum"] / own["servescope_scrape_duration_seconds_count"]
        with queries.open_store(folder / "servescope.db") as store:
            paint = _paint(store)
        times = fleet.scrapes("servescope")
        stored = sum(path.stat().st_size for path in folder.glob("servescope.db*"))
    rounds = len(times) / fleet.targets
    samples = sum(began <= at < ended for at in times) / fleet.targets * held
    return System(
        "one collector", fleet.targets, span.interval, [part], samples, held, {}, {"store": stored / (rounds * held)},
        [lag], *paint,
    )  # fmt: skip


def measure_agents(
    fleet: _fleet.Fleet, folder: Path, span: Span, *, prometheus: Path, receiver: Path | None, alertmanager: Path
) -> System:
    """Prometheus agents with a translator each, and the Prometheus that they write to."""
    with past_one_machine(
        folder,
        list(_groups(fleet, fleet.targets)),
        prometheus=prometheus,
        receiver=receiver,
        alertmanager=alertmanager,
        scrape_interval=f"{span.interval}s",
    ) as running:
        return _measure_cluster(
            "agents and a receiver", running, running.prometheus, fleet, fleet.targets, span,
            lambda exposed: exposed["prometheus_remote_storage_bytes_total"], running.agents,
            lambda exposed: exposed["prometheus_tsdb_head_samples_appended_total"], running.receiver, "receiver", 1,
        )  # fmt: skip


def measure_victoria(fleet: _fleet.Fleet, folder: Path, span: Span, *, alertmanager: Path) -> System:
    """vmagents with a translator each, two storage nodes and what reads them, on a part of the fleet.

    Each target is scraped twice, and as often as the files of `deploy/victoriametrics/` say.
    """
    targets = fleet.targets // VICTORIA_PART
    often = replace(span, interval=15)
    with victoria_cluster(folder, list(_groups(fleet, targets)), alertmanager=alertmanager) as running:
        return _measure_cluster(
            "vmagents and two storage nodes", running, running.reader, fleet, targets, often,
            lambda exposed: exposed["vmagent_remotewrite_bytes_sent_total"], running.vmagents,
            lambda exposed: exposed["vm_rows"], running.storages[0], "storage-0", 2,
        )  # fmt: skip


Exposed = Mapping[str, float]


def _measure_cluster(
    name: str, running: PastOneMachine | VictoriaCluster, reader: Prometheus, fleet: _fleet.Fleet, targets: int,
    span: Span, sent: Callable[[Exposed], float], senders: Sequence[Program], stored: Callable[[Exposed], float],
    storage: Program, storage_folder: str, scraped_by: int,
) -> System:  # fmt: skip
    """A cluster that runs: `sent` and `stored` read from its programs' own series bytes sent, and samples stored.

    Each target is scraped by so many.
    """
    time.sleep(span.warm_up)
    followed = "|".join(f"engine-{number}" for number in range(0, targets, _FOLLOWED_EVERY))
    selector = f'concurrent_requests{{replica=~"{followed}"}}'
    before, began = sum(sent(_measured(each).series()) for each in senders), time.time()
    parts, lags = _used(list(_programs(running)), lambda: follow(reader, selector, span.seconds))
    size, ended = sum(sent(_measured(each).series()) for each in senders) - before, time.time()
    held = _sum(reader, f'sum(scrape_samples_scraped{{job="{TARGETS_JOB}"}})')
    # As many as were really scraped, which a machine that is too busy delays.
    samples = sum(began <= at < ended for at in fleet.scrapes("servescope")) / scraped_by * held / targets
    kept = sum(path.stat().st_size for path in (running.folder / storage_folder).rglob("*") if path.is_file())
    page = _probed(running.translators[0], fleet)
    wire = {
        "page to translator": page.native / page.samples,
        "translator to scraper": page.gzip / page.samples,
        "remote write": size / samples,
    }
    disk = {"disk, after minutes": kept / stored(_measured(storage).series())}
    paint = _paint(queries.open_prometheus(f"http://127.0.0.1:{reader.port}", {}))
    return System(name, targets, span.interval, parts, samples, held, wire, disk, lags, *paint)


def _programs(running: PastOneMachine | VictoriaCluster) -> Iterator[tuple[str, Sequence[Measured]]]:
    for field in fields(running):
        value = getattr(running, field.name)
        alike = list(value) if isinstance(value, list | tuple) else [value]
        if all(isinstance(each, Program) for each in alike):
            yield field.name, list(map(_measured, alike))


def follow(prometheus: Prometheus, selector: str, seconds: float) -> list[float]:
    """How long after each scrape its samples could be queried, in seconds, for the series selected, over so long."""
    newest: dict[object, float] = {}
    lags = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        now = time.time()
        for point in prometheus.query(f"timestamp({selector})", at_ms=round(now * 1000)):
            known = newest.setdefault(point.labels, point.value)
            if point.value > known:
                newest[point.labels] = point.value
                lags.append(now - point.value)
        time.sleep(_POLL_SECONDS)
    return lags


def _used(programs: Sequence[tuple[str, Sequence[Measured]]], wait: Callable[[], Any]) -> tuple[list[Part], Any]:
    """What the programs use while something is waited for, and its result."""
    before = [sum(each.cpu_seconds() for each in alike) for _, alike in programs]
    result = wait()
    parts = [
        Part(
            name,
            len(alike),
            sum(each.cpu_seconds() for each in alike) - used,
            sum(each.resident_bytes() for each in alike),
        )
        for (name, alike), used in zip(programs, before, strict=True)
    ]
    return parts, result


def _groups(fleet: _fleet.Fleet, targets: int) -> Iterator[dict[str, Any]]:
    """The lists of so many of the fleet, with the labels that a collector's configuration gives its deployments."""
    for number, path in enumerate(fleet.lists[: targets // _fleet.REPLICAS]):
        labels = {
            "deployment_id": f"chat-{number}",
            "model_name": _fleet.model_of(number),
            "inference_stack": "vllm",
            "__param_source": "vllm",
        }
        for group in json.loads(path.read_text(encoding="utf-8")):
            yield {"targets": group["targets"], "labels": {**labels, **group["labels"]}}


@dataclass(frozen=True, slots=True)
class _Page:
    native: int
    gzip: int
    samples: int


def _probed(translator: Program, fleet: _fleet.Fleet) -> _Page:
    """One target's page, and what a translator makes of it, as it is sent."""
    target = json.loads(fleet.lists[0].read_text(encoding="utf-8"))[0]["targets"][0]
    with urlopen(f"http://{target}/metrics", timeout=30) as answer:
        native = len(answer.read())
    with urlopen(f"{_url(translator)}/probe?target={target}&source=vllm", timeout=30) as answer:
        translated = answer.read()
    lines = [line for line in translated.splitlines() if line and not line.startswith(b"#")]
    return _Page(native, len(gzip.compress(translated, 6)), len(lines))


def _paint(store: History) -> tuple[float, int]:
    """Seconds that the queries of the console's page of the fleet take, the best of several, and its deployments."""
    seconds = []
    found = 0
    for _ in range(_PAINTS):
        began = time.perf_counter()
        now_ms = round(time.time() * 1000)
        span = TimeRange(now_ms - _PAINTED_SECONDS * 1000, now_ms, live=True)
        shown = list(queries.list_deployments(store).values())
        found = len(queries.read_fleet(store, shown, span).dropna(how="all"))
        queries.targets_by_deployment(store)
        queries.read_trends(store, shown, span, SPARK_FIGURE)
        seconds.append(time.perf_counter() - began)
    return min(seconds), found


def _sum(prometheus: Prometheus, expression: str) -> float:
    (point,) = prometheus.query(expression, at_ms=round(time.time() * 1000))
    return point.value


def _measured(program: Program) -> Measured:
    assert program.process is not None
    return Measured(program.process.pid, _url(program))


def _url(program: Program) -> str:
    return f"http://{address_of(program)}"


def quantiles(lags: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile."""
    median, most = np.quantile(np.array(lags), [0.5, 0.99])
    return float(median), float(most)
