"""One stage of a cutover judged after each of its blocks: the tracks of all metrics, and the verdict over them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servescope.contract.increments import BLOCK_MS
from servescope.contract.judged import PROMPT_SIZES, JudgedMetric
from servescope.cutover import load, paths, several
from servescope.cutover.comparability import Comparability, compare
from servescope.cutover.coverage import HOUR_BLOCKS, ArmCoverage, arm_coverage, known_share
from servescope.cutover.evidence import Evidence
from servescope.cutover.folding import ArmFold, Folded, judged_metric
from servescope.cutover.freezing import counted_of, prompts_of
from servescope.cutover.mix import Prompts
from servescope.cutover.paths import ArmSums, Levels, MetricPath
from servescope.cutover.plan import FrozenPlan, MetricPlan
from servescope.cutover.sequences import Floats, split_alpha
from servescope.cutover.stages import Course, StageSpan
from servescope.cutover.tracks import (
    DEGRADED,
    INCONCLUSIVE,
    LEAST_COUNT,
    Conditions,
    MetricTrack,
    combine,
    missing,
    track_band,
    track_metric,
)

_BLOCK_SECONDS = BLOCK_MS / 1000


@dataclass(frozen=True, slots=True, eq=False)
class ArmLoad:
    """What an arm carried in each block, (B,): requests, replicas that served, requests per replica and second."""

    requests: Floats
    replicas: Floats
    per_replica: Floats
    saturated: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class StageTrack:
    """A stage over its B closed blocks; `codes` are the verdicts over all required metrics, (B,).

    `outage` is where v2 had requests and none succeeded while v1's did; `settled` where the stage has lasted as long as
    it has to.
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
    within: slice


def judge_stage(frozen: FrozenPlan, folded: Folded, evidence: Evidence, course: Course, span: StageSpan) -> StageTrack:
    """The stage after each of the blocks that lie wholly within it."""
    blocks = folded.blocks
    inside = np.flatnonzero((blocks >= span.since_ms) & (blocks + BLOCK_MS <= span.until_ms))
    within = slice(int(inside[0]), int(inside[-1]) + 1) if inside.size else slice(0, 0)
    usable = course.usable(blocks[within])
    stage = frozen.plan.stages[span.index]
    weights = split_alpha([each.share for each in frozen.plan.stages])
    loads = tuple(_load(arm, within, usable) for arm in (folded.v1, folded.v2))
    coverage = tuple(arm_coverage(arm, within, usable, evidence.scrape_interval_ms) for arm in (folded.v1, folded.v2))
    context = _Context(
        frozen=frozen, folded=folded, within=within, usable=usable, weight=weights[span.index],
        coverage=(coverage[0], coverage[1]), loads=(loads[0], loads[1]),
        relation=load.relate(loads[0].per_replica, loads[1].per_replica, loads[0].saturated, loads[1].saturated),
        whole=stage.share >= 1.0, problems=bool(evidence.problems),
    )  # fmt: skip
    tracks = _judge_metrics(context)
    codes = combine(tracks, usable.size)
    outage = _outage(folded, within, usable)
    codes[outage] = DEGRADED
    settled = blocks[within] + BLOCK_MS >= span.since_ms + stage.least_hours * 3_600_000
    codes[(codes == 0) & ~settled] = INCONCLUSIVE
    return StageTrack(
        span, blocks[within], usable, tracks, codes, outage, settled, context.coverage, context.loads, context.relation,
        within,
    )  # fmt: skip


def _load(arm: ArmFold, within: slice, usable: NDArray[np.bool_]) -> ArmLoad:
    requests = np.where(usable, np.nan_to_num(arm.traffic["requests"][:, within]), 0.0)
    served = (requests > 0.0).sum(axis=0)
    total = requests.sum(axis=0)
    per_replica = np.divide(total, served * _BLOCK_SECONDS, out=np.full(total.shape, np.nan), where=served > 0)
    above = np.array([arm.above_level[name][:, within] for name in ("queued_requests", "kv_cache_usage")])
    preemptions = np.where(usable, np.nan_to_num(arm.traffic["preemptions"][:, within]), 0.0).sum(axis=0)
    return ArmLoad(total, served.astype(float), per_replica, load.saturated(above, preemptions))


_OFFERED: float = 20.0


def _outage(folded: Folded, within: slice, usable: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Where v2 was offered requests, in the block and the one before, and none succeeded, while v1's did."""

    def total(arm: ArmFold, name: str) -> Floats:
        return np.asarray(np.where(usable, np.nan_to_num(arm.traffic[name][:, within]).sum(axis=0), 0.0))

    offered = np.maximum(total(folded.v2, "started"), total(folded.v2, "requests"))
    failing = (offered >= _OFFERED) & (total(folded.v2, "ok") <= 0.0) & (total(folded.v1, "ok") > 0.0)
    before = np.concatenate([[False], offered[:-1] >= _OFFERED])
    return np.asarray(failing & before)


# --- Metrics ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Context:
    frozen: FrozenPlan
    folded: Folded
    within: slice
    usable: NDArray[np.bool_]
    weight: float
    coverage: tuple[ArmCoverage, ArmCoverage]
    loads: tuple[ArmLoad, ArmLoad]
    relation: load.LoadRelation
    whole: bool
    problems: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    plan: MetricPlan
    judged: JudgedMetric
    found: Comparability | None
    v1: ArmSums
    v2: ArmSums
    path: MetricPath


def _judge_metrics(context: _Context) -> dict[str, MetricTrack]:
    plan = context.frozen.plan
    conditions = _conditions(context)
    candidates, tracks = {}, {}
    for metric in plan.metrics:
        judged = judged_metric(metric.name, context.frozen.histograms)
        found = compare(judged, context.folded)
        if metric.kind == "band":
            v2 = _sums(context, context.folded.v2, metric.name, ())
            tracks[metric.name] = track_band(metric, judged, v2, _of_v2(context), found)
        else:
            candidates[metric.name] = _candidate(context, metric, judged, found)
    for required in (True, False):
        family = {name: each for name, each in candidates.items() if each.plan.required == required}
        harmful, beyond = _harm(context, family)
        for name, each in family.items():
            tracks[name] = track_metric(
                each.plan, each.judged, each.path, each.v1, each.v2, harmful=harmful[name], beyond=beyond[name],
                conditions=conditions, absent=_missing(context, each), found=each.found,
            )  # fmt: skip
    return {metric.name: tracks[metric.name] for metric in plan.metrics}


def _harm(
    context: _Context, family: Mapping[str, _Candidate]
) -> tuple[dict[str, NDArray[np.bool_]], dict[str, NDArray[np.bool_]]]:
    """Where harm of each metric is proven, and more than its margin of it, over the metrics of a family together."""
    if not family:
        return {}, {}
    judged = [each.found is None or each.found.finding == "note" for each in family.values()]
    nothing = np.zeros(context.usable.size)
    harm, material, beyond = (
        np.array([each if use else nothing for each, use in zip(evidence, judged, strict=True)])
        for evidence in zip(
            *((each.path.harm, each.path.material, each.path.beyond) for each in family.values()), strict=True
        )
    )
    # That there is any harm is claimed of the whole family, that it is material of each metric by itself.
    level = math.log(context.frozen.plan.alpha_harm)
    harmful = (several.holm(np.minimum(0.0, -harm)) <= level) & (-material <= level)
    return (
        dict(zip(family, harmful, strict=True)),
        dict(zip(family, harmful & (-beyond <= level), strict=True)),
    )


def _candidate(context: _Context, metric: MetricPlan, judged: JudgedMetric, found: Comparability | None) -> _Candidate:
    frozen = context.frozen
    edges = frozen.edges.get(metric.name, ())
    v1, v2 = (
        _sums(context, arm, metric.name, tuple(each.edge for each in edges))
        for arm in (context.folded.v1, context.folded.v2)
    )
    required = max(1, sum(each.required == metric.required for each in frozen.plan.metrics if each.kind != "band"))
    levels = Levels(
        harm=frozen.plan.alpha_harm, weight=context.weight,
        low=frozen.plan.alpha_harm * context.weight / required, high=frozen.plan.alpha_health * context.weight,
    )  # fmt: skip
    noise, slope = frozen.noise[metric.name], frozen.slopes.get(metric.name)
    if judged.kind == "events":
        return _Candidate(metric, judged, found, v1, v2, paths.events_path(metric, noise, v1, v2, levels))

    def path(kept: NDArray[np.bool_]) -> MetricPath:
        one, other = _kept(v1, kept), _kept(v2, kept)
        if judged.kind == "ratio":
            return paths.ratio_path(metric, noise, one, other, levels, least_below=_LEAST_DECODING, slope=slope)
        return paths.mean_path(metric, noise, edges, one, other, levels, slope=slope)

    matched = context.relation.free
    harmful = _harm_counts(context)
    health = path(matched)
    if np.array_equal(matched, harmful):
        return _Candidate(metric, judged, found, v1, v2, health)
    harm = path(harmful)
    return _Candidate(metric, judged, found, v1, v2, paths.with_harm(health, harm))


_LEAST_DECODING = 60.0


def _harm_counts(context: _Context) -> NDArray[np.bool_]:
    """Where a slower v2 is v2's fault: it carries no more per replica than v1, or is as free."""
    v1, v2 = (np.nan_to_num(each.per_replica) for each in context.loads)
    both = (v1 > 0.0) & (v2 > 0.0)
    return np.asarray(
        context.relation.free
        | context.relation.overloaded
        | (both & (v2 <= v1 * (1.0 + 1e-9)) & ~context.relation.both)
    )


def _sums(context: _Context, arm: ArmFold, name: str, edges: tuple[float, ...]) -> ArmSums:
    counted = counted_of(arm, name, context.frozen.histograms)
    above, below = counted.above[:, context.within], counted.below[:, context.within]
    known = np.isfinite(above) & np.isfinite(below) & context.usable
    slow = None
    if edges and name in arm.slow:
        values = arm.slow[name][:, :, context.within]
        slow = np.where(known[:, None] & np.isfinite(values), values, 0.0)
    prompts = prompts_of(arm)
    if prompts is not None:
        prompts = Prompts(
            prompts.tokens[:, context.within] * context.usable, prompts.requests[:, context.within] * context.usable
        )
    return ArmSums(np.where(known, above, 0.0), np.where(known, below, 0.0), slow, prompts)


def _kept(sums: ArmSums, kept: NDArray[np.bool_]) -> ArmSums:
    if kept.all():
        return sums
    slow = None if sums.slow is None else sums.slow * kept
    return ArmSums(sums.above * kept, sums.below * kept, slow, sums.prompts)


def _missing(context: _Context, candidate: _Candidate) -> NDArray[np.object_]:
    arms = []
    for name, arm, sums in (
        ("v1", context.folded.v1, candidate.v1), ("v2", context.folded.v2, candidate.v2),
    ):  # fmt: skip
        counted = counted_of(arm, candidate.plan.name, context.frozen.histograms)
        within = context.within
        known = np.isfinite(counted.above[:, within]) & np.isfinite(counted.below[:, within])
        scraped = (arm.scrapes[:, within] > 0.0) & context.usable
        torn = np.cumsum(arm.torn[:, within].sum(axis=0))
        arms.append((name, sums, known_share(known & scraped, scraped), torn))
    return missing(candidate.judged, arms, ~_without_control(context))


def _without_control(context: _Context) -> NDArray[np.bool_]:
    """Where v1 has too few requests left in the last hour to compare with, though v2 has them, (B,)."""
    if not context.whole:
        return np.zeros(context.usable.size, dtype=np.bool_)
    running = np.concatenate([[0.0], np.cumsum(context.loads[0].requests)])
    number = np.arange(context.usable.size)
    recent = running[number + 1] - running[np.maximum(0, number + 1 - HOUR_BLOCKS)]
    return np.asarray(recent < LEAST_COUNT)


def _conditions(context: _Context) -> Conditions:
    size = context.usable.size
    no_control = _without_control(context)
    no_data = _no_data(context, (context.coverage[0], context.coverage[1]), no_control)
    hold = np.full(size, "", dtype=object)
    free = _recent_share(context.relation.free, _present(context))
    hold[free < _LEAST_MATCHED] = "load"
    return Conditions(no_data, hold, no_control)


_LEAST_MATCHED = 0.5


def _present(context: _Context) -> NDArray[np.bool_]:
    return np.asarray((context.loads[0].requests > 0.0) & (context.loads[1].requests > 0.0))


def _recent_share(chosen: NDArray[np.bool_], among: NDArray[np.bool_]) -> Floats:
    """The share of the last hour's blocks that are chosen, 1 where there were none."""
    number = np.arange(chosen.size)
    counts = []
    for each in (chosen & among, among):
        running = np.concatenate([[0], np.cumsum(each)])
        counts.append((running[number + 1] - running[np.maximum(0, number + 1 - HOUR_BLOCKS)]).astype(float))
    return np.asarray(np.divide(counts[0], counts[1], out=np.ones(chosen.size), where=counts[1] > 0.0))


def _of_v2(context: _Context) -> Conditions:
    size = context.usable.size
    no = np.zeros(size, dtype=np.bool_)
    return Conditions(_no_data(context, (None, context.coverage[1]), no), np.full(size, "", dtype=object), no)


def _no_data(
    context: _Context, coverage: tuple[ArmCoverage | None, ArmCoverage], no_control: NDArray[np.bool_]
) -> NDArray[np.object_]:
    causes = np.full(context.usable.size, "", dtype=object)
    for arm, each in zip(("v1", "v2"), coverage, strict=True):
        if each is None:
            continue
        asked = ~no_control if arm == "v1" else np.ones(causes.size, dtype=np.bool_)
        causes[asked & (causes == "") & ~each.seen] = "arm missing"
        causes[asked & (causes == "") & ~each.scraped & context.usable] = "stale"
        causes[asked & (causes == "") & ~each.complete()] = "scrapes missing"
    if context.problems:
        causes[:] = "query error"
    return causes


def prompt_histograms(folded: Folded, within: slice) -> tuple[Floats, Floats] | None:
    """The requests of both arms per shared bucket of prompt tokens and block, (E, B) each; None where one has none."""
    arms = [arm.distributions.get(PROMPT_SIZES) for arm in (folded.v1, folded.v2)]
    if arms[0] is None or arms[1] is None:
        return None
    shared = [edge for edge in arms[0].edges if edge in arms[1].edges]
    counts = []
    for arm in (arms[0], arms[1]):
        cumulative = np.cumsum(arm.counts[:, within], axis=0)
        chosen = cumulative[[*(arm.edges.index(edge) for edge in shared), len(arm.edges)]]
        counts.append(np.diff(chosen, axis=0, prepend=0.0))
    return counts[0], counts[1]
