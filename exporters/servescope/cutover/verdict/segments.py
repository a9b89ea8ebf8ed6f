"""Segments in a stage: how they are compared in it, and what is said of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from servescope.contract.identity import shorten
from servescope.contract.judged import JUDGED
from servescope.cutover.comparison.outliers import ArmOutliers
from servescope.cutover.comparison.paths import Levels
from servescope.cutover.comparison.segments import MOST_JUDGED, SegmentMetric, Segments, compare_segments
from servescope.cutover.conditions.conditions import StageContext
from servescope.cutover.evidence.folding import judged_metric
from servescope.cutover.judgement import SegmentFinding, SegmentJudgement, SegmentMetricJudgement
from servescope.cutover.plan.plan import MetricPlan
from servescope.cutover.verdict.tracks import MetricTrack

_MOST_NAMED: Final = 3


def stage_segments(
    context: StageContext, tracks: Mapping[str, MetricTrack], alone: tuple[ArmOutliers, ArmOutliers],
    levels: Callable[[MetricPlan], Levels],
) -> Segments | None:  # fmt: skip
    """The segments of a stage by its required metrics, as far as both arms report the same; None where none is there.

    As in a metric itself, replicas that warm up or differ from all others are left out, and of what takes time blocks
    whose load explains a difference.
    """
    folded, frozen, within = context.folded, context.frozen, context.within
    if not folded.v1.segments and not folded.v2.segments:
        return None
    every = np.ones(context.usable.size, dtype=np.bool_)
    warm = [each.usable[:, within] & other.kept for each, other in zip(context.warmth, alone, strict=True)]
    metrics = []
    for metric in frozen.plan.metrics:
        judged, found = judged_metric(metric.name, frozen.histograms), tracks[metric.name].comparability
        reports_the_same = found is None or found.finding == "note"
        is_event = judged.kind == "events"
        if metric.required and reports_the_same and (is_event or judged.kind == "mean"):
            arms = [np.ones_like(each) if is_event else each for each in warm]
            kept = every if is_event else context.harm_counts
            metrics.append(
                SegmentMetric(metric, judged, frozen.noise[metric.name], levels(metric), (arms[0], arms[1]), kept)
            )
    hidden = ~every if context.mix is None else context.mix.differs
    return compare_segments(folded.v1, folded.v2, within, context.usable, metrics, hidden)


def explain_harm(found: Segments, block: int) -> str:
    """Which segments are harmed after a block, the one with the most evidence first; "" where none is."""
    harmed = sorted(
        (
            (_weight(found, place, block), place)
            for place in range(len(found.compared))
            if _is_harmed(found, place, block)
        ),
        reverse=True,
    )
    if not harmed:
        return ""
    named = "; ".join(_sentence(found, place, block) for _, place in harmed[:_MOST_NAMED])
    more = len(harmed) - _MOST_NAMED
    return f"harm in {named}" + (f" (and {more} more)" if more > 0 else "")


def _is_harmed(found: Segments, place: int, block: int) -> bool:
    return any(each[place, block] for each in found.harmful.values())


def _weight(found: Segments, place: int, block: int) -> float:
    return max(float(each[place].beyond[block]) for each in found.paths.values())


def _sentence(found: Segments, place: int, block: int) -> str:
    """What a segment is harmed by: the metric with the most evidence."""
    harmful = [name for name, each in found.harmful.items() if each[place, block]]
    name = max(harmful, key=lambda each: float(found.paths[each][place].beyond[block]))
    change = _ratio(name, float(found.paths[name][place].cost[block]))
    more = (
        f" and {len(harmful) - 1} more metrics" if len(harmful) > 2 else " and one more metric" if harmful[1:] else ""
    )
    times = "" if change is None else f" × {change:.2g}"
    v2 = found.requests[1][:, : block + 1]
    part = float(v2[found.compared[place]].sum()) / max(1.0, float(v2.sum()))
    segment = shorten(found.names[found.compared[place]])
    return f"segment {segment}: {JUDGED[name].title}{times}{more}, {100 * part:.2g} % of v2's requests"


def judged_segments(found: Segments | None) -> tuple[SegmentJudgement, ...]:
    """How each segment is after the last block of a stage, those with the most requests first."""
    if found is None:
        return ()
    whole = [float(each.sum()) for each in found.requests]
    judged = []
    for index, name in enumerate(found.names):
        v1, v2 = (float(each[index].sum()) for each in found.requests)
        shares = [each / total if total > 0.0 else None for each, total in zip((v1, v2), whole, strict=True)]
        place = found.compared.index(index) if index in found.compared else None
        metrics = () if place is None else _metrics(found, place)
        judged.append(SegmentJudgement(name, _finding(v1, v2, metrics), v1, v2, shares[0], shares[1], metrics))
    return tuple(judged)


def _finding(v1: float, v2: float, metrics: tuple[SegmentMetricJudgement, ...]) -> SegmentFinding:
    if not v1 or not v2:
        return "no data"
    if any(each.harmful for each in metrics):
        return "harm"
    return "no harm found" if any(each.ratio is not None for each in metrics) else "not compared"


def _metrics(found: Segments, place: int) -> tuple[SegmentMetricJudgement, ...]:
    judged = []
    for name, by_segment in found.paths.items():
        path = by_segment[place]
        limits = [_ratio(name, each) for each in (float(path.cost[-1]), *path.limits)]
        low, high = limits[1:] if JUDGED[name].better == "lower" else limits[:0:-1]
        judged.append(
            SegmentMetricJudgement(
                name,
                JUDGED[name].title,
                "higher" if JUDGED[name].better == "higher" else "lower",
                limits[0],
                low if limits[0] is not None else None,
                high,
                bool(found.harmful[name][place, -1]),
            )
        )
    return tuple(judged)


def _ratio(name: str, cost: float) -> float | None:
    """A cost as v2 ÷ v1; None where there is none."""
    change = cost if JUDGED[name].better == "lower" else -cost
    return math.exp(change) if math.isfinite(change) and abs(change) < 700.0 else None


def segment_notes(found: Segments | None) -> list[str]:
    """What else is to be known of segments: which an arm lacks, which are not compared, that traffic shifted."""
    if found is None:
        return []
    notes = []
    totals = [each.sum(axis=1) for each in found.requests]
    for arm, missing in (("v2", totals[1] <= 0.0), ("v1", totals[0] <= 0.0)):
        names = [shorten(found.names[index]) for index in np.flatnonzero(missing)]
        if names:
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            notes.append(f"no data of segments that {arm} had no requests of: {', '.join(names[:_MOST_NAMED])}{more}")
    left = int(((totals[0] > 0.0) & (totals[1] > 0.0)).sum()) - len(found.compared)
    if left > 0:
        notes.append(f"{left} segments are not compared: the {MOST_JUDGED} with the most requests are")
    if found.apart is not None:
        notes.append(
            f"traffic by segment differs: {100 * found.apart:.0f} % of v2's requests are of other segments than v1's"
        )
    return notes
