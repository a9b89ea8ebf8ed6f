"""Disaggregated phases: prefill and decode workers, and the KV that goes from one to the other."""

from __future__ import annotations

from dashboards.board import Board
from dashboards.options import Options
from dashboards.panels import Row, expression_panel, figure_panel
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
        "Deployments whose prefill and decode have workers of their own; empty for all others.",
        (
            Row(
                "Demand of each phase",
                (
                    figure_panel("autoscaler_phase_in_flight_tokens", options, width=12),
                    figure_panel("autoscaler_phase_desired_scale", options, width=12),
                    expression_panel(
                        "In flight by role", Level("concurrent_requests", "sum", _PHASED), options, unit="requests",
                        by=("deployment_id", "role"), off=_OFF,
                        meaning="Requests in flight at the workers of each phase.",
                        normal="more at decode than at prefill.",
                        first="if prefill holds more, its workers are the bottleneck: give it more of them.",
                    ),
                    expression_panel(
                        "Queued by role", Level("queued_requests", "sum", _PHASED), options, unit="requests",
                        by=("deployment_id", "role"), off=_OFF,
                        meaning="Requests waiting at the workers of each phase.",
                        normal="near 0 in both.", first="the phase where they wait has too few workers.",
                    ),
                    expression_panel(
                        "KV cache in use by role", Level("kv_cache_usage", "avg", _PHASED), options, unit="ratio",
                        by=("deployment_id", "role"), off=_OFF,
                        meaning="Share of the KV cache in use, by phase.",
                        normal="decode is fuller than prefill.",
                        first="where prefill stays full, its KV does not leave: look at the transfers below.",
                    ),
                ),
            ),
            Row(
                "KV on its way",
                (
                    figure_panel("kv_transfer_p95", options),
                    figure_panel("kv_transfer_wait_p95", options),
                    figure_panel("kv_transfers_pending", options),
                    figure_panel("kv_transfer_bytes_per_second", options),
                    expression_panel(
                        "KV transfers by replica", rate("kv_transfer_bytes_total"), options, unit="bytes/s",
                        by=("deployment_id", "replica"), replica=True, meaning="KV that comes to each decode worker.",
                        normal="about the same at all decode workers.",
                        first="for one that gets less, look at its link and at routing.",
                    ),
                    expression_panel(
                        "KV transfer by replica, p95", Quantile(0.95, "kv_transfer_seconds"), options, unit="seconds",
                        by=("deployment_id", "replica"), replica=True, idle=True,
                        meaning="95th percentile of a transfer's time at each decode worker.",
                        normal="about the same at all decode workers.",
                        first="for one that is slow, look at its link.",
                    ),
                    expression_panel(
                        "KV transfers pending by replica", level("kv_transfers_pending"), options, unit="requests",
                        by=("deployment_id", "replica"), replica=True,
                        meaning="Requests whose KV has not left each prefill worker yet.",
                        normal="near 0.",
                        first="for one that keeps KV, look at its link and at room on decode workers.",
                    ),
                ),
            ),
        ),
        by_replica=True,
    )  # fmt: skip
