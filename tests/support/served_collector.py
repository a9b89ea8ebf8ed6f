"""A collector and its HTTP API on a free port, with a clock and targets of the test's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from servescope.collector.api.serve import make_application
from servescope.collector.collector import Collector
from servescope.collector.config import make_configuration
from servescope.collector.scrapes.scrape import Limits
from servescope.collector.targets.target import Target
from servescope.store.embedded import Store
from servescope.web.bounds import Bounds
from servescope.web.connections import FetchError
from tests.support.loopback import running

START = 1_800_000_000


STEPS = 24


NEVER_KEPT = Bounds(page_seconds=0.0, page_share=0.0)


class Clock:
    """A wall clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = float(START)

    def __call__(self) -> float:
        return self.seconds


class Pages:
    """Targets that answer what they are given; None is a failure."""

    def __init__(self) -> None:
        self.texts: dict[str, str | None] = {}

    async def __call__(self, target: Target, _: Limits, /) -> bytes:
        text = self.texts.get(target.identity.replica)
        if text is None:
            raise FetchError("unreachable", "cannot connect: Connection refused")
        return text.encode()


def engine(requests: int) -> str:
    """A page of our own instruments after so many requests of 100 tokens in, 11 out, 2 s of decoding."""
    lines = [
        f'requests_total{{deployment_id="x",outcome="ok"}} {requests}',
        f'output_tokens_total{{deployment_id="x"}} {requests * 11}',
        f'decode_seconds_total{{deployment_id="x"}} {requests * 2}',
        f'output_tokens_per_request_bucket{{deployment_id="x",le="20"}} {requests}',
        f'output_tokens_per_request_bucket{{deployment_id="x",le="+Inf"}} {requests}',
        f'output_tokens_per_request_sum{{deployment_id="x"}} {requests * 11}',
        f'output_tokens_per_request_count{{deployment_id="x"}} {requests}',
        'queued_requests{deployment_id="x"} 1.5',
        'speculation_rate{deployment_id="x"} 0.25',
    ]
    return "\n".join(lines) + "\n"


class Scene:
    """A collector of two deployments under test, and its HTTP answers."""

    def __init__(
        self, collector: Collector, pages: Pages, clock: Clock, url: str, session: aiohttp.ClientSession
    ) -> None:
        self.collector, self.pages, self.clock = collector, pages, clock
        self._url, self._session = url, session

    async def step(self, seconds: float = 15.0) -> None:
        """Scrape everything once and evaluate."""
        self.clock.seconds += seconds
        for watched in self.collector.fleet.watched:
            await self.collector.scraping.scrape(watched)
        self.collector.evaluating.evaluate(self.collector.clock.now_ms)

    async def get(self, path: str) -> tuple[int, str]:
        async with self._session.get(f"{self._url}{path}") as response:
            return response.status, await response.text()

    async def get_json(self, path: str) -> Any:
        status, text = await self.get(path)
        assert status == 200, text
        return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in {path}"))

    async def series(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        _, text = await self.get("/metrics")
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    async def written(self) -> None:
        """Wait until the store has what was evaluated last."""
        assert self.collector.evaluating.last is not None
        for _ in range(200):
            latest = self.collector.recorder.history.latest_figures().values()
            if latest and max(time for time, _ in latest) == self.collector.evaluating.last.at_ms:
                return
            await asyncio.sleep(0.01)
        pytest.fail("the store was not written within two seconds")


@asynccontextmanager
async def collecting(folder: Path, deployment_id: str | None = None) -> AsyncIterator[tuple[Collector, Pages, Clock]]:
    """A collector of two deployments, v1 and v2 or both of one id, what its targets answer, and its clock."""
    document = {
        "deployments": [
            {
                "deployment_id": deployment_id or name, "model_name": "llama", "inference_stack": name,
                "targets": [
                    {"url": f"http://{name}-{number}/metrics", "replica": f"{name}-{number}"} for number in range(2)
                ],
            }
            for name in ("v1", "v2")
        ]
    }  # fmt: skip
    configuration = make_configuration(document, origin="test", directory=folder)
    store = Store(folder / "servescope.db")
    history = Store(folder / "servescope.db", read_only=True)
    pages, clock = Pages(), Clock()
    collector = Collector(configuration, store, history, pages, clock=clock, reread=lambda: configuration)
    await collector.discovering.discover()
    try:
        yield collector, pages, clock
    finally:
        await asyncio.to_thread(collector.close)


@asynccontextmanager
async def scene(folder: Path, bounds: Bounds = NEVER_KEPT) -> AsyncIterator[Scene]:
    async with (
        collecting(folder) as (collector, pages, clock),
        running(make_application(collector, bounds=bounds)) as url,
        aiohttp.ClientSession() as session,
    ):
        yield Scene(collector, pages, clock, url, session)


async def run_for_a_while(stage: Scene) -> None:
    """Six minutes of traffic on three targets; the fourth never answers."""
    for step in range(STEPS):
        for replica in ("v1-0", "v1-1", "v2-0"):
            stage.pages.texts[replica] = engine(step * 3)
        await stage.step()


def labels(deployment: str, **extra: str) -> frozenset[tuple[str, str]]:
    return frozenset(
        {"deployment_id": deployment, "inference_stack": deployment, "model_name": "llama", **extra}.items()
    )
