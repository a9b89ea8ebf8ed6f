"""The middleware that checks every request and sends every answer within the bounds.

A request is measured, admitted by its token and counted; its answer is made in bounded time, compressed, and handed
over in pieces, as fast as the client takes them, within a bounded time too.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import ParamSpec, Protocol, TypeVar

from aiohttp import hdrs, web

from servescope.exposition.negotiation import wants_gzip
from servescope.settings.hosts import accepts_host
from servescope.settings.values import is_loopback
from servescope.store.records import StoreError
from servescope.web.answers import BusyError, RequestError, error_answer
from servescope.web.bounds import Bounds
from servescope.web.telemetry import ApiTelemetry
from servescope.web.tokens import Tokens

_logger = logging.getLogger(__name__)

HEALTH = ("/-/healthy", "/-/ready", "/healthz")
"""Paths that need no token and are exempt from the bounds: a supervisor probes them to restart the program."""

_COMPRESS_FROM_BYTES = 1_024
_COMPRESS_ELSEWHERE_FROM_BYTES = 65_536
# Level 1 is four times as quick as 6, and on names that repeat loses little.
_COMPRESSION = 1
_SAFE = ("GET", "HEAD")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
P = ParamSpec("P")
R = TypeVar("R")


class Attended(Protocol):
    """A connection, which is notified when a request begins and when its answer has ended."""

    def begin(self) -> None:
        """A request was read and is being answered."""

    def finish(self) -> None:
        """Its answer was read, or abandoned."""


class Gate:
    """The middleware of an application, the collector's or the judge's. Not thread safe.

    Without a token, and on a loopback address, only requests to `localhost` or an address are taken: a page of the web
    whose name was rebound to this machine could else read everything from the browser of somebody who works here.
    An application that checks tokens of its own gives no `listens_on`.
    """

    def __init__(self, bounds: Bounds, tokens: Tokens, telemetry: ApiTelemetry, *, listens_on: str | None) -> None:
        self.bounds, self.telemetry = bounds, telemetry
        self.connections: dict[asyncio.BaseTransport, Attended] = {}
        self._tokens = tokens
        self._checks_host = listens_on is not None and not tokens.required and is_loopback(listens_on)
        self._requests = 0
        self._sending_bytes = 0
        self._holders: dict[int, int] = {}
        self._logged = ""

    @property
    def needs_token(self) -> bool:
        """Whether every client has a bearer token."""
        return self._tokens.required

    @web.middleware
    async def pass_through(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer one request, and send the answer."""
        started = time.perf_counter()
        attended = self.connections.get(request.transport) if request.transport is not None else None
        if attended is not None:
            attended.begin()
        try:
            async with self._counted():
                return await self._send(request, await self._answer(request, handler), started)
        finally:
            if attended is not None:
                attended.finish()

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    # --- Requests -----------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if request.path not in HEALTH:
                self._check_client(request)
                self._check_room()
            async with asyncio.timeout(self.bounds.answer_seconds):
                return await handler(request)
        except RequestError as error:
            return error_answer(str(error), status=error.status, headers=error.headers)
        except web.HTTPNotFound:
            known = ", ".join(sorted({resource.canonical for resource in request.app.router.resources()}))
            return error_answer(f"no page {request.path!r}, supported: {known}", status=404)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            message = f"method {error.method!r} is not supported at {request.path!r}, supported: {allowed}"
            return error_answer(message, status=405, headers={"Allow": allowed})
        except web.HTTPException as error:
            return error_answer(error.reason, status=error.status)
        except TimeoutError:
            message = f"no answer within {self.bounds.answer_seconds:g} s; ask for less, or again"
            return error_answer(message, status=503, headers={"Retry-After": str(self.bounds.retry_seconds)})
        except StoreError as error:
            self._log_once(str(error))
            return error_answer(str(error), status=503, headers={"Retry-After": str(self.bounds.retry_seconds)})
        except Exception:
            # A mistake of ours in one page must not take the connection, or what else is served, along.
            _logger.exception("%s could not be answered", request.path)
            return error_answer("internal error, see the log", status=500)

    def _log_once(self, problem: str) -> None:
        """Log what is wrong with the store, once and not per request."""
        if problem != self._logged:
            self._logged = problem
            _logger.warning("%s", problem)

    def _check_client(self, request: web.Request) -> None:
        # A browser always names a host; what does not is no browser.
        host = request.headers.get(hdrs.HOST)
        if self._checks_host and host is not None and not accepts_host(host):
            self._refuse(
                "host",
                421,
                f"host {host!r} is not accepted unless a bearer token is configured, supported: localhost, or an "
                "address",
            )
        if not self._tokens.admit(request.headers.get(hdrs.AUTHORIZATION)):
            missing = hdrs.AUTHORIZATION not in request.headers
            challenge = 'Bearer realm="servescope"' + ("" if missing else ', error="invalid_token"')
            message = "a bearer token is needed" if missing else "the bearer token is not one of those configured"
            self._refuse(
                "token", 401, f"{message}: send 'Authorization: Bearer TOKEN'", {"WWW-Authenticate": challenge}
            )
        if request.method not in _SAFE and hdrs.ORIGIN in request.headers:
            # A page of another site could else have a browser change something here.
            self._refuse("origin", 403, "a page of a web site may not do this; send it without an Origin header")

    def _check_room(self) -> None:
        bounds = self.bounds
        if self._requests > bounds.requests or self._sending_bytes > bounds.sending_bytes:
            self.telemetry.api_refused.labels("busy").inc()
            raise BusyError("too many requests at once, ask again", retry_seconds=bounds.retry_seconds)

    def _refuse(self, reason: str, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        self.telemetry.api_refused.labels(reason).inc()
        # The connection is closed: whoever sends such a request has no other one waiting that deserves an answer.
        raise RequestError(message, status=status, headers={**(headers or {}), "Connection": "close"})

    # --- Answers ------------------------------------------------------------------------------------------------------

    async def _send(self, request: web.Request, response: web.StreamResponse, started: float) -> web.StreamResponse:
        if not isinstance(response, web.Response):
            raise TypeError(f"{request.path}: a page is a web.Response, not {response!r}")
        body = await _compress(request, response)
        self.telemetry.count_request(response.status, time.perf_counter() - started)
        answer = web.StreamResponse(status=response.status, headers=response.headers)
        answer.headers.setdefault("Cache-Control", "no-store")
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.headers["Server"] = "servescope"
        answer.content_length = len(body)
        if response.headers.get("Connection") == "close":
            answer.force_close()
        try:
            async with asyncio.timeout(self.bounds.sending_seconds):
                with self._held(body):
                    await self._write(request, answer, b"" if request.method == "HEAD" else body)
        except TimeoutError:
            self.telemetry.api_refused.labels("slow_reader").inc()
            if request.transport is not None:
                # Closing would wait for what it does not take.
                request.transport.abort()
        except ConnectionError:
            pass  # the client went away; aiohttp closes the connection
        return answer

    @contextmanager
    def _held(self, body: bytes) -> Iterator[None]:
        """Count a body that is held for a client; one that several take, as a page of `/metrics`, counts once."""
        holders = self._holders[id(body)] = self._holders.get(id(body), 0) + 1
        self._sending_bytes += len(body) if holders == 1 else 0
        try:
            yield
        finally:
            self._holders[id(body)] -= 1
            if not self._holders[id(body)]:
                del self._holders[id(body)]
                self._sending_bytes -= len(body)

    async def _write(self, request: web.Request, answer: web.StreamResponse, body: bytes) -> None:
        if request.transport is None:
            return
        # Nothing waits in the transport: what the client does not take is not copied, and is noticed at once.
        request.transport.set_write_buffer_limits(high=0)
        await answer.prepare(request)
        view, size = memoryview(body), self.bounds.piece_bytes
        for start in range(0, len(body), size):
            async with asyncio.timeout(self.bounds.piece_seconds):
                await answer.write(view[start : start + size])
                # aiohttp waits for more than 64 KiB only, and not at all behind the last piece.
                await request.writer.drain()
        await answer.write_eof()


GATE = web.AppKey("gate", Gate)
"""Where an application keeps its gate."""


class Reads:
    """Reads of the store in threads of their own: some at once, some waiting, the others refused with BusyError."""

    def __init__(self, bounds: Bounds, telemetry: ApiTelemetry) -> None:
        self._bounds, self._telemetry = bounds, telemetry
        self._threads = ThreadPoolExecutor(bounds.reads, "servescope-read")
        self._pending = 0

    async def run(self, read: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The result of a read. A read whose request has ended still counts until it has ended itself."""
        if self._pending >= self._bounds.reads + self._bounds.waiting_reads:
            self._telemetry.api_refused.labels("busy").inc()
            raise BusyError(
                f"{self._pending} reads of the store are under way, ask again", retry_seconds=self._bounds.retry_seconds
            )
        loop = asyncio.get_running_loop()

        def done(_: Future[R]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._leave)

        self._pending += 1
        future = self._threads.submit(read, *args, **kwargs)
        future.add_done_callback(done)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Cancel what waits; reads in progress end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _leave(self) -> None:
        self._pending -= 1


async def _compress(request: web.Request, response: web.Response) -> bytes:
    """The body, compressed where the client accepts gzip."""
    body = bytes(response.body) if isinstance(response.body, bytes | bytearray) else b""
    if hdrs.CONTENT_ENCODING in response.headers or len(body) < _COMPRESS_FROM_BYTES:
        return body
    response.headers.setdefault("Vary", "Accept-Encoding")
    if not wants_gzip(request.headers.get(hdrs.ACCEPT_ENCODING)):
        return body
    response.headers[hdrs.CONTENT_ENCODING] = "gzip"
    if len(body) < _COMPRESS_ELSEWHERE_FROM_BYTES:
        return gzip.compress(body, _COMPRESSION, mtime=0)
    return await asyncio.to_thread(gzip.compress, body, _COMPRESSION, mtime=0)
