"""The two plots of a report as SVG: every metric's ratio with interval and margin, and the course of the cutover.

Colours come from the page's style sheet by class, so that they follow its light or dark theme; a verdict is never shown
by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

from servescope.cutover.judgement import MetricJudgement, Verdict, VerdictChange
from servescope.judge.report.text import interval, margin, ratio

WIDTH: Final = 960
_NAMES, _VALUES = 250, 210
_ROW, _AXIS = 34, 30
_LANE, _TOP = 26, 14
_HOURS: Final = (0.25, 0.5, 1, 2, 3, 6, 12, 24, 48, 96, 168)
_TICKS: Final = (0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
_MOST_RATIO: Final = 4.0
# A letter of the plots is about so many units wide.
_LETTER: Final = 6.6

SIGNS: Final[dict[Verdict, str]] = {"HEALTHY": "✓", "DEGRADED": "▲", "INCONCLUSIVE": "?", "NO DATA": "∅"}
"""What stands beside a verdict's colour."""


def verdict_class(verdict: Verdict) -> str:
    """The class of a verdict in the style sheet."""
    return verdict.lower().replace(" ", "-")


# --- Forest plot ------------------------------------------------------------------------------------------------------


def draw_forest(metrics: Sequence[MetricJudgement]) -> str:
    """One line per metric that has a ratio: v2 ÷ v1 with its interval, and where the margin lies."""
    shown = [metric for metric in metrics if metric.ratio is not None or metric.margin is not None]
    scale = _Scale.of(shown)
    height = _TOP + _ROW * len(shown) + _AXIS
    parts = [_open(height, "v2 ÷ v1 of each metric, with its interval and its margin")]
    bottom = _TOP + _ROW * len(shown)
    for tick in _TICKS:
        if scale.low <= tick <= scale.high:
            x = scale.at(tick)
            kind = "even" if tick == 1.0 else "grid"
            parts.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
            parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>')
    for index, metric in enumerate(shown):
        parts += _forest_row(metric, scale, _TOP + _ROW * index + _ROW / 2)
    return "".join([*parts, "</svg>"])


@dataclass(frozen=True, slots=True)
class _Scale:
    """A logarithmic axis of ratios."""

    low: float
    high: float

    @classmethod
    def of(cls, metrics: Sequence[MetricJudgement]) -> _Scale:
        """The range that holds every interval and margin, at most fourfold each way."""
        reached = [0.0, math.log(1.25)]
        for metric in metrics:
            values = (metric.low, metric.high, metric.ratio, *_limits(metric))
            reached += [abs(math.log(each)) for each in values if each is not None and 0 < each < math.inf]
        extent = min(max(reached) * 1.08, math.log(_MOST_RATIO))
        return cls(math.exp(-extent), math.exp(extent))

    def at(self, value: float) -> float:
        """Where a ratio lies on the plot, at its edge when it is beyond."""
        bounded = min(max(value, self.low), self.high)
        place = (math.log(bounded) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return _NAMES + place * (WIDTH - _NAMES - _VALUES)


def _limits(metric: MetricJudgement) -> tuple[float, ...]:
    """The ratios at the margin of a metric."""
    if metric.margin is None:
        return ()
    if metric.better is None:
        return 1.0 / (1.0 + metric.margin), 1.0 + metric.margin
    return (1.0 + metric.margin,) if metric.better == "lower" else (1.0 / (1.0 + metric.margin),)


def _forest_row(metric: MetricJudgement, scale: _Scale, y: float) -> Iterator[str]:
    style = verdict_class(metric.verdict)
    weight = "required" if metric.required else "optional"
    yield f'<text class="name {weight}" x="{_NAMES - 12}" y="{y + 4}" text-anchor="end">{escape(metric.title)}</text>'
    for limit in _limits(metric):
        edge, end = scale.at(limit), scale.at(scale.high if limit > 1.0 else scale.low)
        left, width = min(edge, end), abs(edge - end)
        yield f'<rect class="beyond" x="{left:.1f}" y="{y - 11}" width="{width:.1f}" height="22"/>'
        yield f'<line class="margin" x1="{edge:.1f}" x2="{edge:.1f}" y1="{y - 11}" y2="{y + 11}"/>'
    if metric.ratio is not None:
        low = scale.at(metric.low) if metric.low is not None else scale.at(scale.low)
        high = scale.at(metric.high) if metric.high is not None else scale.at(scale.high)
        yield f'<line class="interval {style}" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>'
        yield f'<circle class="point {style}" cx="{scale.at(metric.ratio):.1f}" cy="{y}" r="5"/>'
    shown = f"{ratio(metric.ratio)} ({interval(metric)})" if metric.ratio is not None else "no ratio"
    x = WIDTH - _VALUES + 14
    yield f'<text class="value" x="{x}" y="{y - 2}">{SIGNS[metric.verdict]} {escape(metric.verdict)}</text>'
    yield f'<text class="tick" x="{x}" y="{y + 12}">{escape(shown)}, {escape(margin(metric))}</text>'


# --- Timeline ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened, at a time; `text` is shown beside it."""

    at_ms: int
    text: str


def draw_course(
    shares: Sequence[tuple[int, float]],
    changes: Sequence[VerdictChange],
    marks: Sequence[tuple[str, Sequence[Mark]]],
    start_ms: int,
    end_ms: int,
) -> str:
    """The planned share by time, the verdict below it, and a lane for each kind of mark."""
    axis = _Times(start_ms, max(end_ms, start_ms + 60_000))
    lanes = [(name, found) for name, found in marks if found]
    plot = 90
    verdicts = _TOP + plot + 16
    height = verdicts + 30 + _LANE * len(lanes) + _AXIS
    parts = [_open(height, "Share of v2, verdict, decisions and events over time")]
    parts += _grid(axis, height)
    parts += _draw_shares(shares, axis, plot)
    parts.append(f'<text class="name" x="{_NAMES - 12}" y="{verdicts + 15}" text-anchor="end">Verdict</text>')
    ends = [*(change.at_ms for change in changes[1:]), end_ms]
    for change, until in zip(changes, ends, strict=False):
        x, width = axis.at(change.at_ms), max(axis.at(until) - axis.at(change.at_ms), 1.0)
        style = verdict_class(change.verdict)
        title = f"{change.verdict}: {change.reason}"
        label = f"{SIGNS[change.verdict]} {change.verdict}"
        parts.append(
            f'<rect class="span {style}" x="{x:.1f}" y="{verdicts}" width="{width:.1f}" height="22">'
            f"<title>{escape(title)}</title></rect>"
        )
        if width > _LETTER * (len(label) + 2):
            parts.append(f'<text class="inverse" x="{x + 6:.1f}" y="{verdicts + 15}">{escape(label)}</text>')
    for lane, (name, found) in enumerate(lanes):
        parts += _draw_lane(name, found, axis, verdicts + 30 + _LANE * lane + _LANE / 2)
    return "".join([*parts, "</svg>"])


@dataclass(frozen=True, slots=True)
class _Times:
    start_ms: int
    end_ms: int

    def at(self, time_ms: int) -> float:
        """Where a time lies, at the edge when it is outside."""
        place = (min(max(time_ms, self.start_ms), self.end_ms) - self.start_ms) / (self.end_ms - self.start_ms)
        return _NAMES + place * (WIDTH - _NAMES - 20)

    def ticks(self) -> list[int]:
        """Round times, six to twelve of them where the span allows."""
        hours = (self.end_ms - self.start_ms) / 3_600_000
        step = round(next((each for each in _HOURS if hours / each <= 8), hours / 8) * 3_600_000)
        first = -(-self.start_ms // step) * step
        return list(range(first, self.end_ms + 1, step))


def _grid(axis: _Times, height: int) -> Iterator[str]:
    days = axis.end_ms - axis.start_ms > 36 * 3_600_000
    for time_ms in axis.ticks():
        x = axis.at(time_ms)
        shown = f"{datetime.fromtimestamp(time_ms / 1000, UTC):{'%d %b %H:%M' if days else '%H:%M'}}"
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height - _AXIS}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{height - 10}" text-anchor="middle">{shown}</text>'


def _draw_shares(shares: Sequence[tuple[int, float]], axis: _Times, plot: int) -> Iterator[str]:
    yield f'<text class="name" x="{_NAMES - 12}" y="{_TOP + plot / 2}" text-anchor="end">Planned share of v2</text>'
    points = []
    for (at_ms, value), until in zip(shares, [*(at for at, _ in shares[1:]), axis.end_ms], strict=True):
        y = _TOP + plot * (1 - value)
        points += [f"{axis.at(at_ms):.1f},{y:.1f}", f"{axis.at(until):.1f},{y:.1f}"]
        yield f'<text class="tick" x="{axis.at(at_ms) + 4:.1f}" y="{y - 4:.1f}">{100 * value:g} %</text>'
    yield f'<polyline class="share" points="{" ".join(points)}"/>'


def _draw_lane(name: str, marks: Sequence[Mark], axis: _Times, y: float) -> Iterator[str]:
    yield f'<text class="name" x="{_NAMES - 12}" y="{y + 4}" text-anchor="end">{escape(name)}</text>'
    free = 0.0
    for mark in marks:
        x = axis.at(mark.at_ms)
        yield (f'<path class="mark" d="M{x:.1f} {y - 6} l6 6 l-6 6 l-6 -6 z"><title>{escape(mark.text)}</title></path>')
        width = _LETTER * len(mark.text)
        if x > free and x + 10 + width < WIDTH:
            yield f'<text class="tick" x="{x + 10:.1f}" y="{y + 4}">{escape(mark.text)}</text>'
            free = x + 16 + width
        elif x - 10 - width > free:
            yield f'<text class="tick" x="{x - 10:.1f}" y="{y + 4}" text-anchor="end">{escape(mark.text)}</text>'
            free = x + 10


def _open(height: float, label: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img" '
        f'aria-label="{escape(label)}">'
    )
