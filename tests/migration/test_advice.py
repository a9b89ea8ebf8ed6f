"""Whether what v2 adds pays: the answers, and the figures they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from servescope.contract.identity import Deployment
from servescope.increments.blocks import BLOCK_MS
from servescope.migration.advice.advice import Answer
from servescope.migration.advice.advising import advise
from servescope.migration.advice.disaggregation_advice import advise_disaggregation
from servescope.migration.advice.routing_advice import RoutedTraffic, RoutingTrial, advise_routing, advise_routing_of
from servescope.migration.advice.speculation_advice import advise_speculation
from servescope.migration.traffic.traffic import ServedHistogram, ServedTraffic

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


def test_a_few_requests_prove_nothing_of_routing() -> None:
    """The 95th percentile of three is that of one; the figures are there all the same."""
    advice = advise_routing(replace(tried(0.3, 0.7, 2.5), requests=3))
    assert (advice.answer, advice.text) == ("unknown", "there were fewer than 50 requests")
    assert "Time to first token: mean 1 s by load" in advice.reasons[2]


def test_the_figures_behind_an_answer_are_there() -> None:
    """Of both routers: what came from cache, first tokens, the load; and what no router exceeds."""
    advice = advise_routing(tried(0.3, 0.7, 2.5))
    assert advice.text == (
        "20.0 % of prompt tokens need no computing in addition; the first token comes 30 % sooner on average, "
        "38 % sooner at the 95th percentile"
    )
    assert advice.reasons == (
        "t.jsonl (12 000 requests in 3 600 s) was replayed on 16 emulated replicas, each 4 x h100, with a cache of "
        "1 000 000 tokens.",
        "From cache: 10.0 % of prompt tokens routed by load, 30.0 % KV-aware; one cache without limit, which no router "
        "exceeds, would have 40.0 %.",
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


EDGES = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 1000.0, 2000.0, 8000.0, 40_000.0)


def histogram(values: Sequence[float]) -> ServedHistogram:
    """Observations of these values, in two blocks of five minutes: half of each in either."""
    counts = np.zeros((len(EDGES) + 1, 2))
    for value in values:
        counts[np.searchsorted(EDGES, value)] += 500
    return ServedHistogram(EDGES, counts, np.array([sum(values) * 500.0] * 2))


def served(
    histograms: Mapping[str, Sequence[float]], counters: Mapping[str, float], *, stack: str = "v1", replicas: int = 4
) -> ServedTraffic:
    """What a deployment served in ten minutes, with half of what its counters gained in each block."""
    unknown = np.full(2, np.nan)
    return ServedTraffic(
        deployments=(Deployment("chat", "chat-a", stack),),
        blocks=np.array([0, BLOCK_MS]),
        replicas=np.array([replicas - 1.0, replicas]),
        concurrency=unknown,
        queued=unknown,
        cache_usage=unknown,
        requests=unknown,
        histograms={name: histogram(values) for name, values in histograms.items()},
        counters={name: np.array([gained / 2, gained / 2]) for name, gained in counters.items()},
        gpus_per_replica=None,
    )


def test_reuse_of_today_is_the_least() -> None:
    """What is above it metrics do not say; and one replica leaves no choice."""
    counters = {"kv_cache_eligible_tokens_total": 1e6, "kv_cache_reused_tokens_total": 2.5e5}
    advice = advise_routing_of(served({}, counters))
    assert (advice.answer, advice.text) == (
        "unknown",
        "at least 25.0 % of prompt tokens come from cache, as today; how much more is not known",
    )
    assert "--trace FILE" in advice.reasons[-1]
    assert advise_routing_of(served({}, counters, replicas=1)).answer == "does not pay"
    assert advise_routing_of(served({}, {})).text == "how much of the prompts came from cache is not reported"


ALIKE = [1500.0] * 10
MIXED = [900.0] * 9 + [30_000.0]
SOON = [0.3] * 10
LATE = [3.0] * 10


@pytest.mark.parametrize(
    ("prompts", "first", "target", "answer"),
    [
        (MIXED, LATE, None, "may pay"),
        (MIXED, SOON, None, "does not pay"),
        (ALIKE, LATE, None, "does not pay"),
        (MIXED, SOON, 0.2, "may pay"),
        (MIXED, LATE, 10.0, "does not pay"),
        (ALIKE, LATE, 0.5, "depends"),
        ([39_000.0] * 10, LATE, None, "may pay"),
    ],
)
def test_disaggregation_by_the_documented_traits(
    prompts: list[float], first: list[float], target: float | None, answer: Answer
) -> None:
    """Long or mixed prompts, where first tokens are a bottleneck, or miss the target that there is."""
    traffic = served(
        {"input_tokens_per_request": prompts, "time_to_first_token_seconds": first,
         "request_duration_seconds": [7.0] * 10}, {},
    )  # fmt: skip
    assert advise_disaggregation(traffic, target).answer == answer


def test_disaggregation_is_unknown_where_data_is_absent() -> None:
    """The name of what is not reported is said; a target is enough where durations are not reported."""
    sizes = {"input_tokens_per_request": MIXED}
    first = {"time_to_first_token_seconds": LATE}
    assert advise_disaggregation(served(sizes, {})).text == "no times to first token are reported"
    assert advise_disaggregation(served(first, {})).text == "no prompt lengths are reported"
    both = served({**sizes, **first}, {})
    assert advise_disaggregation(both).answer == "unknown"
    assert advise_disaggregation(both, 1.0).answer == "may pay"
    assert advise_disaggregation(both).reasons[2:] == (
        "How many requests wait in the queue is not reported, so whether more replicas would do is not known.",
        "How long requests take is not reported, so what part of it passes before the first token is not known.",
        "Time per output token is not reported, so whether prompts hold up decoding is not known.",
    )


@pytest.mark.parametrize(("queued", "answer", "share"), [(1.4, "may pay", "47 %"), (1.6, "depends", "53 %")])
def test_a_queue_wants_replicas_first(queued: float, answer: Answer, share: str) -> None:
    """By Little's law: at one request a second, 1.5 waiting are half of the 3 s to the first token."""
    sizes = {"input_tokens_per_request": MIXED, "time_to_first_token_seconds": LATE,
             "request_duration_seconds": [7.0] * 10}  # fmt: skip
    traffic = replace(served(sizes, {}), queued=np.array([queued, np.nan]), requests=np.array([300.0, 300.0]))
    advice = advise_disaggregation(traffic)
    assert advice.answer == answer
    assert f"Of that {share} is spent in the queue" in " ".join(advice.reasons)


def test_decoding_that_stalls_is_said() -> None:
    """The 95th percentile of the time per token is twice the median, or it is not."""
    base = {"input_tokens_per_request": MIXED, "time_to_first_token_seconds": LATE}
    for times, expected in (([0.3] * 9 + [3.0], "prompts may hold up decoding"), ([0.3] * 10, "do not hold up")):
        reasons = advise_disaggregation(served({**base, "time_per_output_token_seconds": times}, {})).reasons
        assert expected in reasons[-1]


def drafted(reach: Sequence[float], *, drafts: float = 1e5, stack: str = "v2", **more: float) -> ServedTraffic:
    """A deployment whose drafts were right that often up to each position."""
    counters = {
        "spec_decode_num_drafts_total": drafts,
        "spec_decode_num_draft_tokens_total": drafts * len(reach),
        "spec_decode_num_accepted_tokens_total": drafts * sum(reach),
        **{f'spec_decode_num_accepted_tokens_per_pos_total{{position="{at}"}}': drafts * share
           for at, share in enumerate(reach)},
        **more,
    }  # fmt: skip
    return served({}, counters, stack=stack)


@pytest.mark.parametrize(
    ("reach", "answer", "text"),
    [
        ((0.9, 0.7, 0.5), "pays", "draft 3 tokens, as today (max_draft_len: 3): 3.10 tokens a step"),
        ((0.9, 0.7, 0.4, 0.39), "pays", "draft 3 tokens in place of 4 (max_draft_len: 3): 3.00 tokens a step"),
        ((0.45, 0.2, 0.1), "pays", "draft 1 token in place of 3 (max_draft_len: 1): 1.45 tokens a step"),
        ((0.39, 0.2), "does not pay", "already the first token is accepted in 39 % of the drafts only"),
        ((0.9, 0.7, 0.0, 0.0), "pays", "draft 2 tokens, as today (max_draft_len: 2)"),
    ],
)
def test_drafts_are_as_long_as_their_positions_pay(reach: tuple[float, ...], answer: Answer, text: str) -> None:
    """Each position has the documented band of the rate; its lower edge is inclusive."""
    advice = advise_speculation(drafted(reach))
    assert advice.answer == answer
    assert advice.text.startswith(text)


def test_a_position_that_was_never_drafted_is_unknown() -> None:
    """It is estimated from the two before it, and called unknown."""
    (reason,) = [each for each in advise_speculation(drafted((0.9, 0.72))).reasons if "never drafted" in each]
    assert reason == (
        "Position 3 was never drafted, so its acceptance is not known; if it falls as before it is 58 %, and one more "
        "is worth a trial."
    )


@pytest.mark.parametrize(("rate", "answer"), [(0.8, "pays"), (0.4, "pays"), (0.39, "does not pay")])
def test_without_positions_the_rate_is_judged(rate: float, answer: Answer) -> None:
    """By the documented bands; how long a draft should be is not known then."""
    counters = {"spec_decode_num_draft_tokens_total": 1e6, "spec_decode_num_accepted_tokens_total": rate * 1e6}
    advice = advise_speculation(served({}, counters, stack="v2"))
    assert advice.answer == answer
    assert "how many tokens to draft is not known" in " ".join(advice.reasons)


def test_lookahead_has_no_place_in_v2() -> None:
    """N-gram is the nearest, with what of it has to be accepted: it may pay. v2's own drafts are judged as they are."""
    advice = advise_speculation(drafted((0.6, 0.4), stack="v1"))
    assert advice.answer == "may pay"
    assert advise_speculation(drafted((0.3, 0.1), stack="v1")).answer == "does not pay"
    reasons = " ".join(advice.reasons)
    assert "N-gram is the nearest in v2" in reasons
    assert "worth as much where 50 % of their tokens are accepted, and anything from 40 % on" in reasons
    assert "N-gram" not in " ".join(advise_speculation(drafted((0.6, 0.4))).reasons)


def test_speculation_is_unknown_without_drafts() -> None:
    """None are reported, or too few to be more than chance."""
    assert advise_speculation(served({}, {})).answer == "unknown"
    assert advise_speculation(drafted((0.9,), drafts=999)).text == "there were fewer than 1 000 drafts"


def test_drafts_that_are_not_counted_follow_from_their_tokens() -> None:
    """As many as have all positions; where that cannot be, only the rate is judged."""
    traffic = drafted((0.9, 0.7, 0.2))
    counters = {name: values for name, values in traffic.counters.items() if name != "spec_decode_num_drafts_total"}
    advice = advise_speculation(replace(traffic, counters=counters))
    assert advice.text.startswith("draft 2 tokens in place of 3")
    few = {**counters, "spec_decode_num_draft_tokens_total": np.array([8e4, 8e4])}
    advice = advise_speculation(replace(traffic, counters=few))
    assert "Acceptance by position is not reported, so how many tokens to draft is not known." in advice.reasons


def test_a_trial_goes_before_metrics() -> None:
    """Without traffic it is all that is said; with it the three topics are in order."""
    trial = tried(0.3, 0.7, 2.5)
    assert [each.topic for each in advise(None, trial)] == ["routing"]
    found = list(advise(served({}, {}), trial))
    assert [(each.topic, each.answer) for each in found] == [
        ("routing", "pays"), ("disaggregation", "unknown"), ("speculation", "unknown"),
    ]  # fmt: skip
    assert next(advise(served({}, {}), None)).answer == "unknown"
