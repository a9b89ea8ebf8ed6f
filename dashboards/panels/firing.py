"""The table of firing alerts: the worst first, each with its severity, its runbook, its panel and since when."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from dashboards.options import Options
from dashboards.panels.colors import NEUTRAL, STATUS_COLORS
from dashboards.panels.panels import Column, NoData, Panel
from dashboards.panels.queries import ALERTS, ALERTS_SINCE, Query, firing_alerts, scope
from servescope.alerting.alerts import ALERTS as ALERTS_BY_NAME
from servescope.alerting.rules.links import panel_id, panel_title

_SEVERITIES: Final[Mapping[int | None, tuple[str, str]]] = MappingProxyType(
    {
        3: ("critical", STATUS_COLORS["critical"]),
        2: ("warning", STATUS_COLORS["warning"]),
        1: ("info", NEUTRAL),
    }
)
_ABOUT: Final = ("deployment_id", "environment")
# Grafana's name of the first query's values.
_RANK: Final = "Value #A"
_PATH: Final = "panel"
_SET: Final = "&var-deployment="


def firing_panel(options: Options, *, width: int, height: int) -> Panel:
    """The firing alerts of the selected deployments and of no single one."""
    deployment, environment = map(options.label, _ABOUT)
    return Panel(
        title="Firing alerts",
        kind="table",
        queries=(
            Query(_with_paths(_ranked(options), options), "", instant=True, format="table"),
            Query(_since(options), "", instant=True, format="table"),
        ),
        unit="none",
        meaning="Firing alerts of the selected deployments, and those of no single deployment, such as alerts on the "
        "traffic split or on the monitoring itself, the most severe first, of these the latest. *Since* is when the "
        "condition began to hold. An alert's name links to its runbook, *Show* to the panel with its condition.",
        normal="none.",
        first="open the alert's runbook, then its panel; for an alert on the monitoring, check the Health dashboard "
        "before you trust the rest.",
        no_data=NoData("idle", "no alert is firing, or the alert rules are not loaded"),
        columns=MappingProxyType(
            {
                _RANK: Column("Severity", states=_SEVERITIES, width=90),
                "alertname": Column("Alert", link=options.runbook_url("${__value.raw}"), link_title="Runbook"),
                deployment: Column("Deployment", width=120),
                environment: Column("Environment", width=120),
                **{label: Column(label.replace("_", " ").capitalize()) for label in options.extra_labels},
                "Value #B": Column("Since", unit="dateTimeAsIsoNoDateIfToday", width=170),
                _PATH: Column(
                    "Panel", shown="Show", width=75, link_title="Panel",
                    link="/d/${__value.raw}&${__url_time_range}&${datasource:queryparam}",
                ),
            }
        ),
        sort=(_RANK, "Value #B"),
        width=width,
        height=height,
    )  # fmt: skip


def own_firing_panel(components: tuple[str, ...], options: Options) -> Panel:
    """The firing alerts on the monitoring itself, by the components they are about."""
    labels = ("alertname", "component", "instance")
    chosen = ",".join(filter(None, [scope(options, variables=()), f'component=~"{"|".join(components)}"']))
    by = ", ".join(options.group(labels))
    firing = f'{ALERTS}{{alertstate="firing",severity!="none",{chosen}}}'
    ranked = " or ".join(
        f'((count by ({by}) ({ALERTS}{{alertstate="firing",severity="{name}",{chosen}}}) > bool 0) * {rank})'
        for rank, (name, _) in _SEVERITIES.items()
    )
    since = f"1000 * min by ({by}) ({ALERTS_SINCE}{{{chosen}}}) and on ({by}) count by ({by}) ({firing})"
    return Panel(
        title="Firing alerts on the monitoring",
        kind="table",
        queries=(Query(ranked, "", instant=True, format="table"), Query(since, "", instant=True, format="table")),
        unit="none",
        meaning="Firing alerts on collectors, their store, Prometheus and Alertmanager, the most severe first. *Since* "
        "is when the condition began to hold. An alert's name links to its runbook.",
        normal="none.",
        first="open the alert's runbook, then the row below whose panels are about its component.",
        no_data=NoData("idle", "no alert on the monitoring is firing, or the alert rules are not loaded"),
        columns=MappingProxyType(
            {
                _RANK: Column("Severity", states=_SEVERITIES, width=90),
                "alertname": Column("Alert", link=options.runbook_url("${__value.raw}"), link_title="Runbook"),
                "component": Column("Component", width=140),
                options.label("instance"): Column("Instance"),
                "Value #B": Column("Since", unit="dateTimeAsIsoNoDateIfToday", width=170),
            }
        ),
        sort=(_RANK, "Value #B"),
        width=24,
        height=7,
    )


def _labels(options: Options) -> str:
    return ", ".join(("alertname", *options.group(_ABOUT)))


def _ranked(options: Options) -> str:
    by = f"count by ({_labels(options)})"
    ranks = {rank: (("severity", (name,)),) for rank, (name, _) in _SEVERITIES.items()}
    return " or ".join(
        # Two of one name are one, however many it is about.
        f"(({by} {firing_alerts(options, where=where)} > bool 0) * {rank})"
        for rank, where in ranks.items()
    )


def _since(options: Options) -> str:
    """When the condition of each firing alert began to hold, in milliseconds."""
    labels = _labels(options)
    began = firing_alerts(options, of=ALERTS_SINCE)
    return f"1000 * min by ({labels}) {began} and on ({labels}) count by ({labels}) {firing_alerts(options)}"


def _with_paths(expression: str, options: Options) -> str:
    """The expression with the path of each alert's panel as a label, after Grafana's `/d/`."""
    for path, names in _paths(options).items():
        expression = f'label_replace({expression}, "{_PATH}", "{path}", "alertname", "{"|".join(names)}")'
    deployment = options.label("deployment_id")
    expression = f'label_join({expression}, "{_PATH}", "{_SET}", "{_PATH}", "{deployment}")'
    # Without a deployment all are shown; an alert that is not ours has no panel.
    expression = f'label_replace({expression}, "{_PATH}", "$1", "{_PATH}", "(.+){_SET}")'
    return f'label_replace({expression}, "{_PATH}", "", "{_PATH}", "{_SET}.*")'


def _paths(options: Options) -> dict[str, list[str]]:
    """The names of the alerts by the path of their panel."""
    found: dict[str, list[str]] = {}
    for alert in ALERTS_BY_NAME.values():
        if alert.severity != "none":
            path = f"{options.prefix}-{alert.dashboard}?viewPanel=panel-{panel_id(panel_title(alert))}"
            found.setdefault(path, []).append(alert.name)
    return found
