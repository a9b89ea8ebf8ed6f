"""The emulated stack: an alert's condition holds while its fault is on, and no alert fires while all is well."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from servescope.alerting.alerts import ALERTS
from servescope.alerting.evaluation import Active, active_now, advance, duration_ms
from servescope.alerting.records import (
    AdHocExpression,
    Alert,
    BadRatio,
    FigureRef,
    OverTime,
    RequestsEnded,
    SelfMetric,
    Subquery,
    conditions_of,
    terms,
)
from servescope.contract.expressions import Vector, matches
from servescope.contract.samples import Labels, make_labels
from servescope.emulator.faults.faults import parse_fault
from tests.support.observed_stack import ObservedStack, observed
from tests.support.story_view import over_past

pytestmark = pytest.mark.proof
STEP_SECONDS = 15.0
WARM_SECONDS = 600.0
_FLOORS = {
    "ServescopeUpButNotServing", "ServescopeRouterIndexDegraded", "ServescopeReplicaSlow", "ServescopeRouterHotSpot",
}  # fmt: skip
FAULTS = {
    "draft-misaligned": "ServescopeSpeculationBelowBreakEven",
    "router-losing-events": "ServescopeCacheEventGaps",
    "cache-churn": "ServescopeCacheChurn",
    "router-balances": "ServescopeRoutingInefficient",
    "replica-crash-loop": "ServescopeReplicaCrashLoop",
    "router-deaf": "ServescopeCacheEventsMissed",
    "draft-late-positions": "ServescopeDraftCollapsesLate",
    "autoscaler-pinned": "ServescopeAutoscalerPinned",
}


def _is_of_figures(alert: Alert) -> bool:
    read = [term for condition in conditions_of(alert) for term in terms(condition)]
    is_of_more = any(isinstance(term, SelfMetric | BadRatio | RequestsEnded | Subquery) for term in read)
    return not is_of_more and alert.name not in _FLOORS


OF_FIGURES = [alert for alert in ALERTS.values() if alert.severity != "none" and _is_of_figures(alert)]
"""Those that read a collector's figures; what they measure beside them is whether there is traffic, and there is."""


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


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def test_a_healthy_stack_calls_nobody(tmp_path: Path) -> None:
    """Forty minutes of steady traffic: nothing fires but advice on tuning."""
    fired = set()
    with observed(tmp_path) as stack:
        watched = Watched(stack)
        states: dict[str, dict[Labels, Active]] = {alert.name: {} for alert in OF_FIGURES}
        for _ in range(int(2400 / STEP_SECONDS)):
            now_ms = watched.step()
            for alert in OF_FIGURES:
                before = states[alert.name]
                states[alert.name] = advance(alert, before, active_now(alert, before, watched), now_ms)
                fired |= {alert.name for active in states[alert.name].values() if active.fired_ms is not None}

    assert {name for name in fired if ALERTS[name].severity != "info"} == set()


@pytest.mark.parametrize(("fault", "name"), FAULTS.items())
def test_an_alert_fires_during_its_fault_and_resolves_after_it(tmp_path: Path, fault: str, name: str) -> None:
    """The alert is not there before, fires within half an hour of its `for`, and is resolved after the fault."""
    alert = ALERTS[name]
    with observed(tmp_path) as stack:
        watched = Watched(stack)
        states: dict[Labels, Active] = {}

        def passes(seconds: float) -> Iterator[bool]:
            nonlocal states
            for _ in range(int(seconds / STEP_SECONDS)):
                now_ms = watched.step()
                states = advance(alert, states, active_now(alert, states, watched), now_ms)
                yield any(active.fired_ms is not None for active in states.values())

        assert not any(passes(WARM_SECONDS))
        on = stack.faults.switch_on(parse_fault(fault))
        assert any(passes(duration_ms(alert.for_) / 1000 + 1800))
        stack.faults.switch_off(on.number)
        assert not all(passes(duration_ms(alert.keep_firing_for) / 1000 + 1800))
