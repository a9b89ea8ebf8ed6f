"""The OTLP receiver of a Prometheus, which Debian's has not: the names and labels of it, in a real Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any
from urllib.request import Request, urlopen

from cramjam import snappy
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import DataPointFlags, Metric

from servescope.customers.points.prometheus_series import STALE
from servescope.customers.transports.remote_write_messages import WriteRequest
from tests.support.otlp_receiver import Receiver, attributes
from tests.support.waiting import deadline_seconds

_UNITS = {"s": "seconds", "By": "bytes"}
_ABSENT = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
_HEADERS = {
    "Content-Encoding": "snappy", "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}  # fmt: skip


class OtlpPrometheus(Receiver):
    """Writes what it is sent to the Prometheus at `write_url`; without `suffixes` under the names that a Mimir has."""

    def __init__(self, write_url: str, *, suffixes: bool = True) -> None:
        self._write_url, self._suffixes = write_url, suffixes
        super().__init__()

    def take(self, request: ExportMetricsServiceRequest) -> None:
        """Store a request; one that is refused is not acknowledged."""
        written = WriteRequest()
        for resource in request.resource_metrics:
            described = attributes(resource.resource)
            known = {"job": "service.name", "instance": "service.instance.id"}
            kept = {label: described[name] for label, name in known.items() if name in described}
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    _write(written, metric, stored_name(metric, suffixes=self._suffixes), kept)
        body = bytes(snappy.compress_raw(written.SerializeToString()))
        with urlopen(Request(self._write_url, body, _HEADERS), timeout=deadline_seconds()):
            super().take(request)


def stored_name(metric: Metric, *, suffixes: bool) -> str:
    """The metric's name by Prometheus' `UnderscoreEscapingWithSuffixes`, or `UnderscoreEscapingWithoutSuffixes`."""
    if not suffixes:
        return re.sub("[^a-zA-Z0-9_]", "_", metric.name)
    words = re.findall("[a-zA-Z0-9]+", metric.name)
    main, _, per = metric.unit.partition("/")
    words += [word for word in [_UNITS.get(main)] if word and word not in words]
    words += ["per", "second"] if per else []
    if metric.HasField("sum"):
        words = [*(word for word in words if word != "total"), "total"]
    elif metric.HasField("gauge") and metric.unit == "1":
        words = [*(word for word in words if word != "ratio"), "ratio"]
    return "_".join(words)


def _write(request: Any, metric: Metric, name: str, kept: Mapping[str, str]) -> None:
    kind = metric.WhichOneof("data")
    assert kind is not None
    for point in getattr(metric, kind).data_points:
        own = {re.sub("[^a-zA-Z0-9_]", "_", label): value for label, value in attributes(point).items()}
        for suffix, le, value in _values(kind, point):
            labels = {**own, **kept, **le, "__name__": name + suffix}
            series = request.timeseries.add()
            for label in sorted(labels):
                series.labels.add(name=label, value=labels[label])
            is_absent = point.flags & _ABSENT
            series.samples.add(value=STALE if is_absent else value, timestamp=point.time_unix_nano // 1_000_000)


def _values(kind: str, point: Any) -> Iterator[tuple[str, dict[str, str], float]]:
    """The series of a point: what their names end with, their `le`, and their values."""
    if kind != "histogram":
        yield "", {}, point.as_double if point.HasField("as_double") else float(point.as_int)
        return
    yield "_sum", {}, point.sum
    yield "_count", {}, float(point.count)
    for edge, count in zip(point.explicit_bounds, accumulate(point.bucket_counts), strict=False):
        yield "_bucket", {"le": f"{edge:f}".rstrip("0").rstrip(".")}, float(count)
    yield "_bucket", {"le": "+Inf"}, float(point.count)
