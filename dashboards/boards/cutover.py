"""Cutover: the stacks side by side, the traffic split, and the phase of the rollout."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from dashboards.board import Board
from dashboards.options import Options
from dashboards.panels import panels
from dashboards.panels.composed import beside_old
from dashboards.panels.queries import PRESENCE, Query
from dashboards.verdict import verdict_row
from servescope.contract.bounds import WORSE_ERRORS, WORSE_SPEED, WORSE_TIMES
from servescope.contract.expressions import Difference, Level, Quantile, Rate, Ratio, level, mean, rate
from servescope.contract.types import Objective

NAME = "cutover"

_ACTIVE = Level("replica_count_by_status", "sum", (("status", ("active",)),))


def make(options: Options) -> Board:
    """The dashboard."""
    harm = Ratio(rate("requests_total", outcome=("error", "rejected")), rate("requests_total"))
    decode = Ratio(
        Difference(Rate("output_tokens_per_request_sum"), Rate("output_tokens_per_request_count")),
        rate("decode_seconds_total"),
    )
    compare = partial(panels.expression_panel, options=options, by=("inference_stack",))
    promised = options.objectives
    first_token = Quantile(0.95, "time_to_first_token_seconds")
    output_token = Quantile(0.95, "time_per_output_token_seconds")
    return Board(
        NAME,
        "Cutover",
        "The verdict of the judge where one watches the cutover, and the selected stacks side by side, each summed "
        "over its deployments. A difference alone is not a verdict: the traffic may differ as well.",
        (
            verdict_row(options),
            panels.Row(
                "Traffic and replicas",
                (
                    compare(
                        # Ended requests: some engines do not report started ones.
                        "Requests by stack", rate("requests_total"), unit="requests/s", stacked=True,
                        meaning="Requests that ended per second, by stack; a stack's part of the total is its share.",
                        normal="they match the configured traffic split.",
                        first="if they do not, check the weights of the gateway that splits the traffic.",
                    ),
                    panels.expression_panel(
                        "In flight by rollout phase", level(PRESENCE), options, unit="requests",
                        by=(*panels.WHO, "rollout_phase"),
                        meaning="Requests in flight of each deployment, by the phase of its rollout.",
                        normal="one deployment is promoting until it is stable.",
                        first="if a phase lasts longer than planned, check who or what ends it.",
                    ),
                    compare(
                        "Active replicas by stack", _ACTIVE, unit="replicas", meaning="Active replicas of each stack.",
                        normal="replicas follow the traffic.",
                        first="if a stack without traffic keeps replicas, check the scale-down delay.",
                    ),
                ),
            ),
            panels.Row(
                "Latency and errors",
                (
                    _with_limit(
                        options, compare(
                            "Failed requests by stack", harm, unit="ratio", idle=True, axis=panels.HARM_AXIS,
                            meaning="Requests that failed or were rejected / requests that ended.",
                            normal="near 0, and the same for all stacks.",
                            first="if the new stack is worse, pause the cutover.",
                        ),
                        beside_old(harm, options, plus=options.bound(WORSE_ERRORS)),
                        thresholds=panels.harm_steps(promised["requests"]),
                    ),
                    _with_limit(
                        options, compare(
                            "Time to first token by stack, p95", first_token,
                            unit="seconds", idle=True, meaning="95th percentile of the time to first token.",
                            normal="about the same, or better on the new stack.",
                            first="if it differs, compare prompt lengths and cache hits before you blame a stack.",
                        ),
                        beside_old(first_token, options, times=options.bound(WORSE_TIMES)),
                        objective=promised.get("time_to_first_token"),
                    ),
                    _with_limit(
                        options, compare(
                            "Time per output token by stack, p95", output_token,
                            unit="seconds", idle=True, meaning="95th percentile of the time per output token.",
                            normal="about the same, or better on the new stack.",
                            first="if it differs, compare the requests in flight per replica, then the speculation "
                            "rates.",
                        ),
                        beside_old(output_token, options, times=options.bound(WORSE_TIMES)),
                        objective=promised.get("time_per_output_token"),
                    ),
                    compare(
                        "Request duration by stack, p95", Quantile(0.95, "request_duration_seconds"),
                        unit="seconds", idle=True,
                        meaning="95th percentile of the time from a request's arrival to its end.",
                        normal="about the same if answers have the same length.",
                        first="if it differs, compare the answer lengths first.",
                    ),
                    _with_limit(
                        options, compare(
                            "Tokens per second per request by stack", decode, unit="tokens/s", idle=True,
                            meaning="Output tokens after the first / seconds from first to last token.",
                            normal="about the same, or higher on the new stack.",
                            first="if it differs, compare the requests in flight per replica, then the speculation "
                            "rates.",
                        ),
                        beside_old(decode, options, times=options.bound(WORSE_SPEED)),
                    ),
                    compare(
                        "Queued by stack", level("queued_requests"), unit="requests",
                        meaning="Requests waiting to be scheduled.", normal="near 0 for all.",
                        first="if it grows, slow down the cutover until there are enough replicas.",
                    ),
                ),
            ),
            panels.Row(
                "Traffic comparison",
                (
                    compare(
                        "Prompt length by stack", mean("input_tokens_per_request"), unit="tokens",
                        idle=True, meaning="Mean prompt tokens of a request.", normal="the same for all stacks.",
                        first="if they differ, latencies are not comparable: split the traffic at random.",
                    ),
                    compare(
                        "Answer length by stack", mean("output_tokens_per_request"), unit="tokens",
                        idle=True, meaning="Mean output tokens of a request.", normal="the same for all stacks.",
                        first="if they differ for the same prompts, one stack truncates answers or fails to stop.",
                    ),
                    compare(
                        "KV cache hit rate by stack",
                        Ratio(rate("kv_cache_reused_tokens_total"), rate("kv_cache_eligible_tokens_total")),
                        unit="ratio", idle=True, meaning="Prompt tokens reused by workers / prompt tokens routed.",
                        normal="low on a stack that has just started, until its caches are warm.",
                        first="wait until the caches are warm before you compare latencies.",
                    ),
                ),
            ),
        ),
        marks_verdicts=True,
    )  # fmt: skip


def _with_limit(
    options: Options,
    panel: panels.Panel,
    limit: Query,
    *,
    objective: Objective | None = None,
    thresholds: tuple[panels.Threshold, ...] = panels.NO_THRESHOLDS,
) -> panels.Panel:
    """The panel with the value beyond which the new stack is worse than the old one, and with the objective."""
    old, new = options.choices.old_stack, options.choices.new_stack
    meaning = (
        f"{panel.meaning} The gray dashed line is what {new} may have, compared with {old} now, "
        "before the alerts on a cutover call it worse"
    )
    promise = f"; the other dashed lines are the objective: {objective.promise}" if objective else ""
    return replace(
        panel,
        queries=(*panel.queries, limit),
        overlay=(*panel.overlay, panels.LIMIT),
        meaning=f"{meaning}{promise}.",
        thresholds=panels.edge_steps(objective) if objective else thresholds,
        axis=panels.edge_axis(objective) if objective else panel.axis,
    )
