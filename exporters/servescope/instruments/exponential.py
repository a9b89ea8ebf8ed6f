"""Base-2 exponential histograms, counted from the values themselves.

Explicit buckets cannot be converted to exponential ones: their edges fall within buckets, and the distribution within
a bucket is unknown. So values are counted a second time where exponential histograms are wanted, from then on, at a
fixed scale; a coarser scale is computed from it by adding neighbours, which is exact.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCALE = 5
"""Buckets per power of two are 2**SCALE: a value is known to 2**(1 / 64) - 1, about 1.1 %, before it is coarsened."""

MOST_BUCKETS = 160
"""Buckets of one point, as in OpenTelemetry's SDKs."""

LOWEST, HIGHEST = -30, 63
"""Exponents of two counted between: 1 ns to 9e18. Values below count as zeros; the instruments accept none above."""

_PER_POWER = 2**SCALE
_FIRST = LOWEST * _PER_POWER


@dataclass(frozen=True, slots=True, eq=False)
class ExponentialState:
    """What was counted since `since` (Unix seconds): bucket by bucket at `SCALE`, zeros apart."""

    since: float
    counts: NDArray[np.int64]
    zeros: int
    sum: float

    def minus(self, earlier: ExponentialState) -> ExponentialState:
        """What was counted after an earlier state of the same histogram."""
        return ExponentialState(
            earlier.since, self.counts - earlier.counts, self.zeros - earlier.zeros, self.sum - earlier.sum
        )

    @property
    def count(self) -> int:
        """All values."""
        return int(self.counts.sum()) + self.zeros

    def buckets(self) -> tuple[int, int, list[int]]:
        """Scale, offset and counts, at the finest scale that takes at most `MOST_BUCKETS` buckets."""
        import numpy as np

        (filled,) = self.counts.nonzero()
        if not len(filled):
            return SCALE, 0, []
        indexes, coarser = filled + _FIRST, 0
        while (indexes[-1] >> coarser) - (indexes[0] >> coarser) >= MOST_BUCKETS:
            coarser += 1
        indexes >>= coarser
        offset = int(indexes[0])
        # Counts are whole and far below 2**53, so bincount's floats are exact.
        counts = np.bincount(indexes - offset, weights=self.counts[filled]).astype(np.int64)
        return SCALE - coarser, offset, counts.tolist()


class Exponential:
    """The counts of one series; used under its instrument's lock."""

    __slots__ = ("_counts", "_edges", "_since", "_sum", "_zeros")

    def __init__(self) -> None:
        import numpy as np

        self._since = time.time()
        self._counts: NDArray[np.int64] = np.zeros((HIGHEST - LOWEST) * _PER_POWER, dtype=np.int64)
        self._edges: NDArray[np.float64] = 2.0 ** (np.arange(_PER_POWER) / _PER_POWER - 1)
        self._zeros = 0
        self._sum = 0.0

    def observe(self, values: NDArray[np.float64], times: NDArray[np.float64] | None = None) -> None:
        """Count the values, each as often as `times` says; all are finite, none is negative."""
        import numpy as np

        weights = np.ones(len(values)) if times is None else times
        mantissas, exponents = np.frexp(values)
        # A bucket includes its upper edge: a power of two is the last of the buckets below it.
        places = (exponents - 1 - LOWEST) * _PER_POWER + self._edges.searchsorted(mantissas) - 1
        counted = (values > 0) & (places >= 0)
        places = places[counted].clip(max=len(self._counts) - 1)
        self._counts += np.bincount(places, weights=weights[counted], minlength=len(self._counts)).astype(np.int64)
        self._zeros += int(weights[~counted].sum())
        self._sum += float(values @ weights)

    def state(self) -> ExponentialState:
        """The counts now, as a copy."""
        return ExponentialState(self._since, self._counts.copy(), self._zeros, self._sum)
