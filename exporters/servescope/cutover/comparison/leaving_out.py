"""What one replica of few proves alone, taken away from what its arm proves: harm as well as health.

Before a replica is known to differ from the others (`outliers`) it has already moved its arm. So what is proven has to
show, though by less, whichever replica is left out. Evidence is only ever taken away, so that it stays evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.comparison.paths import ArmSums, MetricPath
from servescope.cutover.comparison.spans import Widened
from servescope.cutover.statistics.sequences import Floats

FEW: Final = 6
"""Replicas of an arm up to which one of them moves it by more than noise does."""
_LEAST_LEFT: Final = 0.4
"""The part of an arm's requests that the others need to show anything: without it one replica is the arm."""
_ENOUGH: Final = 0.0
"""The logarithm of the evidence of harm that is wanted of the others: that harm is likelier than none."""


@dataclass(frozen=True, slots=True, eq=False)
class Remaining:
    """A path without what one replica proves alone, and which replica of v2 alone proves harm, −1 for none, (B,)."""

    path: MetricPath
    proving: NDArray[np.int64]


def without_one(
    v1: ArmSums, v2: ArmSums, path_of: Callable[[ArmSums, ArmSums, int], MetricPath], level: float, margin: float
) -> Remaining:
    """What is left of the path of two arms where any one replica of either is left out.

    `path_of` gives the path of two arms, with as much evidence as in `paths.path_of_effects`. `level` is the logarithm
    of the evidence from which harm may be proven, `margin` that of the margin. What is not proven anyway is not looked
    at.
    """
    path = path_of(v1, v2, 3)
    remaining = Remaining(path, np.full(path.harm.shape, -1))
    harmful, bounded = bool(((path.harm >= level) & (path.material >= level)).any()), bool(path.bounded.any())
    if not harmful and not bounded:
        return remaining
    proves = 3 if harmful else 0
    of_v2 = [_Rest(replica, counts, path_of(v1, rest, proves)) for replica, counts, rest in _rests(v2)]
    if harmful and of_v2:
        remaining = _without_harm(path, of_v2, level)
    if bounded:
        # Of health their limits are asked alone.
        of_v1 = [_Rest(replica, counts, path_of(rest, v2, 0)) for replica, counts, rest in _rests(v1)]
        remaining = replace(remaining, path=_without_health(remaining.path, [*of_v1, *of_v2], margin))
    return remaining


@dataclass(frozen=True, slots=True, eq=False)
class _Rest:
    """The path without one replica of an arm, and where it `counts`, (B,): where the arm has few, and others enough."""

    replica: int
    counts: NDArray[np.bool_]
    path: MetricPath

    def at(self, name: str, otherwise: float) -> Floats:
        """Values of its path where it counts and has any."""
        values = getattr(self.path, name)
        return np.asarray(np.where(self.counts & ~np.isnan(values), values, otherwise))


def _rests(arm: ArmSums) -> list[tuple[int, NDArray[np.bool_], ArmSums]]:
    """An arm without each of its replicas, by their indices and where that counts."""
    few = arm.replicas <= FEW
    if not few.any():
        return []
    served = np.cumsum(arm.below, axis=1) > 0.0
    # A slow replica has most of the time that both took, and no more of what they did.
    counts = few & served & np.any([_enough_left(each) for each in (arm.above, arm.below)], axis=0)
    every = np.arange(arm.below.shape[0])[:, None]
    return [
        (replica, counts[replica], arm.of(np.repeat(every != replica, few.size, axis=1)))
        for replica in np.flatnonzero(counts.any(axis=1)).tolist()
    ]


def _enough_left(values: Floats) -> NDArray[np.bool_]:
    """Where the others have enough of what was counted so far without each replica, (P, B)."""
    running = np.cumsum(values, axis=1)
    whole = running.sum(axis=0)
    return np.asarray(whole - running >= _LEAST_LEFT * whole)


def _without_harm(path: MetricPath, rests: Sequence[_Rest], level: float) -> Remaining:
    def left(name: str) -> Floats:
        whole, least = getattr(path, name), np.min([each.at(name, np.inf) for each in rests], axis=0)
        return np.asarray(np.where(least >= _ENOUGH, whole, np.minimum(whole, least)))

    harm, material, beyond = left("harm"), left("material"), left("beyond")
    alone = (np.minimum(path.harm, path.material) >= level) & (np.minimum(harm, material) < level)
    shown = np.array([np.minimum(each.at("harm", np.inf), each.at("material", np.inf)) for each in rests])
    low = np.where(alone, np.min([each.at("low", np.inf) for each in rests], axis=0), np.nan)
    kept = replace(_widened(path, low, np.full(low.shape, np.nan)), harm=harm, material=material, beyond=beyond)
    proving = np.where(alone, np.array([each.replica for each in rests])[np.argmin(shown, axis=0)], -1)
    return Remaining(kept, proving)


def _without_health(path: MetricPath, rests: Sequence[_Rest], margin: float) -> MetricPath:
    if not rests:
        return path
    refuted = path.bounded & (np.max([each.at("cost", -np.inf) for each in rests], axis=0) >= margin)
    high = np.where(refuted, np.max([each.at("high", -np.inf) for each in rests], axis=0), np.nan)
    return replace(_widened(path, np.full(high.shape, np.nan), high), bounded=path.bounded & ~refuted)


def _widened(path: MetricPath, low: Floats, high: Floats) -> MetricPath:
    """A path with limits at least as wide, wherever they are not NaN: what is not claimed is not shown either."""
    if np.isnan(low).all() and np.isnan(high).all():
        return path
    compared = None if path.compared is None else Widened(path.compared, low, high)
    return replace(path, low=np.fmin(path.low, low), high=np.fmax(path.high, high), compared=compared)
