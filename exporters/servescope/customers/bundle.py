"""A dashboard and alert rules for a customer's own Prometheus and Grafana, under the names of its policy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never

from servescope.contract.expressions import (
    Difference,
    Expression,
    FractionAbove,
    Increase,
    Level,
    Quantile,
    Rate,
    Ratio,
    leaves,
    promql,
    rename,
)
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.contract.metrics import SAMPLE_FAMILIES
from servescope.contract.objectives import BURN_WINDOWS, INSTEAD_OF, OBJECTIVES
from servescope.contract.types import BurnWindow, Figure, Unit
from servescope.customers.naming import describe_figure, describe_metric, exported_labels, label_name
from servescope.customers.policy import Policy
from servescope.customers.prometheus_series import safe_name
from servescope.settings.values import format_duration, parse_duration

RATE_INTERVAL: Final = "$__rate_interval"
_GRID: Final = 24
_WIDTH, _HEIGHT = 12, 8
_SCHEMA_VERSION: Final = 41
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_UNITS: Final[dict[Unit, str]] = {
    "bytes": "bytes", "bytes/s": "Bps", "ratio": "percentunit", "requests/s": "reqps", "seconds": "s",
}  # fmt: skip
_FOR: Final = "2m"
_MISSING_INTERVALS: Final = 5
_POINTS_OF_A_RATE: Final = 4
_ALWAYS: Final = ("concurrent_requests", "queued_requests", "output_tokens_total", "input_tokens_total")


@dataclass(frozen=True, slots=True)
class ShownFigure:
    """A figure that the customer can see: its query, for Grafana's interval, and how its series are named."""

    figure: Figure
    query: str
    legend: str


@dataclass(frozen=True, slots=True)
class CustomerAlert:
    """An alert rule of a customer's bundle; the expression is PromQL."""

    name: str
    expression: str
    severity: str
    summary: str
    pending: str = _FOR


def shown_figures(policy: Policy) -> Iterator[ShownFigure]:
    """The figures that are exported, and those that can be computed of what is, in the catalog's order."""
    for figure in FIGURES.values():
        query = _query(policy, figure)
        if query is not None:
            labels = [*_deployment_labels(policy), *(_name(policy, label) for label in figure.by)]
            yield ShownFigure(figure, query, " ".join(f"{{{{{label}}}}}" for label in labels) or figure.title)


def customer_alerts(policy: Policy) -> Iterator[CustomerAlert]:
    """An alert for each objective that can be computed of what is exported, and one on what no longer arrives."""
    for objective in OBJECTIVES.values():
        if INSTEAD_OF.get(objective.name) in policy.metrics or not _is_exported(policy, objective.bad):
            continue
        for window in _windows(policy):
            above = [
                f"({_promql(policy, objective.bad, span)}) > {window.factor * objective.budget:.6g}"
                for span in (window.short, window.long)
            ]
            yield CustomerAlert(
                f"{_camel(policy.name)}{_camel(objective.name)}BudgetBurn",
                f"{above[0]} and {above[1]}",
                window.severity,
                f"{objective.promise}; for {window.long} the error budget was used {window.factor:g} times as fast as "
                f"lasts 30 days",
            )
    family = _presence(policy)
    if family is not None:
        span = format_duration(_MISSING_INTERVALS * policy.interval_ms)
        yield CustomerAlert(
            f"{_camel(policy.name)}MetricsMissing",
            f"absent_over_time({family}[{span}])",
            "warning",
            f"no {family} arrived for {span}; ask the provider for a delivery statement",
        )


def _windows(policy: Policy) -> list[BurnWindow]:
    """The two shortest pairs of windows in which a rate has points enough."""
    least_ms = _POINTS_OF_A_RATE * policy.interval_ms
    return [window for window in BURN_WINDOWS if parse_duration(window.short) >= least_ms][:2]


def render_alerts(policy: Policy) -> str:
    """The alerts as a rule file of Prometheus."""
    alerts = list(customer_alerts(policy))
    name = json.dumps(f"servescope customer {policy.name}")
    lines = ["groups:", f"  - name: {name}", "    rules:" if alerts else "    rules: []"]
    for alert in alerts:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expression)}",
            f"        for: {alert.pending}",
            f"        labels: {{severity: {alert.severity}}}",
            f"        annotations: {{summary: {json.dumps(alert.summary)}}}",
        ]
    return "\n".join(lines) + "\n"


def render_dashboard(policy: Policy) -> str:
    """A dashboard for Grafana, a row for each group of figures."""
    panels: list[dict[str, Any]] = []
    y, group = 0, ""
    column = 0
    for shown in shown_figures(policy):
        if shown.figure.group != group:
            group = shown.figure.group
            y += _HEIGHT if column else 0
            column = 0
            panels.append(_row(len(panels) + 1, group, y))
            y += 1
        panels.append(_panel(len(panels) + 1, shown, x=column * _WIDTH, y=y))
        column = (column + 1) % (_GRID // _WIDTH)
        y += 0 if column else _HEIGHT
    variable = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    board = {
        "uid": f"servescope-{policy.name}"[:40],
        "title": f"LLM serving: {policy.name}",
        "schemaVersion": _SCHEMA_VERSION,
        "tags": ["servescope"],
        "timezone": "browser",
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "1m",
        "templating": {"list": [variable]},
        "panels": panels,
    }
    return json.dumps(board, indent=1, ensure_ascii=False) + "\n"


def _row(number: int, title: str, y: int) -> dict[str, Any]:
    place = {"x": 0, "y": y, "w": _GRID, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(number: int, shown: ShownFigure, *, x: int, y: int) -> dict[str, Any]:
    unit = _UNITS.get(shown.figure.unit, f"count:{shown.figure.unit}")
    target = {
        "refId": "A", "datasource": _DATASOURCE, "editorMode": "code", "expr": shown.query, "range": True,
        "legendFormat": shown.legend,
    }  # fmt: skip
    return {
        "id": number,
        "type": "timeseries",
        "title": shown.figure.title,
        "description": shown.figure.help,
        "datasource": _DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}},
        "targets": [target],
    }


def _query(policy: Policy, figure: Figure) -> str | None:
    if figure.name in policy.figures and all(label in policy.labels for label in figure.by):
        return describe_figure(policy, figure.name).family
    if not _is_exported(policy, figure.expression) or any(label not in policy.labels for label in figure.by):
        return None
    return _promql(policy, figure.expression, RATE_INTERVAL, figure.by)


def _is_exported(policy: Policy, expression: Expression) -> bool:
    """Whether all that an expression reads is exported, with the labels that it selects by."""
    read = {SAMPLE_FAMILIES[name] for name in leaves(expression)}
    return read <= set(policy.metrics) and all(label in (*policy.labels, "le") for label in _selected(expression))


def _promql(policy: Policy, expression: Expression, window: str, by: Sequence[str] = ()) -> str:
    labels = [*_deployment_labels(policy), *(_name(policy, label) for label in by)]
    renamed = rename(expression, label=lambda label: _name(policy, label), series=lambda name: _series(policy, name))
    return promql(renamed, window=window, by=labels, collectors=())


def _series(policy: Policy, name: str) -> str:
    """What the customer has in place of a series, or of a histogram."""
    family = SAMPLE_FAMILIES[name]
    return describe_metric(policy, family).family + name.removeprefix(family)


def _deployment_labels(policy: Policy) -> list[str]:
    return [_name(policy, label) for label in exported_labels(policy) if label in DEPLOYMENT_LABELS]


def _name(policy: Policy, label: str) -> str:
    return safe_name(label_name(policy, label))


def _presence(policy: Policy) -> str | None:
    """A series that every engine has while it runs."""
    name = next((name for name in _ALWAYS if name in policy.metrics), None)
    return None if name is None else describe_metric(policy, name).family


def _selected(expression: Expression) -> set[str]:
    match expression:
        case Rate(_, where) | Increase(_, where) | Level(_, _, where):
            return {label for label, _ in where}
        case Ratio(left, right) | Difference(left, right):
            return _selected(left) | _selected(right)
        case Quantile() | FractionAbove():
            return set()
        case _:
            assert_never(expression)


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.replace("-", "_").split("_"))
