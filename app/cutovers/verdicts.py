"""The judgement in HTML: its tiles, every metric with its interval and margin, both arms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Final, Literal

from app.cutovers.judging import WarmReplicas
from app.elements import display
from app.elements.display import ABSENT
from app.elements.markup import cell, draw_lines, draw_tiles, element, grid, heading
from app.elements.plain import escape
from servescope.contract.judged import MetricRole
from servescope.cutover.conditions.load import MATCHED_RATIO
from servescope.cutover.judgement import (
    ArmFigures,
    ArmState,
    Cause,
    Judgement,
    MetricJudgement,
    OverallRatio,
    PromptMix,
    SegmentJudgement,
    Verdict,
)


@dataclass(frozen=True, slots=True)
class Look:
    """How a verdict is drawn: a sign and a colour's name, so that it is never known by its colour alone."""

    sign: str
    status: str


VERDICT_LOOKS: Final[Mapping[Verdict, Look]] = {
    "HEALTHY": Look("✓", "good"),
    "DEGRADED": Look("✕", "critical"),
    "INCONCLUSIVE": Look("?", "warning"),
    "NO DATA": Look("∅", "unknown"),
}
_AWAITED: Final[Mapping[Cause, str]] = {
    "load": "like loads", "warming": "warm replicas", "mix": "the same prompts", "pods too few": "more replicas",
    "uncalibrated": "three hours of both arms", "no control": "requests on v1", "share": "the planned share",
    "one replica": "one replica of v2", "explained by load": "like loads", "explained by reuse": "like reuse",
    "prompts unknown": "the sizes of prompts", "rejected": "whole counters", "incomparable": "the same metrics",
    "never run": "a map that was run",
}  # fmt: skip
"""What metrics wait for that more of the same data does not settle."""
# What is missing matters where it is required, and is the least of the others.
_ORDERS: Final[Mapping[bool, tuple[Verdict, ...]]] = {
    True: ("DEGRADED", "NO DATA", "INCONCLUSIVE", "HEALTHY"),
    False: ("DEGRADED", "INCONCLUSIVE", "HEALTHY", "NO DATA"),
}

_FIGURES_TIP: Final = (
    "in the blocks and on the replicas that the ratio is of, weighted as it is, so that v2 ÷ v1 is the ratio; "
    "all: the plain figure of everything since the stage began"
)
REACH: Final = 3.0
"""How many margins to either side of "no change" a row of the forest plot shows."""


def verdict_chip(verdict: Verdict, tip: str | None = None) -> str:
    """A verdict as its sign and its word."""
    look = VERDICT_LOOKS[verdict]
    text = f"{element('b', look.sign, aria_hidden='true')} {escape(verdict)}"
    return element("span", text, f"verdict {look.status}", data_tip=tip, tabindex="0" if tip else None)


def draw_state(judgement: Judgement, v2_warm: WarmReplicas) -> str:
    """The tiles below the answer: stage, what is still to be gathered, and what the comparison rests on."""
    return draw_tiles(
        [
            _stage_tile(judgement),
            _progress_tile(judgement),
            _mix_tile(judgement.mix),
            _warmth_tile(judgement.v2, v2_warm),
            _load_tile(judgement),
        ]
    )


def _stage_tile(judgement: Judgement) -> tuple[str, str, str]:
    stage = judgement.stage
    planned = display.format_planned(stage.share)
    seen = ABSENT if stage.observed_share is None else display.format_share(stage.observed_share)
    differs = element("span", "! not as planned", "value warning") if stage.differs else ""
    below = f"{escape(f'planned share {planned}, seen {seen}')} {differs}"
    return "Stage", f"{stage.index + 1} of {stage.count}", below


def _progress_tile(judgement: Judgement) -> tuple[str, str, str]:
    """How long the required metrics need that are not settled: the slowest of them."""
    if judgement.rolled_back is not None:
        return "Still to settle", ABSENT, "the run was rolled back"
    open_ = [each for each in judgement.metrics if each.decides and each.verdict == "INCONCLUSIVE"]
    if not open_:
        settled = sum(each.required for each in judgement.metrics if each.verdict in ("HEALTHY", "DEGRADED"))
        lasts = judgement.stage.earliest_end_ms - judgement.at_ms
        if judgement.verdict == "INCONCLUSIVE" and lasts > 0:
            return (
                "Still to settle",
                escape(_wait(lasts / 1000)),
                f"{settled} required metrics settled, the stage has to last longer",
            )
        unknown = sum(each.required for each in judgement.metrics if each.verdict == "NO DATA")
        lacking = f", {unknown} without data" if unknown else ""
        value = "nothing" if settled and not unknown else ABSENT
        return "Still to settle", value, f"{settled} required metrics settled{lacking}"
    awaited = dict.fromkeys(_AWAITED[each.cause] for each in open_ if each.cause in _AWAITED)
    if awaited:
        word = element("span", escape(" and ".join(awaited)), "value warning", data_tip=judgement.waits_for or None)
        waiting = sum(each.cause in _AWAITED for each in open_)
        return "Waits for", word, f"{waiting} of {len(open_)} open metrics; how long cannot be said"
    waits = [each.eta_seconds for each in open_]
    known = [wait for wait in waits if wait is not None]
    slowest = max(open_, key=lambda each: math.inf if each.eta_seconds is None else each.eta_seconds)
    value = _wait(max(known)) if known and len(known) == len(waits) else "no estimate"
    which = f", slowest {slowest.title}" if known else ""
    names = slowest.title if len(open_) == 1 else f"{len(open_)} metrics{which}"
    return "Still to settle", escape(value), escape(names)


def _wait(seconds: float) -> str:
    """How long something still takes: what has gathered enough is settled by the next block."""
    return f"about {display.format_wait(seconds)}" if seconds > 0.0 else "by the next block"


def _mix_tile(mix: PromptMix | None) -> tuple[str, str, str]:
    if mix is None or mix.distance is None:
        return "Prompt mix", ABSENT, escape(mix.reason if mix and mix.reason else "not known")
    if mix.refused:
        word, status = "too different", "critical"
    elif mix.differs:
        word, status = ("differs, adjusted" if mix.adjusted else "differs"), "warning"
    else:
        word, status = "same", "good"
    below = f"{display.format_share(mix.distance)} of v2's prompts are of other sizes than v1's"
    return "Prompt mix", element("span", word, f"value {status}", data_tip=mix.reason or None), escape(below)


def _warmth_tile(arm: ArmState | None, replicas: WarmReplicas) -> tuple[str, str, str]:
    if arm is None or not replicas.serving:
        return (
            "Warm-up of v2",
            ABSENT,
            "no replica seen" if arm is None else "no replica was seen to serve in the last block",
        )
    cold = arm.cold_start_seconds
    took = "no replica was seen to start" if cold is None else f"warming up took up to {display.format_wait(cold)}"
    status = "good" if arm.warm else "" if replicas.warm else "warning"
    return "Warm-up of v2", element("span", f"{describe_warm(replicas)} warm", f"value {status}"), escape(took)


def describe_warm(replicas: WarmReplicas) -> str:
    """How many are warm, of those that serve: `10 of 12`."""
    return f"{replicas.warm} of {replicas.serving}"


def _load_tile(judgement: Judgement) -> tuple[str, str, str]:
    loads = [arm.requests_per_replica_second if arm else None for arm in (judgement.v1, judgement.v2)]
    texts = [ABSENT if load is None else f"{display.format_number(load)}" for load in loads]
    v1, v2 = (load or 0.0 for load in loads)
    known = None not in loads
    alike = known and v1 / MATCHED_RATIO <= v2 <= v1 * MATCHED_RATIO
    if any(each.cause == "load" for each in judgement.metrics):
        # Loads are alike before most of the hour was, and where a stack queues.
        word, status = ("not matched yet" if alike else "not matched"), "warning"
    else:
        word, status = ("matched", "good") if alike else ("not matched", "warning") if known else (ABSENT, "")
    return (
        "Load", element("span", word, f"value {status}"),
        escape(f"v1 {texts[0]} · v2 {texts[1]} requests/s per replica in the last hour"),
    )  # fmt: skip


# --- The forest plot --------------------------------------------------------------------------------------------------


def draw_forest(judgement: Judgement, zone: tzinfo) -> str:
    """Every metric in a row: verdict, interval against its margin, both arms' values, and what is still to gather.

    A row's plot is in margins, worse to the right whichever direction is good, so that rows can be read together; the
    ratio in figures is v2 ÷ v1 as it is.
    """
    axis = element("div", _axis(), "forest axis")
    heads = [
        heading("Metric"),
        heading("Verdict"),
        element("th", axis, "plot", scope="col"),
        heading("v2 ÷ v1", "interval", numeric=True, tip="valid at every look, however often you check"),
        heading("Margin", numeric=True, tip="the change to the worse that v2 must be proven to stay below"),
        heading("v1", numeric=True, tip=_FIGURES_TIP),
        heading("v2", numeric=True, tip=_FIGURES_TIP),
        heading("Progress", tip="the information gathered so far, of what is needed to settle it"),
        heading("Why"),
    ]
    rows: list[str] = []
    for role, note in _GROUPS.items():
        members = [each for each in judgement.metrics if _role(each) == role and (each.required or has_data(each))]
        if members and note:
            rows.append(element("tr", element("th", note, colspan=str(len(heads)), scope="colgroup"), "group"))
        order = _ORDERS[role == "required"]
        rows += [
            _forest_row(each, judgement, zone) for each in sorted(members, key=lambda each: order.index(each.verdict))
        ]
    empty = [each.title for each in judgement.metrics if not each.required and not has_data(each)]
    if empty:
        note = f"Not required, and without data in this stage: {', '.join(empty)}"
        rows.append(element("tr", element("th", escape(note), colspan=str(len(heads)), scope="colgroup"), "group"))
    return grid("judged", heads, rows)


_GROUPS: Final[Mapping[MetricRole, str]] = {
    "required": "",
    "guard": "Guards: need no proof, and while harm of one is proven the verdict is not HEALTHY",
    "reported": "Reported only: these explain and warn, and never decide",
}


def _role(metric: MetricJudgement) -> MetricRole:
    return "required" if metric.required else "guard" if metric.guard else "reported"


def has_data(metric: MetricJudgement) -> bool:
    """Whether a row of the metric would show anything but dashes."""
    return metric.ratio is not None or any(arm is not None and arm.value is not None for arm in (metric.v1, metric.v2))


def _axis() -> str:
    parts = [
        element("span", "← better", "edge left"),
        element("span", "same", "mark same", style=f"left:{_place(0.0):.1f}%"),
        element("span", "margin", "mark", style=f"left:{_place(1.0):.1f}%"),
        element("span", "worse →", "edge right"),
    ]
    return "".join(parts)


def _forest_row(metric: MetricJudgement, judgement: Judgement, zone: tzinfo) -> str:
    notes = draw_lines(metric.notes)
    changes = f"Would change: {metric.flips[:1].lower() + metric.flips[1:]}" if metric.flips else ""
    flips = element("div", escape(changes), "flips") if changes and _role(metric) != "reported" else ""
    reason = display.as_sentence(
        display.in_zone(metric.reason.removeprefix(f"{metric.title}: "), judgement.at_ms, zone)
    )
    good = display.describe_better(metric.better, has_margin=metric.margin is not None)
    cells = [
        element(
            "th",
            element("div", escape(metric.title)) + element("div", escape(good), "lower"),
            scope="row",
            data_tip=metric.name,
        ),
        cell("Verdict", verdict_chip(metric.verdict, changes or None), escape(metric.cause)),
        element("td", element("div", _axis(), "forest axis own", aria_hidden="true") + _plot(metric), "plot"),
        cell("v2 ÷ v1", *_interval(metric, zone, several_stages=judgement.stage.index > 0), "number"),
        cell("Margin", escape(describe_margin(metric)), "", "number"),
        cell("v1", *_arm_value(metric, metric.v1), "number"),
        cell("v2", *_arm_value(metric, metric.v2), "number"),
        cell("Gathered", *_gathered(metric, is_over=judgement.rolled_back is not None)),
        cell("Why", escape(reason), notes + flips, "why"),
    ]
    return element("tr", "".join(cells))


def describe_margin(metric: MetricJudgement) -> str:
    """What v2 must stay within: `10 % worse`, `2 ×`, or the band in the metric's unit."""
    return metric.limit or ABSENT


def format_interval(metric: MetricJudgement) -> str:
    """The interval of the ratio, `0.97 – 1.12`; an en dash without one."""
    if metric.low is None and metric.high is None:
        return ABSENT
    return f"{_bound(metric.low, '0')} – {_bound(metric.high, '∞')}"


def _bound(value: float | None, absent: str) -> str:
    return absent if not value or not math.isfinite(value) else f"{value:.2f}"


def _interval(metric: MetricJudgement, zone: tzinfo, *, several_stages: bool) -> tuple[str, str]:
    if metric.ratio is None:
        return element("span", ABSENT, "absent"), ""
    tip = describe_overall(metric.overall) if several_stages else None
    shown = element("span", f"× {metric.ratio:.2f}", "value", data_tip=tip, tabindex="0" if tip else None)
    return shown, escape(format_interval(metric)) + element("div", escape(describe_change(metric, zone)), "changed")


def describe_change(metric: MetricJudgement, zone: tzinfo) -> str:
    """How the effect changed within the stage: `was × 3.70 until 14:00, × 1.20 since`; "" where it did not."""
    if not metric.spans:
        return ""
    *former, latest = (ABSENT if each.ratio is None else f"× {each.ratio:.2f}" for each in metric.spans)
    now_ms = metric.spans[-1].until_ms
    ends = [display.format_near(each.until_ms, now_ms, zone) for each in metric.spans]
    was = ", ".join(f"{ratio} until {end}" for ratio, end in zip(former, ends[:-1], strict=True))
    # What was excluded or not compared between both is of neither.
    gap = metric.spans[-1].since_ms > metric.spans[-2].until_ms
    begun = f" {display.format_near(metric.spans[-1].since_ms, now_ms, zone)}" if gap else ""
    return f"was {was}, {latest} since{begun}"


def describe_overall(overall: OverallRatio | None) -> str | None:
    """The ratio over the whole run, beside that of the stage; None where there is none."""
    if overall is None:
        return None
    ends = f"{_bound(overall.low, '0')} – {_bound(overall.high, '∞')}"
    return f"Of this stage. Over the whole run: × {overall.ratio:.2f}, interval {ends}"


def _arm_value(metric: MetricJudgement, arm: ArmFigures | None) -> tuple[str, str]:
    if arm is None:
        return element("span", ABSENT, "absent"), ""
    shown = display.format_value(arm.value, metric.unit)
    among = (
        f"{display.format_number(arm.count)} {metric.counted}" if metric.counted else display.format_number(arm.count)
    )
    below = "" if not arm.count else among if metric.counted else f"n {among}"
    if arm.events is not None:
        below = f"{display.format_number(arm.events)} of {among}"
    beside = ""
    if arm.everything is not None and arm.value is not None and abs(arm.everything - arm.value) > 0.01 * arm.value:
        beside = element("div", escape(f"all {display.format_value(arm.everything, metric.unit)}"), "all")
    return element("span", escape(shown), "value"), escape(below) + beside


def _gathered(metric: MetricJudgement, *, is_over: bool) -> tuple[str, str]:
    if is_over or metric.verdict != "INCONCLUSIVE" or not (metric.information_wanted or metric.cause in _AWAITED):
        return element("span", "settled" if metric.verdict in ("HEALTHY", "DEGRADED") else ABSENT, "quiet"), ""
    if metric.cause in _AWAITED:
        return element("span", escape(f"waits for {_AWAITED[metric.cause]}"), "quiet"), ""
    share = min(1.0, metric.information / (metric.information_wanted or math.inf))
    bar = element("i", "", "fill", style=f"width:{100 * share:.0f}%")
    wait = "no estimate" if metric.eta_seconds is None else _wait(metric.eta_seconds)
    wait = f"{wait} more" if metric.eta_seconds else wait
    progress = element("span", bar, "progress", role="img", aria_label=f"{100 * share:.0f} % gathered")
    return progress + element("span", f"{100 * share:.0f} %", "value"), escape(wait)


def worse_by(metric: MetricJudgement, ratio: float | None) -> float | None:
    """How far a ratio is to the worse, in margins: 0 is no change, 1 the margin; None where it has no place."""
    if ratio is None or metric.margin is None or not ratio > 0.0:
        return None
    change = math.log(ratio) / math.log1p(metric.margin)
    return change if _better(metric) == "lower" else -change


def _better(metric: MetricJudgement) -> Literal["higher", "lower"]:
    """Which way is better; where neither is, the one that the estimate is not on."""
    return metric.better or ("lower" if (metric.ratio or 1.0) >= 1.0 else "higher")


def _place(margins: float) -> float:
    """Where in a row's plot so many margins are, in percent."""
    return 50.0 * (1.0 + max(-REACH, min(REACH, margins)) / REACH)


def _plot(metric: MetricJudgement) -> str:
    if metric.band is not None:
        return _band_plot(metric, metric.band)
    point, *ends = (worse_by(metric, ratio) for ratio in (metric.ratio, metric.low, metric.high))
    zones = element("i", "", "zone", style=f"left:{_place(1.0):.1f}%") + _rule(0.0, "same") + _rule(1.0, "margin")
    if point is None:
        none = "none happened" if metric.verdict == "HEALTHY" else "no interval yet"
        return element("div", zones + element("span", none, "none"), "forest")
    # An end that is not known, or lies at 0 or infinity, is beyond the plot on its side.
    unbounded = (-math.inf, math.inf) if _better(metric) == "lower" else (math.inf, -math.inf)
    known = [missing if end is None else end for end, missing in zip(ends, unbounded, strict=True)]
    left, right = min(known), max(known)
    # Harm of a metric whose mean is better is that of its slow requests.
    elsewhere = metric.verdict == "DEGRADED" and point < 0.0
    look = "quiet" if elsewhere else VERDICT_LOOKS[metric.verdict].status
    beyond = ("less " if left < -REACH else "") + ("more" if right > REACH else "")
    # All beyond one side: the arrow of the estimate is there.
    bar = "" if left > REACH or right < -REACH else element(
        "i", "", f"interval {look} {beyond}".strip(),
        style=f"left:{_place(left):.1f}%;width:{max(0.6, _place(right) - _place(left)):.1f}%",
    )  # fmt: skip
    dot = _dot(point, look) + (element("span", "the mean; slow requests are more", "none") if elsewhere else "")
    said = f"{metric.title}: v2 is {metric.ratio:.2f} times v1, interval {format_interval(metric)}, margin "
    return element("div", zones + bar + dot, "forest", role="img", aria_label=said + describe_margin(metric))


def _dot(margins: float, look: str) -> str:
    """The estimate; an arrow at the edge where it lies beyond."""
    if abs(margins) <= REACH:
        return element("i", "", f"point {look}", style=f"left:{_place(margins):.1f}%")
    return element("span", "▶" if margins > 0.0 else "◀", f"off {'right' if margins > 0.0 else 'left'} {look}")


def _rule(margins: float, name: str) -> str:
    return element("i", "", f"rule {name}", style=f"left:{_place(margins):.1f}%")


def _band_plot(metric: MetricJudgement, band: tuple[float | None, float | None]) -> str:
    """v2's level, with its band between one margin to either side."""
    inside = element("i", "", "zone inside", style=f"left:{_place(-1.0):.1f}%;right:{100 - _place(1.0):.1f}%")
    value = metric.v2.value if metric.v2 else None
    place = None if value is None else place_in_band(value, *band)
    if place is None:
        return element("div", inside + element("span", "no level yet", "none"), "forest")
    look = VERDICT_LOOKS[metric.verdict].status
    dot = _dot(place, look)
    said = f"{metric.title}: v2 at {display.format_value(value, metric.unit)}, band {describe_margin(metric)}"
    return element("div", inside + dot, "forest", role="img", aria_label=said)


def place_in_band(value: float, low: float | None, high: float | None) -> float | None:
    """Where a value is in a band: −1 at its lower end, 1 at its upper; None for a band without ends.

    Of a band with one end, a value at twice the distance from 0 is one margin away from the end.
    """
    if low is not None and high is not None:
        return 2.0 * (value - low) / (high - low) - 1.0
    if low is not None:
        return -1.0 + (value - low) / (abs(low) or 1.0)
    if high is not None:
        return 1.0 + (value - high) / (abs(high) or 1.0)
    return None


# --- What it rests on -------------------------------------------------------------------------------------------------


def draw_arms(judgement: Judgement, warm: Sequence[WarmReplicas], zone: tzinfo) -> str:
    """How well both arms were observed since the stage began."""
    heads = [heading("Since the stage began"), heading("v1", numeric=True), heading("v2", numeric=True)]
    arms = (judgement.v1, judgement.v2)
    columns = [_describe_arm(arm, replicas, zone) if arm else {} for arm, replicas in zip(arms, warm, strict=True)]
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = [
        element(
            "tr",
            element("th", escape(name), scope="row")
            + "".join(cell(name, escape(column.get(name, ABSENT)), "", "number") for column in columns),
        )
        for name in names
    ]
    return grid("arms", heads, rows)


def _describe_arm(arm: ArmState, replicas: WarmReplicas, zone: tzinfo) -> dict[str, str]:
    return {
        "Deployments": ", ".join(arm.deployments) or ABSENT,
        "Replicas seen": str(arm.replicas),
        "Warm": f"{describe_warm(replicas)} that serve now",
        "Requests": display.format_number(arm.requests),
        "Scrapes": f"{arm.scrapes} of {arm.expected} expected, {arm.failed} failed",
        "Evidence": f"of {display.format_share(arm.covered)} of the requests" if arm.covered is not None else ABSENT,
        "Thrown away": f"{display.format_share(arm.rejected)} of the requests" if arm.rejected is not None else ABSENT,
        "Torn histograms": str(arm.torn),
        "Restarts": str(arm.resets),
        "Gaps": str(arm.gaps),
        "Saturated": f"{display.format_share(arm.saturated_share)} of the time",
        "Last scrape": ABSENT if arm.last_scrape_ms is None else display.format_time(arm.last_scrape_ms, zone),
    }


def draw_segments(judgement: Judgement) -> str:
    """Each segment that both arms report, those that are harmed first; "" where none is reported."""
    if not judgement.segments:
        return ""
    heads = [
        heading("Segment"), heading("Finding"), heading("of v1's requests", numeric=True),
        heading("of v2's requests", numeric=True), heading("Worst metric"), heading("v2 ÷ v1", numeric=True),
    ]  # fmt: skip
    harmed_first = sorted(judgement.segments, key=lambda each: each.finding != "harm")
    return grid("segments", heads, [_segment_row(each) for each in harmed_first])


def _segment_row(segment: SegmentJudgement) -> str:
    worst = segment.worst
    shares = [ABSENT if each is None else display.format_share(each) for each in (segment.v1_share, segment.v2_share)]
    ratio = ABSENT if worst is None or worst.ratio is None else f"{worst.ratio:.2f}"
    cells = [
        cell("Finding", escape(segment.finding)),
        cell("of v1's requests", escape(shares[0]), "", "number"),
        cell("of v2's requests", escape(shares[1]), "", "number"),
        cell("Worst metric", escape(ABSENT if worst is None else worst.title)),
        cell("v2 ÷ v1", ratio, "", "number"),
    ]
    return element("tr", element("th", escape(segment.name), scope="row") + "".join(cells))


def draw_gaps(judgement: Judgement, zone: tzinfo) -> str:
    """What either stack cannot report, and the spans that were not observed, each with why."""
    incomparable = [
        element("li", element("code", escape(name)) + escape(f": {why}"))
        for name, why in judgement.incomparable.items()
    ]
    missed = [
        element("li", escape(f"{display.format_time(start, zone)} – {display.format_time(end, zone)}: {why}"))
        for start, end, why in judgement.missed
    ]
    notes = [element("li", escape(note)) for note in judgement.notes]
    parts = [
        element("div", escape(title), "title") + element("ul", "".join(items))
        for title, items in (
            ("Cannot be compared", incomparable),
            ("Not observed", missed),
            ("Notes", notes),
            ("What this verdict covers", [element("li", escape(each)) for each in judgement.scope.covers]),
            ("What nothing here can see", [element("li", escape(each)) for each in judgement.scope.unseen]),
        )
        if items
    ]
    if not parts:
        seen = all(arm is not None and arm.scrapes for arm in (judgement.v1, judgement.v2))
        whole = "Both stacks report every metric of the plan, and nothing was missed."
        parts = [element("div", whole if seen else "No block of this stage is complete yet.", "quiet")]
    return element("div", "".join(parts), "scope gaps")
