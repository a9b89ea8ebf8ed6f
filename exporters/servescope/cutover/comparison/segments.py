"""Harm in one segment: each required metric compared per tenant, route or priority that both arms report.

Segments are compared within the same blocks as their metric, with the noise that v1's whole past has frozen: the
sampling variance grows by itself with fewer requests. What is looked for is harm beyond the metric's margin, which is
what HEALTHY excludes of all requests together. Few errors are made over all segments and metrics by
`statistics.discoveries`, so that it is never latched (docs/judge-method.md#segments).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.judged import JudgedMetric
from servescope.cutover.comparison import calibration, clusters, floods, paths
from servescope.cutover.comparison.paths import ArmSums, Levels
from servescope.cutover.evidence.folding import ArmFold, ReplicaSums
from servescope.cutover.evidence.segments import REQUESTS
from servescope.cutover.evidence.shares import CONVERSATION
from servescope.cutover.plan.plan import MetricPlan, Noise
from servescope.cutover.statistics import change, effects
from servescope.cutover.statistics.discoveries import discoveries
from servescope.cutover.statistics.mix import log_evidence_of_difference
from servescope.cutover.statistics.sequences import Floats, accumulate, information_wanted, zero_unknown

MOST_JUDGED: Final = 30
"""Segments that are compared, those with the most requests: each costs all others a little."""
_MOST_MERGED: Final = 12
"""Blocks of five minutes, an hour, that are merged at most: a tenant of few requests has few in any."""
_UNLIKE: Final = 0.1
"""The standard deviation by which one segment differs between equal arms for as long as it is compared: few and long
conversations, whose prompts are not known by segment, are on one arm or on the other."""
_WANTED: Final = information_wanted(0.5)
"""The information that bounds are tuned to: what is looked for in a segment is gross, as smaller harm is in any."""
_SURE: Final = float(np.log(1.0 / 0.01))
_MATERIAL: Final = 0.02
"""From what distance on a shift of traffic between segments is said: as one of prompts."""

Masks = tuple[NDArray[np.bool_], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentMetric:
    """How a metric is compared in every segment: `arms` are what is kept of v1's and v2's replicas, (P, B) each, and
    `kept` the blocks, (B,)."""

    plan: MetricPlan
    judged: JudgedMetric
    noise: Noise
    levels: Levels
    arms: Masks
    kept: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentPath:
    """One metric of one segment after each of B blocks, (B,): the evidence, as the logarithm of an e-value, that its
    cost is beyond the margin, and the estimate, NaN where there is none; with the `limits` of the last."""

    beyond: Floats
    cost: Floats
    limits: tuple[float, float]


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """S segments through a stage of B blocks, those with the most requests first.

    `requests` are v1's and v2's, (S, B) each, and `compared` the indices of those that are compared: both arms have
    them, and they are no more than `MOST_JUDGED`. `paths` are by metric, one for each of these, and `harmful`,
    (C, B), where a metric of one is proven to be worse than its margin. `apart` is how far the arms' shares of the
    segments are from each other, 0 … 1, where that is more than chance, else None.
    """

    names: tuple[str, ...]
    requests: tuple[Floats, Floats]
    compared: tuple[int, ...]
    paths: Mapping[str, tuple[SegmentPath, ...]]
    harmful: Mapping[str, NDArray[np.bool_]]
    apart: float | None

    def any_harm(self) -> NDArray[np.bool_]:
        """After which blocks any segment is harmed, (B,)."""
        found = np.zeros(self.requests[0].shape[1], dtype=np.bool_)
        for each in self.harmful.values():
            found |= each.any(axis=0)
        return found


def compare_segments(
    v1: ArmFold, v2: ArmFold, within: slice, usable: NDArray[np.bool_], metrics: Sequence[SegmentMetric],
    hidden: NDArray[np.bool_],
) -> Segments | None:  # fmt: skip
    """The segments of both arms in the blocks of a stage; None where neither arm has any.

    Nothing is claimed where the arms' prompts differ, (B,) `hidden`.
    """
    of_arms = v1.segments.get(REQUESTS, {}), v2.segments.get(REQUESTS, {})
    every = sorted({*of_arms[0], *of_arms[1]})
    if not every or not usable.size:
        return None
    requests = [np.array([_requests(arm.get(name), within, usable) for name in every]) for arm in of_arms]
    totals = [each.sum(axis=1) for each in requests]
    order = np.argsort(-(totals[0] + totals[1]), kind="stable")
    names = tuple(every[index] for index in order if totals[0][index] + totals[1][index] > 0.0)
    if not names:
        return None
    requests = [each[order[: len(names)]] for each in requests]
    both = (requests[0].sum(axis=1) > 0.0) & (requests[1].sum(axis=1) > 0.0)
    compared = tuple(np.flatnonzero(both)[:MOST_JUDGED].tolist())
    found = {
        metric.plan.name: tuple(_path(metric, (v1, v2), names[index], within, usable) for index in compared)
        for metric in metrics
    }
    return Segments(
        names, (requests[0], requests[1]), compared, found,
        _find_harm(found, metrics, [each[list(compared)] for each in requests], hidden), _apart(requests),
    )  # fmt: skip


def _requests(sums: ReplicaSums | None, within: slice, usable: NDArray[np.bool_]) -> Floats:
    if sums is None:
        return np.zeros(usable.size)
    return np.asarray(np.where(usable, zero_unknown(sums.below[:, within]).sum(axis=0), 0.0))


def _path(
    metric: SegmentMetric, arms: tuple[ArmFold, ArmFold], name: str, within: slice, usable: NDArray[np.bool_]
) -> SegmentPath:
    v1, v2 = (
        _sums(arm.segments.get(metric.judged.histogram or metric.plan.name, {}).get(name), kept & metric.kept & usable,
              within)
        for arm, kept in zip(arms, metric.arms, strict=True)
    )  # fmt: skip
    return _events_path(metric, v1, v2) if metric.judged.kind == "events" else _mean_path(metric, v1, v2)


def _events_path(metric: SegmentMetric, v1: ArmSums, v2: ArmSums) -> SegmentPath:
    """As `paths.events_path`, of harm beyond the margin alone."""
    replicas = ReplicaSums(v1.above, v1.below), ReplicaSums(v2.above, v2.below)
    arms = clusters.cluster(*replicas, metric.noise.dispersion, metric.noise.pairs)
    margin = 1.0 + (metric.plan.margin or 0.0)
    lasting = floods.log_evidence_of_flood(*replicas, floods.flooded(*replicas, margin))
    (beyond,) = paths.harm_of_events(arms, (margin,), lasting, metric.levels)
    with np.errstate(divide="ignore", invalid="ignore"):
        cost = np.log(paths.rate_so_far(v2) / paths.rate_so_far(v1))
    return SegmentPath(beyond, np.where(np.isfinite(cost), cost, np.nan), (-math.inf, math.inf))


def _mean_path(metric: SegmentMetric, v1: ArmSums, v2: ArmSums) -> SegmentPath:
    """As `paths.mean_path`, of harm beyond the margin alone; where the noise is known, blocks are merged for longer."""
    noise, levels, size = metric.noise, metric.levels, v1.count.size
    if noise.calibrated:
        blocks = effects.mean_effects(v1.count, v1.total, v2.count, v2.total, noise.cv2, most=_MOST_MERGED)
    else:
        blocks = paths.mean_blocks(noise, v1, v2, None)
    if metric.plan.better == "higher":
        blocks = effects.reversed_effects(blocks)
    margin = math.log1p(metric.plan.margin or 0.0)
    replicas1, replicas2 = v1.replicas[blocks.last], v2.replicas[blocks.last]
    persistent = effects.replica_variance(noise.pod_tau2, replicas1, replicas2) + _UNLIKE**2
    if noise.calibrated:
        variances = paths.block_variances(blocks, noise, 1.0 / replicas1 + 1.0 / replicas2)
        path = accumulate(blocks.effects, variances, persistent)
        starts, weights = change.schedule(size, stage_weight=levels.weight)
        beyond = change.log_evidence_of_harm(
            blocks, variances, bound=margin, alpha=levels.harm, wanted=_WANTED, starts=starts,
            weights=weights, persistent=persistent,
        )  # fmt: skip
    else:
        path = calibration.online_path(blocks, persistent=np.maximum.accumulate(persistent))
        evidence = path.log_evidence_above(margin, levels.harm, _WANTED)
        beyond = change.log_mixed(evidence[None], np.array([levels.weight]))
    cost = np.where(path.information > 0.0, path.estimate, np.nan)
    limits = (-math.inf, math.inf)
    if cost.size and path.information[-1] > 0.0:
        low, high = path.at(np.array([cost.size - 1])).limits((levels.low, levels.high), _WANTED)
        limits = float(low[0]), float(high[0])
    return SegmentPath(paths.by_block(beyond, blocks, size, 0.0), paths.by_block(cost, blocks, size, math.nan), limits)


def _sums(sums: ReplicaSums | None, kept: NDArray[np.bool_], within: slice) -> ArmSums:
    if sums is None:
        return ArmSums(np.zeros(kept.shape), np.zeros(kept.shape))
    above, below = sums.above[:, within], sums.below[:, within]
    known = np.isfinite(above) & np.isfinite(below) & kept
    return ArmSums(np.where(known, above, 0.0), np.where(known, below, 0.0))


def _find_harm(
    found: Mapping[str, tuple[SegmentPath, ...]], metrics: Sequence[SegmentMetric], requests: Sequence[Floats],
    hidden: NDArray[np.bool_],
) -> dict[str, NDArray[np.bool_]]:  # fmt: skip
    """Where each metric of each compared segment is proven to be beyond its margin, (C, B)."""
    count = len(requests[0])
    if not count or not metrics:
        return {}
    begun = ((np.cumsum(requests[0], axis=1) > 0.0) & (np.cumsum(requests[1], axis=1) > 0.0)).sum(axis=0)
    logs = np.concatenate([[path.beyond for path in found[each.plan.name]] for each in metrics])
    logs = np.where(hidden, 0.0, logs)
    harmful = discoveries(logs, np.maximum(begun, 1.0) * len(metrics), metrics[0].levels.harm)
    return {each.plan.name: harmful[index * count :][:count] for index, each in enumerate(metrics)}


def _apart(requests: Sequence[Floats]) -> float | None:
    """The total variation distance of the arms' requests by segment at the end, where it is more than chance.

    The requests of a conversation go to one arm together.
    """
    both = (requests[0].sum(axis=0) > 0.0) & (requests[1].sum(axis=0) > 0.0)
    v1, v2 = (each * both / CONVERSATION for each in requests)
    totals = [float(each.sum()) for each in (v1, v2)]
    if min(totals) <= 0.0 or len(v1) < 2:
        return None
    if float(np.max(log_evidence_of_difference(v1, v2))) < _SURE:
        return None
    shares = [each.sum(axis=1) / total for each, total in zip((v1, v2), totals, strict=True)]
    distance = float(0.5 * np.abs(shares[0] - shares[1]).sum())
    return distance if distance > _MATERIAL else None
