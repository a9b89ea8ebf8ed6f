"""Browsers that ask a console for more than anybody reads, beside a probe and a reader that it still has to answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.request import urlopen

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Origin

from tests.support.waiting import deadline_seconds


async def flood(address: str, page: str, *, sessions: int, seconds: int) -> None:
    """Have each of the sessions ask once a second for a run of this page, and close."""
    await asyncio.gather(*(_ask_each_second(address, page, seconds) for _ in range(sessions)))


async def read_page(address: str, page: str) -> None:
    """Open a page as a reader does, and wait until all of it has come; raises TimeoutError."""
    async with asyncio.timeout(deadline_seconds(10)), _session(address) as connection:
        await connection.send(_run(page, 0))
        async for data in connection:
            message = ForwardMsg()
            message.ParseFromString(data)
            if message.WhichOneof("type") == "script_finished":
                return


async def probe_health(address: str) -> int:
    """Ask for the health until this task is cancelled; gives how often it was answered, or raises TimeoutError."""
    answered = 0
    try:
        while True:
            await asyncio.to_thread(lambda: urlopen(f"{address}/_stcore/health", timeout=deadline_seconds(5)).read())
            answered += 1
            await asyncio.sleep(1)
    except asyncio.CancelledError:
        return answered


async def _ask_each_second(address: str, page: str, seconds: int) -> None:
    async with _session(address) as connection:
        reading = asyncio.create_task(_read(connection))
        for number in range(seconds):
            await connection.send(_run(page, number))
            await asyncio.sleep(1)
        reading.cancel()


@asynccontextmanager
async def _session(address: str) -> AsyncIterator[ClientConnection]:
    async with connect(
        f"{address.replace('http', 'ws', 1)}/_stcore/stream", origin=Origin(address), max_size=None,
        ping_interval=None, open_timeout=deadline_seconds(), close_timeout=1,
    ) as connection:  # fmt: skip
        yield connection


async def _read(connection: ClientConnection) -> None:
    async for _ in connection:
        pass


def _run(page: str, number: int) -> bytes:
    message = BackMsg()
    message.rerun_script.page_name = page
    message.rerun_script.query_string = f"range=24h&left=chat-v1&right=chat-v2&asked={number}"
    return bytes(message.SerializeToString())
