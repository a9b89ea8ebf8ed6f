"""What both arms counted per segment: the requests of one tenant, route or priority, where sources keep them apart.

Every metric's sums are over all series whatever their labels; these are beside them, and of metrics alone whose series
have the label `segment`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.judged import Part
from servescope.contract.metrics import MOST_SEGMENTS, OTHER_SEGMENT, SEGMENT
from servescope.increments.batches import Processes, TargetBatch, sum_counters, sum_histogram

Floats = NDArray[np.float64]

REQUESTS: Final = "requests"
"""The name under which the requests of each segment are kept, beside its metrics."""


class SegmentSums:
    """The sums of each segment of an arm's P replicas over B blocks.

    `found` are, by the name of a histogram or a ratio of counters and by segment, what it counts and among how much,
    (P, B) each, NaN where it is not known; without metrics that no segment has.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self._shape = shape
        self.found: dict[str, dict[str, tuple[Floats, Floats]]] = {}

    def add_histogram(self, name: str, batch: TargetBatch, processes: Processes, known: NDArray[np.bool_]) -> None:
        """Add what a batch has of a histogram where the whole of that is `known`, (T, n)."""
        self._add(name, batch, known, lambda segment: sum_histogram(batch, name, processes, segment))

    def add_counters(
        self, name: str, batch: TargetBatch, processes: Processes, parts: tuple[Sequence[Part], Sequence[Part]]
    ) -> None:
        """Add what a batch has of a ratio of counters, of the `parts` above and below the line."""

        def read(segment: str) -> tuple[Floats, Floats] | None:
            above, below = (
                sum_counters(
                    batch, [each._replace(where=(*each.where, (SEGMENT, (segment,)))) for each in side], processes
                )
                for side in parts
            )
            return None if above is None or below is None else (above, below)

        self._add(name, batch, np.ones(1, dtype=np.bool_), read)

    def _add(
        self,
        name: str,
        batch: TargetBatch,
        known: NDArray[np.bool_],
        read: Callable[[str], tuple[Floats, Floats] | None],
    ) -> None:
        for index, segment in enumerate(batch.rows.segments):
            sums = read(segment)
            if sums is None:
                continue
            # A process has no more by contract; what says otherwise must not need ever more memory.
            into = segment if index < MOST_SEGMENTS or segment == OTHER_SEGMENT else OTHER_SEGMENT
            by_segment = self.found.setdefault(name, {})
            if into not in by_segment:
                by_segment[into] = np.full(self._shape, np.nan), np.full(self._shape, np.nan)
            for whole, part in zip(by_segment[into], sums, strict=True):
                former = whole[batch.cells]
                added = np.where(known, part, np.nan)
                whole[batch.cells] = np.where(np.isnan(former), added, former + np.nan_to_num(added))
