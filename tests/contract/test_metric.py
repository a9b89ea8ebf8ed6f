"""A metric that no exposition could hold is refused where it is written down."""

from __future__ import annotations

import math
from typing import Any

import pytest

from servescope.contract.types import Metric
from servescope.errors import UsageError

GOOD: dict[str, Any] = {"name": "wait", "kind": "gauge", "unit": "seconds", "component": "engine", "help": "Waiting."}
COUNTER = {"name": "waits_total", "kind": "counter"}
HISTOGRAM = {"name": "wait_seconds", "kind": "histogram"}


@pytest.mark.parametrize("changes", [{}, COUNTER, {**HISTOGRAM, "edges": (0.5, 1.0)}, {"labels": ("gpu", "reason")}])
def test_a_good_metric_is_taken(changes: dict[str, Any]) -> None:
    """As it is given."""
    assert Metric(**GOOD | changes).help == "Waiting."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a.b"}, "metric name 'a.b' is not allowed"),
        ({"name": "1st"}, "metric name '1st' is not allowed"),
        ({"name": ""}, "metric name '' is not allowed"),
        ({"name": "wait\n"}, "is not allowed"),
        ({"kind": "counter"}, "counter 'wait' has no '_total'"),
        ({"name": "waits_total"}, "gauge 'waits_total' ends with a suffix that means something else"),
        ({"name": "wait_count"}, "gauge 'wait_count' ends with a suffix"),
        ({**COUNTER, "name": "wait_sum_total"}, "counter 'wait_sum_total' ends with a suffix"),
        ({"kind": "summary"}, "unknown kind 'summary', supported: counter, gauge, histogram"),
        ({"unit": "milliseconds"}, "unknown unit 'milliseconds', supported: bytes, "),
        ({"labels": ("le",)}, "label 'le' is taken, reserved: model_name, "),
        ({"labels": ("replica",)}, "label 'replica' is taken"),
        ({"labels": ("a-b",)}, "label 'a-b' is not allowed"),
        ({"labels": ("__name__",)}, "label '__name__' is not allowed"),
        ({"labels": ("gpu", "gpu")}, "a label is named twice in"),
        ({"label_values": {"state": ("on",)}}, "values are given for"),
        ({"edges": (1.0,)}, "gauge 'wait' has edges"),
        ({**HISTOGRAM, "edges": ()}, "expected at least one, all finite"),
        ({**HISTOGRAM, "edges": (1.0, math.inf)}, "expected at least one, all finite"),
        ({**HISTOGRAM, "edges": (math.nan, 1.0)}, "expected at least one, all finite"),
        ({**HISTOGRAM, "edges": (1.0, 1.0)}, "edge 1.0 follows 1.0, expected ascending edges"),
        ({**HISTOGRAM, "edges": (2.0, 1.0)}, "edge 1.0 follows 2.0"),
    ],
)
def test_a_bad_metric_is_refused(changes: dict[str, Any], message: str) -> None:
    """With the value and what was expected."""
    with pytest.raises(UsageError, match=message):
        Metric(**GOOD | changes)
