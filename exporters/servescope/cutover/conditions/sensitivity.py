"""Each metric without what the arms' different reuse and load explain of it: reported beside it, and never deciding
for v2.

Reuse may as well be what v2's own routing changed, and load what its size is, so that this may turn harm that is proven
into an open question, and never anything into health.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.judged import JudgedMetric
from servescope.cutover.comparison import paths
from servescope.cutover.comparison.freezing import least_below, prompts_of
from servescope.cutover.comparison.given import Given, beside, explain, given_of
from servescope.cutover.comparison.paths import ArmSums, Levels, MetricPath
from servescope.cutover.comparison.spans import EffectComparison
from servescope.cutover.conditions.conditions import ArmLoad
from servescope.cutover.conditions.replica_warmth import ArmWarmth
from servescope.cutover.evidence.folding import ArmArrays, ArmFold
from servescope.cutover.plan.plan import FrozenPlan, MetricPlan, Sensitivity
from servescope.cutover.statistics.effects import BlockEffects
from servescope.cutover.statistics.mix import PromptSlope
from servescope.cutover.statistics.sequences import Floats

_COVERED: Final = 0.8
"""The part of an arm's prompt tokens whose reuse has to be reported in a block for its share to be known."""
LASTING_BLOCKS: Final = 72
"""Six hours: conversations that are sent to either arm at random even out by then."""


@dataclass(frozen=True, slots=True, eq=False)
class StageGiven:
    """What the arms of a stage were given in its B blocks, (B,) each, and since it began.

    `reused` are the shares of prompt tokens that each arm reused, 0 … 1, of blocks that both report; `loads` its
    requests per replica and second; NaN before there were any.
    """

    v1: Given
    v2: Given
    reused: tuple[Floats, Floats]
    loads: tuple[Floats, Floats]


@dataclass(frozen=True, slots=True, eq=False)
class SensitivityPaths:
    """What is left of a metric without what is explained of it; `by_reuse` and `by_load` are the parts of what is
    explained, as costs, (B,).

    `proven` are the path of what is explained and that of what is left, with their evidence of harm; None where harm of
    the metric is never proven.
    """

    left: EffectComparison
    proven: tuple[MetricPath, MetricPath] | None
    by_reuse: Floats
    by_load: Floats


@dataclass(frozen=True, slots=True, eq=False)
class SensitivityTrack:
    """A metric without what reuse and load explain of it, after each block of its stage, (B,).

    `harmful` is where harm is proven without that as well; `differs` where what the arms were given is proven to make
    v2 worse, by more than groups of v1's own replicas differ, of a metric whose harm is proven at some time;
    `explained` where harm is proven, not without that, and it differs. `lasting` is where it has differed for
    `LASTING_BLOCKS` though both arms get prompts of the same sizes.
    """

    stage: StageGiven
    paths: SensitivityPaths
    harmful: NDArray[np.bool_]
    differs: NDArray[np.bool_]
    explained: NDArray[np.bool_]
    lasting: NDArray[np.bool_]

    def causes(self) -> NDArray[np.object_]:
        """What explains the larger part of the metric after each block, as a cause, (B,)."""
        return np.where(self.paths.by_load > self.paths.by_reuse, "explained by load", "explained by reuse")


def stage_given(
    frozen: FrozenPlan, folded: ArmArrays, within: slice, usable: NDArray[np.bool_],
    warmth: tuple[ArmWarmth, ArmWarmth], loads: tuple[ArmLoad, ArmLoad],
) -> StageGiven | None:  # fmt: skip
    """What both arms were given through a stage; None where the plan has no slope on it."""
    if not frozen.sensitivity:
        return None
    arms = [
        _arm_given(arm, within, usable, warm, load)
        for arm, warm, load in zip((folded.v1, folded.v2), warmth, loads, strict=True)
    ]
    both = (arms[0].eligible > 0.0) & (arms[1].eligible > 0.0)
    v1, v2 = (Given(each.computed * both, each.eligible * both, each.requests, each.replica_seconds) for each in arms)
    return StageGiven(
        v1, v2,
        (1.0 - _running(v1.computed, v1.eligible), 1.0 - _running(v2.computed, v2.eligible)),
        (_running(v1.requests, v1.replica_seconds), _running(v2.requests, v2.replica_seconds)),
    )  # fmt: skip


def _arm_given(arm: ArmFold, within: slice, usable: NDArray[np.bool_], warmth: ArmWarmth, load: ArmLoad) -> Given:
    """What an arm was given, (B,): the reuse of its warm replicas, in the blocks in which that of nearly all prompts is
    reported, and its load."""
    found = given_of(arm)
    # A router's process has no requests of its own to be warmed by.
    elsewhere = ~np.isfinite(arm.traffic["requests"]).any(axis=1, keepdims=True)
    known = usable
    prompts = prompts_of(arm)
    if prompts is not None:
        known = known & (found.eligible.sum(axis=0) >= _COVERED * prompts.tokens.sum(axis=0))[within]
    warm = warmth.usable | elsewhere
    computed, eligible = ((each * warm).sum(axis=0)[within] * known for each in (found.computed, found.eligible))
    loaded = np.isfinite(load.per_replica) & (load.per_replica > 0.0)
    replica_seconds = np.divide(load.requests, load.per_replica, out=np.zeros_like(load.requests), where=loaded)
    return Given(computed, eligible, load.requests * loaded, replica_seconds)


def _running(above: Floats, below: Floats) -> Floats:
    whole = np.cumsum(below)
    return np.asarray(np.divide(np.cumsum(above), whole, out=np.full(whole.shape, np.nan), where=whole > 0.0))


def sensitivity_paths(
    metric: MetricPlan, judged: JudgedMetric, found: Sensitivity, length: PromptSlope | None,
    sums: tuple[ArmSums, ArmSums], given: StageGiven, levels: Levels,
    *, proves: bool,
) -> SensitivityPaths:  # fmt: skip
    """What the arms' different reuse and load explain of a metric, and the rest of it; the evidence of harm of both
    only where harm of the metric is proven, `proves`."""
    v1, v2 = sums

    def blocks(slope: PromptSlope | None) -> BlockEffects:
        if judged.kind == "ratio":
            return paths.ratio_blocks(v1, v2, slope, least_below=least_below(judged))
        return paths.mean_blocks(found.left, v1, v2, slope)

    whole = blocks(length)
    other = whole if found.prompts is None else blocks(beside(length, found.prompts))
    sign = -1.0 if metric.better == "higher" else 1.0
    moved = explain(whole, other, found.reuse, found.load, given.v1, given.v2).worse(sign)
    unsure = moved.unsure(found.reuse, found.load)
    size = v1.below.shape[1]
    by_reuse, by_load = (
        paths.by_block(sign * moved.mean(each), moved.whole, size, 0.0) for each in (moved.reuse, moved.load)
    )  # fmt: skip
    left = paths.compare_effects(metric, found.left, moved.left(), v1, v2, levels, unsure=unsure)
    proven = None
    if proves:
        explained = moved.explained(found.moved.cv2, (v1.count, v2.count))
        caused = paths.compare_effects(metric, found.moved, explained, v1, v2, levels, unsure=unsure)
        of_caused = paths.path_of_effects(metric, caused, levels, proves=1)
        proven = of_caused, paths.path_of_effects(metric, left, levels, proves=2)
    return SensitivityPaths(left, proven, by_reuse, by_load)
