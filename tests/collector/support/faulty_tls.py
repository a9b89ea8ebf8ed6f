"""Servers on loopback that break TLS: one for each way in which a handshake or an encrypted answer can fail."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from tests.support.faulty_servers import PAGE, handling, head, whole

_HELLO_BYTES = 1 << 16
# Records as RFC 8446 section 5.1 has them: type, version, length, content.
_FATAL_ALERT = bytes.fromhex("15 0303 0002 02 28")
_WARNING_ALERT = bytes.fromhex("15 0303 0002 01 5a")
_LONG_HANDSHAKE = bytes.fromhex("16 0303 4000 02 003ffc")


class Connection:
    """One connection to a client, in the clear until `secure` was called."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext) -> None:
        self._reader, self.writer = reader, writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def secure(self) -> None:
        """Complete the handshake and read one request."""
        await self._run(self._tls.do_handshake)
        await self._run(lambda: self._tls.read(_HELLO_BYTES))

    async def send(self, data: bytes) -> None:
        """Send encrypted data."""
        self._tls.write(data)
        await self.send_raw(self._outgoing.read())

    async def send_raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def hello(self) -> None:
        """Wait for the first bytes of the client."""
        await self._reader.read(_HELLO_BYTES)

    async def notify_close(self) -> None:
        """Send a close_notify."""
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        await self.send_raw(self._outgoing.read())

    async def _run(self, step: Callable[[], object]) -> None:
        while True:
            try:
                step()
            except ssl.SSLWantReadError:
                await self.send_raw(self._outgoing.read())
                if not (data := await self._reader.read(_HELLO_BYTES)):
                    raise ConnectionError from None
                self._incoming.write(data)
            else:
                return await self.send_raw(self._outgoing.read())


Act = Callable[[Connection], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class TlsFault:
    """What a server does with a connection, and how the fetch must end: outcome and a part of the cause."""

    act: Act
    outcome: str
    cause: str


async def _stall(connection: Connection) -> None:
    await connection.hello()
    await asyncio.sleep(30)


async def _trickle(connection: Connection) -> None:
    await connection.hello()
    await connection.send_raw(_LONG_HANDSHAKE)
    while True:
        await connection.send_raw(b"\0")
        await asyncio.sleep(0.02)


async def _warn_without_end(connection: Connection) -> None:
    await connection.hello()
    while True:
        await connection.send_raw(_WARNING_ALERT * 100)


async def _refuse(connection: Connection) -> None:
    await connection.hello()
    await connection.send_raw(_FATAL_ALERT)


async def _hang_up(connection: Connection) -> None:
    await connection.hello()


async def _close_within_the_body(connection: Connection) -> None:
    await connection.secure()
    await connection.send(head("Content-Length: 900") + PAGE)
    await connection.notify_close()


async def _cut_within_the_body(connection: Connection) -> None:
    await connection.secure()
    await connection.send(head("Content-Length: 900") + PAGE)


async def _close_within_the_head(connection: Connection) -> None:
    await connection.secure()
    await connection.send(head()[:-2])
    await connection.notify_close()


async def _stall_within_a_record(connection: Connection) -> None:
    await connection.secure()
    await connection.send(head("Content-Length: 900") + PAGE)
    await connection.send_raw(bytes.fromhex("17 0303 4000 00"))
    await asyncio.sleep(30)


async def _break_a_record(connection: Connection) -> None:
    await connection.secure()
    await connection.send(head("Content-Length: 900") + PAGE)
    await connection.send_raw(bytes.fromhex("17 0303 0020") + bytes(32))
    await asyncio.sleep(30)


async def _answer_in_the_clear(connection: Connection) -> None:
    await connection.secure()
    await connection.send_raw(whole(PAGE))
    await asyncio.sleep(30)


TLS_FAULTS: Mapping[str, TlsFault] = {
    "stalling handshake": TlsFault(_stall, "timeout", "no complete answer within 0.4 s"),
    "trickling handshake": TlsFault(_trickle, "timeout", "no complete answer within 0.4 s"),
    "warnings without end": TlsFault(_warn_without_end, "tls", "TLS failed: "),
    "refusing handshake": TlsFault(_refuse, "tls", "TLS failed: "),
    "hanging up within the handshake": TlsFault(_hang_up, "unreachable", "connect"),
    "close_notify within the body": TlsFault(_close_within_the_body, "truncated", "the answer ended early"),
    "cut within the body": TlsFault(_cut_within_the_body, "truncated", "the answer ended early"),
    "close_notify within the head": TlsFault(_close_within_the_head, "unreachable", "before the head of an answer"),
    "stalling within a record": TlsFault(_stall_within_a_record, "timeout", "no complete answer within 0.4 s"),
    "broken record": TlsFault(_break_a_record, "tls", "TLS failed: "),
    "answer in the clear": TlsFault(_answer_in_the_clear, "tls", "TLS failed: "),
}
"""Every fault of TLS but those of certificates, by name."""


@asynccontextmanager
async def breaking_tls(act: Act, context: ssl.SSLContext) -> AsyncIterator[str]:
    """The base URL of a server that does this with every connection, on a free port."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await act(Connection(reader, writer, context))

    async with handling(handle) as address:
        yield f"https://{address}"
