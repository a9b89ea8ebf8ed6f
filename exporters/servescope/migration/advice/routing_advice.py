"""Whether KV-aware routing pays: from a trace that both routers served, or, as far as they go, from metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from servescope.migration.advice.advice import Advice, Answer, show_count, show_seconds
from servescope.migration.traffic.traffic import ServedTraffic
from servescope.settings.values import format_percent

_NOTICEABLE: Final = 0.05
"""The share by which a time has to change before it is worth a change of the stack."""

_LEAST_GAIN: Final = 0.01
"""The share of prompt tokens that has to come from cache in addition; below it there is nothing to find."""

_FEWEST_REQUESTS: Final = 50
"""Of fewer the 95th percentile is that of one or two."""

_BACKLOG: Final = 0.1
"""Where first tokens wait for this share of the time in which all requests came, the queue grew all the while."""


@dataclass(frozen=True, slots=True)
class RoutedTraffic:
    """What one router made of a trace: shares 0 to 1, times in seconds.

    `load_imbalance` is what the busiest replica had in flight on average, as a multiple of the mean of all. `failed`
    counts requests that no replica could serve.
    """

    hit_rate: float
    first_token_mean_seconds: float
    first_token_p95_seconds: float
    load_imbalance: float
    failed: int


@dataclass(frozen=True, slots=True)
class RoutingTrial:
    """A trace served twice by the same replicas: routed by load, as v1 does, and by KV-aware routing, as v2 does.

    `engine` says what the replicas are made of; `reachable_hit_rate` is that of one cache without limit, which no
    router can exceed.
    """

    trace: str
    requests: int
    seconds: float
    replicas: int
    cache_tokens: int
    engine: str
    reachable_hit_rate: float
    by_load: RoutedTraffic
    kv_aware: RoutedTraffic


def advise_routing(trial: RoutingTrial) -> Advice:
    """Whether KV-aware routing pays for the traffic of a trace: by the time to the first token, and why."""
    if trial.requests < _FEWEST_REQUESTS:
        text = f"there were fewer than {show_count(_FEWEST_REQUESTS)} requests"
        return Advice("routing", "unknown", text, tuple(_explain_trial(trial)))
    before, after = trial.by_load, trial.kv_aware
    mean = after.first_token_mean_seconds / before.first_token_mean_seconds - 1
    tail = after.first_token_p95_seconds / before.first_token_p95_seconds - 1
    gain = after.hit_rate - before.hit_rate
    answer, text = _weigh_routing(gain, mean, tail)
    return Advice("routing", answer, text, tuple(_explain_trial(trial)))


def count_replicas(traffic: ServedTraffic) -> int:
    """The most replicas that a deployment had."""
    return max(1, round(float(np.nanmax(traffic.replicas))))


def advise_routing_of(traffic: ServedTraffic) -> Advice:
    """What metrics say of KV-aware routing: how much is reused already, which is the least that it would reuse."""
    eligible = traffic.gained("kv_cache_eligible_tokens_total")
    reused = traffic.gained("kv_cache_reused_tokens_total")
    most = count_replicas(traffic)
    if most == 1:
        return Advice("routing", "does not pay", "there was one replica, so there was nothing to choose", ())
    how = "A trace with hashes of prompts' blocks shows it: --trace FILE --replicas N serves it behind both routers."
    if not eligible or reused is None:
        return Advice("routing", "unknown", "how much of the prompts came from cache is not reported", (how,))
    text = (
        f"at least {format_percent(reused / eligible, 1)} of prompt tokens come from cache, as today; how much more is "
        "not known"
    )
    return Advice("routing", "unknown", text, (
        f"That is what up to {most} replicas reused, routed without regard to their caches.",
        "Metrics do not say what prompts share that are served by different replicas.",
        how,
    ))  # fmt: skip


def _weigh_routing(gain: float, mean: float, tail: float) -> tuple[Answer, str]:
    """The answer to more hits (a share of prompt tokens), and to the change of the first token's time."""
    if gain < _LEAST_GAIN:
        return "does not pay", "prompts share too little of what replicas keep: routing by load finds nearly as much"
    saved = f"{format_percent(gain, 1)} of prompt tokens need no computing in addition"
    first = f"the first token comes {_change(mean)} on average, {_change(tail)} at the 95th percentile"
    if mean <= -_NOTICEABLE and tail < _NOTICEABLE:
        return "pays", f"{saved}; {first}"
    if min(mean, tail) <= -_NOTICEABLE:
        return "depends", f"{saved}, but {first}: weigh the mean against the tail"
    return "does not pay", f"{saved}, but {first}: the hits are paid for with imbalance, or prompts are no bottleneck"


def _explain_trial(trial: RoutingTrial) -> Iterator[str]:
    before, after = trial.by_load, trial.kv_aware
    yield (
        f"{trial.trace} ({show_count(trial.requests)} requests in {show_count(round(trial.seconds))} s) was replayed "
        f"on {trial.replicas} emulated replicas, each {trial.engine}, with a cache of "
        f"{show_count(trial.cache_tokens)} tokens."
    )
    yield (
        f"From cache: {format_percent(before.hit_rate, 1)} of prompt tokens routed by load, "
        f"{format_percent(after.hit_rate, 1)} KV-aware; one cache "
        f"without limit, which no router exceeds, would have {format_percent(trial.reachable_hit_rate, 1)}."
    )
    yield (
        f"Time to first token: mean {show_seconds(before.first_token_mean_seconds)} by load, "
        f"{show_seconds(after.first_token_mean_seconds)} KV-aware; 95th percentile "
        f"{show_seconds(before.first_token_p95_seconds)} and {show_seconds(after.first_token_p95_seconds)}."
    )
    yield (
        f"The busiest replica had {before.load_imbalance:.2f} times the mean of requests in flight by load, "
        f"{after.load_imbalance:.2f} times KV-aware."
    )
    for name, routed in (("by load", before), ("KV-aware", after)):
        if routed.failed:
            failed = show_count(routed.failed)
            yield f"Routed {name}, {failed} requests were not served: the cache has no room for them."
        if routed.first_token_p95_seconds > _BACKLOG * trial.seconds:
            yield f"Routed {name}, the replicas are too few for the trace: times are those of a queue that grows."


def _change(share: float) -> str:
    return f"{format_percent(abs(share))} {'sooner' if share < 0 else 'later'}"
