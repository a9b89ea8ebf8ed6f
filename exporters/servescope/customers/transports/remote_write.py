"""Points as requests of Prometheus remote write, in version 1.0 or 2.0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from servescope.contract.samples import Labels
from servescope.customers.points.points import Descriptor, Stream, StreamPoint
from servescope.customers.points.prometheus_series import SeriesLine, labels_of, lines, unit_of, with_le
from servescope.customers.transports.batches import count_utf8
from servescope.customers.transports.remote_write_messages import METRIC_TYPES, Label, Request, WriteRequest

# What these need beside their texts in either version, at most: a series with its sample, its name and its `le`, a
# further label, and a family. Tags, lengths, numbers, and references to symbols.
_SERIES_BYTES, _LABEL_BYTES, _METADATA_BYTES = 128, 18, 48


def encode_1(points: Sequence[StreamPoint]) -> Any:
    """A request of version 1.0; the samples of a series are together, in their order."""
    request = WriteRequest()
    series: dict[Stream, dict[tuple[str, str], Any]] = {}
    families: set[Descriptor] = set()
    for point in points:
        metric = point.stream.metric
        if metric not in families:
            families.add(metric)
            request.metadata.add(
                type=METRIC_TYPES[metric.kind], metric_family_name=metric.family, help=metric.help, unit=unit_of(metric)
            )
        known, labels = series.setdefault(point.stream, {}), labels_of(point.stream)
        for line in lines(point):
            samples = known.get(line[:2])
            if samples is None:
                one = request.timeseries.add()
                one.labels.extend(_label(*pair) for pair in _named(metric, labels, line))
                samples = known[line[:2]] = one.samples
            samples.add(value=line.value, timestamp=point.time_ms)
    return request


def encode_2(points: Sequence[StreamPoint]) -> Any:
    """A request of version 2.0, with the metadata and the start of each sample's count."""
    request = Request()
    symbols: dict[str, int] = {"": 0}
    series: dict[Stream, dict[tuple[str, str], Any]] = {}

    def refer(text: str) -> int:
        return symbols.setdefault(text, len(symbols))

    for point in points:
        metric = point.stream.metric
        known, labels = series.setdefault(point.stream, {}), labels_of(point.stream)
        for line in lines(point):
            samples = known.get(line[:2])
            if samples is None:
                one = request.timeseries.add()
                one.labels_refs.extend(refer(text) for pair in _named(metric, labels, line) for text in pair)
                one.metadata.type = METRIC_TYPES[metric.kind]
                one.metadata.help_ref, one.metadata.unit_ref = refer(metric.help), refer(unit_of(metric))
                samples = known[line[:2]] = one.samples
            samples.add(value=line.value, timestamp=point.time_ms, start_timestamp=point.start_ms or 0)
    request.symbols.extend(symbols)
    return request


def count_samples(points: Iterable[StreamPoint]) -> int:
    """How many samples the points are."""
    return sum(1 for point in points for _ in lines(point))


def count_bytes(points: Iterable[StreamPoint]) -> Iterator[int]:
    """For each point the most bytes that it adds to a request, of either version, that has those before it."""
    families: set[Descriptor] = set()
    for point in points:
        metric = point.stream.metric
        each = _SERIES_BYTES + count_utf8(metric.family) + _labels_bytes(labels_of(point.stream))
        size = sum(each + len(line.le) for line in lines(point))
        if metric not in families:
            families.add(metric)
            size += _METADATA_BYTES + count_utf8(metric.family) + count_utf8(metric.help)
        yield size


def _named(metric: Descriptor, labels: Labels, line: SeriesLine) -> Labels:
    return tuple(sorted((("__name__", metric.family + line.suffix), *with_le(labels, line.le))))


def _labels_bytes(labels: Labels) -> int:
    return sum(_LABEL_BYTES + count_utf8(name) + count_utf8(value) for name, value in labels)


@lru_cache(8192)  # few values occur in many series; messages are copied into their parents
def _label(name: str, value: str) -> Any:
    return Label(name=name, value=value)
