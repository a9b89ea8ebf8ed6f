"""What one replica of few proves alone, taken away from what its arm proves: harm as well as health.

Before a replica is known to differ from the others (`outliers`) it has already moved its arm. So what is proven has to
show, though by less, whichever replica is left out. Evidence is only ever taken away, so that it stays evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.paths import ArmSums, MetricPath
from servescope.cutover.sequences import Floats
from servescope.cutover.spans import Widened

FEW: Final = 6
"""Replicas of an arm up to which one of them moves it by more than noise does."""
_LEAST_EVIDENCE: Final = -0.5
"""The logarithm of the evidence of harm that is wanted of the others: that it is likelier than none."""


@dataclass(frozen=True, slots=True, eq=False)
class Remaining:
    """A path without what one replica proves alone, and which replica of v2 alone proves harm, −1 for none, (B,)."""

    path: MetricPath
    proving: NDArray[np.int64]


def without_one(
    v1: ArmSums, v2: ArmSums, path_of: Callable[[ArmSums, ArmSums], MetricPath], level: float, margin: float
) -> Remaining:
    """What is left of the path of two arms, which `path_of` gives, where any one replica of either is left out.

    `level` is the logarithm of the evidence from which harm may be proven, `margin` that of the margin. What is not
    proven anyway is not looked at.
    """
    path = path_of(v1, v2)
    remaining = Remaining(path, np.full(path.harm.shape, -1))
    if ((path.harm >= level) & (path.material >= level)).any():
        remaining = _without_harm(path, {pod: path_of(v1, rest) for pod, rest in _rests(v2)}, level)
    if path.bounded.any():
        rests = [path_of(rest, v2) for _, rest in _rests(v1)] + [path_of(v1, rest) for _, rest in _rests(v2)]
        remaining = replace(remaining, path=_without_health(remaining.path, rests, margin))
    return remaining


def _rests(arm: ArmSums) -> list[tuple[int, ArmSums]]:
    """An arm without each of its replicas, by their indices; none where it has one alone, or many."""
    counting = np.flatnonzero((arm.below > 0.0).any(axis=1)).tolist()
    every = np.arange(arm.below.shape[0])[:, None]
    return [(pod, arm.of(np.repeat(every != pod, arm.below.shape[1], axis=1))) for pod in counting] if (
        2 <= len(counting) <= FEW
    ) else []  # fmt: skip


def _without_harm(path: MetricPath, rests: dict[int, MetricPath], level: float) -> Remaining:
    if not rests:
        return Remaining(path, np.full(path.harm.shape, -1))
    pods, others = np.array(list(rests)), list(rests.values())

    def left(name: str) -> NDArray[np.float64]:
        whole, least = getattr(path, name), np.min(np.array([getattr(each, name) for each in others]), axis=0)
        return np.asarray(np.where(least >= _LEAST_EVIDENCE, whole, np.minimum(whole, least)))

    harm, material, beyond = left("harm"), left("material"), left("beyond")
    alone = (np.minimum(path.harm, path.material) >= level) & (np.minimum(harm, material) < level)
    weakest = np.argmin(np.array([np.minimum(each.harm, each.material) for each in others]), axis=0)
    low = np.where(alone, np.min(np.array([each.low for each in others]), axis=0), np.nan)
    kept = replace(_widened(path, low, np.full(low.shape, np.nan)), harm=harm, material=material, beyond=beyond)
    return Remaining(kept, np.where(alone, pods[weakest], -1))


def _without_health(path: MetricPath, rests: list[MetricPath], margin: float) -> MetricPath:
    if not rests:
        return path
    worst = np.max(np.array([each.cost for each in rests]), axis=0)
    refuted = path.bounded & ~(worst < margin)
    high = np.where(refuted, np.max(np.array([each.high for each in rests]), axis=0), np.nan)
    return replace(_widened(path, np.full(high.shape, np.nan), high), bounded=path.bounded & ~refuted)


def _widened(path: MetricPath, low: Floats, high: Floats) -> MetricPath:
    """A path with limits at least as wide, wherever they are not NaN: what is not claimed is not shown either."""
    if np.isnan(low).all() and np.isnan(high).all():
        return path
    compared = None if path.compared is None else Widened(path.compared, low, high)
    return replace(path, low=np.fmin(path.low, low), high=np.fmax(path.high, high), compared=compared)
