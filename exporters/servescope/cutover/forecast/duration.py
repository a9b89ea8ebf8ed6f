"""How long each stage needs to settle each metric, and what cannot be settled there at all, from v1's own past.

What is expected of the judge itself: the same noise, bounds and levels, with the traffic that v1's past had. Nothing is
simulated. Times are those until half of the cutovers of a v2 that equals v1 would be settled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from servescope.contract.judged import JUDGED, JudgedMetric
from servescope.cutover.comparison.calibration import scaled_tau2
from servescope.cutover.comparison.comparability import unproven
from servescope.cutover.comparison.freezing import counted_of, least_below
from servescope.cutover.comparison.paths import EDGES_WEIGHT, RARE_WEIGHT
from servescope.cutover.conditions.warmth import warm_up_seconds
from servescope.cutover.evidence.evidence import Evidence
from servescope.cutover.evidence.folding import ArmArrays, ReplicaSums, fold, judged_metric
from servescope.cutover.evidence.stages import section_part
from servescope.cutover.plan.plan import FrozenPlan, MetricPlan, Noise, Stage
from servescope.cutover.statistics import effects, sequences
from servescope.cutover.statistics.change import schedule
from servescope.cutover.statistics.counts import BETTER_RATIOS, WORSE_RATIOS
from servescope.increments.blocks import BLOCK_MS
from servescope.settings.values import format_wait

_HOUR_BLOCKS: Final = 3_600_000 // BLOCK_MS
_DAY_BLOCKS: Final = 24 * _HOUR_BLOCKS
LONGEST_SECONDS: Final = 7 * 86_400.0
"""What takes longer than a week is not waited for."""
_LEAST_SECONDS: Final = 900.0
"""A verdict needs more than one block, however sure the first is."""
SLOW_START_SECONDS: Final = 3_600.0
"""How long a slow start matters: that of an empty cache, or of 80 % more that halves each quarter of an hour."""


@dataclass(frozen=True, slots=True)
class MetricForecast:
    """What a stage is expected to settle of a metric.

    `healthy_seconds` is until v2 is proven to be within the margin if it equals v1, None where waiting does not prove
    it; `detectable` the smallest relative change to the worse, or the factor of events less one, that half of the
    cutovers would find within a day, None where none can be found. `reason` says why one is None, or is empty. Neither
    is `known` before the noise is. `cold_seconds` are the `healthy_seconds` where replicas of v2 start slowly or have
    cold caches.
    """

    name: str
    title: str
    required: bool
    margin: float
    healthy_seconds: float | None
    detectable: float | None
    reason: str = ""
    known: bool = True
    cold_seconds: float | None = None
    guard: bool = False


@dataclass(frozen=True, slots=True)
class StageForecast:
    """A stage, and what it is expected to settle.

    `v2_pods`, a key of the JSON, are as many as have the same load as v1's. `warm_up_seconds` is how long fresh ones
    warm up that start as fast as v1's, `cold_warm_up_seconds` such that start slowly or have cold caches: the times of
    metrics that warmth moves have it. `least_seconds` is what the plan wants the stage to last.
    """

    index: int
    share: float
    v2_pods: int
    requests_per_hour: float
    warm_up_seconds: float
    metrics: tuple[MetricForecast, ...]
    cold_warm_up_seconds: float = 0.0
    least_seconds: float = 0.0

    @property
    def seconds(self) -> float | None:
        """Until every required metric is settled if v2 equals v1, None where one of them never is."""
        return self._longest(each.healthy_seconds for each in self.metrics if each.required)

    @property
    def cold_seconds(self) -> float | None:
        """The same where replicas of v2 start slowly or have cold caches."""
        return self._longest(each.cold_seconds for each in self.metrics if each.required)

    @property
    def longest(self) -> str:
        """What takes the longest of it, where it is settled: `longest for Errors`."""
        waits = {each.title: each.healthy_seconds or 0.0 for each in self.metrics if each.required}
        if max(waits.values(), default=0.0) < self.least_seconds:
            return "as the plan wants it to last"
        return f"longest for {max(waits, key=lambda title: waits[title])}"

    def _longest(self, waits: Iterable[float | None]) -> float | None:
        known = [self.least_seconds, *waits]
        return None if None in known else max(wait for wait in known if wait is not None)

    @property
    def sentence(self) -> str:
        """The stage in a sentence."""
        beginning = f"stage {self.index + 1}, {100 * self.share:.3g} % on v2: "
        required = [each for each in self.metrics if each.required]
        if not required:
            return f"{beginning}no metric is required"
        reasons: dict[str, list[str]] = {}
        for each in required:
            if each.healthy_seconds is None:
                reasons.setdefault(each.reason, []).append(each.title)
        if reasons:
            why = "; ".join(f"{', '.join(titles)}: {reason}" for reason, titles in reasons.items())
            known = all(each.known for each in required if each.healthy_seconds is None)
            return f"{beginning}{'cannot be proven healthy here' if known else 'cannot be forecast'}. {why}"
        usual = f"about {format_wait(self.seconds or 0.0)}"
        cold = "more than a week" if self.cold_seconds is None else f"about {format_wait(self.cold_seconds)}"
        cold = "as long" if cold == usual else cold
        return (
            f"{beginning}{usual}, {self.longest}; with "
            f"{format_wait(self.warm_up_seconds)} for fresh replicas of v2 to warm up; {cold} with "
            f"{format_wait(self.cold_warm_up_seconds)}, where they start slowly or have cold caches"
        )


def forecast_stages(frozen: FrozenPlan, evidence: Evidence) -> tuple[StageForecast, ...]:
    """What every stage of a frozen plan is expected to settle, with the traffic that v1 had before it was frozen."""
    start_ms = frozen.started_ms - round(frozen.plan.calibration_hours * 3_600_000)
    past = fold(frozen.plan, evidence.targets, start_ms, min(frozen.started_ms, evidence.observed_until_ms))
    weights = sequences.split_alpha([stage.share for stage in frozen.plan.stages])
    return tuple(
        _forecast_stage(frozen, past, index, stage, weights[index] * section_part(0))
        for index, stage in enumerate(frozen.plan.stages)
    )


def _forecast_stage(frozen: FrozenPlan, past: ArmArrays, index: int, planned: Stage, weight: float) -> StageForecast:
    share = planned.share
    requests = np.nan_to_num(past.v1.traffic["requests"])
    # Not all that ever served: a replica that was replaced has another name.
    serving = (requests > 0.0).sum(axis=0)
    v1_replicas = max(1, round(float(np.median(serving[serving > 0])))) if serving.any() else 1
    v2_replicas = max(1, round(v1_replicas * share))
    control = 0.0 < share < 1.0
    requests_per_hour = float(requests.sum()) / max(1, int((requests.sum(axis=0) > 0.0).sum())) * _HOUR_BLOCKS
    rate = requests_per_hour / 3600.0 * share / v2_replicas
    warm_up, cold = warm_up_seconds(rate), warm_up_seconds(rate, SLOW_START_SECONDS)
    stage = _Stage(share, max(1, v1_replicas - v2_replicas), v2_replicas, weight, warm_up, cold)
    return StageForecast(
        index=index,
        share=share,
        v2_pods=v2_replicas,
        requests_per_hour=requests_per_hour,
        warm_up_seconds=warm_up,
        metrics=tuple(
            _forecast(frozen, past, metric, stage) if control else _without_control(frozen, metric)
            for metric in frozen.plan.metrics
            if metric.kind != "band"
        ),
        cold_warm_up_seconds=cold,
        least_seconds=3600.0 * planned.least_hours,
    )


@dataclass(frozen=True, slots=True)
class _Stage:
    share: float
    v1_replicas: int
    v2_replicas: int
    weight: float
    warm_up: float
    cold_warm_up: float

    @property
    def spread(self) -> float:
        return 1.0 / self.v1_replicas + 1.0 / self.v2_replicas


def _without_control(frozen: FrozenPlan, metric: MetricPlan) -> MetricForecast:
    return _answer(frozen, metric, None, None, "there is no control: keep a part of the requests on v1")


def _answer(
    frozen: FrozenPlan, metric: MetricPlan, settled: float | None, detectable: float | None, reason: str = "",
    *, warm_ups: tuple[float, float] = (0.0, 0.0),
) -> MetricForecast:  # fmt: skip
    """The forecast of a metric that is `settled` so many seconds after replicas have warmed up, as usual or slowly."""
    judged = judged_metric(metric.name, frozen.histograms)
    waits: list[float | None] = [None, None]
    if settled is not None:
        healthy, cold = (max(settled + each, _LEAST_SECONDS) for each in warm_ups)
        waits = [each if each <= LONGEST_SECONDS else None for each in (healthy, cold)]
        if waits[0] is None:
            reason = f"it would take {format_wait(healthy)}"
    return MetricForecast(
        metric.name, judged.title, metric.required, metric.margin or 0.0, waits[0], detectable, reason,
        cold_seconds=waits[1], guard=metric.guard,
    )  # fmt: skip


def _forecast(frozen: FrozenPlan, past: ArmArrays, metric: MetricPlan, stage: _Stage) -> MetricForecast:
    judged = judged_metric(metric.name, frozen.histograms)
    counted = counted_of(past.v1, judged.name, frozen.histograms)
    below = np.nan_to_num(counted.below).sum(axis=0)
    left = unproven(judged, past)
    if left is not None:
        # Others are judged without it; where there are none, nothing proves that v2 is healthy.
        alone = all(unproven(JUDGED[each.name], past) for each in frozen.plan.metrics if each.required)
        return replace(_answer(frozen, metric, None, None, left.reason), required=metric.required and alone)
    if metric.name in frozen.unobservable:
        return _answer(frozen, metric, None, None, frozen.unobservable[metric.name])
    if not (below > 0.0).any():
        return _answer(frozen, metric, None, None, "v1's past has no data of it")
    family = sum(
        judged_metric(each.name, frozen.histograms).part
        for each in frozen.plan.metrics
        if each.kind != "band" and each.role == metric.role
    )
    # Of the evidence that is gathered from the start of the stage: of any harm, and of harm that is material.
    material = frozen.plan.alpha_harm * float(schedule(1, stage_weight=stage.weight)[1][0])
    harm = material * judged.part / family
    health = frozen.plan.alpha_health * stage.weight
    if judged.kind == "events":
        return _forecast_events(frozen, metric, counted, stage, harm, health)
    if not frozen.noise[metric.name].calibrated:
        return replace(_answer(frozen, metric, None, None, _UNCALIBRATED), known=False)
    return _forecast_effect(frozen, metric, judged, counted, stage, (harm, material), health)


_UNCALIBRATED: Final = "the noise is not known yet, as v1's past is shorter than a day or of one replica"


# --- Means and ratios -------------------------------------------------------------------------------------------------


def _forecast_effect(
    frozen: FrozenPlan, metric: MetricPlan, judged: JudgedMetric, counted: ReplicaSums, stage: _Stage,
    levels: tuple[float, float], health: float,
) -> MetricForecast:  # fmt: skip
    noise = frozen.noise[metric.name]
    slope = frozen.slopes.get(metric.name)
    sampling = (
        _ratio_cv2(counted, least_below(judged))
        if judged.kind == "ratio"
        else noise.cv2 * (1.0 - (slope.explained if slope else 0))
    )
    below = np.nan_to_num(counted.below).sum(axis=0)
    enough = least_below(judged) if judged.kind == "ratio" else effects.ENOUGH_REQUESTS
    least = least_below(judged) if judged.kind == "ratio" else effects.FEWEST_REQUESTS
    rate = float(_information(noise, sampling, below[below > 0.0], stage, enough, least).mean())
    if rate <= 0.0:
        return _answer(frozen, metric, None, None, "too few requests in any quarter of an hour")
    persistent = float(effects.replica_variance(noise.pod_tau2, stage.v1_replicas, stage.v2_replicas))
    margin, wanted = math.log1p(metric.margin or 0.0), noise.information_wanted
    by_mean = 1.0 - EDGES_WEIGHT if judged.kind == "mean" and frozen.edges.get(metric.name) else 1.0
    a_day = float(sequences.lasting_information(np.array(rate * _DAY_BLOCKS), persistent))
    harm, material = (float(sequences.half_width(a_day, by_mean * level, wanted)) for level in levels)
    detectable = math.expm1(max(harm, math.log1p(metric.floor or 0.0) + material))
    needed = sequences.information_to_settle(margin, health, wanted)
    if needed * persistent >= 1.0:
        replicas = math.ceil(stage.v2_replicas * needed * persistent * _MORE_REPLICAS)
        reason = f"replicas differ too much for good: it needs about {replicas} of v2, and as many of v1"
        return _answer(frozen, metric, None, detectable, reason)
    blocks = needed / (1.0 - needed * persistent) / rate
    warm_ups = stage.warm_up, stage.cold_warm_up
    return _answer(frozen, metric, blocks * BLOCK_MS / 1000.0, detectable, warm_ups=warm_ups)


_MORE_REPLICAS: Final = 1.25
"""With just as many replicas as the bound needs, it would take for ever."""


def _information(
    noise: Noise, sampling: float, below: sequences.Floats, stage: _Stage, enough: float, least: float
) -> sequences.Floats:
    """The information of each block of the past if it were divided as in the stage, (B,)."""
    v1, v2 = below * (1.0 - stage.share), below * stage.share
    smaller = np.minimum(v1, v2)
    with np.errstate(divide="ignore"):
        merged = np.clip(np.ceil(enough / np.maximum(smaller, 1e-9)), 1.0, effects.MOST_MERGED)
        variance = sampling * (1.0 / v1 + 1.0 / v2) + float(scaled_tau2(noise, stage.spread))
    return np.where(smaller * merged >= least, 1.0 / np.where(np.isfinite(variance), variance, np.inf), 0.0)


def _ratio_cv2(counted: ReplicaSums, least: float) -> float:
    """What the delta method's variance of an arm's ratio is, times what is below the line: as of one observation."""
    part, whole = np.nan_to_num(counted.above), np.nan_to_num(counted.below)
    blocks = effects.ratio_effects(part, whole, part, whole, least_whole=least, most=1)
    below = whole.sum(axis=0)[blocks.last]
    known = np.isfinite(blocks.sampling)
    return float((0.5 * blocks.sampling[known] * below[known]).mean()) if known.any() else math.inf


# --- Events -----------------------------------------------------------------------------------------------------------


def _forecast_events(
    frozen: FrozenPlan, metric: MetricPlan, counted: ReplicaSums, stage: _Stage, harm: float, health: float
) -> MetricForecast:
    noise = frozen.noise[metric.name]
    events, requests = (float(np.nan_to_num(each).sum()) for each in (counted.above, counted.below))
    blocks = int((np.nan_to_num(counted.below).sum(axis=0) > 0.0).sum())
    rate, per_block = events / requests, requests / blocks
    needed = -math.log(health)
    ratio = needed - math.log(1.0 - RARE_WEIGHT) + math.log(len(BETTER_RATIOS))
    alone = needed - math.log(RARE_WEIGHT) + math.log(4.0)
    drifts = (
        (ratio, max(_drift(stage.share, 1.0, 1.0 + (metric.margin or 0.0), each) for each in BETTER_RATIOS) * rate),
        (alone, _clean_drift(rate, JUDGED[metric.name].immaterial) * stage.share),
    )
    waits = [nats * noise.dispersion / (drift * per_block) for nats, drift in drifts if drift > 0.0]
    found = _smallest_ratio(
        lambda ratio: max(
            _drift(stage.share, ratio, 1.0, each) * rate * per_block * _DAY_BLOCKS / noise.dispersion + math.log(weight)
            for each, weight in WORSE_RATIOS.items()
        ),
        -math.log(harm),
    ) if events > 0.0 else None  # fmt: skip
    reason = "" if events > 0.0 else "v1's past has none, so that no multiple of its rate is known"
    reason = reason if waits else "v1's own rate is neither known nor small enough"
    healthy = min(waits) * BLOCK_MS / 1000.0 if waits else None
    return _answer(frozen, metric, healthy, None if found is None else found - 1.0, reason)


def _drift(share: float, ratio: float, bound: float, multiple: float) -> float:
    """The evidence that one event of v1's rate adds on average, against `bound`, bet on `multiple` times that."""
    against, bet = (share * each / (1.0 - share + share * each) for each in (bound, bound * multiple))
    in_v1, in_v2 = 1.0 - share, share * ratio
    return in_v2 * math.log(bet / against) + in_v1 * math.log((1.0 - bet) / (1.0 - against))


def _clean_drift(rate: float, limit: float) -> float:
    """The evidence that one request adds on average that events are rarer than is material, `limit`, at most."""
    bets = [limit * each for each in (0.125, 0.25, 0.5)] if rate > 0.0 else [0.0]
    gains = [
        (rate * math.log(bet / limit) if rate > 0.0 else 0.0) + (1.0 - rate) * (math.log1p(-bet) - math.log1p(-limit))
        for bet in bets
    ]
    return max(gains)


def _smallest_ratio(gathered: Callable[[float], float], needed: float) -> float | None:
    """The smallest ratio of the rates at which a day gathers what is needed, None where a hundred times is none."""
    least, most = 1.0, 100.0
    if gathered(most) < needed:
        return None
    for _ in range(40):
        middle = math.sqrt(least * most)
        least, most = (middle, most) if gathered(middle) < needed else (least, middle)
    return most
