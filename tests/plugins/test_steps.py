"""Instruments of an engine that reports its steps: each call by itself, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from servescope.contract.identity import Identity
from servescope.errors import UsageError
from servescope.instruments.record_buffer import FOLD_EVERY
from servescope.instruments.testing import FakeClock, value
from servescope.plugins.steps import MOST_AT_ONCE, StepInstruments
from tests.instruments.conftest import assert_values, refused

IDENTITY = Identity("llama-70b", "chat-v2", "v2", replica="engine-0")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def engine(clock: FakeClock) -> StepInstruments:
    return StepInstruments(IDENTITY, clock=clock, ratio_window_seconds=10.0, unreported_outcomes=("client_error",))


def test_nothing_is_booked_twice(engine: StepInstruments) -> None:
    """Tokens and the first token are the steps'; the request that ends adds what is made of the whole of it."""
    engine.count_tokens(input_tokens=100, output_tokens=1)
    engine.observe_first_tokens([0.5])
    engine.count_tokens(output_tokens=10)
    engine.record_request(
        outcome="ok", input_tokens=100, output_tokens=11, time_to_first_token=0.5, duration=2.5, decode_seconds=2.0
    )
    assert_values(engine, input_tokens_total=100, output_tokens_total=11, time_to_first_token_seconds_count=1)
    assert value(engine, "tps_per_request_sum") == 5.0
    assert value(engine, "requests_total", outcome="ok") == 1


def test_arrivals_are_absent_and_in_flight_is_what_was_set(engine: StepInstruments) -> None:
    """Before it is set it is absent as well; it does not follow from ends."""
    assert_values(engine, requests_started_total=None, concurrent_requests=None)
    engine.count_ended("ok", 5)
    engine.set_concurrent_requests(3)
    assert_values(engine, concurrent_requests=3, requests_started_total=None)


def test_an_unreported_outcome_is_absent_until_it_is_reported_after_all(engine: StepInstruments) -> None:
    """A count is never hidden."""
    engine.count_ended("rejected", 2)
    assert value(engine, "requests_total", outcome="client_error") is None
    assert value(engine, "requests_total", outcome="rejected") == 2
    engine.count_ended("client_error")
    assert value(engine, "requests_total", outcome="client_error") == 1


def test_the_hit_rate_covers_its_window(engine: StepInstruments, clock: FakeClock) -> None:
    """Counters go on; the ratio forgets, and is absent when nothing was eligible."""
    engine.record_cache_use(eligible_tokens=100, reused_tokens=100)
    clock.advance(6)
    engine.record_cache_use(eligible_tokens=100, reused_tokens=0)
    assert value(engine, "kv_cache_hit_rate") == 0.5
    clock.advance(6)
    assert value(engine, "kv_cache_hit_rate") == 0.0
    clock.advance(6)
    assert_values(engine, kv_cache_hit_rate=None, kv_cache_eligible_tokens_total=200, kv_cache_reused_tokens_total=100)


def test_more_steps_than_a_buffer_holds(engine: StepInstruments) -> None:
    """They are folded on the way; nothing is lost."""
    for _ in range(3 * FOLD_EVERY + 7):
        engine.count_tokens(input_tokens=2, output_tokens=3)
        engine.observe_inter_token_latencies([0.01, 0.02])
        engine.record_cache_use(eligible_tokens=2, reused_tokens=1)
    assert value(engine, "output_tokens_total") == 3 * (3 * FOLD_EVERY + 7)
    assert value(engine, "inter_token_latency_seconds_count") == 2 * (3 * FOLD_EVERY + 7)
    assert value(engine, "kv_cache_reused_tokens_total") == 3 * FOLD_EVERY + 7
    assert refused(engine) == {}


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -0.001, 1e10])
def test_a_time_that_cannot_be_costs_only_itself(engine: StepInstruments, wrong: float) -> None:
    """The others of the same step are booked."""
    engine.observe_first_tokens([0.5, wrong, 0.25])
    assert_values(engine, time_to_first_token_seconds_count=2, time_to_first_token_seconds_sum=0.75)
    assert refused(engine) == {"out_of_range": 1}


@pytest.mark.parametrize(
    ("call", "arguments", "kind"),
    [
        ("count_tokens", {"input_tokens": -1}, "out_of_range"),
        ("count_tokens", {"output_tokens": "many"}, "wrong_type"),
        ("record_cache_use", {"eligible_tokens": 1, "reused_tokens": 2}, "inconsistent"),
        ("observe_first_tokens", {"seconds": ["soon"]}, "wrong_type"),
        ("observe_first_tokens", {"seconds": 5}, "wrong_type"),
        ("observe_inter_token_latencies", {"seconds": [0.1] * (MOST_AT_ONCE + 1)}, "out_of_range"),
        ("set_concurrent_requests", {"count": math.nan}, "out_of_range"),
        ("count_ended", {"outcome": "vanished"}, "unknown_value"),
        ("count_ended", {"outcome": "ok", "count": -2}, "out_of_range"),
    ],
)
def test_what_cannot_be_is_refused(engine: StepInstruments, call: str, arguments: dict[str, Any], kind: str) -> None:
    """Counted by kind; nothing of it is on the page."""
    before = [sample for sample in engine.samples() if sample.name != "servescope_instrument_errors_total"]
    getattr(engine, call)(**arguments)
    assert refused(engine) == {kind: 1}
    assert [each for each in engine.samples() if each.name != "servescope_instrument_errors_total"] == before


def test_wrong_construction_is_refused() -> None:
    """As the engine's own instruments refuse it."""
    with pytest.raises(UsageError, match="draft_length is 0, expected a whole number from 1 to 64"):
        StepInstruments(IDENTITY, draft_length=0)
