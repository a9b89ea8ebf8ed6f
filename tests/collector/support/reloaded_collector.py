"""A running collector in virtual time, whose configuration file a test rewrites."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from servescope.collector.collector import Collector
from servescope.collector.config import read_configuration
from servescope.collector.scrapes.scrape import Limits
from servescope.collector.targets.deployments import HttpDiscoverySettings
from servescope.collector.targets.target import Target
from servescope.store.embedded import Store
from servescope.web.connections import FetchError
from tests.support.stepped_collector import page

START = 1_800_000_000


TARGETS = """
[collector]
listen = "127.0.0.1:0"
{settings}
[[deployments]]
deployment_id = "chat"
model_name = "llama"
inference_stack = "v1"
"""


TARGET = """
[[deployments.targets]]
url = "http://{name}:80"
replica = "{name}"
{keys}
"""


def text(*names: str, settings: str = "", keys: str = "") -> str:
    return TARGETS.format(settings=settings) + "".join(TARGET.format(name=name, keys=keys) for name in names)


class _ThreadCalls:
    """The calls of an event loop to threads: how many were made, and how many of them have no result yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.made = self.pending = 0
        self._run_in_executor = loop.run_in_executor
        loop.run_in_executor = self._run  # type: ignore[method-assign,assignment]

    def _run(self, *arguments: Any) -> asyncio.Future[Any]:
        self.made += 1
        self.pending += 1
        future = self._run_in_executor(*arguments)
        # The loop's own future: whoever waits for the result wakes in the same turn as this is called.
        future.add_done_callback(self._finish)
        return future

    def _finish(self, _: asyncio.Future[Any]) -> None:
        self.pending -= 1


# More than a chain of tasks that wake each other is long.
_TURNS = 100


class World:
    """A collector, its clock, which only sleeping moves, and what is asked of its targets and lists."""

    def __init__(self, folder: Path, configuration: str) -> None:
        self.path = folder / "servescope.toml"
        self.write(configuration)
        self.seconds = float(START)
        self.asked: list[tuple[float, str]] = []
        self.refusals: dict[str, list[FetchError | None]] = {}
        self.lists: dict[str, bytes | FetchError] = {}
        self.lists_asked: list[str] = []
        self._calls: _ThreadCalls | None = None
        first = read_configuration(self.path)
        store, history = Store(first.collector.store), Store(first.collector.store, read_only=True)
        self.sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self.collector = Collector(
            first, store, history, self.fetch, clock=lambda: self.seconds, sleep=self.sleep,
            fetch_list=self.fetch_list, reread=lambda: read_configuration(self.path),
        )  # fmt: skip

    def write(self, configuration: str) -> None:
        self.path.write_text(configuration, encoding="utf-8")

    async def fetch(self, target: Target, _: Limits, /) -> bytes:
        self.asked.append((self.seconds - START, target.identity.replica))
        waiting = self.refusals.get(target.identity.replica, [])
        refusal = waiting.pop(0) if waiting else None
        if refusal is not None:
            raise refusal
        return page(self.seconds - START).encode()

    async def fetch_list(self, settings: HttpDiscoverySettings, /) -> bytes:
        self.lists_asked.append(settings.url)
        found = self.lists[settings.url]
        if isinstance(found, FetchError):
            raise found
        return found

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        self.sleepers.append((self.seconds + seconds, future))
        await future

    async def advance(self, seconds: float) -> None:
        """Let this time pass, waking whoever sleeps at the instant it sleeps until."""
        end = self.seconds + seconds
        while True:
            await self.settle()
            self.sleepers = [each for each in self.sleepers if not each[1].done()]
            due = min((moment for moment, _ in self.sleepers), default=end + 1)
            if due > end:
                break
            self.seconds = max(self.seconds, due)
            for moment, future in self.sleepers:
                if moment <= self.seconds and not future.done():
                    future.set_result(None)
        self.seconds = end

    async def settle(self) -> None:
        """Let everything run that does not sleep, threads included."""
        calls = self._calls = self._calls or _ThreadCalls(asyncio.get_running_loop())
        is_quiet = False
        while not is_quiet:
            made = calls.made
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            is_quiet = not calls.pending and calls.made == made
            if not is_quiet:
                await asyncio.sleep(0.001)

    def times(self, replica: str) -> list[float]:
        return [round(moment, 3) for moment, name in self.asked if name == replica]

    def scraped(self) -> dict[str, int]:
        return {each.target.identity.replica: len(each.recent.window().times) for each in self.collector.fleet.watched}


@asynccontextmanager
async def playing(world: World) -> AsyncIterator[World]:
    """Run its collector meanwhile."""
    running = asyncio.create_task(world.collector.run())
    try:
        await world.advance(0)
        yield world
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.to_thread(world.collector.close)
