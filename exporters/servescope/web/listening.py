"""The sockets the collector listens on, and their connections: how many, how long, and secured by which certificate."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from servescope.web.answers import error_answer, json_bytes
from servescope.web.certificates import Certificates
from servescope.web.gate import GATE, Gate

# Accepting may fail for want of file descriptors; the next moment others may have given some back.
_PAUSE_SECONDS: Final = 0.5
_BACKLOG: Final = 128
_LINGERING_SECONDS: Final = 1.0
_TOO_MANY_HEADERS: Final = "Too many headers received"  # by aiohttp

_logger = logging.getLogger(__name__)


class Listener:
    """Serves an application that has a gate on one address; `close` ends all connections.

    With `certificates` TLS, by the files as they are when a connection opens.
    """

    def __init__(self, application: web.Application, *, certificates: Certificates | None = None) -> None:
        self._gate = application[GATE]
        self._certificates = certificates
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=_LINGERING_SECONDS)
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._connections: set[_Connection] = set()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of every socket."""
        return [each.getsockname()[:2] for each in self._sockets]

    async def start(self, host: str, port: int) -> None:
        """Listen on every address of the host; port 0 takes a free one. Raises OSError when it is not available."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((family, address[:2]) for family, _, _, _, address in found):
                listening = socket.create_server(address, family=family, backlog=_BACKLOG)
                listening.setblocking(False)
                self._sockets.append(listening)
        except OSError:
            self._close_sockets()
            raise
        await self._runner.setup()
        self._accepting = [loop.create_task(self._accept(listening)) for listening in self._sockets]

    async def close(self) -> None:
        """Accept no more connections, give answers in progress a moment to finish, and close all connections."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        self._close_sockets()
        await self._runner.cleanup()
        for connection in list(self._connections):
            connection.end()

    def _close_sockets(self) -> None:
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                _logger.warning("no connection can be accepted: %s", error.strerror or error)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self._make_room()
            connection = _Connection(self)
            self._connections.add(connection)
            connection.handshake = loop.create_task(self._take(connection, accepted))
            self._gate.telemetry.api_connections.set(len(self._connections))

    def _make_room(self) -> None:
        """Close the connection that has been idle for longest, or else the one that has been busy for longest.

        A new connection is always accepted: clients that hold all others must not prevent a health check.
        """
        if len(self._connections) >= self._gate.bounds.connections:
            self._gate.telemetry.api_refused.labels("connections").inc()
            idle = [each for each in self._connections if not each.busy]
            min(idle or self._connections, key=lambda each: each.since).end()

    async def _take(self, connection: _Connection, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            if self._certificates is None:
                await loop.connect_accepted_socket(lambda: connection, accepted)
            else:
                seconds = self._gate.bounds.handshake_seconds
                await loop.connect_accepted_socket(
                    lambda: connection,
                    accepted,
                    ssl=self._certificates.context(),
                    ssl_handshake_timeout=seconds,
                    ssl_shutdown_timeout=seconds,
                )
        except OSError as error:
            _logger.debug("a connection failed before its first request: %s", error)
        finally:
            if connection.transport is None:
                accepted.close()
                self._connections.discard(connection)

    def _make_inner(self) -> _RequestHandler:
        server = self._runner.server
        if server is None:
            raise RuntimeError("the listener was not started")
        return _RequestHandler(server, self._gate)

    def _forget(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        if connection.transport is not None:
            self._gate.connections.pop(connection.transport, None)
        self._gate.telemetry.api_connections.set(len(self._connections))


class _Connection(asyncio.Protocol):
    """One connection, before aiohttp's own protocol, which it hands everything on to."""

    def __init__(self, listener: Listener) -> None:
        self._listener, self._inner = listener, listener._make_inner()
        self.transport: asyncio.Transport | None = None
        self.handshake: asyncio.Task[None] | None = None
        self.busy = False
        self.since = time.monotonic()
        self._unanswered_bytes = 0
        self._refused = False

    def begin(self) -> None:
        """A request was read and is being answered."""
        self.busy, self.since, self._unanswered_bytes = True, time.monotonic(), 0

    def finish(self) -> None:
        self.busy, self.since = False, time.monotonic()

    def end(self) -> None:
        """Close the connection, whatever its state."""
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()
        self._listener._forget(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._listener._gate.connections[transport] = self
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener._forget(self)
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # Requests sent behind one that is being answered wait in memory; so would a body, or the headers of a request.
        self._unanswered_bytes += len(data)
        if self._refused:
            return
        if self._unanswered_bytes <= self._listener._gate.bounds.unanswered_bytes:
            self._inner.data_received(data)
            return
        self._listener._gate.telemetry.api_refused.labels("oversized").inc()
        if self._inner.awaits_request:
            self._refuse_headers()
        else:
            self.end()

    def _refuse_headers(self) -> None:
        """Answer 431 and close a little later: a client that is still sending would lose the answer by a reset."""
        self._refused = True
        most = self._listener._gate.bounds.unanswered_bytes
        body = json_bytes({"error": f"headers of more than {most} bytes in all"})
        head = (
            "HTTP/1.1 431 Request Header Fields Too Large\r\n"
            "Content-Type: application/json; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\n"
            "Server: servescope\r\n"
            "Connection: close\r\n\r\n"
        )
        if self.transport is not None:
            self.transport.write(head.encode() + body)
        asyncio.get_running_loop().call_later(_LINGERING_SECONDS, self.end)

    def eof_received(self) -> None:
        self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


class _RequestHandler(web.RequestHandler):
    """Reads the requests of a connection; what is no HTTP, or too long, is answered and not logged.

    Strangers could else fill the log.
    """

    def __init__(self, server: web.Server, gate: Gate) -> None:
        bounds = gate.bounds
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # none, as with AppRunner
            # Counted from a connection's start and from each answer's end, whatever trickles in meanwhile.
            keepalive_timeout=bounds.idle_seconds,
            lingering_time=_LINGERING_SECONDS,
            max_line_size=bounds.line_bytes,
            max_field_size=bounds.header_bytes,
            max_headers=bounds.headers,
        )
        self._gate = gate

    @property
    def awaits_request(self) -> bool:
        """Whether all requests were answered, so that what comes is the head of the next one."""
        return self._waiter is not None and not self._waiter.done()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to a request that cannot be read, or that failed."""
        if isinstance(exc, HttpProcessingError):
            status, message = self._judge(exc)
            answer = error_answer(message, status=status, headers={"Server": "servescope"})
            answer.force_close()
            return answer
        return super().handle_error(request, status, exc, message)

    def _judge(self, error: HttpProcessingError) -> tuple[int, str]:
        """The status and the message for a request that cannot be read."""
        bounds = self._gate.bounds
        if isinstance(error, LineTooLong) and error.args[1] == bounds.line_bytes:
            status, message = 414, f"path and query of more than {bounds.line_bytes} bytes"
        elif isinstance(error, LineTooLong):
            status, message = 431, f"a header of more than {bounds.header_bytes} bytes"
        elif error.message == _TOO_MANY_HEADERS:
            status, message = 431, f"more than {bounds.headers} headers"
        else:
            return 400, "the request is not HTTP"
        self._gate.telemetry.api_refused.labels("oversized").inc()
        return status, message
