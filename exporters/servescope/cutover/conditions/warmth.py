"""Whether a replica is warm, decided by what it served so far, and what its cold start cost.

Steady states are compared with each other; the cold start is a result of its own. A replica warms up from the first
request of a spell: a process' first, the first after it idled, the first that its emptied cache meets. It is declared
warm once it has served long enough and enough, its cache hit rate has stopped rising and MSER finds no transient left.
As that looks at the blocks it decides on, the comparison begins later, after the same time again. None of it lasts: a
replica that has served for `MOST_SECONDS` is as warm as it gets, and what it then does is its own
(docs/judge-method.md#warm-replicas).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.statistics.sequences import Floats
from servescope.cutover.statistics.trends import trend_score
from servescope.increments.blocks import BLOCK_MS

LEAST_AGE_SECONDS: Final = 900.0
LEAST_REQUESTS: Final = 50.0
OLD_SECONDS: Final = 7200.0
"""A process that was at least as old when it was first seen, and served then, has been warm since."""
IDLE_SECONDS: Final = 3600.0
"""After as long without a request a replica warms up again: what it had cached may be gone."""
MOST_SECONDS: Final = 4 * 3600.0
"""How long a replica may warm up, once and, in blocks in which it serves, in any day; what is slower then is harm."""
AS_GOOD_SECONDS: Final = 1800.0
"""For so long a replica that warms up has to be as good as warm ones to count as one of them."""
AS_GOOD: Final = math.log(1.04)
"""The cost up to which it is."""
_LEAST_EFFECTS = 9
_LEAST_LEFT = 5
_TREND_BLOCKS = 12
_FLAT_BLOCKS = 6
"""Blocks over which a hit rate must not rise."""
_RISING = 1.645
"""Mann and Kendall's score above which it does, one-sided 5 %."""
_BLOCK_SECONDS: Final = BLOCK_MS / 1000
AS_GOOD_BLOCKS: Final = round(AS_GOOD_SECONDS / _BLOCK_SECONDS)
_MOST_BLOCKS: Final = round(MOST_SECONDS / _BLOCK_SECONDS)
_DAY_BLOCKS: Final = round(86_400 / _BLOCK_SECONDS)
_USUAL_BLOCKS: Final = 24
"""Known blocks, two hours of them, that show a replica's usual hit rate."""
_COLLAPSED: Final = 0.5
_SURE: Final = 5.0
"""A hit rate has collapsed below this part of the usual one, and by more than so many of its standard deviations."""


@dataclass(frozen=True, slots=True)
class Warmth:
    """When one spell of a replica was declared warm and from when it may be compared: indices of its blocks.

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
    """The first and the end of each spell of a replica: a new one begins where the age at a block's end falls."""
    restarts = np.flatnonzero(np.diff(ages) < 0.0) + 1
    bounds = [0, *(int(block) for block in restarts), ages.size]
    return list(pairwise(bounds))


def warmth(
    ages: Floats, requests: Floats, hit_rates: Floats, effects: Sequence[Floats], lost_below: float = math.nan
) -> Warmth:
    """When one spell of a replica became warm, from its consecutive five-minute blocks, (B,) each.

    `ages` are seconds at each block's end since the spell began. `hit_rates` are NaN where none are reported, each of
    `effects` the cost of a metric, the replica's logarithm less that of warm replicas of v1 in the same block, NaN
    where it has none. Of a spell that an emptied cache began, a hit rate that stays below `lost_below` is no warm-up.
    Later blocks never change what earlier ones declared.
    """
    if ages.size and ages[0] - _BLOCK_SECONDS >= OLD_SECONDS:
        return Warmth(0, 0, None)
    served = np.cumsum(np.nan_to_num(requests))
    enough = np.flatnonzero((ages >= LEAST_AGE_SECONDS) & (served >= LEAST_REQUESTS))
    long = np.flatnonzero((ages >= MOST_SECONDS) & (served > 0.0))
    latest = int(long[0]) if long.size else ages.size
    candidates = np.concatenate([enough[enough < latest], long[:1]])
    for block in map(int, candidates):
        flat = is_flat(hit_rates[: block + 1])
        if flat and _latest_rate(hit_rates[: block + 1]) < lost_below:
            return Warmth(None, block + 1 if block + 1 < ages.size else None, None)
        is_warm = flat and _are_settled([each[: block + 1] for each in effects])
        if is_warm or block == latest:
            # Statistics begin strictly after the declaration, and after the time that it took once more.
            hold = int(np.ceil(ages[block] / _BLOCK_SECONDS))
            usable = 1 + min(block + hold, latest)
            return Warmth(block, usable if usable < ages.size else None, float(ages[block]))
    return Warmth(None, None, None)


def warm_up_seconds(requests_per_second: float, slow_seconds: float = 0.0) -> float:
    """How long fresh replicas are expected to be left out of the comparison before they are as good as v1's.

    `requests_per_second` are those of one replica, and `slow_seconds` how long its start is slower at all: half an hour
    after that, and not before it has served enough. At most `MOST_SECONDS`, which a replica takes that is given no
    requests, too.
    """
    served = LEAST_REQUESTS / requests_per_second if requests_per_second > 0.0 else MOST_SECONDS
    blocks = np.ceil(max(served, slow_seconds + AS_GOOD_SECONDS) / _BLOCK_SECONDS)
    return min(float(blocks) * _BLOCK_SECONDS, MOST_SECONDS)


def _are_settled(effects: Sequence[Floats]) -> bool:
    """Whether the first metric that the replica has shows no transient, and the others neither, or are as good."""
    known = [each[np.isfinite(each)] for each in effects if np.isfinite(each).any()]
    return bool(known) and is_settled(known[0]) and all(_is_as_good(each) or is_settled(each) for each in known[1:])


def _is_as_good(effects: Floats) -> bool:
    """Whether nothing is left of a transient that could be harm."""
    return effects.size >= AS_GOOD_BLOCKS and float(effects[-AS_GOOD_BLOCKS:].mean()) <= AS_GOOD


def overdue(cold: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """In which blocks warming up has lasted too long to be one, (..., B): for `MOST_SECONDS` of the day before.

    `cold` are the blocks that were left out as it warmed up.
    """
    running = np.cumsum(np.concatenate([np.zeros((*cold.shape[:-1], _DAY_BLOCKS + 1)), cold], axis=-1), axis=-1)
    before = running[..., _DAY_BLOCKS:-1] - running[..., : -_DAY_BLOCKS - 1]
    return np.asarray(before >= _MOST_BLOCKS)


def collapses(hit_rates: Floats) -> Floats:
    """Where a cache was found empty, (B,): its hit rate fell far below that of the two hours before; NaN elsewhere.

    The values are the rates that a cache exceeds as it fills again. `hit_rates` are NaN where they are not known. After
    a fall it takes as long again until another one can be found.
    """
    found = np.full(hit_rates.size, np.nan)
    known = np.flatnonzero(np.isfinite(hit_rates))
    rates = hit_rates[known]
    since = 0
    for index in np.flatnonzero(rates < _COLLAPSED * np.maximum.accumulate(rates)):
        if index - since < _USUAL_BLOCKS:
            continue
        usual = rates[index - _USUAL_BLOCKS : index]
        middle, deviation = float(np.median(usual)), float(np.std(usual, ddof=1))
        if rates[index] < min(_COLLAPSED * middle, middle - _SURE * deviation):
            found[known[index]] = _COLLAPSED * middle
            since = int(index) + 1
    return found


def is_flat(hit_rates: Floats) -> bool:
    """Whether a hit rate no longer rises, by Mann and Kendall's test over half an hour; true where it has none."""
    reported = hit_rates[np.isfinite(hit_rates)][-_FLAT_BLOCKS:]
    if not reported.size:
        return True
    return reported.size == _FLAT_BLOCKS and trend_score(reported) <= _RISING


def _latest_rate(hit_rates: Floats) -> float:
    """The mean of the rates that `is_flat` looks at; NaN where there are none."""
    reported = hit_rates[np.isfinite(hit_rates)][-_FLAT_BLOCKS:]
    return float(reported.mean()) if reported.size else math.nan


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


def cold_start_cost(counts: Floats, sums: Floats, warm_mean: Floats) -> ColdStartCost:
    """The cost of the blocks before the declaration, (B,) each, against what warm replicas did in the same blocks."""
    known = np.isfinite(warm_mean) & (counts > 0.0)
    return ColdStartCost(
        requests=float(counts[known].sum()), excess=float((sums[known] - counts[known] * warm_mean[known]).sum())
    )
