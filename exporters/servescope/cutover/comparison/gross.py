"""Gross harm of a v2 that still warms up: so many times v1's latency that no honest cold start explains it.

Replicas that warm up are left out of the comparison, so that a v2 that is ten times slower would be warming up for an
hour and more. What they serve is therefore watched against a bound of its own: v2 as a whole, cold replicas included,
beside v1's warm ones. A first block that compiles or captures graphs is no harm, and neither is one slow request: each
of `LASTING` consecutive blocks has to exceed the bound, and the evidence of all of them that the effect does.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.evidence.coverage import trailing_sum
from servescope.cutover.statistics import change
from servescope.cutover.statistics.effects import MOST_MERGED, BlockEffects
from servescope.cutover.statistics.sequences import Floats

GROSS_TIMES: Final = 3.0
"""How many times v1's cost is no warm-up."""
GROSS_PART: Final = 0.02
"""Its part of the probability of a false alarm; the comparison of warm replicas has the rest."""
LASTING: Final = 3
"""Consecutive blocks that have to exceed the bound."""
UNKNOWN_TAU2: Final = 0.3**2
"""The excess variance of a block where v1's past does not show it."""
_BOUND: Final = math.log(GROSS_TIMES)


def gross_harm(
    blocks: BlockEffects, variances: Floats, *, alpha: float, level: float, wanted: float, starts: NDArray[np.int64],
    weights: Floats, size: int,
) -> Floats:  # fmt: skip
    """The cost of the last blocks where it is gross harm, as logarithms of v2 ÷ v1, (size,), and NaN where it is not.

    `blocks` are of v2 as a whole against v1's warm replicas, of the blocks in which some of v2's were not warm;
    `variances`, (K,), are infinite where one is left out. Harm is claimed at the probability of error `level`, with
    `alpha`, `wanted`, `starts` and `weights` as in `change.log_evidence_of_harm`.
    """
    evidence = change.log_evidence_of_harm(
        blocks, variances, bound=_BOUND, alpha=alpha, wanted=wanted, starts=starts, weights=weights
    )
    above = np.isfinite(variances) & (blocks.effects > _BOUND)
    lasting = trailing_sum(above.astype(float), LASTING) >= LASTING
    recent = trailing_sum(np.where(above, blocks.effects, 0.0), LASTING) / LASTING
    claimed = np.where(lasting & (evidence >= -math.log(level)), recent, np.nan)
    every = np.arange(size)
    at = np.searchsorted(blocks.last, every, side="right") - 1
    known = at >= 0
    known[known] = every[known] - blocks.last[at[known]] < MOST_MERGED
    return np.where(known, claimed[np.maximum(at, 0)], np.nan) if claimed.size else np.full(size, np.nan)
