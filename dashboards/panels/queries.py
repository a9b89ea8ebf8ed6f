"""Compiles expressions of the catalog to PromQL for panels, filtered by the dashboard's variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from dashboards.options import Options
from servescope.contract.expressions import (
    Expression,
    Level,
    Matchers,
    Quantile,
    Rate,
    leaves,
    matchers_promql,
    native_rate_promql,
    promql,
    quantile_promql,
    rename,
)
from servescope.contract.figures import FIGURES, RECORDED_HISTOGRAMS, record_buckets
from servescope.contract.identity import DEPLOYMENT_LABELS, IDENTITY_LABELS
from servescope.contract.metrics import METRICS
from servescope.contract.own_metrics import OWN_METRICS, Program, own_family
from servescope.errors import UsageError

RATE_INTERVAL = "$__rate_interval"
PRESENCE = METRICS["concurrent_requests"].name
"""The gauge that identifies deployments and replicas: every engine has it."""

ALERTS = "ALERTS"
"""Prometheus' own series of pending and firing alerts."""

ALERTS_SINCE = "ALERTS_FOR_STATE"
"""Prometheus' own series of when the condition of each alert began to hold, in seconds."""

_OURS = "Servescope.+"


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable that filters queries by `label`; `every` is the regex of All, `presence` a metric with it."""

    name: str
    title: str
    label: str
    every: str
    presence: str = PRESENCE


DEPLOYMENT = "deployment"
"""The variable that panels are repeated for."""

# A model, stack or deployment is never empty, which keeps other programs' `requests_total` out; the others may be.
SCOPE = (
    Variable("environment", "Environment", "environment", ".*"),
    Variable("model", "Model", "model_name", ".+"),
    Variable("stack", "Stack", "inference_stack", ".+"),
    Variable(DEPLOYMENT, "Deployment", "deployment_id", ".+"),
)
_OF_A_CUTOVER = ("environment", "model")
REPLICA = Variable("replica", "Replica", "replica", ".*")

PROGRAMS: Mapping[Program, Variable] = MappingProxyType(
    {
        "collector": Variable("collector", "Collector", "instance", ".*", OWN_METRICS["servescope_build_info"].name),
        "translate": Variable(
            "translator", "Translator", "instance", ".*", OWN_METRICS["servescope_probe_build_info"].name
        ),
        "judge": Variable("judge", "Judge", "instance", ".*", OWN_METRICS["servescope_judgement_info"].name),
        "customers": Variable("export", "Export", "instance", ".*", OWN_METRICS["servescope_customer_lanes"].name),
        "prometheus": Variable("prometheus", "Prometheus", "instance", ".*", OWN_METRICS["prometheus_build_info"].name),
        "alertmanager": Variable(
            "alertmanager", "Alertmanager", "instance", ".*", OWN_METRICS["alertmanager_build_info"].name
        ),
    }
)
"""The instance of a collector, judge, customers' export, Prometheus or Alertmanager; what rules record has none."""

WATCHED = Variable("deployment", "Deployment", "deployment_id", ".+", OWN_METRICS["servescope_targets"].name)
"""The deployment of the targets, for series about targets."""

CUSTOMERS_VARIABLES = (
    Variable("customer", "Customer", "customer", ".+", OWN_METRICS["servescope_customer_lag_seconds"].name),
    Variable("destination", "Destination", "destination", ".+", OWN_METRICS["servescope_customer_lag_seconds"].name),
)
"""The variables of the Customers dashboard."""

HEALTH_VARIABLES = (
    PROGRAMS["collector"], PROGRAMS["translate"], WATCHED, PROGRAMS["prometheus"], PROGRAMS["alertmanager"]
)  # fmt: skip
"""The variables of the Health dashboard: they do not filter each other."""


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL query of a panel; `legend` names its series, `instant` asks for the last values only.

    `exemplar` asks for the traces of single observations too, which only series that were scraped have.
    """

    expression: str
    legend: str
    instant: bool = False
    format: Literal["time_series", "table", "heatmap"] = "time_series"
    exemplar: bool = False


HISTOGRAMS = "histograms"
"""The variable for the type of histograms: 1 for classic buckets, -1 for native ones."""


def histogram_queries(
    expression: Quantile | Rate,
    options: Options,
    *,
    by: tuple[str, ...],
    text: str,
    replica: bool = False,
    instant: bool = False,
    format_: Literal["time_series", "heatmap"] = "time_series",
) -> tuple[Query, ...]:
    """A quantile, or the buckets themselves, of a classic histogram and of a native one; the variable lets one through.

    Both are executed: a histogram that is there in the other form only costs a look-up and gives nothing. Where the
    options have no native histograms, there is only the classic one.
    """
    labels = ", ".join(options.group(label for label in by if label != "le"))
    histogram = expression.histogram if isinstance(expression, Quantile) else expression.name.removesuffix("_bucket")
    classic = compile_expression(expression, options, by=by, replica=replica)
    # What is recorded has no exemplars.
    traced = f"{histogram}_bucket{{" in classic and not instant
    if options.histograms == "classic":
        return (Query(classic, text, instant, format_, exemplar=traced),)
    chosen = scope(options, replica=replica)
    native = native_rate_promql(
        histogram, window=RATE_INTERVAL, by=labels, scope=chosen, collectors=options.collector_labels
    )
    if isinstance(expression, Quantile):
        shown = f"({quantile_promql(expression.quantile, native)}) < (${HISTOGRAMS} * -Inf)"
    else:
        # A histogram cannot be compared with a number; the number of its observations can.
        shown = f"{native} and histogram_count({native}) * 0 < (${HISTOGRAMS} * -1)"
    return (
        Query(f"({classic}) < (${HISTOGRAMS} * Inf)", text, instant, format_, exemplar=traced),
        Query(shown, text, instant, format_, exemplar=not instant),
    )


def extra_variables(options: Options) -> tuple[Variable, ...]:
    """The variables of the extra labels, before all others."""
    return tuple(Variable(label, label.replace("_", " ").capitalize(), label, ".*") for label in options.extra_labels)


def scope(
    options: Options, *, replica: bool = False, without: str = "", variables: tuple[Variable, ...] = SCOPE
) -> str:
    """Matchers for the selected values of variables; `without` omits one variable and those after it."""
    variables = (*variables, REPLICA) if replica and REPLICA not in variables else variables
    narrowing = [variable for variable in variables if variable.label in IDENTITY_LABELS]
    names = [variable.name for variable in narrowing]
    return _chosen(narrowing[: names.index(without)] if without else narrowing, options)


def _chosen(variables: Iterable[Variable], options: Options) -> str:
    narrowing = (*extra_variables(options), *variables)
    chosen = [f'{options.label(variable.label)}=~"${variable.name}"' for variable in narrowing]
    return ",".join([options.selector.rstrip(", "), *chosen] if options.selector else chosen)


def firing_alerts(options: Options, *, ago: str = "", where: Matchers = (), of: str = ALERTS) -> str:
    """The firing alerts of the selected deployments, and our firing alerts of no single deployment.

    These are of a model as a whole, as one on the shares of its stacks, or of the monitoring itself, whose failure puts
    everything shown in doubt. The Watchdog, which fires for ever, is left out. `where` keeps some, `of` is another
    series with the labels of alerts.
    """
    offset = f" offset {ago}" if ago else ""
    deployment = options.label("deployment_id")
    state = ['alertstate="firing"'] if of == ALERTS else []
    kept = [*state, *filter(None, [matchers_promql(where, "")[1:-1]])]
    wider = (
        f'{options.label(each.label)}=~"${each.name}|"'
        for each in (*extra_variables(options), *SCOPE)
        if each.label != "deployment_id"
    )
    of_none = ",".join((
        *kept, f'alertname=~"{_OURS}"', 'severity!="none"', f'{deployment}=""',
        *filter(None, [options.selector.rstrip(", ")]), *wider,
    ))  # fmt: skip
    of_deployments = ",".join((*kept, scope(options)))
    return f"({of}{{{of_deployments}}}{offset} or {of}{{{of_none}}}{offset})"


def own_scope(name: str, options: Options, variables: tuple[Variable, ...] = ()) -> str:
    """Matchers of the dashboard's variables for a series about the monitoring itself."""
    metric = own_family(name)
    if metric is None:
        raise UsageError(f"no series {name!r} about the monitoring, known: {', '.join(OWN_METRICS)}")
    if metric.program == "judge":
        # A judgement is about both stacks: chosen are its environment and model, where all targets of v2 share them.
        shared = (f'{options.label(each.label)}=~"${each.name}|"' for each in SCOPE if each.name in _OF_A_CUTOVER)
        return ",".join(filter(None, (_chosen((), options), *shared)))
    narrowing = [
        variable
        for variable in variables or (CUSTOMERS_VARIABLES if metric.program == "customers" else HEALTH_VARIABLES)
        if variable == PROGRAMS.get(metric.program)
        # The instances of what rules record are those of several programs.
        or (variable not in PROGRAMS.values() and variable.label in metric.labels)
    ]
    return _chosen(narrowing, options)


def compile_own(expression: Expression, options: Options, *, by: tuple[str, ...]) -> str:
    """An expression over series about the monitoring itself, per value of the labels in `by`."""
    (chosen,) = {own_scope(name, options) for name in leaves(expression)}
    return promql(expression, window=RATE_INTERVAL, by=options.group(by), scope=chosen, collectors=())


def compile_expression(
    expression: Expression,
    options: Options,
    *,
    by: tuple[str, ...],
    replica: bool = False,
    window: str = RATE_INTERVAL,
    where: Matchers = (),
    variables: tuple[Variable, ...] = SCOPE,
) -> str:
    """The expression over what is in scope and `where` keeps, per value of the labels in `by`.

    It is computed over the raw series. Only the buckets of histograms are read from their recording rules where they
    are not broken down by replica: there are hundreds of raw ones for each that is recorded.
    """
    labels = options.group(by)
    # `where` is said in the braces of every selector, before the scope.
    chosen = matchers_promql(relabel(where, options), scope(options, replica=replica, variables=variables))[1:-1]
    recorded = None if replica or options.figures == "raw" else _recorded_buckets(expression, by)
    if recorded is not None:
        groups = tuple(dict.fromkeys((*labels, "le")))
        buckets = promql(
            Level(record_buckets(recorded, options.window)), window="", by=groups, scope=chosen, collectors=()
        )
        return quantile_promql(expression.quantile, buckets) if isinstance(expression, Quantile) else buckets
    collectors = () if all(":" in name for name in leaves(expression)) else options.collector_labels
    return promql(
        rename(expression, label=options.label), window=window, by=labels, scope=chosen, collectors=collectors
    )


def relabel(where: Matchers, options: Options) -> Matchers:
    """Matchers with renamed identity labels."""
    return tuple((options.label(label), values) for label, values in where)


def _recorded_buckets(expression: Expression, by: tuple[str, ...]) -> str | None:
    """The histogram whose recorded buckets suffice for the expression, None if raw ones are needed."""
    match expression:
        case Quantile(histogram=histogram):
            pass
        case Rate(name, ()) if name.endswith("_bucket"):
            histogram = name.removesuffix("_bucket")
        case _:
            return None
    return histogram if histogram in RECORDED_HISTOGRAMS and {*by} <= {*DEPLOYMENT_LABELS, "le"} else None


def compile_figure(
    name: str,
    options: Options,
    *,
    nameless: bool = False,
    where: Matchers = (),
    variables: tuple[Variable, ...] = SCOPE,
) -> str:
    """The figure per deployment: its recorded series, or computed over the raw ones where the options say so.

    `where` keeps some of its series. `nameless` takes the recorded series' name off, as computed ones have none: tables
    join figures by their labels.
    """
    figure = FIGURES[name]
    by = (*DEPLOYMENT_LABELS, *figure.by)
    if options.figures == "raw":
        return compile_expression(figure.expression, options, by=by, where=where, variables=variables)
    if nameless:
        recorded = Level(figure.record(options.window))
        return compile_expression(recorded, options, by=by, where=where, variables=variables)
    chosen = matchers_promql(relabel(where, options), scope(options, variables=variables))
    return f"{figure.record(options.window)}{chosen}"


def legend(options: Options, *labels: str) -> str:
    """The legend of a series: the values of its labels."""
    texts = [f"{_WORDS.get(label, '')}{{{{{options.label(label)}}}}}" for label in labels]
    return " ".join([*texts, *(f"{{{{{label}}}}}" for label in options.extra_labels)]) or "in scope"


# A bare number says nothing at the end of a name.
_WORDS = {"position": "position "}
