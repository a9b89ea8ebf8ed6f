"""The rules of OpenTelemetry's metrics data model, checked over all that a receiver is sent."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, DataPointFlags, Metric

_SCHEMA = re.compile(r"https://opentelemetry\.io/schemas/\d+\.\d+\.\d+")
_ABSENT = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
_DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE

Attributes = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Key:
    """What identifies a stream: its resource, its metric's name and its own attributes."""

    resource: Attributes
    name: str
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Received:
    """One point as it came; `value` is a number, or (counts, sum), or None where the flag says that there is none."""

    start_ns: int
    time_ns: int
    value: float | tuple[tuple[int, ...], float] | None

    @property
    def time_ms(self) -> int:
        """The time in milliseconds."""
        return self.time_ns // 1_000_000


@dataclass(slots=True)
class Ledger:
    """All points of each stream in the order they came, what each metric was declared as, and every rule broken."""

    streams: dict[Key, list[Received]] = field(default_factory=lambda: defaultdict(list))
    declared: dict[tuple[Attributes, str], tuple[str, str, int]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def take(self, request: ExportMetricsServiceRequest) -> int:
        """Enter a request; returns how many points it has."""
        count = 0
        resources = []
        for one in request.resource_metrics:
            resource = self._attributes(one.resource.attributes, "a resource")
            resources.append(resource)
            self._require(bool(dict(resource).get("service.name")), f"a resource without service.name: {resource}")
            self._require(_SCHEMA.fullmatch(one.schema_url) is not None, f"schema of a resource: {one.schema_url!r}")
            for scope in one.scope_metrics:
                self._require(bool(scope.scope.name), "a scope has no name")
                self._require(scope.schema_url == one.schema_url, f"schema of a scope: {scope.schema_url!r}")
                names = [metric.name for metric in scope.metrics]
                self._require(len(names) == len(set(names)), f"a metric occurs twice in one scope: {names}")
                count += sum(self._take_metric(resource, metric) for metric in scope.metrics)
        self._require(len(resources) == len(set(resources)), "a resource occurs twice in one request")
        return count

    def total(self, key: Key) -> float:
        """What a counter counted, by the rules of its temporality: deltas added, cumulative values over every start."""
        points = [point for point in self.streams[key] if isinstance(point.value, (int, float))]
        if self.declared[key.resource, key.name][2] == _DELTA:
            return math.fsum(point.value for point in points)  # type: ignore[misc]
        last = {point.start_ns: point.value for point in points}
        return math.fsum(last.values())  # type: ignore[arg-type]

    def named(self, name: str) -> dict[Key, list[Received]]:
        """The streams of one metric."""
        return {key: points for key, points in self.streams.items() if key.name == name}

    def _take_metric(self, resource: Attributes, metric: Metric) -> int:
        kind = metric.WhichOneof("data") or "nothing"
        self._require(kind in ("gauge", "sum", "histogram"), f"{metric.name}: unexpected data: {kind}")
        self._require(bool(metric.name), "a metric has no name")
        data: Any = getattr(metric, kind)
        temporality = 0 if kind == "gauge" else data.aggregation_temporality
        self._require(kind == "gauge" or temporality in (_DELTA, _CUMULATIVE), f"{metric.name}: no temporality")
        self._require(kind != "sum" or data.is_monotonic, f"{metric.name}: a sum that is not monotonic")
        declared = (kind, metric.unit, temporality)
        before = self.declared.setdefault((resource, metric.name), declared)
        self._require(before == declared, f"{metric.name}: was {before}, is {declared}")
        self._require(len(data.data_points) > 0, f"{metric.name}: a metric without points")
        for point in data.data_points:
            key = Key(resource, metric.name, self._attributes(point.attributes, metric.name))
            shared = {name for name, _ in key.resource} & {name for name, _ in key.attributes}
            self._require(not shared, f"{metric.name}: attributes of the resource again: {shared}")
            self._take_point(key, kind, temporality, point)
        return len(data.data_points)

    def _take_point(self, key: Key, kind: str, temporality: int, point: Any) -> None:
        is_absent = bool(point.flags & _ABSENT)
        received = Received(point.start_time_unix_nano, point.time_unix_nano, self._value(key, kind, point, is_absent))
        self._require(received.time_ns > 0, f"{key}: no time")
        before = self.streams[key][-1] if self.streams[key] else None
        if before is not None:
            self._require(received.time_ns > before.time_ns, f"{key}: {received} is not after {before}")
        if kind != "gauge" and not is_absent:
            self._require(0 < received.start_ns <= received.time_ns, f"{key}: starts after it ends: {received}")
            counted = [each for each in self.streams[key] if each.value is not None]
            if counted:
                self._check_succession(key, temporality, counted[-1], received)
        self.streams[key].append(received)

    def _check_succession(self, key: Key, temporality: int, before: Received, point: Received) -> None:
        if temporality == _CUMULATIVE and point.start_ns == before.start_ns:
            pairs = zip(_numbers(before.value), _numbers(point.value), strict=False)
            self._require(all(old <= new for old, new in pairs), f"{key}: falls from {before} to {point}")
        else:
            self._require(point.start_ns >= before.time_ns, f"{key}: {point} overlaps {before}")

    def _value(self, key: Key, kind: str, point: Any, is_absent: bool) -> float | tuple[tuple[int, ...], float] | None:
        if is_absent:
            empty = not (point.count or point.bucket_counts) if kind == "histogram" else not point.WhichOneof("value")
            self._require(empty, f"{key}: a value beside the flag that there is none")
            return None
        if kind != "histogram":
            which = point.WhichOneof("value")
            self._require(which is not None, f"{key}: neither a value nor the flag that there is none")
            value: float = getattr(point, which or "as_double")
            self._require(kind == "gauge" or value >= 0, f"{key}: a monotonic sum of {value}")
            return value
        counts, bounds = tuple(point.bucket_counts), tuple(point.explicit_bounds)
        self._require(len(counts) == len(bounds) + 1, f"{key}: {len(counts)} buckets with {len(bounds)} bounds")
        self._require(all(low < high for low, high in pairwise(bounds)), f"{key}: bounds do not rise: {bounds}")
        self._require(all(map(math.isfinite, bounds)), f"{key}: a bound is not finite: {bounds}")
        self._require(sum(counts) == point.count, f"{key}: buckets {counts} of {point.count}")
        self._require(point.HasField("sum"), f"{key}: a histogram without its sum")
        return counts, point.sum

    def _attributes(self, pairs: Iterable[Any], whose: str) -> Attributes:
        names = [pair.key for pair in pairs]
        self._require(len(names) == len(set(names)) and all(names), f"{whose}: attributes {names}")
        return tuple(sorted((pair.key, pair.value.string_value) for pair in pairs))

    def _require(self, holds: bool, broken: str) -> None:
        if not holds:
            self.broken.append(broken)


def _numbers(value: float | tuple[tuple[int, ...], float] | None) -> Iterator[float]:
    if isinstance(value, tuple):
        yield from (*value[0], value[1])
    elif value is not None:
        yield value
