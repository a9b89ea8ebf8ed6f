"""Whether v2's caches reuse less of its prompts than v1's, and what is left of its harm without that.

Conversations and tenants that stay with a replica, or with an arm, move its latency by how much of their prompts is
reused more than by how long they are. Reuse may as well be what v2's own routing changed, so that effects without it
are a sensitivity: they may turn harm that is proven into an open question, and never anything into health.

The feature is the logarithm of the share of prompt tokens that were computed, 1 − reused ÷ eligible. What one unit of
it moves a metric by is learned in v1's past, beside the length of prompts, and frozen with the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.effects import BlockEffects, merged_sums
from servescope.cutover.folding import ArmFold
from servescope.cutover.mix import SURE_ERRORS, Prompts, PromptSlope, feature, fit, within_blocks
from servescope.cutover.sequences import Floats

_LEAST_TOKENS = 1.0
"""Prompt tokens of a block without which its share is not known."""
_LEAST_COMPUTED = 0.01
"""The share of prompt tokens that is computed at least: of a prompt its last token always is."""


@dataclass(frozen=True, slots=True, eq=False)
class Reuse:
    """The prompt tokens of one arm that were computed, and those that could be reused or computed: per pod and block,
    (P, B), or per block, (B,); 0 where they are not reported."""

    computed: Floats
    eligible: Floats

    def of(self, chosen: NDArray[np.bool_]) -> Reuse:
        """Those of a group of pods together, (P,)."""
        return Reuse(self.computed[chosen].sum(axis=0), self.eligible[chosen].sum(axis=0))

    def together(self) -> Reuse:
        """Those of all pods."""
        return Reuse(self.computed.sum(axis=0), self.eligible.sum(axis=0))

    def where(self, kept: NDArray[np.bool_]) -> Reuse:
        """Those of the pods and blocks that are kept."""
        return Reuse(self.computed * kept, self.eligible * kept)


def reuse_of(arm: ArmFold) -> Reuse | None:
    """The reuse of an arm's pods, (P, B); None where none reports it.

    More reused than there were tokens cannot be, and is not known.
    """
    eligible, reused = arm.traffic["eligible"], arm.traffic["reused"]
    known = (reused <= eligible) & (eligible > 0.0)
    if not known.any():
        return None
    return Reuse(np.where(known, eligible - reused, 0.0), np.where(known, eligible, 0.0))


def share_computed(reuse: Reuse) -> Floats:
    """The feature, NaN where there were no tokens."""
    known = reuse.eligible >= _LEAST_TOKENS
    shares = np.divide(reuse.computed, reuse.eligible, out=np.ones_like(reuse.eligible), where=known)
    return np.where(known, np.log(np.maximum(shares, _LEAST_COMPUTED)), np.nan)


@dataclass(frozen=True, slots=True)
class LearnedReuse:
    """The slope of a metric on the feature with its standard error, and the slope on prompts' length beside it.

    `cv2` is the variance of what reuse explains of one observation, as far as it does not last from block to block.
    """

    slope: float
    error: float
    prompts: float | None
    cv2: float


def learn_reuse(means: Floats, requests: Floats, reuse: Reuse, prompts: Prompts | None) -> LearnedReuse | None:
    """The slope of a metric on reuse, from v1's pods before the cutover; None where they show none.

    `means` are the logarithms of the metric's mean per pod and block, (P, B), NaN where it has none, and `requests` how
    many they are of; `prompts` are those that effects are adjusted by, None where they are not. Each block's own mean
    is taken out of all, as `learn_slope` does.
    """
    lengths = () if prompts is None else (feature(prompts),)
    found = within_blocks(requests, means, share_computed(reuse), *lengths)
    if found is None:
        return None
    weights, y, w, *known = found
    on_length = None
    if known:
        of_y, of_w = fit(weights, y, known[0]), fit(weights, w, known[0])
        if of_y is None or of_w is None:
            return None
        # The slope beside length is that of what length explains of neither (Frisch and Waugh 1933).
        on_length = of_y[0], of_w[0]
        y, w = y - on_length[0] * known[0], w - on_length[1] * known[0]
    fitted = fit(weights, y, w)
    if fitted is None or abs(fitted[0]) <= SURE_ERRORS * fitted[1]:
        return None
    slope, error = fitted
    pods, rows = int((weights.sum(axis=1) > 0.0).sum()), int((weights > 0.0).sum())
    cv2 = float((weights * np.square(slope * w)).sum()) / rows * pods / (pods - 1)
    return LearnedReuse(slope, error, None if on_length is None else on_length[0] - slope * on_length[1], cv2)


def beside(length: PromptSlope, slope: float | None) -> PromptSlope:
    """How length moves a metric beside reuse, where that was learned."""
    return length if slope is None else replace(length, slope=slope)


def without_reuse(blocks: BlockEffects, slope: float, v1: Reuse, v2: Reuse) -> BlockEffects:
    """The effects, ln(v2 ÷ v1), less what the arms' different reuse explains of them.

    A block that an arm reports no reuse for is left as it is: nothing explains it. The arms' reuse is per five-minute
    block, (B,).
    """
    first, second = (
        share_computed(Reuse(*(_merged(part, blocks) for part in (arm.computed, arm.eligible)))) for arm in (v1, v2)
    )
    return replace(blocks, effects=blocks.effects - slope * np.nan_to_num(second - first))


def _merged(values: Floats, blocks: BlockEffects) -> Floats:
    return merged_sums(values, blocks.last - blocks.merged + 1, blocks.last)


def explained(whole: BlockEffects, left: BlockEffects, cv2: float, requests: tuple[Floats, Floats]) -> BlockEffects:
    """What reuse explains of the effects: the whole less what is `left`; `requests` are each arm's per block, (B,)."""
    first, second = (1.0 / np.maximum(_merged(each, whole), 1.0) for each in requests)
    sampling = cv2 * (first + second)
    known = np.isfinite(whole.sampling)
    return replace(whole, effects=whole.effects - left.effects, sampling=np.where(known, sampling, np.inf))


def slope_variance(moved: BlockEffects, relative_error: float) -> Floats:
    """What the error of the slope, as a part of it, leaves in the mean effect as a variance, (K,), however long one
    waits; `moved` is what reuse explains."""
    weights = np.where(np.isfinite(moved.sampling), 1.0 / moved.sampling, 0.0)
    whole = np.cumsum(weights)
    mean = np.divide(np.cumsum(weights * moved.effects), whole, out=np.zeros_like(whole), where=whole > 0.0)
    return np.asarray(np.square(relative_error * mean))
