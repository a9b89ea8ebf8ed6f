"""KV cache and router: what is reused, what the router predicted, and what it knows of the workers' caches."""

from __future__ import annotations

from dataclasses import replace

from dashboards.board import Board
from dashboards.composed import replica_share, replica_spread
from dashboards.options import Options
from dashboards.panels import Panel, Row, absence, expression_panel, figure_panel, quantiles_panel, query_panel
from servescope.contract.bounds import PROMPT_TRAFFIC
from servescope.contract.expressions import Level, Ratio, level, rate
from servescope.contract.metrics import METRICS

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
            Row("Between replicas", _between_replicas(options)),
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


def _between_replicas(options: Options) -> tuple[Panel, ...]:
    """Hit rates of replicas with enough traffic for a rate to say something, and how far they lie apart."""
    reused, eligible = METRICS["kv_cache_reused_tokens_total"].name, METRICS["kv_cache_eligible_tokens_total"].name
    floor = PROMPT_TRAFFIC.value
    hits = absence(Ratio(rate(reused), rate(eligible)), idle=True)
    nothing = replace(hits, text=f"{hits.text}; or every replica has fewer than {floor:g} prompt tokens a second")
    return (
        query_panel(
            "Hit rate by replica", {"": replica_share(reused, eligible, floor, options)}, options, unit="ratio",
            by=("deployment_id", "replica"), width=12,
            meaning="Prompt tokens reused / prompt tokens routed, as told by each replica; those with fewer than "
            f"{floor:g} prompt tokens a second are left out. Where a router tells the hits, the replica is the router.",
            normal="about the same at all replicas of a deployment.",
            first="for one that is low, look when it was started: its cache is cold for as long as it took others.",
            no_data=nothing,
        ),
        query_panel(
            "Hit rates apart", {"": replica_spread(reused, eligible, floor, options)}, options, unit="ratio",
            by=("deployment_id", "inference_stack"), width=12,
            meaning="How far the replicas' hit rates lie apart: √(Σ eligible × (hit rate − mean)² / Σ eligible), each "
            f"replica weighted with its prompt tokens, those with fewer than {floor:g} a second left out. One replica "
            "with hardly any traffic does not move it.",
            normal="a few percent; 0 with one replica.",
            first="look at the hit rate by replica: one apart is new or was restarted; many apart are badly routed.",
            no_data=nothing,
        ),
    )  # fmt: skip
