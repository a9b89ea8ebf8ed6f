"""The most series that a customer receives, counted as Prometheus counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from servescope.customers.points.points import HistogramValue, Stream, StreamPoint
from servescope.customers.policy.policy import Policy

_MINUTE_MS = 60_000


def most_series(policy: Policy) -> int | None:
    """How many series the policy's quotas allow, None without one; each has one sample in an interval."""
    limits = []
    if policy.quotas.series:
        limits.append(policy.quotas.series)
    if policy.quotas.samples_per_minute:
        limits.append(policy.quotas.samples_per_minute * policy.interval_ms // _MINUTE_MS)
    return min(limits, default=None)


def count_series(value: float | HistogramValue | None) -> int:
    """How many series a point is: a histogram has one for each bucket, its sum and its count."""
    return len(value.counts) + 2 if isinstance(value, HistogramValue) else 1


class SeriesQuota:
    """Which streams a customer receives: those that it received before, then others in the order of their names.

    What is beyond the quota stays out for as long as those within are there. Not thread safe.
    """

    def __init__(self, policy: Policy) -> None:
        self._most = most_series(policy)
        self._kept: dict[Stream, int] = {}

    def keep(self, points: list[StreamPoint], withheld: Counter[str]) -> list[StreamPoint]:
        """The points of streams within the quota; the series of others are counted as withheld."""
        if self._most is None:
            return points
        costs: dict[Stream, int] = {}
        ends: set[Stream] = set()
        for point in points:
            if point.value is None:
                ends.add(point.stream)
            else:
                costs[point.stream] = max(costs.get(point.stream, 0), count_series(point.value))
        self._kept = self._choose(costs, self._most)
        withheld["quota"] += sum(cost for stream, cost in costs.items() if stream not in self._kept)
        # The end of a series says nothing that a quota would limit.
        ending = ends - costs.keys()
        return [point for point in points if point.stream in self._kept or point.stream in ending]

    def _choose(self, costs: dict[Stream, int], most: int) -> dict[Stream, int]:
        chosen: dict[Stream, int] = {}
        left = most
        for stream in self._ordered(costs):
            if costs[stream] <= left:
                chosen[stream] = costs[stream]
                left -= costs[stream]
        return chosen

    def _ordered(self, costs: dict[Stream, int]) -> Sequence[Stream]:
        return sorted(
            costs,
            key=lambda stream: (stream not in self._kept, stream.metric.name, stream.resource, stream.attributes),
        )
