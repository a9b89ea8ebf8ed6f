"""The demo while all is well: none of its alerts fires, from its first minutes on."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from servescope.alerting.alerts import ALERTS
from servescope.contract.objectives import BURN_WINDOWS, OBJECTIVES
from servescope.emulator.faults.faults import make_fault
from servescope.emulator.scenario.scenario import read_scenario
from tests.support.observed_stack import START_SECONDS, ObservedStack

pytestmark = pytest.mark.usefixtures("quiet")

STEP_SECONDS = 15.0
SCENARIO = Path(str(files("servescope.demo") / "scenario.toml"))


def test_healthy_errors_are_within_the_objective() -> None:
    """Of each deployment: what fails without a fault does not even burn the budget of the slowest window."""
    slowest = min(row.factor for row in BURN_WINDOWS)
    for each in read_scenario(SCENARIO).deployments:
        assert each.plan.engine.error_share < slowest * OBJECTIVES["requests"].budget, each.plan.identity.deployment_id


@pytest.mark.proof
def test_a_healthy_demo_notifies_nobody_and_a_fault_pages(tmp_path: Path) -> None:
    """Forty minutes of its scenario from the first request on, then a burst of errors."""
    stack = read_scenario(SCENARIO).reporting_together().build(epoch=START_SECONDS)
    with ObservedStack(stack, tmp_path) as observed:
        healthy = _fired(observed, 40)
        observed.faults.switch_on(make_fault("error-burst", 0.2, deployment="chat-v2"))
        failing = _fired(observed, 10)

    assert {name for name in healthy if ALERTS[name].severity in ("critical", "warning")} == set()
    assert "ServescopeRequestsBudgetBurnsFast" in failing


def _fired(observed: ObservedStack, minutes: int) -> set[str]:
    """The alerts that the collector itself finds firing within so many minutes."""
    fired = set()
    for _ in range(int(minutes * 60 / STEP_SECONDS)):
        observed.run(STEP_SECONDS)
        observed.collector.evaluating.evaluate(observed.collector.clock.now_ms)
        states = observed.collector.alerts.states.instances()
        fired |= {each.alert for each in states if each.state == "firing"}
    return fired
