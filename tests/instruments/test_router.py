"""The router's instruments: attempts and their reports, the ratios, the index's health."""

from __future__ import annotations

import math
import re
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.contract.identity import Identity
from servescope.contract.metrics import INDEX_STATES
from servescope.instruments.router import MAX_REASONS, Attempt, RouterInstruments
from servescope.instruments.testing import FakeClock, value
from tests.conftest import ROOT
from tests.instruments.conftest import assert_values
from tests.support.drawing import examples
from tests.support.hostile_values import HOSTILE, UNHURRIED

IDENTITY = Identity("llama-70b", "chat-v2", "v2", replica="router-0", role="router")


@pytest.fixture
def router(clock: FakeClock) -> RouterInstruments:
    return RouterInstruments(IDENTITY, clock=clock)


def route(router: RouterInstruments, **changes: Any) -> Attempt:
    """A plain attempt, with changes."""
    numbers: dict[str, Any] = {
        "eligible_tokens": 1000, "predicted_tokens": 600, "best_tokens": 800, "candidates": 3,
    }  # fmt: skip
    return router.route(**(numbers | changes))


def test_a_report_books_the_four_counters_together(router: RouterInstruments) -> None:
    """Nothing before the report, everything with it; the ratios follow."""
    attempt = route(router, queue_wait_seconds=0.2)
    assert_values(router, kv_cache_eligible_tokens_total=0, router_candidates_sum=3, router_queue_wait_seconds_sum=0.2)
    attempt.report(500)
    assert_values(router, kv_cache_eligible_tokens_total=1000, kv_cache_predicted_tokens_total=600)
    assert_values(router, kv_cache_reused_tokens_total=500, kv_cache_best_tokens_total=800, kv_cache_hit_rate=0.5)
    assert_values(router, kv_cache_hit_rate_skew=pytest.approx(0.1), kv_cache_best_prefix_hit_rate=0.8)
    assert value(router, "kv_cache_hit_rate_efficiency") == 500 / 800


def test_an_abandoned_attempt_is_unreported(router: RouterInstruments) -> None:
    """It counts there, and in none of the token counters."""
    route(router).abandon()
    assert_values(router, router_unreported_decisions_total=1, kv_cache_eligible_tokens_total=0)


def test_ratios_forget_what_left_the_window(router: RouterInstruments, clock: FakeClock) -> None:
    """Absent, not 0, once nothing was reported within five minutes; counters stay."""
    route(router).report(500)
    clock.advance(299)
    assert value(router, "kv_cache_hit_rate") == 0.5
    clock.advance(2)
    assert_values(router, kv_cache_hit_rate=None, kv_cache_hit_rate_skew=None, kv_cache_reused_tokens_total=500)


def test_a_router_without_an_index_has_a_hit_rate_alone(router: RouterInstruments) -> None:
    """Predicted and best are absent with the ratios made of them, rather than 0."""
    route(router, predicted_tokens=None, best_tokens=None).report(300)
    names = {sample.name for sample in router.samples()}
    assert value(router, "kv_cache_hit_rate") == 0.3
    for name in ("kv_cache_predicted_tokens_total", "kv_cache_best_tokens_total", "kv_cache_hit_rate_skew",
                 "kv_cache_best_prefix_hit_rate", "kv_cache_hit_rate_efficiency"):  # fmt: skip
        assert name not in names


def test_efficiency_is_absent_when_nothing_was_cached(router: RouterInstruments) -> None:
    """There was nothing to be efficient about."""
    route(router, predicted_tokens=0, best_tokens=0).report(0)
    assert_values(router, kv_cache_hit_rate_efficiency=None, kv_cache_best_prefix_hit_rate=0)


def test_the_index_is_in_one_state(router: RouterInstruments) -> None:
    """Absent before it is set; then 1 for one state and 0 for the others."""
    assert value(router, "router_index_state", state="exact") is None
    router.set_index_state("exact")
    router.set_index_state("recovering")
    assert [value(router, "router_index_state", state=state) for state in INDEX_STATES] == [
        float(state == "recovering") for state in INDEX_STATES
    ]


def test_every_call_is_documented() -> None:
    """docs/embedding.md says when to make each call of a router, and of an attempt."""
    page = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
    for variable, kind in (("router", RouterInstruments), ("attempt", Attempt)):
        for name, member in vars(kind).items():
            if callable(member) and not name.startswith("_"):
                assert re.search(rf"^\| .* \| `[^|]*\b{variable}\.{name}\(.*\)` \| .* \|$", page, re.MULTILINE), name


def test_gaps_and_drops_appear_when_they_are_counted(router: RouterInstruments) -> None:
    """Absent when the router does not count them; counting none shows a zero."""
    assert value(router, "router_index_event_gaps_total") is None
    router.count_event_gaps(0)
    router.count_dropped_events(3)
    router.count_dropped_events()
    assert_values(router, router_index_event_gaps_total=0, router_index_events_dropped_total=4)


def test_decisions_show_how_long_they_took_and_how_busy_the_router_is(router: RouterInstruments) -> None:
    """Absent before one is recorded, as the queue is before it is set; busy seconds add up."""
    names = {sample.name for sample in router.samples()}
    assert not {"router_decision_seconds_count", "router_decision_busy_seconds_total", "router_queued_requests"} & names
    router.record_decision(0.5, busy_seconds=0.002)
    router.record_decision(0.25, busy_seconds=0.003)
    router.set_queued_requests(7)
    assert_values(router, router_decision_seconds_count=2, router_decision_seconds_sum=0.75)
    assert_values(router, router_decision_busy_seconds_total=pytest.approx(0.005), router_queued_requests=7)
    router.set_queued_requests(0)
    assert value(router, "router_queued_requests") == 0


def test_recoveries_are_counted_by_their_source(router: RouterInstruments) -> None:
    """A source appears when it is counted, a zero shows that it is; one that is unknown is refused."""
    router.count_recovery("events", 0)
    router.count_recovery("snapshot")
    router.count_recovery("guess")
    assert value(router, "router_index_recoveries_total", source="events") == 0
    assert value(router, "router_index_recoveries_total", source="snapshot") == 1
    assert value(router, "router_index_recoveries_total", source="inventory") is None
    assert refusals(router, "unknown_value") == 1


def test_fallbacks_are_counted_by_reason_within_bounds(router: RouterInstruments) -> None:
    """A reason that is different every time does not make a series every time."""
    route(router, fallback_reason="index empty")
    for number in range(50):
        route(router, fallback_reason=f"request {number}")
    series = [sample for sample in router.samples() if sample.name == "router_fallbacks_total"]
    assert value(router, "router_fallbacks_total", reason="index empty") == 1
    assert len(series) == MAX_REASONS + 1
    assert sum(sample.value for sample in series) == 51
    assert value(router, "router_fallbacks_total", reason="other") == 51 - MAX_REASONS


def test_a_reason_no_page_can_hold_costs_no_other(router: RouterInstruments) -> None:
    """Half a character is refused where it comes; the reasons folded with it are counted."""
    for reason in ("index empty", "\ud800", "index late"):
        route(router, fallback_reason=reason)
    assert value(router, "router_fallbacks_total", reason="index empty") == 1
    assert value(router, "router_fallbacks_total", reason="index late") == 1
    assert value(router, "servescope_instrument_errors_total", kind="wrong_type") == 1
    assert value(router, "servescope_instrument_errors_total", kind="internal") == 0


def refusals(router: RouterInstruments, kind: str) -> float | None:
    return value(router, "servescope_instrument_errors_total", kind=kind)


def test_an_attempt_ends_once(router: RouterInstruments) -> None:
    """A report after a report, or after giving up, is refused."""
    attempt = route(router)
    attempt.report(100)
    attempt.report(100)
    attempt.abandon()
    assert_values(router, kv_cache_reused_tokens_total=100, router_unreported_decisions_total=0)
    assert refusals(router, "finished_twice") == 2


def test_a_report_that_cannot_be_is_unreported(router: RouterInstruments) -> None:
    """More reused than there was: the hit rate stays a share."""
    route(router).report(1001)
    assert refusals(router, "inconsistent") == 1
    assert_values(router, router_unreported_decisions_total=1, kv_cache_eligible_tokens_total=0)


def test_an_attempt_with_refused_tokens_is_unreported(router: RouterInstruments) -> None:
    """Its prediction cannot be compared with the report, so neither is booked."""
    route(router, predicted_tokens=5000).report(10)
    route(router, eligible_tokens=-1).abandon()
    assert_values(router, router_unreported_decisions_total=2, kv_cache_reused_tokens_total=0)
    assert refusals(router, "inconsistent") == 1
    assert refusals(router, "out_of_range") == 1


@pytest.mark.slow
@settings(UNHURRIED, max_examples=examples(150))
@given(st.lists(st.tuples(*[HOSTILE] * 7), max_size=8))
def test_no_value_raises_and_attempts_add_up(calls: list[tuple[Any, ...]]) -> None:
    """Whatever is passed: no exception, finite figures, and every attempt is reported or unreported."""
    router = RouterInstruments(IDENTITY, clock=FakeClock())
    for eligible, predicted, best, candidates, wait, reason, reused in calls:
        attempt = router.route(
            eligible_tokens=eligible, predicted_tokens=predicted, best_tokens=best, candidates=candidates,
            queue_wait_seconds=wait, fallback_reason=reason,
        )  # fmt: skip
        attempt.report(reused)
        router.count_event_gaps(reused)
        router.count_dropped_events(eligible)
        router.set_index_state(reason)
        router.record_decision(wait, busy_seconds=eligible)
        router.set_queued_requests(candidates)
        router.count_recovery(reason, best)
    samples = router.samples()
    assert all(math.isfinite(sample.value) for sample in samples)
    rate = value(router, "kv_cache_hit_rate")
    assert rate is None or 0 <= rate <= 1
    assert refusals(router, "internal") == 0
    assert (value(router, "router_unreported_decisions_total") or 0) <= len(calls)


def test_threads_lose_no_report(router: RouterInstruments) -> None:
    """Four threads that route and report at once, while somebody reads."""

    def drive() -> None:
        for number in range(2500):
            attempt = route(router)
            attempt.report(500) if number % 5 else attempt.abandon()

    threads = [threading.Thread(target=drive) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        router.samples()
    assert_values(router, kv_cache_reused_tokens_total=4 * 2000 * 500, router_unreported_decisions_total=4 * 500)
    assert value(router, "router_candidates_count") == 4 * 2500
