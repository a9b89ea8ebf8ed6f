"""Disaggregated phases: prefill and decode workers, and the KV transfers between them."""

from __future__ import annotations

from dashboards.board import Board
from dashboards.options import Options
from dashboards.panels.panels import WHO, Row, expression_panel, figure_panel, replica_panel
from servescope.contract.expressions import Level, Quantile, level, rate
from servescope.contract.metrics import PHASES

NAME = "phases"

_PHASED = (("role", PHASES),)
_OFF = "the deployment is not disaggregated"


def make(options: Options) -> Board:
    """The dashboard."""
    return Board(
        NAME,
        "Disaggregated phases",
        "Deployments with separate prefill and decode workers; empty for all others.",
        (
            Row(
                "Demand of each phase",
                (
                    figure_panel("autoscaler_phase_in_flight_tokens", options, width=12),
                    figure_panel("autoscaler_phase_desired_scale", options, width=12),
                    expression_panel(
                        "In flight by role", Level("concurrent_requests", "sum", _PHASED), options, unit="requests",
                        by=(*WHO, "role"), off=_OFF,
                        meaning="Requests in flight at the workers of each phase.",
                        normal="more at decode than at prefill.",
                        first="if prefill has more, its workers are the bottleneck: add prefill workers.",
                    ),
                    expression_panel(
                        "Queued by role", Level("queued_requests", "sum", _PHASED), options, unit="requests",
                        by=(*WHO, "role"), off=_OFF,
                        meaning="Requests waiting at the workers of each phase.",
                        normal="near 0 in both.", first="the phase with waiting requests has too few workers.",
                    ),
                    expression_panel(
                        "KV cache in use by role", Level("kv_cache_usage", "avg", _PHASED), options, unit="ratio",
                        by=(*WHO, "role"), off=_OFF,
                        meaning="Share of the KV cache in use, by phase.",
                        normal="decode is fuller than prefill.",
                        first="if prefill stays full, its KV is not transferred: check the KV transfers.",
                    ),
                ),
            ),
            Row(
                "KV transfers",
                (
                    figure_panel("kv_transfer_p95", options),
                    figure_panel("kv_transfer_wait_p95", options),
                    figure_panel("kv_transfers_pending", options),
                    figure_panel("kv_transfer_bytes_per_second", options),
                    replica_panel(
                        "KV transfers by replica", rate("kv_transfer_bytes_total"), options, unit="bytes/s",
                        lowest=True,
                        meaning="KV bytes that each decode worker receives per second.",
                        normal="about the same at all decode workers.",
                        first="if one gets less, check its link and the routing.",
                    ),
                    replica_panel(
                        "KV transfer by replica, p95", Quantile(0.95, "kv_transfer_seconds"), options, unit="seconds",
                        idle=True, meaning="95th percentile of the KV transfer time at each decode worker.",
                        normal="about the same at all decode workers.",
                        first="if one is slow, check its link.",
                    ),
                    replica_panel(
                        "KV transfers pending by replica", level("kv_transfers_pending"), options, unit="requests",
                        meaning="Requests whose KV each prefill worker has not transferred yet.",
                        normal="near 0.",
                        first="if one grows, check its link and the free KV cache of the decode workers.",
                    ),
                ),
            ),
        ),
        by_replica=True,
    )  # fmt: skip
