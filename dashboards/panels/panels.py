"""Panels as the dashboards describe them, and how figures and metrics of the catalog become one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from dashboards.options import Options
from dashboards.panels.colors import SERIES_COLORS, STATUS_COLORS, TUNING_COLORS
from dashboards.panels.queries import Query, compile_expression, compile_figure, histogram_queries, legend
from dashboards.panels.readings import read_figure
from servescope.alerting.rules.links import panel_id
from servescope.contract.expressions import Expression, FractionAbove, Quantile, Rate, leaves
from servescope.contract.figures import FIGURES
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.objectives import BURN_WINDOWS
from servescope.contract.own_metrics import UNSCRAPED, OwnUnit, own_family
from servescope.contract.types import Band, Objective, Unit
from servescope.errors import UsageError

LIMIT = "limit"
"""The last word in the legend of a series that an alert compares with."""

EVERY = None
"""Any number, as a state."""

Kind = Literal["timeseries", "stat", "gauge", "table", "heatmap", "state-timeline"]
Absence = Literal["off", "idle", "broken"]

MOST_LINES = 10
LATELY = "1h:1m"
WHICH_REPLICAS = f"The {MOST_LINES} replicas with the {{}} values within the last hour shown."
"""Graphs of replicas show so many at most, by their values of the last hour before the end of the time range."""

HARM_AXIS = (0.0, 0.05)
"""The least range of the axis for shares that are normally 0: on an axis up to 1 a few percent are a flat line."""

HARM_FIGURES = ("client_abort_share", "request_error_share", "request_rejected_share")

WHO = ("deployment_id", "inference_stack", "environment")
"""The labels that name a deployment in a legend."""

UNITS: Mapping[Unit | OwnUnit, str] = MappingProxyType(
    {
        "bytes": "bytes",
        "bytes/s": "Bps",
        "code": "none",
        "cores": "suffix:cores",
        "ratio": "percentunit",
        "requests/s": "reqps",
        "seconds": "s",
        "state": "none",
        **{
            unit: f"count:{unit}"
            for unit in (
                "alerts", "connections", "decisions", "decisions/s", "drafts", "errors", "errors/s", "events",
                "events/s", "preemptions", "preemptions/s", "problems", "recoveries", "replicas", "requests", "rows",
                "samples", "samples/s", "scrapes", "scrapes/s", "series", "stages", "targets", "tasks", "tokens",
                "tokens/s", "workers",
            )
        },
    }
)  # fmt: skip
"""The unit of Grafana for each of the catalog's, and of series about the monitoring."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """From `value` upwards the colour is this one; None is the base, below every other."""

    color: str
    value: float | None = None


NO_THRESHOLDS = (Threshold("text"),)


@dataclass(frozen=True, slots=True)
class NoData:
    """Why a panel can be empty: a feature is off, nothing happened, or something is broken."""

    absence: Absence
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel: its queries, its appearance, and its description.

    Series whose name ends with one of the words in `overlay` are dashed lines across the others, not part of a stack;
    those that are a LIMIT are not in the legend. With `ranked` the legend is a table of each series' highest or lowest
    value, the worst first. `states` are the texts and colors of a state timeline's numbers, EVERY for any. `repeat` is
    a variable; the panel is shown for each of its values.
    """

    title: str
    kind: Kind
    queries: tuple[Query, ...]
    unit: str
    meaning: str
    normal: str
    first: str
    no_data: NoData
    thresholds: tuple[Threshold, ...] = NO_THRESHOLDS
    axis: tuple[float, float] | None = None
    stacked: bool = False
    overlay: tuple[str, ...] = ()
    colors: Mapping[str, str] = field(default_factory=lambda: SERIES_COLORS)
    states: Mapping[int | None, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    columns: Mapping[str, Column] = field(default_factory=lambda: MappingProxyType({}))
    sort: tuple[str, ...] = ()
    ranked: Literal["", "max", "min"] = ""
    repeat: str = ""
    width: int = 8
    height: int = 8

    @property
    def description(self) -> str:
        """The panel's description, which Grafana shows at its information icon."""
        parts = {"Normal": self.normal, "What to check": self.first, "No data": self.no_data.text}
        return "\n\n".join([self.meaning, *(f"**{heading}:** {text}" for heading, text in parts.items())])

    @property
    def panel_id(self) -> int:
        """Made of the title, so that links to a panel survive another one before it."""
        return panel_id(self.title)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its heading, unit and thresholds; `link` is where its cells lead.

    `states` are the texts and colors of its numbers, `shown` is the text of all its cells, if they have one.
    """

    title: str
    unit: str = "none"
    thresholds: tuple[Threshold, ...] = NO_THRESHOLDS
    link: str = ""
    link_title: str = ""
    hidden: bool = False
    states: Mapping[int | None, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    shown: str = ""
    width: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A heading and the panels below it; a `collapsed` one asks nothing until it is opened."""

    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False


def figure_panel(
    name: str,
    options: Options,
    *,
    kind: Kind = "timeseries",
    title: str = "",
    limit: int = 0,
    width: int = 8,
    height: int = 8,
    stacked: bool = False,
) -> Panel:
    """A figure per deployment; `limit` shows so many series at most at any moment, the highest."""
    figure = FIGURES[name]
    band = options.band(name)
    normal, first = read_figure(name, band)
    expression = compile_figure(name, options)
    # Below a gauge there is room for two words.
    text = legend(options, *(("deployment_id", "environment") if kind == "gauge" else WHO), *figure.by)
    return Panel(
        title=title or figure.title,
        kind=kind,
        queries=(Query(f"topk({limit}, {expression})" if limit else expression, text, instant=kind != "timeseries"),),
        unit=UNITS[figure.unit],
        meaning=figure.help,
        normal=normal,
        first=first,
        no_data=absence(figure.expression, idle=figure.idle == "absent"),
        thresholds=steps(band),
        axis=HARM_AXIS if name in HARM_FIGURES else axis_of(figure.unit, band),
        stacked=stacked,
        width=width,
        height=height,
    )


def expression_panel(
    title: str,
    expression: Expression,
    options: Options,
    *,
    unit: Unit,
    by: tuple[str, ...],
    meaning: str,
    normal: str,
    first: str,
    kind: Kind = "timeseries",
    replica: bool = False,
    idle: bool = False,
    off: str = "",
    stacked: bool = False,
    axis: tuple[float, float] = (0.0, 1.0),
    thresholds: tuple[Threshold, ...] = NO_THRESHOLDS,
    limit: int = 0,
    lowest: bool = False,
    width: int = 8,
    height: int = 8,
) -> Panel:
    """An expression over the raw series, per value of the labels in `by`.

    `idle` if it is absent without traffic; `off` names the deployments without data, if the metric does not. `limit`
    shows so many series at most, the highest or the `lowest` of the last hour.
    """
    text, instant = legend(options, *by), kind != "timeseries"
    queries = (
        histogram_queries(expression, options, by=by, text=text, replica=replica, instant=instant)
        if isinstance(expression, Quantile)
        else (Query(compile_expression(expression, options, by=by, replica=replica), text, instant),)
    )
    return Panel(
        title=title,
        kind=kind,
        queries=tuple(worst_lately(limit, query, lowest=lowest) for query in queries) if limit else queries,
        unit=UNITS[unit],
        meaning=meaning,
        normal=normal,
        first=first,
        no_data=NoData("off", off) if off else absence(expression, idle=idle),
        thresholds=thresholds,
        axis=axis if unit == "ratio" else axis_of(unit, None),
        stacked=stacked,
        ranked=("min" if lowest else "max") if limit else "",
        width=width,
        height=height,
    )


def replica_panel(
    title: str,
    expression: Expression,
    options: Options,
    *,
    unit: Unit,
    meaning: str,
    normal: str,
    first: str,
    idle: bool = False,
    axis: tuple[float, float] = (0.0, 1.0),
    thresholds: tuple[Threshold, ...] = NO_THRESHOLDS,
    lowest: bool = False,
) -> Panel:
    """An expression at each replica; of many replicas those highest of late, or `lowest`."""
    which = "lowest" if lowest else "highest"
    return expression_panel(
        title, expression, options, unit=unit, by=(*WHO, "replica"), replica=True, limit=MOST_LINES, lowest=lowest,
        meaning=f"{meaning} {WHICH_REPLICAS.format(which)}", normal=normal, first=first, idle=idle, axis=axis,
        thresholds=thresholds, width=12, height=9,
    )  # fmt: skip


def worst(limit: int, query: Query) -> Query:
    """The query with so many series at most at any moment, the highest."""
    return replace(query, expression=f"topk({limit}, {query.expression})")


def worst_lately(limit: int, query: Query, *, lowest: bool = False) -> Query:
    """The query with so many series at most, whose highest or lowest values of the last hour are the worst.

    The same ones at every moment: lines are whole, and the legend has no more.
    """
    return replace(
        query, expression=f"({query.expression}) and {ranked_lately(limit, query.expression, lowest=lowest)}"
    )


def ranked_lately(limit: int, expression: str, *, lowest: bool = False) -> str:
    """The series of an expression with the highest or lowest values of the last hour."""
    rank, over = ("bottomk", "min_over_time") if lowest else ("topk", "max_over_time")
    return f"{rank}({limit}, {over}(({expression})[{LATELY}] @ end()))"


def query_panel(
    title: str,
    queries: Mapping[str, str],
    options: Options,
    *,
    unit: Unit | OwnUnit,
    by: tuple[str, ...],
    no_data: NoData,
    meaning: str,
    normal: str,
    first: str,
    thresholds: tuple[Threshold, ...] = NO_THRESHOLDS,
    axis: tuple[float, float] | None = None,
    ranked: Literal["", "max", "min"] = "",
    width: int = 8,
    height: int = 8,
) -> Panel:
    """Queries, each under the word that ends its series' names; "" for none."""
    return Panel(
        title=title,
        kind="timeseries",
        queries=tuple(
            Query(text, " ".join(filter(None, (legend(options, *by), word)))) for word, text in queries.items()
        ),
        unit=UNITS[unit],
        meaning=meaning,
        normal=normal,
        first=first,
        no_data=no_data,
        thresholds=thresholds,
        axis=axis or axis_of(unit, None),
        ranked=ranked,
        width=width,
        height=height,
    )


def quantiles_panel(
    title: str,
    histogram: str,
    options: Options,
    *,
    figures: tuple[str, ...] = (),
    objective: Objective | None = None,
    normal: str = "",
    first: str = "",
) -> Panel:
    """The percentiles p50, p95 and p99 of a histogram over all selected deployments, with an objective's line."""
    metric = METRICS[histogram]
    if figures:
        normal, first = read_figure(figures[-1], None)
    promised = f" The dashed line is the objective: {objective.promise}." if objective else ""
    return Panel(
        title=title,
        kind="timeseries",
        queries=tuple(
            query
            for share in (0.5, 0.95, 0.99)
            for query in histogram_queries(Quantile(share, histogram), options, by=(), text=f"p{share * 100:g}")
        ),
        unit=UNITS[metric.unit],
        meaning=f"{metric.help}{promised}",
        normal=normal,
        first=first,
        no_data=absence(Quantile(0.5, histogram), idle=True),
        thresholds=edge_steps(objective) if objective else NO_THRESHOLDS,
        axis=edge_axis(objective) if objective else None,
    )


def edge_steps(objective: Objective) -> tuple[Threshold, ...]:
    """The colors of a latency: a percentile above the objective's edge breaks the promise; every edge has a line."""
    if not objective.edges_seconds:
        raise UsageError(f"objective {objective.name!r} has no edge: it is of no latency")
    return (
        Threshold(STATUS_COLORS["good"]),
        *(Threshold(STATUS_COLORS["warning"], above(edge)) for edge in objective.edges_seconds),
    )


def edge_axis(objective: Objective) -> tuple[float, float]:
    """An axis on which the objective's first edge is visible."""
    return 0.0, round(1.25 * objective.edges_seconds[0], 12)


def harm_steps(objective: Objective) -> tuple[Threshold, ...]:
    """The colors of a bad share: more than the budget, and as much as burns it fast enough to page."""
    page = round(BURN_WINDOWS[0].factor * objective.budget, 12)
    return (
        Threshold(STATUS_COLORS["good"]),
        Threshold(STATUS_COLORS["warning"], above(objective.budget)),
        Threshold(STATUS_COLORS["critical"], above(page)),
    )


def heatmap_panel(title: str, histogram: str, options: Options, *, normal: str, first: str) -> Panel:
    """A heatmap of a histogram's buckets over time."""
    metric = METRICS[histogram]
    buckets = Rate(f"{histogram}_bucket")
    return Panel(
        title=title,
        kind="heatmap",
        queries=histogram_queries(buckets, options, by=("le",), text="{{le}}", format_="heatmap"),
        unit=UNITS[metric.unit],
        meaning=f"{metric.help} Each cell is the number of observations per second in a bucket at one moment.",
        normal=normal,
        first=first,
        no_data=absence(Quantile(0.5, histogram), idle=False),
        width=12,
    )


def absence(expression: Expression, *, idle: bool) -> NoData:
    """Why an expression can be absent, by the catalog; `idle` if it is also absent without traffic."""
    metrics = [METRICS[SAMPLE_FAMILIES[name]] for name in sorted(leaves(expression))]
    reasons = list(dict.fromkeys(metric.absent for metric in metrics if metric.absent != "not observed"))
    if isinstance(expression, FractionAbove):
        edges = " or ".join(f"le={edge:g}" for edge in expression.edges)
        reasons.append(f"the engine's histogram has no bucket with {edges}")
    nothing = ["nothing happened in the window"] if idle else []
    if reasons:
        return NoData("off", "; or ".join([*reasons, *nothing]))
    if idle:
        return NoData("idle", nothing[0])
    names = " and ".join(f"`{metric.name}`" for metric in metrics)
    return NoData("broken", f"{names} is not scraped: check the targets")


def absent_own(name: str) -> NoData:
    """Why a series about the monitoring itself can be absent."""
    metric = own_family(name)
    if metric is None or metric.absent == UNSCRAPED:
        return NoData("broken", f"`{name}` is not scraped: check the collector and the targets page of Prometheus")
    return NoData("off", metric.absent)


def steps(band: Band | None) -> tuple[Threshold, ...]:
    """The thresholds at which a band's colours change; Grafana's always include their value."""
    if band is None:
        return NO_THRESHOLDS
    return (
        Threshold(TUNING_COLORS[band.lowest.status]),
        *(
            # A step that leaves its edge to the stretch below begins with the next number there is.
            Threshold(TUNING_COLORS[step.rating.status], step.start if step.inclusive else above(step.start))
            for step in band.steps
        ),
    )


def quiet(thresholds: tuple[Threshold, ...]) -> tuple[Threshold, ...]:
    """The thresholds without a color for what is good, for a table that has worse to show."""
    return tuple(replace(each, color="text") if each.color == STATUS_COLORS["good"] else each for each in thresholds)


_LEAST_POSITIVE = 1e-9


def above(edge: float) -> float:
    """The next number above an edge that is not part of a step, which begins with its value; above 0 a readable one."""
    return math.nextafter(edge, math.inf) if edge else _LEAST_POSITIVE


def axis_of(unit: Unit | OwnUnit, band: Band | None) -> tuple[float, float] | None:
    """Where an axis begins and ends at least: shares from 0 to 1, those around 0 as far as twice their band.

    Counts go up to 1, as an axis of a series at 0 would otherwise go up to 100.
    """
    if UNITS[unit].startswith("count:"):
        return 0.0, 1.0
    if unit != "ratio":
        return None
    if band is not None and band.steps[0].start < 0:
        return 2 * band.steps[0].start, 2 * band.steps[-1].start
    return 0.0, 1.0
