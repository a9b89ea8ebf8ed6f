"""The verdict on one metric after each block of a stage: what its path proves, and what keeps that from counting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.judged import JudgedMetric
from servescope.cutover.comparability import Comparability
from servescope.cutover.conditions import Conditions
from servescope.cutover.coverage import HOUR_BLOCKS, trailing_sum
from servescope.cutover.judgement import Cause, Verdict
from servescope.cutover.outliers import Alone
from servescope.cutover.paths import ArmSums, MetricPath
from servescope.cutover.plan import MetricPlan
from servescope.cutover.sequences import Floats

CODES: Final[tuple[Verdict, ...]] = ("HEALTHY", "DEGRADED", "INCONCLUSIVE", "NO DATA")
HEALTHY, DEGRADED, INCONCLUSIVE, NO_DATA = range(4)

LEAST_BLOCKS: Final = 3
"""Blocks that both arms were compared in before health is claimed."""
BURST_SHARE: Final = 0.05
BURST_EVENTS: Final = 20.0
"""Harm without a baseline: more than this share of a block's requests, and at least so many of them (5.1)."""


@dataclass(frozen=True, slots=True, eq=False)
class MetricTrack:
    """One metric through one stage of B blocks; `codes`, (B,), index `CODES`, `causes` are why.

    `path` is None of a band and where nothing can be compared; `alone` is which replica of v2 is worse than the others.
    `v1` and `v2` are what the arms counted, over all blocks that are not excluded, and `value`, (B,), what a band is
    judged by.
    """

    plan: MetricPlan
    judged: JudgedMetric
    path: MetricPath | None
    v1: ArmSums
    v2: ArmSums
    comparability: Comparability | None
    codes: NDArray[np.int64]
    causes: NDArray[np.object_]
    value: Floats
    notes: tuple[str, ...] = field(default=())
    alone: Alone | None = None

    @property
    def margin(self) -> float:
        """The margin as a cost."""
        return math.log1p(self.plan.margin or 0.0)


def track_band(
    plan: MetricPlan, judged: JudgedMetric, v2: ArmSums, conditions: Conditions, found: Comparability | None
) -> MetricTrack:
    """The track of a level that has to lie within a band: the ratio of sums over the last hour."""
    above, below = (trailing_sum(each.sum(axis=0)) for each in (v2.above, v2.below))
    value = np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0.0)
    inside = np.ones(value.shape, dtype=np.bool_)
    if plan.low is not None:
        inside &= value >= plan.low
    if plan.high is not None:
        inside &= value <= plan.high
    seen = np.cumsum(v2.below.sum(axis=0) > 0.0) >= HOUR_BLOCKS
    codes = np.where(seen, np.where(inside, HEALTHY, DEGRADED), INCONCLUSIVE)
    causes = np.where(seen, np.where(inside, "in band", "out of band"), "needs data").astype(object)
    absent = np.isnan(value)
    if found is not None and found.finding == "absent":
        absent = np.ones(value.shape, dtype=np.bool_)
    _set(codes, causes, absent, NO_DATA, "metric absent")
    _set_each(codes, causes, conditions.no_data, NO_DATA)
    return MetricTrack(plan, judged, None, v2, v2, found, codes, causes, value)


def track_metric(
    plan: MetricPlan,
    judged: JudgedMetric,
    path: MetricPath,
    v1: ArmSums,
    v2: ArmSums,
    *,
    harmful: NDArray[np.bool_],
    beyond: NDArray[np.bool_],
    conditions: Conditions,
    absent: NDArray[np.object_],
    found: Comparability | None,
    alone: Alone | None = None,
) -> MetricTrack:
    """The track of a metric that is compared; `harmful` is where harm is proven, over all metrics together."""
    size = path.harm.size
    margin = math.log1p(plan.margin or 0.0)
    compared = np.cumsum((v1.below.sum(axis=0) > 0.0) & (v2.below.sum(axis=0) > 0.0))
    bounded = path.bounded & (compared >= LEAST_BLOCKS)
    # A late regression is harm, though the whole stage is still within the margin.
    within = bounded & ~beyond & ~(path.recent >= margin)

    codes = np.full(size, INCONCLUSIVE)
    causes = np.full(size, "needs data", dtype=object)
    _set(codes, causes, np.full(size, not path.calibrated) & (path.information <= 0.0), INCONCLUSIVE, "uncalibrated")
    _set(codes, causes, bounded, HEALTHY, "not worse")
    _set(codes, causes, bounded & (path.high < 0.0), HEALTHY, "better")
    _set(codes, causes, bounded & harmful & within, HEALTHY, "proven cost")
    if alone is not None:
        _set(codes, causes, alone.replica >= 0, INCONCLUSIVE, "one replica")
    if judged.kind != "events":
        _set_each(codes, causes, conditions.hold, INCONCLUSIVE)
    _set(codes, causes, conditions.no_control, INCONCLUSIVE, "no control")
    _set(codes, causes, harmful & ~within, DEGRADED, "probable")
    _set(codes, causes, harmful & ~within & beyond, DEGRADED, "beyond margin")
    if found is not None and found.finding == "incomparable":
        _set(codes, causes, np.ones(size, dtype=np.bool_), INCONCLUSIVE, "incomparable")
    _set_each(codes, causes, absent, NO_DATA)
    if found is not None and found.finding == "absent":
        _set(codes, causes, np.ones(size, dtype=np.bool_), NO_DATA, "metric absent")
    _set_each(codes, causes, conditions.no_data, NO_DATA)
    if judged.kind == "events":
        _set(codes, causes, burst(v2), DEGRADED, "objective")
    return MetricTrack(plan, judged, path, v1, v2, found, codes, causes, np.full(size, np.nan), alone=alone)


def burst(v2: ArmSums) -> NDArray[np.bool_]:
    """In which blocks events of v2 are harm whatever v1 does, (B,)."""
    events, requests = v2.above.sum(axis=0), v2.below.sum(axis=0)
    return np.asarray((events >= BURST_EVENTS) & (events > BURST_SHARE * requests))


def _set(
    codes: NDArray[np.int64], causes: NDArray[np.object_], where: NDArray[np.bool_], code: int, cause: Cause
) -> None:
    codes[where] = code
    causes[where] = cause


def _set_each(codes: NDArray[np.int64], causes: NDArray[np.object_], found: NDArray[np.object_], code: int) -> None:
    where = found != ""
    codes[where] = code
    causes[where] = found[where]


def combine(tracks: Mapping[str, MetricTrack], size: int) -> NDArray[np.int64]:
    """The verdict over all required metrics after each block, (B,): harm first, then missing data, then doubt."""
    codes = np.full(size, HEALTHY)
    required = [track.codes for track in tracks.values() if track.plan.required]
    for code in (INCONCLUSIVE, NO_DATA, DEGRADED):
        for each in required:
            codes[each == code] = code
    return codes
