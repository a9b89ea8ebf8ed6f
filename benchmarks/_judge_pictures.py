"""Curves as SVG, readable on a light and on a dark page: what the judge's results are shown with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

# Okabe and Ito's colours, distinct to colour-blind readers; markers and dashes differ, too.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES: Final = ("", "7 3", "2 3", "9 3 2 3", "4 4", "1 4")
_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 40, 84


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its label, where it begins and ends, the values it names, and whether it is logarithmic."""

    label: str
    low: float
    high: float
    ticks: Sequence[float]
    logarithmic: bool = False
    percent: bool = False

    def place(self, value: float) -> float:
        """Where a value is along the axis, 0 … 1."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.logarithmic:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return (at - low) / (high - low)

    def spell(self, value: float) -> str:
        """A value as it is named at the axis."""
        return f"{value * 100:g} %" if self.percent else f"{value:g}"


Points = Sequence[tuple[float, float, float, float]]
"""Of one curve: where, how much, and the limits of the interval."""


def draw_curves(
    path: Path, title: str, x: Axis, y: Axis, curves: Mapping[str, Points], target: float | None = None
) -> None:
    """Write a picture of the curves with their intervals; `target` is a line that they are compared with."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="13" role="img" aria-label="{escape(title)}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_WIDTH / 2}" y="22" text-anchor="middle" font-size="15" fill="#222">{escape(title)}</text>',
        *_grid(x, y),
    ]
    if target is not None:
        height = _down(y, target)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{height:.1f}" y2="{height:.1f}" stroke="#222" '
            f'stroke-dasharray="3 3"/><text x="{_WIDTH - _RIGHT - 4}" y="{height - 5:.1f}" text-anchor="end" '
            f'fill="#222">target {escape(y.spell(target))}</text>'
        )
    for number, (name, points) in enumerate(curves.items()):
        parts += _curve(number, name, points, x, y, len(curves))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")


def _grid(x: Axis, y: Axis) -> list[str]:
    lines = []
    for tick in y.ticks:
        height = _down(y, tick)
        lines.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{height:.1f}" y2="{height:.1f}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 6}" y="{height + 4:.1f}" text-anchor="end" fill="#444">{escape(y.spell(tick))}</text>'
        )
    for tick in x.ticks:
        place = _across(x, tick)
        lines.append(
            f'<line x1="{place:.1f}" x2="{place:.1f}" y1="{_HEIGHT - _BOTTOM}" y2="{_HEIGHT - _BOTTOM + 5}" '
            f'stroke="#444"/><text x="{place:.1f}" y="{_HEIGHT - _BOTTOM + 19}" text-anchor="middle" '
            f'fill="#444">{escape(x.spell(tick))}</text>'
        )
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    return [
        *lines,
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - _BOTTOM + 38}" text-anchor="middle" '
        f'fill="#222">{escape(x.label)}</text>',
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle" '
        f'fill="#222">{escape(y.label)}</text>',
    ]


def _curve(number: int, name: str, points: Points, x: Axis, y: Axis, count: int) -> list[str]:
    colour = _COLOURS[number % len(_COLOURS)]
    places = [(_across(x, at), _down(y, value), _down(y, low), _down(y, high)) for at, value, low, high in points]
    track = " ".join(f"{across:.1f},{down:.1f}" for across, down, _, _ in places)
    parts = [
        f'<polyline points="{track}" fill="none" stroke="{colour}" stroke-width="2" '
        f'stroke-dasharray="{_DASHES[number % len(_DASHES)]}"/>'
    ]
    for across, down, low, high in places:
        parts.append(
            f'<line x1="{across:.1f}" x2="{across:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{colour}"/>'
            f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3.5" fill="{colour}"/>'
        )
    columns = count if count <= 4 else 3
    line, column = divmod(number, columns)
    at = _LEFT + (_WIDTH - _LEFT - _RIGHT) / columns * column
    down = _HEIGHT - (18 if count <= columns else 32) + 19 * line
    parts.append(
        f'<line x1="{at:.0f}" x2="{at + 26:.0f}" y1="{down}" y2="{down}" stroke="{colour}" stroke-width="2" '
        f'stroke-dasharray="{_DASHES[number % len(_DASHES)]}"/><circle cx="{at + 13:.0f}" cy="{down}" r="3.5" '
        f'fill="{colour}"/><text x="{at + 32:.0f}" y="{down + 4}" fill="#222">{escape(name)}</text>'
    )
    return parts


def _across(axis: Axis, value: float) -> float:
    return _LEFT + axis.place(value) * (_WIDTH - _LEFT - _RIGHT)


def _down(axis: Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - axis.place(value) * (_HEIGHT - _TOP - _BOTTOM)
