"""What v2 did beside v1 over the whole run, all stages together: reported beside each stage's own, and never gating.

A stage is judged by its own blocks, so that a late regression is not diluted; a change record also wants one figure for
all of it (4.11). It is one confidence sequence over the blocks of all stages, at a level of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from servescope.cutover import clusters, counts, paths
from servescope.cutover.calibration import online_factor
from servescope.cutover.effects import BlockEffects, pod_variance
from servescope.cutover.folding import PodSums
from servescope.cutover.freezing import LEAST_DECODING
from servescope.cutover.judgement import OverallRatio
from servescope.cutover.mix import Prompts
from servescope.cutover.paths import ArmSums
from servescope.cutover.plan import FrozenPlan, Noise
from servescope.cutover.sequences import accumulate, half_width, lasting_information
from servescope.cutover.staging import StageTrack, kept_sums

_ALPHA: Final = 0.025
"""Of each side of an interval."""
_FURTHEST: Final = 6.5
"""The logarithm of the largest ratio of events that limits are looked for at; its negative is that of the smallest."""
_STEPS: Final = 16
_HALVINGS: Final = 6
"""A limit is looked for in so many steps, the last of which is halved so often: 0.1 % is left of the span."""

_Limits = tuple[float, float, float]


def overall_ratio(frozen: FrozenPlan, stages: Sequence[StageTrack], name: str) -> OverallRatio | None:
    """The ratio of a metric over all stages with its interval, which holds at every look; None where there is none.

    It is of the blocks that each stage is compared in: without excluded spans, cold replicas and unmatched load.
    """
    latest = stages[-1].tracks[name]
    if latest.path is None:
        return None
    v1, v2 = (_over_stages(stages, name, arm) for arm in (0, 1))
    noise, slope = frozen.noise[name], frozen.slopes.get(name)
    if latest.judged.kind == "events":
        limits = _limits_of_events(noise, v1, v2)
    elif latest.judged.kind == "ratio":
        limits = _limits(noise, paths.ratio_blocks(v1, v2, slope, least_below=LEAST_DECODING), v1, v2)
    else:
        limits = _limits(noise, paths.mean_blocks(noise, v1, v2, slope), v1, v2)
    if limits is None:
        return None
    ratio, low, high = (math.exp(each) for each in limits)
    return OverallRatio(ratio, low, high if math.isfinite(high) else None)


def _over_stages(stages: Sequence[StageTrack], name: str, arm: int) -> ArmSums:
    """What an arm counted in the compared blocks of every stage; events count whatever the load."""
    parts = []
    for stage in stages:
        track = stage.tracks[name]
        sums = (track.v1, track.v2)[arm]
        parts.append(sums if track.judged.kind == "events" else kept_sums(sums, stage.relation.free))
    if len(parts) == 1:
        return parts[0]
    prompts = [part.prompts for part in parts if part.prompts is not None]
    return ArmSums(
        np.concatenate([part.above for part in parts], axis=1),
        np.concatenate([part.below for part in parts], axis=1),
        prompts=Prompts(
            np.concatenate([each.tokens for each in prompts], axis=1),
            np.concatenate([each.requests for each in prompts], axis=1),
        ) if prompts else None,
    )  # fmt: skip


def _limits(noise: Noise, blocks: BlockEffects, v1: ArmSums, v2: ArmSums) -> _Limits | None:
    """The latest estimate of ln(v2 ÷ v1) with its limits."""
    known = np.flatnonzero(np.isfinite(blocks.sampling))
    if not known.size:
        return None
    pods = v1.pods()[blocks.last], v2.pods()[blocks.last]
    variances = blocks.sampling
    if noise.calibrated:
        variances = paths.block_variances(blocks, noise, 1.0 / pods[0] + 1.0 / pods[1])
    path = accumulate(blocks.effects, variances)
    estimate, information = float(path.estimate[-1]), path.information[-1:]
    if not noise.calibrated:
        information = information / online_factor(blocks, known, estimate)
    lasting = lasting_information(information, pod_variance(noise.pod_tau2, pods[0][-1], pods[1][-1]))
    width = float(half_width(lasting, _ALPHA, noise.information_wanted)[-1])
    return (estimate, estimate - width, estimate + width) if math.isfinite(width) else None


def _limits_of_events(noise: Noise, v1: ArmSums, v2: ArmSums) -> _Limits | None:
    """The ratio of the arms' rates with the limits that evidence does not exclude, as logarithms."""
    found = clusters.cluster(PodSums(v1.above, v1.below), PodSums(v2.above, v2.below), noise.dispersion)
    arms = found.events
    both = np.isfinite(arms.share())
    # Of the latest evidence, blocks without events are no part.
    some = both & (arms.v1_events + arms.v2_events > 0.0)
    dispersion, clustered = found.dispersion[some], found.clustered[some]
    arms = counts.EventCounts(
        arms.v1_events[some], arms.v1_requests[some], arms.v2_events[some], arms.v2_requests[some]
    )  # fmt: skip
    raw = (each.sum(axis=0)[both] for arm in (v1, v2) for each in (arm.above, arm.below))
    estimate = counts.most_likely(counts.EventCounts(*raw))
    if not math.isfinite(estimate):
        return None
    needed = -math.log(_ALPHA)

    def excluded(multiples: Mapping[float, float]) -> Callable[[float], bool]:
        return lambda bound: (
            counts.latest_log_evidence(arms, math.exp(bound), multiples, dispersion, clustered) >= needed
        )

    return (
        estimate,
        _furthest(excluded(counts.WORSE_RATIOS), -_FURTHEST, estimate),
        _furthest(excluded(counts.BETTER_RATIOS), _FURTHEST, estimate),
    )


def _furthest(excluded: Callable[[float], bool], outside: float, estimate: float) -> float:
    """The nearest bound to the estimate that is excluded, rounded outwards; infinite where none up to `outside` is."""
    # Bounds that are far off explain as little as any other: what they do not exclude may be excluded nearer.
    near = estimate
    for step in range(1, _STEPS + 1):
        far = estimate + (outside - estimate) * step / _STEPS
        if excluded(far):
            break
        near = far
    else:
        return math.copysign(math.inf, outside)
    for _ in range(_HALVINGS):
        middle = 0.5 * (near + far)
        near, far = (near, middle) if excluded(middle) else (middle, far)
    return far
