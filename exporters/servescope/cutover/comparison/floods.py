"""A flood of events: most of v2 fails, v1 does not, and it goes on (docs/judge-method.md#floods).

How many events there are says little of a flood, as one cause can fail them all: fifty errors at once are one cluster.
That it goes on in the next block does, while v1 serves the same requests. So what is bet on is that a flood which was
there in one block is there in the next, against the probability that another cluster begins just then, or that one of
the size that was seen before still lasts: a likelihood ratio of one for as long as nothing happens.
"""

from __future__ import annotations

import bisect
import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.evidence.folding import ReplicaSums
from servescope.cutover.statistics.sequences import Floats

Flags = NDArray[np.bool_]

FLOOD_SHARE: Final = 0.02
FLOOD_EVENTS: Final = 3.0
"""A block of v2 is flooded where more than this share of its requests, and at least so many, are events."""
FLOOD_RATIO: Final = 5.0
"""A flood has more than so many times the events per request that v1 has in the same block."""
_STAYS: Final = 0.9
"""The probability that a flood, if it is one, is there in the next block, too."""
_CLUSTERS: Final = 0.001
_BLOCKS: Final = 24.0
"""So many clusters as large as a flood are expected in so many blocks, one in 80 days, before any was seen."""
_HALVED: Final = 0.3
"""The probability that a cluster of one replica, which may last minutes, ends in the block after that it began in."""
_ONE_REPLICA: Final = 0.8
"""The events are of one replica where it has more than this part of them."""
_LEAST_CLUSTER: Final = 5.0
_SLACK: Final = 1.5
"""A flood that has fewer than so many times the events of a cluster that was seen may be one like it."""


def flooded(v1: ReplicaSums, v2: ReplicaSums, margin: float) -> Flags:
    """In which blocks v2 is flooded and v1 is not, (B,): also by more than `margin`, the ratio that is allowed."""
    e1, n1, e2, n2 = (each.sum(axis=0) for each in (v1.above, v1.below, v2.above, v2.below))
    many = (e2 >= FLOOD_EVENTS) & (e2 > FLOOD_SHARE * n2)
    return np.asarray(many & (n1 > 0.0) & (e2 * n1 > max(FLOOD_RATIO, margin) * e1 * n2))


def log_evidence_of_flood(v1: ReplicaSums, v2: ReplicaSums, flood: Flags) -> Floats:
    """Evidence after each block that v2 is flooded for longer than clusters last: (B,) logarithms of an e-value.

    `flood` is where it is (`flooded`). What is known of clusters is what either arm has shown in the blocks before.
    """
    evidence = np.zeros(flood.size)
    if not flood.any():
        return evidence
    counts, served = v2.above.sum(axis=0), v2.below.sum(axis=0)
    one = (v2.above.max(axis=0) > _ONE_REPLICA * counts) & ((v2.below > 0.0).sum(axis=0) > 1)
    excess = [_excess(arm) for arm in (v1, v2)]
    known, lasting = _Clusters(), [0.0, 0.0]
    gathered, seen, since = 0.0, 0.0, 0
    for block in range(flood.size):
        if flood[block]:
            seen, since = seen + counts[block], since + 1
            if since > 1:
                another = known.at_least(max(FLOOD_EVENTS, FLOOD_SHARE * served[block])) + _CLUSTERS
                expected = max(another / (_BLOCKS + block), _HALVED if since == 2 and one[block] else 0.0)
                gathered += math.log(_STAYS / min(_STAYS, _STAYS if known.lasts(seen) else expected))
        elif since:
            # That it is over takes back what one more block of it would have shown at the least.
            gathered, seen, since = gathered + math.log1p(-_STAYS), 0.0, 0
        evidence[block] = gathered
        for arm in (0, 1):
            if excess[arm][block] >= _LEAST_CLUSTER:
                lasting[arm] += excess[arm][block]
            elif lasting[arm]:
                known.add(lasting[arm])
                lasting[arm] = 0.0
    return evidence


class _Clusters:
    """The clusters that have been seen, by how many events they had."""

    def __init__(self) -> None:
        self._sizes: list[float] = []

    def add(self, size: float) -> None:
        bisect.insort(self._sizes, size)

    def at_least(self, size: float) -> int:
        return len(self._sizes) - bisect.bisect_left(self._sizes, size)

    def lasts(self, events: float) -> bool:
        return bool(self._sizes) and _SLACK * self._sizes[-1] >= events


def _excess(arm: ReplicaSums) -> list[float]:
    """The events of each block beyond twice what the arm had per request in all blocks before."""
    events, requests = arm.above.sum(axis=0), arm.below.sum(axis=0)
    past, served = np.cumsum(events) - events, np.cumsum(requests) - requests
    usual = np.divide(past * requests, served, out=np.zeros(events.size), where=served > 0.0)
    return [float(each) for each in events - 2.0 * usual]
