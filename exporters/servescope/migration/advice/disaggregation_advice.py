"""Whether disaggregated serving would pay, by the traits that the vendor's documents name.

It fits prompts that are long or of mixed lengths, and first tokens that have to come soon; where prompts are alike, or
first tokens are no bottleneck, the documents call aggregated serving simpler and sufficient. What is long, mixed and a
bottleneck is ours.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from servescope.migration.advice.advice import Advice, Answer, show_count, show_seconds
from servescope.migration.traffic.traffic import ServedTraffic, SizeDistribution
from servescope.settings.values import format_percent

MIXED_TIMES: Final = 4.0
"""Prompts are mixed where the 95th percentile is so many times the median."""
LONG_TOKENS: Final = 32_768
"""Prompts are long where the 95th percentile has so many tokens."""
BOTTLENECK_SHARE: Final = 0.2
"""First tokens are a bottleneck where this share of the time of requests passes before them."""
QUEUED_SHARE: Final = 0.5
"""More replicas are wanted first where this share of the time to first token is spent in the queue."""
STALLED_TIMES: Final = 2.0
"""Decoding stalls where the 95th percentile of the time per token is so many times the median."""


def advise_disaggregation(traffic: ServedTraffic, first_token_target_seconds: float | None = None) -> Advice:
    """Whether prefill and decode on workers of their own would pay for what a deployment served.

    The target is what 95 % of first tokens have to keep, None where there is none.
    """
    prompts = traffic.pool("input_tokens_per_request")
    first = traffic.pool("time_to_first_token_seconds")
    if prompts is None or first is None:
        missing = "prompt lengths" if prompts is None else "times to first token"
        return Advice("disaggregation", "unknown", f"no {missing} are reported", ())
    before = _find_share_before(traffic, first)
    is_missed = first_token_target_seconds is not None and first.quantile(0.95) > first_token_target_seconds
    is_bottleneck = is_missed if first_token_target_seconds is not None else _is_bottleneck(before)
    is_varied = _spread(prompts) >= MIXED_TIMES or prompts.quantile(0.95) >= LONG_TOKENS
    waiting = _find_waiting_seconds(traffic)
    if is_bottleneck and waiting is not None and waiting >= QUEUED_SHARE * first.mean:
        answer: Answer = "depends"
        text = "first tokens are a bottleneck, but mostly they wait in the queue: more replicas come first"
    else:
        answer, text = _weigh(is_varied=is_varied, is_bottleneck=is_bottleneck, is_missed=is_missed)
    return Advice("disaggregation", answer, text, (
        _describe_prompts(prompts),
        _describe_first(first, first_token_target_seconds),
        _describe_waiting(waiting, first.mean),
        _describe_share(before),
        _describe_stalls(traffic.pool("time_per_output_token_seconds")),
    ))  # fmt: skip


def _find_share_before(traffic: ServedTraffic, first: SizeDistribution) -> float | None:
    """The share of the time of requests that passes before their first token; None where that is not known."""
    duration = traffic.pool("request_duration_seconds")
    return first.mean / duration.mean if duration is not None and duration.mean > 0 else None


def _find_waiting_seconds(traffic: ServedTraffic) -> float | None:
    """How long a request waits in the queue on average, by Little's law; None where that is not known."""
    queued = traffic.queued[np.isfinite(traffic.queued)]
    rate = traffic.request_rate()
    return float(queued.mean()) / rate if queued.size and rate > 0 else None


def _is_bottleneck(before: float | None) -> bool | None:
    return None if before is None else before >= BOTTLENECK_SHARE


def _weigh(*, is_varied: bool, is_bottleneck: bool | None, is_missed: bool) -> tuple[Answer, str]:
    if is_bottleneck is None:
        return "unknown", "whether first tokens are a bottleneck is not known"
    if not is_bottleneck:
        return "does not pay", "first tokens are no bottleneck: aggregated serving is simpler and sufficient"
    if is_varied:
        return (
            "may pay",
            "first tokens are a bottleneck, and prompts are long or mixed: try it on a share of the traffic",
        )
    if is_missed:
        return "depends", "first tokens miss their target, but prompts are alike: more replicas do as much"
    return "does not pay", "prompts are alike, and none of them is long: aggregated serving is simpler and sufficient"


def _spread(prompts: SizeDistribution) -> float:
    return prompts.quantile(0.95) / max(prompts.quantile(0.5), 1.0)


def _describe_prompts(prompts: SizeDistribution) -> str:
    median, tail = prompts.quantile(0.5), prompts.quantile(0.95)
    return (
        f"Prompts: median {show_count(round(median))} tokens, 95th percentile {show_count(round(tail))}, "
        f"{_spread(prompts):.1f} times as many; mixed is {MIXED_TIMES:g} times, long {show_count(LONG_TOKENS)} tokens."
    )


def _describe_first(first: SizeDistribution, target: float | None) -> str:
    wanted = "" if target is None else f", with a target of {show_seconds(target)}"
    times = f"median {show_seconds(first.quantile(0.5))}, 95th percentile {show_seconds(first.quantile(0.95))}"
    return f"Time to first token: {times}{wanted}."


def _describe_share(before: float | None) -> str:
    if before is None:
        return "How long requests take is not reported, so what part of it passes before the first token is not known."
    bottleneck = f"a bottleneck from {format_percent(BOTTLENECK_SHARE)} on"
    return (
        f"Waiting and prefill take {format_percent(before)} of the time of requests ({bottleneck}), decoding the rest."
    )


def _describe_waiting(waiting: float | None, first: float) -> str:
    if waiting is None:
        return "How many requests wait in the queue is not reported, so whether more replicas would do is not known."
    # Rejected requests may wait as well, so that it can seem to be longer than the time to first token.
    share = format_percent(min(waiting / first, 1.0))
    return f"Of that {share} is spent in the queue, where more replicas help, the rest in prefill."


def _describe_stalls(per_token: SizeDistribution | None) -> str:
    if per_token is None:
        return "Time per output token is not reported, so whether prompts hold up decoding is not known."
    median, tail = per_token.quantile(0.5), per_token.quantile(0.95)
    held = "prompts may hold up decoding" if tail >= STALLED_TIMES * median else "prompts do not hold up decoding"
    return f"Time per output token: median {show_seconds(median)}, 95th percentile {show_seconds(tail)}: {held}."
