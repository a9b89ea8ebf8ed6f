"""Engine and requests: the service level of each deployment, and the replicas behind it."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from dashboards.board import Board
from dashboards.boards.cache import usage_by_replica
from dashboards.options import Options
from dashboards.panels.colors import STATUS_COLORS
from dashboards.panels.composed import attainment, budget_left, harm_panel, kept_over_days, unrecorded
from dashboards.panels.panels import (
    HARM_AXIS,
    UNITS,
    WHO,
    Column,
    NoData,
    Panel,
    Row,
    Threshold,
    absence,
    expression_panel,
    figure_panel,
    harm_steps,
    heatmap_panel,
    quantiles_panel,
    query_panel,
    replica_panel,
)
from dashboards.panels.queries import Query, compile_expression, legend
from dashboards.watched import holding_panel
from servescope.contract.expressions import Expression, Quantile, level, mean, rate
from servescope.contract.types import Objective, Unit

NAME = "requests"


def make(options: Options) -> Board:
    """The dashboard."""
    promised = options.objectives
    return Board(
        NAME,
        "Engine and requests",
        "Traffic, latency and tokens of each deployment and of its replicas.",
        (
            Row(
                "Requests",
                (
                    figure_panel("request_rate", options),
                    expression_panel(
                        "Requests by outcome", rate("requests_total"), options, unit="requests/s", by=("outcome",),
                        stacked=True, replica=True,
                        meaning="Requests that ended, by outcome; only `error` and `rejected` are the stack's fault.",
                        normal="nearly all `ok`, some `client_abort`.",
                        first="for `error`, check the replicas below; for `rejected`, the queued requests and the "
                        "replica count.",
                    ),
                    harm_panel(options),
                    figure_panel("concurrent_requests", options),
                    figure_panel("queued_requests", options),
                    figure_panel("client_abort_share", options),
                    figure_panel("client_error_share", options),
                ),
            ),
            Row(
                "Latency",
                (
                    quantiles_panel(
                        "Time to first token", "time_to_first_token_seconds", options,
                        figures=("time_to_first_token_p95",), objective=promised.get("time_to_first_token"),
                    ),
                    quantiles_panel(
                        "Time per output token", "time_per_output_token_seconds", options,
                        figures=("time_per_output_token_p95",), objective=promised.get("time_per_output_token"),
                    ),
                    quantiles_panel(
                        "Request duration", "request_duration_seconds", options, figures=("request_duration_p95",)
                    ),
                    heatmap_panel(
                        "Time to first token, spread", "time_to_first_token_seconds", options,
                        normal="one bright band.",
                        first="if there is a second band, check the replicas below: one is slow, or prompt lengths "
                        "differ.",
                    ),
                    heatmap_panel(
                        "Request duration, spread", "request_duration_seconds", options,
                        normal="one broad band.",
                        first="if there is a second band, compare the output tokens per request.",
                    ),
                ),
            ),
            Row("Objectives", (*_attained(options), _budgets(options))),
            Row(
                "Tokens",
                (
                    figure_panel("input_tokens_per_second", options),
                    figure_panel("output_tokens_per_second", options),
                    figure_panel("tps_per_request", options),
                    figure_panel("input_tokens_per_request", options),
                    figure_panel("output_tokens_per_request", options),
                    figure_panel("answer_truncated_share", options),
                ),
            ),
            Row("Replicas", (_instances(options), *_replicas(options))),
        ),
        by_replica=True,
    )  # fmt: skip


def _instances(options: Options) -> Panel:
    """One row per replica: what a hot, slow or restarted one differs in."""
    labels = ("deployment_id", "replica")
    keys = {options.label(label): Column(label.removesuffix("_id").capitalize()) for label in (*labels, "environment")}
    queries = [
        Query(
            compile_expression(expression, options, by=(*labels, "environment"), replica=True), "", True, "table"
        )
        for _, _, expression in _INSTANCE_COLUMNS
    ]  # fmt: skip
    began = queries[-1]
    queries[-1] = replace(began, expression=f"time() - ({began.expression})")
    columns = {
        f"Value #{chr(ord('A') + number)}": Column(title, UNITS[unit])
        for number, (title, unit, _) in enumerate(_INSTANCE_COLUMNS)
    }
    return Panel(
        title="Replicas side by side",
        kind="table",
        queries=tuple(queries),
        unit="none",
        meaning="One row per replica, that with the most requests in flight first: its load, its KV cache, its mean "
        "latencies of late and how long its process has run.",
        normal="all replicas of a deployment and role have about the same.",
        first="one with far more in flight than the others: the router prefers it, or it is slow; compare its time per "
        "token. One that has run for minutes only was restarted.",
        no_data=NoData("idle", "a cell is empty if the engine does not report it or nothing happened in the window"),
        columns=MappingProxyType({**keys, **columns}),
        sort=("Value #A",),
        width=24,
        height=9,
    )


_INSTANCE_COLUMNS: Final[tuple[tuple[str, Unit, Expression], ...]] = (
    ("In flight", "requests", level("concurrent_requests")),
    ("Queued", "requests", level("queued_requests")),
    ("Requests", "requests/s", rate("requests_total")),
    ("KV cache", "ratio", level("kv_cache_usage", "max")),
    ("First token", "seconds", mean("time_to_first_token_seconds")),
    ("Per token", "seconds", mean("time_per_output_token_seconds")),
    ("Preemptions", "preemptions/s", rate("preemptions_total")),
    ("Running for", "seconds", level("replica_start_time_seconds", "max")),
)


def _replicas(options: Options) -> tuple[Panel, ...]:
    objective = options.objectives["requests"]
    up = holding_panel(
        "ServescopeUpButNotServing", options, unit="requests",
        normal="empty; each line is a replica that has requests and processes no tokens.",
    )  # fmt: skip
    return (
        replace(up, width=24, height=6),
        replica_panel(
            "Requests by replica", rate("requests_total"), options, unit="requests/s",
            meaning="Requests that ended per second at each replica.",
            normal="about the same at all replicas of a deployment.",
            first="if one has fewer, check whether it fails them or gets none: its status, then the routing.",
        ),
        replica_panel(
            "Failed or rejected by replica", objective.bad, options, unit="ratio", idle=True, axis=HARM_AXIS,
            thresholds=harm_steps(objective),
            meaning="Requests that failed or were rejected / requests that ended, at each replica.",
            normal="0, or a few in ten thousand at all replicas.",
            first="if one is high, take it out of service and read its log; if all are, check the last change.",
        ),
        replica_panel(
            "In flight by replica", level("concurrent_requests"), options, unit="requests",
            meaning="Requests in flight at each replica, including queued ones.",
            normal="about the same at all replicas of a deployment.",
            first="if one has more, check the routing; if one has none, check its status.",
        ),
        replica_panel(
            "Queued by replica", level("queued_requests"), options, unit="requests",
            meaning="Requests waiting to be scheduled at each replica.",
            normal="near 0 at all replicas.",
            first="if one has a queue, check its requests in flight and its KV cache; if all have, add replicas.",
        ),
        replica_panel(
            "Time to first token by replica, p95", Quantile(0.95, "time_to_first_token_seconds"), options,
            unit="seconds", idle=True, meaning="95th percentile of the time to first token at each replica.",
            normal="about the same at all replicas of a deployment.",
            first="if one is slow, compare its requests in flight, then check its GPU.",
        ),
        usage_by_replica(options),
    )  # fmt: skip


def _attained(options: Options) -> tuple[Panel, ...]:
    """The attainment of each objective, with its goal as threshold."""
    return tuple(
        query_panel(
            f"{objective.title}: attainment",
            {window: attainment(objective, window, options) for window in ("5m", "1h")}, options,
            unit="ratio", by=WHO,
            meaning=f"The share of requests that met the objective, over 5 minutes and over an hour: "
            f"{objective.promise}.",
            normal=f"{objective.goal * 100:g} % or more.",
            first="check the panel of its bad share, which shows whether the error budget burns fast enough to page.",
            no_data=unrecorded(absence(objective.bad, idle=True)),
            thresholds=(Threshold(STATUS_COLORS["warning"]), Threshold(STATUS_COLORS["good"], objective.goal)),
            # Ten times the budget: on an axis from 0, 99 % and 99.9 % are the same line.
            axis=(round(1 - 10 * objective.budget, 12), 1.0),
        )
        for objective in options.objectives.values()
    )  # fmt: skip


def _reasons(objective: Objective) -> list[str]:
    return absence(objective.bad, idle=True).text.split("; or ")


def _budgets(options: Options) -> Panel:
    """The attainment of each objective over 3 days, and the remaining error budget of 30 days, per deployment."""
    deployment = options.label("deployment_id")
    columns = {
        deployment: Column("Deployment"),
        options.label("inference_stack"): Column("Stack"),
        options.label("model_name"): Column("Model"),
        options.label("environment"): Column("Environment"),
        **{label: Column(label.replace("_", " ").capitalize()) for label in options.extra_labels},
    }
    queries: list[Query] = []
    objectives = options.objectives.values()
    for objective in objectives:
        kept = (Threshold(STATUS_COLORS["warning"]), Threshold(STATUS_COLORS["good"], objective.goal))
        left = (Threshold(STATUS_COLORS["warning"]), Threshold(STATUS_COLORS["good"], 0.0))
        for title, text, thresholds in (
            (f"{objective.title}, 3 days", kept_over_days(objective, options), kept),
            (f"{objective.title}, budget left", budget_left(objective, options), left),
        ):
            columns[f"Value #{chr(ord('A') + len(queries))}"] = Column(title, UNITS["ratio"], thresholds)
            queries.append(Query(text, legend(options, "deployment_id"), True, "table"))
    return Panel(
        title="Error budgets",
        kind="table",
        queries=tuple(queries),
        unit="none",
        meaning="The share of requests that met each objective over 3 days, and the remaining error budget of 30 "
        "days, each over all rollout phases of a deployment. For the budget every 10 minutes count the same, however "
        "many requests they had; those before the deployment began, or without a request, spend nothing.",
        normal="green: the objective is met, and some budget is left.",
        first="if a budget is spent, postpone risky changes until it has recovered.",
        no_data=unrecorded(
            NoData("off", "; or ".join(dict.fromkeys(text for each in objectives for text in _reasons(each))))
        ),
        columns=MappingProxyType(columns),
        width=24,
        height=9,
    )
