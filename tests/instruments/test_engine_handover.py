"""A request that begins in one engine process and goes on in another: the instruments of both."""

from __future__ import annotations

import pytest

from servescope.contract.identity import Identity
from servescope.instruments.engine import EngineInstruments
from servescope.instruments.request import HandedOver
from servescope.instruments.testing import FakeClock, value
from tests.instruments.conftest import assert_values


@pytest.fixture
def prefill(clock: FakeClock) -> EngineInstruments:
    return EngineInstruments(Identity("m", "d", "v2", replica="engine-0", role="prefill"), clock=clock)


@pytest.fixture
def decode(clock: FakeClock) -> EngineInstruments:
    return EngineInstruments(Identity("m", "d", "v2", replica="engine-1", role="decode"), clock=clock)


def hand_over(prefill: EngineInstruments, clock: FakeClock) -> HandedOver:
    """A request of 100 prompt tokens whose first token came after two seconds."""
    request = prefill.start_request(100)
    clock.advance(2.0)
    request.first_token()
    handed_over = request.hand_over()
    assert handed_over is not None
    return handed_over


def test_start_and_end_are_counted_where_they_are(
    prefill: EngineInstruments, decode: EngineInstruments, clock: FakeClock
) -> None:
    """The first process has the start, the prompt and the first token; the second the rest, with the client's times."""
    handed_over = hand_over(prefill, clock)
    assert value(prefill, "concurrent_requests") == 0
    clock.advance(1.0)
    request = decode.take_over(handed_over)
    assert value(decode, "concurrent_requests") == 1
    clock.advance(1.0)
    request.tokens(4)
    request.finish("ok")
    assert value(decode, "concurrent_requests") == 0
    for name, first, second in (
        ("requests_started_total", 1, 0),
        ("input_tokens_total", 100, 0),
        ("output_tokens_total", 1, 4),
        ("time_to_first_token_seconds_count", 1, 0),
        ("request_duration_seconds_count", 0, 1),
        ("input_tokens_per_request_sum", 0, 100),
        ("output_tokens_per_request_sum", 0, 5),
        ("decode_seconds_total", 0, 2.0),
    ):
        assert (value(prefill, name), value(decode, name)) == (first, second), name
    assert value(decode, "request_duration_seconds_sum") == 4.0
    assert value(prefill, "requests_total", outcome="ok") == 0
    assert value(decode, "requests_total", outcome="ok") == 1


def test_what_cannot_be_handed_over_is_refused(prefill: EngineInstruments, clock: FakeClock) -> None:
    """Before its first token, after its end, or a second time there is nothing to hand over; the request goes on."""
    early = prefill.start_request(100)
    assert early.hand_over() is None
    early.first_token()
    assert early.hand_over() is not None
    assert early.hand_over() is None
    ended = prefill.start_request(100)
    ended.first_token()
    ended.finish("ok")
    assert ended.hand_over() is None
    assert value(prefill, "servescope_instrument_errors_total", kind="first_token_missing") == 1
    assert value(prefill, "servescope_instrument_errors_total", kind="after_finish") == 2
    assert_values(prefill, concurrent_requests=0, requests_started_total=2)


def test_handed_over_request_is_another_processes_to_finish(prefill: EngineInstruments, clock: FakeClock) -> None:
    """Finishing here what was handed over is refused: it would be counted twice."""
    request = prefill.start_request(100)
    request.first_token()
    request.hand_over()
    request.finish("ok")
    assert value(prefill, "requests_total", outcome="ok") == 0
    assert value(prefill, "servescope_instrument_errors_total", kind="finished_twice") == 1
