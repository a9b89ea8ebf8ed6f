"""A cutover from one engine to another, each read in its own names: alerts on both figures hold as on our own."""

from __future__ import annotations

from pathlib import Path

import pytest

from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.evaluation import Instant, compile_alert
from servescope.emulator.deployment.stack import V1, V2
from servescope.emulator.faults.faults import parse_fault
from tests.alerts.support.watched_stack import Watched
from tests.support.observed_stack import STEADY, observed

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quiet")]

FAULTY_SECONDS = 20.0


def test_more_errors_on_the_new_engine_are_seen_in_its_names(tmp_path: Path) -> None:
    """v1 shown as vLLM and v2 as SGLang: the condition of the cutover's alert holds for v2 during its fault alone."""
    alert = compile_alert(ALERTS["ServescopeNewStackWorse"])
    with observed(tmp_path, STEADY, V1, V2, faces=["chat-v1=vllm", "chat-v2=sglang"]) as stack:
        watched = Watched(stack)
        watched.step()
        before = alert.active({}, Instant(watched))
        stack.faults.switch_on(parse_fault("error-burst:0.4@chat-v2"))
        stack.run(FAULTY_SECONDS)
        watched.step()
        during = alert.active({}, Instant(watched))

    assert before == {}
    assert [(dict(labels)["deployment_id"], dict(labels)["cause"]) for labels in during] == [("chat-v2", "errors")]
