"""KV cache and router: what is reused, what the router predicted, and what it knows of the workers' caches."""

from __future__ import annotations

from dashboards.board import Board
from dashboards.options import Options
from dashboards.panels import Row, expression_panel, figure_panel, quantiles_panel
from servescope.catalog import METRICS
from servescope.expressions import Level, level, rate

NAME = "cache"


def make(options: Options) -> Board:
    """The dashboard."""
    return Board(
        NAME,
        "KV cache and router",
        "Cache hits of each deployment, how well its router predicts them, and the router itself.",
        (
            Row(
                "Hits and predictions",
                (
                    figure_panel("kv_cache_hit_rate", options, width=12),
                    figure_panel("kv_cache_hit_rate_skew", options, width=12),
                    figure_panel("kv_cache_hit_rate_efficiency", options, width=12),
                    figure_panel("kv_cache_best_prefix_hit_rate", options, width=12),
                ),
            ),
            Row(
                "Room",
                (
                    figure_panel("kv_cache_usage", options),
                    figure_panel("preemptions_rate", options),
                    expression_panel(
                        "KV cache in use by replica", level("kv_cache_usage", "avg"), options, unit="ratio",
                        by=("deployment_id", "replica"), replica=True,
                        meaning="Share of each replica's KV cache in use.",
                        normal="high under load, below 100 %.",
                        first="where it stays at 100 %, look at preemptions and add replicas or KV cache.",
                    ),
                ),
            ),
            Row(
                "The router's index",
                (
                    expression_panel(
                        "Index state", Level("router_index_state", "max"), options, unit="ratio",
                        by=("deployment_id", "state"), meaning=METRICS["router_index_state"].help,
                        normal="`exact` at 1.", first="if `degraded` stays, look at event gaps and drops.",
                    ),
                    figure_panel("router_event_gap_rate", options),
                    expression_panel(
                        "Cache events dropped", rate("router_index_events_dropped_total"), options, unit="events/s",
                        by=("deployment_id",), meaning=METRICS["router_index_events_dropped_total"].help, normal="0.",
                        first="look whether workers and router are of the same version.",
                    ),
                    expression_panel(
                        "Index recoveries", rate("router_index_recoveries_total"), options, unit="recoveries",
                        by=("deployment_id", "source"), meaning=METRICS["router_index_recoveries_total"].help,
                        normal="none, or few after a restart.", first="if they repeat, look at event gaps.",
                    ),
                    figure_panel("router_unreported_rate", options),
                    expression_panel(
                        "Decisions without the index", rate("router_fallbacks_total"), options, unit="decisions/s",
                        by=("deployment_id", "reason"), meaning=METRICS["router_fallbacks_total"].help,
                        normal="none, or few.", first="the reason says what was missing.",
                    ),
                ),
            ),
            Row(
                "Waiting for a decision",
                (
                    quantiles_panel(
                        "Router queue wait", "router_queue_wait_seconds", options,
                        normal="near 0 while workers have room.",
                        first="all workers are saturated: look at scale and requests in flight.",
                    ),
                    quantiles_panel(
                        "Decision time", "router_decision_seconds", options,
                        normal="about a millisecond.",
                        first="if it rises with traffic, the router is the bottleneck: add router replicas.",
                    ),
                    expression_panel(
                        "Queued at the router", level("router_queued_requests"), options, unit="requests",
                        by=("deployment_id",), meaning=METRICS["router_queued_requests"].help, normal="near 0.",
                        first="all workers are saturated: look at scale.",
                    ),
                ),
            ),
        ),
        by_replica=True,
    )  # fmt: skip
