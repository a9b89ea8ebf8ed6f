"""Whether what v2 adds pays: the answers, and the figures they are of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servescope.migration.advice import Answer, RoutedTraffic, RoutingTrial, advise_routing

BY_LOAD = RoutedTraffic(0.10, 1.0, 4.0, 1.05, 0)


def tried(hit_rate: float, mean: float, p95: float, *, failed: int = 0) -> RoutingTrial:
    """A trial in which KV-aware routing made this of the traffic that `BY_LOAD` is of."""
    kv_aware = RoutedTraffic(hit_rate, mean, p95, 1.4, failed)
    return RoutingTrial("t.jsonl", 12_000, 3600.0, 16, 1_000_000, "4 x h100", 0.4, BY_LOAD, kv_aware)


@pytest.mark.parametrize(
    ("hit_rate", "mean", "p95", "answer"),
    [
        (0.30, 0.7, 2.5, "pays"),
        (0.30, 0.7, 4.1, "pays"),
        (0.30, 0.7, 5.0, "depends"),
        (0.30, 1.1, 3.0, "depends"),
        (0.30, 0.98, 4.0, "does not pay"),
        (0.30, 1.5, 6.0, "does not pay"),
        (0.105, 0.7, 2.5, "does not pay"),
    ],
)
def test_routing_pays_by_the_first_token(hit_rate: float, mean: float, p95: float, answer: Answer) -> None:
    """Hits alone are no gain: they may be paid for with imbalance; and a gain without hits is chance."""
    assert advise_routing(tried(hit_rate, mean, p95)).answer == answer


def test_the_figures_behind_an_answer_are_there() -> None:
    """Of both routers: what came from cache, first tokens, the load; and what no router exceeds."""
    advice = advise_routing(tried(0.3, 0.7, 2.5))
    assert advice.text == (
        "20.0% of prompt tokens need no computing in addition; the first token comes 30% sooner on average, "
        "38% sooner at the 95th percentile"
    )
    assert advice.reasons == (
        "t.jsonl (12 000 requests in 3 600 s) was replayed on 16 emulated replicas, each 4 x h100, with a cache of "
        "1 000 000 tokens.",
        "From cache: 10.0% of prompt tokens routed by load, 30.0% KV-aware; one cache without limit, which no router "
        "exceeds, would have 40.0%.",
        "Time to first token: mean 1 s by load, 0.7 s KV-aware; 95th percentile 4 s and 2.5 s.",
        "The busiest replica had 1.05 times the mean of requests in flight by load, 1.40 times KV-aware.",
    )


def test_a_trace_that_is_too_much_is_said() -> None:
    """Where the queue grew all the while, and where requests found no room."""
    trial = replace(tried(0.3, 0.7, 2.5, failed=3), by_load=replace(BY_LOAD, first_token_p95_seconds=400.0))
    assert advise_routing(trial).reasons[-2:] == (
        "Routed by load, the replicas are too few for the trace: times are those of a queue that grows.",
        "Routed KV-aware, 3 requests were not served: the cache has no room for them.",
    )
