"""One stage of a cutover judged after each of its blocks: the tracks of all metrics, and the verdict over them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import replica_of
from servescope.contract.judged import CACHE_IN_A_DAY, JUDGED, JudgedMetric, MetricRole
from servescope.cutover.comparison import gross, outliers, paths
from servescope.cutover.comparison.comparability import Comparability, compare
from servescope.cutover.comparison.freezing import counted_of, least_below, prompts_of
from servescope.cutover.comparison.leaving_out import without_one
from servescope.cutover.comparison.outliers import Alone, ArmOutliers
from servescope.cutover.comparison.paths import ArmSums, Levels, MetricPath
from servescope.cutover.comparison.segments import Segments
from servescope.cutover.conditions import load
from servescope.cutover.conditions.conditions import (
    ArmLoad,
    StageContext,
    arm_load,
    band_coverage,
    conditions_of,
    conditions_of_v2,
    harm_counts,
    missing,
    mix_hides,
    with_mix,
)
from servescope.cutover.conditions.prompts import MixPath, judge_mix, prompt_histograms
from servescope.cutover.conditions.replica_warmth import ArmWarmth, warm_arms
from servescope.cutover.conditions.sensitivity import (
    LASTING_BLOCKS,
    SensitivityTrack,
    StageGiven,
    sensitivity_paths,
    stage_given,
)
from servescope.cutover.evidence import shares
from servescope.cutover.evidence.agreement import DURATION
from servescope.cutover.evidence.coverage import ArmCoverage, arm_coverage, served_requests, trailing_sum
from servescope.cutover.evidence.derived import cache_in_a_day
from servescope.cutover.evidence.evidence import Evidence
from servescope.cutover.evidence.folding import ARMS, ArmArrays, ArmFold, judged_metric
from servescope.cutover.evidence.shortfall import arm_shortfall
from servescope.cutover.evidence.stages import Course, StageSpan, section_part
from servescope.cutover.plan.plan import FrozenPlan, MetricPlan
from servescope.cutover.statistics import several
from servescope.cutover.statistics.mix import Prompts
from servescope.cutover.statistics.sequences import Floats, split_alpha, zero_unknown
from servescope.cutover.verdict.segments import stage_segments
from servescope.cutover.verdict.tracks import (
    DEGRADED,
    HEALTHY,
    INCONCLUSIVE,
    MetricTrack,
    band_value,
    combine,
    track_band,
    track_metric,
)
from servescope.increments.blocks import BLOCK_MS

_BLOCK_SECONDS = BLOCK_MS / 1000


@dataclass(frozen=True, slots=True, eq=False)
class StageTrack:
    """A section of a stage over the B closed blocks of its evidence; `codes` are the verdicts over all required
    metrics, (B,).

    `outage` is where v2 had requests and none succeeded, unless v1's fail as well; `settled` where the stage has lasted
    as long as it has to; `off_plan` where v2 does not have the `share` that the stage plans. `outliers`
    are the replicas of v1 and of v2 that differ from the others of theirs, and `segments` the tenants, routes or
    priorities that they report, None where they do not.
    """

    span: StageSpan
    share: float
    blocks: NDArray[np.int64]
    usable: NDArray[np.bool_]
    tracks: Mapping[str, MetricTrack]
    codes: NDArray[np.int64]
    outage: NDArray[np.bool_]
    settled: NDArray[np.bool_]
    off_plan: NDArray[np.bool_]
    coverage: tuple[ArmCoverage, ArmCoverage]
    loads: tuple[ArmLoad, ArmLoad]
    relation: load.LoadRelation
    mix: MixPath | None
    warmth: tuple[ArmWarmth, ArmWarmth]
    within: slice
    outliers: tuple[ArmOutliers, ArmOutliers]
    segments: Segments | None = None

    @property
    def own(self) -> int:
        """The index of the first block that no section before has judged."""
        return int(np.searchsorted(self.blocks, self.span.since_ms))


def judge_stage(
    frozen: FrozenPlan,
    folded: ArmArrays,
    evidence: Evidence,
    course: Course,
    span: StageSpan,
) -> StageTrack:
    """The stage after each of the blocks that lie wholly within it."""
    warmth = warm_arms(frozen, folded)
    blocks = folded.blocks
    inside = np.flatnonzero((blocks >= span.evidence_ms) & (blocks + BLOCK_MS <= span.until_ms))
    within = slice(int(inside[0]), int(inside[-1]) + 1) if inside.size else slice(0, 0)
    usable = course.usable(blocks[within])
    stage = frozen.plan.stages[span.index]
    weights = split_alpha([each.share for each in frozen.plan.stages])
    loads = tuple(arm_load(arm, within, usable) for arm in (folded.v1, folded.v2))
    off_plan = shares.off_plan(loads[0].requests, loads[1].requests, stage.share)
    coverage = tuple(arm_coverage(arm, within, usable, evidence.scrape_interval_ms) for arm in (folded.v1, folded.v2))
    served = [
        served_requests(name, arm, within, usable, evidence.scrape_interval_ms)
        for name, arm in zip(ARMS, (folded.v1, folded.v2), strict=True)
    ]
    required = {JUDGED[each.name].histogram or each.name for each in frozen.plan.metrics if each.required}
    shortfalls = [arm_shortfall(arm, required, within, usable) for arm in (folded.v1, folded.v2)]
    relation = load.relate(loads[0].per_replica, loads[1].per_replica, loads[0].saturated, loads[1].saturated)
    context = StageContext(
        frozen=frozen, folded=folded, within=within, usable=usable,
        weight=weights[span.index] * section_part(span.section),
        coverage=(coverage[0], coverage[1]), served=(served[0], served[1]),
        shortfalls=(shortfalls[0], shortfalls[1]), loads=(loads[0], loads[1]),
        relation=relation, harm_counts=harm_counts(relation, loads),
        on_plan=~off_plan, share=stage.share, problems=bool(evidence.problems), warmth=warmth,
        mix=judge_mix(prompt_histograms(folded, within), usable),
    )  # fmt: skip
    given = stage_given(frozen, folded, within, usable, warmth, context.loads)
    counted = _counted_metrics(context)
    alone = _outliers_of(context, counted)
    tracks = _judge_metrics(context, given, counted, alone)
    codes = combine(tracks, usable.size)
    outage = _outage(folded, within, usable)
    codes[outage] = DEGRADED
    segments = stage_segments(context, tracks, alone, lambda metric: _levels(context, metric))
    if segments is not None:
        codes[(codes == HEALTHY) & segments.any_harm()] = INCONCLUSIVE
    settled = blocks[within] + BLOCK_MS >= span.begun_ms + stage.least_hours * 3_600_000
    # What nobody looks at is not proven, and what was proven at another share is of another stage.
    codes[(codes == HEALTHY) & ~(settled & usable & ~off_plan)] = INCONCLUSIVE
    return StageTrack(
        span, stage.share, blocks[within], usable, tracks, codes, outage, settled, off_plan, context.coverage,
        context.loads, context.relation, context.mix, warmth, within, alone, segments,
    )  # fmt: skip


_OFFERED: float = 20.0
_BY_CHANCE: float = 1e-3
"""The probability that none of v2's requests succeeds where v1's succeed as often as they do, that is still chance."""


def _outage(folded: ArmArrays, within: slice, usable: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Where v2 was offered requests, in the block and the one before, and none succeeded, unless v1's fail as well.

    v1 fails as well where so few of its requests succeed, in the block or the one before, that all of v2's may fail by
    chance. A v1 that was offered none, or does not report what becomes of them, excuses nothing. Where none of v2's
    ended either, they have been under way for longer than v1's last. Counts of a source that was never run are not
    judged.
    """

    def total(arm: ArmFold, name: str) -> Floats:
        return np.asarray(np.where(usable, zero_unknown(arm.traffic[name][:, within]).sum(axis=0), 0.0))

    def offered(arm: ArmFold) -> Floats:
        return np.maximum(total(arm, "started"), total(arm, "requests"))

    counted = folded.v2.layers.get("requests_total")
    if counted is not None and counted.never_run:
        return np.zeros(usable.size, dtype=np.bool_)
    v2, v1 = offered(folded.v2), offered(folded.v1)
    known = (v1 > 0.0) & np.isfinite(folded.v1.traffic["ok"][:, within]).any(axis=0)
    failing_on_v1 = np.where(known, 1.0 - np.minimum(1.0, total(folded.v1, "ok") / np.where(known, v1, 1.0)), 0.0)
    lately = np.maximum(failing_on_v1, np.concatenate([[0.0], failing_on_v1[:-1]]))
    before = np.concatenate([[False], v2[:-1] >= _OFFERED])
    asking = _running(v2 >= _OFFERED)
    pending = (asking <= _usual_blocks(folded.v1, within)) & (_running(total(folded.v2, "requests") <= 0.0) >= asking)
    failing = (v2 >= _OFFERED) & before & (total(folded.v2, "ok") <= 0.0) & (lately**v2 <= _BY_CHANCE) & ~pending
    # What is not known is no failure.
    reported = np.isfinite(folded.v2.traffic["ok"][:, within])
    reports = reported.any(axis=1, keepdims=True) & (folded.v2.scrapes[:, within] > 0.0)
    return np.asarray(failing & reported.any(axis=0) & ~(reports & ~reported).any(axis=0))


def _usual_blocks(arm: ArmFold, within: slice) -> NDArray[np.int64]:
    """How many blocks a request of an arm lasts on average so far, rounded up, in each block of a stage, (B,)."""
    lasting = arm.metrics.get(DURATION)
    if lasting is None:
        return np.zeros(within.stop - within.start, dtype=np.int64)
    above, below = (np.cumsum(zero_unknown(each).sum(axis=0))[within] for each in (lasting.above, lasting.below))
    mean = np.divide(above, below, out=np.zeros_like(above), where=below > 0.0)
    return np.asarray(np.ceil(mean / _BLOCK_SECONDS), dtype=np.int64)


def _running(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How many blocks in a row a flag has been set up to each, (B,)."""
    every = np.arange(flags.size)
    return np.asarray(every - np.maximum.accumulate(np.where(flags, -1, every)), dtype=np.int64)


# --- Metrics ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    plan: MetricPlan
    judged: JudgedMetric
    found: Comparability | None
    v1: ArmSums
    v2: ArmSums
    path: MetricPath
    gross: Floats
    proving: NDArray[np.int64] | None = None


_Arms = tuple[ArmSums, ArmSums]


@dataclass(frozen=True, slots=True, eq=False)
class _Counted:
    """What both arms counted of a metric that is compared: what is `compared` of it, and sums of everything.

    Failures are compared, however cold the replica was. `known` is where it is known at all, (P, B) of either arm,
    `counts` are all that was counted below the line, (B,), and `everything` the sums above and below it.
    """

    compared: _Arms
    known: tuple[NDArray[np.bool_], NDArray[np.bool_]]
    counts: tuple[Floats, Floats]
    everything: tuple[tuple[float, float], tuple[float, float]]


def _counted_metrics(context: StageContext) -> dict[str, _Counted]:
    """What both arms counted of each metric that is compared."""
    arms = context.folded.v1, context.folded.v2
    prompts = [_prompts(context, arm) for arm in arms]
    warm = [each.usable[:, context.within] for each in context.warmth]
    counted = {}
    for metric in context.frozen.plan.metrics:
        judged = judged_metric(metric.name, context.frozen.histograms)
        if metric.kind != "band":
            name, edges = metric.name, tuple(each.edge for each in context.frozen.edges.get(metric.name, ()))
            (v1, in_v1), (v2, in_v2) = (
                _sums(context, arm, name, edges, each if name in context.frozen.slopes else None)
                for arm, each in zip(arms, prompts, strict=True)
            )
            counted[name] = _Counted(
                (v1.of(warm[0]), v2.of(warm[1])) if judged.timed else (v1, v2),
                (in_v1, in_v2),
                (v1.count, v2.count),
                ((float(v1.above.sum()), float(v1.below.sum())), (float(v2.above.sum()), float(v2.below.sum()))),
            )
    return counted


def _outliers_of(context: StageContext, counted: Mapping[str, _Counted]) -> tuple[ArmOutliers, ArmOutliers]:
    """The replicas of either arm that alone differ from the others of theirs in what took time."""
    frozen = context.frozen
    found: tuple[dict[str, outliers.Outliers], dict[str, outliers.Outliers]] = ({}, {})
    for metric in frozen.plan.metrics:
        judged = judged_metric(metric.name, frozen.histograms)
        if judged.warms:
            noise = outliers.replica_noise(frozen.noise[metric.name], judged)
            for arm, each in zip(found, counted[metric.name].compared, strict=True):
                arm[metric.name] = outliers.find_outliers(each.above, each.below, noise, metric)
    v1, v2 = (
        outliers.arm_outliers(
            each, arm.present[:, context.within], tuple(replica_of(replica) for replica in arm.replicas)
        )
        for each, arm in zip(found, (context.folded.v1, context.folded.v2), strict=True)
    )
    return v1, v2


def _judge_metrics(
    context: StageContext, given: StageGiven | None, counted: Mapping[str, _Counted],
    alone: tuple[ArmOutliers, ArmOutliers],
) -> dict[str, MetricTrack]:  # fmt: skip
    plan = context.frozen.plan
    conditions = conditions_of(context)
    candidates, tracks = {}, {}
    for metric in plan.metrics:
        judged = judged_metric(metric.name, context.frozen.histograms)
        found = compare(judged, context.folded)
        if metric.kind == "band":
            v2, known = _band_sums(context, judged)
            value = _cache_in_a_day(context) if metric.name == CACHE_IN_A_DAY else band_value(v2)
            covered = band_coverage(context, known)
            tracks[metric.name] = track_band(metric, judged, v2, value, conditions_of_v2(context), found, covered)
        else:
            arms = counted[metric.name].compared
            if judged.timed:
                arms = arms[0].of(alone[0].kept), arms[1].of(alone[1].kept)
            candidates[metric.name] = _candidate(context, metric, judged, found, arms)
    for role in get_args(MetricRole):
        family = {name: each for name, each in candidates.items() if each.plan.role == role}
        harmful, beyond = _harm(context, family)
        left = _sensitivity(context, family, harmful, given)
        for name, each in family.items():
            tracks[name] = track_metric(
                each.plan, each.judged, each.path, each.v1, each.v2, harmful=harmful[name], beyond=beyond[name],
                sensitivity=left.get(name),
                conditions=with_mix(context, conditions, each.plan),
                missing=missing(
                    context, each.plan, each.judged, counted[name].counts, counted[name].known, counted[name].compared
                ),
                found=each.found,
                gross=each.gross,
                begins_ms=int(context.folded.blocks[context.within.start]) if context.usable.size else 0,
                everything=counted[name].everything,
                alone=_alone(each, alone[1].alone.get(name)),
            )  # fmt: skip
    return {metric.name: tracks[metric.name] for metric in plan.metrics}


def _band_sums(context: StageContext, judged: JudgedMetric) -> tuple[ArmSums, NDArray[np.bool_]]:
    """What v2 counted of a metric with a band, and where it is known; of one that is no ratio, how often it is."""
    if judged.expression is not None:
        return _sums(context, context.folded.v2, judged.name)
    levels = context.folded.v2.levels[judged.made_of[0]][:, context.within]
    known = np.isfinite(levels) & context.usable
    return ArmSums(np.where(known, levels, 0.0), known.astype(float)), known


def _cache_in_a_day(context: StageContext) -> Floats:
    v1, v2 = (np.where(context.usable, arm.levels["kv_cache_usage"][:, context.within], np.nan)
              for arm in (context.folded.v1, context.folded.v2))  # fmt: skip
    return cache_in_a_day(v1, v2)


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
    level = math.log(context.frozen.plan.alpha_harm * (1.0 - gross.GROSS_PART))
    parts = np.array([each.judged.part for each in family.values()])
    harmful = (several.holm(np.minimum(0.0, -harm), parts) <= level) & (-material <= level)
    return (
        dict(zip(family, harmful, strict=True)),
        dict(zip(family, harmful & (-beyond <= level), strict=True)),
    )


def _sensitivity(
    context: StageContext, family: Mapping[str, _Candidate], harmful: Mapping[str, NDArray[np.bool_]],
    given: StageGiven | None,
) -> dict[str, SensitivityTrack]:  # fmt: skip
    """The metrics that reuse or load moves, each judged by the same rule at the same levels without what these explain.

    What is explained of others is left as it is, so that of a metric nothing depends on when harm of another is proven.
    """
    if given is None:
        return {}
    frozen, found = context.frozen, {}
    level = -math.log(frozen.plan.alpha_harm)
    alike = np.zeros(context.usable.size, dtype=np.bool_) if context.mix is None else ~context.mix.differs
    for name, each in family.items():
        if name in frozen.sensitivity:
            kept = context.harm_counts
            without = sensitivity_paths(
                each.plan, each.judged, frozen.sensitivity[name], frozen.slopes.get(name),
                (kept_sums(each.v1, kept), kept_sums(each.v2, kept)), given, _levels(context, each.plan),
                proves=bool(harmful[name].any()),
            )  # fmt: skip
            still = differs = lasting = np.zeros(context.usable.size, dtype=np.bool_)
            if without.proven is not None:
                moved, left = without.proven
                still = _harm(context, {**family, name: replace(each, path=left)})[0][name] & harmful[name]
                differs = moved.harm >= level
                lasting = alike & (trailing_sum(differs.astype(float), LASTING_BLOCKS) >= LASTING_BLOCKS)
            found[name] = SensitivityTrack(given, without, still, differs, harmful[name] & ~still & differs, lasting)
    return found


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
    levels = _levels(context, metric)
    noise, slope = frozen.noise[metric.name], frozen.slopes.get(metric.name)

    def path(kept: NDArray[np.bool_], one: ArmSums, other: ArmSums, proves: int) -> MetricPath:
        one, other = kept_sums(one, kept), kept_sums(other, kept)
        if judged.kind == "events":
            return paths.events_path(metric, noise, one, other, levels, proves=proves)
        if judged.kind == "ratio":
            return paths.ratio_path(
                metric, noise, one, other, levels, least_below=least_below(judged), slope=slope,
                steady=bool(judged.made_of), proves=proves,
            )  # fmt: skip
        if metric.better is None:
            return paths.two_sided_path(metric, noise, one, other, levels, slope=slope)
        return paths.mean_path(metric, noise, edges, one, other, levels, slope=slope, proves=proves)

    # Events count whatever the load, and so do lengths of answers; health is of the share that is planned.
    every = np.ones(context.usable.size, dtype=np.bool_)
    free, harmful = context.relation.free, context.harm_counts
    if judged.kind == "events" or metric.better is None:
        free = harmful = every
    elif judged.made_of:
        # Replicas with little to do cost more for each token, on either stack.
        harmful = free
    matched = free & context.on_plan

    def path_of(one: ArmSums, other: ArmSums, proves: int = 3) -> MetricPath:
        if np.array_equal(matched, harmful):
            return path(matched, one, other, proves)
        return paths.with_harm(path(matched, one, other, 0), path(harmful, one, other, proves))

    if not judged.warms:
        whole = path_of(v1, v2)
        side = replace(metric, better=metric.better or paths.better_of(whole))
        return _Candidate(side, judged, found, v1, v2, whole, np.full(every.size, np.nan))
    remaining = without_one(v1, v2, path_of, -math.log(levels.harm), math.log1p(metric.margin or 0.0))
    while_warming = _gross_harm(context, metric, judged, v1, harmful, levels)
    return _Candidate(metric, judged, found, v1, v2, remaining.path, while_warming, remaining.proving)


def _gross_harm(
    context: StageContext, metric: MetricPlan, judged: JudgedMetric, v1: ArmSums, kept: NDArray[np.bool_],
    levels: Levels,
) -> Floats:  # fmt: skip
    """The cost of v2 as a whole where it is gross harm while some of its replicas warm up, (B,), NaN elsewhere."""
    usable = context.warmth[1].usable[:, context.within]
    if usable.all():
        return np.full(kept.size, np.nan)
    v2, _ = _sums(context, context.folded.v2, metric.name)
    kept = kept & ((v2.below > 0.0) & ~usable).any(axis=0)
    if not kept.any():
        return np.full(kept.size, np.nan)
    frozen = context.frozen
    family = [judged_metric(each.name, frozen.histograms) for each in frozen.plan.metrics if each.role == metric.role]
    level = levels.harm * gross.GROSS_PART * judged.part / sum(each.part for each in family if each.warms)
    return paths.gross_path(
        metric, frozen.noise[metric.name], kept_sums(v1, kept), kept_sums(v2, kept), levels, level,
        least_below=least_below(judged) if judged.kind == "ratio" else None,
    )  # fmt: skip


def _levels(context: StageContext, metric: MetricPlan) -> Levels:
    plan = context.frozen.plan
    alike = max(1, sum(each.role == metric.role for each in plan.metrics if each.kind != "band"))
    return Levels(
        harm=plan.alpha_harm, weight=context.weight,
        low=plan.alpha_harm * context.weight / alike, high=plan.alpha_health * context.weight,
    )  # fmt: skip


def _sums(
    context: StageContext, arm: ArmFold, name: str, edges: tuple[float, ...] = (), prompts: Prompts | None = None
) -> tuple[ArmSums, NDArray[np.bool_]]:
    """What an arm counted in the stage's blocks, with its prompts, and where that is known, (P, B)."""
    counted = counted_of(arm, name, context.frozen.histograms)
    above, below = counted.above[:, context.within], counted.below[:, context.within]
    known = np.isfinite(above) & np.isfinite(below) & context.usable
    slow = None
    if edges and name in arm.slow:
        slow = np.where(known[:, None], arm.slow[name][:, :, context.within], np.nan)
    return ArmSums(np.where(known, above, 0.0), np.where(known, below, 0.0), slow, prompts), known


def _prompts(context: StageContext, arm: ArmFold) -> Prompts | None:
    """The prompts of an arm in the stage's blocks, where the plan adjusts for any."""
    prompts, within = prompts_of(arm) if context.frozen.slopes else None, context.within
    if prompts is None:
        return None
    return Prompts(prompts.tokens[:, within] * context.usable, prompts.requests[:, within] * context.usable)


def kept_sums(sums: ArmSums, kept: NDArray[np.bool_]) -> ArmSums:
    """What was counted in the blocks that are kept, (B,)."""
    if kept.all():
        return sums
    slow = None if sums.slow is None else sums.slow * kept
    return ArmSums(sums.above * kept, sums.below * kept, slow, sums.prompts)
