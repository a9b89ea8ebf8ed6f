"""The path of one metric through a stage: after each block its effect, the bounds on it, and the evidence of harm.

Costs are in natural logarithms and higher is worse: ln(v2 ÷ v1), or its negative where higher is better. All of a path
follows from the blocks before each point, so that a verdict is the same whether blocks come one by one or all at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from servescope.contract.objectives import OBJECTIVES
from servescope.cutover import calibration, change, counts, effects, slow_fractions
from servescope.cutover.effects import BlockEffects
from servescope.cutover.mix import Prompts, PromptSlope, adjusted_effects
from servescope.cutover.plan import ComparedEdge, MetricPlan, Noise
from servescope.cutover.sequences import EffectPath, Floats, accumulate, information_to_settle

RARE_WEIGHT = 0.2
"""The part of the evidence of health that is bet on events that are rare on their own; their ratio has the rest."""
IMMATERIAL_RATE = OBJECTIVES["requests"].budget
"""Events per request that are within any objective: rarer ones are healthy, however many times v1's they are."""
EDGES_WEIGHT = 0.3
"""The part of the evidence of harm that is bet on slow fractions, where there are edges; the mean has the rest."""


@dataclass(frozen=True, slots=True)
class Levels:
    """How often a stage's bounds may be wrong: of `harm` in all, `weight` is this stage's; `low` and `high` are those
    of this metric's limits."""

    harm: float
    weight: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class MetricPath:
    """The path over the B blocks of a stage, (B,) each.

    `harm`, `material` and `beyond` are the evidence, as logarithms of e-values, that the cost exceeds zero, the floor
    and the margin. `bounded` is where the cost is proven to stay below the margin. `cost` is the estimate with `low`
    and `high`, `recent` that of the last one to two hours; NaN, or infinite, where there is none. `information` has
    been gathered of `wanted` (NaN where waiting does not settle it). `slow_low` is the highest lower limit of the
    differences of slow fractions, −inf without edges.
    """

    harm: Floats
    material: Floats
    beyond: Floats
    bounded: NDArray[np.bool_]
    cost: Floats
    low: Floats
    high: Floats
    recent: Floats
    information: Floats
    wanted: Floats
    calibrated: bool
    slow_low: Floats


@dataclass(frozen=True, slots=True, eq=False)
class ArmSums:
    """What one arm counted of a metric, per pod and block, (P, B): 0 where not known; `slow` is (P, K, B).

    `prompts` are those of its pods, (P, B); None where they are not reported."""

    above: Floats
    below: Floats
    slow: Floats | None = None
    prompts: Prompts | None = None

    def pods(self) -> Floats:
        """How many pods it effectively had up to each block, (B,): fewer than there are where a few did most."""
        running = np.cumsum(self.below, axis=1)
        squares = np.square(running).sum(axis=0)
        whole = np.square(running.sum(axis=0))
        return np.asarray(np.maximum(1.0, np.divide(whole, squares, out=np.ones_like(squares), where=squares > 0.0)))


def mean_path(
    metric: MetricPlan, noise: Noise, edges: Sequence[ComparedEdge], v1: ArmSums, v2: ArmSums, levels: Levels,
    *, slope: PromptSlope | None = None,
) -> MetricPath:  # fmt: skip
    """The path of a histogram's mean, with the shares of observations above its edges."""
    path = _effect_path(metric, noise, mean_blocks(noise, v1, v2, slope), v1, v2, levels)
    # Without a past, how much shares differ by themselves is not known: they would alarm at the first difference.
    if metric.better != "lower" or not edges or not noise.calibrated:
        return path
    weights = np.array([1.0 - EDGES_WEIGHT, *([EDGES_WEIGHT / len(edges)] * len(edges))])
    slow = _slow_evidence(edges, v1, v2, levels)
    return replace(
        path,
        harm=change.log_mixed(np.array([path.harm, *(each for each, _, _ in slow)]), weights),
        material=change.log_mixed(np.array([path.material, *(each for _, each, _ in slow)]), weights),
        slow_low=np.max(np.array([low for _, _, low in slow]), axis=0),
    )


def mean_blocks(noise: Noise, v1: ArmSums, v2: ArmSums, slope: PromptSlope | None) -> BlockEffects:
    """The effects of a histogram's mean, adjusted by what v2's prompts explain of them where there is a slope."""
    n1, s1, n2, s2 = v1.below.sum(axis=0), v1.above.sum(axis=0), v2.below.sum(axis=0), v2.above.sum(axis=0)
    merged = effects.MOST_MERGED if noise.calibrated else calibration.ONLINE_MERGED
    enough = effects.ENOUGH_REQUESTS if noise.calibrated else math.inf
    blocks = effects.mean_effects(n1, s1, n2, s2, noise.cv2, enough=enough, most=merged)
    return _adjusted(blocks, v1, v2, slope)


def _slow_evidence(
    edges: Sequence[ComparedEdge], v1: ArmSums, v2: ArmSums, levels: Levels
) -> list[tuple[Floats, Floats, Floats]]:
    """By edge the evidence that v2 has more slow requests than pods that differ explain, and materially more, and the
    lower limit of the difference."""
    n1, n2 = v1.below.sum(axis=0), v2.below.sum(axis=0)
    starts, weights = change.schedule(n1.size, stage_weight=levels.weight)
    found = []
    for index, edge in enumerate(edges):
        strata = slow_fractions.slow_fractions(n1, _slow(v1, index), n2, _slow(v2, index))
        harm, material = slow_fractions.log_evidence_of_harm(
            strata, edge.tau2, floor=(edge.lasting, edge.floor), alpha=levels.harm, wanted=edge.wanted,
            starts=starts, weights=weights,
        )  # fmt: skip
        low = slow_fractions.difference_path(
            strata, edge.tau2, alpha=levels.low / len(edges), wanted=edge.wanted
        )[1]  # fmt: skip
        found.append((harm, material, low))
    return found


def _slow(arm: ArmSums, index: int) -> Floats:
    if arm.slow is None:
        return np.zeros(arm.below.shape[1])
    return np.asarray(arm.slow[:, index].sum(axis=0))


def ratio_path(
    metric: MetricPlan, noise: Noise, v1: ArmSums, v2: ArmSums, levels: Levels, *, least_below: float,
    slope: PromptSlope | None = None,
) -> MetricPath:  # fmt: skip
    """The path of a ratio of two counters' sums."""
    return _effect_path(metric, noise, ratio_blocks(v1, v2, slope, least_below=least_below), v1, v2, levels)


def ratio_blocks(v1: ArmSums, v2: ArmSums, slope: PromptSlope | None, *, least_below: float) -> BlockEffects:
    """The effects of a ratio of two counters' sums, adjusted as those of a mean."""
    blocks = effects.ratio_effects(v1.above, v1.below, v2.above, v2.below, least_whole=least_below)
    return _adjusted(blocks, v1, v2, slope)


def _adjusted(blocks: BlockEffects, v1: ArmSums, v2: ArmSums, slope: PromptSlope | None) -> BlockEffects:
    if slope is None or v1.prompts is None or v2.prompts is None:
        return blocks
    return adjusted_effects(blocks, slope, v1.prompts.together(), v2.prompts.together())


def _effect_path(
    metric: MetricPlan, noise: Noise, blocks: BlockEffects, v1: ArmSums, v2: ArmSums, levels: Levels
) -> MetricPath:
    if metric.better == "higher":
        blocks = effects.reversed_effects(blocks)
    size = v1.below.shape[1]
    margin, floor = math.log1p(metric.margin or 0.0), math.log1p(metric.floor or 0.0)
    pods1, pods2 = v1.pods()[blocks.last], v2.pods()[blocks.last]
    persistent = effects.pod_variance(noise.pod_tau2, pods1, pods2)
    wanted = noise.information_wanted
    starts, weights = change.schedule(size, stage_weight=levels.weight)
    if noise.calibrated:
        variances = block_variances(blocks, noise, 1.0 / pods1 + 1.0 / pods2)
        path = accumulate(blocks.effects, variances, persistent)
        harm, material, beyond = change.log_evidence_of_harm(
            blocks, variances, bound=(0.0, floor, margin), alpha=levels.harm, wanted=wanted, starts=starts,
            weights=weights, persistent=persistent,
        )  # fmt: skip
    else:
        path = calibration.online_path(blocks, persistent=np.maximum.accumulate(persistent))
        harm, material, beyond = (
            change.log_mixed(path.log_evidence_above(bound, levels.harm, wanted)[None], np.array([levels.weight]))
            for bound in (0.0, floor, margin)
        )
    at = _latest(blocks.last, size)
    low, high = path.lower(levels.low, wanted), path.upper(levels.high, wanted)
    return MetricPath(
        harm=_spread(harm, at, 0.0),
        material=_spread(material, at, 0.0),
        beyond=_spread(beyond, at, 0.0),
        bounded=_spread((high < margin).astype(float), at, 0.0) > 0.0,
        cost=_spread(np.where(path.information > 0.0, path.estimate, np.nan), at, np.nan),
        low=_spread(low, at, -np.inf),
        high=_spread(high, at, np.inf),
        recent=_spread(_recent(blocks), at, np.nan),
        information=_spread(path.information, at, 0.0),
        wanted=_spread(_wanted(path, persistent, margin, floor, levels, wanted), at, np.nan),
        calibrated=noise.calibrated,
        slow_low=np.full(size, -np.inf),
    )


def block_variances(blocks: BlockEffects, noise: Noise, spread: Floats) -> Floats:
    """The variances of the blocks, with more excess where there are fewer pods than in the past."""
    plain = blocks.sampling + calibration.scaled_tau2(noise, spread) / blocks.merged
    factor = effects.inflation(BlockEffects(blocks.effects, plain, blocks.merged, blocks.last), 0.0)
    return np.asarray(plain * factor)


def _latest(last: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The merged block that is known at the end of each five-minute block, −1 before the first."""
    return np.asarray(np.searchsorted(last, np.arange(size), side="right") - 1)


def _spread(values: Floats, at: NDArray[np.int64], before: float) -> Floats:
    if not values.size:
        return np.full(at.shape, before)
    return np.where(at >= 0, values[at], before)


_HOUR = 12


def _recent(blocks: BlockEffects) -> Floats:
    """The mean effect of the last one to two hours, (K,)."""
    known = np.isfinite(blocks.sampling)
    weights = np.where(known, 1.0 / np.where(known, blocks.sampling, 1.0), 0.0)
    total = np.concatenate([[0.0], np.cumsum(weights * blocks.effects)])
    weight = np.concatenate([[0.0], np.cumsum(weights)])
    since = np.maximum(0, blocks.last // _HOUR - 1) * _HOUR
    first = np.searchsorted(blocks.last, since)
    gathered = weight[1:] - weight[first]
    nothing = np.full(gathered.shape, np.nan)
    return np.asarray(np.divide(total[1:] - total[first], gathered, out=nothing, where=gathered > 0.0))


def _wanted(
    path: EffectPath, persistent: Floats, margin: float, floor: float, levels: Levels, tuned_to: float
) -> Floats:
    """The information at which the latest estimate is settled, on the nearer side; NaN where it never will be."""
    wanted = np.full(path.estimate.shape, np.nan)
    if not path.estimate.size or path.information[-1] <= 0.0:
        return wanted
    estimate = float(path.estimate[-1])
    healthy = information_to_settle(margin - estimate, levels.high, tuned_to)
    harmful = information_to_settle(estimate - floor, levels.low, tuned_to)
    most = 1.0 / float(np.atleast_1d(persistent)[-1]) if np.any(persistent) else math.inf
    nearest = min(healthy, harmful)
    wanted[-1] = nearest if nearest < most else np.nan
    return wanted


# --- Events -----------------------------------------------------------------------------------------------------------


def events_path(metric: MetricPlan, noise: Noise, v1: ArmSums, v2: ArmSums, levels: Levels) -> MetricPath:
    """The path of counts of events among requests: exact, without calibration; `information` is of health."""
    arms = counts.EventCounts(
        v1.above.sum(axis=0), v1.below.sum(axis=0), v2.above.sum(axis=0), v2.below.sum(axis=0)
    )  # fmt: skip
    size = arms.v1_events.size
    margin, floor = 1.0 + (metric.margin or 0.0), 1.0 + (metric.floor or 0.0)
    starts, weights = change.schedule(size, stage_weight=levels.weight)
    harm, material, beyond = (
        counts.log_evidence_above(arms, bound, dispersion=noise.dispersion, starts=starts, weights=weights)
        for bound in (1.0, floor, margin)
    )
    below = counts.log_evidence_below(arms, margin, dispersion=noise.dispersion)
    needed = -math.log(levels.high)
    # Either is health: no more than the margin allows, or so rare that it is immaterial however rare it is on v1.
    rare = counts.log_evidence_rarer(arms.v2_events, arms.v2_requests, IMMATERIAL_RATE) / noise.dispersion
    below = change.log_mixed(np.array([below, rare]), np.array([1.0 - RARE_WEIGHT, RARE_WEIGHT]))
    low, high = counts.ratio_interval(arms, levels.low, levels.high, dispersion=noise.dispersion)
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = [np.cumsum(arms.v1_events) / np.cumsum(arms.v1_requests),
                 np.cumsum(arms.v2_events) / np.cumsum(arms.v2_requests)]  # fmt: skip
        cost = np.log(rates[1] / rates[0])
        return MetricPath(
            harm=harm,
            material=material,
            beyond=beyond,
            bounded=np.maximum.accumulate(below) >= needed,
            cost=np.where(np.isfinite(cost), cost, np.nan),
            low=np.log(low),
            high=np.log(high),
            recent=np.where(np.isfinite(cost), cost, np.nan),
            information=np.maximum(below, 0.0),
            wanted=np.full(size, needed),
            calibrated=True,
            slow_low=np.full(size, -np.inf),
        )


def with_harm(health: MetricPath, harm: MetricPath) -> MetricPath:
    """The path of health with the evidence of harm, which may come from blocks that say nothing of health."""
    seen = np.isfinite(health.cost)
    return replace(
        health,
        harm=harm.harm,
        material=harm.material,
        beyond=harm.beyond,
        cost=np.where(seen, health.cost, harm.cost),
        low=np.maximum(health.low, harm.low),
        recent=harm.recent,
        slow_low=harm.slow_low,
    )
