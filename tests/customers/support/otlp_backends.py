"""Customers' backends on loopback that receive OTLP, check every rule of its data model, and fail on demand."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
from aiohttp import web
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)

from tests.customers.support.otlp_rules import Ledger
from tests.support.loopback import running

PROTOBUF = "application/x-protobuf"
HttpFault = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class HttpBackend:
    """A receiver of OTLP/HTTP: `faults` answer the next requests, `headers` are those of each accepted one."""

    ledger: Ledger = field(default_factory=Ledger)
    faults: deque[HttpFault] = field(default_factory=deque)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    rejecting: int = 0
    losing_answers: int = 0
    lies: list[HttpFault] = field(default_factory=list)
    """What is answered in turn to requests that are accepted; nothing stands for a whole answer."""

    async def take(self, request: web.Request) -> web.StreamResponse:
        """Enter a request into the ledger and answer in full; what `rejecting` says is reported as rejected.

        The answers to the next `losing_answers` requests are lost.
        """
        body = await request.read()
        if self.faults:
            return await self.faults.popleft()(request)
        assert request.content_type == PROTOBUF, request.content_type
        # aiohttp's server has decompressed it.
        self.ledger.take(ExportMetricsServiceRequest.FromString(body))
        self.headers.append(dict(request.headers))
        if self.lies:
            return await self.lies[len(self.headers) % len(self.lies)](request)
        if self.losing_answers:
            self.losing_answers -= 1
            return await reset(request)
        partial = ExportMetricsPartialSuccess(rejected_data_points=self.rejecting, error_message="over the limit")
        response = ExportMetricsServiceResponse(partial_success=partial if self.rejecting else None)
        return web.Response(body=response.SerializeToString(), content_type=PROTOBUF)


@asynccontextmanager
async def http_backend(context: ssl.SSLContext | None = None) -> AsyncIterator[HttpBackend]:
    """A backend on a free port, with TLS where a context is given."""
    backend = HttpBackend()
    application = web.Application(client_max_size=1 << 28)
    application.router.add_post("/v1/metrics", backend.take)
    async with running(application, context) as url:
        backend.url = f"{url}/v1/metrics"
        yield backend


def refusing(status: int, message: str = "", **headers: str) -> HttpFault:
    """Answers with a status, OTLP's own message for it, and headers."""

    async def fault(_: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = Status(message=message).SerializeToString()
        return web.Response(status=status, headers=named, body=body, content_type=PROTOBUF)

    return fault


async def reset(request: web.Request) -> web.StreamResponse:
    """Resets the connection."""
    _abort(request)
    return web.Response()


async def half_a_response(request: web.Request) -> web.StreamResponse:
    """Sends the beginning of an answer, then resets the connection."""
    response = web.StreamResponse(headers={"Content-Length": "900", "Content-Type": PROTOBUF})
    await response.prepare(request)
    await response.write(b"\x0a")
    _abort(request)
    return response


async def hang(_: web.Request) -> web.StreamResponse:
    """Never answers."""
    await asyncio.Event().wait()
    raise AssertionError


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


GrpcFault = Callable[[grpc.aio.ServicerContext], Awaitable[None]]


@dataclass(slots=True)
class GrpcBackend(MetricsServiceServicer):
    """A receiver of OTLP over gRPC: `faults` answer the next calls, `headers` are those of each accepted one."""

    ledger: Ledger = field(default_factory=Ledger)
    faults: deque[GrpcFault] = field(default_factory=deque)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    rejecting: int = 0
    message: str = "over the limit"

    async def Export(  # noqa: N802 - the service's own name
        self, request: ExportMetricsServiceRequest, context: grpc.aio.ServicerContext
    ) -> ExportMetricsServiceResponse:
        """Enter a request into the ledger."""
        if self.faults:
            await self.faults.popleft()(context)
        self.ledger.take(request)
        self.headers.append(dict(context.invocation_metadata()))
        is_partial = self.rejecting or self.message != "over the limit"
        partial = ExportMetricsPartialSuccess(rejected_data_points=self.rejecting, error_message=self.message)
        return ExportMetricsServiceResponse(partial_success=partial if is_partial else None)


@asynccontextmanager
async def grpc_backend(
    credentials: grpc.ServerCredentials | None = None, *, most_bytes: int = -1
) -> AsyncIterator[GrpcBackend]:
    """A backend on a free port, with TLS where credentials are given; larger messages it refuses."""
    backend = GrpcBackend()
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", most_bytes)])
    add_MetricsServiceServicer_to_server(backend, server)  # type: ignore[no-untyped-call]
    address = "127.0.0.1:0"
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    backend.url = f"{'https' if credentials else 'http'}://127.0.0.1:{port}"
    await server.start()
    try:
        yield backend
    finally:
        await server.stop(0)


def aborting(code: grpc.StatusCode, message: str, *, retry_seconds: int | None = None) -> GrpcFault:
    """Answers with a status, and a RetryInfo where seconds are given."""

    async def fault(context: grpc.aio.ServicerContext) -> None:
        if retry_seconds is not None:
            status = Status(code=code.value[0], message=message)
            info = RetryInfo()
            info.retry_delay.seconds = retry_seconds
            status.details.add().Pack(info)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        await context.abort(code, message)

    return fault
