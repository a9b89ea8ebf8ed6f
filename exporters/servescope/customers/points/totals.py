"""The totals of streams that are sums over several series: kept with a lane's acknowledgement, and read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from servescope.contract.samples import Labels
from servescope.customers.points.points import HistogramValue


class StreamKey(NamedTuple):
    """A stream by names of the contract: its metric, and the values of the labels that are exported."""

    metric: str
    labels: Labels


@dataclass(frozen=True, slots=True)
class StreamTotal:
    """What a stream counted since `start_ms`; `ended_ms` is when its last series ended, None while it has any."""

    start_ms: int
    value: float | HistogramValue
    ended_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """What of a customer's points follows from those before: sums, the figures shown last, and the key of replicas.

    `figures` are those that were shown at the boundary before, to be ended when they are absent.
    """

    streams: Mapping[StreamKey, StreamTotal] = field(default_factory=lambda: MappingProxyType({}))
    figures: frozenset[StreamKey] = frozenset()
    key_id: str = ""

    def set_back(self, time_ms: int) -> Totals:
        """The same as of an earlier time, after which no stream began or ended."""
        streams = {
            key: StreamTotal(min(each.start_ms, time_ms), each.value, each.ended_ms and min(each.ended_ms, time_ms))
            for key, each in self.streams.items()
        }
        return replace(self, streams=streams)


def add_histograms(first: HistogramValue, second: HistogramValue) -> HistogramValue:
    """The sum of two histograms, at the edges that both have: counts up to these are exact."""
    edges = tuple(sorted({*first.edges} & {*second.edges}))
    one, other = coarsen(first, edges), coarsen(second, edges)
    counts = tuple(map(sum, zip(one.counts, other.counts, strict=True)))
    return HistogramValue(edges, counts, first.sum + second.sum)


def coarsen(histogram: HistogramValue, edges: tuple[float, ...]) -> HistogramValue:
    """The histogram at some of its edges."""
    if histogram.edges == edges:
        return histogram
    below = dict(zip(histogram.edges, accumulate(histogram.counts), strict=False))
    cumulated = [0, *(below[edge] for edge in edges), sum(histogram.counts)]
    counts = tuple(upper - lower for lower, upper in pairwise(cumulated))
    return HistogramValue(edges, counts, histogram.sum)


def dump_totals(totals: Totals) -> str:
    """The totals as JSON."""
    streams = [
        [*key, total.start_ms, _dump_value(total.value), total.ended_ms] for key, total in totals.streams.items()
    ]
    document = {"streams": streams, "figures": sorted(totals.figures), "key_id": totals.key_id}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def load_totals(text: str) -> Totals:
    """The totals that `dump_totals` wrote; raises ValueError for anything else."""
    try:
        document = json.loads(text)
        streams = {
            _load_key(metric, labels): StreamTotal(start_ms, _load_value(value), ended_ms)
            for metric, labels, start_ms, value, ended_ms in document["streams"]
        }
        figures = frozenset(_load_key(*each) for each in document["figures"])
        return Totals(streams, figures, document["key_id"])
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"is not the totals of a lane: {error}") from error


def _dump_value(value: float | HistogramValue) -> Any:
    return [value.edges, value.counts, value.sum] if isinstance(value, HistogramValue) else value


def _load_value(value: Any) -> float | HistogramValue:
    if isinstance(value, list):
        edges, counts, total = value
        return HistogramValue(tuple(edges), tuple(counts), total)
    return float(value)


def _load_key(metric: str, labels: list[list[str]]) -> StreamKey:
    return StreamKey(metric, tuple((name, value) for name, value in labels))
