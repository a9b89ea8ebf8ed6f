"""What keeps a verdict from being given, block by block: data that is missing, arms that are not alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.judged import IMMATERIAL_RATE, LEAST_COUNT, PROMPT_SIZES, JudgedMetric
from servescope.cutover.comparison.paths import ArmSums, MetricPath
from servescope.cutover.conditions import load
from servescope.cutover.conditions.prompts import MixPath
from servescope.cutover.conditions.replica_warmth import ArmWarmth
from servescope.cutover.evidence.coverage import (
    HOUR_BLOCKS,
    LEAST_SCRAPES,
    ArmCoverage,
    MetricCoverage,
    ServedRequests,
    metric_coverage,
    trailing_sum,
)
from servescope.cutover.evidence.folding import ArmArrays, ArmFold
from servescope.cutover.evidence.shortfall import Shortfall
from servescope.cutover.plan.plan import FrozenPlan, MetricPlan
from servescope.cutover.statistics.sequences import Floats, zero_unknown
from servescope.increments.blocks import BLOCK_MS

MOST_REJECTED_APART: Final = 0.02
"""By how much the parts of both arms' requests that are thrown away may differ: more could choose the outcome."""
_BLOCK_SECONDS: Final = BLOCK_MS / 1000
_LEAST_MATCHED: Final = 0.5
_RECENT: Final = 3
"""Blocks within which a metric that vanished is found missing."""
_QUIET: Final = 6
_EXPECTED: Final = 10.0
"""Where an arm has no request within `_QUIET` blocks though so many were to be expected, it gets none any more."""


@dataclass(frozen=True, slots=True, eq=False)
class ArmLoad:
    """What an arm carried in each block, (B,): requests, requests per ready replica and second, whether it queued.

    `arrivals` are the requests that began, per ready replica and second, `in_flight` the mean of those under way, NaN
    where either is not reported.
    """

    requests: Floats
    per_replica: Floats
    saturated: NDArray[np.bool_]
    arrivals: Floats
    in_flight: Floats


def arm_load(arm: ArmFold, within: slice, usable: NDArray[np.bool_]) -> ArmLoad:
    """What an arm carried in the blocks of a stage that are `usable`."""
    requests = np.where(usable, zero_unknown(arm.traffic["requests"][:, within]), 0.0)
    total, ready = requests.sum(axis=0), ready_replicas(arm, within)
    per_replica = np.divide(
        total, ready * _BLOCK_SECONDS, out=np.full(total.shape, np.nan), where=(ready > 0.0) & (total > 0.0)
    )
    above = np.array([arm.above_level[name][:, within] for name in ("queued_requests", "kv_cache_usage")])
    preemptions = np.where(usable, zero_unknown(arm.traffic["preemptions"][:, within]), 0.0).sum(axis=0)
    started, flying = arm.traffic["started"][:, within], arm.levels["concurrent_requests"][:, within]
    arrivals = np.divide(
        zero_unknown(started).sum(axis=0), ready * _BLOCK_SECONDS, out=np.full(total.shape, np.nan),
        where=usable & (ready > 0.0) & np.isfinite(started).any(axis=0),
    )  # fmt: skip
    in_flight = np.where(np.isfinite(flying).any(axis=0), zero_unknown(flying).sum(axis=0), np.nan)
    return ArmLoad(total, per_replica, load.saturated(above, preemptions), arrivals, in_flight)


def ready_replicas(arm: ArmFold, within: slice) -> Floats:
    """The replicas that can generate tokens in each block, (B,): those with a cache; if none shows it, with tokens.

    A frontend or a router counts requests and generates nothing.
    """
    caches = np.isfinite(arm.levels["kv_cache_usage"][:, within])
    tokens = np.isfinite(arm.traffic["output_tokens"][:, within])
    engines = caches if caches.any() else tokens
    return np.asarray((engines & (arm.scrapes[:, within] > 0.0)).sum(axis=0), dtype=float)


@dataclass(frozen=True, slots=True, eq=False)
class StageContext:
    """What is known of a stage before any metric is judged; `within` are its B blocks of those that are folded.

    `weight` is the stage's part of the probabilities of error, `share` the planned one of v2, `on_plan`, (B,), where v2
    has it, `harm_counts` where a slower v2 is v2's fault, (B,), `shortfalls` what the counters of v1 and of v2 lack,
    `problems` that the past could not be read whole.
    """

    frozen: FrozenPlan
    folded: ArmArrays
    within: slice
    usable: NDArray[np.bool_]
    weight: float
    coverage: tuple[ArmCoverage, ArmCoverage]
    served: tuple[ServedRequests, ServedRequests]
    shortfalls: tuple[Shortfall, Shortfall]
    loads: tuple[ArmLoad, ArmLoad]
    relation: load.LoadRelation
    harm_counts: NDArray[np.bool_]
    on_plan: NDArray[np.bool_]
    share: float
    problems: bool
    warmth: tuple[ArmWarmth, ArmWarmth]
    mix: MixPath | None


def harm_counts(relation: load.LoadRelation, loads: Sequence[ArmLoad]) -> NDArray[np.bool_]:
    """Where a slower v2 is v2's fault: it carries no more per replica than v1, or is as free, or was with as much, and
    has not just got more of a crowd than v1."""
    slowed = load.slowed(relation.free, (loads[0].saturated, loads[1].saturated), loads[1].arrivals, loads[1].in_flight)
    v1, v2 = (zero_unknown(each.per_replica) for each in loads)
    both = (v1 > 0.0) & (v2 > 0.0)
    counts = (
        relation.free
        | relation.overloaded
        | (slowed & both & ~relation.both)
        | (both & (v2 <= v1 * (1.0 + 1e-9)) & ~relation.both)
    )
    return np.asarray(counts & ~load.jumped((v1, v2), (loads[0].requests, loads[1].requests)))


@dataclass(frozen=True, slots=True, eq=False)
class Conditions:
    """What holds for every metric of a stage after each block, (B,) each: causes why nothing, or no health, is claimed.

    `no_data` and `hold` are the first cause that applies, "" where none does; `hold` is of metrics that load, prompts
    and warmth move, `no_control` of all.
    """

    no_data: NDArray[np.object_]
    hold: NDArray[np.object_]
    no_control: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class MissingEvidence:
    """What is not known of a metric after each block, (B,) each: causes, "" where there is none.

    `absent` leaves nothing to be claimed, `uncovered` no health; where `rejecting`, more was thrown away of one arm
    than of the other. `coverage` is that of v1 and of v2.
    """

    absent: NDArray[np.object_]
    uncovered: NDArray[np.object_]
    rejecting: NDArray[np.bool_]
    coverage: tuple[MetricCoverage, MetricCoverage]


def missing(
    context: StageContext, metric: MetricPlan, judged: JudgedMetric, counts: tuple[Floats, Floats],
    known: tuple[NDArray[np.bool_], NDArray[np.bool_]], compared: tuple[ArmSums, ArmSums],
) -> MissingEvidence:  # fmt: skip
    """What of the evidence of a metric that is compared is missing.

    `counts` are what both arms counted below the line, (B,), `known` is where that is known, (P, B), and
    `compared` what of it is compared.
    """
    absent, uncovered = (np.full(context.usable.size, "", dtype=object) for _ in range(2))
    control = ~_without_control(context)
    found = []
    for arm, asked in enumerate((control, np.True_)):
        served, shortfall, seen = context.served[arm], context.shortfalls[arm], np.cumsum(counts[arm])
        coverage = metric_coverage(
            served, known[arm], shortfall.part(judged), shortfall.unanswered, recent=_RECENT,
            wanted=context.frozen.plan.coverage,
        )  # fmt: skip
        # A v1 that warms up is no control; a v2 that does is said to.
        unseen = _unseen(compared[0].count if arm == 0 else counts[1], context.loads[arm].requests, context.usable)
        torn = trailing_sum((served.torn & context.usable).sum(axis=0).astype(float), _RECENT) > 0.0
        # A ratio's denominator is in its own unit, where any above zero is one.
        few = seen < (0.0 if judged.kind == "ratio" else judged.least)
        low = coverage.counted() < LEAST_SCRAPES
        thrown = coverage.thrown_away()
        for causes, where, cause in (
            (absent, (seen <= 0.0) & torn, "torn"), (absent, seen <= 0.0, "metric absent"), (absent, few, "too few"),
            (absent, low & (thrown | torn), "torn"), (absent, low, "uncovered"),
            (uncovered, coverage.short() & thrown, "torn"), (uncovered, coverage.short(), "uncovered"),
            (uncovered, unseen, "unseen"),
        ):  # fmt: skip
            if where.any():
                causes[asked & (causes == "") & where] = cause
        found.append(coverage)
    v1, v2 = found
    if judged.kind == "events" and judged.of_requests:
        uncovered[(uncovered == "") & control & _unaccounted(metric, compared, (v1, v2))] = "unaccounted"
    rejecting = control & (np.abs(v1.rejected - v2.rejected) > MOST_REJECTED_APART)
    return MissingEvidence(absent, uncovered, rejecting, (v1, v2))


def _unseen(counted: Floats, requests: Floats, usable: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Where none of an arm's requests of the last half an hour was `counted` though of so many some would be, (B,).

    Requests that all fail show no latency: what was proven before says nothing of the present.
    """
    seen, served = np.cumsum(counted), np.cumsum(requests)
    usual = np.minimum(1.0, np.divide(seen, served, out=np.zeros_like(served), where=served > 0.0))
    expected = usual * trailing_sum(requests, _QUIET)
    whole = trailing_sum(usable.astype(float), _QUIET) >= _QUIET
    return np.asarray(whole & (trailing_sum((counted > 0.0).astype(float), _QUIET) <= 0.0) & (expected >= _EXPECTED))


def _unaccounted(
    metric: MetricPlan, events: tuple[ArmSums, ArmSums], coverage: tuple[MetricCoverage, MetricCoverage]
) -> NDArray[np.bool_]:
    """Where v2 lacks the ends of so many more of its requests than v1 that as events they were beyond the margin, (B,).

    A series of one outcome that is lost on the way leaves the others in order.
    """
    v1, v2 = (
        np.divide(happened, requests, out=np.zeros_like(requests), where=requests > 0.0)
        for happened, requests in ((each.total.cumsum(), each.count.cumsum()) for each in events)
    )
    lacking = coverage[1].missed - coverage[0].missed
    return np.asarray(
        (lacking > 0.0) & (v2 + lacking >= np.maximum((1.0 + (metric.margin or 0.0)) * v1, IMMATERIAL_RATE))
    )


def band_coverage(context: StageContext, known: NDArray[np.bool_]) -> MetricCoverage:
    """How much of v2's requests a metric with a band is `known` of, (P, B): those of replicas that are to report it."""
    nothing = np.zeros(context.usable.size)
    wanted = context.frozen.plan.coverage
    return metric_coverage(context.served[1], known, nothing, nothing, recent=_RECENT, wanted=wanted)


def _without_control(context: StageContext) -> NDArray[np.bool_]:
    """Where v1 has too few requests left in the last hour to compare with, though v2 has them, (B,)."""
    if not context.share >= 1.0:
        return np.zeros(context.usable.size, dtype=np.bool_)
    return np.asarray(trailing_sum(context.loads[0].requests) < LEAST_COUNT)


def conditions_of(context: StageContext) -> Conditions:
    """The conditions of metrics that are compared."""
    size = context.usable.size
    no_control = _without_control(context)
    no_data = _no_data(context, (context.coverage[0], context.coverage[1]), no_control)
    hold = np.full(size, "", dtype=object)
    hold[_prompts_vanished(context)] = "prompts unknown"
    free = _recent_share(context.relation.free, _present(context))
    hold[free < _LEAST_MATCHED] = "load"
    hold[_warming(context)] = "warming"
    hold[~context.on_plan] = "share"
    return Conditions(no_data, hold, no_control)


def _warming(context: StageContext) -> NDArray[np.bool_]:
    """Where less of v2's requests than the plan's coverage went to warm replicas, or one that restarted is not, (B,).

    What a replica shows that is left out as cold would not keep the others from health.
    """
    warmth = context.warmth[1]
    requests = np.where(context.usable, zero_unknown(context.folded.v2.traffic["requests"][:, context.within]), 0.0)
    warm = (requests * warmth.usable[:, context.within]).sum(axis=0)
    total = requests.sum(axis=0)
    return np.asarray(((total > 0.0) & (warm < context.frozen.plan.coverage * total)) | warmth.rearmed[context.within])


def _prompts_vanished(context: StageContext) -> NDArray[np.bool_]:
    """Where both arms have reported how long prompts are, and one does not of enough of its requests any more, (B,).

    Where an arm never does, that cannot be asked for.
    """
    reported, unknown = np.ones(context.usable.size, dtype=np.bool_), np.zeros(context.usable.size, dtype=np.bool_)
    layers = context.frozen.layers.get(PROMPT_SIZES, ("", ""))
    for arm, served, layer in zip((context.folded.v1, context.folded.v2), context.served, layers, strict=True):
        known = np.isfinite(arm.metrics[PROMPT_SIZES].below[:, context.within]) & context.usable
        ever = np.logical_or.accumulate(known.any(axis=0))
        nothing = np.zeros(unknown.size)
        found = metric_coverage(served, known, nothing, nothing, recent=_RECENT, wanted=context.frozen.plan.coverage)
        reported &= ever | bool(layer)
        unknown |= found.short() | (~ever & (served.each.sum(axis=0).cumsum() > 0.0))
    return reported & unknown


def with_mix(context: StageContext, conditions: Conditions, metric: MetricPlan) -> Conditions:
    """The conditions of a metric that prompts move: none is claimed where these differ and it cannot be adjusted."""
    mix = context.mix
    if mix is None:
        return conditions
    unadjusted = mix.differs & (mix.refused | (metric.name not in context.frozen.slopes))
    hold = np.where(unadjusted & (conditions.hold == ""), "mix", conditions.hold).astype(object)
    return replace(conditions, hold=hold)


def mix_hides(context: StageContext, metric: MetricPlan, judged: JudgedMetric, path: MetricPath) -> NDArray[np.bool_]:
    """Where a difference of prompts may explain what looks like harm of a metric, (B,)."""
    mix = context.mix
    if mix is None or judged.kind == "events":
        return np.zeros(context.usable.size, dtype=np.bool_)
    unadjusted = mix.differs & (mix.refused | (metric.name not in context.frozen.slopes))
    if path.slow_low is None or not unadjusted.any():
        return unadjusted
    return np.asarray(unadjusted & ~(path.slow_low() > mix.distance + mix.chance))


def _present(context: StageContext) -> NDArray[np.bool_]:
    return np.asarray((context.loads[0].requests > 0.0) & (context.loads[1].requests > 0.0))


def _recent_share(chosen: NDArray[np.bool_], among: NDArray[np.bool_]) -> Floats:
    """The share of the last hour's blocks that are chosen, 1 where there were none."""
    picked, whole = (trailing_sum(each.astype(float)) for each in (chosen & among, among))
    return np.asarray(np.divide(picked, whole, out=np.ones(chosen.size), where=whole > 0.0))


def conditions_of_v2(context: StageContext) -> Conditions:
    """The conditions of metrics of v2 alone."""
    size = context.usable.size
    no = np.zeros(size, dtype=np.bool_)
    return Conditions(_no_data(context, (None, context.coverage[1]), no), np.full(size, "", dtype=object), no)


def _no_data(
    context: StageContext, coverage: tuple[ArmCoverage | None, ArmCoverage], no_control: NDArray[np.bool_]
) -> NDArray[np.object_]:
    causes = np.full(context.usable.size, "", dtype=object)
    for arm, each in zip(("v1", "v2"), coverage, strict=True):
        if each is None:
            continue
        asked = ~no_control if arm == "v1" else np.ones(causes.size, dtype=np.bool_)
        causes[asked & (causes == "") & ~each.seen] = "arm missing"
        causes[asked & (causes == "") & ~each.scraped & context.usable] = "stale"
        causes[asked & (causes == "") & ~each.complete()] = "scrapes missing"
        causes[asked & (causes == "") & _quiet(context, arm)] = "quiet"
    if context.problems:
        causes[:] = "query error"
    return causes


def _quiet(context: StageContext, arm: str) -> NDArray[np.bool_]:
    """Where an arm gets no requests any more, (B,): none for an hour, or for half of it while the other's go on.

    What was proven before says nothing of the present.
    """
    own, other = (context.loads[0], context.loads[1])[:: 1 if arm == "v1" else -1]
    share = context.share if arm == "v2" else 1.0 - context.share
    expected = trailing_sum(other.requests, _QUIET) * share / max(1.0 - share, 1e-9)
    silent = (trailing_sum(own.requests, _QUIET) <= 0.0) & (expected >= _EXPECTED)
    seen = np.cumsum(own.requests) > 0.0
    whole_hour = trailing_sum(context.usable.astype(float)) >= HOUR_BLOCKS
    none = (trailing_sum(own.requests) <= 0.0) & whole_hour
    quiet = none | (silent & (trailing_sum(context.usable.astype(float), _QUIET) >= _QUIET))
    arms = context.folded.v1 if arm == "v1" else context.folded.v2
    # Requests that are not reported are no silence.
    return np.asarray(seen & quiet & np.isfinite(arms.traffic["requests"][:, context.within]).any(axis=0))
