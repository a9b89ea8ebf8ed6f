"""Which replicas of an arm are warm in which blocks, and what warming up cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from servescope.cutover.comparison.freezing import counted_of
from servescope.cutover.conditions.warmth import (
    AS_GOOD,
    AS_GOOD_BLOCKS,
    AS_GOOD_SECONDS,
    IDLE_SECONDS,
    LEAST_REQUESTS,
    OLD_SECONDS,
    ColdStartCost,
    Warmth,
    cold_start_cost,
    collapses,
    lives,
    overdue,
    warmth,
)
from servescope.cutover.evidence.folding import ArmArrays, ArmFold, ReplicaSums, judged_metric
from servescope.cutover.plan.plan import FrozenPlan
from servescope.cutover.statistics.sequences import Floats, zero_unknown
from servescope.increments.blocks import BLOCK_MS

_BLOCK_SECONDS: Final = BLOCK_MS / 1000
_IDLE_BLOCKS: Final = round(IDLE_SECONDS / _BLOCK_SECONDS)
_AT_ONCE: Final = 3
"""Blocks within which a replica has to serve, once anything is observed, to have served before."""
_EXPECTED: Final = 10.0
"""Requests that a replica of either arm gets on average meanwhile, below which one that gets none does not idle."""
_ENOUGH_HITS: Final = 20.0
"""Requests of a block below which its hit rate shows no collapse."""


@dataclass(frozen=True, slots=True, eq=False)
class ArmWarmth:
    """`usable` is where a replica may be compared, (P, B); `rearmed` where one that had restarted may not yet, (B,).

    `seconds` is the longest that a replica took to be declared warm, None where none was seen to; `cost` the excess of
    all of them until then. `overdue` is where replicas are compared though they do not seem warm, as they have warmed
    up for too long, (P, B).
    """

    usable: NDArray[np.bool_]
    rearmed: NDArray[np.bool_]
    seconds: float | None
    cost: ColdStartCost
    overdue: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """A metric by which an arm's warmth is judged, with v1's mean per block, (B,).

    `mean` is of all of v1's replicas, `warm_mean` of those that are warm, NaN where none is.
    """

    sums: ReplicaSums
    mean: Floats
    warm_mean: Floats
    higher_is_better: bool = False

    def cost(self, expected: ArrayLike, sums: ArrayLike) -> Floats:
        """The logarithm by which sums are worse than expected of as many of v1's, NaN where either is not known."""
        sign = -1.0 if self.higher_is_better else 1.0
        with np.errstate(invalid="ignore", divide="ignore"):
            found = sign * (np.log(sums) - np.log(expected))
        return np.where(np.isfinite(found), found, np.nan)

    def effects(self, replica: int) -> Floats:
        """The cost of one replica in each block, (B,)."""
        mean = np.where(np.isfinite(self.warm_mean), self.warm_mean, self.mean)
        return self.cost(zero_unknown(self.sums.below[replica]) * mean, zero_unknown(self.sums.above[replica]))

    def recent_cost(self, replicas: NDArray[np.int64], block: int) -> float:
        """The cost of replicas together over the half hour up to a block, as far as it is known; NaN
        where nothing is.
        """
        span = slice(max(0, block + 1 - AS_GOOD_BLOCKS), block + 1)
        counts, sums = (zero_unknown(each[replicas, span]).sum(axis=0) for each in (self.sums.below, self.sums.above))
        known = np.isfinite(self.warm_mean[span])
        expected = (counts * self.warm_mean[span])[known].sum()
        return float(self.cost(expected, sums[known].sum()))


def warm_arms(frozen: FrozenPlan, folded: ArmArrays) -> tuple[ArmWarmth, ArmWarmth]:
    """How warm the replicas of both arms are, by the latencies and speeds of the plan that both arms report."""
    arms = (folded.v1, folded.v2)
    unknown = np.full(folded.blocks.size, np.nan)
    shown: list[tuple[ReplicaSums, Timed]] = []
    for metric in frozen.plan.metrics:
        if judged_metric(metric.name, frozen.histograms).warms:
            v1, v2 = (counted_of(arm, metric.name, frozen.histograms) for arm in arms)
            mean = warm_mean_of(v1)
            if np.isfinite(mean).any() and np.nansum(v2.below) > 0.0:
                shown.append((v2, Timed(v1, mean, unknown, metric.better == "higher")))
    # A cold start's cost is that of the first latency.
    shown.sort(key=lambda each: each[1].higher_is_better)
    if not shown:
        v1_always, v2_always = (_always_warm(arm) for arm in arms)
        return v1_always, v2_always
    usual = _usual_requests(folded)
    timed = [each for _, each in shown]
    v1_warmth = warm_replicas(folded.v1, timed, usual)
    if v1_warmth.usable.all():
        timed = [replace(each, warm_mean=each.mean) for each in timed]
    else:
        timed = [replace(each, warm_mean=warm_mean_of(each.sums, v1_warmth.usable)) for each in timed]
        # Those that are warm by themselves show when others are as good.
        v1_warmth = warm_replicas(folded.v1, timed, usual)
        timed = [replace(each, warm_mean=warm_mean_of(each.sums, v1_warmth.usable)) for each in timed]
    of_v2 = [replace(each, sums=v2) for each, (v2, _) in zip(timed, shown, strict=True)]
    return v1_warmth, warm_replicas(folded.v2, of_v2, usual)


def _usual_requests(folded: ArmArrays) -> Floats:
    """The requests of a replica in each block, (B,), on average over both arms; NaN before anything is observed."""
    requests = np.concatenate([arm.traffic["requests"] for arm in (folded.v1, folded.v2)])
    present = np.concatenate([arm.present for arm in (folded.v1, folded.v2)])
    usual = np.nansum(requests, axis=0) / np.maximum(1, np.isfinite(requests).sum(axis=0))
    return np.where(np.logical_or.accumulate(present.any(axis=0)), usual, np.nan)


def _always_warm(arm: ArmFold) -> ArmWarmth:
    """Where no latency shows a transient, none is left out."""
    nothing, nowhere = np.zeros(arm.blocks.size, dtype=np.bool_), np.zeros(arm.present.shape, dtype=np.bool_)
    return ArmWarmth(np.ones(arm.present.shape, dtype=np.bool_), nothing, None, ColdStartCost(0.0, 0.0), nowhere)


@dataclass(slots=True)
class _Spell:
    """A replica's spell: its first block and its end, whether it is the second of a process or cache, how
    it warmed up.
    """

    replica: int
    first: int
    end: int
    again: bool
    found: Warmth

    @property
    def usable(self) -> int:
        """The first block that may be compared."""
        return self.end if self.found.usable_from is None else self.first + self.found.usable_from


def warm_replicas(arm: ArmFold, timed: Sequence[Timed], usual: Floats) -> ArmWarmth:
    """The warmth of each replica, from its past alone.

    `usual` are the requests of a replica in each block, (B,), NaN before anything was observed.
    """
    requests = np.fmax(arm.traffic["requests"], timed[0].sums.below)
    hits = _hit_rates(arm)
    emptied = _emptied(hits, requests)
    ages, begun = _ages(arm, requests, np.isfinite(emptied), usual)
    requests, seen = zero_unknown(requests), np.asarray(arm.present.any(axis=1))
    # Nearly all were old when they were first seen serving, and neither restarted nor idled since.
    steady = seen & (ages[:, :1] - _BLOCK_SECONDS >= OLD_SECONDS).all(axis=1) & (np.diff(ages) >= 0.0).all(axis=1)
    spells = []
    for replica in np.flatnonzero(seen & ~steady):
        effects = [each.effects(int(replica)) for each in timed]
        for first, end in lives(ages[replica]):
            span = slice(first, end)
            found = warmth(
                ages[replica, span], requests[replica, span], hits[replica, span], [each[span] for each in effects],
                float(emptied[replica, first]),
            )  # fmt: skip
            spells.append(_Spell(int(replica), first, end, bool(begun[replica, first]), found))
    _shorten(spells, ages, requests, timed)
    return _arm_warmth(arm, steady, spells, requests, timed[0])


def _shorten(spells: Sequence[_Spell], ages: Floats, requests: Floats, timed: Sequence[Timed]) -> None:
    """Ends the spells of replicas that are as good as v1's warm ones, however they got there.

    What is left of a transient is then too small to be harm. Replicas that warm up at once are taken together, so that
    the fast ones among them are not compared before the slow ones.
    """
    served = {id(each): np.cumsum(requests[each.replica, each.first : each.end]) for each in spells}
    waiting = [each for each in spells if each.usable > each.first and served[id(each)][-1] >= LEAST_REQUESTS]
    for block in sorted({block for each in waiting for block in range(each.first, each.usable)}):
        group = [
            each for each in waiting
            if each.first <= block < each.usable
            and ages[each.replica, block] >= AS_GOOD_SECONDS
            and served[id(each)][block - each.first] >= LEAST_REQUESTS
        ]  # fmt: skip
        if group:
            replicas = np.array([each.replica for each in group])
            costs = [each.recent_cost(replicas, block) for each in timed]
            if all(cost <= AS_GOOD for cost in costs):
                for each in group:
                    at = block - each.first
                    each.found = Warmth(at, at + 1, float(ages[each.replica, block]))


def _arm_warmth(
    arm: ArmFold, steady: NDArray[np.bool_], spells: Sequence[_Spell], requests: Floats, timed: Timed
) -> ArmWarmth:
    usable = np.repeat(steady[:, None], arm.blocks.size, axis=1)
    again = np.zeros(usable.shape, dtype=np.bool_)
    took: list[float] = []
    cost = ColdStartCost(0.0, 0.0)
    for each in spells:
        usable[each.replica, each.usable : each.end] = True
        again[each.replica, each.first : each.usable] = each.again
        if each.found.seconds is not None:
            took.append(each.found.seconds)
            cost = _added(cost, timed, each)
    # One that restarts again and again may be harm, and is never health.
    rearmed = np.asarray((again & ~usable & arm.present).any(axis=0))
    late = _overdue(requests, usable)
    usable |= late
    return ArmWarmth(usable, rearmed, max(took, default=None), cost, late)


def _added(cost: ColdStartCost, timed: Timed, spell: _Spell) -> ColdStartCost:
    cold = slice(spell.first, spell.first + (spell.found.declared or 0))
    counts, sums = (zero_unknown(each[spell.replica, cold]) for each in (timed.sums.below, timed.sums.above))
    mean = np.where(np.isfinite(timed.warm_mean), timed.warm_mean, timed.mean)
    more = cold_start_cost(counts, sums, mean[cold])
    return ColdStartCost(cost.requests + more.requests, cost.excess + more.excess)


def _overdue(requests: Floats, usable: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Where replicas have warmed up for too long, each or, as replicas replace each other, most of their
    arm, (P, B).
    """
    cold = (requests > 0.0) & ~usable
    mostly = (requests * cold).sum(axis=0) > 0.5 * requests.sum(axis=0)
    return np.asarray(~usable & (overdue(cold) | overdue(mostly)))


def _hit_rates(arm: ArmFold) -> Floats:
    """The share of prompt tokens that were cached, (P, B), NaN where a replica does not report it."""
    reused, eligible = arm.traffic["reused"], arm.traffic["eligible"]
    with np.errstate(invalid="ignore"):
        known = (eligible > 0.0) & (reused >= 0.0)
    return np.asarray(np.divide(reused, eligible, out=np.full(eligible.shape, np.nan), where=known))


def _emptied(hits: Floats, requests: Floats) -> Floats:
    """Where caches were found empty (`collapses`), (P, B)."""
    found = np.full(hits.shape, np.nan)
    reporting = np.flatnonzero(np.isfinite(hits).any(axis=1))
    with np.errstate(invalid="ignore"):
        known = np.where(requests[reporting] >= _ENOUGH_HITS, hits[reporting], np.nan)
        fell = (known < 0.5 * np.fmax.accumulate(known, axis=1)).any(axis=1)
    for replica, rates in zip(reporting[fell], known[fell], strict=True):
        found[replica] = collapses(rates)
    return found


def _ages(
    arm: ArmFold, requests: Floats, emptied: NDArray[np.bool_], usual: Floats
) -> tuple[Floats, NDArray[np.bool_]]:
    """Seconds at each block's end since a replica last began to warm up, and where one that had served did so: (P, B)
    each.

    It begins to warm up when its process begins, when it serves for the first time (but for one that serves within the
    first blocks that are observed, or before it could expect requests), when it serves again after it idled, and when
    its cache is found empty. The second array marks new processes and emptied caches only: a replica that idled comes
    back without holding up the verdict.
    """
    if not arm.present.size:
        return np.zeros(arm.present.shape), np.zeros(arm.present.shape, dtype=np.bool_)
    started = _process_starts(arm)
    with np.errstate(invalid="ignore"):
        served, idle = requests > 0.0, arm.present & (requests == 0.0)
    times = np.cumsum(served, axis=1)
    first = served & (times == 1)
    unserved = first & (np.cumsum(np.isfinite(usual)) > _AT_ONCE) & (_before(zero_unknown(usual)) >= _EXPECTED)
    again = unserved | emptied
    idled = np.flatnonzero(idle.any(axis=1))
    if idled.size:
        # Blocks without a request so far, and the usual requests of these.
        quiet = np.cumsum(idle[idled], axis=1)
        back = served[idled] & ~first[idled] & (_since(quiet, served[idled]) >= _IDLE_BLOCKS)
        idled, back = idled[back.any(axis=1)], back[back.any(axis=1)]
        missed = np.cumsum(np.where(idle[idled], zero_unknown(usual), 0.0), axis=1)
        again[idled] |= back & (_since(missed, served[idled]) >= _EXPECTED)
    service = np.where(again, arm.blocks.astype(float), -np.inf)
    ages = (arm.blocks + BLOCK_MS - np.maximum(started, np.maximum.accumulate(service, axis=1))) / 1000.0
    restarted = np.concatenate([np.zeros((len(arm.replicas), 1), dtype=np.bool_), np.diff(started) > 0.0], axis=1)
    return np.asarray(ages), np.asarray((restarted | emptied) & ~first & (times > served))


def _before(values: Floats) -> Floats:
    """The sum of all blocks before each, (B,)."""
    return np.asarray(np.cumsum(values) - values)


def _since(running: Floats, served: NDArray[np.bool_]) -> Floats:
    """By how much a running sum has grown since a replica served before, (P, B)."""
    latest = np.maximum.accumulate(np.where(served, running, 0.0), axis=1)
    return np.asarray(running - np.concatenate([np.zeros((len(running), 1)), latest[:, :-1]], axis=1))


def _process_starts(arm: ArmFold) -> Floats:
    """When the process of each replica and block began, (P, B) in milliseconds; as it was first seen where none is
    known.

    A process began when it says, when its counters fell, and otherwise when it was first seen.
    """
    known = np.isfinite(arm.started)
    fell = arm.resets > 0.0
    if known.all() and not fell.any():
        return np.asarray(np.maximum.accumulate(arm.started, axis=1))
    starts = np.repeat(arm.blocks[arm.present.argmax(axis=1)].astype(float)[:, None], arm.blocks.size, axis=1)
    # Of the others nothing but when they were first seen is known.
    some = np.flatnonzero((known | fell).any(axis=1))
    if not some.size:
        return starts
    known, fell = known[some], fell[some]
    begun = np.where(known, arm.started[some], arm.blocks)
    begun = np.where(fell, np.maximum(begun, arm.blocks), begun)
    news = known | fell
    news[np.arange(some.size), arm.present[some].argmax(axis=1)] |= ~known.any(axis=1)
    latest = np.maximum.accumulate(np.where(news, np.arange(arm.blocks.size), -1), axis=1)
    latest = np.where(latest >= 0, latest, news.argmax(axis=1)[:, None])
    # A start that is shown again after counters fell is that of another process of the target, and changes nothing.
    starts[some] = np.maximum.accumulate(np.take_along_axis(begun, latest, axis=1), axis=1)
    return starts


def warm_mean_of(v1: ReplicaSums, usable: NDArray[np.bool_] | None = None) -> Floats:
    """The mean of an arm's replicas per block, of those that are `usable`; NaN where there is none."""
    counts, sums = zero_unknown(v1.below), zero_unknown(v1.above)
    if usable is not None:
        counts, sums = counts * usable, sums * usable
    total, count = sums.sum(axis=0), counts.sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.full(count.shape, np.nan), where=(count > 0.0) & (total > 0.0)))
