"""The hot path under hostile values, orders, threads, signals and clocks: nothing raises, blocks or grows."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import signal
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, repeat
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servescope.contract.identity import Identity
from servescope.contract.metrics import OUTCOMES
from servescope.exposition.rendering import render
from servescope.instruments.autoscaler import AutoscalerInstruments
from servescope.instruments.engine import EngineInstruments
from servescope.instruments.instrument import Instruments
from servescope.instruments.router import RouterInstruments
from servescope.instruments.testing import FakeClock, value
from servescope.instruments.values import REFUSALS
from tests.instruments.conftest import assert_values
from tests.support.drawing import examples

ENGINE = Identity("llama-70b", "chat-v2", "v2", replica="engine-0")
ROUTER = Identity("llama-70b", "chat-v2", "v2", role="router")
AUTOSCALER = Identity("llama-70b", "chat-v2", "v2", role="autoscaler")


class Nasty:
    """Raises whatever it is asked."""

    def _raise(self, *_: object) -> Any:
        raise RuntimeError("no")

    __index__ = __float__ = __len__ = __iter__ = __eq__ = __bool__ = __repr__ = __str__ = _raise
    __hash__ = object.__hash__


class Text(str):
    """A text that cannot be hashed."""

    __slots__ = ()

    def __hash__(self) -> int:
        raise RuntimeError("no")


POOL: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "a bool": lambda: True,
    "a number of 400 digits": lambda: 10**400,
    "its negative": lambda: -(10**400),
    "a complex number": lambda: 1j,
    "numpy's float": lambda: np.float64(2),
    "numpy's int": lambda: np.int64(3),
    "numpy's nan": lambda: np.float32("nan"),
    "an array": lambda: np.array([1, 2]),
    "a lone surrogate": lambda: "\ud800",
    "bytes": lambda: b"3",
    "a list": list,
    "a dict": dict,
    "too many positions": lambda: (1,) * 9,
    "an object": object,
    "an object that raises": Nasty,
    "a type": lambda: int,
    "a function": lambda: len,
    "an iterator without end": lambda: repeat(1),
}
"""What hypothesis had better not look at itself, by what it is."""


@dataclass(frozen=True)
class Pick:
    """A value of the pool."""

    what: str


def real(given_value: Any) -> Any:
    return POOL[given_value.what]() if isinstance(given_value, Pick) else given_value


VALUES = st.one_of(
    st.sampled_from([-1, -0.0, 2**32 - 1, 2**32, 2**64, 1e308, 5e-324, math.nan, math.inf, "", "12", "\x00"]),
    st.sampled_from(sorted(POOL)).map(Pick),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-1, 9), max_size=10).map(tuple),
)

GOOD_OR_BAD = st.one_of(VALUES, st.integers(0, 20), st.sampled_from(OUTCOMES))


def sane(one: Instruments) -> None:
    """A reading has finite numbers only, no count below 0, and histograms that add up; its page can be rendered."""
    render(one)
    samples = one.samples()
    for sample in samples:
        assert math.isfinite(sample.value)
        assert sample.value >= 0 or "skew" in sample.name
    values = {(sample.name, sample.labels): sample.value for sample in samples}
    for (name, labels), found in values.items():
        if name.endswith("_bucket") and ("le", "+Inf") in labels:
            rest = tuple(pair for pair in labels if pair[0] != "le")
            assert values[name.removesuffix("_bucket") + "_count", rest] == found


def balance(engine: EngineInstruments) -> tuple[float, float]:
    """Requests started; and those ended and in flight together."""
    samples = engine.samples()
    started = sum(sample.value for sample in samples if sample.name == "requests_started_total")
    ended = sum(sample.value for sample in samples if sample.name in ("requests_total", "concurrent_requests"))
    return started, ended


def refusals(one: Instruments) -> float:
    return sum(value(one, "servescope_instrument_errors_total", kind=kind) or 0 for kind in REFUSALS)


hostile = settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.slow
@hostile
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["start", "first_token", "tokens", "finish", "record", "speculate", "queue", "cache", "preempt"]
            ),
            *[GOOD_OR_BAD] * 8,
        ),
        max_size=12,
    )
)
def test_an_engine_survives_any_value_in_any_order(calls: list[tuple[Any, ...]]) -> None:
    """Nothing raises; what is shown stays finite, and arrivals are outcomes and those in flight."""
    clock = FakeClock()
    engine = EngineInstruments(ENGINE, clock=clock, draft_length=4)
    request = engine.start_request(1)
    for name, *drawn in calls:
        a, b, c, d, e, f, g, h = map(real, drawn)
        clock.advance(0.1)
        if name == "start":
            request = engine.start_request(a)
        elif name == "first_token":
            request.first_token()
        elif name == "tokens":
            request.tokens(a)
        elif name == "finish":
            request.finish(a, b)
        elif name == "record":
            engine.record_request(
                outcome=a, input_tokens=b, output_tokens=c, time_to_first_token=d, duration=e, decode_seconds=f,
                draft_tokens=g, accepted_by_position=h,
            )  # fmt: skip
        elif name == "speculate":
            engine.record_speculation(a, b)
        elif name == "queue":
            engine.set_queued_requests(a)
        elif name == "cache":
            engine.set_kv_cache_usage(a)
        else:
            engine.count_preemptions(a)
    sane(engine)
    started, ended = balance(engine)
    assert started == ended


@pytest.mark.slow
@hostile
@given(
    st.lists(
        st.tuples(st.sampled_from(["route", "report", "abandon", "gaps", "drops", "state"]), *[GOOD_OR_BAD] * 6),
        max_size=12,
    )
)
def test_a_router_survives_any_value_in_any_order(calls: list[tuple[Any, ...]]) -> None:
    """Nothing raises; what is shown stays finite, and never more was reused than there was."""
    router = RouterInstruments(ROUTER, clock=FakeClock())
    attempt = router.route(eligible_tokens=10, predicted_tokens=5, best_tokens=7, candidates=3)
    for name, *drawn in calls:
        a, b, c, d, e, f = map(real, drawn)
        if name == "route":
            attempt = router.route(
                eligible_tokens=a, predicted_tokens=b, best_tokens=c, candidates=d, queue_wait_seconds=e,
                fallback_reason=f,
            )  # fmt: skip
        elif name == "report":
            attempt.report(a)
        elif name == "abandon":
            attempt.abandon()
        elif name == "gaps":
            router.count_event_gaps(a)
        elif name == "drops":
            router.count_dropped_events(a)
        else:
            router.set_index_state(a)
    sane(router)
    assert (value(router, "kv_cache_reused_tokens_total") or 0) <= (
        value(router, "kv_cache_eligible_tokens_total") or 0
    )


@pytest.mark.slow
@hostile
@given(st.lists(GOOD_OR_BAD, min_size=7, max_size=7), st.one_of(VALUES, st.dictionaries(st.text(max_size=6), VALUES)))
def test_an_autoscaler_survives_any_value(numbers: list[Any], replicas: Any) -> None:
    """Nothing raises; wrong figures leave the last good ones."""
    autoscaler = AutoscalerInstruments(AUTOSCALER)
    names = (
        "in_flight_tokens", "avg_in_flight_tokens", "avg_num_requests", "avg_num_workers", "desired_scale",
        "policy_desired_scale", "rounded_desired_scale",
    )  # fmt: skip
    autoscaler.evaluated(**dict(zip(names, map(real, numbers), strict=True)))
    autoscaler.set_replicas(
        {key: real(count) for key, count in replicas.items()} if isinstance(replicas, dict) else real(replicas)
    )
    sane(autoscaler)


@pytest.mark.parametrize("bad", [None, math.nan, -1, 2**32, "12", object(), Nasty(), 1j, [], np.array([1, 2])])
def test_every_wrong_count_is_counted_and_logged_once(bad: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A thousand of one kind are a thousand in the counter and one line in the log."""
    caplog.set_level(logging.WARNING, "servescope")
    engine = EngineInstruments(ENGINE)
    for _ in range(1000):
        engine.count_preemptions(bad)
    assert refusals(engine) == 1000
    assert value(engine, "preemptions_total") == 0
    assert len(caplog.records) == 1
    assert len(caplog.records[0].getMessage()) < 400


def test_an_outcome_that_cannot_be_hashed_is_an_error() -> None:
    """Its request is counted all the same."""
    engine = EngineInstruments(ENGINE)
    engine.start_request(1).finish(Text("ok"))
    engine.record_request(
        outcome=Text("ok"), input_tokens=1, output_tokens=1, time_to_first_token=0.1, duration=0.2, decode_seconds=0.0
    )
    assert balance(engine) == (2, 2)
    sane(engine)


def test_arrivals_are_outcomes_and_those_in_flight_whatever_threads_do() -> None:
    """Held in every reading, while eight threads start, feed, end and end again each other's requests."""
    engine = EngineInstruments(ENGINE)
    shared: list[Any] = []
    threads = 8

    def work(seed: int) -> None:
        for step in range(400):
            request = engine.start_request(step)
            shared.append(request)
            request.tokens(1 + step % 3)
            other = shared[(seed * 7919 + step) % len(shared)]
            other.finish(OUTCOMES[step % 5])
            if step % 3:
                request.finish("ok", 1 + step)
            engine.record_request(
                outcome="ok", input_tokens=1, output_tokens=1, time_to_first_token=0.1, duration=0.2, decode_seconds=0.0
            )

    running = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for thread in running:
        thread.start()
    while any(thread.is_alive() for thread in running):
        started, ended = balance(engine)
        assert started == ended
    for thread in running:
        thread.join()
    assert balance(engine)[0] == threads * 800
    for request in shared:
        request.finish()
    assert value(engine, "concurrent_requests") == 0
    assert balance(engine) == (threads * 800, threads * 800)
    sane(engine)


class Holder:
    """Ends its request when it is collected, as careless engines do."""

    def __init__(self, engine: EngineInstruments) -> None:
        self.engine = engine
        self.request = engine.start_request(1)
        self.itself = self

    def __del__(self) -> None:
        self.request.finish("client_abort")


@contextlib.contextmanager
def interrupting(handler: Callable[[], None], interval_seconds: float) -> Iterator[None]:
    """A signal handler that runs again and again within the block, between any two of its instructions."""

    def handle(*_: object) -> None:
        handler()
        # Only now, so that a slow machine does not run handlers within handlers.
        signal.setitimer(signal.ITIMER_VIRTUAL, interval_seconds)

    before = signal.signal(signal.SIGVTALRM, handle)
    signal.setitimer(signal.ITIMER_VIRTUAL, interval_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def test_recording_in_a_finalizer_does_not_block() -> None:
    """Collection may run anywhere, also within a fold or a reading of the same thread."""
    engine = EngineInstruments(ENGINE)
    before = gc.get_threshold()
    gc.set_threshold(50, 2, 2)
    try:
        for _ in range(300):
            Holder(engine).request.first_token()
            engine.fold()
    finally:
        gc.set_threshold(*before)
        gc.collect()
    assert value(engine, "requests_total", outcome="client_abort") == 300
    assert value(engine, "concurrent_requests") == 0


def test_recording_in_a_signal_handler_does_not_block() -> None:
    """It may interrupt a fold or a reading on the same thread, whose lock is then held."""
    engine = EngineInstruments(ENGINE)
    interruptions = 0

    def handler() -> None:
        nonlocal interruptions
        interruptions += 1
        for _ in range(40):
            request = engine.start_request(1)
            request.tokens(2)
            request.finish("ok")

    with interrupting(handler, 0.002):
        while interruptions <= 10:
            render(engine)
            engine.fold()
    assert value(engine, "requests_total", outcome="ok") == 40 * interruptions
    assert value(engine, "concurrent_requests") == 0


def test_a_segment_that_begins_in_a_finalizer_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a reading on the same thread: the request then counts in none."""
    monkeypatch.setattr("servescope.instruments.engine._READER_SECONDS", 0.01)
    engine = EngineInstruments(ENGINE)
    with engine._lock:
        engine.record_request("ok", 1, 1, 0.1, 0.1, None, segment="a")
    assert value(engine, "requests_total", outcome="ok") == 1
    engine.record_request("ok", 1, 1, 0.1, 0.1, None, segment="a")
    assert value(engine, "requests_total", outcome="ok", segment="a") == 1
    assert value(engine, "servescope_instrument_errors_total", kind="dropped") == 1


@pytest.mark.slow
@hostile
@given(
    st.lists(
        st.one_of(
            st.floats(),
            st.just(None),
            st.just("late"),
            st.floats(-10, 10),
            st.just("raise"),
            st.just(Pick("an object that raises")),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_a_clock_that_lies_spoils_times_and_nothing_else(times: list[Any]) -> None:
    """It may go backwards, stop, be no number or raise: counts stay exact and figures finite."""
    readings = cycle(times)

    def clock() -> Any:
        now = real(next(readings))
        if isinstance(now, str) and now == "raise":
            raise RuntimeError("no time")
        return now

    engine = EngineInstruments(ENGINE, clock=clock)
    for _ in range(5):
        request = engine.start_request(3)
        request.first_token()
        request.tokens(2)
        request.finish("ok", 4)
        engine.record_speculation(4, (2, 1))
    router = RouterInstruments(ROUTER, clock=clock)
    router.route(eligible_tokens=10, predicted_tokens=5, best_tokens=7, candidates=3).report(4)
    sane(engine)
    sane(router)
    assert value(engine, "requests_total", outcome="ok") == 5
    assert_values(engine, output_tokens_total=20, spec_decode_num_draft_tokens_total=20)
    assert value(router, "kv_cache_reused_tokens_total") == 4


@pytest.mark.slow
def test_memory_does_not_grow_without_a_reader() -> None:
    """After some thousands of requests, good and bad, twice as many more take no more memory."""
    engine = EngineInstruments(ENGINE)
    router = RouterInstruments(ROUTER)

    def work(count: int) -> None:
        for step in range(count):
            request = engine.start_request(step)
            request.tokens(3)
            request.finish("ok" if step % 2 else "what?")
            request.finish()
            request.tokens(1)
            engine.record_request(
                outcome="ok", input_tokens=-1, output_tokens=1, time_to_first_token=0.1, duration=0.2,
                decode_seconds=0.0, accepted_by_position=(1,) * (step % 12),
            )  # fmt: skip
            engine.record_speculation(3, (1, 1))
            router.route(
                eligible_tokens=5, predicted_tokens=4, best_tokens=4, candidates=2, fallback_reason=f"reason {step}"
            ).report(step % 7)

    work(5_000)
    tracemalloc.start()
    try:
        work(3_000)
        before, _ = tracemalloc.get_traced_memory()
        work(10_000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 500_000
    sane(engine)
    sane(router)
