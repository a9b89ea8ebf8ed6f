"""Alerts without a Prometheus fire at the very evaluations at which promtool finds that Prometheus' do."""

from __future__ import annotations

import pytest

from servescope.alerting.alerts import ALERTS
from servescope.alerting.records import labels_of
from tests.support.alert_proofs import PROOFS, stories_of
from tests.support.story_view import first_difference


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.proof] * (name == "ServescopeRouterHotSpot")) for name in ALERTS]
)
def test_fires_when_prometheus_does(name: str) -> None:
    """Every story of every proof: the same labels and annotations at the same minutes, firing, kept and resolved."""
    assert first_difference(ALERTS[name], stories_of(name)) == ""


@pytest.mark.parametrize("name", ALERTS)
def test_a_condition_has_the_labels_it_is_said_to_have(name: str) -> None:
    """Annotations, inhibitions and routes use them."""
    assert set(PROOFS[name].labels) <= set(labels_of(ALERTS[name].condition))
