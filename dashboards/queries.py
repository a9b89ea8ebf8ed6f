"""From expressions of the catalog to the PromQL of a panel, within what the dashboard's variables choose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, assert_never

from dashboards.options import Options
from servescope.catalog import FIGURES, METRICS, RECORDED_HISTOGRAMS, record_buckets
from servescope.expressions import (
    Difference,
    Expression,
    FractionAbove,
    Increase,
    Level,
    Quantile,
    Rate,
    Ratio,
    promql,
    quantile_promql,
)
from servescope.identity import DEPLOYMENT_LABELS

RATE_INTERVAL = "$__rate_interval"
PRESENCE = METRICS["concurrent_requests"].name
"""The gauge whose series say which deployments and replicas there are: every engine has one of them."""

ALERTS = "ALERTS"
"""Prometheus' own series of pending and firing alerts."""

FIRING = Level(ALERTS, "max", (("alertstate", ("firing",)),))


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable that narrows every query: `label` is the identity label, `every` the regex of All."""

    name: str
    title: str
    label: str
    every: str


# A model, stack or deployment is never empty, which keeps other programs' `requests_total` out; the others may be.
SCOPE = (
    Variable("environment", "Environment", "environment", ".*"),
    Variable("model", "Model", "model_name", ".+"),
    Variable("stack", "Stack", "inference_stack", ".+"),
    Variable("deployment", "Deployment", "deployment_id", ".+"),
)
REPLICA = Variable("replica", "Replica", "replica", ".*")


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL query of a panel; `legend` names its series, `instant` asks for the last values only."""

    expression: str
    legend: str
    instant: bool = False
    format: Literal["time_series", "table", "heatmap"] = "time_series"


def scope(options: Options, *, replica: bool = False, without: str = "") -> str:
    """Matchers for what the variables choose; `without` leaves one variable and those after it out."""
    variables = (*SCOPE, REPLICA) if replica else SCOPE
    names = [variable.name for variable in variables]
    kept = variables[: names.index(without)] if without else variables
    matchers = [f'{options.label(variable.label)}=~"${variable.name}"' for variable in kept]
    return ",".join([options.selector.rstrip(", "), *matchers] if options.selector else matchers)


def compile_expression(
    expression: Expression, options: Options, *, by: tuple[str, ...], replica: bool = False, window: str = RATE_INTERVAL
) -> str:
    """The expression over what is in scope, per value of the labels in `by`.

    It is computed over the raw series. Only the buckets of histograms are read from their recording rules where they
    are not told apart by replica: there are hundreds of raw ones for each that is recorded.
    """
    labels = tuple(options.label(label) for label in by)
    recorded = None if replica or options.figures == "raw" else _recorded_buckets(expression, by)
    if recorded is not None:
        groups = tuple(dict.fromkeys((*labels, "le")))
        buckets = promql(Level(record_buckets(recorded, options.window)), window="", by=groups, scope=scope(options))
        return quantile_promql(expression.quantile, buckets) if isinstance(expression, Quantile) else buckets
    return promql(_relabel(expression, options), window=window, by=labels, scope=scope(options, replica=replica))


def _recorded_buckets(expression: Expression, by: tuple[str, ...]) -> str | None:
    """The histogram whose recorded buckets give the expression, None where the raw ones are needed."""
    match expression:
        case Quantile(histogram=histogram):
            pass
        case Rate(name, ()) if name.endswith("_bucket"):
            histogram = name.removesuffix("_bucket")
        case _:
            return None
    return histogram if histogram in RECORDED_HISTOGRAMS and {*by} <= {*DEPLOYMENT_LABELS, "le"} else None


def _relabel(expression: Expression, options: Options) -> Expression:
    """The expression with identity labels under the names they have here."""
    match expression:
        case Rate(where=where) | Increase(where=where) | Level(where=where):
            return replace(expression, where=tuple((options.label(label), values) for label, values in where))
        case Ratio(above, below):
            return Ratio(_relabel(above, options), _relabel(below, options))
        case Difference(left, right):
            return Difference(_relabel(left, options), _relabel(right, options))
        case Quantile() | FractionAbove():
            return expression
        case _:
            assert_never(expression)


def compile_figure(name: str, options: Options, *, nameless: bool = False) -> str:
    """The figure per deployment: its recorded series, or computed over the raw ones where the options say so.

    `nameless` takes the recorded series' name off, as computed ones have none: tables join figures by their labels.
    """
    figure = FIGURES[name]
    by = (*DEPLOYMENT_LABELS, *figure.by)
    if options.figures == "raw":
        return compile_expression(figure.expression, options, by=by)
    if nameless:
        return compile_expression(Level(figure.record(options.window)), options, by=by)
    return f"{figure.record(options.window)}{{{scope(options)}}}"


def legend(options: Options, *labels: str) -> str:
    """The name of a series: the values of its labels, identity labels under the names they have here."""
    return " ".join(f"{{{{{options.label(label)}}}}}" for label in labels) or "in scope"
