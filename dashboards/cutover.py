"""Cutover: the stacks side by side, their share of the traffic, and the phase of the rollout."""

from __future__ import annotations

from functools import partial

from dashboards.board import Board
from dashboards.options import Options
from dashboards.panels import HARM_AXIS, Row, expression_panel
from dashboards.queries import PRESENCE
from servescope.contract.expressions import Difference, Level, Quantile, Rate, Ratio, level, rate

NAME = "cutover"

_ACTIVE = Level("replica_count_by_status", "sum", (("status", ("active",)),))


def make(options: Options) -> Board:
    """The dashboard."""
    harm = Ratio(rate("requests_total", outcome=("error", "rejected")), rate("requests_total"))
    decode = Ratio(
        Difference(Rate("output_tokens_per_request_sum"), Rate("output_tokens_per_request_count")),
        rate("decode_seconds_total"),
    )
    compare = partial(expression_panel, options=options, by=("inference_stack",))
    return Board(
        NAME,
        "Cutover",
        "The stacks in scope side by side, each summed over its deployments. A difference seen here is no verdict: "
        "traffic may differ too.",
        (
            Row(
                "Who serves",
                (
                    compare(
                        # Not those started: some engines count requests only when they end.
                        "Requests by stack", rate("requests_total"), unit="requests/s", stacked=True,
                        meaning="Requests that end a second, by stack; its part of the whole is the stack's share.",
                        normal="the shares are those configured.",
                        first="if they are not, look at the configuration of what divides the traffic.",
                    ),
                    expression_panel(
                        "In flight by rollout phase", level(PRESENCE), options, unit="requests",
                        by=("deployment_id", "rollout_phase"),
                        meaning="Requests in flight of each deployment, under the phase its rollout is in.",
                        normal="one deployment is promoting until it is stable.",
                        first="if a phase stays for longer than planned, ask who moves it on.",
                    ),
                    compare(
                        "Active replicas by stack", _ACTIVE, unit="replicas", meaning="Active replicas of each stack.",
                        normal="replicas move with the traffic.",
                        first="if replicas stay where traffic left, look at the scale-down delay.",
                    ),
                ),
            ),
            Row(
                "What clients get",
                (
                    compare(
                        "Harm by stack", harm, unit="ratio", idle=True, axis=HARM_AXIS,
                        meaning="Requests that failed or were refused / requests that ended.",
                        normal="the same for all stacks, near 0.", first="stop the cutover where the new one is worse.",
                    ),
                    compare(
                        "Time to first token by stack, p95", Quantile(0.95, "time_to_first_token_seconds"),
                        unit="seconds", idle=True, meaning="95th percentile of the time to first token.",
                        normal="about the same, or better on the new stack.",
                        first="compare prompt lengths and cache hits before the stacks.",
                    ),
                    compare(
                        "Time per output token by stack, p95", Quantile(0.95, "time_per_output_token_seconds"),
                        unit="seconds", idle=True, meaning="95th percentile of the time per output token.",
                        normal="about the same, or better on the new stack.",
                        first="compare requests in flight a replica, then the speculation rates.",
                    ),
                    compare(
                        "Request duration by stack, p95", Quantile(0.95, "request_duration_seconds"),
                        unit="seconds", idle=True, meaning="95th percentile from a request's arrival to its end.",
                        normal="about the same where answers are equally long.",
                        first="compare the length of answers before the stacks.",
                    ),
                    compare(
                        "Tokens per second per request by stack", decode, unit="tokens/s", idle=True,
                        meaning="Output tokens after the first / seconds from first to last token.",
                        normal="about the same, or higher on the new stack.",
                        first="compare requests in flight a replica, then the speculation rates.",
                    ),
                    compare(
                        "Queued by stack", level("queued_requests"), unit="requests",
                        meaning="Requests waiting to be scheduled.", normal="near 0 for all.",
                        first="slow the cutover down until replicas have followed.",
                    ),
                ),
            ),
            Row(
                "Is the traffic the same?",
                (
                    compare(
                        "Prompt length by stack", _mean_size("input_tokens_per_request"), unit="tokens",
                        idle=True, meaning="Mean prompt tokens of a request.", normal="the same for all stacks.",
                        first="if they differ, latencies cannot be compared: divide the traffic at random.",
                    ),
                    compare(
                        "Answer length by stack", _mean_size("output_tokens_per_request"), unit="tokens",
                        idle=True, meaning="Mean output tokens of a request.", normal="the same for all stacks.",
                        first="if they differ for the same prompts, one stack cuts answers off or does not stop.",
                    ),
                    compare(
                        "KV cache hit rate by stack",
                        Ratio(rate("kv_cache_reused_tokens_total"), rate("kv_cache_eligible_tokens_total")),
                        unit="ratio", idle=True, meaning="Prompt tokens workers reused / prompt tokens routed.",
                        normal="low on a stack that just began, until its caches are warm.",
                        first="wait for warm caches before you compare latencies.",
                    ),
                ),
            ),
        ),
    )  # fmt: skip


def _mean_size(histogram: str) -> Ratio:
    return Ratio(Rate(f"{histogram}_sum"), Rate(f"{histogram}_count"))
