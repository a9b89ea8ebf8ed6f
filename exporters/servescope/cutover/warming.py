"""Which replicas of an arm are warm in which blocks, and what warming up cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.increments import BLOCK_MS
from servescope.cutover.folding import ArmFold, PodSums
from servescope.cutover.mix import Prompts, feature
from servescope.cutover.sequences import Floats
from servescope.cutover.warmth import OLD_SECONDS, ColdStartCost, cold_start_cost, lives, warmth

_BLOCK_SECONDS: Final = BLOCK_MS / 1000


@dataclass(frozen=True, slots=True, eq=False)
class ArmWarmth:
    """`usable` is where a pod may be compared, (P, B); `rearmed` where one that had restarted may not yet, (B,).

    `seconds` is the longest that a pod took to be declared warm, None where none was seen to; `cost` the excess of all
    of them until then.
    """

    usable: NDArray[np.bool_]
    rearmed: NDArray[np.bool_]
    seconds: float | None
    cost: ColdStartCost


def warm_pods(arm: ArmFold, timed: PodSums, warm_mean: Floats) -> ArmWarmth:
    """The warmth of each pod, from its past alone; `timed` is a latency of the arm and `warm_mean`, (B,), v1's mean."""
    blocks = arm.blocks.size
    rearmed = np.zeros(blocks, dtype=np.bool_)
    requests = np.nan_to_num(arm.traffic["requests"])
    ages, seen = _ages(arm, requests), np.asarray(arm.present.any(axis=1))
    # Nearly all were old when they were first seen, and have not restarted since.
    steady = seen & (ages[:, :1] - _BLOCK_SECONDS >= OLD_SECONDS).all(axis=1) & (np.diff(ages) >= 0.0).all(axis=1)
    usable = np.repeat(steady[:, None], blocks, axis=1)
    took: list[float] = []
    cost = ColdStartCost(0.0, 0.0)
    for pod in np.flatnonzero(seen & ~steady):
        counts, sums = np.nan_to_num(timed.below[pod]), np.nan_to_num(timed.above[pod])
        with np.errstate(invalid="ignore", divide="ignore"):
            effects = feature(Prompts(sums, counts)) - np.log(warm_mean)
        nothing = np.full(blocks, np.nan)
        for number, (first, end) in enumerate(lives(ages[pod])):
            found = warmth(ages[pod, first:end], requests[pod, first:end], nothing[first:end], effects[first:end])
            start = end if found.usable_from is None else first + found.usable_from
            usable[pod, start:end] = True
            if number:
                rearmed[first:start] |= arm.present[pod, first:start]
            if found.seconds is not None:
                took.append(found.seconds)
                cost = _added(cost, counts, sums, warm_mean, slice(first, first + (found.declared or 0)))
    return ArmWarmth(usable, rearmed, max(took, default=None), cost)


def _added(cost: ColdStartCost, counts: Floats, sums: Floats, warm_mean: Floats, cold: slice) -> ColdStartCost:
    more = cold_start_cost(counts[cold], sums[cold], warm_mean[cold])
    return ColdStartCost(cost.requests + more.requests, cost.excess + more.excess)


def _ages(arm: ArmFold, requests: Floats) -> Floats:
    """Seconds at each block's end since a pod began to be warmed, (P, B): by its process, or by its first request.

    A process that was old when its first request came is as warm as it gets without one, and is compared at once.
    Where no start is known, it is as old as it has been seen.
    """
    if not arm.present.size:
        return np.zeros(arm.present.shape)
    ends, every = arm.blocks + BLOCK_MS, np.arange(len(arm.pods))
    known = np.isfinite(arm.started)
    # A process began when it says, when its counters fell, and otherwise when it was first seen.
    fell = arm.resets > 0.0
    begun = np.where(known, arm.started, arm.blocks)
    begun = np.where(fell, np.maximum(begun, arm.blocks), begun)
    news = known | fell
    news[every, arm.present.argmax(axis=1)] |= ~known.any(axis=1)
    latest = np.maximum.accumulate(np.where(news, np.arange(arm.blocks.size), -1), axis=1)
    latest = np.where(latest >= 0, latest, news.argmax(axis=1)[:, None])
    # A start that is shown again after counters fell is that of another process of the target, and changes nothing.
    started = np.maximum.accumulate(np.take_along_axis(begun, latest, axis=1), axis=1)
    ages = (ends - started) / 1000.0
    served = requests > 0.0
    first = served.argmax(axis=1)
    life = served.any(axis=1, keepdims=True) & (started == started[every, first][:, None])
    old = ages[every, first][:, None] - _BLOCK_SECONDS >= OLD_SECONDS
    since = np.maximum(0.0, (ends - arm.blocks[first][:, None]) / 1000.0)
    warming = np.where(old, np.maximum(ages, OLD_SECONDS + _BLOCK_SECONDS), np.minimum(ages, since))
    return np.asarray(np.where(life, warming, ages))


def warm_mean_of(v1: PodSums, usable: NDArray[np.bool_] | None = None) -> Floats:
    """The mean of an arm's pods per block, of those that are `usable`; NaN where there is none."""
    counts, sums = np.nan_to_num(v1.below), np.nan_to_num(v1.above)
    if usable is not None:
        counts, sums = counts * usable, sums * usable
    total, count = sums.sum(axis=0), counts.sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.full(count.shape, np.nan), where=(count > 0.0) & (total > 0.0)))
