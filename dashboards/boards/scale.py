"""Autoscaler and replicas: the desired scale, the scale sent, and the actual replicas."""

from __future__ import annotations

from dataclasses import replace

from dashboards.board import Board
from dashboards.options import Options
from dashboards.panels.composed import share_of_time_above
from dashboards.panels.panels import WHO, NoData, Panel, Row, figure_panel, query_panel, replica_panel
from dashboards.panels.queries import DEPLOYMENT, Query, compile_figure, legend
from servescope.contract.expressions import level
from servescope.contract.metrics import METRICS

NAME = "scale"

_SENT = "autoscaler_rounded_desired_scale"


def make(options: Options) -> Board:
    """The dashboard."""
    return Board(
        NAME,
        "Autoscaler and replicas",
        "The autoscaler's desired scale, the scale it sends to the orchestrator, and the actual replicas.",
        (
            Row("Replicas", (_replicas(options),)),
            Row(
                "Autoscaler",
                (
                    figure_panel("autoscaler_rounded_desired_scale", options),
                    figure_panel("autoscaler_desired_scale", options),
                    figure_panel("autoscaler_policy_desired_scale", options),
                    figure_panel("autoscaler_avg_num_workers", options),
                    query_panel(
                        "Time at the replica limit",
                        {"": share_of_time_above("autoscaler_desired_scale", _SENT, "1h", options)}, options,
                        unit="ratio", by=WHO,
                        meaning="Share of the last hour in which the load required more replicas than the autoscaler "
                        "may request: the raw desired scale was above the scale sent, which only the upper bound "
                        "causes.",
                        normal="0.",
                        first="raise max_replica, or limit the traffic; see the alert ServescopeAutoscalerPinned.",
                        no_data=NoData("off", METRICS[_SENT].absent),
                    ),
                ),
            ),
            Row(
                "Demand",
                (
                    figure_panel("autoscaler_in_flight_tokens", options),
                    figure_panel("autoscaler_avg_in_flight_tokens", options),
                    figure_panel("autoscaler_avg_num_requests", options),
                ),
            ),
            Row(
                "Resources",
                (
                    figure_panel("cpu_usage", options, width=6),
                    figure_panel("memory_usage", options, width=6),
                    figure_panel("gpu_usage", options, width=6),
                    figure_panel("gpu_memory_usage", options, width=6),
                    figure_panel("gpu_error_rate", options, width=6),
                    figure_panel("gpu_last_error", options, width=6),
                    replica_panel(
                        "GPU busy by replica", level("gpu_usage", "avg"), options, unit="ratio", lowest=True,
                        meaning="Share of time each replica's GPUs were busy.",
                        normal="about the same at all replicas of a deployment.",
                        first="if one is idle, check its status and the routing.",
                    ),
                ),
            ),
        ),
        by_replica=True,
        marks_scale=True,
    )  # fmt: skip


def _replicas(options: Options) -> Panel:
    """The replicas of each deployment by status, with the scale that was sent and its bounds across them."""
    replicas = figure_panel(
        "replica_count_by_status", options, title=f"Replicas of ${DEPLOYMENT}", stacked=True, width=24
    )
    # The title has the deployment.
    by_status = replace(replicas.queries[0], legend=legend(options, "environment", "status"))
    lines = {"desired": _SENT, "min": "autoscaler_min_replicas", "max": "autoscaler_max_replicas"}
    queries = [
        Query(compile_figure(figure, options), f"{legend(options, 'environment')} {word}")
        for word, figure in lines.items()
    ]
    return replace(
        replicas,
        queries=(by_status, *queries),
        meaning=f"{replicas.meaning} The dashed lines are the scale that the autoscaler has sent, and its bounds.",
        overlay=tuple(lines),
        repeat=DEPLOYMENT,
    )
