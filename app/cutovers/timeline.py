"""A cutover over time: v2's share as planned and as seen, and below it in lanes what changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from app.charts.charts import Chart, Spec, axis_label, time_axis
from app.cutovers.verdicts import VERDICT_LOOKS
from app.elements import display
from app.elements.colors import NEUTRAL, V2
from app.elements.plain import visible
from app.selection import TimeRange
from servescope.contract.events import Event, EventKind
from servescope.cutover.evidence.evidence import Decision, DecisionKind
from servescope.cutover.judgement import VerdictChange
from servescope.cutover.plan.plan import Stage

SHARE_HEIGHT, LANE_HEIGHT, _TIMES_HEIGHT = 150, 26, 32
# Of both charts, so that their times are above each other.
_AXIS_WIDTH = 74
_PLANNED, _SEEN = NEUTRAL, V2
# Dark enough for white text, on a light page and on a dark one.
_VERDICT_COLORS: Final = {"good": "#1a7444", "critical": "#b02a35", "warning": "#8a5a00", "unknown": "#5f6b78"}
# Of v2's hue, as they are its shares.
_STAGE_COLORS: Final = ("#713386", "#843f9c")
_TEXT_COLOR = "#ffffff"
LANES: Final = ("verdict", "stage", "decisions", "deploys", "alerts", "targets")
_EVENT_LANES: Final[Mapping[EventKind, str]] = {
    "deploy": "deploys",
    "target_appeared": "targets",
    "target_gone": "targets",
    "target_changed": "targets",
}
# One shape each, so that none is known by its colour alone.
_SHAPES: Final[Mapping[str, str]] = {
    "start": "circle", "advance": "triangle-right", "hold": "square", "rollback": "triangle-left",
    "acknowledge": "diamond", "exclude": "cross", "deploy": "triangle-up", "target_appeared": "circle",
    "target_gone": "cross", "target_changed": "diamond",
}  # fmt: skip
# In pixels, of capitals at most.
_CHARACTER_WIDTH, _TEXT_MARGIN = 7.5, 10
_BAR_COLUMNS: Final = ["lane", "start", "end", "text", "color", "tip"]
_ENTRY_COLOR = NEUTRAL


@dataclass(frozen=True, slots=True)
class Stretch:
    """Something that lasted: its lane, from when to when, its text, and the colour it is drawn in."""

    lane: str
    start_ms: int
    end_ms: int
    text: str
    color: str
    tip: str


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened at once: its lane, when, its shape's kind, and what a reader gets on hover."""

    lane: str
    time_ms: int
    kind: str
    tip: str


def draw_share(
    seen: pd.Series[float], stages: Sequence[Stage], decisions: Sequence[Decision], span: TimeRange
) -> Chart:
    """v2's share of the requests by block, and the share planned of the stage at that time."""
    planned = plan_steps(stages, decisions, span)
    top = max([0.1, *(stage for _, stage in planned), *seen.dropna().tolist()])
    y = {
        "field": "share",
        "type": "quantitative",
        "scale": {"domain": [0, min(1.0, 1.12 * top)], "nice": False},
        "axis": {
            "title": None, "labelExpr": axis_label("ratio"), "tickCount": 4, "domain": False, "ticks": False,
            "minExtent": _AXIS_WIDTH, "maxExtent": _AXIS_WIDTH,
        },
    }  # fmt: skip
    x = {"field": "time_ms", "type": "temporal", **time_axis(span)}
    layers = [
        {
            "data": {"values": [{"time_ms": time_ms, "share": share, "line": "planned"} for time_ms, share in planned]},
            "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
            "encoding": {"x": x, "y": y, **_line_looks()},
        },
        {
            "mark": {"type": "line", "strokeWidth": 1.8, "invalid": "break-paths-show-path-domains"},
            "encoding": {
                "x": x,
                "y": y,
                **_line_looks(),
                "tooltip": [
                    {"field": "time_ms", "type": "temporal", "title": "block from", "format": "%a %d %b %H:%M"},
                    {"field": "text", "type": "nominal", "title": "share of v2"},
                ],
            },
        },
    ]
    data = seen.rename("share").rename_axis("time_ms").reset_index().assign(line="seen")
    data["text"] = [display.format_value(share, "ratio") for share in data["share"]]
    title = {"text": "v2's share of the requests", "anchor": "start", "fontSize": 13, "offset": 6}
    spec = {"title": title, "height": SHARE_HEIGHT, "layer": layers, "config": {"view": {"stroke": None}}}
    return Chart("v2's share of the requests", data, spec)


def _line_looks() -> Spec:
    """Colour and dash of both lines, in one legend."""
    legend = {"title": None, "orient": "top", "symbolType": "stroke", "symbolSize": 200, "offset": 0}
    looks: tuple[tuple[str, list[Any]], ...] = (("color", [_SEEN, _PLANNED]), ("strokeDash", [[1, 0], [5, 3]]))
    return {
        channel: {
            "field": "line",
            "type": "nominal",
            "scale": {"domain": ["seen", "planned"], "range": values},
            "legend": legend,
        }
        for channel, values in looks
    }


def plan_steps(stages: Sequence[Stage], decisions: Sequence[Decision], span: TimeRange) -> list[tuple[int, float]]:
    """When the planned share changed, and to what, up to the end of the span; a rollback plans 0."""
    steps: list[tuple[int, float]] = []
    for decision in decisions:
        if decision.kind in ("start", "advance") and decision.stage is not None:
            steps.append((decision.at_ms, stages[decision.stage].share))
        elif decision.kind == "rollback":
            steps.append((decision.at_ms, 0.0))
    return [*steps, (span.end_ms, steps[-1][1])] if steps else []


def draw_lanes(
    changes: Sequence[VerdictChange],
    stages: Sequence[Stage],
    decisions: Sequence[Decision],
    events: Sequence[Event],
    span: TimeRange,
) -> Chart:
    """The lanes below the share: verdicts and stages as stretches, decisions, deploys, alerts and targets."""
    stretches = [*_verdicts(changes, span), *_stages(stages, decisions, span), *_alerts(events, span)]
    moments = [*_decisions(decisions), *_happened(events)]
    filled = {each.lane for each in stretches} | {each.lane for each in moments}
    lanes = [lane for lane in LANES if lane in filled]
    y = {
        "field": "lane",
        "type": "nominal",
        "sort": lanes,
        "scale": {"domain": lanes, "paddingInner": 0.25, "paddingOuter": 0.1},
        "axis": {
            "title": None, "domain": False, "ticks": False, "grid": False, "labelOverlap": False,
            "minExtent": _AXIS_WIDTH, "maxExtent": _AXIS_WIDTH,
        },
    }  # fmt: skip
    shown = TimeRange(span.start_ms, span.end_ms, span.live)
    x = {"field": "start", "type": "temporal", **time_axis(shown)}
    tip = {"field": "tip", "type": "nominal", "title": "what"}
    bars = {
        "mark": {"type": "bar", "cornerRadius": 2, "height": {"band": 1}},
        "encoding": {
            "x": x,
            "x2": {"field": "end"},
            "y": y,
            "color": {"field": "color", "type": "nominal", "scale": None, "legend": None},
            "tooltip": [tip, _time_tip("start", "from"), _time_tip("end", "to")],
        },
    }
    texts = {
        "mark": {
            "type": "text",
            "align": "left",
            "baseline": "middle",
            "dx": 5,
            "fontSize": 11,
            "fontWeight": 600,
            "color": _TEXT_COLOR,
        },
        "encoding": {"x": x, "y": y, "text": {"value": {"expr": _fitting_text()}}},
    }
    points = {
        "data": {"values": [{"start": each.time_ms, "lane": each.lane, "kind": each.kind, "tip": visible(each.tip)}
                            for each in moments if span.start_ms <= each.time_ms <= span.end_ms]},
        "mark": {"type": "point", "filled": True, "size": 95, "opacity": 1, "color": _ENTRY_COLOR},
        "encoding": {
            "x": x,
            "y": y,
            "shape": {
                "field": "kind", "type": "nominal", "legend": None,
                "scale": {"domain": list(_SHAPES), "range": list(_SHAPES.values())},
            },
            "tooltip": [tip, _time_tip("start", "at")],
        },
    }  # fmt: skip
    spec = {
        # The height is that of the lanes and of the times below them.
        "height": LANE_HEIGHT * max(1, len(lanes)) + _TIMES_HEIGHT,
        "layer": [bars, texts, points],
        "config": {"view": {"stroke": None}},
    }
    data = pd.DataFrame([_bar(each, span) for each in stretches], columns=_BAR_COLUMNS)
    return Chart("lanes", data, spec)


def _time_tip(field: str, title: str) -> Spec:
    return {"field": field, "type": "temporal", "title": title, "format": "%a %d %b %H:%M"}


def _bar(each: Stretch, span: TimeRange) -> dict[str, Any]:
    return {
        "lane": each.lane,
        "start": max(each.start_ms, span.start_ms),
        "end": min(each.end_ms, span.end_ms),
        "text": each.text,
        "color": each.color,
        "tip": visible(each.tip),
    }


def _fitting_text() -> str:
    """Its text where that fits, else its sign, else nothing: a text must not run into the next stretch.

    As an expression, since only the browser knows how wide the lanes are.
    """
    width = "(scale('x', datum.end) - scale('x', datum.start))"
    sign = "split(datum.text, ' ')[0]"
    fits = f"{width} > {_TEXT_MARGIN} + {_CHARACTER_WIDTH} * length({{}})"
    return f"{fits.format('datum.text')} ? datum.text : {fits.format(sign)} ? {sign} : ''"


def _verdicts(changes: Sequence[VerdictChange], span: TimeRange) -> Iterable[Stretch]:
    ends = [*(change.at_ms for change in changes[1:]), span.end_ms]
    # Before the first block has closed there is no change, and the end of the span is that of none.
    for change, end_ms in zip(changes, ends[: len(changes)], strict=True):
        look = VERDICT_LOOKS[change.verdict]
        text = f"{look.sign} {change.verdict}"
        tip = f"{change.verdict}: {change.reason}"
        yield Stretch("verdict", change.at_ms, end_ms, text, _VERDICT_COLORS[look.status], tip)


def _stages(stages: Sequence[Stage], decisions: Sequence[Decision], span: TimeRange) -> Iterable[Stretch]:
    begun = [each for each in decisions if each.kind in ("start", "advance", "rollback")]
    ends = [*(each.at_ms for each in begun[1:]), span.end_ms]
    for decision, end_ms in zip(begun, ends[: len(begun)], strict=True):
        if decision.kind == "rollback" or decision.stage is None:
            continue
        share = display.format_planned(stages[decision.stage].share)
        color = _STAGE_COLORS[decision.stage % len(_STAGE_COLORS)]
        tip = f"stage {decision.stage + 1} of {len(stages)}, {share} planned"
        yield Stretch("stage", decision.at_ms, end_ms, share, color, tip)


def _alerts(events: Sequence[Event], span: TimeRange) -> Iterable[Stretch]:
    """What fires from one change to the next, named where it is one alert, and counted where they are several."""
    firing: dict[object, Event] = {}
    changes = [each for each in events if each.kind in ("alert_fired", "alert_resolved")]
    ends = [*(each.time_ms for each in changes[1:]), span.end_ms]
    for event, end_ms in zip(changes, ends[: len(changes)], strict=True):
        if event.kind == "alert_fired":
            firing[event.labels] = event
        else:
            firing.pop(event.labels, None)
        names = list(dict.fromkeys(dict(each.labels).get("alertname", "alert") for each in firing.values()))
        if names and end_ms > event.time_ms:
            text = names[0] if len(names) == 1 else f"{len(names)} alerts"
            tip = ", ".join(dict.fromkeys(each.text for each in firing.values()))
            yield Stretch("alerts", event.time_ms, end_ms, text, _VERDICT_COLORS["critical"], tip)


DECISION_WORDS: Final[Mapping[DecisionKind, str]] = {
    "start": "started", "advance": "advanced", "hold": "held", "rollback": "rolled back",
    "acknowledge": "acknowledged", "exclude": "excluded a span",
}  # fmt: skip


def describe_decision(decision: Decision) -> str:
    """A decision in a line: `anna advanced to stage 3: settled`."""
    who = f"{decision.by} " if decision.by else ""
    where = f" to stage {decision.stage + 1}" if decision.kind == "advance" and decision.stage is not None else ""
    why = f": {decision.reason}" if decision.reason else ""
    return f"{who}{DECISION_WORDS[decision.kind]}{where}{why}"


def _decisions(decisions: Sequence[Decision]) -> Iterable[Moment]:
    for decision in decisions:
        yield Moment("decisions", decision.at_ms, decision.kind, describe_decision(decision))


def _happened(events: Sequence[Event]) -> Iterable[Moment]:
    for event in events:
        if event.kind in _EVENT_LANES:
            yield Moment(_EVENT_LANES[event.kind], event.time_ms, event.kind, event.text)
