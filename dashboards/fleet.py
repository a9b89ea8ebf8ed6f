"""Fleet overview: the service level of every deployment on one screen."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from dashboards.board import Board, board_uid
from dashboards.options import Options
from dashboards.panels import UNITS, Column, NoData, Panel, Row, expression_panel, figure_panel, steps
from dashboards.queries import Query, compile_figure, legend, list_firing_alerts
from servescope.contract.expressions import Ratio, rate
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS

NAME = "fleet"
MOST_LINES = 5
# Room for three alerts.
_HEADLINE = 6

_COLUMNS = (
    "request_rate", "request_error_share", "request_rejected_share", "queued_requests", "time_to_first_token_p95",
    "time_per_output_token_p95", "speculation_rate", "kv_cache_hit_rate_skew", "kv_cache_hit_rate_efficiency",
)  # fmt: skip


def make(options: Options) -> Board:
    """The dashboard."""
    return Board(
        NAME,
        "Fleet overview",
        "The service level of every selected deployment on one screen; a deployment's name links to its requests.",
        (
            Row("Service", (*_headline(options), _alerts(options), _deployments(options))),
            Row(
                f"Highest {MOST_LINES}",
                (
                    figure_panel("request_error_share", options, limit=MOST_LINES, height=7),
                    figure_panel("time_to_first_token_p95", options, limit=MOST_LINES, height=7),
                    figure_panel("queued_requests", options, limit=MOST_LINES, height=7),
                ),
            ),
        ),
    )


def _headline(options: Options) -> tuple[Panel, ...]:
    harm = Ratio(rate("requests_total", outcome=("error", "rejected")), rate("requests_total"))
    headlines = (
        expression_panel(
            "Requests per second", rate("requests_total"), options, kind="stat", unit="requests/s", by=(), width=4,
            meaning="Requests that ended per second, in all selected deployments.", normal="follows your traffic.",
            first="if it drops while clients keep sending, check the table for queued requests.",
        ),
        expression_panel(
            "Failed requests", harm, options, kind="stat", unit="ratio", by=(), width=4, idle=True,
            meaning="Requests that failed in the stack or were rejected by it / requests that ended.",
            normal="0, or a few in ten thousand.",
            first="find the deployment in the table below; its name links to its requests.",
        ),
        expression_panel(
            "Output tokens per second in total", rate("output_tokens_total"), options, kind="stat", unit="tokens/s",
            by=(), width=4,
            meaning="Output tokens per second, in all selected deployments.", normal="follows your traffic.",
            first="if it is 0 while requests are in flight, check the engines: decoding is stuck.",
        ),
    )  # fmt: skip
    return tuple(replace(panel, height=_HEADLINE) for panel in headlines)


def _alerts(options: Options) -> Panel:
    deployment = options.label("deployment_id")
    firing = list_firing_alerts(options, by=("alertname", "severity", "deployment_id"))
    return Panel(
        title="Firing alerts",
        kind="table",
        queries=(Query(firing, "", instant=True, format="table"),),
        unit="none",
        meaning="Firing alerts of the selected deployments, and those of no single deployment, such as alerts on the "
        "traffic split or on the monitoring itself.",
        normal="none.",
        first="open the alert's runbook; for an alert on the monitoring, check the Health dashboard before you trust "
        "the rest.",
        no_data=NoData("idle", "no alert is firing, or the alert rules are not loaded"),
        columns=MappingProxyType(
            {
                "alertname": Column("Alert"),
                "severity": Column("Severity"),
                deployment: Column("Deployment"),
                **{label: Column(label.replace("_", " ").capitalize()) for label in options.extra_labels},
                "Value": Column("", hidden=True),
            }
        ),
        width=12,
        height=_HEADLINE,
    )


def _deployments(options: Options) -> Panel:
    keys = {label: options.label(label) for label in DEPLOYMENT_LABELS}
    link = (
        f"/d/{board_uid('requests', options)}?${{__url_time_range}}&${{datasource:queryparam}}"
        f"&var-deployment=${{__data.fields.Deployment}}"
    )
    columns = {
        keys["deployment_id"]: Column("Deployment", link=link),
        keys["inference_stack"]: Column("Stack"),
        keys["model_name"]: Column("Model"),
        keys["environment"]: Column("Environment"),
        keys["rollout_phase"]: Column("Phase"),
        **{label: Column(label.replace("_", " ").capitalize()) for label in options.extra_labels},
    }
    queries = []
    for number, name in enumerate(_COLUMNS):
        figure = FIGURES[name]
        columns[f"Value #{chr(ord('A') + number)}"] = Column(
            figure.title, UNITS[figure.unit], steps(options.band(name))
        )
        queries.append(
            Query(compile_figure(name, options, nameless=True), legend(options, "deployment_id"), True, "table")
        )
    return Panel(
        title="Deployments",
        kind="table",
        queries=tuple(queries),
        unit="none",
        meaning="One row per deployment, colored by the thresholds of each figure.",
        normal="no red or orange cells, and nothing queued.",
        first="click the deployment's name to see its requests.",
        no_data=NoData("idle", "a cell is empty if a feature is off or nothing happened in the window"),
        columns=MappingProxyType(columns),
        width=24,
        height=8,
    )
