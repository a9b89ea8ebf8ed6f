"""Stories of alerts evaluated without a Prometheus, by `servescope.alerting.rules.evaluation`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from servescope.alerting.rules.evaluation import Active, Instant, advance, compile_alert, duration_ms, values_of
from servescope.alerting.rules.records import (
    AdHocExpression,
    Alert,
    BadRatio,
    FigureRef,
    OverTime,
    RequestsEnded,
    SelfMetric,
    Subquery,
    Term,
)
from servescope.collector.paging.recent_values import reduced
from servescope.contract.expressions import Expression, Increase, Matchers, Vector, matches
from servescope.contract.figures import FIGURES
from servescope.contract.objectives import record_ended
from servescope.contract.samples import Labels, Series, Window, make_labels
from servescope.increments.readings import evaluate
from tests.support.alert_stories import STALE, firing, minutes

_MINUTE_MS = 60_000
_LOOKBACK_MINUTES = 5
_BEFORE_MINUTES = 120


def first_difference(alert: Alert, stories: Iterable[StoryView]) -> str:
    """The story and the minute at which an alert first fires otherwise than the stories say; "" where it never does.

    Compared are the labels and the annotations, which hold the value; of stories beside each other, at the minutes of
    some of them, how many fire.
    """
    compiled = compile_alert(alert)
    for view in stories:
        states, expected, counts = dict[Labels, Active](), view.expected, view.counts
        # What has been well for so long is not evaluated since its beginning.
        for view.minute in range(max(min(expected) - _BEFORE_MINUTES, 0), max((*expected, *counts)) + 1):
            states = advance(alert, states, compiled.active(states, Instant(view)), view.minute * _MINUTE_MS)
            if view.minute in expected and (found := _firing(alert, states)) != expected[view.minute]:
                return f"{view.name}, minute {view.minute}: {found} instead of {expected[view.minute]}"
            count = sum(active.fired_ms is not None for active in states.values())
            if count != counts.get(view.minute, count):
                return f"{view.name}, minute {view.minute}: {count} alerts instead of {counts[view.minute]}"
    return ""


def _firing(alert: Alert, states: Mapping[Labels, Active]) -> list[dict[str, Any]]:
    return _in_order(
        firing(alert, dict(labels), active.value) for labels, active in states.items() if active.fired_ms is not None
    )


def _in_order(alerts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(alerts, key=lambda alert: sorted(alert["exp_labels"].items()))


def over_past(over: OverTime | Subquery, past: Mapping[Labels, Sequence[float]]) -> Vector:
    """An aggregate of the values at the evaluations of a window, in order, as the collector computes it."""
    return {
        labels: float(reduced(over.function, np.array(values)[:, np.newaxis])[0])
        for labels, values in past.items()
        if values
    }


class StoryView:
    """The series of a story, as an evaluation at a minute sees them; what was read once is kept for other alerts.

    `expected` are the alerts that fire at a minute, of those that the story names, and `counts` how many do at others.
    """

    def __init__(self, story: Mapping[str, Any]) -> None:
        self.name: str = story["name"]
        self.expected: dict[int, list[dict[str, Any]]] = {
            minutes(check["eval_time"]): _in_order(check["exp_alerts"]) for check in story["alert_rule_test"]
        }
        self.counts: dict[int, int] = {
            minutes(check["eval_time"]): sum(sample["value"] for sample in check["exp_samples"])
            for check in story.get("promql_expr_test", ())
        }
        self._series = {_parsed(each["series"]): _values(each["values"]) for each in story["input_series"]}
        self._latest = {series: _latest(values) for series, values in self._series.items()}
        self._chosen: dict[tuple[str, Matchers], list[Series]] = {}
        self._sampled: dict[tuple[Term, int], Vector] = {}
        self._read: dict[tuple[Expression, Sequence[str], int, int], Vector] = {}
        self.minute = 0

    def figure(self, shown: FigureRef) -> Vector:
        """The figure as its recording rule left it."""
        return self._instant(FIGURES[shown.figure].record(), shown.where, self.minute)

    def over(self, over: OverTime) -> Vector:
        """An aggregate of the figure's past."""
        return over_past(over, self.past(over.shown, over.window, over.before))

    def past(self, shown: FigureRef, window: str, before: str) -> Mapping[Labels, Sequence[float]]:
        """The figure's values minute by minute, of the window that ended so long before."""
        last = self.minute - duration_ms(before) // _MINUTE_MS
        first = last - duration_ms(window) // _MINUTE_MS
        found: dict[Labels, list[float]] = {}
        for series in self._choose(FIGURES[shown.figure].record(), shown.where):
            found[series.labels] = _there(self._series[series][max(first, 0) : max(last + 1, 0)])
        return found

    def own(self, own: SelfMetric, before: str = "") -> Vector:
        """The collector's own series, or their increase."""
        if own.increase_over:
            return self._evaluated(Increase(own.name, own.where), own.by, duration_ms(own.increase_over))
        return self._instant(own.name, own.where, self.minute - duration_ms(before) // _MINUTE_MS)

    def highest(self, own: SelfMetric, window: str) -> Vector:
        """The highest values of the collector's own series within a past window."""
        first = max(self.minute - duration_ms(window) // _MINUTE_MS, 0)
        found: Vector = {}
        for series in self._choose(own.name, own.where):
            if seen := _there(self._series[series][first : self.minute + 1]):
                found[series.labels] = max(seen)
        return found

    def lately(self, lately: Subquery) -> Vector:
        """An aggregate of a term at the whole multiples of `every` within a past window."""
        now, every = self.minute, duration_ms(lately.every) // _MINUTE_MS
        last = now - duration_ms(lately.before) // _MINUTE_MS
        first = max(last - duration_ms(lately.window) // _MINUTE_MS, 0)
        past: dict[Labels, list[float]] = {}
        for minute in range(-(-first // every) * every, last + 1, every):
            if (lately.of, minute) not in self._sampled:
                self.minute = minute
                self._sampled[lately.of, minute] = values_of(lately.of, Instant(self))
            for labels, value in self._sampled[lately.of, minute].items():
                past.setdefault(labels, []).append(value)
        self.minute = now
        return over_past(lately, past)

    def measured(self, measured: AdHocExpression) -> Vector:
        """An expression over the default window."""
        return self._evaluated(measured.expression, measured.labels, _LOOKBACK_MINUTES * _MINUTE_MS)

    def badness(self, badness: BadRatio) -> Vector:
        """An objective's bad share, as its recording rule left it."""
        return self._instant(badness.objective.record(badness.window), (), self.minute)

    def ended(self, ended: RequestsEnded) -> Vector:
        """The requests that ended, as their recording rule left them."""
        return self._instant(record_ended(ended.window), (), self.minute)

    def _instant(self, name: str, where: Matchers, minute: int) -> Vector:
        found: Vector = {}
        for series in self._choose(name, where):
            latest = self._latest[series]
            if 0 <= minute < len(latest) and (value := latest[minute]) is not None:
                found[series.labels] = value
        return found

    def _choose(self, name: str, where: Matchers) -> list[Series]:
        if (name, where) not in self._chosen:
            self._chosen[name, where] = [
                series for series in self._series if series.name == name and matches(dict(series.labels), where)
            ]
        return self._chosen[name, where]

    def _evaluated(self, expression: Expression, by: Sequence[str], window_ms: int) -> Vector:
        key = expression, by, window_ms, self.minute
        if key not in self._read:
            self._read[key] = self._evaluate(expression, by, window_ms)
        return self._read[key]

    def _evaluate(self, expression: Expression, by: Sequence[str], window_ms: int) -> Vector:
        last = self.minute + 1
        first = max(last - window_ms // _MINUTE_MS - _LOOKBACK_MINUTES, 0)
        values = np.array(
            [[np.nan if value is None else value for value in values[first:last]] for values in self._series.values()]
        )
        times = np.arange(first, first + values.shape[1], dtype=np.int64) * _MINUTE_MS
        window = Window(tuple(self._series), times, values)
        return evaluate(expression, [window], at_ms=self.minute * _MINUTE_MS, window_ms=window_ms, by=by)


def _parsed(text: str) -> Series:
    name, _, rest = text.partition("{")
    return Series(name, make_labels(re.findall(r'(\w+)="(.*?)"', rest)))


def _values(text: str) -> list[float | None]:
    return [None if word == "_" else math.nan if word == STALE else float(word) for word in text.split()]


def _latest(values: Sequence[float | None]) -> list[float | None]:
    """What an instant query finds at each minute: the last value, not too old; none where a series has ended."""
    latest: list[float | None] = []
    last, age = None, 0
    for value in [*values, *[None] * _LOOKBACK_MINUTES]:
        last, age = (last, age + 1) if value is None else (value, 0)
        latest.append(None if last is None or math.isnan(last) or age > _LOOKBACK_MINUTES else last)
    return latest


def _there(values: Iterable[float | None]) -> list[float]:
    """The values without those that are missing, and without the marks of an end."""
    return [value for value in values if value is not None and not math.isnan(value)]
