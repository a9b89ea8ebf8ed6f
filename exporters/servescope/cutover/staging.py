"""One stage of a cutover judged after each of its blocks: the tracks of all metrics, and the verdict over them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import replica_of
from servescope.contract.increments import BLOCK_MS
from servescope.contract.judged import JudgedMetric
from servescope.cutover import load, outliers, paths, several
from servescope.cutover.comparability import Comparability, compare
from servescope.cutover.conditions import (
    ArmLoad,
    StageContext,
    arm_load,
    conditions_of,
    conditions_of_v2,
    harm_counts,
    missing,
    mix_hides,
    with_mix,
)
from servescope.cutover.coverage import ArmCoverage, arm_coverage
from servescope.cutover.evidence import Evidence
from servescope.cutover.folding import ArmFold, Folded, judged_metric
from servescope.cutover.freezing import LEAST_DECODING, counted_of, prompts_of
from servescope.cutover.leaving_out import without_one
from servescope.cutover.mix import Prompts
from servescope.cutover.mixing import MixPath, judge_mix, prompt_histograms
from servescope.cutover.outliers import Alone, ArmOutliers
from servescope.cutover.paths import ArmSums, Levels, MetricPath
from servescope.cutover.plan import FrozenPlan, MetricPlan
from servescope.cutover.sequences import Floats, split_alpha
from servescope.cutover.stages import Course, StageSpan
from servescope.cutover.tracks import (
    DEGRADED,
    INCONCLUSIVE,
    MetricTrack,
    combine,
    track_band,
    track_metric,
)
from servescope.cutover.warming import ArmWarmth, warm_mean_of, warm_pods
from servescope.cutover.warmth import ColdStartCost

_BLOCK_SECONDS = BLOCK_MS / 1000


@dataclass(frozen=True, slots=True, eq=False)
class StageTrack:
    """A stage over its B closed blocks; `codes` are the verdicts over all required metrics, (B,).

    `outage` is where v2 had requests and none succeeded while v1's did; `settled` where the stage has lasted as long as
    it has to; `outliers` are the replicas of v1 and of v2 that differ from the others of theirs.
    """

    span: StageSpan
    blocks: NDArray[np.int64]
    usable: NDArray[np.bool_]
    tracks: Mapping[str, MetricTrack]
    codes: NDArray[np.int64]
    outage: NDArray[np.bool_]
    settled: NDArray[np.bool_]
    coverage: tuple[ArmCoverage, ArmCoverage]
    loads: tuple[ArmLoad, ArmLoad]
    relation: load.LoadRelation
    mix: MixPath | None
    warmth: tuple[ArmWarmth, ArmWarmth]
    within: slice
    outliers: tuple[ArmOutliers, ArmOutliers]


def judge_stage(
    frozen: FrozenPlan,
    folded: Folded,
    evidence: Evidence,
    course: Course,
    span: StageSpan,
    warmth: tuple[ArmWarmth, ArmWarmth] | None = None,
) -> StageTrack:
    """The stage after each of the blocks that lie wholly within it; `warmth` is `warm_arms` where that is known."""
    warmth = warmth or warm_arms(frozen, folded)
    blocks = folded.blocks
    inside = np.flatnonzero((blocks >= span.since_ms) & (blocks + BLOCK_MS <= span.until_ms))
    within = slice(int(inside[0]), int(inside[-1]) + 1) if inside.size else slice(0, 0)
    usable = course.usable(blocks[within])
    stage = frozen.plan.stages[span.index]
    weights = split_alpha([each.share for each in frozen.plan.stages])
    loads = tuple(arm_load(arm, within, usable) for arm in (folded.v1, folded.v2))
    coverage = tuple(arm_coverage(arm, within, usable, evidence.scrape_interval_ms) for arm in (folded.v1, folded.v2))
    context = StageContext(
        frozen=frozen, folded=folded, within=within, usable=usable, weight=weights[span.index],
        coverage=(coverage[0], coverage[1]), loads=(loads[0], loads[1]),
        relation=load.relate(loads[0].per_replica, loads[1].per_replica, loads[0].saturated, loads[1].saturated),
        share=stage.share, problems=bool(evidence.problems), warmth=warmth,
        mix=judge_mix(prompt_histograms(folded, within), usable),
    )  # fmt: skip
    sums = _compared_sums(context)
    alone = _outliers_of(context, sums)
    tracks = _judge_metrics(context, sums, alone)
    codes = combine(tracks, usable.size)
    outage = _outage(folded, within, usable)
    codes[outage] = DEGRADED
    settled = blocks[within] + BLOCK_MS >= span.since_ms + stage.least_hours * 3_600_000
    codes[(codes == 0) & ~settled] = INCONCLUSIVE
    return StageTrack(
        span, blocks[within], usable, tracks, codes, outage, settled, context.coverage, context.loads, context.relation,
        context.mix, warmth, within, alone,
    )  # fmt: skip


def warm_arms(frozen: FrozenPlan, folded: Folded) -> tuple[ArmWarmth, ArmWarmth]:
    """How warm the pods of both arms are, by the first latency of the plan that both arms report."""
    for metric in frozen.plan.metrics:
        if metric.kind == "mean":
            timed = [arm.metrics[metric.name] for arm in (folded.v1, folded.v2)]
            mean = warm_mean_of(timed[0])
            if np.isfinite(mean).any() and np.nansum(timed[1].below) > 0.0:
                return warm_pods(folded.v1, timed[0], mean), warm_pods(folded.v2, timed[1], mean)
    v1, v2 = (_always_warm(arm) for arm in (folded.v1, folded.v2))
    return v1, v2


def _always_warm(arm: ArmFold) -> ArmWarmth:
    """Where no latency shows a transient, none is left out."""
    nothing = np.zeros(arm.blocks.size, dtype=np.bool_)
    return ArmWarmth(np.ones(arm.present.shape, dtype=np.bool_), nothing, None, ColdStartCost(0.0, 0.0))


_OFFERED: float = 20.0


def _outage(folded: Folded, within: slice, usable: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Where v2 was offered requests, in the block and the one before, and none succeeded, while v1's did."""

    def total(arm: ArmFold, name: str) -> Floats:
        return np.asarray(np.where(usable, np.nan_to_num(arm.traffic[name][:, within]).sum(axis=0), 0.0))

    offered = np.maximum(total(folded.v2, "started"), total(folded.v2, "requests"))
    failing = (offered >= _OFFERED) & (total(folded.v2, "ok") <= 0.0) & (total(folded.v1, "ok") > 0.0)
    before = np.concatenate([[False], offered[:-1] >= _OFFERED])
    # What is not known is no failure.
    reported = np.isfinite(folded.v2.traffic["ok"][:, within])
    reports = reported.any(axis=1, keepdims=True) & (folded.v2.scrapes[:, within] > 0.0)
    return np.asarray(failing & before & reported.any(axis=0) & ~(reports & ~reported).any(axis=0))


# --- Metrics ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    plan: MetricPlan
    judged: JudgedMetric
    found: Comparability | None
    v1: ArmSums
    v2: ArmSums
    path: MetricPath
    proving: NDArray[np.int64] | None = None


_Arms = tuple[ArmSums, ArmSums]


def _compared_sums(context: StageContext) -> dict[str, _Arms]:
    """What both arms counted of each metric that is compared; failures count, however cold the replica was."""
    sums = {}
    for metric in context.frozen.plan.metrics:
        if metric.kind != "band":
            edges = tuple(each.edge for each in context.frozen.edges.get(metric.name, ()))
            v1, v2 = (
                _sums(context, arm, metric.name, edges, None if metric.kind == "events" else warmth.usable)
                for arm, warmth in zip((context.folded.v1, context.folded.v2), context.warmth, strict=True)
            )
            sums[metric.name] = v1, v2
    return sums


def _outliers_of(context: StageContext, sums: Mapping[str, _Arms]) -> tuple[ArmOutliers, ArmOutliers]:
    """The replicas of either arm that alone differ from the others of theirs in what took time."""
    frozen = context.frozen
    found: tuple[dict[str, outliers.Outliers], dict[str, outliers.Outliers]] = ({}, {})
    for metric in frozen.plan.metrics:
        judged = judged_metric(metric.name, frozen.histograms)
        if judged.kind in outliers.TIMED:
            noise = outliers.replica_noise(frozen.noise[metric.name], judged)
            for arm, each in zip(found, sums[metric.name], strict=True):
                arm[metric.name] = outliers.find_outliers(each.above, each.below, noise, metric)
    v1, v2 = (
        outliers.arm_outliers(each, arm.present[:, context.within], tuple(replica_of(pod) for pod in arm.pods))
        for each, arm in zip(found, (context.folded.v1, context.folded.v2), strict=True)
    )
    return v1, v2


def _judge_metrics(
    context: StageContext, sums: Mapping[str, _Arms], alone: tuple[ArmOutliers, ArmOutliers]
) -> dict[str, MetricTrack]:
    plan = context.frozen.plan
    conditions = conditions_of(context)
    candidates, tracks = {}, {}
    for metric in plan.metrics:
        judged = judged_metric(metric.name, context.frozen.histograms)
        found = compare(judged, context.folded)
        if metric.kind == "band":
            v2 = _sums(context, context.folded.v2, metric.name, ())
            tracks[metric.name] = track_band(metric, judged, v2, conditions_of_v2(context), found)
        else:
            arms = sums[metric.name]
            if metric.kind != "events":
                arms = arms[0].of(alone[0].kept), arms[1].of(alone[1].kept)
            candidates[metric.name] = _candidate(context, metric, judged, found, arms)
    for required in (True, False):
        family = {name: each for name, each in candidates.items() if each.plan.required == required}
        harmful, beyond = _harm(context, family)
        for name, each in family.items():
            tracks[name] = track_metric(
                each.plan, each.judged, each.path, each.v1, each.v2, harmful=harmful[name], beyond=beyond[name],
                conditions=with_mix(context, conditions, each.plan),
                absent=missing(context, each.plan, each.judged), found=each.found,
                alone=_alone(each, alone[1].alone.get(name)),
            )  # fmt: skip
    return {metric.name: tracks[metric.name] for metric in plan.metrics}


def _alone(candidate: _Candidate, known: Alone | None) -> Alone | None:
    """The replica of v2 that alone is worse: known to be, or alone in proving harm."""
    if known is None or candidate.proving is None:
        return known
    return outliers.with_proving(known, candidate.proving, candidate.v2.above, candidate.v2.below, candidate.plan)


def _harm(
    context: StageContext, family: Mapping[str, _Candidate]
) -> tuple[dict[str, NDArray[np.bool_]], dict[str, NDArray[np.bool_]]]:
    """Where harm of each metric is proven, and more than its margin of it, over the metrics of a family together."""
    if not family:
        return {}, {}
    harm, material, beyond = (
        np.array(evidence)
        for evidence in zip(*(_evidence_of_harm(context, each) for each in family.values()), strict=True)
    )
    # That there is any harm is claimed of the whole family, that it is material of each metric by itself.
    level = math.log(context.frozen.plan.alpha_harm)
    parts = np.array([each.judged.part for each in family.values()])
    harmful = (several.holm(np.minimum(0.0, -harm), parts) <= level) & (-material <= level)
    return (
        dict(zip(family, harmful, strict=True)),
        dict(zip(family, harmful & (-beyond <= level), strict=True)),
    )


def _evidence_of_harm(context: StageContext, candidate: _Candidate) -> tuple[Floats, Floats, Floats]:
    """The evidence of a metric, (B,) each; none where the stacks do not report the same, or prompts explain it."""
    path = candidate.path
    if candidate.found is not None and candidate.found.finding != "note":
        nothing = np.zeros(context.usable.size)
        return nothing, nothing, nothing
    hidden = mix_hides(context, candidate.plan, candidate.judged, candidate.path)
    harm, material, beyond = (np.where(hidden, 0.0, each) for each in (path.harm, path.material, path.beyond))
    return harm, material, beyond


def _candidate(
    context: StageContext, metric: MetricPlan, judged: JudgedMetric, found: Comparability | None, arms: _Arms
) -> _Candidate:
    frozen, (v1, v2) = context.frozen, arms
    edges = frozen.edges.get(metric.name, ())
    required = max(1, sum(each.required == metric.required for each in frozen.plan.metrics if each.kind != "band"))
    levels = Levels(
        harm=frozen.plan.alpha_harm, weight=context.weight,
        low=frozen.plan.alpha_harm * context.weight / required, high=frozen.plan.alpha_health * context.weight,
    )  # fmt: skip
    noise, slope = frozen.noise[metric.name], frozen.slopes.get(metric.name)
    if judged.kind == "events":
        return _Candidate(metric, judged, found, v1, v2, paths.events_path(metric, noise, v1, v2, levels))

    def path(kept: NDArray[np.bool_], one: ArmSums, other: ArmSums) -> MetricPath:
        one, other = kept_sums(one, kept), kept_sums(other, kept)
        if judged.kind == "ratio":
            return paths.ratio_path(metric, noise, one, other, levels, least_below=LEAST_DECODING, slope=slope)
        return paths.mean_path(metric, noise, edges, one, other, levels, slope=slope)

    def path_of(one: ArmSums, other: ArmSums) -> MetricPath:
        health = path(context.relation.free, one, other)
        if np.array_equal(context.relation.free, harmful):
            return health
        return paths.with_harm(health, path(harmful, one, other))

    harmful = harm_counts(context)
    remaining = without_one(v1, v2, path_of, -math.log(levels.harm), math.log1p(metric.margin or 0.0))
    return _Candidate(metric, judged, found, v1, v2, remaining.path, remaining.proving)


def _sums(
    context: StageContext, arm: ArmFold, name: str, edges: tuple[float, ...], warm: NDArray[np.bool_] | None = None
) -> ArmSums:
    """What an arm counted in the stage's blocks, of pods that are warm where `warm`, (P, B), says which."""
    counted = counted_of(arm, name, context.frozen.histograms)
    above, below = counted.above[:, context.within], counted.below[:, context.within]
    known = np.isfinite(above) & np.isfinite(below) & context.usable
    if warm is not None:
        known &= warm[:, context.within]
    prompts = prompts_of(arm) if name in context.frozen.slopes else None
    slow = None
    if edges and name in arm.slow:
        values = arm.slow[name][:, :, context.within]
        slow = np.where(known[:, None] & np.isfinite(values), values, 0.0)
    if prompts is not None:
        kept = context.usable if warm is None else context.usable & warm[:, context.within]
        prompts = Prompts(prompts.tokens[:, context.within] * kept, prompts.requests[:, context.within] * kept)
    return ArmSums(np.where(known, above, 0.0), np.where(known, below, 0.0), slow, prompts)


def kept_sums(sums: ArmSums, kept: NDArray[np.bool_]) -> ArmSums:
    """What was counted in the blocks that are kept, (B,)."""
    if kept.all():
        return sums
    slow = None if sums.slow is None else sums.slow * kept
    return ArmSums(sums.above * kept, sums.below * kept, slow, sums.prompts)
