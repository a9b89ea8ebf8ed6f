"""An observed stack's figures as alerts read them, evaluation by evaluation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from servescope.alerting.rules.evaluation import duration_ms
from servescope.alerting.rules.records import (
    AdHocExpression,
    BadRatio,
    FigureRef,
    OverTime,
    RequestsEnded,
    SelfMetric,
    Subquery,
)
from servescope.contract.expressions import Vector, matches
from servescope.contract.samples import Labels, make_labels
from tests.support.observed_stack import ObservedStack
from tests.support.story_view import over_past

STEP_SECONDS = 15.0
"""Between two evaluations."""


class Watched:
    """The figures of an observed stack's deployments, evaluation by evaluation."""

    def __init__(self, stack: ObservedStack) -> None:
        self._stack = stack
        self._past: list[dict[str, Vector]] = []

    def step(self) -> int:
        """Let time pass and evaluate; the instant in milliseconds."""
        self._stack.run(STEP_SECONDS)
        now_ms = self._stack.collector.clock.now_ms
        seen: dict[str, Vector] = {}
        for deployment, derivation in self._stack.collector.evaluating.evaluate(now_ms).deployments.items():
            for key, value in derivation.figures.items():
                name, _, own = key.partition("{")
                labels = make_labels([*deployment.labels(), *re.findall(r'(\w+)="(.*?)"', own)])
                seen.setdefault(name, {})[labels] = value
        self._past.append(seen)
        return now_ms

    def figure(self, shown: FigureRef) -> Vector:
        found = self._past[-1].get(shown.figure, {})
        return {labels: value for labels, value in found.items() if matches(dict(labels), shown.where)}

    def over(self, over: OverTime) -> Vector:
        return over_past(over, self.past(over.shown, over.window, over.before))

    def past(self, shown: FigureRef, window: str, before: str) -> Mapping[Labels, Sequence[float]]:
        last = len(self._past) - int(duration_ms(before) / 1000 / STEP_SECONDS)
        first = max(last - int(duration_ms(window) / 1000 / STEP_SECONDS) - 1, 0)
        found: dict[Labels, list[float]] = {}
        for seen in self._past[first : max(last, 0)]:
            for labels, value in seen.get(shown.figure, {}).items():
                if matches(dict(labels), shown.where):
                    found.setdefault(labels, []).append(value)
        return found

    def measured(self, _: AdHocExpression) -> Vector:
        # What is no figure is not on the collector's page; the floors of traffic are proven with promtool.
        return {labels: 1e6 for labels, value in self.figure(FigureRef("request_rate")).items() if value > 0}

    def own(self, own: SelfMetric, before: str = "") -> Vector:
        raise AssertionError(f"{own.name}: no alert tried here reads the collector's own series")

    def highest(self, own: SelfMetric, window: str) -> Vector:
        raise AssertionError(f"{own.name}: no alert tried here reads the collector's own series")

    def lately(self, lately: Subquery) -> Vector:
        raise AssertionError(f"{lately}: no alert tried here samples a past")

    def badness(self, badness: BadRatio) -> Vector:
        raise AssertionError(f"{badness}: no alert tried here reads an objective")

    def ended(self, ended: RequestsEnded) -> Vector:
        raise AssertionError(f"{ended}: no alert tried here reads an objective")
