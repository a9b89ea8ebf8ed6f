"""A plan frozen at its start: everything that the past decides is chosen once, from v1 alone, and never after."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.judged import JUDGED, PROMPT_SIZES, SPEED, JudgedMetric
from servescope.contract.objectives import OBJECTIVES
from servescope.cutover.comparison import outliers
from servescope.cutover.comparison.calibration import (
    LAG_BLOCKS,
    calibrate,
    calibrate_means,
    coefficient2_from_buckets,
    long_run_variance,
    replica_groups,
    upper_of,
)
from servescope.cutover.comparison.clusters import incidents, pairs_in
from servescope.cutover.comparison.comparability import shared_edges, unreported
from servescope.cutover.comparison.given import Given, Moved, beside, explain, given_of, learn
from servescope.cutover.evidence.derived import DERIVED
from servescope.cutover.evidence.evidence import Evidence
from servescope.cutover.evidence.folding import ArmArrays, ArmFold, BucketCounts, ReplicaSums, fold, judged_metric
from servescope.cutover.plan.files import check_arms
from servescope.cutover.plan.plan import ComparedEdge, CutoverPlan, FrozenPlan, MetricPlan, Noise, Sensitivity
from servescope.cutover.statistics.counts import dispersion
from servescope.cutover.statistics.effects import BlockEffects, mean_effects, ratio_effects, steadied
from servescope.cutover.statistics.mix import Prompts, PromptSlope, adjusted_effects, feature, learn_slope
from servescope.cutover.statistics.sequences import Floats, information_wanted, zero_unknown
from servescope.cutover.statistics.slow_fractions import choose_edges, slow_fractions

LEAST_DECODING: Final = 60.0
"""Seconds of decoding in a block below which its ratio is too rough."""
_LEAST_TOKENS: Final = 5.0
"""Thousands of tokens below which a block shows no cost."""
_MOST_DISPERSION_REPLICAS: Final = 2


def freeze(plan: CutoverPlan, evidence: Evidence, started_ms: int) -> FrozenPlan:
    """The plan with its noise, layers, edges and slopes, from what was observed before `started_ms`.

    Raises UsageError when an arm selects nothing, or both the same target.
    """
    check_arms(plan, (target.identity for target in evidence.targets))
    return freeze_from(plan, evidence, started_ms)


def freeze_from(plan: CutoverPlan, evidence: Evidence, started_ms: int) -> FrozenPlan:
    """The same whatever the arms select: what cannot be observed yet is chosen when it is seen first."""
    end_ms = min(started_ms, evidence.observed_until_ms)
    start_ms = end_ms - round(plan.calibration_hours * 3_600_000)
    past = fold(plan, evidence.targets, start_ms, end_ms)
    chosen = {metric.name: _choose_edges(metric, past) for metric in plan.metrics if metric.kind == "mean"}
    edges = {name: each for name, each in chosen.items() if each}
    tails = {metric.name: edge for metric in plan.metrics if (edge := _tail_edge(metric, past)) is not None}
    if edges or tails:
        read = edges | {name: (edge,) for name, edge in tails.items()}
        past = fold(plan, evidence.targets, start_ms, end_ms, edges=read)
    v2_replicas = _v2_replicas(plan, past)
    histograms = (SPEED,) if all(SPEED in arm.layers for arm in (past.v1, past.v2)) else ()
    families = {*past.v1.layers, *past.v2.layers}
    metrics = [judged_metric(metric.name, histograms) for metric in plan.metrics]
    # Where v2 has one replica there is nothing to leave out: its noise has all that a replica ever shows.
    if v2_replicas > 1:
        past = replace(past, v1=_without_outliers(plan, past, histograms))
    calibrated = [metric for metric in plan.metrics if metric.kind != "band"]
    slopes = _slopes(plan, past, histograms)
    noise = {
        metric.name: _noise(metric, past, histograms, slopes.get(metric.name), v2_replicas) for metric in calibrated
    }
    return FrozenPlan(
        plan=plan,
        started_ms=started_ms,
        noise=noise,
        layers={family: (_layer(past.v1, family), _layer(past.v2, family)) for family in sorted(families)},
        slopes=slopes,
        edges={
            metric.name: _compared_edges(metric, past, noise[metric.name])
            for metric in calibrated
            if metric.name in edges
        },
        histograms=histograms,
        unobservable=dict(unreported(metrics, past)),
        top_load=_top_load(past.v1),
        sensitivity=_sensitivities(plan, past, histograms, slopes, noise, v2_replicas),
        tails=tails,
    )


def _layer(arm: ArmFold, family: str) -> str:
    layer = arm.layers.get(family)
    return layer.name if layer is not None else ""


# --- Noise ------------------------------------------------------------------------------------------------------------


def _without_outliers(plan: CutoverPlan, past: ArmArrays, histograms: tuple[str, ...]) -> ArmFold:
    """v1 without what single replicas did alone, in the metrics that take time: as it will be judged."""
    v1 = past.v1
    timed = {}
    for metric in plan.metrics:
        judged = judged_metric(metric.name, histograms)
        if judged.kind in outliers.TIMED:
            counted = counted_of(v1, metric.name, histograms)
            above, below = np.nan_to_num(counted.above), np.nan_to_num(counted.below)
            cv2 = _coefficient2(past, judged.histogram, counted) if judged.kind == "mean" else None
            timed[metric.name] = above, below, outliers.past_noise(above, below, cv2), metric
    usual = outliers.usual_of_past(list(timed.values()), v1.present)
    metrics = {
        name: ReplicaSums(np.where(usual, sums.above, np.nan), np.where(usual, sums.below, np.nan))
        for name, sums in v1.metrics.items()
        if name in timed or name == f"{SPEED} histogram"
    }
    slow = {name: np.where(usual[:, None], each, np.nan) for name, each in v1.slow.items()}
    return replace(v1, metrics={**v1.metrics, **metrics}, slow=slow)


def _noise(
    metric: MetricPlan, past: ArmArrays, histograms: tuple[str, ...], slope: PromptSlope | None, v2_replicas: int
) -> Noise:
    wanted = information_wanted(metric.margin or 1.0)
    judged = judged_metric(metric.name, histograms)
    counted = counted_of(past.v1, judged.name, histograms)
    seen = int((np.nan_to_num(counted.below).sum(axis=0) > 0).sum()) if counted.below.size else 0
    if judged.kind == "events":
        known = ReplicaSums(np.nan_to_num(counted.above), np.nan_to_num(counted.below))
        return Noise(
            0.0, 0.0, 0.0, wanted, seen, calibrated=True, dispersion=_dispersion(known), pairs=pairs_in(known)
        )  # fmt: skip
    if judged.kind == "ratio":
        cv2, found = 1.0, _ratio_noise(counted, wanted, v2_replicas, least_below(judged), steady=bool(judged.made_of))
    else:
        cv2 = _coefficient2(past, judged.histogram, counted)
        found = calibrate_means(
            counted.below, counted.above, cv2, wanted, v2_replicas=v2_replicas, prompts=prompts_of(past.v1), slope=slope
        )
    if found is not None:
        return found
    return Noise(0.0, 0.0, cv2, wanted, seen, calibrated=False)


def _v2_replicas(plan: CutoverPlan, past: ArmArrays) -> int:
    """How many replicas v2 begins with: those that are seen already, or as many as its first share has of v1's."""
    if past.v2.replicas:
        return len(past.v2.replicas)
    return max(1, round(len(past.v1.replicas) * plan.stages[0].share)) if plan.stages else 1


def counted_of(arm: ArmFold, name: str, histograms: tuple[str, ...]) -> ReplicaSums:
    """What an arm counted of a metric: of token speed, by its histogram where that was frozen."""
    if name in DERIVED:
        return DERIVED[name](arm)
    return arm.metrics[f"{SPEED} histogram" if name == SPEED and name in histograms else name]


def least_below(judged: JudgedMetric) -> float:
    """What has to be below the line of a ratio in a block."""
    return LEAST_DECODING if judged.name == SPEED else _LEAST_TOKENS


def _coefficient2(past: ArmArrays, histogram: str, counted: ReplicaSums) -> float:
    """The variation of one observation; 1, that of an exponential distribution, where no past shows it."""
    found = past.v1.distributions.get(histogram)
    total, count = float(np.nansum(counted.above)), float(np.nansum(counted.below))
    if found is None or not found.edges or count <= 0.0:
        return 1.0
    value = coefficient2_from_buckets(found.counts.sum(axis=1), np.array(found.edges), total / count)
    return 1.0 if value is None else max(value, _LEAST_VARIATION)


_LEAST_VARIATION: Final = 0.01


def _ratio_noise(counted: ReplicaSums, wanted: float, v2_replicas: int, least: float, *, steady: bool) -> Noise | None:
    above, below = np.nan_to_num(counted.above), np.nan_to_num(counted.below)

    def split(group: NDArray[np.bool_]) -> BlockEffects:
        blocks = ratio_effects(above[~group], below[~group], above[group], below[group], least_whole=least)
        return steadied(blocks, below[~group].sum(axis=0), below[group].sum(axis=0)) if steady else blocks

    return calibrate(split, below, 1.0, wanted, v2_replicas=v2_replicas)


def _dispersion(past: ReplicaSums) -> float:
    events, requests = past.above, past.below
    replicas = np.flatnonzero(requests.sum(axis=1) > 0.0) if requests.size else np.array([], dtype=np.int64)
    if replicas.size < _MOST_DISPERSION_REPLICAS:
        return 1.0
    counted = incidents(events[replicas], requests[replicas])
    found = [dispersion(counted, requests[replicas], group)[-1] for group in replica_groups(replicas.size)]
    return float(max(1.0, upper_of(np.array(found))))


# --- Edges, slopes, load ----------------------------------------------------------------------------------------------

_WANTED_SLOW: Final = 200.0
"""The variance of v2's slow requests, about their number, at which a change of their share is wanted to be seen."""
_REPLICAS_SPREAD: Final = 2.0
"""Standard deviations between replicas that a share may differ by without harm."""


def _choose_edges(metric: MetricPlan, past: ArmArrays) -> tuple[float, ...]:
    """The edges of the plan, or those that say most of v1's distribution, which v2 has as far as it is seen."""
    histogram = JUDGED[metric.name].histogram
    found = past.v1.distributions.get(histogram)
    if metric.better == "higher" or found is None or found.counts.sum() <= 0.0:
        return ()
    edges, above = _shares_above(found)
    usable = np.isin(edges, shared_edges(histogram, past) or found.edges) & (edges > 0.0)
    chosen = metric.edges or choose_edges(edges[usable], above[usable], _objective_edge(metric.name))
    return tuple(edge for edge in chosen if edge in found.edges)


_IN_TAIL: Final = 0.01
_MOST_IN_TAIL: Final = 0.03
_LEAST_IN_TAIL: Final = 0.0005


def _tail_edge(metric: MetricPlan, past: ArmArrays) -> float | None:
    """The edge that about one in a hundred of v1's observations exceeds; None where there is none near that."""
    judged = JUDGED[metric.name]
    found = past.v1.distributions.get(judged.histogram) if judged.made_of and judged.histogram else None
    if found is None or found.counts.sum() <= 0.0:
        return None
    edges, above = _shares_above(found)
    shared = np.isin(edges, shared_edges(judged.histogram, past) or found.edges)
    usable = np.flatnonzero(shared & (above >= _LEAST_IN_TAIL) & (above <= _MOST_IN_TAIL))
    if not usable.size:
        return None
    return float(edges[usable[np.argmin(np.abs(np.log(above[usable] / _IN_TAIL)))]])


def _shares_above(found: BucketCounts) -> tuple[Floats, Floats]:
    total = found.counts.sum(axis=1)
    return np.array(found.edges), 1.0 - np.cumsum(total)[:-1] / total.sum()


def _objective_edge(name: str) -> float | None:
    edges = (edge for each in OBJECTIVES.values() if f"{each.name}_seconds" == name for edge in each.edges_seconds)
    return next(edges, None)


def _compared_edges(metric: MetricPlan, past: ArmArrays, noise: Noise) -> tuple[ComparedEdge, ...]:
    chosen = past.edges.get(metric.name, ())
    if not chosen:
        return ()
    edges, above = _shares_above(past.v1.distributions[JUDGED[metric.name].histogram])
    requests = np.nan_to_num(past.v1.metrics[metric.name].below)
    replicas = np.flatnonzero(requests.sum(axis=1) > 0.0)
    spread = 1.0 + 1.0 / max(1, replicas.size)
    replicas_differ = _REPLICAS_SPREAD * math.sqrt(noise.pod_tau2 * spread)
    slow = np.nan_to_num(past.v1.slow[metric.name])
    return tuple(
        ComparedEdge(
            edge,
            tau2=_edge_tau2(requests[replicas], slow[replicas, index]),
            floor=_moved(edges, above, edge, math.log1p(metric.floor or 0.0) + replicas_differ),
            lasting=_moved(edges, above, edge, replicas_differ),
            wanted=_WANTED_SLOW,
        )
        for index, edge in enumerate(chosen)
    )


def _moved(edges: Floats, above: Floats, edge: float, slowed: float) -> float:
    """By how much the share above an edge rises when everything is slower by the factor exp(slowed)."""
    positive = edges > 0.0
    shifted = np.interp(math.log(edge) - slowed, np.log(edges[positive]), above[positive])
    return max(0.0, float(shifted) - float(above[np.flatnonzero(edges == edge)[0]]))


def _edge_tau2(requests: Floats, slow: Floats) -> float:
    """The excess variance of the difference of two groups of replicas, autocorrelation included."""
    if requests.shape[0] < 2:
        return 0.0
    found = []
    for group in replica_groups(requests.shape[0]):
        strata = slow_fractions(
            requests[~group].sum(axis=0), slow[~group].sum(axis=0), requests[group].sum(axis=0), slow[group].sum(axis=0)
        )
        known = strata.weight > 0.0
        if known.sum() > LAG_BLOCKS:
            weight = np.where(known, strata.weight, 1.0)
            differences = np.where(known, strata.excess / weight, np.nan)
            sampled = float((strata.variance[known] / np.square(weight[known])).mean())
            found.append(long_run_variance(differences, LAG_BLOCKS) - sampled)
    return upper_of(np.array(found)) if found else 0.0


def prompts_of(arm: ArmFold) -> Prompts | None:
    """The prompt tokens of an arm's replicas, (P, B), 0 where not known; None where none reports them."""
    found = arm.metrics.get(PROMPT_SIZES)
    if found is None or not np.isfinite(found.below).any():
        return None
    return Prompts(zero_unknown(found.above), zero_unknown(found.below))


def _slopes(plan: CutoverPlan, past: ArmArrays, histograms: tuple[str, ...]) -> dict[str, PromptSlope]:
    """How prompts move each timed metric within v1, where its past shows it beyond doubt."""
    prompts, tokens = prompts_of(past.v1), past.v1.metrics.get(PROMPT_SIZES)
    if prompts is None or tokens is None:
        return {}
    tokens_cv2 = _coefficient2(past, PROMPT_SIZES, tokens)
    slopes = {}
    for metric in plan.metrics:
        judged = judged_metric(metric.name, histograms)
        if judged.kind in {"mean", "ratio"}:
            counted = counted_of(past.v1, metric.name, histograms)
            means = feature(Prompts(np.nan_to_num(counted.above), np.nan_to_num(counted.below)))
            cv2 = _coefficient2(past, judged.histogram, counted) if judged.kind == "mean" else math.inf
            found = learn_slope(means, prompts, cv2, tokens_cv2)
            if found is not None:
                slopes[metric.name] = found
    return slopes


def _sensitivities(
    plan: CutoverPlan, past: ArmArrays, histograms: tuple[str, ...], slopes: Mapping[str, PromptSlope],
    noise: Mapping[str, Noise], v2_replicas: int,
) -> dict[str, Sensitivity]:  # fmt: skip
    """How what v1's replicas were given moved each timed metric, where the past shows it beyond doubt."""
    given, found = given_of(past.v1), {}
    for metric in plan.metrics:
        judged = judged_metric(metric.name, histograms)
        if judged.kind in {"mean", "ratio"} and noise[metric.name].calibrated:
            counted = counted_of(past.v1, metric.name, histograms)
            length = slopes.get(metric.name)
            prompts = prompts_of(past.v1) if length is not None else None
            timed = _Timed(judged, np.nan_to_num(counted.above), np.nan_to_num(counted.below), prompts, given)
            learned = _sensitivity(timed, noise[metric.name], length, v2_replicas)
            if learned is not None:
                found[metric.name] = learned
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Timed:
    """A timed metric of v1's replicas, (P, B), with their prompts where effects are adjusted by these,
    and all given.
    """

    judged: JudgedMetric
    above: Floats
    below: Floats
    prompts: Prompts | None
    given: Given

    def effects(self, group: NDArray[np.bool_], cv2: float, slope: PromptSlope | None) -> BlockEffects:
        """The effects of a group of replicas against all others, adjusted by a slope on length."""
        above, below = ([each[chosen] for chosen in (~group, group)] for each in (self.above, self.below))
        if self.judged.kind == "ratio":
            blocks = ratio_effects(above[0], below[0], above[1], below[1], least_whole=LEAST_DECODING)
        else:
            n1, n2, s1, s2 = (each.sum(axis=0) for each in (*below, *above))
            blocks = mean_effects(n1, s1, n2, s2, cv2)
        if self.prompts is None or slope is None:
            return blocks
        return adjusted_effects(blocks, slope, self.prompts.of(~group), self.prompts.of(group))


def _sensitivity(v1: _Timed, noise: Noise, length: PromptSlope | None, v2_replicas: int) -> Sensitivity | None:
    sign = -1.0 if v1.judged.better == "higher" else 1.0
    learned = learn(
        Prompts(v1.above, v1.below), v1.given, v1.prompts, sign, length=0.0 if length is None else length.slope
    )  # fmt: skip
    if learned is None:
        return None

    def split(group: NDArray[np.bool_]) -> Moved:
        whole = v1.effects(group, noise.cv2, length)
        other = v1.effects(group, noise.cv2, beside(length, learned.prompts))
        return explain(whole, other, learned.reuse, learned.load, v1.given.of(~group), v1.given.of(group))

    def moved(group: NDArray[np.bool_]) -> BlockEffects:
        requests = v1.below[~group].sum(axis=0), v1.below[group].sum(axis=0)
        return split(group).explained(learned.cv2, requests)

    def left(group: NDArray[np.bool_]) -> BlockEffects:
        return split(group).left()

    of_moved = calibrate(moved, v1.below, learned.cv2, noise.information_wanted, v2_replicas=v2_replicas)
    of_left = calibrate(left, v1.below, noise.cv2, noise.information_wanted, v2_replicas=v2_replicas)
    if of_moved is None or of_left is None:
        return None
    return Sensitivity(learned.reuse, learned.load, learned.prompts, of_moved, of_left)


def _top_load(v1: ArmFold) -> float | None:
    """The requests per replica and second of the upper third of v1's blocks begin here."""
    requests = np.nan_to_num(v1.traffic["requests"])
    replicas = (requests > 0.0).sum(axis=0)
    if not replicas.any():
        return None
    loads = requests.sum(axis=0)[replicas > 0] / replicas[replicas > 0] / 300.0
    return float(np.quantile(loads, 2.0 / 3.0))
