"""The console on a Prometheus that holds several tenants, or clusters, which have a deployment and replicas alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from servescope.contract.identity import Identity
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.history import PrometheusHistory
from tests.support.answering import Handler, answering
from tests.support.console_pages import html, read

if TYPE_CHECKING:
    from streamlit.testing.v1 import AppTest

pytestmark = pytest.mark.slow

R0 = Identity("llama", "chat", "v2", "production", replica="r0")
UNKNOWN = {**dict(R0.labels()), "replica": "r7", "role": "worker"}
ALONE = Identity("llama", "code", "v2", "production", replica="r0")
NOW = 1_800_000_000.0
_TENANTS = {"a": 1.0, "b": 0.0}
_SCRAPED = [
    ({**dict(R0.labels()), "cluster": "eu", "__tenant_id__": tenant}, up) for tenant, up in _TENANTS.items()
] + [({**dict(ALONE.labels()), "cluster": "eu", "__tenant_id__": "a"}, 1.0), (UNKNOWN, 1.0)]
_FIGURES = [{"servescope_figure": figure, **dict(R0.deployment().labels())} for figure in ("request_rate", "time")]


def _answer(request: Handler) -> None:
    """What a federated query returns: the health of the same replica of two tenants, one of which is down."""
    query = request.parameters.get("query", [""])[0]
    values: list[tuple[dict[str, str], float]] = []
    if query in ("servescope_target_up", "timestamp(servescope_target_up)"):
        values = [
            ({"__name__": "servescope_target_up", **labels}, NOW if "(" in query else up) for labels, up in _SCRAPED
        ]
    elif "servescope_figure" in query:
        values = [(labels, NOW if labels["servescope_figure"] == "time" else 3.0) for labels in _FIGURES]
    request.found([{"__name__": "servescope_target_up", **labels} for labels, _ in _SCRAPED], values, NOW)


def test_replicas_of_two_tenants_are_two() -> None:
    """The one that is down is not hidden behind the other's health; a replica that nobody else has keeps its name."""
    with answering(_answer) as url:
        history = PrometheusHistory(Prometheus(url), clock=lambda: NOW)
        assert [(status.identity.replica, status.healthy) for status in history.targets()] == [
            ("r0@a@eu", True), ("r0@b@eu", False), ("r0", True),
        ]  # fmt: skip
        assert list(history.spread()) == [R0.deployment()]
        # The parts of the one are recorded: no rule is missing for that its whole is computed.
        assert set(history.missing_rules()) == {"alerting.rules.yml"}


def test_pages_name_the_tenants(open_on_prometheus: Callable[..., AppTest]) -> None:
    """By the labels in which they differ; each replica has its tenant in its name."""
    with answering(_answer) as url:
        fleet, sources = (open_on_prometheus(name, url) for name in ("fleet", "sources"))
        assert "chat (v2) has targets in __tenant_id__=a and in __tenant_id__=b" in _captions_and_warnings(fleet)
        assert "r0@a@eu" in html(sources)
        assert "r0@b@eu" in html(sources)
        assert "target 'r7': unknown role 'worker', supported: aggregated" in _captions_and_warnings(sources)


def _captions_and_warnings(page: AppTest) -> str:
    return "\n".join(read(each.value) for each in (*page.caption, *page.warning))
