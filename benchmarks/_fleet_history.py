"""A day of a fleet in a real Prometheus: every series that dashboards may ask for, written over remote write.

The values are made up; what a query costs does not depend on them. Labels, and how many series there are of each
metric, are those of the contract: every outcome, state and bucket, positions, GPUs, roles and phases.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import pyarrow
from numpy.typing import NDArray

from alerts.recording import INTERVAL
from dashboards.options import seconds
from servescope.alerting.alerts import ALERTS
from servescope.contract.figures import FIGURES, RECORDED_HISTOGRAMS, record_buckets
from servescope.contract.metrics import METRICS, PHASES, PROCESS_RATIOS, REPLICA_START_TIME
from servescope.contract.objectives import BASE_WINDOW, BURN_WINDOWS, OBJECTIVES, OBJECTIVES_INTERVAL, record_ended
from servescope.contract.samples import format_edge
from servescope.contract.types import Metric

_OPEN_VALUES: Mapping[str, tuple[str, ...]] = {
    "position": ("0", "1", "2", "3", "4"),
    "gpu": ("0", "1", "2", "3"),
}
_FIRING = 12
_OF_ALERTS: Mapping[str, Mapping[str, str]] = {"ALERTS": {"alertstate": "firing"}, "ALERTS_FOR_STATE": {}}
_OWN_SERIES = 24
_OWN = re.compile(r"(?:servescope|prometheus|alertmanager|process|scrape)_|up\Z")
_OF_TARGETS = ("servescope_target_", "servescope_probe_", "scrape_", "up")
_DEPLOYMENTS = (
    ("chat-v1", "v1", "llama-3.3-70b", ("aggregated",)),
    ("chat-v2", "v2", "llama-3.3-70b", ("aggregated",)),
    ("code-v2", "v2", "qwen-2.5-coder-32b", ("aggregated",)),
    ("long-v2", "v2", "deepseek-r1", PHASES),
)
# Samples of an hour go to Prometheus at once: it takes nothing that is older than that beside its newest.
_HOUR = 3600
_SERIES_AT_ONCE = 3000
BEFORE_SECONDS = 7200
"""How long before the range the history begins, for what is compared with its own past."""


@dataclass(frozen=True, slots=True)
class Series:
    """So many series that differ in their replica alone; `labels` are the others."""

    name: str
    labels: Mapping[str, str]
    count: int


@dataclass(frozen=True)
class Fleet:
    """Four deployments of so many replicas together, one of them in phases, each with a router and an autoscaler."""

    replicas: int

    @cached_property
    def series(self) -> tuple[Series, ...]:
        """All its series: the contract's, the recorded ones, and those of firing alerts."""
        return tuple(self._list())

    def count(self, name: str, agrees: Callable[[Series], bool]) -> int:
        """How many of a name's series agree; raises LookupError when the fleet knows nothing of the name.

        Series of programs about themselves are not written; a fixed number of each is counted, and of those about
        targets one for every process of the fleet.
        """
        if is_own(name):
            return self.replicas + 2 * len(_DEPLOYMENTS) if name.startswith(_OF_TARGETS) else _OWN_SERIES
        if name in METRICS and METRICS[name].kind == "histogram":
            return 0  # what a native histogram would be called; these have buckets
        if name not in self._by_name:
            raise LookupError(f"no series {name!r} in the fleet's history")
        return sum(each.count for each in self._by_name[name] if agrees(each))

    @cached_property
    def _by_name(self) -> Mapping[str, list[Series]]:
        found: dict[str, list[Series]] = {}
        for each in self.series:
            found.setdefault(each.name, []).append(each)
        return found

    def interval_seconds(self, name: str, scrape_seconds: int) -> int:
        """How far the samples of a series are apart: recorded ones by their rules' interval, all others scraped."""
        if "_objective_" in name:
            return int(seconds(OBJECTIVES_INTERVAL))
        return max(int(seconds(INTERVAL)), 15) if ":" in name or name in _OF_ALERTS else scrape_seconds

    def _list(self) -> Iterator[Series]:
        share = self.replicas // len(_DEPLOYMENTS)
        for deployment, stack, model, roles in _DEPLOYMENTS:
            identity = {
                "model_name": model, "deployment_id": deployment, "inference_stack": stack,
                "environment": "production", "rollout_phase": "stable",
            }  # fmt: skip
            phased = len(roles) > 1
            counts = {**dict.fromkeys(roles, share // len(roles)), "router": 1, "autoscaler": 1}
            for role, count in counts.items():
                for metric in METRICS.values():
                    if _shows(role, metric, phased=phased):
                        yield from _expose(metric, {**identity, "role": role}, count)
            yield from _recorded(identity, phased=phased)
            for name in list(ALERTS)[: _FIRING // len(_DEPLOYMENTS)]:
                for series, state in _OF_ALERTS.items():
                    yield Series(series, {**identity, "alertname": name, "severity": "warning", **state}, 1)


def is_own(name: str) -> bool:
    """Whether a series is a program's own, about itself."""
    return _OWN.match(name) is not None


def _shows(role: str, metric: Metric, *, phased: bool) -> bool:
    if metric.name == REPLICA_START_TIME:
        return True
    if metric.name in PROCESS_RATIOS or metric.component != (role if role in ("router", "autoscaler") else "engine"):
        return False
    return phased or not ("phase" in metric.labels or metric.name.startswith("kv_transfer"))


def _expose(metric: Metric, identity: Mapping[str, str], count: int) -> Iterator[Series]:
    for own in _label_sets(metric.labels):
        labels = {**identity, **own}
        if metric.kind != "histogram":
            yield Series(metric.name, labels, count)
            continue
        for edge in (*(metric.edges or ()), float("inf")):
            yield Series(f"{metric.name}_bucket", {**labels, "le": format_edge(edge)}, count)
        yield Series(f"{metric.name}_sum", labels, count)
        yield Series(f"{metric.name}_count", labels, count)


def _recorded(identity: Mapping[str, str], *, phased: bool) -> Iterator[Series]:
    for figure in FIGURES.values():
        if phased or not ("phase" in figure.by or figure.name.startswith("kv_transfer")):
            for own in _label_sets(figure.by):
                yield Series(figure.record(), {**identity, **own}, 1)
    for name in RECORDED_HISTOGRAMS:
        for edge in (*(METRICS[name].edges or ()), float("inf")):
            yield Series(record_buckets(name), {**identity, "le": format_edge(edge)}, 1)
    for objective in OBJECTIVES.values():
        for window in dict.fromkeys(window for row in BURN_WINDOWS for window in (row.short, row.long)):
            yield Series(objective.record(window), identity, 1)
        yield Series(objective.record_all(BASE_WINDOW), identity, 1)
        yield Series(objective.record_bad(BASE_WINDOW), identity, 1)
    for row in BURN_WINDOWS:
        yield Series(record_ended(row.long), identity, 1)


def _label_sets(labels: Sequence[str]) -> Iterator[Mapping[str, str]]:
    closed = {label: values for metric in METRICS.values() for label, values in metric.label_values.items()}
    known = {**_OPEN_VALUES, **closed}
    for values in product(*(known.get(label, ("saturated", "stale index")) for label in labels)):
        yield dict(zip(labels, values, strict=True))


# --- Writing it -------------------------------------------------------------------------------------------------------


def write_history(fleet: Fleet, port: int, *, end_seconds: int, range_seconds: int, scrape_seconds: int) -> int:
    """Write what the fleet showed up to `end_seconds`, over the range and two hours before it; the samples written.

    Raises RuntimeError when the Prometheus on this loopback port, which must receive remote write, refuses.
    """
    start = end_seconds - range_seconds - BEFORE_SECONDS
    labels: dict[int, list[bytes]] = {}
    for each in fleet.series:
        interval = fleet.interval_seconds(each.name, scrape_seconds)
        labels.setdefault(interval, []).extend(_encode_each(each))
    written = 0
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    for hour in range(start, end_seconds + 1, _HOUR):
        for interval, encoded in labels.items():
            first = -(-hour // interval) * interval
            until = min(hour + _HOUR, end_seconds + 1)
            times = np.arange(first, until, interval, dtype=np.int64) * 1000
            for place in range(0, len(encoded), _SERIES_AT_ONCE):
                part = encoded[place : place + _SERIES_AT_ONCE]
                send(connection, encode_series(part, _make_values(len(part), place, times), times))
                written += len(part) * len(times)
    connection.close()
    return written


def _encode_each(series: Series) -> Iterator[bytes]:
    for replica in range(series.count):
        labels = {**series.labels, "__name__": series.name, "job": "servescope", "instance": "collector:9400"}
        if "role" in labels:
            labels["replica"] = f"{labels['deployment_id']}-{labels['role']}-{replica}"
        yield encode_labels(labels)


def encode_labels(labels: Mapping[str, str]) -> bytes:
    """The labels of a series as a part of Prometheus' `TimeSeries`."""
    return b"".join(_field(1, _text(1, name) + _text(2, value)) for name, value in sorted(labels.items()))


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode())


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field of a protocol buffer."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_series(labels: Sequence[bytes], values: NDArray[np.float64], times: NDArray[np.int64]) -> bytes:
    """Series of these labels with the values (m, n) at these times, as a part of Prometheus' `WriteRequest`."""
    samples = _encode_samples(values, times)
    return b"".join(_field(1, own + samples[row].tobytes()) for row, own in enumerate(labels))


def _make_values(count: int, number: int, times: NDArray[np.int64]) -> NDArray[np.float64]:
    """As counters would rise; a gauge costs the same."""
    rows = np.arange(number, number + count, dtype=np.float64)[:, None]
    values: NDArray[np.float64] = np.floor((times - times[0]) / 1000.0 * (1 + rows % 7)) + rows + times[0] // 1000
    return values


def _encode_samples(values: NDArray[np.float64], times: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The samples of series as bytes, one row each: every sample is 18 bytes long.

    A sample is field 2 of its series, of 16 bytes: field 1 a double, field 2 the milliseconds in six groups of seven
    bits, which is what any time between the years 1971 and 2109 takes.
    """
    encoded = np.empty((*values.shape, 18), dtype=np.uint8)
    encoded[..., :3] = (0x12, 0x10, 0x09)
    encoded[..., 3:11] = values.astype("<f8").view(np.uint8).reshape(*values.shape, 8)
    encoded[..., 11] = 0x10
    for place in range(6):
        bits = (times >> (7 * place)) & 0x7F
        encoded[..., 12 + place] = bits | (0x80 if place < 5 else 0)
    return encoded.reshape(len(values), len(times) * 18)


def send(connection: http.client.HTTPConnection, request: bytes) -> None:
    """Send series by remote write; raises RuntimeError when they are refused."""
    body = pyarrow.compress(request, codec="snappy", asbytes=True)
    headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
    connection.request("POST", "/api/v1/write", body, {**headers, "X-Prometheus-Remote-Write-Version": "0.1.0"})
    answer = connection.getresponse()
    body = answer.read()
    if answer.status >= 300:
        raise RuntimeError(f"Prometheus answered {answer.status} to remote write: {body[:300]!r}")
