"""The emulated stack: an alert's condition holds while its fault is on, and no alert fires while all is well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.evaluation import Active, Instant, advance, compile_alert, duration_ms
from servescope.alerting.rules.records import (
    Alert,
    BadRatio,
    RequestsEnded,
    SelfMetric,
    Subquery,
    conditions_of,
    terms,
)
from servescope.contract.samples import Labels
from servescope.emulator.faults.faults import parse_fault
from tests.alerts.support.watched_stack import STEP_SECONDS, Watched
from tests.support.observed_stack import observed

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("quiet")]
WARM_SECONDS = 600.0
_FLOORS = {
    "ServescopeUpButNotServing", "ServescopeReplicaDiffers", "ServescopeRouterHotSpot",
}  # fmt: skip
FAULTS = {
    "draft-misaligned": "ServescopeSpeculationBelowBreakEven",
    "router-losing-events": "ServescopeCacheEventsMissed",
    "cache-churn": "ServescopeCacheChurn",
    "router-balances": "ServescopeRoutingInefficient",
    "replica-crash-loop": "ServescopeReplicasFailed",
    "router-deaf": "ServescopeCacheEventsMissed",
    "autoscaler-pinned": "ServescopeAutoscalerPinned",
}


def _is_of_figures(alert: Alert) -> bool:
    read = [term for condition in conditions_of(alert) for term in terms(condition)]
    is_of_more = any(isinstance(term, SelfMetric | BadRatio | RequestsEnded | Subquery) for term in read)
    return not is_of_more and alert.name not in _FLOORS


OF_FIGURES = [alert for alert in ALERTS.values() if alert.severity != "none" and _is_of_figures(alert)]
"""Those that read a collector's figures; what they measure beside them is whether there is traffic, and there is."""


def test_a_healthy_stack_calls_nobody(tmp_path: Path) -> None:
    """Forty minutes of steady traffic: nothing fires but advice on tuning."""
    fired = set()
    with observed(tmp_path) as stack:
        watched = Watched(stack)
        states: dict[str, dict[Labels, Active]] = {alert.name: {} for alert in OF_FIGURES}
        compiled = {alert.name: compile_alert(alert) for alert in OF_FIGURES}
        for _ in range(int(2400 / STEP_SECONDS)):
            now_ms = watched.step()
            at = Instant(watched)
            for alert in OF_FIGURES:
                before = states[alert.name]
                states[alert.name] = advance(alert, before, compiled[alert.name].active(before, at), now_ms)
                fired |= {alert.name for active in states[alert.name].values() if active.fired_ms is not None}

    assert {name for name in fired if ALERTS[name].severity != "info"} == set()


@pytest.mark.parametrize(("fault", "name"), FAULTS.items())
def test_an_alert_fires_during_its_fault_and_resolves_after_it(tmp_path: Path, fault: str, name: str) -> None:
    """The alert is not there before, fires within half an hour of its `for`, and is resolved after the fault."""
    alert = ALERTS[name]
    with observed(tmp_path) as stack:
        watched, compiled = Watched(stack), compile_alert(alert)
        states: dict[Labels, Active] = {}

        def passes(seconds: float) -> Iterator[bool]:
            nonlocal states
            for _ in range(int(seconds / STEP_SECONDS)):
                now_ms = watched.step()
                states = advance(alert, states, compiled.active(states, Instant(watched)), now_ms)
                yield any(active.fired_ms is not None for active in states.values())

        assert not any(passes(WARM_SECONDS))
        on = stack.faults.switch_on(parse_fault(fault))
        assert any(passes(duration_ms(alert.for_) / 1000 + 1800))
        stack.faults.switch_off(on.number)
        assert not all(passes(duration_ms(alert.keep_firing_for) / 1000 + 1800))
