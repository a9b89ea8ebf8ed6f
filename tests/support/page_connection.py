"""The least of an HTTP server: a page for each request, for programs that are scraped by the thousand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class PageConnection(asyncio.Protocol):
    """One connection to a target; requests come one after the other and have no body.

    `answer` has the page for a request, None where the connection is to break.
    """

    def __init__(self, answer: Callable[[bytes], bytes | None]) -> None:
        self._answer = answer
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            request, _, self._received = self._received.partition(b"\r\n\r\n")
            body = self._answer(request)
            if body is None:
                self._transport.abort()
                return
            self._transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
