"""Harm that the fleet page counts is marked in the deployment's row, whether its figure has a column or not."""

from __future__ import annotations

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

import pandas as pd

from app.charts import tables
from app.data.queries import Shown
from servescope.contract.identity import Deployment
from tests.app.support.canned_cutover import NOW_MS

ONE = Shown(Deployment("llama", "chat", "v2"), "chat", 0, "#123456")
UNSHOWN = "time_to_first_token_p99"


def row(**values: float) -> str:
    """The row of a deployment with these figures."""
    fleet = pd.DataFrame.from_dict({"chat": {"time_ms": float(NOW_MS), **values}}, orient="index")
    return tables.draw_fleet(
        fleet, [ONE], {"chat": []}, lambda *_: "absent", now_ms=NOW_MS, window_ms=300_000, parameters={}
    )


def test_harm_without_a_column_is_named_beside_the_deployment() -> None:
    """With its value, in the colour in which it is counted."""
    assert UNSHOWN not in tables.FLEET_FIGURES
    text = row(**{UNSHOWN: 30.0, "time_to_first_token_p95": 0.2})

    assert "Time to first token, p99 <span" in text
    assert 'class="value band ' in text
    assert "30 s" in text


def test_harm_that_has_a_column_is_not_named_twice() -> None:
    """Nor is anything where nothing is beyond."""
    assert "Time to first token, p99 <span" not in row(**{UNSHOWN: 30.0, "time_to_first_token_p95": 30.0})
    assert "Time to first token, p99 <span" not in row(**{UNSHOWN: 0.1, "time_to_first_token_p95": 0.1})
