"""What the store says of a customer's deployments at one boundary of its interval, before any policy is applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import Series

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class TargetInterval:
    """One target at a boundary: its m native `series`, without the labels of its identity; each array is (m,).

    `values` are those of its last good scrape, NaN where a series has none. `gains` are what a counter counted since
    the boundary before, resets added, NaN where it is not known, as at its first sight. `counted` are the sums of gains
    since `since_ms`, one baseline for all counters of the target: when the lane saw it first, or when its process began
    if that was later. No restart changes them; when a histogram has other buckets, all begin anew. `ended` are the
    series that had a value at the boundary before and have none now; of a target that left, all. `series` is the same
    object from boundary to boundary while the target has the same ones, and of all targets that have the same ones.
    """

    identity: Identity
    series: tuple[Series, ...]
    values: Floats
    gains: Floats
    counted: Floats
    since_ms: int
    ended: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class IntervalSnapshot:
    """All of a customer's deployments at `time_ms`; `before_ms` is the boundary before, None for the first of a lane.

    The first has values but no gains: they begin there. `figures` are by deployment the derived figures over the
    `window_ms` before, by their key, absent ones left out.
    """

    time_ms: int
    before_ms: int | None
    targets: tuple[TargetInterval, ...]
    figures: Mapping[Deployment, Mapping[str, float]]
    window_ms: int


def join(first: IntervalSnapshot, second: IntervalSnapshot) -> IntervalSnapshot:
    """Two boundaries as one that follows on the one before both: where the second is, with what both
    gained and ended.
    """
    earlier = {target.identity: target for target in first.targets}
    targets = [
        _join(earlier.pop(target.identity), target) if target.identity in earlier else target
        for target in second.targets
    ]
    return replace(second, before_ms=first.before_ms, targets=(*targets, *earlier.values()))


def _join(first: TargetInterval, second: TargetInterval) -> TargetInterval:
    known = frozenset(second.series)
    gone = tuple(each for each in first.series if each not in known)
    series = (*second.series, *gone) if gone else second.series
    values, counted = (np.append(each, np.full(len(gone), np.nan)) for each in (second.values, second.counted))
    gains = np.append(second.gains, np.full(len(gone), np.nan))
    ended = np.append(second.ended, np.zeros(len(gone), dtype=bool))
    at = {each: place for place, each in enumerate(series)}
    places = [at[each] for each in first.series]
    both = np.stack((gains[places], first.gains))
    gains[places] = np.where(np.isnan(both).all(axis=0), np.nan, np.nansum(both, axis=0))
    ended[places] |= first.ended
    ended &= np.isnan(values)
    return replace(second, series=series, values=values, counted=counted, gains=gains, ended=ended)
