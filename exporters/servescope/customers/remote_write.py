"""Points as requests of Prometheus remote write, in version 1.0 or 2.0.

A histogram is a series for each bucket, cumulative over them, one for its sum and one for its count. A stream ends with
a stale marker on each of its series.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from servescope.contract.samples import Labels, format_edge
from servescope.customers.points import Descriptor, HistogramValue, Stream, StreamPoint
from servescope.customers.remote_write_messages import METRIC_TYPES, Label, Request, WriteRequest

STALE: float = struct.unpack("<d", (0x7FF0000000000002).to_bytes(8, "little"))[0]
"""The stale marker: a NaN with these bits."""

# What a series with its sample, a label and a family need beside their texts in either version, at most: tags, lengths,
# numbers, and references to symbols.
_SERIES_BYTES, _LABEL_BYTES, _METADATA_BYTES = 64, 18, 48


class _Line(NamedTuple):
    """One series of a point: what its name ends with, its `le` (empty without), and the value."""

    suffix: str
    le: str
    value: float


def encode_1(points: Sequence[StreamPoint]) -> Any:
    """A request of version 1.0; the samples of a series are together, in their order."""
    request = WriteRequest()
    series: dict[tuple[Stream, str, str], Any] = {}
    families: set[Descriptor] = set()
    for point in points:
        metric = point.stream.metric
        if metric not in families:
            families.add(metric)
            request.metadata.add(
                type=METRIC_TYPES[metric.kind], metric_family_name=metric.family, help=metric.help, unit=unit_of(metric)
            )
        for line in _lines(point):
            key = (point.stream, line.suffix, line.le)
            samples = series.get(key)
            if samples is None:
                one = request.timeseries.add()
                one.labels.extend(_label(*pair) for pair in _labels(point.stream, line))
                samples = series[key] = one.samples
            samples.add(value=line.value, timestamp=point.time_ms)
    return request


def encode_2(points: Sequence[StreamPoint]) -> Any:
    """A request of version 2.0, with the metadata and the start of each sample's count."""
    request = Request()
    symbols: dict[str, int] = {"": 0}
    series: dict[tuple[Stream, str, str], Any] = {}

    def refer(text: str) -> int:
        return symbols.setdefault(text, len(symbols))

    for point in points:
        metric = point.stream.metric
        for line in _lines(point):
            key = (point.stream, line.suffix, line.le)
            samples = series.get(key)
            if samples is None:
                one = request.timeseries.add()
                one.labels_refs.extend(refer(text) for pair in _labels(point.stream, line) for text in pair)
                one.metadata.type = METRIC_TYPES[metric.kind]
                one.metadata.help_ref, one.metadata.unit_ref = refer(metric.help), refer(unit_of(metric))
                samples = series[key] = one.samples
            samples.add(value=line.value, timestamp=point.time_ms, start_timestamp=point.start_ms or 0)
    request.symbols.extend(symbols)
    return request


def count_samples(points: Iterable[StreamPoint]) -> int:
    """How many samples the points are."""
    return sum(1 for point in points for _ in _lines(point))


def count_bytes(points: Iterable[StreamPoint]) -> Iterator[int]:
    """For each point the most bytes that it adds to a request, of either version, that has those before it."""
    families: set[Descriptor] = set()
    for point in points:
        metric = point.stream.metric
        size = sum(_SERIES_BYTES + _labels_bytes(_labels(point.stream, line)) for line in _lines(point))
        if metric not in families:
            families.add(metric)
            size += _METADATA_BYTES + _utf8(metric.family) + _utf8(metric.help)
        yield size


@lru_cache(1024)
def unit_of(metric: Descriptor) -> str:
    """The unit in Prometheus' words where the family's name ends with it, else empty."""
    name = metric.family.removesuffix("_total")
    return next((word for word in ("seconds", "bytes", "ratio") if name.endswith(f"_{word}")), "")


def _lines(point: StreamPoint) -> Iterator[_Line]:
    value = point.value
    if point.stream.metric.kind != "histogram":
        if isinstance(value, HistogramValue):
            raise TypeError(f"{point.stream.metric.name}: a histogram's value in a {point.stream.metric.kind}")
        yield _Line("", "", STALE if value is None else value)
    elif value is None:
        yield from (_Line("_bucket", le, STALE) for le in _edge_texts(point.edges))
        yield _Line("_sum", "", STALE)
        yield _Line("_count", "", STALE)
    elif isinstance(value, HistogramValue):
        totals = list(accumulate(value.counts))
        yield from (_Line("_bucket", le, total) for le, total in zip(_edge_texts(value.edges), totals, strict=True))
        yield _Line("_sum", "", value.sum)
        yield _Line("_count", "", totals[-1])
    else:
        raise TypeError(f"{point.stream.metric.name}: a number as the value of a histogram")


@lru_cache(256)
def _edge_texts(edges: tuple[float, ...]) -> tuple[str, ...]:
    return (*map(format_edge, edges), "+Inf")


def _labels(stream: Stream, line: _Line) -> Labels:
    """All labels of a series, sorted, its name among them."""
    labels = [("__name__", stream.metric.family + line.suffix), *stream.resource, *stream.attributes]
    if line.le:
        labels.append(("le", line.le))
    return tuple(sorted(labels))


def _labels_bytes(labels: Labels) -> int:
    return sum(_LABEL_BYTES + _utf8(name) + _utf8(value) for name, value in labels)


@lru_cache(8192)  # few values occur in many series; messages are copied into their parents
def _label(name: str, value: str) -> Any:
    return Label(name=name, value=value)


def _utf8(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
