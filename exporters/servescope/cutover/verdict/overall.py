"""What v2 did beside v1 over the whole run, all stages together: reported beside each stage's own, and never gating.

A stage is judged by its own blocks, so that a late regression is not diluted; a change record also wants one figure for
all of it. It is one confidence sequence over the blocks of all stages, at a level of its own
(docs/judge-method.md#stages).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.comparison import paths
from servescope.cutover.comparison.calibration import online_factor
from servescope.cutover.comparison.freezing import least_below
from servescope.cutover.comparison.spans import EventComparison
from servescope.cutover.judgement import OverallRatio
from servescope.cutover.plan.plan import FrozenPlan, Noise
from servescope.cutover.statistics import counts
from servescope.cutover.statistics.counts import EventCounts
from servescope.cutover.statistics.effects import BlockEffects, replica_variance
from servescope.cutover.statistics.sequences import Floats, accumulate, half_width, lasting_information
from servescope.cutover.verdict.stage import StageTrack, kept_sums

_ALPHA: Final = 0.025
"""Of each side of an interval."""
_FURTHEST: Final = 6.5
"""The logarithm of the largest ratio of events that limits are looked for at; its negative is that of the smallest."""
_STEPS: Final = 16
_HALVINGS: Final = 6
"""A limit is looked for in so many steps, the last of which is halved so often: 0.1 % is left of the span."""

_Limits = tuple[float, float, float]
_T = TypeVar("_T", BlockEffects, EventCounts)


@dataclass(frozen=True, slots=True, eq=False)
class Happened:
    """The events of both arms in B blocks, and as `incidents` with clusters counted once.

    `dispersion` and `clustered` are as in `clusters.Clustered`, (B,).
    """

    events: EventCounts
    incidents: EventCounts
    dispersion: Floats
    clustered: Floats


@dataclass(frozen=True, slots=True, eq=False)
class StageEffects:
    """What a section of a stage with `size` blocks of its own adds to the overall ratio of a metric.

    The effects of its K merged blocks, with the `replicas` of both arms up to each, (2, K); of events what `happened`.
    """

    size: int
    happened: Happened | None
    blocks: BlockEffects | None
    replicas: Floats


def stage_effects(frozen: FrozenPlan, stage: StageTrack, name: str) -> StageEffects | None:
    """Those of the blocks that a stage is compared in: without excluded spans, cold replicas and unmatched load.

    None of a metric that is not compared. Events count whatever the load.
    """
    track = stage.tracks[name]
    if track.path is None:
        return None
    noise, slope, size = frozen.noise[name], frozen.slopes.get(name), stage.blocks.size - stage.own
    compared = track.path.harmed or track.path.compared
    if isinstance(compared, EventComparison):
        found, own = compared.clustered, slice(stage.own, None)
        happened = Happened(
            _chosen(compared.arms, own), _chosen(found.events, own), found.dispersion[own], found.clustered[own]
        )
        return StageEffects(size, happened, None, np.zeros((2, 0)))
    v1, v2 = (kept_sums(sums, stage.relation.free) for sums in (track.v1, track.v2))
    if track.judged.kind == "ratio":
        blocks = paths.ratio_blocks(
            v1, v2, slope, least_below=least_below(track.judged), steady=bool(track.judged.made_of)
        )
    else:
        blocks = paths.mean_blocks(noise, v1, v2, slope)
    blocks = _chosen(blocks, blocks.last - blocks.merged >= stage.own - 1)
    replicas = np.array([v1.replicas[blocks.last], v2.replicas[blocks.last]])
    return StageEffects(size, None, replace(blocks, last=blocks.last - stage.own), replicas)


def overall_ratio(frozen: FrozenPlan, stages: Sequence[StageEffects | None], name: str) -> OverallRatio | None:
    """The ratio of a metric over all stages with its interval, which holds at every look; None where there is none."""
    found = [each for each in stages if each is not None]
    if not found:
        return None
    noise = frozen.noise[name]
    happened = [each.happened for each in found if each.happened is not None]
    limits = _limits_of_events(happened) if happened else _limits(noise, *_run_on(found))
    if limits is None:
        return None
    ratio, low, high = (math.exp(each) for each in limits)
    return OverallRatio(ratio, low, high if math.isfinite(high) else None)


def _run_on(stages: Sequence[StageEffects]) -> tuple[BlockEffects, Floats]:
    """The effects of all stages one after another, with the replicas."""
    ends = np.cumsum([0, *(each.size for each in stages)])
    blocks = [
        replace(each.blocks, last=each.blocks.last + begin)
        for each, begin in zip(stages, ends, strict=False)
        if each.blocks is not None
    ]
    return _joined(blocks), np.concatenate([each.replicas for each in stages], axis=1)


def _joined(parts: Sequence[_T]) -> _T:
    """Tables of arrays one after another."""
    first = parts[0]
    if len(parts) == 1:
        return first
    names = [each.name for each in fields(first)]
    return type(first)(*(np.concatenate([getattr(each, name) for each in parts]) for name in names))


def _chosen(table: _T, rows: slice | NDArray[np.bool_]) -> _T:
    return type(table)(*(getattr(table, each.name)[rows] for each in fields(table)))


def _limits(noise: Noise, blocks: BlockEffects, replicas: Floats) -> _Limits | None:
    """The latest estimate of ln(v2 ÷ v1) with its limits."""
    known = np.flatnonzero(np.isfinite(blocks.sampling))
    if not known.size:
        return None
    variances = blocks.sampling
    if noise.calibrated:
        variances = paths.block_variances(blocks, noise, 1.0 / replicas[0] + 1.0 / replicas[1])
    path = accumulate(blocks.effects, variances)
    estimate, information = float(path.estimate[-1]), path.information[-1:]
    if not noise.calibrated:
        information = information / online_factor(blocks, known, estimate)
    lasting = lasting_information(information, replica_variance(noise.pod_tau2, replicas[0][-1], replicas[1][-1]))
    width = float(half_width(lasting, _ALPHA, noise.information_wanted)[-1])
    return (estimate, estimate - width, estimate + width) if math.isfinite(width) else None


def _limits_of_events(stages: Sequence[Happened]) -> _Limits | None:
    """The ratio of the arms' rates with the limits that evidence does not exclude, as logarithms."""
    events = _joined([each.incidents for each in stages])
    # Of the latest evidence, blocks without events are no part.
    some = np.isfinite(events.share()) & (events.v1_events + events.v2_events > 0.0)
    arms = _chosen(events, some)
    dispersion, clustered = (
        np.concatenate([getattr(each, name) for each in stages])[some] for name in ("dispersion", "clustered")
    )
    estimate = counts.most_likely(_joined([each.events for each in stages]))
    if not math.isfinite(estimate):
        return None
    needed = -math.log(_ALPHA)

    def excluded(multiples: Mapping[float, float]) -> Callable[[float], bool]:
        return lambda bound: (
            counts.latest_log_evidence(arms, math.exp(bound), multiples, dispersion, clustered) >= needed
        )

    low = _furthest(excluded(counts.WORSE_RATIOS), -_FURTHEST, estimate)
    high = _furthest(excluded(counts.BETTER_RATIOS), _FURTHEST, estimate)
    # Each is found to a tolerance, by which it may end short of the estimate.
    return estimate, min(low, estimate), max(high, estimate)


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
