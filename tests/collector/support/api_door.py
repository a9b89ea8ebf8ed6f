"""A collector behind its real listener, and raw connections to it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from servescope.collector.api.serve import make_application
from servescope.store.history import History
from servescope.web.bounds import Bounds
from servescope.web.listening import Listener
from servescope.web.settings import ApiSettings
from tests.support.served_collector import Scene, collecting, engine
from tests.support.waiting import deadline_seconds

LIMITS = Bounds(page_seconds=0.0, page_share=0.0)


class Door:
    """A collector as it is really served, and raw connections to it."""

    def __init__(self, scene: Scene, port: int) -> None:
        self.scene, self.port = scene, port

    async def connect(self, *, reads: bool = True) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that has sent nothing yet; unless it `reads`, little fits into it on its way."""
        client = socket.socket()
        client.setblocking(False)
        if not reads:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self.port))
        return await asyncio.open_connection(sock=client, limit=65_536 if reads else 1)

    async def send(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self.connect()
        writer.write(request)
        await writer.drain()
        return reader, writer

    async def ask(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, Any, dict[str, str]]:
        """The answer to another client, which must not have to wait."""
        url = f"http://127.0.0.1:{self.port}{path}"
        async with (
            asyncio.timeout(deadline_seconds()),
            aiohttp.ClientSession() as session,
            session.get(url, headers=headers) as response,
        ):
            body = await response.read()
            shown = json.loads(body) if "json" in response.content_type else body.decode()
            return response.status, shown, dict(response.headers)

    async def until_answered(self, path: str, status: int) -> None:
        """Ask until the answer has this status."""
        async with asyncio.timeout(deadline_seconds()):
            while (await self.ask(path))[0] != status:  # noqa: ASYNC110 - a client knows of no event
                await asyncio.sleep(0.05)

    async def refused(self, reason: str) -> float:
        """How often the collector says it turned somebody away for that reason."""
        _, text, _ = await self.ask("/metrics")
        line = next(line for line in text.splitlines() if f'servescope_api_refused_total{{reason="{reason}"}}' in line)
        return float(line.split()[-1])


@asynccontextmanager
async def door(
    folder: Path, bounds: Bounds, api: ApiSettings | None = None, deployment_id: str | None = None
) -> AsyncIterator[Door]:
    """A collector behind its real listener, on a free port."""
    api = api or ApiSettings()
    async with collecting(folder, deployment_id) as (collector, pages, clock):
        listener = Listener(make_application(collector, api, bounds=bounds), certificates=api.certificates())
        await listener.start("127.0.0.1", 0)
        port = listener.addresses[0][1]
        try:
            async with aiohttp.ClientSession() as session:
                yield Door(Scene(collector, pages, clock, f"http://127.0.0.1:{port}", session), port)
        finally:
            await listener.close()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the other side ends the connection; fails when it does not."""
    async with asyncio.timeout(deadline_seconds()):
        try:
            return await reader.read(-1)
        except ConnectionError:
            return b""


def bounds(**changed: Any) -> Bounds:
    return Bounds(page_seconds=0.0, page_share=0.0, **changed)


class Held:
    """Readers of a history's latest figures wait until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, history: History) -> None:
        self._free, self.begun = threading.Event(), 0
        original = history.latest_figures

        def held(*args: Any, **kwargs: Any) -> Any:
            self.begun += 1
            assert self._free.wait(deadline_seconds())
            return original(*args, **kwargs)

        monkeypatch.setattr(history, "latest_figures", held)

    def let_go(self) -> None:
        self._free.set()


async def fill(scene: Scene, steps: int = 40) -> None:
    for step in range(steps):
        for replica in ("v1-0", "v1-1", "v2-0"):
            scene.pages.texts[replica] = engine(step * 3)
        await scene.step()
    await scene.written()
