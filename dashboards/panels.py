"""Panels as the dashboards describe them, and how figures and metrics of the catalog become one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType
from typing import Literal

from dashboards.options import Options
from dashboards.queries import Query, compile_expression, compile_figure, histogram_queries, legend
from dashboards.readings import read_figure
from servescope.alerting.links import panel_id
from servescope.contract.expressions import Expression, FractionAbove, Quantile, Rate, leaves
from servescope.contract.figures import FIGURES
from servescope.contract.metrics import INDEX_STATES, METRICS, OUTCOMES, REPLICA_STATUSES, SAMPLE_FAMILIES
from servescope.contract.own_metrics import UNSCRAPED, OwnUnit, own_family
from servescope.contract.types import Band, Status, Unit

Kind = Literal["timeseries", "stat", "gauge", "table", "heatmap"]
Absence = Literal["off", "idle", "broken"]

COLUMNS = 24

HARM_AXIS = (0.0, 0.1)
"""The least range of the axis for shares that are normally 0: on an axis up to 1 a few percent are a flat line."""

_HARM = ("client_abort_share", "request_error_share", "request_rejected_share")

UNITS: Mapping[Unit | OwnUnit, str] = MappingProxyType(
    {
        "bytes": "bytes",
        "bytes/s": "Bps",
        "cores": "suffix:cores",
        "ratio": "percentunit",
        "requests/s": "reqps",
        "seconds": "s",
        "state": "none",
        **{
            unit: f"count:{unit}"
            for unit in (
                "alerts", "connections", "decisions", "decisions/s", "errors", "errors/s", "events", "events/s",
                "preemptions", "preemptions/s", "problems", "recoveries", "replicas", "requests", "rows",
                "samples", "samples/s", "scrapes", "scrapes/s", "series", "stages", "targets", "tasks", "tokens",
                "tokens/s", "workers",
            )
        },
    }
)  # fmt: skip
"""The unit of Grafana for each of the catalog's, and of series about the monitoring."""

STATUS_COLORS: Mapping[Status, str] = MappingProxyType({"good": "green", "warning": "orange", "critical": "red"})

# Red is for what is broken; the same series has the same colour on every dashboard.
SERIES_COLORS: Mapping[str, str] = MappingProxyType(
    {
        **dict(zip(OUTCOMES, ("green", "blue", "purple", "orange", "red"), strict=True)),
        **dict(zip(REPLICA_STATUSES, ("blue", "green", "purple", "orange", "red"), strict=True)),
        **dict(zip(INDEX_STATES, ("green", "orange", "blue"), strict=True)),
        "p50": "green",
        "p95": "blue",
        "p99": "purple",
    }
)

STACK_COLORS: Mapping[str, str] = MappingProxyType({"v1": "blue", "v2": "green"})
"""Of series that are named after their stack alone."""


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

    Series whose name ends with one of the words in `overlay` are dashed lines across the others, not part of a stack.
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
    columns: Mapping[str, Column] = field(default_factory=lambda: MappingProxyType({}))
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
    """One column of a table: its heading, unit and thresholds; `link` is where its cells lead."""

    title: str
    unit: str = "none"
    thresholds: tuple[Threshold, ...] = NO_THRESHOLDS
    link: str = ""
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A heading and the panels below it."""

    title: str
    panels: tuple[Panel, ...]


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
    text = legend(options, "deployment_id", "inference_stack", *figure.by)
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
        axis=HARM_AXIS if name in _HARM else _axis(figure.unit, band),
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
    width: int = 8,
) -> Panel:
    """An expression over the raw series, per value of the labels in `by`.

    `idle` if it is absent without traffic; `off` names the deployments without data, if the metric does not.
    """
    text, instant = legend(options, *by), kind != "timeseries"
    return Panel(
        title=title,
        kind=kind,
        queries=(
            histogram_queries(expression, options, by=by, text=text, replica=replica, instant=instant)
            if isinstance(expression, Quantile)
            else (Query(compile_expression(expression, options, by=by, replica=replica), text, instant),)
        ),
        unit=UNITS[unit],
        meaning=meaning,
        normal=normal,
        first=first,
        no_data=NoData("off", off) if off else absence(expression, idle=idle),
        axis=axis if unit == "ratio" else None,
        stacked=stacked,
        colors=STACK_COLORS if by == ("inference_stack",) else SERIES_COLORS,
        width=width,
    )


def query_panel(
    title: str,
    queries: Mapping[str, str],
    options: Options,
    *,
    unit: Unit,
    by: tuple[str, ...],
    no_data: NoData,
    meaning: str,
    normal: str,
    first: str,
    thresholds: tuple[Threshold, ...] = NO_THRESHOLDS,
    axis: tuple[float, float] | None = None,
    width: int = 8,
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
        axis=axis or ((0.0, 1.0) if unit == "ratio" else None),
        width=width,
    )


def quantiles_panel(
    title: str, histogram: str, options: Options, *, figures: tuple[str, ...] = (), normal: str = "", first: str = ""
) -> Panel:
    """The percentiles p50, p95 and p99 of a histogram over all selected deployments."""
    metric = METRICS[histogram]
    if figures:
        normal, first = read_figure(figures[-1], None)
    return Panel(
        title=title,
        kind="timeseries",
        queries=tuple(
            query
            for share in (0.5, 0.95, 0.99)
            for query in histogram_queries(Quantile(share, histogram), options, by=(), text=f"p{share * 100:g}")
        ),
        unit=UNITS[metric.unit],
        meaning=metric.help,
        normal=normal,
        first=first,
        no_data=absence(Quantile(0.5, histogram), idle=True),
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
        Threshold(STATUS_COLORS[band.lowest.status]),
        *(
            # A step that leaves its edge to the stretch below begins with the next number there is.
            Threshold(
                STATUS_COLORS[step.verdict.status],
                step.start if step.inclusive else math.nextafter(step.start, math.inf),
            )
            for step in band.steps
        ),
    )


def _axis(unit: Unit, band: Band | None) -> tuple[float, float] | None:
    """Where an axis begins and ends at least: shares from 0 to 1, those around 0 as far as twice their band."""
    if unit != "ratio":
        return None
    if band is not None and band.steps[0].start < 0:
        return 2 * band.steps[0].start, 2 * band.steps[-1].start
    return 0.0, 1.0


def place(rows: tuple[Row, ...]) -> list[tuple[Row | Panel, tuple[int, int, int, int]]]:
    """Rows and panels from left to right and top to bottom, each with x, y, width and height."""
    return reduce(_place_row, rows, [])


def _place_row(
    placed: list[tuple[Row | Panel, tuple[int, int, int, int]]], row: Row
) -> list[tuple[Row | Panel, tuple[int, int, int, int]]]:
    top = max((y + height for _, (_, y, _, height) in placed), default=0)
    placed.append((row, (0, top, COLUMNS, 1)))
    x, y, tallest = 0, top + 1, 0
    for panel in row.panels:
        if x + panel.width > COLUMNS:
            x, y, tallest = 0, y + tallest, 0
        placed.append((panel, (x, y, panel.width, panel.height)))
        x, tallest = x + panel.width, max(tallest, panel.height)
    return placed
