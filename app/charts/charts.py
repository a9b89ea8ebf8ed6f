"""The charts: small multiples of figures over time, with their bands behind them, as Vega-Lite.

They are written as plain specifications: a page of thirty is then built in a tenth of the time that Altair's classes
take, and the tests have Altair validate them. They hold no colours of the page: Streamlit's theme gives text, grid and
background, so that they are right in light and dark. Lines have mid-tones that read on both.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from app.charts.marks import TimelineMark
from app.elements import display
from app.elements.colors import HARM_COLORS, NEUTRAL, TUNING_COLORS
from app.elements.plain import visible
from app.selection import TimeRange
from servescope.contract.types import Band, Status

Spec = dict[str, Any]
"""A part of a Vega-Lite specification."""

HEIGHT = 190
_HELD_BACK_SECONDS = 0.15
# The colour of each status of a band, all of which are about tuning, with its opacity as the last two digits.
_BAND_OPACITIES: Mapping[Status, str] = {"good": "12", "warning": "1c", "critical": "26"}
_BAND_COLORS = {status: f"{TUNING_COLORS[status]}{opacity}" for status, opacity in _BAND_OPACITIES.items()}
Dash = tuple[int, ...]
"""Lengths of strokes and gaps in pixels; `(1, 0)` is solid."""
_FILLING_DASH: Dash = (1, 3)
_WINDOW = "window"
_TIME_FORMAT = "%a %d %b %H:%M:%S"
# A day's name at midnight, the time of day elsewhere.
_TIME_LABEL = "timeFormat(datum.value, hours(datum.value) + minutes(datum.value) == 0 ? '%d %b' : '%H:%M')"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: what the legend calls it, its values over time by `time_ms`, and its look.

    Where `filling` is true the values are over a window that is not whole; the line is dotted there.
    """

    label: str
    values: pd.Series[float]
    color: str
    dash: Dash = (1, 0)
    filling: pd.Series[bool] | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: its title, its data with a column `y0`, `y1` … per line, and its specification.

    Where a line is filling, columns `w0` … are what is drawn as a whole window's, `f0` … what is dotted.
    """

    title: str
    data: pd.DataFrame
    spec: Spec


Ending = tuple[float, str]
"""Where a promise ends, and what it is called."""

# In pixels from the top of the plot: beside the legend, above the signs of marks.
_ABOVE = -13
# In pixels, of an entry of the legend at most.
_ENTRY_WIDTH = 70


def draw_lines(
    lines: Sequence[Line],
    *,
    title: str,
    unit: str,
    span: TimeRange,
    band: Band | None = None,
    objectives: Sequence[Ending] = (),
    marks: Sequence[TimelineMark] = (),
) -> Chart:
    """The lines over the range, one y axis in `unit`, the band as shaded stretches; missing values stay gaps.

    `objectives` are where promises end, drawn as lines; `marks` are what happened meanwhile.
    """
    data = _join(lines)
    domain = value_domain(data, band, unit, objectives)
    x = {"field": "time_ms", "type": "temporal", **time_axis(span)}
    y = {"field": "value", "type": "quantitative", "scale": {"domain": domain, "nice": False}, "axis": _axis(unit)}
    layers = [] if band is None else [_draw_band(band, domain, y)]
    layers += _draw_objectives(objectives, y) if objectives else []
    layers += _draw_marks(marks, x)
    layers += [*_draw_paths(data, lines, x, y), *_draw_lonely(data, lines, x, y), _draw_pointer(data, lines, x, unit)]
    spec = {
        "title": {"text": title, "anchor": "start", "fontSize": 13, "offset": 8},
        "height": HEIGHT,
        "layer": layers,
        "config": {"view": {"stroke": None}},
    }
    return Chart(title, data, spec)


def time_axis(span: TimeRange) -> Spec:
    """Scale and axis of the times of a span."""
    return {
        "scale": {"domain": [_moment(span.start_ms), _moment(span.end_ms)]},
        "axis": {"title": None, "grid": False, "tickCount": 5, "labelOverlap": True, "labelExpr": _TIME_LABEL},
    }


def _moment(time_ms: int) -> Spec:
    # Streamlit interprets Vega's expressions, and its interpreter takes a lone timestamp for a year.
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    date = {"year": moment.year, "month": moment.month, "date": moment.day}
    return {**date, "hours": moment.hour, "minutes": moment.minute, "seconds": moment.second, "utc": True}


def let_numbers_paint() -> None:
    """Hold the charts back for a moment: drawing them keeps the browser from painting the numbers sent before."""
    time.sleep(_HELD_BACK_SECONDS)


def show(chart: Chart) -> None:
    """One chart over the whole width."""
    st.vega_lite_chart(chart.data, chart.spec, width="stretch", key=f"chart_{chart.title}")


def show_grid(charts: Sequence[Chart], columns: int = 3) -> None:
    """The charts as small multiples, so many beside each other where there is room."""
    for start in range(0, len(charts), columns):
        row = charts[start : start + columns]
        for column, chart in zip(st.columns(columns, gap="medium"), row, strict=False):
            column.vega_lite_chart(chart.data, chart.spec, width="stretch", key=f"chart_{chart.title}")


def _join(lines: Sequence[Line]) -> pd.DataFrame:
    columns = {f"y{place}": line.values for place, line in enumerate(lines)}
    data = pd.DataFrame(columns).rename_axis("time_ms")
    marks = [each.filling for each in lines]
    if any(each is not None and each.any() for each in marks):
        is_any = pd.Series(False, data.index)
        for place, each in enumerate(marks):
            # At instants of another line's there is no value of this one.
            filling = pd.Series(False, data.index) if each is None else each.reindex(data.index, fill_value=False)
            beside = filling | filling.shift(1, fill_value=False) | filling.shift(-1, fill_value=False)
            data[f"w{place}"], data[f"f{place}"] = data[f"y{place}"].mask(filling), data[f"y{place}"].where(beside)
            is_any |= filling
        data[_WINDOW] = np.where(is_any, "filling", "whole")
    return data.reset_index()


def value_domain(data: pd.DataFrame, band: Band | None, unit: str, objectives: Sequence[Ending] = ()) -> list[float]:
    """The y axis: from 0 for what cannot be negative, wide enough for the values, the band's edges, the objectives."""
    values = data.filter(regex="^y").to_numpy(dtype=float)
    edges = [step.start for step in band.steps] if band else []
    edges += [start for start, _ in objectives]
    ends = [0.0, *edges, *values[np.isfinite(values)].tolist()]
    low, high = min(ends), max(ends)
    if high <= low:
        high = low + (0.01 if unit == "ratio" else 1.0)
    # The highest line must not run along the edge of the chart; beyond a band's last edge its reading must be seen.
    margin = (0.15 if edges else 0.08) * (high - low)
    return [low - margin if low < 0 else low, high + margin]


def _axis(unit: str) -> Spec:
    return {
        "title": "share" if unit == "ratio" else unit,
        "titleFontWeight": "normal",
        "labelExpr": axis_label(unit),
        "tickCount": 4,
        "domain": False,
        "ticks": False,
    }


def axis_label(unit: str) -> str:
    """A Vega expression that writes an axis' values in this unit."""
    if unit == "ratio":
        return "format(datum.value * 100, '.4~r') + ' %'"
    if unit == "seconds":
        return (
            "datum.value == 0 ? '0' : abs(datum.value) < 1 ? format(datum.value * 1000, '.4~r') + ' ms' : "
            "format(datum.value, '.4~r') + ' s'"
        )
    if unit == "bytes":
        return "datum.value == 0 ? '0' : format(datum.value, '.4~s') + 'B'"
    return "abs(datum.value) < 1 ? format(datum.value, '.3~r') : format(datum.value, '.4~s')"


def _draw_band(band: Band, domain: Sequence[float], y: Spec) -> Spec:
    low, high = domain
    stretches = [
        {"low": max(start, low), "high": min(end, high), "status": rating.status, "reading": rating.label}
        for start, end, rating in display.band_ranges(band)
        if min(end, high) > max(start, low)
    ]
    return {
        "data": {"values": stretches},
        "mark": {"type": "rect"},
        "encoding": {
            "y": {**y, "field": "low"},
            "y2": {"field": "high"},
            "fill": {
                "field": "status",
                "type": "nominal",
                "scale": {"domain": list(_BAND_COLORS), "range": list(_BAND_COLORS.values())},
                "legend": None,
            },
            "tooltip": {"field": "reading", "type": "nominal", "title": "band"},
        },
    }


def _draw_objectives(objectives: Sequence[Ending], y: Spec) -> list[Spec]:
    """A line where each promise ends, quieter than the data; their names beside the legend, which no line crosses."""
    words = ", ".join((objectives[0][1], *(name.removeprefix("objective ") for _, name in objectives[1:])))
    return [
        {
            "data": {"values": [{"value": start, "name": name} for start, name in objectives]},
            "mark": {"type": "rule", "color": HARM_COLORS["critical"], "strokeWidth": 1.2, "strokeDash": [4, 3]},
            "encoding": {"y": y, "tooltip": {"field": "name", "type": "nominal", "title": "promised"}},
        },
        {
            "data": {"values": [{"name": words}]},
            "mark": {
                "type": "text", "color": HARM_COLORS["critical"], "align": "right", "baseline": "bottom",
                "x": "width", "y": _ABOVE, "fontSize": 10,
            },
            "encoding": {"text": {"field": "name"}},
        },
    ]  # fmt: skip


def _draw_marks(marks: Sequence[TimelineMark], x: Spec) -> list[Spec]:
    """A thin rule where something happened, with its sign at the top; the length of an alert as a stretch."""
    begun = {**x, "field": "start"}
    tips = [
        {"field": "what", "type": "nominal", "title": "what"},
        {"field": "start", "type": "temporal", "title": "at", "format": _TIME_FORMAT},
    ]
    layers: list[Spec] = []
    # Colours and shapes are of the layers and no scales: those would share the legend of the lines.
    for look in dict.fromkeys(each.look for each in marks):
        data = {"values": [
            {"start": each.start_ms, "end": each.end_ms, "what": visible(each.text)}
            for each in marks if each.look == look
        ]}  # fmt: skip
        if any(each.end_ms is not None for each in marks if each.look == look):
            lasting = {"x": begun, "x2": {"field": "end"}, "tooltip": tips}
            layers.append(
                {"data": data, "mark": {"type": "rect", "color": look.color, "opacity": 0.1}, "encoding": lasting}
            )
        at = {"x": begun, "tooltip": tips}
        rule = {"type": "rule", "color": look.color, "strokeWidth": 1, "opacity": 0.45}
        sign = {
            "type": "point", "shape": look.shape, "color": look.color, "filled": True, "size": 42, "opacity": 1, "y": 0
        }  # fmt: skip
        layers += [{"data": data, "mark": rule, "encoding": at}, {"data": data, "mark": sign, "encoding": at}]
    return layers


def _draw_paths(data: pd.DataFrame, lines: Sequence[Line], x: Spec, y: Spec) -> list[Spec]:
    """The lines; dotted, and thinner, where the window was filling."""
    mark: Spec = {"type": "line", "strokeWidth": 1.7, "invalid": "break-paths-show-path-domains"}
    looks = _looks(lines)
    if _WINDOW not in data:
        return [{"transform": _fold(lines, "y"), "mark": mark, "encoding": {"x": x, "y": y, **looks}}]
    dotted = {**mark, "strokeWidth": 1.4, "strokeDash": list(_FILLING_DASH)}
    return [
        {"transform": _fold(lines, "w"), "mark": mark, "encoding": {"x": x, "y": y, **looks}},
        {"transform": _fold(lines, "f"), "mark": dotted, "encoding": {"x": x, "y": y, "color": looks["color"]}},
    ]


def _fold(lines: Sequence[Line], columns: str) -> list[Spec]:
    """One row per line and moment, missing values included: they are where a path breaks."""
    keys = [f"{columns}{place}" for place in range(len(lines))]
    named = [] if columns == "y" else [{"calculate": "'y' + slice(datum.line, 1)", "as": "line"}]
    return [{"fold": keys, "as": ["line", "value"]}, *named]


def _looks(lines: Sequence[Line]) -> Spec:
    """Colour and dash by line in one legend, of a single line too: whose it is must not be guessed."""
    keys = [f"y{place}" for place in range(len(lines))]
    names = ", ".join(f"{key}: {_quoted(visible(line.label))}" for key, line in zip(keys, lines, strict=True))
    columns = f"(width < {_ENTRY_WIDTH * len(lines)} ? {3 if len(lines) > 2 else 1} : {len(lines)})"
    legend = {
        "columns": {"expr": columns},
        "title": None,
        "orient": "top",
        "labelExpr": f"({{{names}}})[datum.value]",
        # Long names must not push each other out of the chart.
        "labelLimit": {"expr": f"clamp(width / {columns} - 40, 40, 170)"},
        "symbolType": "stroke",
        "symbolStrokeWidth": 2.2,
        "symbolSize": 200,
        "columnPadding": 12,
        "offset": 2,
        "padding": 0,
    }

    def channel(values: Sequence[Any]) -> Spec:
        scale = {"domain": keys, "range": list(values)}
        return {"field": "line", "type": "nominal", "scale": scale, "legend": legend}

    return {
        "color": channel([line.color for line in lines]),
        "strokeDash": channel([list(line.dash) for line in lines]),
    }


def _draw_lonely(data: pd.DataFrame, lines: Sequence[Line], x: Spec, y: Spec) -> list[Spec]:
    """Dots for values whose neighbours are both missing: no path would show them."""
    rows = [
        {"time_ms": time_ms, "value": value, "line": f"y{place}"}
        for place in range(len(lines))
        for time_ms, value in lonely_points(data["time_ms"], data[f"y{place}"])
    ]
    if not rows:
        return []
    encoding = {"x": x, "y": y, "color": _looks(lines)["color"]}
    return [{"data": {"values": rows}, "mark": {"type": "circle", "size": 16, "opacity": 1}, "encoding": encoding}]


def lonely_points(times: pd.Series[int], values: pd.Series[float]) -> list[tuple[int, float]]:
    """The moments and values that have a missing value, or nothing, on both sides."""
    there = values.notna().to_numpy()
    padded = np.concatenate([[False], there, [False]])
    lonely = there & ~padded[:-2] & ~padded[2:]
    return list(zip(times[lonely].tolist(), values[lonely].tolist(), strict=True))


def _draw_pointer(data: pd.DataFrame, lines: Sequence[Line], x: Spec, unit: str) -> Spec:
    """A rule at the moment under the pointer, and a tooltip with every line's value there."""
    keys = [f"y{place}" for place in range(len(lines))]
    texts = [{"calculate": _value_text(f"datum.{key}", unit), "as": f"{key}_text"} for key in keys]
    tooltip = [{"field": "time_ms", "type": "temporal", "title": "time", "format": _TIME_FORMAT}]
    tooltip += [
        {"field": f"{key}_text", "type": "nominal", "title": visible(line.label)}
        for key, line in zip(keys, lines, strict=True)
    ]
    if _WINDOW in data:
        tooltip.append({"field": _WINDOW, "type": "nominal", "title": "window"})
    near = {"param": "near", "empty": False, "value": 0.8}
    return {
        "transform": [{"filter": " || ".join(f"isValid(datum.{key})" for key in keys)}, *texts],
        "params": [
            {
                "name": "near",
                "select": {
                    "type": "point", "nearest": True, "on": "pointerover", "clear": "pointerout", "fields": ["time_ms"]
                },
            }
        ],
        "mark": {"type": "rule", "color": NEUTRAL, "strokeWidth": 1},
        "encoding": {"x": x, "opacity": {"condition": near, "value": 0}, "tooltip": tooltip},
    }  # fmt: skip


def _value_text(field: str, unit: str) -> str:
    """A Vega expression that writes the value as `display.format_value` does."""
    if unit == "ratio":
        written = f"format({field} * 100, '.2f') + ' %'"
    elif unit == "seconds":
        written = f"abs({field}) < 1 ? format({field} * 1000, '.3~r') + ' ms' : format({field}, '.3~r') + ' s'"
    elif unit == "bytes":
        written = f"format({field}, '.3~s') + 'B'"
    else:
        written = f"(abs({field}) < 1 ? format({field}, '.3~r') : format({field}, '.3~s')) + {_quoted(f' {unit}')}"
    return f"isValid({field}) ? ({written}) : {_quoted(display.ABSENT)}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", " ")
    return f"'{escaped}'"
