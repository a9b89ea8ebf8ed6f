"""Speculation: does the draft agree with the main model, and how far into the draft."""

from __future__ import annotations

from dashboards.board import Board
from dashboards.options import Options
from dashboards.panels import Row, expression_panel, figure_panel
from servescope.expressions import Ratio, rate

NAME = "speculation"

_DRAFTED = rate("spec_decode_num_draft_tokens_total")
_ACCEPTED = rate("spec_decode_num_accepted_tokens_total")


def make(options: Options) -> Board:
    """The dashboard."""
    return Board(
        NAME,
        "Speculation",
        "Speculative decoding of each deployment; empty where speculation is off.",
        (
            Row(
                "Does the draft agree?",
                (
                    figure_panel("speculation_rate", options, kind="gauge", title="Speculation rate now"),
                    figure_panel("speculation_rate", options, width=16),
                ),
            ),
            Row(
                "How far, and how much",
                (
                    figure_panel("spec_decode_accepted_tokens_per_second", options, width=12),
                    expression_panel(
                        "Drafted", _DRAFTED, options, unit="tokens/s", by=("deployment_id", "inference_stack"),
                        meaning="Draft tokens proposed a second.", normal="follows output tokens.",
                        first="read the speculation rate only where something is drafted.", width=6,
                    ),
                    expression_panel(
                        "Accepted", _ACCEPTED, options, unit="tokens/s", by=("deployment_id", "inference_stack"),
                        meaning="Draft tokens accepted by the main model a second.", normal="follows those drafted.",
                        first="compare with those drafted; the difference was computed for nothing.", width=6,
                    ),
                ),
            ),
            Row(
                "Replicas and what it gains",
                (
                    expression_panel(
                        "Speculation rate by replica", Ratio(_ACCEPTED, _DRAFTED), options, unit="ratio",
                        by=("deployment_id", "replica"), replica=True, idle=True,
                        meaning="Draft tokens accepted / drafted at each replica.",
                        normal="about the same at all replicas of a deployment.",
                        first="for one apart, compare its draft model and its build.",
                    ),
                    figure_panel("tps_per_request", options),
                    figure_panel("output_tokens_per_second", options),
                ),
            ),
        ),
        by_replica=True,
    )  # fmt: skip
