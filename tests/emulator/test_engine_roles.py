"""Engines that share a request: one prefills it, another decodes it, and every figure counts it once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from servescope.emulator.clock import VirtualClock
from servescope.emulator.engine.engine import Engine
from servescope.emulator.engine.parameters import EngineParameters
from servescope.emulator.engine.serving import Serving
from servescope.emulator.workload.requests import WorkloadRequest
from servescope.errors import UsageError
from tests.emulator.support.engines import PLAIN, make_engine

COUNTED_ONCE = (
    "requests_started_total", "requests_total", "concurrent_requests", "input_tokens_total", "output_tokens_total",
    "time_to_first_token_seconds_count", "time_per_output_token_seconds_count", "request_duration_seconds_count",
    "input_tokens_per_request_sum", "output_tokens_per_request_sum", "tps_per_request_count",
)  # fmt: skip


@dataclass
class Pair:
    """A prefill and a decode engine; a request's KV arrives `transfer_seconds` after it was handed over."""

    prefill_parameters: EngineParameters = PLAIN
    decode_parameters: EngineParameters = PLAIN
    transfer_seconds: float = 0.5
    clock: VirtualClock = field(default_factory=VirtualClock)
    outcomes: dict[int, str] = field(default_factory=dict)
    decoding: list[Serving] = field(default_factory=list)
    numbers: int = 0

    def __post_init__(self) -> None:
        self.prefill = make_engine(self.prefill_parameters, self.clock, role="prefill")[0]
        self.decode = make_engine(self.decode_parameters, self.clock, role="decode")[0]

    def submit(self, input_tokens: int, output_tokens: int) -> Serving:
        """Send one request, which goes on at the decode engine when it has its first token."""
        self.numbers += 1
        number = self.numbers
        blocks = range(number * 10_000, number * 10_000 + (input_tokens + output_tokens) // 16)
        request = WorkloadRequest(number, input_tokens, output_tokens, tuple(blocks))

        def finished(outcome: str) -> None:
            assert number not in self.outcomes
            self.outcomes[number] = outcome

        def fetch(serving: Serving) -> None:
            if not serving.ended:
                prefilled = self.prefill.release(serving)
                self.decoding.append(self.decode.submit_prefilled(prefilled, finished=finished))

        return self.prefill.submit(
            request,
            first_token=lambda cached: None,
            finished=finished,
            handed_over=lambda serving: self.clock.schedule(self.transfer_seconds, lambda: fetch(serving)),
        )

    def read(self, name: str, engine: Engine | None = None, **labels: str) -> float:
        """The value of a sample, over both engines unless one is asked for."""
        return sum(
            sample.value
            for each in ([engine] if engine else [self.prefill, self.decode])
            for sample in each.instruments.samples()
            if sample.name == name and set(labels.items()) <= set(sample.labels)
        )


def test_request_is_counted_once_over_both_engines() -> None:
    """A request served by a prefill and a decode engine is one request in every figure."""
    pair = Pair()
    pair.submit(160, 11)
    pair.clock.run_until(60.0)
    assert pair.outcomes == {1: "ok"}
    figures = {name: pair.read(name) for name in COUNTED_ONCE}
    assert figures == {
        **dict.fromkeys(COUNTED_ONCE, 1), "concurrent_requests": 0, "input_tokens_total": 160,
        "output_tokens_total": 11, "input_tokens_per_request_sum": 160, "output_tokens_per_request_sum": 11,
    }  # fmt: skip
    assert pair.read("time_to_first_token_seconds_sum", pair.prefill) == pytest.approx(0.170)
    assert pair.read("decode_seconds_total", pair.decode) == pytest.approx(0.5 + 10 * 0.010)
    assert pair.read("request_duration_seconds_sum", pair.decode) == pytest.approx(0.170 + 0.5 + 0.100)
    assert (pair.read("requests_started_total", pair.decode), pair.read("requests_total", pair.prefill)) == (0, 0)
    assert pair.read("servescope_instrument_errors_total") == 0


def test_each_engine_shows_what_is_in_flight_there() -> None:
    """A request is in flight where it is; the KV that waits to be fetched is held, and tokens are counted by phase."""
    pair = Pair()
    pair.submit(160, 100)
    pair.clock.run_until(0.1)
    assert pair.prefill.in_flight_tokens_by_phase() == (0, 160, 0, 0)
    pair.clock.run_until(0.4)
    assert pair.prefill.in_flight_tokens_by_phase() == (0, 0, 0, 161)
    assert pair.prefill.cache.held == 10
    assert pair.read("concurrent_requests", pair.prefill) == 1
    pair.clock.run_until(0.675)
    assert pair.prefill.in_flight == pair.prefill.cache.held == 0
    assert pair.decode.in_flight_tokens_by_phase() == (0, 0, 161, 0)
    assert (pair.read("concurrent_requests", pair.prefill), pair.read("concurrent_requests", pair.decode)) == (0, 1)


def test_decode_engine_waits_for_room_for_the_whole_context() -> None:
    """Without room for the whole context a prefilled request waits, and what it decodes costs no prefill."""
    pair = Pair(decode_parameters=replace(PLAIN, cache_blocks=20))
    pair.submit(200, 60)
    pair.submit(200, 60)
    pair.clock.run_until(1.0)
    assert pair.decode.queued == 1
    pair.clock.run_until(60.0)
    assert pair.outcomes == {1: "ok", 2: "ok"}
    # Both prompts were prefilled once, elsewhere: here there are steps of decoding only.
    assert pair.read("preemptions_total") == 0
    assert pair.read("request_duration_seconds_sum") == pytest.approx(0.210 + 0.5 + 0.59 + 0.210 + 0.5 + 2 * 0.59)


def test_request_of_one_token_ends_where_it_was_prefilled() -> None:
    """There is nothing to hand over when the first token is the last."""
    pair = Pair()
    pair.submit(160, 1)
    pair.clock.run_until(60.0)
    assert pair.outcomes == {1: "ok"}
    assert pair.read("requests_total", pair.prefill, outcome="ok") == 1
    assert not pair.decoding


def test_client_that_hangs_up_between_the_engines_is_counted_once() -> None:
    """Aborted while its KV is on its way, a request ends where it was, and leaves its blocks."""
    pair = Pair()
    serving = pair.submit(160, 50)
    pair.clock.run_until(0.4)
    pair.prefill.abort(serving)
    pair.clock.run_until(60.0)
    assert pair.outcomes == {1: "client_abort"}
    assert (pair.read("requests_started_total"), pair.read("requests_total"), pair.read("concurrent_requests")) == (
        1,
        1,
        0,
    )
    assert pair.prefill.cache.held == 0


def test_engines_take_what_their_role_is_for() -> None:
    """A decode engine is given prefilled requests, a prefill engine somebody to hand over to; others neither."""
    pair = Pair()
    request = WorkloadRequest(1, 16, 5, ())
    with pytest.raises(UsageError, match="'prefill' got handed_over=None"):
        pair.prefill.submit(request, first_token=lambda cached: None, finished=lambda outcome: None)
    serving = pair.submit(160, 50)
    with pytest.raises(UsageError, match="not one that was handed over"):
        pair.prefill.release(serving)
    pair.clock.run_until(0.4)
    prefilled = pair.prefill.release(serving)
    with pytest.raises(UsageError, match="only 'decode' does"):
        pair.prefill.submit_prefilled(prefilled, finished=lambda outcome: None)
