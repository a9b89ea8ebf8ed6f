"""Speculation: how many draft tokens the main model accepts, and up to which draft position."""

from __future__ import annotations

from dataclasses import replace

from dashboards.board import Board
from dashboards.options import Options
from dashboards.panels.composed import above_floor, acceptance_length
from dashboards.panels.panels import WHO, NoData, Panel, Row, figure_panel, query_panel, replica_panel
from dashboards.panels.queries import compile_expression
from servescope.contract.bounds import DRAFT_TRAFFIC
from servescope.contract.expressions import Ratio, rate

NAME = "speculation"

_DRAFTED = rate("spec_decode_num_draft_tokens_total")
_ACCEPTED = rate("spec_decode_num_accepted_tokens_total")


def make(options: Options) -> Board:
    """The dashboard."""
    return Board(
        NAME,
        "Speculation",
        "Speculative decoding of each deployment; empty if speculative decoding is off.",
        (
            Row(
                "Acceptance",
                (
                    _above_floor(
                        figure_panel("speculation_rate", options, kind="gauge", title="Speculation rate now"), options
                    ),
                    _above_floor(figure_panel("speculation_rate", options, width=16), options),
                ),
            ),
            Row(
                "Draft length and volume",
                (
                    query_panel(
                        "Mean acceptance length", {"": acceptance_length(options)}, options, unit="tokens",
                        by=WHO,
                        meaning="Output tokens per draft and verification step: "
                        "1 + accepted tokens / drafts. Of an engine that does not count its drafts, every draft is "
                        "assumed to have as many positions as have accepted tokens, so the value is too high where "
                        "draft lengths vary.",
                        normal="well above 1; at 1 drafts save nothing.",
                        first="compare with the accepted positions: drafting beyond them costs time.",
                        no_data=NoData("off", "speculative decoding is off; or nothing happened in the window"),
                    ),
                    figure_panel("spec_decode_accepted_tokens_per_second", options),
                    query_panel(
                        "Drafted and accepted",
                        {
                            word: compile_expression(expression, options, by=WHO)
                            for word, expression in (("drafted", _DRAFTED), ("accepted", _ACCEPTED))
                        },
                        options, unit="tokens/s", by=WHO,
                        meaning="Draft tokens proposed, and draft tokens accepted by the main model, per second.",
                        normal="both follow output tokens.",
                        first="the difference is wasted work: compare it with the speculation rate.",
                        no_data=NoData("off", "speculative decoding is off"),
                    ),
                ),
            ),
            Row(
                "Replicas and throughput",
                (
                    replica_panel(
                        "Speculation rate by replica", Ratio(_ACCEPTED, _DRAFTED), options, unit="ratio",
                        lowest=True, idle=True,
                        meaning="Draft tokens accepted / drafted at each replica.",
                        normal="about the same at all replicas of a deployment.",
                        first="if one differs, compare its draft model and its build.",
                    ),
                    figure_panel("tps_per_request", options),
                    figure_panel("output_tokens_per_second", options),
                ),
            ),
        ),
        by_replica=True,
    )  # fmt: skip


def _above_floor(panel: Panel, options: Options) -> Panel:
    """The panel, empty below a floor of draft tokens: a rate over a few tokens is not meaningful."""
    queries = tuple(
        replace(query, expression=above_floor(query.expression, _DRAFTED, options.bound(DRAFT_TRAFFIC), options))
        for query in panel.queries
    )
    text = f"{panel.no_data.text}; or fewer than {options.bound(DRAFT_TRAFFIC):g} draft tokens per second"
    return replace(panel, queries=queries, no_data=replace(panel.no_data, text=text))
