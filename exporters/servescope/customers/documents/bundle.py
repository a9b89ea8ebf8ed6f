"""A dashboard and alert rules for a customer's own database and Grafana, under the names that metrics have there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never

from servescope.alerting.rules.promises import objectives_of
from servescope.contract import expressions
from servescope.contract.figures import FIGURES
from servescope.contract.metrics import SAMPLE_FAMILIES
from servescope.contract.objectives import BURN_WINDOWS, INSTEAD_OF
from servescope.contract.types import BurnWindow, Figure, Unit
from servescope.customers.policy.policy import Policy
from servescope.customers.stored_names import StoredNames
from servescope.settings.values import format_duration, parse_duration

RATE_INTERVAL: Final = "$__rate_interval"
_GRID: Final = 24
_WIDTH, _HEIGHT = 12, 8
_SCHEMA_VERSION: Final = 41
_LONGEST_UID: Final = 40
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
    window: str | None = None
    pending: str = _FOR


def shown_figures(names: StoredNames) -> Iterator[ShownFigure]:
    """The figures that are exported, and those that can be computed of what is, in the catalog's order."""
    for figure in FIGURES.values():
        query = _query(names, figure)
        if query is not None:
            labels = [*names.deployment_labels(), *map(names.label, figure.by)]
            yield ShownFigure(figure, query, " ".join(f"{{{{{label}}}}}" for label in labels) or figure.title)


def customer_alerts(names: StoredNames) -> Iterator[CustomerAlert]:
    """An alert for each objective that can be computed of what is exported, and one for each deployment on silence."""
    policy = names.policy
    for objective in objectives_of().values():
        if INSTEAD_OF.get(objective.name) in policy.metrics or not _is_exported(policy, objective.bad):
            continue
        for window in _windows(policy):
            above = [
                f"({_promql(names, objective.bad, span)}) > {window.factor * objective.budget:.6g}"
                for span in (window.short, window.long)
            ]
            yield CustomerAlert(
                f"{_camel(policy.name)}{_camel(objective.name)}BudgetBurn",
                f"{above[0]} and {above[1]}",
                window.severity,
                f"{objective.promise}; for {window.long} the error budget was used {window.factor:g} times as fast as "
                f"lasts 30 days",
                window.long,
            )
    family = _presence(names)
    if family is not None:
        span = format_duration(_MISSING_INTERVALS * policy.interval_ms)
        # No series has what never arrived: each deployment is asked for by its own labels, which are the alert's.
        for labels in sorted({names.of_deployment(deployment) for deployment in policy.deployments}):
            shown = " ".join(f'{{{{ index $labels "{label}" }}}}' for label, _ in labels)
            yield CustomerAlert(
                f"{_camel(policy.name)}MetricsMissing",
                f"absent_over_time({expressions.selector_promql(family, labels)}[{span}])",
                "warning",
                f"no {family} of {shown or policy.name} arrived for {span}; ask the provider for a delivery statement",
            )


def _windows(policy: Policy) -> list[BurnWindow]:
    """The two shortest pairs of windows in which a rate has points enough."""
    least_ms = _POINTS_OF_A_RATE * policy.interval_ms
    return [window for window in BURN_WINDOWS if parse_duration(window.short) >= least_ms][:2]


def render_alerts(names: StoredNames) -> str:
    """The alerts as a rule file of Prometheus."""
    alerts = list(customer_alerts(names))
    name = _yaml(f"servescope customer {names.policy.name}")
    lines = ["groups:", f"  - name: {name}", "    rules:" if alerts else "    rules: []"]
    for alert in alerts:
        # Rules of one name and severity would be one alert for Alertmanager.
        window = f", window: {alert.window}" if alert.window else ""
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {_yaml(alert.expression)}",
            f"        for: {alert.pending}",
            f"        labels: {{severity: {alert.severity}{window}}}",
            f"        annotations: {{summary: {_yaml(alert.summary)}}}",
        ]
    return "\n".join(lines) + "\n"


def _yaml(text: str) -> str:
    """The text as a scalar of YAML, which has no surrogates, and breaks lines at characters that names can have."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)


def render_dashboard(names: StoredNames, board: str) -> str:
    """A dashboard for Grafana, a row for each group of figures; `board` distinguishes it from others there."""
    panels: list[dict[str, Any]] = []
    y, group = 0, ""
    column = 0
    for shown in shown_figures(names):
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
    uid = f"servescope-{board}"
    model = {
        # Grafana takes no longer ones.
        "uid": uid if len(uid) <= _LONGEST_UID else hashlib.sha256(uid.encode()).hexdigest()[:_LONGEST_UID],
        "title": f"LLM serving: {board}",
        "schemaVersion": _SCHEMA_VERSION,
        "tags": ["servescope"],
        "timezone": "browser",
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "1m",
        "templating": {"list": [variable]},
        "panels": panels,
    }
    return json.dumps(model, indent=1, ensure_ascii=False) + "\n"


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


def _query(names: StoredNames, figure: Figure) -> str | None:
    policy = names.policy
    if any(label not in policy.labels for label in figure.by):
        return None
    if figure.name in policy.figures:
        return expressions.selector_promql(names.figure(figure.name))
    return (
        _promql(names, figure.expression, RATE_INTERVAL, figure.by) if _is_exported(policy, figure.expression) else None
    )


def _is_exported(policy: Policy, expression: expressions.Expression) -> bool:
    """Whether all that an expression reads is exported, with the labels that it selects by."""
    read = {SAMPLE_FAMILIES[name] for name in expressions.leaves(expression)}
    return read <= set(policy.metrics) and all(label in (*policy.labels, "le") for label in _selected(expression))


def _promql(names: StoredNames, expression: expressions.Expression, window: str, by: Sequence[str] = ()) -> str:
    renamed = expressions.rename(expression, label=names.label, series=names.series)
    labels = [expressions.name_promql(label) for label in (*names.deployment_labels(), *map(names.label, by))]
    return expressions.promql(renamed, window=window, by=labels, collectors=(), edge_text=names.edge)


def _presence(names: StoredNames) -> str | None:
    """The name of a series that every deployment has while it runs."""
    policy = names.policy
    if metric := next((name for name in _ALWAYS if name in policy.metrics), None):
        return names.series(metric)
    figures = (name for name in policy.figures if FIGURES[name].idle == "zero" and not FIGURES[name].by)
    return names.figure(figure) if (figure := next(figures, None)) else None


def _selected(expression: expressions.Expression) -> set[str]:
    match expression:
        case expressions.Rate(_, where) | expressions.Increase(_, where) | expressions.Level(_, _, where):
            return {label for label, _ in where}
        case expressions.Ratio(left, right) | expressions.Difference(left, right):
            return _selected(left) | _selected(right)
        case expressions.Quantile() | expressions.FractionAbove():
            return set()
        case _:
            assert_never(expression)


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.replace("-", "_").split("_"))
