"""The verdict on one metric after each block of a stage: what its path proves, and what keeps that from counting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.judged import JudgedMetric
from servescope.cutover.comparison.comparability import Comparability
from servescope.cutover.comparison.outliers import Alone
from servescope.cutover.comparison.paths import ArmSums, MetricPath
from servescope.cutover.comparison.spans import Span, harmful_spans
from servescope.cutover.conditions.conditions import Conditions, MissingEvidence
from servescope.cutover.conditions.sensitivity import SensitivityTrack
from servescope.cutover.evidence.coverage import HOUR_BLOCKS, MetricCoverage, trailing_sum
from servescope.cutover.judgement import SEVERE, Cause, Verdict
from servescope.cutover.plan.plan import MetricPlan
from servescope.cutover.statistics.sequences import Floats

CODES: Final[tuple[Verdict, ...]] = ("HEALTHY", "DEGRADED", "INCONCLUSIVE", "NO DATA")
HEALTHY, DEGRADED, INCONCLUSIVE, NO_DATA = range(4)

LEAST_BLOCKS: Final = 3
"""Blocks that both arms were compared in before health is claimed."""

Shown = tuple[Span | None, tuple[Span, ...]]
"""What is shown of the compared blocks, None of a band, and the spans between which the effect has changed."""


@dataclass(frozen=True, slots=True, eq=False)
class MetricTrack:
    """One metric through one stage of B blocks; `codes`, (B,), index `CODES`, `causes` are why.

    `path` is None of a band and where nothing can be compared; `alone` is which replica of v2 is worse than the others.
    `v1` and `v2` are what the arms counted, over all blocks
    that are not excluded, and `value`, (B,), what a band is judged by, and of others the cost of gross harm
    while v2 warms up. The first block begins at `begins_ms`.
    `everything` are v1's and v2's sums above and below the line over all replicas, warm or not.
    `coverage` is that of v1 and of v2, of a band of v2 alone.
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
    sensitivity: SensitivityTrack | None = None
    begins_ms: int = 0
    everything: tuple[tuple[float, float], tuple[float, float]] | None = None
    coverage: tuple[MetricCoverage, ...] = ()
    alone: Alone | None = None

    @property
    def is_judged(self) -> bool:
        """Whether it may decide anything: no figure of a source that was never run does."""
        return self.comparability is None or self.comparability.finding != "never run"

    @property
    def gates(self) -> bool:
        """Whether a verdict is of it."""
        return self.plan.required and self.is_judged

    def shown(self, block: int) -> Shown:
        """The span whose estimate shows why the metric has its verdict after a block, with all of them where the effect
        has changed: the latest that harms of DEGRADED, else all that was compared; None of a band."""
        span, parts = self.harmful(block) if self.codes[block] == DEGRADED else self.within(block)
        if span is None:
            return span, parts
        claimed = self._claimed(span, self.causes[block])
        return claimed, tuple(claimed if each is span else each for each in parts)

    def _claimed(self, span: Span, cause: Cause) -> Span:
        """A span with limits that claim no more than the verdict does, which asks for more: of single replicas, and of
        all metrics together."""
        floor = math.log1p(self.plan.floor or 0.0)
        if cause in ("probable", "proven cost"):
            return replace(span, low=min(span.low, self.margin))
        if cause in ("needs data", "pods too few"):
            return replace(span, low=min(span.low, floor), high=max(span.high, self.margin))
        if cause in ("not worse", "better") and self.judged.kind == "events" and span.cost < self.margin:
            # What was proven once still is.
            return replace(span, high=min(span.high, self.margin))
        return span

    def within(self, block: int) -> Shown:
        """All that was compared up to a block, for health where there is any, with its spans."""
        if self.path is None or self.path.compared is None:
            return None, ()
        compared = self.path.compared
        if self.path.harmed is not None and math.isnan(compared.whole(block + 1).cost):
            compared = self.path.harmed
        return compared.whole(block + 1), compared.parts(block + 1)

    def harmful(self, block: int) -> Shown:
        """The latest span up to a block that harms, of the blocks that may prove harm, with all spans.

        Of harm beyond the margin it is one that is beyond it, if any is.
        """
        if self.path is None or self.path.compared is None:
            return None, ()
        compared = self.path.harmed or self.path.compared
        floor = math.log1p(self.plan.floor or 0.0)
        bounds = (self.margin, floor) if self.causes[block] in SEVERE else (floor,)
        return harmful_spans(compared, block + 1, bounds)

    @property
    def margin(self) -> float:
        """The margin as a cost."""
        return math.log1p(self.plan.margin or 0.0)


def band_value(v2: ArmSums) -> Floats:
    """The ratio of sums over the last hour, NaN where there is none."""
    above, below = (trailing_sum(each) for each in (v2.total, v2.count))
    return np.asarray(np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0.0))


def track_band(
    plan: MetricPlan,
    judged: JudgedMetric,
    v2: ArmSums,
    value: Floats,
    conditions: Conditions,
    found: Comparability | None,
    covered: MetricCoverage,
) -> MetricTrack:
    """The track of a level, `value`, that has to lie within a band."""
    inside = np.ones(value.shape, dtype=np.bool_)
    if plan.low is not None:
        inside &= value >= plan.low
    if plan.high is not None:
        inside &= value <= plan.high
    seen = np.cumsum(v2.count > 0.0) >= HOUR_BLOCKS
    codes = np.where(seen, np.where(inside, HEALTHY, DEGRADED), INCONCLUSIVE)
    causes = np.where(seen, np.where(inside, "in band", "out of band"), "needs data").astype(object)
    absent = np.isnan(value)
    if found is not None and found.finding == "absent":
        absent = np.ones(value.shape, dtype=np.bool_)
    _set(codes, causes, covered.short(), NO_DATA, "uncovered")
    _set(codes, causes, absent, NO_DATA, "metric absent")
    _set_each(codes, causes, conditions.no_data, NO_DATA)
    _leave_unjudged(codes, causes, found)
    return MetricTrack(plan, judged, None, v2, v2, found, codes, causes, value, coverage=(covered,))


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
    missing: MissingEvidence,
    found: Comparability | None,
    gross: Floats,
    sensitivity: SensitivityTrack | None = None,
    begins_ms: int = 0,
    everything: tuple[tuple[float, float], tuple[float, float]] | None = None,
    alone: Alone | None = None,
) -> MetricTrack:
    """The track of a metric that is compared.

    `harmful` is where harm is proven, over all metrics together, and `gross` the cost of gross harm while v2 warms up,
    NaN where there is none. Harm that the `sensitivity` explains is an open question, and never health.
    """
    size = path.harm.size
    margin = math.log1p(plan.margin or 0.0)
    compared = np.cumsum((v1.count > 0.0) & (v2.count > 0.0))
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
    # Events are compared whatever else the arms differ in; of another share they prove no health.
    held = conditions.hold
    if judged.kind == "events":
        held = np.where((held == "share") & (codes == INCONCLUSIVE), held, "")
    _set_each(codes, causes, held, INCONCLUSIVE)
    _set(codes, causes, conditions.no_control, INCONCLUSIVE, "no control")
    _set_each(codes, causes, missing.uncovered, NO_DATA)
    _set(codes, causes, harmful & ~within, DEGRADED, "probable")
    # What was thrown away could have chosen either; of so few requests it could not make harm beyond the margin.
    _set(codes, causes, missing.rejecting & np.isin(codes, (HEALTHY, DEGRADED)), INCONCLUSIVE, "rejected")
    _set(codes, causes, harmful & ~within & beyond, DEGRADED, "beyond margin")
    if sensitivity is not None:
        explained = harmful & ~within & sensitivity.explained
        _set_each(codes, causes, np.where(explained, sensitivity.causes(), ""), INCONCLUSIVE)
    _set(codes, causes, np.isfinite(gross), DEGRADED, "gross harm while warming")
    if found is not None and found.finding == "incomparable":
        _set(codes, causes, np.ones(size, dtype=np.bool_), INCONCLUSIVE, "incomparable")
    _set_each(codes, causes, missing.absent, NO_DATA)
    if found is not None and found.finding == "absent":
        _set(codes, causes, np.ones(size, dtype=np.bool_), NO_DATA, "metric absent")
    _set_each(codes, causes, conditions.no_data, NO_DATA)
    if path.flood is not None:
        _set(codes, causes, path.flood & harmful & beyond, DEGRADED, "objective")
    _leave_unjudged(codes, causes, found)
    return MetricTrack(
        plan, judged, path, v1, v2, found, codes, causes, gross, sensitivity=sensitivity, begins_ms=begins_ms,
        everything=everything, coverage=missing.coverage, alone=alone,
    )  # fmt: skip


def _leave_unjudged(codes: NDArray[np.int64], causes: NDArray[np.object_], found: Comparability | None) -> None:
    if found is not None and found.finding == "never run":
        _set(codes, causes, np.ones(codes.size, dtype=np.bool_), INCONCLUSIVE, "never run")


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
    """The verdict over all metrics after each block, (B,): harm first, then missing data, then doubt.

    It is that of the required ones that are judged, and doubt where it were HEALTHY and harm of a guard is proven, or
    where none of them is judged.
    """
    codes = np.full(size, HEALTHY)
    for track in tracks.values():
        if track.plan.role == "guard":
            codes[track.codes == DEGRADED] = INCONCLUSIVE
    required = [track.codes for track in tracks.values() if track.gates]
    if not required:
        codes[:] = INCONCLUSIVE
    for code in (INCONCLUSIVE, NO_DATA, DEGRADED):
        for each in required:
            codes[each == code] = code
    return codes
