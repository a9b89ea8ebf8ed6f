"""Writes the alert rules and their recording rules, for Prometheus, its operator, Mimir, Thanos, VictoriaMetrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from alerts.also_firing import also_firing
from alerts.dividing import divide
from alerts.fleet import fleet_rules
from alerts.histograms import histogram_group
from alerts.objectives import objective_group
from alerts.options import DEFAULTS, Options
from alerts.parts_down import parts_down
from alerts.recording import HEADER, recording_group, render_group, write_yaml
from alerts.without_collector import without_collector_group
from dashboards.options import seconds
from servescope.alerting.headlines import with_known_value, with_value
from servescope.alerting.rules.links import dashboard_path
from servescope.alerting.rules.promql import is_kept_unknown
from servescope.alerting.rules.records import LISTED, NOTHING_LISTED, WHO, Alert
from servescope.generating.rules import Format

Group = dict[str, Any]
_KEEPS: Mapping[Format, str] = {
    "prometheus": "Prometheus 2.42",
    "prometheusrule": "the Prometheus operator 0.66 and Prometheus 2.42, or Thanos Ruler 0.34",
    "mimir": "Mimir 2.7",
    "thanos": "Thanos Ruler 0.34",
    "victoriametrics": "vmalert as of VictoriaMetrics 1.145, which it is tried with",
    "vmrule": "the operator of VictoriaMetrics 0.36",
}
"""The first version of what reads each format that keeps alerts firing, as far as it is known."""
_UNKNOWN = f"Whether this is over for {WHO} is not known: its targets are not seen."
_RESOURCES: Mapping[str, tuple[str, str]] = {
    "prometheusrule": ("monitoring.coreos.com/v1", "PrometheusRule"),
    "vmrule": ("operator.victoriametrics.com/v1beta1", "VMRule"),
}


def figure_group(options: Options = DEFAULTS) -> Group:
    """The group that records every figure, and before them, as of the same samples, how much of their window is there.

    Of what arrives in between, a figure has more than is said of it.
    """
    group = recording_group(options.common.window, options.evaluation_interval, options)
    return {**group, "rules": [*fleet_rules(options), *group["rules"]]}


RECORDING: Mapping[str, Callable[[Options], Group]] = MappingProxyType(
    {
        "recording.rules.yml": figure_group,
        "histograms.rules.yml": histogram_group,
        "objectives.rules.yml": objective_group,
        "without-collector.rules.yml": without_collector_group,
    }
)
"""The groups that record, by the files that they are in."""


def render_recording(file: str, options: Options = DEFAULTS) -> str:
    """The rule file of one of the groups that record."""
    return render_group(*(group for name, group in recorded(options).items() if name == file))


def recorded(options: Options = DEFAULTS) -> Mapping[str, Group]:
    """The groups that record, by their files; of `pages_only` what the pages read, and no group without any rule."""
    groups = {name: group(options) for name, group in RECORDING.items()}
    if not options.pages_only:
        return groups
    rules = {rule["record"]: rule["expr"] for group in groups.values() for rule in group["rules"]}
    read: set[str] = set()
    found = set(_SERIES_NAME.findall(str(alert_groups(options=options)))) & rules.keys()
    while found:
        read |= found
        found = {name for each in found for name in _SERIES_NAME.findall(rules[each])} & (rules.keys() - read)
    kept = {
        name: {**group, "rules": [rule for rule in group["rules"] if rule["record"] in read]}
        for name, group in groups.items()
    }
    return {name: group for name, group in kept.items() if group["rules"]}


_SERIES_NAME = re.compile(r"[a-z][\w:]+")


def render_alert_rules(options: Options = DEFAULTS) -> str:
    """The rule file of all alerts, one group per component."""
    return render_group(*alert_groups(options=options))


def render_bundle(form: Format, options: Options = DEFAULTS, tenants: Sequence[str] = ()) -> str:
    """All rules in one document: for Prometheus, its operator, Thanos Ruler, vmalert, its operator, or for mimirtool.

    In Mimir's the groups read all of `tenants`, without any the one that they are loaded for.
    """
    groups = [*recorded(options).values(), *alert_groups(options=options)]
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
            "metadata": {"name": _name(options), "labels": {"app.kubernetes.io/name": "servescope"}},
            "spec": {"groups": groups},
        }
    elif form == "mimir":
        source = {"source_tenants": [*tenants]} if tenants else {}
        parts = [{**part, **source} for group in groups for part in divide(group)]
        document = {"namespace": _name(options), "groups": parts}
    elif form == "thanos":
        # No figure of some of the stores alone, and no alert on what only seems to be absent.
        document = {"groups": [{**group, "partial_response_strategy": "abort"} for group in groups]}
    else:
        document = {"groups": groups}
    return HEADER + _least(form) + write_yaml(document)


def _name(options: Options) -> str:
    """The name of the document beside those of other options, of letters that a Kubernetes object may have."""
    values = (value for _, values in options.covers for value in values)
    return "-".join(("servescope", *re.findall(r"[a-z0-9]+", " ".join(values).lower())))[:253]


def _least(form: Format) -> str:
    return (
        f"# Needs {_KEEPS[form]}: earlier ones lack `keep_firing_for`, without which alerts resolve in a gap of data.\n"
    )


_SERIES = r'[\w:]+(?:\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\})?'
_WHEN, _LOOKBACK = re.compile(rf"\btimestamp\(({_SERIES})( offset \w+)?\)"), "5m"
_GAIN = re.compile(rf"\b(rate|increase)\(({_SERIES})\[(\w+)\]\)")


def metricsql(expression: str, scrape_interval: str) -> str:
    """The expression in MetricsQL, with what PromQL's `rate`, `increase`, `changes` and `timestamp` stand for.

    MetricsQL's `rate` is over the part of the window in which a series has samples: a replica that began a minute ago
    would count as if it had been there for five. Its `increase` counts a new series from 0 where the first value is
    small: errors of weeks ago would be of now when a fleet is first scraped, and buckets of a histogram would begin at
    other values than its count. So gains are from the first sample to the last, as in PromQL, and since PromQL
    extrapolates to the ends of the window, it begins one scrape earlier here. Its `timestamp` is also of a series that
    has ended, and looks back no further than a subquery's step.
    """
    expression = _WHEN.sub(rf"(timestamp(\1[{_LOOKBACK}]\2) and default_rollup(\1[{_LOOKBACK}]\2))", expression)
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
    if alert.for_:
        rule["for"] = alert.for_
    if alert.keep_firing_for:
        rule["keep_firing_for"] = alert.keep_firing_for
    labels = {**alert.labels, "team": options.team, **options.labels.get(alert.name, {})}
    annotations = {**annotations_of(alert, options), **also_firing(alert, options), **parts_down(alert, options)}
    if is_kept_unknown(alert):
        annotations["headline"] = _template(with_known_value(alert.headline), alert, options)
        known, unknown = annotations["description"], _template(_UNKNOWN, alert, options)
        annotations["description"] = f"{{{{ if lt $value -1e9 }}}}{unknown}{{{{ else }}}}{known}{{{{ end }}}}"
    return {**rule, "labels": labels, "annotations": annotations}


def annotations_of(alert: Alert, options: Options = DEFAULTS) -> dict[str, str]:
    """The annotations of one alert, as templates."""
    texts = {
        "summary": alert.summary,
        "description": alert.description,
        "headline": with_value(alert.headline),
        "runbook_url": options.common.runbook_url(alert.name),
        "dashboard_url": dashboard_url(alert, options),
    }
    return {key: _template(text, alert, options) for key, text in texts.items()}


def _template(text: str, alert: Alert, options: Options) -> str:
    """A text of an alert as a template of Prometheus, which queries what it lists."""
    text = options.template(text)
    if alert.lists is None:
        return text
    *identity, last = alert.lists.by
    others = options.common.group(identity)
    matchers = ",".join(f"{label}=%[{number}]q" for number, label in enumerate(others, 1))
    query = f"printf `group by ({last}) ({alert.lists.name}{{{matchers}}})`"
    values = " ".join(f"$labels.{label}" for label in others)
    each = f"{{{{ if $number }}}}, {{{{ end }}}}{{{{ $each.Labels.{last} }}}}"
    return text.replace(
        LISTED,
        f"{{{{ with {query} {values} | query }}}}{{{{ range $number, $each := . | sortByLabel `{last}` }}}}{each}"
        f"{{{{ end }}}}{{{{ else }}}}{NOTHING_LISTED}{{{{ end }}}}",
    )


def dashboard_url(alert: Alert, options: Options = DEFAULTS) -> str:
    """The URL of the panel that shows the alert, as `python -m dashboards` writes it with the same options."""
    path = f"{options.grafana}/d/{dashboard_path(alert, options.common.prefix)}"
    return path + "".join(f"&var-{label}={{{{ $labels.{label} | urlquery }}}}" for label in options.common.extra_labels)
