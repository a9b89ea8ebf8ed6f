"""What fetching a target's page costs, beside aiohttp by itself, over connections that are kept.

Each figure is the best of interleaved rounds, of CPU time in this process; the server runs in another one.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from servescope.collector.scrapes.fetch import HttpFetch
from servescope.collector.scrapes.scrape import Limits
from servescope.collector.targets.target import Target
from servescope.contract.identity import Identity
from servescope.settings.access import Access
from servescope.web.connections import open_session

_LINE = b'vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3",model_name="llama-70b"} 123.0\n'
_PAGE = _LINE * (50_000 // len(_LINE))
_TARGETS = 50
_ROUNDS = 40
_LIMITS = Limits(10.0, 16_000_000)


def run() -> None:
    """Print the microseconds of CPU that one fetch of a page of 50 KB takes, and the ratios to aiohttp."""
    reader, writer = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(writer,), daemon=True)
    server.start()
    try:
        asyncio.run(_measure(reader.recv()))
    finally:
        server.terminate()
        server.join()


async def _measure(port: int) -> None:
    with TemporaryDirectory() as folder:
        token = Path(folder) / "token"
        token.write_text("secret", encoding="utf-8")
        # Old enough that nobody need suspect it of changing unseen.
        os.utime(token, (1, 1))
        async with open_session() as session, aiohttp.ClientSession() as plain:
            fetch = HttpFetch(session)
            bare, shown = _targets(port, Access()), _targets(port, Access(bearer_token_file=str(token)))

            async def by_aiohttp(target: Target) -> None:
                async with plain.get(target.url) as response:
                    await response.read()

            async def by_us(target: Target) -> None:
                await fetch(target, _LIMITS)

            ways: dict[str, tuple[Callable[[Target], Awaitable[None]], list[Target]]] = {
                "aiohttp, get and read": (by_aiohttp, bare),
                "fetch": (by_us, bare),
                "fetch with a token file": (by_us, shown),
            }
            best = dict.fromkeys(ways, float("inf"))
            for _ in range(_ROUNDS):
                for name, (act, targets) in ways.items():
                    started = time.process_time()
                    for target in targets:
                        await act(target)
                    best[name] = min(best[name], (time.process_time() - started) / len(targets))
    _print(best)


def _print(best: dict[str, float]) -> None:
    peer = next(iter(best.values()))
    print(f"fetching a page of {len(_PAGE) / 1000:.0f} KB over a kept connection, CPU of one fetch")
    for name, seconds in best.items():
        print(f"  {name:<24} {seconds * 1e6:6.1f} us  {seconds / peer:5.2f} x aiohttp")


def _targets(port: int, access: Access) -> list[Target]:
    return [
        Target(
            f"http://127.0.0.1:{port}/metrics?target={number}",
            Identity("m", "d", "s", replica=str(number)),
            None,
            access,
        )
        for number in range(_TARGETS)
    ]


class _Server(asyncio.Protocol):
    """Answers every request with the page, as cheaply as can be."""

    _answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(_PAGE) + _PAGE

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"\r\n\r\n"):
            self._transport.write(self._answer)


def _serve(port: Connection) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(_Server, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())
