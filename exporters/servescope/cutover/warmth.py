"""Whether a replica is warm, decided by its past alone, and what its cold start cost (4.9).

Steady states are compared with each other; the cold start is a result of its own. A replica is declared warm once it is
old enough, has served enough, its cache hit rate has stopped rising and MSER finds no transient left. As that looks at
the blocks it decides on, the comparison begins later, after the same time again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from servescope.cutover.sequences import Floats

LEAST_AGE_SECONDS = 900.0
LEAST_REQUESTS = 50.0
OLD_SECONDS = 7200.0
"""A replica that was at least as old when it was first seen has been warm since."""
_LEAST_EFFECTS = 9
_LEAST_LEFT = 5
_TREND_BLOCKS = 12
_FLAT_BLOCKS = 6
"""Blocks over which a hit rate must not rise."""
_RISING = 1.645
"""Mann and Kendall's score above which it does, one-sided 5 %."""
_BLOCK_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Warmth:
    """When one life of a replica was declared warm and from when it may be compared: indices of its blocks.

    None where that has not been yet. `seconds` is its age at the declaration, the time that warming up took at most.
    """

    declared: int | None
    usable_from: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ColdStartCost:
    """What warming up cost: over how many requests, and by how much their sum exceeded that of warm ones.

    The excess is in the metric's unit times requests: request-seconds of a latency. It is below 0 where cold requests
    were better.
    """

    requests: float
    excess: float


def lives(ages: Floats) -> list[tuple[int, int]]:
    """The first and the end of each life of a replica: a new one begins where the age at a block's end falls."""
    restarts = np.flatnonzero(np.diff(ages) < 0.0) + 1
    bounds = [0, *(int(block) for block in restarts), ages.size]
    return list(pairwise(bounds))


def warmth(ages: Floats, requests: Floats, hit_rates: Floats, effects: Floats) -> Warmth:
    """When one life of a replica became warm, from its consecutive five-minute blocks, (B,) each.

    `ages` are seconds at each block's end: since the start of the process or, where no source shows that, since it was
    first seen. `hit_rates` are NaN where none are reported, `effects`, the replica's ln-mean less that of warm replicas
    of v1 in the same block, where it had too few requests. Later blocks never change what earlier ones declared.
    """
    if ages.size and ages[0] - _BLOCK_SECONDS >= OLD_SECONDS:
        return Warmth(0, 0, None)
    served = np.cumsum(np.nan_to_num(requests))
    for block in range(ages.size):
        if (
            ages[block] >= LEAST_AGE_SECONDS
            and served[block] >= LEAST_REQUESTS
            and is_flat(hit_rates[: block + 1])
            and is_settled(effects[: block + 1])
        ):
            # Statistics begin strictly after the declaration, and after the time that it took once more.
            hold = int(np.ceil(ages[block] / _BLOCK_SECONDS))
            usable = block + 1 + hold
            return Warmth(block, usable if usable < ages.size else None, float(ages[block]))
    return Warmth(None, None, None)


def is_flat(hit_rates: Floats) -> bool:
    """Whether a hit rate no longer rises, by Mann and Kendall's test over half an hour; true where it has none."""
    reported = hit_rates[np.isfinite(hit_rates)][-_FLAT_BLOCKS:]
    if not reported.size:
        return True
    return reported.size == _FLAT_BLOCKS and trend_score(reported) <= _RISING


def is_settled(effects: Floats) -> bool:
    """Whether no transient is left at the end of the effects: they no longer fall, and MSER cuts in the first half.

    White 1997: the cut after which the mean is known best, the least variance of what is left ÷ its number. A slow
    decline looks like a spread to it, which Mann and Kendall's test over the last hour sees.
    """
    known = effects[np.isfinite(effects)]
    count = known.size
    if count < _LEAST_EFFECTS or trend_score(known[-_TREND_BLOCKS:]) < -_RISING:
        return False
    left = np.arange(count, _LEAST_LEFT - 1, -1)
    sums = np.cumsum(known[::-1])[::-1][: left.size]
    squares = np.cumsum(np.square(known)[::-1])[::-1][: left.size]
    errors = (squares - np.square(sums) / left) / np.square(left)
    return int(np.argmin(errors)) <= count // 2


def trend_score(values: Floats) -> float:
    """Mann and Kendall's standardised score of a trend: above 0 where values rise, 0 for fewer than three."""
    count = values.size
    if count < 3:
        return 0.0
    later, earlier = np.tril_indices(count, -1)
    score = float(np.sign(values[later] - values[earlier]).sum())
    deviation = float(np.sqrt(count * (count - 1) * (2 * count + 5) / 18.0))
    return float(np.sign(score)) * max(0.0, abs(score) - 1.0) / deviation


def cold_start_cost(counts: Floats, sums: Floats, warm_mean: Floats) -> ColdStartCost:
    """The cost of the blocks before the declaration, (B,) each, against what warm replicas did in the same blocks."""
    known = np.isfinite(warm_mean) & (counts > 0.0)
    return ColdStartCost(
        requests=float(counts[known].sum()), excess=float((sums[known] - counts[known] * warm_mean[known]).sum())
    )
