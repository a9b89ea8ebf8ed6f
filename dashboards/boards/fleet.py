"""Fleet overview: the service level of every deployment on one screen."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from dashboards.board import Board, board_uid
from dashboards.options import Options
from dashboards.panels import panels
from dashboards.panels.colors import STATUS_COLORS
from dashboards.panels.composed import harm_column, harm_panel, replicas_column
from dashboards.panels.firing import firing_panel
from dashboards.panels.queries import SCOPE, Query, compile_expression, compile_figure, legend, own_scope
from servescope.contract.expressions import Level, Ratio, level, promql, rate
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.contract.metrics import BROKEN_STATUSES
from servescope.contract.own_metrics import COVERAGE_SERIES, COVERED_RATIO, OWN_METRICS
from servescope.settings.values import format_percent

NAME = "fleet"
MOST_LINES = 5
_LATENCIES = ("time_to_first_token", "time_per_output_token")
_COVERED = level(COVERAGE_SERIES, "avg")
_TARGETS = OWN_METRICS["servescope_targets"].name
_PARTLY_SCRAPED = (panels.Threshold(STATUS_COLORS["warning"]), panels.Threshold("text", COVERED_RATIO))
_BROKEN = (*panels.NO_THRESHOLDS, panels.Threshold(STATUS_COLORS["warning"], 1))
# A number without its unit, which would take more room than its column has.
_PLAIN = "short"
# Room for five alerts.
_HEADLINE = 8


def make(options: Options) -> Board:
    """The dashboard."""
    first_token = panels.figure_panel("time_to_first_token_p95", options, limit=MOST_LINES, height=6)
    promised = options.objectives.get("time_to_first_token")
    if promised is not None:
        first_token = replace(first_token, thresholds=panels.edge_steps(promised), axis=panels.edge_axis(promised))
    return Board(
        NAME,
        "Fleet overview",
        "The service level of every selected deployment on one screen; a deployment's name links to its requests.",
        (
            panels.Row(
                "Service",
                (*_headline(options), firing_panel(options, width=15, height=_HEADLINE), _deployments(options)),
            ),
            panels.Row(
                f"Highest {MOST_LINES}",
                (
                    replace(harm_panel(options, limit=MOST_LINES), height=6),
                    first_token,
                    panels.figure_panel("queued_requests", options, limit=MOST_LINES, height=6),
                ),
            ),
        ),
    )


def _headline(options: Options) -> tuple[panels.Panel, ...]:
    harm = Ratio(rate("requests_total", outcome=("error", "rejected")), rate("requests_total"))
    promised = options.objectives["requests"]
    headlines = (
        panels.expression_panel(
            "Requests in total", rate("requests_total"), options, kind="stat", unit="requests/s", by=(), width=3,
            meaning="Requests that ended per second, in all selected deployments.", normal="follows your traffic.",
            first="if it drops while clients keep sending, check the table for queued requests.",
        ),
        panels.expression_panel(
            "Harm in total", harm, options, kind="stat", unit="ratio", by=(), width=3, idle=True,
            thresholds=panels.harm_steps(promised),
            meaning="Requests that failed in the stack or were rejected by it / requests that ended. Colored by the "
            f"objective: {promised.promise}.",
            normal="0, or a few in ten thousand.",
            first="find the deployment in the table below; its name links to its requests.",
        ),
        panels.expression_panel(
            "Queued in total", level("queued_requests"), options, kind="stat", unit="requests", by=(), width=3,
            meaning="Requests waiting to be scheduled, in all selected deployments.", normal="near 0.",
            first="find the deployment in the graph below, then check its replicas.",
        ),
    )  # fmt: skip
    requests, harmed, queued = (replace(panel, height=_HEADLINE) for panel in headlines)
    return _with_past(requests, "request_rate", options), harmed, _with_past(queued, "queued_requests", options)


_NOW: Final = "2m:1m"
"""How long ago the last value of a figure may be that is one of now."""


def _with_past(panel: panels.Panel, figure: str, options: Options) -> panels.Panel:
    """A number with its past, from what is recorded; only while it has a value now, as a panel shows the last one."""
    (query,) = panel.queries
    recorded = compile_figure(figure, options)
    if options.figures == "raw":
        return panel
    past = f"sum({recorded}) and sum(count_over_time(({recorded})[{_NOW}] @ end()))"
    return replace(panel, queries=(replace(query, expression=past, instant=False),))


# In pixels, of the columns whose heading or numbers are far shorter or longer than those of the others.
_WIDTHS: Final = {"Active": 62, "Down": 60, "Requests": 94, "Speculation rate": 94}


def _deployments(options: Options) -> panels.Panel:
    keys = {label: options.label(label) for label in DEPLOYMENT_LABELS}
    link = (
        f"/d/{board_uid('requests', options)}?${{__url_time_range}}&${{datasource:queryparam}}"
        f"&var-deployment=${{__data.fields.Deployment}}"
    )
    columns = {
        keys["deployment_id"]: panels.Column("Deployment", width=110, link=link, link_title="Show it alone"),
        keys["inference_stack"]: panels.Column("Stack", width=60),
        keys["model_name"]: panels.Column("Model"),
        keys["environment"]: panels.Column("Environment", width=100),
        keys["rollout_phase"]: panels.Column("Phase"),
        **{label: panels.Column(label.replace("_", " ").capitalize()) for label in options.extra_labels},
    }
    promised = "; ".join(each.promise for each in options.objectives.values())
    queries = []
    for number, (title, unit, expression, thresholds) in enumerate(_columns(options)):
        columns[f"Value #{chr(ord('A') + number)}"] = panels.Column(
            title, unit, thresholds, width=_WIDTHS.get(title, 0)
        )
        queries.append(Query(expression, legend(options, "deployment_id"), True, "table"))
    return panels.Panel(
        title="Deployments",
        kind="table",
        queries=tuple(queries),
        unit="none",
        meaning="One row per deployment, that with the most failed or rejected requests first. Harm is colored by the "
        f"objectives: {promised}. Scraped is the share of the usual scrapes that the last 5 minutes have: below "
        f"{format_percent(COVERED_RATIO)} requests per second, and what is summed from rates, are too low by the rest. "
        "Active, desired and unhealthy are replicas, down are targets that do not answer. Figures for tuning have "
        "color only outside of their normal range.",
        normal="no orange or red cells among failed requests, replicas and latencies, and nothing queued.",
        first="click the deployment's name to see its requests.",
        no_data=panels.NoData("idle", "a cell is empty if a feature is off or nothing happened in the window"),
        columns=MappingProxyType(columns),
        sort=("Value #A",),
        width=24,
        height=8,
    )


def _down(options: Options) -> str:
    """How many targets of each deployment do not answer."""
    down = Level(_TARGETS, "sum", (("health", ("down",)),))
    chosen = own_scope(_TARGETS, options, SCOPE)
    return promql(down, window="", by=options.group(DEPLOYMENT_LABELS), scope=chosen, collectors=())


def _columns(options: Options) -> list[tuple[str, str, str, tuple[panels.Threshold, ...]]]:
    """Each column's title, unit, query and colors: harm first, then what is for tuning."""
    promised = options.objectives
    edges = {f"{name}_p95": panels.quiet(panels.edge_steps(promised[name])) for name in _LATENCIES if name in promised}
    shown = (
        "request_rejected_share", "request_rate", "queued_requests", *(f"{name}_p95" for name in _LATENCIES),
        "speculation_rate", "kv_cache_hit_rate_skew", "kv_cache_hit_rate_efficiency",
    )  # fmt: skip
    return [
        (
            "Failed or rejected",
            panels.UNITS["ratio"],
            harm_column(options),
            panels.quiet(panels.harm_steps(promised["requests"])),
        ),
        ("Active", _PLAIN, replicas_column(options, "active"), panels.NO_THRESHOLDS),
        (
            "Desired",
            _PLAIN,
            compile_figure("autoscaler_rounded_desired_scale", options, nameless=True),
            panels.NO_THRESHOLDS,
        ),
        ("Unhealthy", _PLAIN, replicas_column(options, *BROKEN_STATUSES), _BROKEN),
        (
            "Down",
            _PLAIN,
            _down(options),
            _BROKEN,
        ),
        (
            "Scraped",
            panels.UNITS["ratio"],
            compile_expression(_COVERED, options, by=DEPLOYMENT_LABELS),
            _PARTLY_SCRAPED,
        ),
        *(
            (
                FIGURES[name].title,
                _PLAIN if name == "queued_requests" else panels.UNITS[FIGURES[name].unit],
                compile_figure(name, options, nameless=True),
                edges.get(name, panels.quiet(panels.steps(options.band(name)))),
            )
            for name in shown
        ),
    ]
