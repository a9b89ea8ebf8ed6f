"""Receivers that accept and say what cannot be: nothing is sent again, nothing waits for ever, nothing is hidden."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from aiohttp import web
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceResponse,
)

from servescope.customers.lanes.cursors import LaneId
from servescope.customers.points.points import Accepted
from servescope.customers.policy.policy import Push, Temporality
from servescope.store.embedded import Store
from tests.customers.support.changing_hands import CUSTOMERS, MINUTE, Export, World, act, check, total
from tests.customers.support.customer_points import kind_of_each, push_to
from tests.customers.support.otlp_backends import PROTOBUF, HttpFault, grpc_backend, http_backend, refusing
from tests.customers.support.remote_write_receiver import WRITTEN, remote_write_receiver
from tests.customers.support.sending import fail, succeed
from tests.support.drawing import examples
from tests.support.faulty_servers import answering, sending

ALL = len(kind_of_each())
HOUR = 3600.0
LONG = 70_000
"""More than 64 KiB, of which errors are read."""


def saying(rejected: int, message: str = "") -> bytes:
    """A partial success."""
    partial = ExportMetricsPartialSuccess(rejected_data_points=rejected, error_message=message)
    return bytes(ExportMetricsServiceResponse(partial_success=partial).SerializeToString())


async def over_http(body: bytes, content_type: str = PROTOBUF) -> Accepted:
    """What is made of a success with this body."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    async with answering(sending(head.encode() + body)) as base:
        return await succeed(push_to(f"{base}/v1/metrics"))


@settings(max_examples=examples(30))
@given(rejected=st.integers(-(2**63), 2**63 - 1))
def test_no_more_is_rejected_than_was_sent_and_no_less_than_nothing(rejected: int) -> None:
    """The number that was said is in the message, where it cannot be."""
    accepted = Accepted.in_part(ALL, rejected, "over the limit")
    assert 0 <= accepted.rejected <= ALL
    assert accepted.points + accepted.rejected == ALL
    assert (str(rejected) in accepted.message) == (accepted.rejected != rejected)


@pytest.mark.parametrize(("rejected", "counted"), [(-7, 0), (2**62, ALL), (2, 2)])
async def test_a_number_that_cannot_be_is_bounded_by_each_protocol(rejected: int, counted: int) -> None:
    """Over HTTP and gRPC, in protobuf and in JSON; the request is accepted."""
    async with grpc_backend() as backend:
        backend.rejecting = rejected
        by_grpc = await succeed(push_to(backend.url, protocol="otlp-grpc"))
    json = f'{{"partialSuccess": {{"rejectedDataPoints": "{rejected}"}}}}'.encode()
    assert [
        accepted.rejected
        for accepted in [by_grpc, await over_http(saying(rejected)), await over_http(json, "application/json")]
    ] == [counted] * 3


@pytest.mark.parametrize("length", [LONG, 2_000_000, 6_000_000])
def test_a_long_answer_is_an_acceptance(length: int) -> None:
    """What is beyond 1 MiB is not read, and that is said; the number of rejected points before it is."""

    async def send() -> list[Accepted]:
        async with grpc_backend() as backend:

            async def say(context: grpc.aio.ServicerContext) -> None:
                backend.message = "x" * length

            backend.faults.append(say)
            by_grpc = await succeed(push_to(backend.url, protocol="otlp-grpc"))
        return [by_grpc, await over_http(saying(1, "x" * length)), await over_http(b"x" * length, "text/plain")]

    for accepted in asyncio.run(send()):
        assert accepted.points + accepted.rejected == ALL
        assert len(accepted.message) < 300


async def test_a_long_header_is_no_failure() -> None:
    """What is accepted with it is not sent again."""
    async with http_backend() as backend:
        backend.lies = [lying(200, b"", PROTOBUF, X_Trace="x" * 20_000)]
        assert (await succeed(push_to(backend.url))).points == ALL


JSON = "application/json"


@pytest.mark.parametrize(
    ("kind", "body", "headers"),
    [
        (PROTOBUF, b"\xff" * 20, {}),
        (PROTOBUF, b"not gzip", {"Content-Encoding": "gzip"}),
        (PROTOBUF, b"not brotli", {"Content-Encoding": "br"}),
        (JSON, b"\xff\xfe{", {}),
        (JSON, b"null", {}),
        (JSON, b'{"partialSuccess": {"rejectedDataPoints": NaN}}', {}),
        (JSON, b'{"partialSuccess": {"rejectedDataPoints": 9223372036854775808}}', {}),
        (JSON, b'{"partialSuccess": {"rejectedDataPoints": -1.5}}', {}),
        (JSON, b"[" * 20_000, {}),
        ("text/plain", b"taken", {f"X-{number}": "y" * 100 for number in range(3_000)}),
        ("text/plain", b"taken", {"X-Trace": "y" * 200_000}),
    ],
)
async def test_a_success_that_cannot_be_read_is_an_acceptance(kind: str, body: bytes, headers: dict[str, str]) -> None:
    """Over HTTP: what it took is not sent again for what it says of it."""
    named = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{named}Content-Length: {len(body)}\r\n\r\n"
    async with answering(sending(head.encode() + body)) as base:
        accepted = await succeed(push_to(f"{base}/v1/metrics"))
    assert (accepted.points, accepted.rejected) == (ALL, 0)


Answer = Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes]]


@asynccontextmanager
async def raw_grpc(answer: Answer) -> AsyncIterator[Push]:
    """A destination whose answers are these bytes, with headers of any length."""
    handler = grpc.method_handlers_generic_handler(
        "opentelemetry.proto.collector.metrics.v1.MetricsService",
        {"Export": grpc.unary_unary_rpc_method_handler(answer)},
    )
    long = [("grpc.max_metadata_size", 1 << 24), ("grpc.absolute_max_metadata_size", 1 << 24)]
    server = grpc.aio.server(handlers=(handler,), options=long)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield push_to(f"http://127.0.0.1:{port}", protocol="otlp-grpc")
    finally:
        await server.stop(0)


@pytest.mark.parametrize("length", [0, 100_000])
async def test_a_grpc_answer_that_cannot_be_read_is_an_acceptance(length: int) -> None:
    """What is no message, and what has long headers and trailers."""

    async def answer(_: bytes, context: grpc.aio.ServicerContext) -> bytes:
        context.set_trailing_metadata((("x-trace", "y" * length),))
        return b"\xff" * 20

    async with raw_grpc(answer) as push:
        accepted = await succeed(push)
    assert (accepted.points, accepted.rejected) == (ALL, 0)


@pytest.mark.parametrize("length", [20_000, 100_000, 2_000_000])
async def test_a_long_refusal_is_what_its_status_is(length: int) -> None:
    """UNAVAILABLE is sent again; one too long to be read as well, as its status is not known."""

    async def answer(_: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "x" * length)
        raise AssertionError

    async with raw_grpc(answer) as push:
        error = await fail(push)
    assert (error.reason, error.retryable) == ("unavailable", True)
    assert len(str(error)) < 300


@pytest.mark.parametrize(
    ("written", "rejected"), [("-4", 0), ("9" * 5000, 0), ("many", 0), ("1e3", 0), ("999999", 0), ("0", ALL)]
)
async def test_what_was_written_of_a_success_is_believed_where_it_can_be(written: str, rejected: int) -> None:
    """Of remote write 2.0: what is no count says nothing; where nothing was written all is counted as rejected, as of
    OTLP, and the lane goes on. Nothing is sent again.
    """
    async with remote_write_receiver("2.0") as receiver:

        async def say(_: web.Request) -> web.Response:
            return web.Response(status=204, headers={WRITTEN: written})

        receiver.faults.append(say)
        accepted, versions = await succeed(push_to(receiver.url, protocol="remote-write")), receiver.versions
    assert (accepted.points, accepted.rejected, versions) == (ALL - rejected, rejected, ["2.0.0"])


@pytest.mark.parametrize(("seconds", "nanos"), [(315_576_000_000, 999_999_999), (-5, 0), (2**62, 0)])
async def test_a_delay_of_ten_thousand_years_is_an_hour(seconds: int, nanos: int) -> None:
    """And none is negative; as `Retry-After` is bounded over HTTP."""

    async def refuse(context: grpc.aio.ServicerContext) -> None:
        status, info = Status(code=grpc.StatusCode.UNAVAILABLE.value[0]), RetryInfo()
        info.retry_delay.seconds, info.retry_delay.nanos = seconds, nanos
        status.details.add().Pack(info)
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "later")

    async with grpc_backend() as backend:
        backend.faults.append(refuse)
        after = (await fail(push_to(backend.url, protocol="otlp-grpc"))).after_seconds
    assert after is not None
    assert 0 <= after <= HOUR


async def begin(export: Export, minutes: int) -> None:
    """Deliver for so many minutes what a customer owns."""
    await act(export, "own", "chat", "acme", 0)
    await act(export, "restart")
    await act(export, "pass", minutes * MINUTE)


async def test_what_a_receiver_delays_for_years_is_given_up_in_time(tmp_path: Path) -> None:
    """After `max_age`, half an hour here, there is a gap that says so, and the lane goes on."""
    async with http_backend() as backend:
        fault = refusing(503, Retry_After="999999999")
        with Store(tmp_path / "past.db") as store:
            pushes = dict.fromkeys(CUSTOMERS, push_to(backend.url))
            export = Export(World(tmp_path, "deployment", store, pushes), {"acme": backend})
            await begin(export, 3)
            backend.faults.extend([fault] * 100)
            await act(export, "pass", 45 * MINUTE)
            assert export.cursors is not None
            gaps = export.cursors.gaps(LaneId("acme", "push"))
            await export.stop()
    assert "age" in [gap.reason for gap in gaps]


def lying(status: int, body: bytes, content_type: str, **headers: str) -> HttpFault:
    """A backend that takes the request, and answers so."""

    async def fault(_: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, body=body, content_type=content_type, headers=named)

    return fault


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
async def test_a_lane_to_a_liar_counts_everything_once(tmp_path: Path, temporality: Temporality) -> None:
    """It takes all, and says that it rejected more than there was, or less than nothing, at length: once is enough."""
    answers = [saying(-3), saying(2**62), saying(1, "x" * LONG), b"x" * LONG, saying(-(2**63), "x" * LONG)]
    async with http_backend() as backend:
        backend.lies = [lying(200, body, PROTOBUF) for body in answers]
        with Store(tmp_path / "past.db") as store:
            pushes = dict.fromkeys(CUSTOMERS, push_to(backend.url, temporality=temporality))
            export = Export(World(tmp_path, "deployment", store, pushes), {"acme": backend})
            await begin(export, 12)
            await export.stop()
        assert not backend.ledger.broken
        check(export.world, "acme", "chat", total(backend.ledger, "chat"), [])
