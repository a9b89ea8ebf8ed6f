"""Points as an OTLP request: the messages of `opentelemetry-proto`, filled directly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    DataPointFlags,
    HistogramDataPoint,
    NumberDataPoint,
    ScopeMetrics,
)

from servescope import __version__
from servescope.contract.samples import Labels
from servescope.customers.points.points import Descriptor, HistogramValue, Stream, StreamPoint
from servescope.customers.policy.policy import Temporality
from servescope.customers.transports.batches import count_utf8
from servescope.exposition.otlp_names import SCHEMA_URL

_SCOPE = InstrumentationScope(name="servescope", version=__version__)
_TEMPORALITIES = {
    "cumulative": AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE,
    "delta": AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA,
}
_Message = TypeVar("_Message", NumberDataPoint, HistogramDataPoint)
_ABSENT = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
_MOST_WHOLE = 2.0**63
_NS_PER_MS = 1_000_000
# What a message needs beside its texts and arrays: tags, lengths, times and flags, each as large as it may be.
_PAIR_BYTES, _POINT_BYTES, _METRIC_BYTES, _RESOURCE_BYTES = 16, 64, 48, 96 + 2 * len(SCHEMA_URL)


def encode(points: Sequence[StreamPoint], temporality: Temporality) -> ExportMetricsServiceRequest:
    """The request with these points; those of a metric of a resource are together, in their order."""
    request = ExportMetricsServiceRequest()
    scopes: dict[Labels, ScopeMetrics] = {}
    metrics: dict[tuple[Labels, Descriptor], Any] = {}
    for point in points:
        stream = point.stream
        attributes = _resource(stream)
        place = (attributes, stream.metric)
        data_points = metrics.get(place)
        if data_points is None:
            scope = scopes.get(attributes)
            if scope is None:
                resource = request.resource_metrics.add(schema_url=SCHEMA_URL)
                resource.resource.attributes.extend(_pair(*pair) for pair in attributes)
                scope = scopes[attributes] = resource.scope_metrics.add(scope=_SCOPE, schema_url=SCHEMA_URL)
            data_points = metrics[place] = _add_metric(scope, stream.metric, temporality)
        data_points.append(_histogram(point) if stream.metric.kind == "histogram" else _number(point))
    return request


def count_bytes(points: Iterable[StreamPoint]) -> Iterator[int]:
    """For each point the most bytes that it adds to a request it is in after those before it."""
    scopes: set[Labels] = set()
    metrics: set[tuple[Labels, Descriptor]] = set()
    for point in points:
        stream = point.stream
        size = _point_bytes(point)
        attributes = _resource(stream)
        if (place := (attributes, stream.metric)) not in metrics:
            metrics.add(place)
            size += _metric_bytes(stream.metric)
        if attributes not in scopes:
            scopes.add(attributes)
            size += _RESOURCE_BYTES + _labels_bytes(attributes)
        yield size


def _resource(stream: Stream) -> Labels:
    return (*stream.service, *stream.resource)


def _add_metric(scope: ScopeMetrics, metric: Descriptor, temporality: Temporality) -> Any:
    added = scope.metrics.add(name=metric.name, description=metric.help, unit=metric.unit)
    if metric.kind == "gauge":
        added.gauge.SetInParent()
        return added.gauge.data_points
    data = added.sum if metric.kind == "counter" else added.histogram
    data.aggregation_temporality = _TEMPORALITIES[temporality]
    if metric.kind == "counter":
        added.sum.is_monotonic = True
    return data.data_points


def _begin(kind: type[_Message], point: StreamPoint) -> _Message:
    """A message with all of a point but its value, and marked as absent where there is none."""
    message = kind(start_time_unix_nano=(point.start_ms or 0) * _NS_PER_MS, time_unix_nano=point.time_ms * _NS_PER_MS)
    message.attributes.extend(_pair(*pair) for pair in point.stream.attributes)
    if point.value is None:
        message.flags = _ABSENT
    return message


def _number(point: StreamPoint) -> NumberDataPoint:
    message, value = _begin(NumberDataPoint, point), point.value
    if value is None:
        return message
    if isinstance(value, HistogramValue):
        raise TypeError(f"{point.stream.metric.name}: a histogram's value in a {point.stream.metric.kind}")
    if point.stream.metric.whole and abs(value) < _MOST_WHOLE:
        message.as_int = round(value)
    else:
        message.as_double = value
    return message


def _histogram(point: StreamPoint) -> HistogramDataPoint:
    message, value = _begin(HistogramDataPoint, point), point.value
    if isinstance(value, HistogramValue):
        message.count, message.sum = sum(value.counts), value.sum
        message.bucket_counts.extend(value.counts)
        message.explicit_bounds.extend(value.edges)
    elif value is not None:
        raise TypeError(f"{point.stream.metric.name}: a number as the value of a histogram")
    return message


@lru_cache(8192)  # few values occur in many points; messages are copied into their parents
def _pair(name: str, value: str) -> KeyValue:
    return KeyValue(key=name, value=AnyValue(string_value=value))


def _point_bytes(point: StreamPoint) -> int:
    buckets = len(point.value.counts) if isinstance(point.value, HistogramValue) else 0
    return _POINT_BYTES + 16 * buckets + _labels_bytes(point.stream.attributes)


@lru_cache(1024)
def _metric_bytes(metric: Descriptor) -> int:
    return _METRIC_BYTES + count_utf8(metric.name) + count_utf8(metric.help) + count_utf8(metric.unit)


def _labels_bytes(labels: Labels) -> int:
    return sum(_PAIR_BYTES + count_utf8(name) + count_utf8(value) for name, value in labels)
