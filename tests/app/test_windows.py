"""The console on a Prometheus whose rules say that scrapes are missing of a deployment's window."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from servescope.contract.identity import Deployment
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.history import PrometheusHistory
from tests.support.answering import Handler, answering

if TYPE_CHECKING:
    from streamlit.testing.v1 import AppTest

pytestmark = pytest.mark.slow

CHAT, CODE = (Deployment("llama", name, "v2", "production") for name in ("chat", "code"))
NOW = 1_800_000_000.0
_COVERED = {CHAT: 0.72, CODE: 0.95}


def _answer(request: Handler) -> None:
    """Figures of two deployments, of one of which the rules have a part of the window."""
    query = request.parameters.get("query", [""])[0]
    found = []
    for deployment, share in _COVERED.items():
        labels = dict(deployment.labels())
        if query.endswith("(servescope_window_coverage_ratio) < 0.9") and share < 0.9:
            found.append((labels, share))
        elif "servescope_figure" in query:
            found += [
                ({"servescope_figure": "request_rate", **labels}, 3.0),
                ({"servescope_figure": "time", **labels}, NOW),
            ]
    series = [{"__name__": "deployment:requests:rate5m", **dict(deployment.labels())} for deployment in _COVERED]
    request.found(series, found, NOW)


def test_what_is_missing_of_windows_is_read() -> None:
    """The share of those that are not whole, and no other."""
    with answering(_answer) as url:
        history = PrometheusHistory(Prometheus(url), clock=lambda: NOW)
        assert history.uncovered(round(NOW * 1000)) == {CHAT: 0.72}


def test_fleet_page_marks_totals_that_are_too_low(open_on_prometheus: Callable[..., AppTest]) -> None:
    """By how much, for the deployment that it concerns alone."""
    with answering(_answer) as url:
        captions = "\n".join(each.value for each in open_on_prometheus("fleet", url).caption)

    assert "Totals of `chat` (v2) are too low: of their window 72.0 % of the usual scrapes are there." in captions
    assert "`code`" not in captions
