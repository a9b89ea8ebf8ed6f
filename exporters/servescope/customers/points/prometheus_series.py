"""Points as series of Prometheus, for remote write and for a page that is scraped.

A histogram is a series for each bucket, cumulative over them, one for its sum and one for its count. A stream ends with
a stale marker on each of its series. Characters of a label's name that Prometheus has not are underscores.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from servescope.contract.samples import Labels, format_edge
from servescope.customers.points.points import Descriptor, HistogramValue, Stream, StreamPoint

STALE: float = struct.unpack("<d", (0x7FF0000000000002).to_bytes(8, "little"))[0]
"""The stale marker: a NaN with these bits."""

_NO_NAME = re.compile(r"[^a-zA-Z0-9_]")


class SeriesLine(NamedTuple):
    """One series of a point: what its name ends with, its `le` (empty without), and the value."""

    suffix: str
    le: str
    value: float


@lru_cache(1024)
def unit_of(metric: Descriptor) -> str:
    """The unit in Prometheus' words where the family's name ends with it, else empty."""
    name = metric.family.removesuffix("_total")
    return next((word for word in ("seconds", "bytes", "ratio") if name.endswith(f"_{word}")), "")


def lines(point: StreamPoint) -> Iterator[SeriesLine]:
    """The series of a point."""
    value = point.value
    if point.stream.metric.kind != "histogram":
        if isinstance(value, HistogramValue):
            raise TypeError(f"{point.stream.metric.name}: a histogram's value in a {point.stream.metric.kind}")
        yield SeriesLine("", "", STALE if value is None else value)
    elif value is None:
        yield from (SeriesLine("_bucket", le, STALE) for le in _edge_texts(point.edges))
        yield SeriesLine("_sum", "", STALE)
        yield SeriesLine("_count", "", STALE)
    elif isinstance(value, HistogramValue):
        totals = list(accumulate(value.counts))
        yield from (
            SeriesLine("_bucket", le, total) for le, total in zip(_edge_texts(value.edges), totals, strict=True)
        )
        yield SeriesLine("_sum", "", value.sum)
        yield SeriesLine("_count", "", totals[-1])
    else:
        raise TypeError(f"{point.stream.metric.name}: a number as the value of a histogram")


@lru_cache(256)
def _edge_texts(edges: tuple[float, ...]) -> tuple[str, ...]:
    return (*map(format_edge, edges), "+Inf")


def labels_of(stream: Stream) -> Labels:
    """The labels of all series of a stream, sorted, but its name and `le`."""
    return tuple(sorted((safe_name(name), value) for name, value in (*stream.resource, *stream.attributes)))


def with_le(labels: Labels, le: str) -> Labels:
    """The labels of a bucket, or of a series that is none."""
    return tuple(sorted((*labels, ("le", le)))) if le else labels


@lru_cache(1024)
def safe_name(name: str) -> str:
    """A label's name as Prometheus has it: `service.name` is `service_name`."""
    return _NO_NAME.sub("_", name)
