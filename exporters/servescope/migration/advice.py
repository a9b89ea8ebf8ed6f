"""Whether what v2 adds pays for the traffic at hand: KV-aware routing, from what was measured or replayed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

Topic = Literal["routing"]
Answer = Literal["pays", "does not pay", "depends", "unknown"]

ADVICE_TITLES: Final[dict[Topic, str]] = {"routing": "KV-aware routing"}

_NOTICEABLE: Final = 0.05
"""The share by which a time has to change before it is worth a change of the stack."""

_LEAST_GAIN: Final = 0.01
"""The share of prompt tokens that has to come from cache in addition; below it there is nothing to find."""

_BACKLOG: Final = 0.1
"""Where first tokens wait for this share of the time in which all requests came, the queue grew all the while."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Whether one thing pays, in one sentence, and the figures and rules behind the answer, one sentence each."""

    topic: Topic
    answer: Answer
    text: str
    reasons: tuple[str, ...]


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
    before, after = trial.by_load, trial.kv_aware
    mean = after.first_token_mean_seconds / before.first_token_mean_seconds - 1
    tail = after.first_token_p95_seconds / before.first_token_p95_seconds - 1
    gain = after.hit_rate - before.hit_rate
    answer, text = _weigh_routing(gain, mean, tail)
    return Advice("routing", answer, text, tuple(_explain_trial(trial)))


def _weigh_routing(gain: float, mean: float, tail: float) -> tuple[Answer, str]:
    """The answer to more hits (a share of prompt tokens), and to the change of the first token's time."""
    if gain < _LEAST_GAIN:
        return "does not pay", "prompts share too little of what replicas keep: routing by load finds nearly as much"
    saved = f"{gain:.1%} of prompt tokens need no computing in addition"
    first = f"the first token comes {_change(mean)} on average, {_change(tail)} at the 95th percentile"
    if mean <= -_NOTICEABLE and tail < _NOTICEABLE:
        return "pays", f"{saved}; {first}"
    if min(mean, tail) <= -_NOTICEABLE:
        return "depends", f"{saved}, but {first}: weigh the mean against the tail"
    return "does not pay", f"{saved}, but {first}: the hits are paid for with imbalance, or prompts are no bottleneck"


def _explain_trial(trial: RoutingTrial) -> Iterator[str]:
    before, after = trial.by_load, trial.kv_aware
    yield (
        f"{trial.trace} ({_count(trial.requests)} requests in {_count(round(trial.seconds))} s) was replayed on "
        f"{trial.replicas} emulated replicas, each {trial.engine}, with a cache of {_count(trial.cache_tokens)} tokens."
    )
    yield (
        f"From cache: {before.hit_rate:.1%} of prompt tokens routed by load, {after.hit_rate:.1%} KV-aware; one cache "
        f"without limit, which no router exceeds, would have {trial.reachable_hit_rate:.1%}."
    )
    yield (
        f"Time to first token: mean {_show_seconds(before.first_token_mean_seconds)} by load, "
        f"{_show_seconds(after.first_token_mean_seconds)} KV-aware; 95th percentile "
        f"{_show_seconds(before.first_token_p95_seconds)} and {_show_seconds(after.first_token_p95_seconds)}."
    )
    yield (
        f"The busiest replica had {before.load_imbalance:.2f} times the mean of requests in flight by load, "
        f"{after.load_imbalance:.2f} times KV-aware."
    )
    for name, routed in (("by load", before), ("KV-aware", after)):
        if routed.failed:
            yield f"Routed {name}, {_count(routed.failed)} requests were not served: the cache has no room for them."
        if routed.first_token_p95_seconds > _BACKLOG * trial.seconds:
            yield f"Routed {name}, the replicas are too few for the trace: times are those of a queue that grows."


def _change(share: float) -> str:
    return f"{abs(share):.0%} {'sooner' if share < 0 else 'later'}"


def _show_seconds(seconds: float) -> str:
    return f"{seconds:.3g} s"


def _count(number: int) -> str:
    """With a space between thousands."""
    return f"{number:,}".replace(",", " ")
