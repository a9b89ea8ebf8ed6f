"""Alerts are evaluated over arrays whose label sets are remembered: values must be those of the present labels."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from servescope.alerting.rules.evaluation import Instant, compile_alert, values_of
from servescope.alerting.rules.records import Alert, All, Compare, Except, FigureRef, Quotient, Total
from servescope.contract.expressions import Vector
from servescope.contract.samples import Labels, make_labels

_RATE, _IN_FLIGHT, _QUEUED = FigureRef("request_rate"), FigureRef("concurrent_requests"), FigureRef("queued_requests")


class _View:
    """A view of figures; counts what is read."""

    def __init__(self, **figures: dict[str, float]) -> None:
        self.read: Counter[str] = Counter()
        self._figures: dict[str, Vector] = {
            figure: {
                make_labels({"model_name": "llama", "deployment_id": of}.items()): value for of, value in own.items()
            }
            for figure, own in figures.items()
        }

    def figure(self, shown: FigureRef) -> Vector:
        self.read[shown.figure] += 1
        return self._figures.get(shown.figure, {})


def _labels(deployment: str) -> Labels:
    return make_labels((("deployment_id", deployment), ("model_name", "llama")))


def _by_deployment(vector: Vector) -> dict[str, float]:
    return {dict(labels).get("deployment_id", ""): value for labels, value in vector.items()}


def _instant(view: Any) -> Instant:
    return Instant(view)


def test_a_fleet_that_changes_is_matched_anew() -> None:
    """Deployments come, go, and change their order; the quotient is always of the same deployment's values."""
    quotient = Quotient(_IN_FLIGHT, _RATE)
    fleets: list[tuple[dict[str, float], dict[str, float], dict[str, float]]] = [
        ({"a": 4.0, "b": 6.0}, {"a": 2.0, "b": 3.0}, {"a": 2.0, "b": 2.0}),
        ({"b": 6.0, "a": 4.0}, {"a": 2.0, "b": 3.0}, {"a": 2.0, "b": 2.0}),
        ({"a": 4.0, "b": 6.0}, {"b": 3.0}, {"b": 2.0}),
        ({"a": 4.0}, {"b": 3.0}, {}),
        ({"a": 4.0, "b": 6.0, "c": 1.0}, {"c": 0.0, "b": 1.0, "a": 1.0}, {"a": 4.0, "b": 6.0}),
        ({"a": 4.0, "b": 6.0}, {"a": 2.0, "b": 3.0}, {"a": 2.0, "b": 2.0}),
    ]
    for in_flight, rates, expected in fleets:
        view = _View(concurrent_requests=in_flight, request_rate=rates)
        assert _by_deployment(values_of(quotient, _instant(view))) == expected


@pytest.mark.parametrize(
    ("queued", "expected"),
    [({"a": 9.0, "b": 9.0}, {"a": 5.0}), ({"b": 9.0}, {}), ({"a": 9.0}, {"a": 5.0}), ({}, {})],
)
def test_conditions_are_matched_by_deployment(queued: dict[str, float], expected: dict[str, float]) -> None:
    """All of two conditions, unless a third holds; the value is the first one's."""
    condition = Except(All((Compare(_IN_FLIGHT, ">", 1.0), Compare(_QUEUED, ">", 1.0))), Compare(_RATE, ">=", 7.0))
    alert = Alert("Test", "warning", "", "", condition, "", "", None, "", "")  # type: ignore[arg-type] # no runbook
    compiled = compile_alert(alert)
    view = _View(concurrent_requests={"a": 5.0, "b": 6.0, "c": 7.0}, queued_requests=queued, request_rate={"b": 7.0})
    assert _by_deployment(compiled.active({}, _instant(view))) == expected


def test_what_alerts_share_is_read_once() -> None:
    """Two conditions and a total read the same figure of one instant; the next instant reads it again."""
    view = _View(concurrent_requests={"a": 5.0, "b": 6.0})
    at = _instant(view)
    assert _by_deployment(values_of(_IN_FLIGHT, at)) == {"a": 5.0, "b": 6.0}
    assert values_of(Total(_IN_FLIGHT, ("model_name",)), at) == {(("model_name", "llama"),): 11.0}
    assert view.read == {"concurrent_requests": 1}
    values_of(_IN_FLIGHT, _instant(view))
    assert view.read == {"concurrent_requests": 2}
