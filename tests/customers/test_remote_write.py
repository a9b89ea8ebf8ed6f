"""Prometheus remote write: the series of each kind, both versions and the choice between them, and refusals."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.customers.points.points import Accepted, StreamPoint
from servescope.customers.transports.batches import split
from servescope.customers.transports.remote_write import count_bytes, encode_1, encode_2
from servescope.web.posting import SendError
from tests.customers.support.customer_points import (
    BUSY,
    MINUTE,
    REQUESTS,
    T0,
    TTFT,
    kind_of_each,
    point,
    push_to,
    stream,
)
from tests.customers.support.drawn_points import points
from tests.customers.support.otlp_backends import refusing
from tests.customers.support.remote_write_receiver import WRITTEN, Knows, RemoteWriteReceiver, remote_write_receiver
from tests.customers.support.sending import fail, send, succeed
from tests.support.drawing import examples

STALE_BITS = "7ff0000000000002"


def sent(receiver: RemoteWriteReceiver, *batches: Sequence[StreamPoint]) -> Awaitable[list[Accepted | SendError]]:
    """The outcome of requests to a receiver."""
    return send(push_to(receiver.url, protocol="remote-write"), *batches)


@pytest.mark.parametrize("knows", ["2.0", "1.0"])
async def test_each_kind_has_its_series_and_its_metadata(knows: Knows) -> None:
    """Buckets are cumulative, with canonical edges; version 2.0 has the start of each count as well."""
    async with remote_write_receiver(knows) as receiver:
        await sent(receiver, kind_of_each())
    start = T0 if knows == "2.0" else 0
    values = {
        (dict(labels)["__name__"], dict(labels).get("le")): samples for labels, samples in receiver.series.items()
    }
    assert not receiver.broken
    assert all(dict(labels)["deployment_id"] == "chat" for labels in receiver.series)
    at = T0 + MINUTE
    assert values == {
        ("requests_total", None): [(at, 7.0, start)],
        ("busy_seconds_total", None): [(at, 1.25, start)],
        ("requests_waiting", None): [(at, 3.0, 0)],
        ("time_to_first_token_seconds_bucket", "0.1"): [(at, 2.0, start)],
        ("time_to_first_token_seconds_bucket", "1.0"): [(at, 3.0, start)],
        ("time_to_first_token_seconds_bucket", "+Inf"): [(at, 4.0, start)],
        ("time_to_first_token_seconds_sum", None): [(at, 4.5, start)],
        ("time_to_first_token_seconds_count", None): [(at, 4.0, start)],
    }
    family = "busy_seconds_total"
    assert receiver.metadata[family] == (1, BUSY.help, "seconds")


@pytest.mark.parametrize("knows", ["2.0", "1.0"])
async def test_a_stream_ends_with_a_stale_marker_on_each_series(knows: Knows) -> None:
    """Of a histogram on every bucket, whose edges the point carries."""
    ended = [
        StreamPoint(each.stream, None, T0 + 2 * MINUTE, None, TTFT_EDGES if each.stream.metric is TTFT else ())
        for each in kind_of_each()
    ]
    async with remote_write_receiver(knows) as receiver:
        await sent(receiver, kind_of_each(), ended)
    assert not receiver.broken
    assert len(receiver.series) == 8
    assert {samples[-1][:2] for samples in receiver.series.values()} == {(T0 + 2 * MINUTE, STALE_BITS)}


TTFT_EDGES = (0.1, 1.0)


@pytest.mark.parametrize("knows", ["2.0", "1.0"])
async def test_points_of_a_reset_and_of_the_edge_are_samples_of_one_series(knows: Knows) -> None:
    """In the order of their times, as a receiver demands."""
    requests = stream(REQUESTS)
    batch = [point(requests, 5, at_ms=T0 + 30_000), point(requests, 2, start_ms=T0 + 30_000)]
    async with remote_write_receiver(knows) as receiver:
        await sent(receiver, batch)
    assert not receiver.broken
    assert [samples[:2] for samples in next(iter(receiver.series.values()))] == [
        (T0 + 30_000, 5.0), (T0 + MINUTE, 2.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("knows", "versions"),
    [
        ("2.0", ["2.0.0", "2.0.0"]),
        ("1.0", ["2.0.0", "0.1.0", "0.1.0"]),
        ("1.0 that refuses others", ["2.0.0", "0.1.0", "0.1.0"]),
        ("1.0 that accepts nothing of others", ["2.0.0", "0.1.0", "0.1.0"]),
    ],
)
async def test_a_receiver_gets_the_version_it_knows(knows: Knows, versions: list[str]) -> None:
    """One that accepts version 2.0 without counting what it wrote has read it as an empty request of 1.0."""
    async with remote_write_receiver(knows) as receiver:
        outcomes = await sent(receiver, kind_of_each(), kind_of_each(T0 + 2 * MINUTE))
        assert [outcome.points for outcome in outcomes if isinstance(outcome, Accepted)] == [4, 4]
    assert receiver.versions == versions
    assert {len(samples) for samples in receiver.series.values()} == {2}


async def test_a_failure_says_nothing_of_the_version() -> None:
    """A receiver that was away for the first request gets version 2.0 with the next, and 2.0 after a refusal."""
    async with remote_write_receiver() as receiver:
        receiver.faults += [refusing(503), refusing(429, Retry_After="3")]
        outcomes = await sent(receiver, *[kind_of_each(T0 + number * MINUTE) for number in (1, 1, 1)])
        assert [getattr(outcome, "reason", "accepted") for outcome in outcomes] == [
            "unavailable", "throttled", "accepted",
        ]  # fmt: skip
        receiver.faults.append(refusing(400, "duplicate sample"))
        await succeed(push_to(receiver.url, protocol="remote-write"), kind_of_each(T0 + 2 * MINUTE))
    assert receiver.versions == ["2.0.0"] * 3 + ["2.0.0", "0.1.0"]


async def test_a_receiver_that_confirmed_version_2_is_refused_nothing_twice() -> None:
    """A 400 of such a receiver is about the data: nothing is sent again, in either version."""
    async with remote_write_receiver() as receiver:

        async def refuse(_: web.Request) -> web.Response:
            return web.Response(status=400, text="out of order", headers={WRITTEN: "0"})

        receiver.faults.append(refuse)
        error = await fail(push_to(receiver.url, protocol="remote-write"))
        assert (error.reason, error.retryable) == ("refused", False)
        assert "HTTP status 400; out of order" in str(error)
    assert receiver.versions == ["2.0.0"]


async def test_samples_that_were_not_written_are_counted_as_points() -> None:
    """Of a partial write the receiver says how many samples it wrote; a histogram is several."""
    async with remote_write_receiver() as receiver:
        receiver.refusing_samples = 2
        accepted = await succeed(push_to(receiver.url, protocol="remote-write"))
        assert (accepted.points, accepted.rejected, accepted.message) == (3, 1, "too old")


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(batch=st.lists(points(), max_size=8), most_bytes=st.integers(500, 8000))
def test_no_request_of_either_version_is_larger_than_configured(batch: list[StreamPoint], most_bytes: int) -> None:
    """Unless one point alone is larger."""
    requests = split(batch, most_bytes, count_bytes)

    assert [each for request in requests for each in request] == batch
    for request in requests:
        assert len(request) == 1 or encode_1(request).ByteSize() <= most_bytes
        assert len(request) == 1 or encode_2(request).ByteSize() <= most_bytes
