"""An alert's links: to its runbook, and to the panel in Grafana, with the dashboard's variables set to its labels.

Panel ids are derived from panel titles, so that links do not depend on the dashboards.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from servescope.alerting.rules.records import (
    Alert,
    Any,
    BadRatio,
    Because,
    Compare,
    Condition,
    FigureRef,
    Term,
    by_cause,
    decisive,
    labels_of,
)
from servescope.contract.figures import FIGURES

DASHBOARD_PREFIX: Final = "servescope"
"""The default prefix of every dashboard's uid."""

RUNBOOKS: Final = "http://localhost:8501/alerts?alert={alert}"
"""The default URL of an alert's runbook: the console's page, where it listens by default."""

HEALTH: Final = "health"
CUTOVER: Final = "cutover"
CUSTOMERS: Final = "customers"

OF_MONITORING: Final = (HEALTH, CUSTOMERS)
"""The dashboards about the monitoring itself, which have no deployments."""

VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "environment": "environment",
        "model_name": "model",
        "inference_stack": "stack",
        "deployment_id": "deployment",
        "replica": "replica",
        "customer": "customer",
        "destination": "destination",
    }
)
"""The dashboards' variable of each label."""


def runbook_url(runbooks: str, alert: str) -> str:
    """The URL of an alert's runbook: `runbooks` with the name for `{alert}`, or without it the page in that folder."""
    if "{alert}" in runbooks:
        return runbooks.replace("{alert}", alert)
    return f"{runbooks.rstrip('/')}/{alert}.md"


def is_runbooks(text: str) -> bool:
    """Whether it is a URL that `runbook_url` completes."""
    return re.fullmatch(r"https?://[^\s/?#{}]+(?:[^\s{}]|\{alert\})*", text) is not None


def dashboard_path(alert: Alert, prefix: str = DASHBOARD_PREFIX) -> str:
    """The path after Grafana's `/d/`, as a Prometheus template with the alert's `$labels`.

    The time range is the dashboard's default. An empty label selects deployments without that label.
    """
    chosen = "".join(f"&var-{name}={{{{ $labels.{label} | urlquery }}}}" for label, name in _variables(alert).items())
    causes = causes_of(alert)
    panels = {cause: str(panel_id(panel_title(each))) for cause, each in causes.items()}
    if len({*panels.values()}) <= 1:
        return f"{panel_path(next(iter(causes.values()), alert), prefix)}{chosen}"
    return f"{prefix}-{alert.dashboard}?viewPanel=panel-{by_cause(panels)}{chosen}"


def panel_path(alert: Alert, prefix: str = DASHBOARD_PREFIX) -> str:
    """The path after Grafana's `/d/` of the panel, with the dashboard's variables as they are by default."""
    return f"{prefix}-{alert.dashboard}?viewPanel=panel-{panel_id(panel_title(alert))}"


def causes_of(alert: Alert) -> Mapping[str, Alert]:
    """The alert on each of its causes alone, by the cause; none where it has no causes."""
    parts = alert.condition.conditions if isinstance(alert.condition, Any) else (alert.condition,)
    return {
        each.cause: replace(alert, condition=each.condition, panel=each.panel or alert.panel)
        for each in parts
        if isinstance(each, Because)
    }


def _variables(alert: Alert) -> dict[str, str]:
    labels = labels_of(alert.condition)
    if alert.dashboard == HEALTH:
        kept: tuple[str, ...] = ("deployment_id",)
    elif alert.dashboard == CUTOVER:
        # The alert is on the new stack; the stack that it is compared with has to be visible as well.
        kept = ("environment", "model_name")
    elif alert.dashboard == CUSTOMERS:
        kept = ("customer", "destination")
    else:
        kept = tuple(VARIABLES)
    return {label: name for label, name in VARIABLES.items() if label in labels and label in kept}


def panel_id(title: str) -> int:
    """A panel's id, derived from its title, so that links stay valid when panels are added."""
    return 1 + zlib.crc32(title.encode()) % 1_000_000


def panel_title(alert: Alert) -> str:
    """The title of the panel that shows an alert: that of its figure or objective, or one made of the alert's name."""
    if alert.panel:
        return alert.panel
    match compared(alert.condition):
        case FigureRef(figure, ()):
            return FIGURES[figure].title
        case BadRatio(objective, _):
            return f"{objective.title}: bad share"
        case _:
            words = re.findall(r"[A-Z][a-z]+", alert.name)[1:]
            return " ".join(words).capitalize()


def compared(condition: Condition) -> Term | None:
    """The first term that a condition compares, whose value notifications show; None without a comparison."""
    first = next(decisive(condition), None)
    return first.left if isinstance(first, Compare) else None
