"""The path of one metric through a stage: after each block its effect, the bounds on it, and the evidence of harm.

Costs are in natural logarithms and higher is worse: ln(v2 ÷ v1), or its negative where higher is better. All of a path
follows from the blocks before each point, so that a verdict is the same whether blocks come one by one or all at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from servescope.contract.judged import JUDGED
from servescope.cutover.comparison import calibration, clusters, floods, gross
from servescope.cutover.comparison.spans import Comparison, EffectComparison, EventComparison, SpanLevels
from servescope.cutover.evidence.folding import ReplicaSums
from servescope.cutover.plan.plan import ComparedEdge, MetricPlan, Noise
from servescope.cutover.statistics import change, counts, effects, slow_fractions
from servescope.cutover.statistics.effects import BlockEffects
from servescope.cutover.statistics.mix import Prompts, PromptSlope, adjusted_effects
from servescope.cutover.statistics.sequences import EffectPath, Floats, accumulate, information_to_settle

RARE_WEIGHT = 0.2
"""The part of the evidence of health that is bet on events that are rare on their own; their ratio has the rest."""
EDGES_WEIGHT = 0.3
"""The part of the evidence of harm that is bet on slow fractions, where there are edges; the mean has the rest."""

FLOOD_WEIGHT = 0.03
"""The part of the evidence of harm that is bet on events that flood v2; what more of them than on v1 there are has the
rest."""


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
    been gathered of what `wanted` gives (NaN where waiting does not settle it). `slow_low` gives the highest lower
    limit of the differences of slow fractions; None without edges. Both are seldom asked for. `compared` are the blocks
    of all of that, from which a judgement takes the estimate it shows; `harmed` those that may prove harm, where these
    are others. `flood` is where events have flooded v2 for more than one block; None of what is no event.
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
    wanted: Callable[[], Floats]
    calibrated: bool
    slow_low: Callable[[], Floats] | None = None
    compared: Comparison | None = None
    harmed: Comparison | None = None
    flood: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class ArmSums:
    """What one arm counted of a metric, per replica and block, (P, B): 0 where not known.

    `slow` are those above each edge, (P, K, B), NaN of a replica that does not report the edge.

    `prompts` are those of its replicas, (P, B); None where they are not reported."""

    above: Floats
    below: Floats
    slow: Floats | None = None
    prompts: Prompts | None = None

    def of(self, kept: NDArray[np.bool_]) -> ArmSums:
        """What was counted where a replica is kept, (P, B)."""
        if kept.all():
            return self
        slow = None if self.slow is None else self.slow * kept[:, None]
        prompts = self.prompts and Prompts(self.prompts.tokens * kept, self.prompts.requests * kept)
        return ArmSums(self.above * kept, self.below * kept, slow, prompts)

    @cached_property
    def total(self) -> Floats:
        """What all replicas counted above the line, (B,)."""
        return np.asarray(self.above.sum(axis=0))

    @cached_property
    def count(self) -> Floats:
        """What all replicas counted below the line, (B,)."""
        return np.asarray(self.below.sum(axis=0))

    @cached_property
    def slow_counts(self) -> list[tuple[Floats, Floats]]:
        """By edge what the replicas that report it counted, and what of that is above it, (B,) each;
        [] without edges.
        """
        found = []
        for slow in () if self.slow is None else np.moveaxis(self.slow, 1, 0):
            known = np.isfinite(slow)
            found.append((np.where(known, self.below, 0.0).sum(axis=0), np.where(known, slow, 0.0).sum(axis=0)))
        return found

    def slow_at(self, edge: int) -> tuple[Floats, Floats]:
        """The observations of replicas that report an edge, and those above it, (B,) each; 0 without edges."""
        return self.slow_counts[edge] if self.slow_counts else (np.zeros_like(self.count), np.zeros_like(self.count))

    @cached_property
    def replicas(self) -> Floats:
        """How many replicas it effectively had up to each block, (B,): fewer than there are where a few did most."""
        running = np.cumsum(self.below, axis=1)
        squares = np.square(running).sum(axis=0)
        whole = np.square(running.sum(axis=0))
        return np.asarray(np.maximum(1.0, np.divide(whole, squares, out=np.ones_like(squares), where=squares > 0.0)))


def mean_path(
    metric: MetricPlan, noise: Noise, edges: Sequence[ComparedEdge], v1: ArmSums, v2: ArmSums, levels: Levels,
    *, slope: PromptSlope | None = None, proves: int = 3,
) -> MetricPath:  # fmt: skip
    """The path of a histogram's mean, with the shares of observations above its edges; `proves` as in
    `path_of_effects`."""
    blocks = mean_blocks(noise, v1, v2, slope)
    path = path_of_effects(metric, compare_effects(metric, noise, blocks, v1, v2, levels), levels, proves=proves)
    # Without a past, how much shares differ by themselves is not known: they would alarm at the first difference.
    if metric.better != "lower" or not edges or not noise.calibrated or not proves:
        return path
    weights = np.array([1.0 - EDGES_WEIGHT, *([EDGES_WEIGHT / len(edges)] * len(edges))])
    slow = _slow_evidence(edges, v1, v2, levels)
    return replace(
        path,
        harm=change.log_mixed(np.array([path.harm, *(each for each, _ in slow)]), weights),
        material=change.log_mixed(np.array([path.material, *(each for _, each in slow)]), weights),
        slow_low=partial(_slow_low, edges, v1, v2, levels),
    )


def two_sided_path(
    metric: MetricPlan, noise: Noise, v1: ArmSums, v2: ArmSums, levels: Levels, *, slope: PromptSlope | None
) -> MetricPath:
    """The path of a histogram's mean of which a change either way is harm.

    The cost is that of a rise; what is compared is that of the side which it is on at the end, whose `better` a track
    has to have.
    """
    rise, fall = (
        mean_path(replace(metric, better=better), noise, (), v1, v2, levels, slope=slope)
        for better in ("lower", "higher")
    )  # fmt: skip
    halves = np.array([0.5, 0.5])
    harm, material, beyond = (
        change.log_mixed(np.array([getattr(rise, name), getattr(fall, name)]), halves)
        for name in ("harm", "material", "beyond")
    )
    return replace(
        rise if better_of(rise) == "lower" else fall,
        harm=harm, material=material, beyond=beyond, bounded=rise.bounded & fall.bounded,
        cost=rise.cost, low=rise.low, high=np.fmax(rise.high, 0.0), recent=np.fmax(rise.recent, fall.recent),
    )  # fmt: skip


def better_of(path: MetricPath) -> Literal["higher", "lower"]:
    """Which way would be better, of a path of a change that is harm either way, from where it is at the end."""
    return "higher" if path.cost.size and path.cost[-1] < 0.0 else "lower"


def mean_blocks(noise: Noise, v1: ArmSums, v2: ArmSums, slope: PromptSlope | None) -> BlockEffects:
    """The effects of a histogram's mean, adjusted by what v2's prompts explain of them where there is a slope."""
    merged = effects.MOST_MERGED if noise.calibrated else calibration.ONLINE_MERGED
    enough = effects.ENOUGH_REQUESTS if noise.calibrated else math.inf
    blocks = effects.mean_effects(v1.count, v1.total, v2.count, v2.total, noise.cv2, enough=enough, most=merged)
    return _adjusted(blocks, v1, v2, slope)


def _slow_evidence(
    edges: Sequence[ComparedEdge], v1: ArmSums, v2: ArmSums, levels: Levels
) -> list[tuple[Floats, Floats]]:
    """By edge the evidence that v2 has more slow requests than replicas that differ explain, and materially more."""
    starts, weights = change.schedule(v1.count.size, stage_weight=levels.weight)
    found = []
    for index, edge in enumerate(edges):
        strata = slow_fractions.slow_fractions(*v1.slow_at(index), *v2.slow_at(index))
        harm, material = slow_fractions.log_evidence_of_harm(
            strata, edge.tau2, floor=(edge.lasting, edge.floor), alpha=levels.harm, wanted=edge.wanted,
            starts=starts, weights=weights,
        )  # fmt: skip
        found.append((harm, material))
    return found


def _slow_low(edges: Sequence[ComparedEdge], v1: ArmSums, v2: ArmSums, levels: Levels) -> Floats:
    """The highest lower limit of the differences of slow fractions after each block, (B,)."""
    found = []
    for index, edge in enumerate(edges):
        strata = slow_fractions.slow_fractions(*v1.slow_at(index), *v2.slow_at(index))
        found.append(
            slow_fractions.difference_path(strata, edge.tau2, alpha=levels.low / len(edges), wanted=edge.wanted)[1]
        )
    return np.asarray(np.max(found, axis=0))


def ratio_path(
    metric: MetricPlan, noise: Noise, v1: ArmSums, v2: ArmSums, levels: Levels, *, least_below: float,
    slope: PromptSlope | None = None, steady: bool = False, proves: int = 3,
) -> MetricPath:  # fmt: skip
    """The path of a ratio of two counters' sums; `steady` as in `ratio_blocks`, `proves` as in `path_of_effects`."""
    blocks = ratio_blocks(v1, v2, slope, least_below=least_below, steady=steady)
    return path_of_effects(metric, compare_effects(metric, noise, blocks, v1, v2, levels), levels, proves=proves)


def ratio_blocks(
    v1: ArmSums, v2: ArmSums, slope: PromptSlope | None, *, least_below: float, steady: bool = False
) -> BlockEffects:
    """The effects of a ratio of two counters' sums, adjusted as those of a mean.

    With `steady` what is above the line hardly varies: seconds that a replica is there.
    """
    blocks = effects.ratio_effects(v1.above, v1.below, v2.above, v2.below, least_whole=least_below)
    if steady:
        blocks = effects.steadied(blocks, v1.count, v2.count)
    return _adjusted(blocks, v1, v2, slope)


def _adjusted(blocks: BlockEffects, v1: ArmSums, v2: ArmSums, slope: PromptSlope | None) -> BlockEffects:
    if slope is None or v1.prompts is None or v2.prompts is None:
        return blocks
    return adjusted_effects(blocks, slope, v1.prompts.together(), v2.prompts.together())


def compare_effects(
    metric: MetricPlan, noise: Noise, blocks: BlockEffects, v1: ArmSums, v2: ArmSums, levels: Levels,
    *, unsure: Floats | float = 0.0,
) -> EffectComparison:  # fmt: skip
    """The comparison by these effects, ln(v2 ÷ v1); `unsure` is a variance, (K,), that waiting does not average out."""
    if metric.better == "higher":
        blocks = effects.reversed_effects(blocks)
    replicas1, replicas2 = v1.replicas[blocks.last], v2.replicas[blocks.last]
    persistent = effects.replica_variance(noise.pod_tau2, replicas1, replicas2) + unsure
    if noise.calibrated:
        variances = block_variances(blocks, noise, 1.0 / replicas1 + 1.0 / replicas2)
        path = accumulate(blocks.effects, variances, persistent)
    else:
        variances = blocks.sampling
        path = calibration.online_path(blocks, persistent=np.maximum.accumulate(persistent))
    wanted = noise.information_wanted
    return EffectComparison(
        blocks, variances, persistent, path, path.limits((levels.low, levels.high), wanted),
        ((v1.total, v1.count), (v2.total, v2.count)), SpanLevels(levels.low, levels.high, wanted),
        changes=noise.calibrated,
    )  # fmt: skip


def path_of_effects(metric: MetricPlan, compared: EffectComparison, levels: Levels, *, proves: int = 3) -> MetricPath:
    """The path of what was compared.

    It has the evidence of the first `proves` of harm, material harm and harm beyond the margin, which takes most of the
    time; of the others there is none.
    """
    blocks, path, wanted = compared.blocks, compared.path, compared.levels.wanted
    size = compared.sums[0][0].size
    margin, floor = math.log1p(metric.margin or 0.0), math.log1p(metric.floor or 0.0)
    starts, weights = change.schedule(size, stage_weight=levels.weight)
    if compared.changes:
        evidence = np.zeros((3, blocks.effects.size))
        if proves:
            evidence[:proves] = change.log_evidence_of_harm(
                blocks, compared.variances, bound=(0.0, floor, margin)[:proves], alpha=levels.harm, wanted=wanted,
                starts=starts, weights=weights, persistent=compared.persistent,
            )  # fmt: skip
        harm, material, beyond = evidence
    else:
        harm, material, beyond = (
            change.log_mixed(path.log_evidence_above(bound, levels.harm, wanted)[None], np.array([levels.weight]))
            for bound in (0.0, floor, margin)
        )
    at = _latest(blocks.last, size)
    low, high = compared.limits

    def settled_at() -> Floats:
        return _spread(_wanted(path, compared.persistent, margin, floor, levels, wanted), at, np.nan)

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
        wanted=settled_at,
        calibrated=compared.changes,
        compared=compared,
    )


def gross_path(
    metric: MetricPlan, noise: Noise, v1: ArmSums, v2: ArmSums, levels: Levels, level: float,
    *, least_below: float | None,
) -> Floats:  # fmt: skip
    """The cost of v2 where it is gross harm while replicas warm up (`gross.gross_harm`), (B,).

    `level` is the probability of error; `least_below` is that of a ratio, None of a histogram's mean.
    """
    if least_below is not None:
        blocks = ratio_blocks(v1, v2, None, least_below=least_below)
    else:
        blocks = effects.mean_effects(v1.count, v1.total, v2.count, v2.total, noise.cv2)
    if metric.better == "higher":
        blocks = effects.reversed_effects(blocks)
    noise = noise if noise.calibrated else replace(noise, tau2=gross.UNKNOWN_TAU2, spread=0.0)
    variances = block_variances(blocks, noise, 1.0 / v1.replicas[blocks.last] + 1.0 / v2.replicas[blocks.last])
    size = v1.below.shape[1]
    starts, weights = change.schedule(size, stage_weight=levels.weight)
    return gross.gross_harm(
        blocks, variances, alpha=levels.harm, level=level, wanted=noise.information_wanted, starts=starts,
        weights=weights, size=size,
    )  # fmt: skip


def block_variances(blocks: BlockEffects, noise: Noise, spread: Floats) -> Floats:
    """The variances of the blocks, with more excess where there are fewer replicas than in the past."""
    plain = blocks.sampling + calibration.scaled_tau2(noise, spread) / blocks.merged
    factor = effects.inflation(BlockEffects(blocks.effects, plain, blocks.merged, blocks.last), 0.0)
    return np.asarray(plain * factor)


def by_block(values: Floats, blocks: BlockEffects, size: int, before: float) -> Floats:
    """What is known after each of `size` five-minute blocks, of values of merged ones, (K,); `before` the first."""
    return _spread(values, _latest(blocks.last, size), before)


def _latest(last: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The merged block that is known at the end of each five-minute block, −1 before the first."""
    return np.asarray(np.searchsorted(last, np.arange(size), side="right") - 1)


def _spread(values: Floats, at: NDArray[np.int64], before: float) -> Floats:
    if not values.size:
        return np.full(at.shape, before)
    return np.where(at >= 0, values[at], before)


_HOUR = 12
_LEAST_VARIANCE = 1e-12
"""A replica whose blocks are all alike seems to have none."""


def _recent(blocks: BlockEffects) -> Floats:
    """The mean effect of the last one to two hours, (K,)."""
    known = np.isfinite(blocks.sampling)
    weights = np.where(known, 1.0 / np.where(known, np.maximum(blocks.sampling, _LEAST_VARIANCE), 1.0), 0.0)
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


def events_path(
    metric: MetricPlan, noise: Noise, v1: ArmSums, v2: ArmSums, levels: Levels, *, proves: int = 3
) -> MetricPath:
    """The path of counts of events among requests, or among hours, clusters counted once.

    `information` is of health; what floods is requests; `proves` as in `path_of_effects`.
    """
    judged = JUDGED[metric.name]
    replicas = ReplicaSums(v1.above, v1.below), ReplicaSums(v2.above, v2.below)
    arms = clusters.cluster(*replicas, noise.dispersion, noise.pairs)
    margin, floor = 1.0 + (metric.margin or 0.0), 1.0 + (metric.floor or 0.0)
    flood = floods.flooded(*replicas, margin) & judged.of_requests
    lasting = floods.log_evidence_of_flood(*replicas, flood)
    evidence = np.zeros((3, flood.size))
    if proves:
        evidence[:proves] = harm_of_events(arms, (1.0, floor, margin)[:proves], lasting, levels)
    harm, material, beyond = evidence
    v1_rate, v2_rate = (rate_so_far(arm) for arm in (v1, v2))
    below, bounded, rare = _health_of_events(arms, v2, margin, judged.immaterial, levels)
    with np.errstate(divide="ignore", invalid="ignore"):
        cost = np.log(v2_rate / v1_rate)
        low, high = (np.log(each) for each in counts.ratio_interval(
            arms.events, levels.low, levels.high, dispersion=arms.dispersion, clustered=arms.clustered
        ))  # fmt: skip
    cost = np.where(np.isfinite(cost), cost, np.nan)
    raw = counts.EventCounts(v1.total, v1.count, v2.total, v2.count)
    return MetricPath(
        harm=harm,
        material=material,
        beyond=beyond,
        # What was proven once holds unless v2 has more of late. Clusters that count once may be most of what users saw,
        # of which nothing is proven then.
        bounded=bounded
        & (
            ((cost < math.log(margin)) & ((high < math.log(margin)) | (_rate_of_late(v1, v2) < margin)))
            | (rare & ~(v2_rate >= judged.immaterial))
        ),
        cost=cost,
        low=np.fmin(low, cost),
        high=np.fmax(high, cost),
        recent=cost,
        information=np.maximum(below, 0.0),
        wanted=lambda: np.full(flood.size, -math.log(levels.high)),
        calibrated=True,
        compared=EventComparison(
            raw, arms, SpanLevels(levels.low, levels.high, -math.log(levels.high)), (low, high)
        ),
        flood=flood & (lasting > 0.0),
    )  # fmt: skip


def harm_of_events(
    arms: clusters.Clustered, bounds: tuple[float, ...], lasting: Floats, levels: Levels
) -> list[Floats]:
    """The evidence of harm above each of the bounds, (B,) each."""
    starts, weights = change.schedule(lasting.size, stage_weight=levels.weight)
    more = counts.log_evidence_above(
        arms.events, bounds, dispersion=arms.dispersion, clustered=arms.clustered, starts=starts, weights=weights
    )
    flood = change.log_mixed(lasting[None], np.array([levels.weight]))
    parts = np.array([1.0 - FLOOD_WEIGHT, FLOOD_WEIGHT])
    return [change.log_mixed(np.array([each, flood]), parts) for each in more]


def _health_of_events(
    arms: clusters.Clustered, v2: ArmSums, margin: float, immaterial: float, levels: Levels
) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    """The evidence of health after each block, where it has ever been enough, and where that they are rare has."""
    below = counts.log_evidence_below(arms.events, margin, dispersion=arms.dispersion, clustered=arms.clustered)
    # Either is health: no more than the margin allows, or so rare that it is immaterial however rare it is on v1.
    rare = counts.log_evidence_rarer(v2.total, v2.count, immaterial) / arms.variation
    below = change.log_mixed(np.array([below, rare]), np.array([1.0 - RARE_WEIGHT, RARE_WEIGHT]))
    enough, of_rare = np.maximum.accumulate(np.array([below, rare + math.log(RARE_WEIGHT)]), axis=1) >= -math.log(
        levels.high
    )
    return below, enough, of_rare


def _rate_of_late(v1: ArmSums, v2: ArmSums) -> Floats:
    """v2's rate over the last one to two hours ÷ v1's, or what v1's was since the stage began where that is more."""
    blocks = np.arange(v1.total.size)
    since = np.maximum(0, blocks // _HOUR - 1) * _HOUR
    rates = []
    for arm in (v1, v2):
        events, requests = (np.concatenate([[0.0], np.cumsum(each)]) for each in (arm.total, arm.count))
        of_late = requests[1:] - requests[since]
        rates.append(np.divide(events[1:] - events[since], of_late, out=np.zeros(of_late.shape), where=of_late > 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(rates[1] / np.fmax(rates[0], rate_so_far(v1)))


def rate_so_far(arm: ArmSums) -> Floats:
    """An arm's events per request since the stage began, after each block, (B,)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.cumsum(arm.total) / np.cumsum(arm.count))


def with_harm(health: MetricPath, harm: MetricPath) -> MetricPath:
    """The path of health with the evidence of harm, which may come from blocks that say nothing of health.

    An estimate and its limits are of the same blocks: those of health, and those of harm before there are any.
    """
    seen = np.isfinite(health.cost)
    return replace(
        health,
        harm=harm.harm,
        material=harm.material,
        beyond=harm.beyond,
        cost=np.where(seen, health.cost, harm.cost),
        low=np.where(seen, health.low, harm.low),
        high=np.where(seen, health.high, harm.high),
        recent=harm.recent,
        slow_low=harm.slow_low,
        harmed=harm.compared,
    )
