"""KV cache and router: reused tokens, the router's predictions, and its index of the workers' caches."""

from __future__ import annotations

from dataclasses import replace

from dashboards.board import Board
from dashboards.options import Options
from dashboards.panels.colors import SERIES_COLORS
from dashboards.panels.composed import replica_share, replica_spread, state_number
from dashboards.panels.panels import (
    MOST_LINES,
    UNITS,
    WHICH_REPLICAS,
    WHO,
    Panel,
    Row,
    absence,
    expression_panel,
    figure_panel,
    quantiles_panel,
    query_panel,
    replica_panel,
    worst_lately,
)
from dashboards.panels.queries import Query, legend
from dashboards.watched import conditions_panel
from servescope.alerting.fleet.cache import FEWER_REPLICAS
from servescope.contract.bounds import PROMPT_TRAFFIC
from servescope.contract.expressions import Level, Ratio, level, rate
from servescope.contract.metrics import METRICS

NAME = "cache"


def make(options: Options) -> Board:
    """The dashboard."""
    return Board(
        NAME,
        "KV cache and router",
        "Cache hits of each deployment, how well its router predicts them, and the state of the router.",
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
                "Scale-downs",
                (
                    conditions_panel(
                        "ServescopeCacheHitRateDropped", options,
                        ("fewer replicas than before", "hit rate dropped", "enough prompts"),
                        title="Scale down loses cache", beside=FEWER_REPLICAS,
                        normal="enough prompts alone, or fewer replicas while the hit rate is kept.",
                    ),
                ),
            ),
            Row(
                "Room",
                (
                    figure_panel("kv_cache_usage", options),
                    figure_panel("preemptions_rate", options),
                    usage_by_replica(options),
                ),
            ),
            Row(
                "The router's index",
                (
                    _index_state(options),
                    figure_panel("router_event_gap_rate", options),
                    expression_panel(
                        "Cache events dropped", rate("router_index_events_dropped_total"), options, unit="events/s",
                        by=WHO, meaning=METRICS["router_index_events_dropped_total"].help, normal="0.",
                        first="check whether workers and router run the same version.",
                    ),
                    expression_panel(
                        "Index recoveries", rate("router_index_recoveries_total"), options, unit="recoveries",
                        by=(*WHO, "source"), meaning=METRICS["router_index_recoveries_total"].help,
                        normal="none, or few after a restart.", first="if they repeat, check event gaps.",
                    ),
                    figure_panel("router_unreported_rate", options),
                    expression_panel(
                        "Routing decisions without the index", rate("router_fallbacks_total"), options,
                        unit="decisions/s",
                        by=(*WHO, "reason"), meaning=METRICS["router_fallbacks_total"].help,
                        normal="none, or few.", first="the label `reason` names what was missing.",
                    ),
                ),
            ),
            Row(
                "Router queue and decisions",
                (
                    quantiles_panel(
                        "Router queue wait", "router_queue_wait_seconds", options,
                        normal="near 0 while workers have capacity.",
                        first="if it grows, all workers are saturated: check the replicas and the requests in flight.",
                    ),
                    quantiles_panel(
                        "Routing decision time", "router_decision_seconds", options,
                        normal="about a millisecond.",
                        first="if it grows with traffic, the router is the bottleneck: add router replicas.",
                    ),
                    expression_panel(
                        "Queued at the router", level("router_queued_requests"), options, unit="requests",
                        by=WHO, meaning=METRICS["router_queued_requests"].help, normal="near 0.",
                        first="if it grows, all workers are saturated: check the replicas.",
                    ),
                ),
            ),
        ),
        by_replica=True,
    )  # fmt: skip


def _index_state(options: Options) -> Panel:
    """The state of each deployment's index over time."""
    metric = METRICS["router_index_state"]
    states = ("exact", "recovering", "degraded")
    return Panel(
        title="Index state",
        kind="state-timeline",
        queries=(Query(state_number(metric.name, "state", states, options, by=WHO), legend(options, *WHO)),),
        unit=UNITS["state"],
        meaning=metric.help,
        normal="`exact`.",
        first="if it stays `degraded`, check event gaps and dropped events.",
        no_data=absence(Level(metric.name, "max"), idle=False),
        states={number: (state, SERIES_COLORS[state]) for number, state in enumerate(states, start=1)},
    )


def usage_by_replica(options: Options) -> Panel:
    """The usage of each replica's KV cache."""
    return replica_panel(
        "KV cache in use by replica", level("kv_cache_usage", "avg"), options, unit="ratio",
        meaning="Share of each replica's KV cache in use.",
        normal="high under load, below 100 %.",
        first="if it stays at 100 %, check preemptions; add replicas or KV cache.",
    )  # fmt: skip


def _between_replicas(options: Options) -> tuple[Panel, ...]:
    """Hit rates of replicas with enough traffic for a meaningful rate, and their spread."""
    reused, eligible = METRICS["kv_cache_reused_tokens_total"].name, METRICS["kv_cache_eligible_tokens_total"].name
    floor = options.bound(PROMPT_TRAFFIC)
    share = replica_share(reused, eligible, floor, options)
    hits = absence(Ratio(rate(reused), rate(eligible)), idle=True)
    nothing = replace(
        hits,
        text=f"{hits.text}; or a single router reports hits; or every replica has fewer than {floor:g} prompt tokens "
        "per second",
    )
    return (
        query_panel(
            "Hit rate by replica",
            {"": worst_lately(MOST_LINES, Query(share, ""), lowest=True).expression}, options, unit="ratio",
            by=(*WHO, "replica"), ranked="min", width=12, height=9,
            meaning="Prompt tokens reused / prompt tokens routed, as each replica reports them, without replicas that "
            f"have fewer than {floor:g} prompt tokens per second. {WHICH_REPLICAS.format('lowest')} Empty "
            "where one router reports the hits of all replicas.",
            normal="about the same at all replicas of a deployment.",
            first="if one is low, check when it was started: a cold cache fills only with traffic.",
            no_data=nothing,
        ),
        query_panel(
            "Hit rate spread", {"": replica_spread(reused, eligible, floor, options)}, options, unit="ratio",
            by=WHO, width=12, height=9,
            meaning="Standard deviation of the replicas' hit rates: √(Σ eligible × (hit rate − mean)² / Σ eligible), "
            f"each replica weighted by its prompt tokens, without replicas below {floor:g} per second. A replica with "
            "little traffic hardly changes it.",
            normal="a few percent.",
            first="check the hit rate by replica: a single outlier is new or was restarted; many outliers point to bad "
            "routing.",
            no_data=nothing,
        ),
    )  # fmt: skip
