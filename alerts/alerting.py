"""The alert rules and the rules they stand on, in the forms that Prometheus, its operator and Mimir read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from alerts.recording import GROUP, HEADER, INTERVAL, recording_rule
from servescope.alert_links import DASHBOARD_PREFIX, dashboard_path
from servescope.alerting import Alert, condition_promql
from servescope.alerts import ALERTS
from servescope.catalog import BURN_WINDOWS, DEFAULT_WINDOW, FIGURES, OBJECTIVES
from servescope.expressions import promql
from servescope.identity import DEPLOYMENT_LABELS

Format = Literal["prometheus", "prometheusrule", "mimir"]
Group = dict[str, Any]

OBJECTIVES_INTERVAL = "1m"


@dataclass(frozen=True, slots=True)
class Links:
    """Where a notification leads: the folder of the runbooks, Grafana, and what its dashboards' uids begin with."""

    runbooks: str = "runbooks"
    grafana: str = "http://localhost:3000"
    dashboards: str = DASHBOARD_PREFIX


LINKS = Links()


def render_alert_rules() -> str:
    """The rule file of all alerts, one group per component."""
    return _rule_file(alert_groups())


def render_objective_rules() -> str:
    """The rule file that records the bad share of every objective over every window."""
    return _rule_file([objective_group()])


def render_bundle(form: Format, links: Links = LINKS) -> str:
    """All rules in one document: as a PrometheusRule of the operator, or as a namespace for mimirtool."""
    figures = {
        "name": GROUP,
        "interval": INTERVAL,
        "rules": [recording_rule(f, DEFAULT_WINDOW) for f in FIGURES.values()],
    }
    groups = [figures, objective_group(), *alert_groups(links=links)]
    if form == "prometheusrule":
        document: dict[str, Any] = {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": "servescope", "labels": {"app.kubernetes.io/name": "servescope"}},
            "spec": {"groups": groups},
        }
    else:
        document = {"namespace": "servescope", "groups": groups} if form == "mimir" else {"groups": groups}
    return HEADER + yaml.safe_dump(document, sort_keys=False, width=10_000)


def objective_group() -> Group:
    """The group of the objectives' bad shares."""
    windows = dict.fromkeys(window for row in BURN_WINDOWS for window in (row.short, row.long))
    rules = [
        {"record": objective.record(window), "expr": promql(objective.bad, window=window, by=DEPLOYMENT_LABELS)}
        for objective in OBJECTIVES.values()
        for window in windows
    ]
    return {"name": "servescope-objectives", "interval": OBJECTIVES_INTERVAL, "rules": rules}


def alert_groups(alerts: Sequence[Alert] = tuple(ALERTS.values()), links: Links = LINKS) -> list[Group]:
    """The groups of these alerts, one per component."""
    components = dict.fromkeys(alert.component for alert in alerts)
    return [
        {
            "name": f"servescope-alerts-{component}",
            "interval": INTERVAL,
            "rules": [alert_rule(alert, links=links) for alert in alerts if alert.component == component],
        }
        for component in components
    ]


def alert_rule(alert: Alert, window: str = DEFAULT_WINDOW, links: Links = LINKS) -> dict[str, Any]:
    """The rule of one alert."""
    rule: dict[str, Any] = {"alert": alert.name, "expr": condition_promql(alert.condition, window)}
    if alert.wait:
        rule["for"] = alert.wait
    if alert.keep:
        rule["keep_firing_for"] = alert.keep
    return {**rule, "labels": dict(alert.labels), "annotations": annotations_of(alert, links)}


def annotations_of(alert: Alert, links: Links = LINKS) -> dict[str, str]:
    """What a notification says, and where it leads."""
    return {
        "summary": alert.summary,
        "description": alert.description,
        "runbook_url": f"{links.runbooks}/{alert.name}.md",
        "dashboard_url": dashboard_url(alert, links),
    }


def dashboard_url(alert: Alert, links: Links = LINKS) -> str:
    """The panel that shows the alert; ids are those that `python -m dashboards` gives."""
    return f"{links.grafana}/d/{dashboard_path(alert, links.dashboards)}"


def _rule_file(groups: Sequence[Group]) -> str:
    return HEADER + yaml.safe_dump({"groups": list(groups)}, sort_keys=False, width=10_000)
