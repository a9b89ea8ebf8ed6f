"""Alerts without a Prometheus fire at the very evaluations at which promtool finds that Prometheus' do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from servescope.alerting.alerts import ALERTS
from servescope.alerting.evaluation import Active, advance, duration_ms, holding, over_past
from servescope.alerting.records import Badness, Measured, Over, Own, Shown, labels_of
from servescope.contract.expressions import Increase, Vector, matches
from servescope.contract.figures import FIGURES
from servescope.contract.readings import evaluate
from servescope.contract.samples import Labels, Series, Window, make_labels
from tests.alerts.test_alerts import proven
from tests.support.alert_proofs import PROOFS

MINUTE_MS = 60_000
LOOKBACK = 5


class Recorded:
    """The series of one of promtool's tests, as an evaluation at a minute sees them."""

    def __init__(self, given: Sequence[Mapping[str, str]]) -> None:
        self._series = {_parsed(each["series"]): _values(each["values"]) for each in given}
        self.minute = 0

    def figure(self, shown: Shown) -> Vector:
        return self._instant(FIGURES[shown.figure].record(), shown.where, self.minute)

    def over(self, over: Over) -> Vector:
        return over_past(over, self.past(over.shown, over.window, over.before))

    def past(self, shown: Shown, window: str, before: str) -> Mapping[Labels, Sequence[float]]:
        last = self.minute - duration_ms(before) // MINUTE_MS
        first = last - duration_ms(window) // MINUTE_MS
        found: dict[Labels, list[float]] = {}
        for (name, labels), values in self._series.items():
            if name == FIGURES[shown.figure].record() and matches(dict(labels), shown.where):
                within = values[max(first, 0) : max(last + 1, 0)]
                found[labels] = [value for value in within if value is not None]
        return found

    def own(self, own: Own, before: str = "") -> Vector:
        if own.increase_over:
            return self._evaluated(Increase(own.name, own.where), own.by, duration_ms(own.increase_over))
        return self._instant(own.name, own.where, self.minute - duration_ms(before) // MINUTE_MS)

    def measured(self, measured: Measured) -> Vector:
        return self._evaluated(measured.expression, measured.labels, LOOKBACK * MINUTE_MS)

    def badness(self, badness: Badness) -> Vector:
        return self._instant(badness.objective.record(badness.window), (), self.minute)

    def _instant(self, name: str, where: Any, minute: int) -> Vector:
        found: Vector = {}
        for (own_name, labels), values in self._series.items():
            recent = [value for value in values[max(minute - LOOKBACK, 0) : max(minute + 1, 0)] if value is not None]
            if own_name == name and matches(dict(labels), where) and recent:
                found[labels] = recent[-1]
        return found

    def _evaluated(self, expression: Any, by: Sequence[str], window_ms: int) -> Vector:
        last = self.minute + 1
        first = max(last - window_ms // MINUTE_MS - LOOKBACK, 0)
        values = np.array(
            [[np.nan if value is None else value for value in values[first:last]] for values in self._series.values()]
        )
        times = np.arange(first, first + values.shape[1], dtype=np.int64) * MINUTE_MS
        window = Window(tuple(self._series), times, values)
        return evaluate(expression, [window], at_ms=self.minute * MINUTE_MS, window_ms=window_ms, by=by)


def _parsed(text: str) -> Series:
    name, _, rest = text.partition("{")
    return Series(name, make_labels(re.findall(r'(\w+)="(.*?)"', rest)))


def _values(text: str) -> list[float | None]:
    return [None if word == "_" else float(word) for word in text.split()]


@pytest.mark.parametrize("name", ALERTS)
def test_fires_when_prometheus_does(name: str) -> None:
    """Every story of every proof: the same labels at the same minutes, pending, firing, kept and resolved."""
    alert = ALERTS[name]
    for test in proven(name):
        view, states = Recorded(test["input_series"]), dict[Labels, Active]()
        expected = {
            minutes_of(check["eval_time"]): [make_labels(each["exp_labels"]) for each in check["exp_alerts"]]
            for check in test["alert_rule_test"]
        }
        for view.minute in range(max(expected) + 1):
            held = holding(alert.condition, view)
            states = advance(alert, states, held, view.minute * MINUTE_MS)
            if view.minute in expected:
                firing = [
                    make_labels({**dict(labels), **alert.labels})
                    for labels, active in states.items()
                    if active.fired_ms is not None
                ]
                assert firing == expected[view.minute], f"{test['name']}, minute {view.minute}"


def minutes_of(time: str) -> int:
    return int(time.removesuffix("m"))


@pytest.mark.parametrize("name", ALERTS)
def test_a_condition_has_the_labels_it_is_said_to_have(name: str) -> None:
    """What annotations, inhibitions and routes go by."""
    assert set(PROOFS[name].labels) <= set(labels_of(ALERTS[name].condition))
