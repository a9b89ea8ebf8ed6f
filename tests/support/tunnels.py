"""A proxy on loopback that opens tunnels."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.support.waiting import deadline_seconds


@asynccontextmanager
async def tunnelling(heads: list[bytes], *, status: str = "200 OK") -> AsyncIterator[str]:
    """The URL of a proxy that opens tunnels, or refuses to; `heads` are those of the requests it gets."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(f"HTTP/1.1 {status}\r\n\r\n".encode())
        if status.startswith("200"):
            host, port = heads[-1].split()[1].decode().rsplit(":", 1)
            onward, upstream = await asyncio.open_connection(host, int(port))
            try:
                await asyncio.gather(copy(reader, upstream), copy(onward, writer))
            finally:
                upstream.transport.abort()
        writer.close()
        await asyncio.wait({asyncio.ensure_future(writer.wait_closed())}, timeout=deadline_seconds(1))

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
