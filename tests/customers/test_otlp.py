"""Points as OTLP: by the rules of its data model, within a request's size, and nothing lost by the encoding."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.customers.points.points import StreamPoint
from servescope.customers.policy.policy import Temporality
from servescope.customers.transports.batches import BatchLimit, split
from servescope.customers.transports.otlp import count_bytes, encode
from tests.customers.support.customer_points import (
    BUSY,
    MINUTE,
    REQUESTS,
    T0,
    TTFT,
    WAITING,
    kind_of_each,
    point,
    stream,
)
from tests.customers.support.drawn_points import points
from tests.customers.support.otlp_rules import Key, Ledger, Received
from tests.support.drawing import examples

CHAT = (("deployment_id", "chat"), ("service.name", "chat"))
NS = 1_000_000


def received(*batches: list[StreamPoint], temporality: Temporality = "cumulative") -> Ledger:
    """What a receiver has after these requests."""
    ledger = Ledger()
    for batch in batches:
        ledger.take(encode(batch, temporality))
    return ledger


def test_each_kind_arrives_with_its_unit_its_times_and_its_value() -> None:
    """A counter of whole values as integers, a gauge without a start, a histogram with its buckets and its sum."""
    ledger = received(kind_of_each())

    assert not ledger.broken
    start, end = T0 * NS, (T0 + MINUTE) * NS
    assert {key.name: points for key, points in ledger.streams.items()} == {
        REQUESTS.name: [Received(start, end, 7)],
        BUSY.name: [Received(start, end, 1.25)],
        WAITING.name: [Received(0, end, 3.0)],
        TTFT.name: [Received(start, end, ((2, 1, 1), 4.5))],
    }
    assert isinstance(ledger.streams[Key(CHAT, REQUESTS.name, ())][0].value, int)
    assert [declared[1] for declared in ledger.declared.values()] == ["{request}", "s", "{request}", "s"]


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_a_metric_is_declared_with_the_temporality_of_the_destination(temporality: Temporality) -> None:
    """Sums and histograms have it, gauges have none."""
    ledger = received(kind_of_each(), temporality=temporality)

    number = {"delta": 1, "cumulative": 2}[temporality]
    assert [declared[2] for declared in ledger.declared.values()] == [number, number, 0, number]


def test_a_stream_ends_with_the_flag_and_without_a_value() -> None:
    """Of each kind; its metric keeps its kind and its temporality."""
    ended = [point(each.stream, None, at_ms=T0 + 2 * MINUTE) for each in kind_of_each()]

    ledger = received(kind_of_each(), ended)

    assert not ledger.broken
    assert all(points[-1].value is None for points in ledger.streams.values())


def test_points_of_a_reset_and_of_the_edge_are_both_in_one_request() -> None:
    """In their order, with their own starts; the total has both."""
    requests = stream(REQUESTS, result="ok")
    reset = T0 + MINUTE // 2
    batch = [point(requests, 5, at_ms=reset), point(requests, 2, at_ms=T0 + MINUTE, start_ms=reset)]

    ledger = received(batch)

    assert not ledger.broken
    assert ledger.total(Key(CHAT, REQUESTS.name, (("result", "ok"),))) == 7


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(batch=st.lists(points(), max_size=8), most_bytes=st.integers(200, 4000))
def test_no_request_is_larger_than_configured(batch: list[StreamPoint], most_bytes: int) -> None:
    """Unless one point alone is larger; no point is lost or moved."""
    requests = split(batch, most_bytes, count_bytes)

    assert [each for request in requests for each in request] == batch
    for request in requests:
        assert request
        assert len(request) == 1 or encode(request, "delta").ByteSize() <= most_bytes


def test_a_request_refused_as_too_large_is_split_smaller() -> None:
    """Down to single points; a single one that is too large is refused for good."""
    limit = BatchLimit(1_000_000, count_bytes)
    batch = [point(stream(REQUESTS, result=str(number)), number) for number in range(8)]
    sizes = []
    while len(requests := limit.split(batch)) < len(batch):
        sizes.append(len(requests))
        assert limit.lower(requests[0], "too large").retryable

    assert sizes[0] == 1
    assert sizes == sorted(sizes)
    assert not limit.lower(limit.split(batch)[0], "too large").retryable
