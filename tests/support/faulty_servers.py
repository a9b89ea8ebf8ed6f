"""Servers on loopback that do what no server should: one for each way in which a fetch can fail."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

Serve = Callable[[asyncio.StreamWriter], Awaitable[None]]

PAGE = b'output_tokens_total{deployment_id="inner"} 7\n'
MAX_BODY_BYTES = 100_000
TIMEOUT_SECONDS = 0.4


@dataclass(frozen=True, slots=True)
class Fault:
    """What a server does, and how the fetch must end: outcome and a part of the cause."""

    serve: Serve
    outcome: str
    cause: str


def head(*lines: str, status: str = "200 OK") -> bytes:
    """The head of an answer."""
    return "\r\n".join((f"HTTP/1.1 {status}", "Content-Type: text/plain; version=0.0.4", *lines, "", "")).encode()


def whole(body: bytes, *lines: str, status: str = "200 OK") -> bytes:
    """A whole answer."""
    return head(*lines, f"Content-Length: {len(body)}", status=status) + body


def sending(*parts: bytes, then_hang: bool = False) -> Serve:
    """Sends these bytes, then hangs up, or says nothing more."""

    async def serve(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if then_hang:
            await asyncio.sleep(30)

    return serve


def pausing(*parts: bytes) -> Serve:
    """Sends these bytes a moment after each other, then hangs up."""

    async def serve(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.05)

    return serve


def endless(first: bytes, again: bytes, *, pause_seconds: float = 0.0) -> Serve:
    """Sends something, and something else again and again for as long as it is read."""

    async def serve(writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while True:
            writer.write(again)
            await writer.drain()
            await asyncio.sleep(pause_seconds)

    return serve


def endless_slowly(first: bytes, again: bytes) -> Serve:
    """Sends something, and a little more now and then, so that it is never quite silent."""
    return endless(first, again, pause_seconds=0.02)


async def reset(writer: asyncio.StreamWriter) -> None:
    """Resets the connection."""
    writer.transport.abort()


def chunk(body: bytes) -> bytes:
    """One chunk of a chunked answer."""
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


_CHUNKED = "Transfer-Encoding: chunked"
_GZIPPED = "Content-Encoding: gzip"
_BOMB = gzip.compress(b"\n" * 50_000_000)

FAULTS: Mapping[str, Fault] = {
    "silent": Fault(sending(then_hang=True), "timeout", "no complete answer within 0.4 s"),
    "hanging mid-body": Fault(sending(head("Content-Length: 900"), PAGE, then_hang=True), "timeout", "no complete"),
    "trickling": Fault(
        endless_slowly(head("Content-Length: 1000"), b"#"), "timeout", "no complete answer within 0.4 s"
    ),
    "endless body": Fault(endless(head("Connection: close"), b"# comment\n" * 1000), "too_large", "exceeds 100000 by"),
    "endless chunks": Fault(endless(head(_CHUNKED), chunk(b"# x\n" * 1000)), "too_large", "exceeds 100000 bytes"),
    "endless compressed nothing": Fault(
        endless(head(_GZIPPED), gzip.compress(b"")), "timeout", "no complete answer within 0.4 s"
    ),
    "gigabyte announced": Fault(
        sending(head("Content-Length: 1073741824"), then_hang=True),
        "too_large",
        "exceeds 100000 bytes (max_body_bytes)",
    ),
    "gzip bomb": Fault(sending(whole(_BOMB, _GZIPPED)), "too_large", "exceeds 100000 bytes (max_body_bytes)"),
    "gzip bomb in members": Fault(
        endless(head(_GZIPPED), gzip.compress(b"#" * 9_999 + b"\n")), "too_large", "exceeds 100000 bytes"
    ),
    "length short": Fault(sending(head("Content-Length: 1000"), PAGE), "truncated", "the answer ended early"),
    "chunks cut": Fault(sending(head(_CHUNKED), chunk(PAGE)), "truncated", "the answer ended early"),
    "chunk lying": Fault(sending(head(_CHUNKED) + b"zz\r\nabc"), "protocol", "not HTTP: "),
    # aiohttp does not report it to a reader that has begun, which so waits for more.
    "chunk lying later": Fault(pausing(head(_CHUNKED) + chunk(PAGE), b"zz\r\nabc"), "timeout", "no complete answer"),
    "gzip cut": Fault(
        sending(whole(gzip.compress(PAGE)[:-9], _GZIPPED)), "truncated", "the answer ended early: incomplete gzip"
    ),
    "no gzip": Fault(sending(whole(PAGE, _GZIPPED)), "malformed", "not gzip, as its Content-Encoding says"),
    "gzip unsaid": Fault(sending(whole(gzip.compress(PAGE))), "malformed", "gzip, which its Content-Encoding does not"),
    "unknown encoding": Fault(
        sending(whole(PAGE, "Content-Encoding: br")), "malformed", "unknown Content-Encoding 'br'"
    ),
    "html": Fault(sending(whole(b"<html><body>sign in</body></html>\n")), "malformed", "line 1: "),
    "half a line": Fault(sending(whole(PAGE + b'queued_requests{deployment_id="i')), "truncated", "line 2: "),
    "redirect loop": Fault(
        sending(whole(b"", "Location: /metrics", status="302 Found")), "redirect", "more than 5 redirects"
    ),
    "redirect elsewhere": Fault(
        sending(whole(b"", "Location: http://127.0.0.1:1/metrics", status="301 Moved Permanently")),
        "redirect",
        "redirects to another origin, 'http://127.0.0.1:1/metrics'",
    ),
    "redirect to no valid URL": Fault(
        sending(whole(b"", r"Location: http://h:p\@other/", status="302 Found")),
        "redirect",
        r"redirects to 'http://h:p\\@other/', which is not a URL",
    ),
    "redirect to a long URL": Fault(
        sending(whole(b"", f"Location: http://other/{'x' * 7_000}", status="302 Found")),
        "redirect",
        "xxx…'; configure that URL if intended",
    ),
    "redirect to no URL": Fault(
        sending(whole(b"", "Location: file:///etc/passwd", status="302 Found")), "redirect", "to another origin"
    ),
    "redirect nowhere": Fault(sending(whole(b"", status="302 Found")), "redirect", "redirects without a Location"),
    "reset": Fault(reset, "unreachable", "connection lost: "),
    "hanging up": Fault(sending(), "unreachable", "connection lost: "),
    "error": Fault(
        sending(whole(b"", status="500 Internal Server Error")), "status", "HTTP status 500 Internal Server"
    ),
    "long reason": Fault(sending(whole(b"", status=f"500 {'x' * 5_000}")), "status", "HTTP status 500 xxx"),
    "not found": Fault(sending(whole(b"", status="404 Not Found")), "status", "HTTP status 404 Not Found"),
    "huge header": Fault(sending(whole(PAGE, f"X-Huge: {'x' * 100_000}")), "protocol", "not HTTP: "),
    "endless headers": Fault(endless(b"HTTP/1.1 200 OK\r\n", b"X-More: again\r\n" * 100), "protocol", "not HTTP: "),
    "invalid header": Fault(sending(head("X-Bad\x01Name: \x00")), "protocol", "not HTTP: "),
    "interim responses without end": Fault(
        endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000), "protocol", "more than 16 interim responses (1xx)"
    ),
    "early hints without end": Fault(
        endless(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"), "protocol", "more than 16 interim responses"
    ),
    "interim responses, then silence": Fault(
        sending(b"HTTP/1.1 100 Continue\r\n\r\n" * 16, then_hang=True), "timeout", "no complete answer within 0.4 s"
    ),
    "trickling head": Fault(
        endless_slowly(b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"), "timeout", "no complete answer within 0.4 s"
    ),
    "half a status line": Fault(sending(b"HTTP/1.1 20"), "unreachable", "before the head of an answer was complete"),
    "no HTTP": Fault(sending(b"SSH-2.0-OpenSSH_9.6\r\n"), "protocol", "not HTTP: "),
    "rate limited": Fault(
        sending(whole(b"", "Retry-After: 7", status="429 Too Many Requests")), "rate_limited", "HTTP status 429 Too Man"
    ),
}
"""Every fault but those of names, ports and certificates, by name."""


@asynccontextmanager
async def answering(serve: Serve, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The base URL of a server that does this with every request, on a free port."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            await serve(writer)
            if not isinstance(serve, _Repeating):
                return

    async with handling(handle, tls=tls) as address:
        yield f"http{'s' if tls else ''}://{address}"


@asynccontextmanager
async def handling(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    *,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[str]:
    """The address of a server on a free port that does this with every connection; it hangs up at the end."""
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        writers.append(writer)
        try:
            # The client that gives up is part of the play.
            with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                await handle(reader, writer)
        except asyncio.CancelledError:
            # The server is closed; a cancelled handler would be logged as a fault.
            return
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            # What a client did not read would keep it open for longer than there is a loop.
            writer.transport.abort()
        await asyncio.sleep(0)


class _Repeating:
    """Sends the same to each request, all on one connection."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    async def __call__(self, writer: asyncio.StreamWriter) -> None:
        writer.write(self._answer)
        await writer.drain()


def repeating(answer: bytes) -> Serve:
    """Sends this answer to each request and keeps the connection."""
    return _Repeating(answer)


HEALTHY: Serve = repeating(whole(PAGE))
