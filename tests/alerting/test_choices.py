"""Chosen numbers and names replace the catalog's in conditions and in texts."""

from __future__ import annotations

import pytest

from servescope.alerting.alerts import ALERTS, make_alerts
from servescope.alerting.rules.choices import Choices, Name, bound, resolve
from servescope.alerting.rules.promql import alert_promql
from servescope.contract.bounds import FAILED_SHARE, SPLIT_MARGIN


@pytest.mark.parametrize("name", ALERTS)
def test_no_placeholder_is_left_in_an_alert(name: str) -> None:
    """Neither in a text nor in the PromQL of its condition."""
    alert = ALERTS[name]
    texts = (alert.summary, alert.description, repr(alert.runbook))
    assert not [text for text in (*texts, alert_promql(alert)) if "⟨" in text or "⟩" in text]


def test_a_number_has_the_chosen_value_in_its_format() -> None:
    """As a share, with a sign, negated, and as a plain number; other numbers keep the catalog's value."""
    number = bound(FAILED_SHARE)
    choices = Choices(bounds={FAILED_SHARE.name: 0.25})

    assert resolve((number, -number, bound(SPLIT_MARGIN)), choices) == (0.25, -0.25, SPLIT_MARGIN.value)
    assert resolve(f"{number:%} {number:+%} {-number:%} {number:g}", choices) == "25 % +25 % -25 % 0.25"


def test_a_stack_has_the_chosen_name() -> None:
    """In the texts and conditions of the alerts on a cutover."""
    assert resolve(f"beside {Name('old_stack')}", Choices(old_stack="vllm")) == "beside vllm"
    alert = make_alerts(Choices(old_stack="vllm", new_stack="trtllm"))["ServescopeNewStackWorse"]
    assert "vllm" in alert.description
    assert 'inference_stack="trtllm"' in alert_promql(alert)
