"""What a stage shows of the arms' reuse of prompts, and of its metrics without what that explains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.judged import JudgedMetric
from servescope.cutover import paths
from servescope.cutover.effects import BlockEffects
from servescope.cutover.folding import ArmFold, Folded
from servescope.cutover.freezing import LEAST_DECODING, prompts_of
from servescope.cutover.mix import PromptSlope
from servescope.cutover.paths import ArmSums, Levels, MetricPath
from servescope.cutover.plan import FrozenPlan, MetricPlan, ReuseSlope
from servescope.cutover.reuse import Reuse, beside, explained, reuse_of, slope_variance, without_reuse
from servescope.cutover.sequences import Floats
from servescope.cutover.warming import ArmWarmth

_COVERED: Final = 0.8
"""The part of an arm's prompt tokens whose reuse has to be reported in a block for its share to be known."""
LASTING_BLOCKS: Final = 72
"""Six hours: conversations that are sent to either arm at random even out by then."""


@dataclass(frozen=True, slots=True, eq=False)
class StageReuse:
    """What the arms of a stage reused of their prompts in its B blocks: (B,) each, of both arms where both report it.

    `shares` are what each arm reused of its prompt tokens since the stage began, 0 … 1, NaN before there were any.
    """

    v1: Reuse
    v2: Reuse
    shares: tuple[Floats, Floats]


@dataclass(frozen=True, slots=True, eq=False)
class ReusePaths:
    """The path of what reuse explains of a metric, and that of the metric without it."""

    moved: MetricPath
    left: MetricPath


@dataclass(frozen=True, slots=True, eq=False)
class WithoutReuse:
    """A metric without what reuse explains of it, after each block of its stage, (B,).

    `harmful` is where harm is proven in spite of that; `differs` where reuse is proven to make v2 worse, by more than
    groups of v1's own replicas differ; `explained` where harm of the metric is proven, not without reuse, and it
    differs. `lasting` is where it has differed for `LASTING_BLOCKS` though both arms get prompts of the same sizes.
    """

    stage: StageReuse
    paths: ReusePaths
    harmful: NDArray[np.bool_]
    differs: NDArray[np.bool_]
    explained: NDArray[np.bool_]
    lasting: NDArray[np.bool_]


def judge_reuse(
    frozen: FrozenPlan, folded: Folded, within: slice, usable: NDArray[np.bool_],
    warmth: tuple[ArmWarmth, ArmWarmth],
) -> StageReuse | None:  # fmt: skip
    """The reuse of both arms through a stage; None where an arm does not report it, or the plan has no slope on it."""
    if not frozen.reuse:
        return None
    v1 = _known_reuse(folded.v1, within, usable, warmth[0])
    v2 = _known_reuse(folded.v2, within, usable, warmth[1])
    if v1 is None or v2 is None:
        return None
    both = (v1.eligible > 0.0) & (v2.eligible > 0.0)
    v1, v2 = v1.where(both), v2.where(both)
    return StageReuse(v1, v2, (_share_reused(v1), _share_reused(v2)))


def _known_reuse(arm: ArmFold, within: slice, usable: NDArray[np.bool_], warmth: ArmWarmth) -> Reuse | None:
    """The reuse of an arm's warm pods together, (B,), in the blocks in which that of nearly all prompts is reported."""
    found = reuse_of(arm)
    if found is None:
        return None
    # A router's process has no requests of its own to be warmed by.
    elsewhere = ~np.isfinite(arm.traffic["requests"]).any(axis=1, keepdims=True)
    known = usable
    prompts = prompts_of(arm)
    if prompts is not None:
        known = known & (found.eligible.sum(axis=0) >= _COVERED * prompts.tokens.sum(axis=0))[within]
    warm = found.where(warmth.usable | elsewhere).together()
    return Reuse(warm.computed[within], warm.eligible[within]).where(known)


def _share_reused(reuse: Reuse) -> Floats:
    computed, eligible = np.cumsum(reuse.computed), np.cumsum(reuse.eligible)
    shares = np.divide(computed, eligible, out=np.full(computed.shape, np.nan), where=eligible > 0.0)
    return np.asarray(1.0 - shares)


def paths_of_reuse(
    metric: MetricPlan, judged: JudgedMetric, found: ReuseSlope, length: PromptSlope | None,
    sums: tuple[ArmSums, ArmSums], stage: StageReuse, levels: Levels,
) -> ReusePaths:  # fmt: skip
    """What the arms' different reuse explains of a metric's mean, and the rest of it with its evidence of harm."""
    v1, v2 = sums

    def blocks(slope: PromptSlope | None) -> BlockEffects:
        if judged.kind == "ratio":
            return paths.ratio_blocks(v1, v2, slope, least_below=LEAST_DECODING)
        return paths.mean_blocks(found.left, v1, v2, slope)

    left = blocks(None if length is None else beside(length, found.prompts))
    left = without_reuse(left, found.slope, stage.v1, stage.v2)
    requests = v1.below.sum(axis=0), v2.below.sum(axis=0)
    moved = explained(blocks(length), left, found.moved.cv2, requests)
    unsure = slope_variance(moved, found.error / found.slope)
    return ReusePaths(
        paths.path_of_effects(metric, found.moved, moved, v1, v2, levels, unsure=unsure),
        paths.path_of_effects(metric, found.left, left, v1, v2, levels, unsure=unsure),
    )
