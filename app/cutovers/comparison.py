"""Two deployments judged over a range as the judge of a cutover would: ratios of sums, intervals, the worst span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import Final

import numpy as np
import pandas as pd

from app.cutovers import verdicts
from app.data.queries import Shown
from app.elements import display
from app.elements.display import ABSENT
from app.elements.markup import cell, element, grid, heading
from app.elements.plain import escape
from app.selection import TimeRange
from servescope.contract.identity import Deployment
from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.evidence.folding import ArmArrays, ArmFold, Floats
from servescope.cutover.evidence.shares import recent_share
from servescope.cutover.judgement import Judgement, MetricJudgement
from servescope.cutover.plan.files import preset_metrics
from servescope.cutover.plan.plan import Arm, CutoverPlan, Stage
from servescope.increments.blocks import BLOCK_MS
from servescope.judge.case import fold_case, freeze_plan
from servescope.store.history import History

SETTLED_MS: Final = 150_000
"""A block is judged when it ended this long ago: by then targets that are scraped every minute were, twice."""
LONGEST_MS: Final = 31 * 86_400_000
"""A range that is judged in seconds, and in some hundred megabytes."""
LEAST_BELOW: Final = 20.0
"""Requests, or seconds of decoding, of both sides that a span needs to be called the worst."""
LEAST_WORSE: Final = 0.005
"""How much worse, in logarithms, a span has to be to be called that at all."""
_LEAST_SHARE: Final = 0.001
"""Of a side with fewer requests nothing is proven within a range."""
_ABSENT: Final = element("span", ABSENT, "absent")


@dataclass(frozen=True, slots=True)
class WorstSpan:
    """The block in which the right side was worst beside the left: its start, and what either did in it."""

    start_ms: int
    left: float
    right: float


@dataclass(frozen=True, slots=True)
class Compared:
    """A range judged: the judgement of right beside left, and the worst span of each metric by name.

    `planned` is the name of the plan whose margins and bands it was judged by, None of the documented ones.
    """

    judgement: Judgement
    worst: Mapping[str, WorstSpan]
    planned: str | None = None


def whole_blocks(span: TimeRange, now_ms: int) -> TimeRange:
    """As many whole blocks as the range is long, the last of them the last in it that has settled.

    So an hour up to now has twelve blocks, as levels need that are judged over an hour.
    """
    end_ms = min(span.end_ms, now_ms - SETTLED_MS) // BLOCK_MS * BLOCK_MS
    blocks = (span.end_ms - span.start_ms) // BLOCK_MS
    return TimeRange(min(-(-span.start_ms // BLOCK_MS) * BLOCK_MS, end_ms - blocks * BLOCK_MS), end_ms, live=False)


def compare(
    history: History, left: Deployment, right: Deployment, span: TimeRange, planned: CutoverPlan | None = None
) -> Compared:
    """Judge the range as one stage that began with it; the noise is that of the left side before the range.

    Margins and bands are those of `planned` where it is the plan of a cutover from left to right, else the documented
    ones. Raises UsageError, EvidenceError.
    """
    if planned is not None and not (_selects(planned.v1, left) and _selects(planned.v2, right)):
        planned = None
    plan = make_plan(left, right, planned)
    frozen = freeze_plan(history, plan, span.start_ms)
    decisions = (Decision("start", span.start_ms, stage=0),)
    at_ms = span.end_ms + SETTLED_MS
    case = fold_case(history, frozen, decisions, at_ms)
    # No plan says which share the right side is to have: it is the one that it has.
    seen = replace(plan, stages=(Stage(_observed_share(case.folded, span)),))
    judgement = case.judge(replace(frozen, plan=seen), decisions, at_ms)
    worst = find_worst(case.folded, judgement.metrics, span.start_ms)
    return Compared(judgement, worst, None if planned is None else planned.name)


def _observed_share(folded: ArmArrays, span: TimeRange) -> float:
    """The right side's share of the requests in the last hour of a range, within what a stage may plan."""
    within = (folded.v1.blocks >= span.start_ms) & (folded.v1.blocks < span.end_ms)
    loads = (np.nansum(arm.traffic["requests"], axis=0)[within] for arm in (folded.v1, folded.v2))
    known = [each for each in recent_share(*loads)[-1:] if np.isfinite(each)]
    return float(np.clip(known[0], _LEAST_SHARE, 1.0 - _LEAST_SHARE)) if known else 0.5


def explain_verdict(compared: Compared) -> str:
    """The reason of the verdict over the range, and of a planned cutover what is judged elsewhere instead."""
    reason = display.as_sentence(compared.judgement.reason)
    if compared.planned is None:
        return reason
    return (
        f"{reason} This is of the range above alone; what decides the cutover is the cutover page, which judges the "
        "whole stage, and its verdict may be another one."
    )


def make_plan(left: Deployment, right: Deployment, planned: CutoverPlan | None = None) -> CutoverPlan:
    """What is expected of two deployments, as planned or else as documented, the left one in the place of v1."""
    v1, v2 = (dict(each.labels()) for each in (left, right))
    metrics = preset_metrics() if planned is None else planned.metrics
    return CutoverPlan("compare", Arm("v1", (v1,)), Arm("v2", (v2,)), (Stage(0.5),), metrics)


def _selects(arm: Arm, deployment: Deployment) -> bool:
    """Whether all targets of a deployment belong to an arm."""
    labels = dict(deployment.labels())
    return any(selector.items() <= labels.items() for selector in arm.selectors)


# --- The worst span ---------------------------------------------------------------------------------------------------


def find_worst(folded: ArmArrays, metrics: Sequence[MetricJudgement], start_ms: int) -> dict[str, WorstSpan]:
    """By metric, the block from `start_ms` on in which the right side was furthest to the worse."""
    found = {}
    for metric in metrics:
        if metric.better is not None and metric.name in folded.v1.metrics:
            worst = _worst_block(folded, metric, start_ms)
            if worst is not None:
                found[metric.name] = worst
    return found


def _worst_block(folded: ArmArrays, metric: MetricJudgement, start_ms: int) -> WorstSpan | None:
    left, right = (_values(arm, metric.name) for arm in (folded.v1, folded.v2))
    # Of shares the difference counts: a rejection where there was none is no infinite harm.
    with np.errstate(divide="ignore", invalid="ignore"):
        further = right - left if metric.unit == "ratio" else np.log(right / left)
    worse = np.where(np.isfinite(further) & (folded.blocks >= start_ms), further, np.nan)
    worse = -worse if metric.better == "higher" else worse
    least = 0.0 if metric.unit == "ratio" else LEAST_WORSE
    if np.isnan(worse).all() or np.nanmax(worse) <= least:
        return None
    place = int(np.nanargmax(worse))
    return WorstSpan(int(folded.blocks[place]), float(left[place]), float(right[place]))


def _values(arm: ArmFold, name: str) -> Floats:
    """The metric by block over all replicas, NaN where too little was observed."""
    counted = arm.metrics[name]
    above, below = np.nansum(counted.above, axis=0), np.nansum(counted.below, axis=0)
    values: Floats = np.full(below.shape, np.nan)
    np.divide(above, below, out=values, where=below >= LEAST_BELOW)
    return values


# --- The table --------------------------------------------------------------------------------------------------------


def draw_table(
    compared: Compared,
    metrics: Sequence[MetricJudgement],
    left: Shown,
    right: Shown,
    swatches: tuple[str, str],
    zone: tzinfo,
) -> str:
    """Some of the judged metrics: both values over the range, the ratio with its interval, and the worst span."""
    heads = [
        heading("Metric", "over the range"),
        element("th", swatches[0] + escape(left.name), "number", scope="col"),
        element("th", swatches[1] + escape(right.name), "number", scope="col"),
        heading("Ratio", "interval", numeric=True, tip=f"{right.name} ÷ {left.name}; valid at every look"),
        heading("Reading", "margin"),
        heading("Worst span", f"{left.name} · {right.name}"),
    ]
    names = (left.name, right.name)
    rows = [_row(metric, compared.worst.get(metric.name), names, zone) for metric in metrics]
    return grid("compared", heads, rows)


def _row(metric: MetricJudgement, worst: WorstSpan | None, names: tuple[str, str], zone: tzinfo) -> str:
    good = display.describe_better(metric.better, has_margin=metric.margin is not None)
    values = [None if arm is None else arm.value for arm in (metric.v1, metric.v2)]
    ratio = _ABSENT if metric.ratio is None else f"× {metric.ratio:.2f}"
    cells = [
        element(
            "th", element("div", escape(metric.title)) + element("div", good, "lower"), scope="row",
            data_tip=metric.name,
        ),
        *(
            cell(name, escape(display.format_value(value, metric.unit)), "", "number")
            for name, value in zip(names, values, strict=True)
        ),
        cell("Ratio", ratio, escape(verdicts.format_interval(metric)) if metric.ratio else "", "number"),
        cell(
            "Reading",
            verdicts.verdict_chip(metric.verdict, display.as_sentence(metric.reason)),
            escape(verdicts.describe_margin(metric)),
        ),
        cell(f"Worst span, {names[0]} · {names[1]}", *_describe_worst(metric, worst, zone)),
    ]  # fmt: skip
    return element("tr", "".join(cells))


def _describe_worst(metric: MetricJudgement, worst: WorstSpan | None, zone: tzinfo) -> tuple[str, str]:
    if worst is None:
        return _ABSENT if metric.ratio is None else element("span", "never worse", "quiet"), ""
    end = display.format_minute(worst.start_ms + BLOCK_MS, zone)
    values = (display.format_value(value, metric.unit) for value in (worst.left, worst.right))
    return escape(f"{display.format_day_minute(worst.start_ms, zone)} – {end}"), escape(" · ".join(values))


def list_metrics(compared: Compared) -> pd.DataFrame:
    """The judged metrics for a file, one row each."""
    return pd.DataFrame(
        [
            {
                "metric": each.name, "left": each.v1.value if each.v1 else None,
                "right": each.v2.value if each.v2 else None, "ratio": each.ratio, "low": each.low, "high": each.high,
                "margin": each.margin, "reading": each.verdict, "reason": each.reason,
                "worst_from_ms": compared.worst[each.name].start_ms if each.name in compared.worst else None,
            }
            for each in compared.judgement.metrics
        ]
    )  # fmt: skip
