"""Writes the alert rules and their recording rules, for Prometheus, its operator, Mimir, Thanos, VictoriaMetrics."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import yaml

from alerts.also_firing import also_firing
from alerts.dividing import divide
from alerts.histograms import histogram_group
from alerts.objectives import objective_group
from alerts.options import DEFAULTS, Options
from alerts.recording import HEADER, recording_group, render_group
from alerts.without_collector import without_collector_group
from dashboards.options import seconds
from servescope.alerting.links import dashboard_path
from servescope.alerting.records import Alert

FORMATS = ("prometheus", "prometheusrule", "mimir", "thanos", "victoriametrics", "vmrule")
Format = Literal["prometheus", "prometheusrule", "mimir", "thanos", "victoriametrics", "vmrule"]
Group = dict[str, Any]
_RESOURCES: Mapping[str, tuple[str, str]] = {
    "prometheusrule": ("monitoring.coreos.com/v1", "PrometheusRule"),
    "vmrule": ("operator.victoriametrics.com/v1beta1", "VMRule"),
}


def render_figure_rules(options: Options = DEFAULTS) -> str:
    """The rule file that records every figure."""
    return render_group(recording_group(options.common.window, options.evaluation_interval, options))


def render_objective_rules(options: Options = DEFAULTS) -> str:
    """The rule file that records the bad share of every objective over every window."""
    return render_group(objective_group(options))


def render_alert_rules(options: Options = DEFAULTS) -> str:
    """The rule file of all alerts, one group per component."""
    return render_group(*alert_groups(options=options))


def render_bundle(form: Format, options: Options = DEFAULTS, tenants: Sequence[str] = ()) -> str:
    """All rules in one document: for Prometheus, its operator, Thanos Ruler, vmalert, its operator, or for mimirtool.

    In Mimir's the groups read all of `tenants`, without any the one that they are loaded for.
    """
    figures = recording_group(options.common.window, options.evaluation_interval, options)
    groups = [
        figures, histogram_group(options), objective_group(options), without_collector_group(options),
        *alert_groups(options=options),
    ]  # fmt: skip
    if form in ("victoriametrics", "vmrule"):
        groups = [
            {
                **group,
                "rules": [
                    {**rule, "expr": metricsql(rule["expr"], options.common.scrape_interval)} for rule in group["rules"]
                ],
            }
            for group in groups
        ]
    if form in _RESOURCES:
        version, kind = _RESOURCES[form]
        document: dict[str, Any] = {
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": "servescope", "labels": {"app.kubernetes.io/name": "servescope"}},
            "spec": {"groups": groups},
        }
    elif form == "mimir":
        source = {"source_tenants": [*tenants]} if tenants else {}
        parts = [{**part, **source} for group in groups for part in divide(group)]
        document = {"namespace": "servescope", "groups": parts}
    elif form == "thanos":
        # No figure of some of the stores alone, and no alert on what only seems to be absent.
        document = {"groups": [{**group, "partial_response_strategy": "abort"} for group in groups]}
    else:
        document = {"groups": groups}
    return HEADER + yaml.safe_dump(document, sort_keys=False, width=10_000)


_SERIES = r'[\w:]+(?:\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\})?'
_GAIN = re.compile(rf"\b(rate|increase)\(({_SERIES})\[(\w+)\]\)")


def metricsql(expression: str, scrape_interval: str) -> str:
    """The expression in MetricsQL, with what PromQL's `rate`, `increase` and `changes` stand for.

    MetricsQL's `rate` is over the part of the window in which a series has samples: a replica that began a minute ago
    would count as if it had been there for five. Its `increase` counts a new series from 0 where the first value is
    small: errors of weeks ago would be of now when a fleet is first scraped, and buckets of a histogram would begin at
    other values than its count. So gains are from the first sample to the last, as in PromQL, and since PromQL
    extrapolates to the ends of the window, it begins one scrape earlier here.
    """
    expression = re.sub(r"\bchanges\(", "changes_prometheus(", expression)

    def gained(found: re.Match[str]) -> str:
        function, series, window = found.groups()
        gain = f"increase_prometheus({series}[{window}{scrape_interval}])"
        return gain if function == "increase" else f"({gain} / {seconds(window):g})"

    return _GAIN.sub(gained, expression)


def alert_groups(alerts: Sequence[Alert] | None = None, options: Options = DEFAULTS) -> list[Group]:
    """The groups of these alerts, one per component; without any, of all that the options have."""
    alerts = tuple(options.alerts().values()) if alerts is None else alerts
    components = dict.fromkeys(alert.component for alert in alerts)
    return [
        {
            "name": f"servescope-alerts-{component}",
            "interval": options.evaluation_interval,
            "rules": [alert_rule(alert, options) for alert in alerts if alert.component == component],
        }
        for component in components
    ]


def alert_rule(alert: Alert, options: Options = DEFAULTS) -> dict[str, Any]:
    """The rule of one alert."""
    rule: dict[str, Any] = {"alert": alert.name, "expr": options.rule_expression(alert)}
    if alert.wait:
        rule["for"] = alert.wait
    if alert.keep:
        rule["keep_firing_for"] = alert.keep
    labels = {**alert.labels, "team": options.team, **options.labels.get(alert.name, {})}
    annotations = {**annotations_of(alert, options), **also_firing(alert, options)}
    return {**rule, "labels": labels, "annotations": annotations}


def annotations_of(alert: Alert, options: Options = DEFAULTS) -> dict[str, str]:
    """The annotations of one alert, as templates."""
    texts = {
        "summary": alert.summary,
        "description": alert.description,
        "runbook_url": options.common.runbook_url(alert.name),
        "dashboard_url": dashboard_url(alert, options),
    }
    return {key: options.template(text) for key, text in texts.items()}


def dashboard_url(alert: Alert, options: Options = DEFAULTS) -> str:
    """The URL of the panel that shows the alert, as `python -m dashboards` writes it with the same options."""
    path = f"{options.grafana}/d/{dashboard_path(alert, options.common.prefix)}"
    return path + "".join(f"&var-{label}={{{{ $labels.{label} | urlquery }}}}" for label in options.common.extra_labels)
