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
    pods, blocks = arm.present.shape
    usable = np.zeros((pods, blocks), dtype=np.bool_)
    rearmed = np.zeros(blocks, dtype=np.bool_)
    requests = np.nan_to_num(arm.traffic["requests"])
    counts, sums = np.nan_to_num(timed.below), np.nan_to_num(timed.above)
    with np.errstate(invalid="ignore", divide="ignore"):
        effects = feature(Prompts(sums, counts)) - np.log(warm_mean)
    took: list[float] = []
    cost = ColdStartCost(0.0, 0.0)
    for pod in range(pods):
        seen = np.flatnonzero(arm.present[pod])
        if not seen.size:
            continue
        ages = _ages(arm, pod, int(seen[0]), requests[pod])
        nothing = np.full(blocks, np.nan)
        for number, (first, end) in enumerate(lives(ages)):
            found = warmth(ages[first:end], requests[pod, first:end], nothing[first:end], effects[pod, first:end])
            start = end if found.usable_from is None else first + found.usable_from
            usable[pod, start:end] = True
            if number:
                rearmed[first:start] |= arm.present[pod, first:start]
            if found.seconds is not None:
                took.append(found.seconds)
                cost = _added(cost, counts[pod], sums[pod], warm_mean, slice(first, first + (found.declared or 0)))
    return ArmWarmth(usable, rearmed, max(took, default=None), cost)


def _added(cost: ColdStartCost, counts: Floats, sums: Floats, warm_mean: Floats, cold: slice) -> ColdStartCost:
    more = cold_start_cost(counts[cold], sums[cold], warm_mean[cold])
    return ColdStartCost(cost.requests + more.requests, cost.excess + more.excess)


def _ages(arm: ArmFold, pod: int, first: int, requests: Floats) -> Floats:
    """Seconds at each block's end since a pod began to be warmed: by its process, or by its first request.

    A process that was old when its first request came is as warm as it gets without one, and is compared at once.
    Where no start is known, it is as old as it has been seen.
    """
    ends = arm.blocks + BLOCK_MS
    known = np.isfinite(arm.started[pod])
    # A process began when it says, when its counters fell, and otherwise when it was first seen.
    fell = arm.resets[pod] > 0.0
    begun = np.where(known, arm.started[pod], arm.blocks)
    begun = np.where(fell, np.maximum(begun, arm.blocks), begun)
    news = known | fell
    if not news.any():
        news[first] = True
    latest = np.maximum.accumulate(np.where(news, np.arange(begun.size), -1))
    # A start that is shown again after counters fell is that of another process of the target, and changes nothing.
    started = np.maximum.accumulate(begun[np.where(latest >= 0, latest, int(np.argmax(news)))])
    ages = (ends - started) / 1000.0
    served = np.flatnonzero(requests > 0.0)
    if not served.size:
        return np.asarray(ages)
    life = started == started[served[0]]
    if ages[served[0]] - _BLOCK_SECONDS >= OLD_SECONDS:
        return np.asarray(np.where(life, np.maximum(ages, OLD_SECONDS + _BLOCK_SECONDS), ages))
    since = np.maximum(0.0, (ends - arm.blocks[served[0]]) / 1000.0)
    return np.asarray(np.where(life, np.minimum(ages, since), ages))


def warm_mean_of(v1: PodSums, usable: NDArray[np.bool_] | None = None) -> Floats:
    """The mean of an arm's pods per block, of those that are `usable`; NaN where there is none."""
    counts, sums = np.nan_to_num(v1.below), np.nan_to_num(v1.above)
    if usable is not None:
        counts, sums = counts * usable, sums * usable
    total, count = sums.sum(axis=0), counts.sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.full(count.shape, np.nan), where=(count > 0.0) & (total > 0.0)))
