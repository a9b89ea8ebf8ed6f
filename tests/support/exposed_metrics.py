"""`/metrics` of a collector whose targets show every metric of the contract."""

from __future__ import annotations

import random

import aiohttp

from servescope.contract.identity import Identity
from tests.support.fake_targets import FakeTarget
from tests.support.served_collector import Scene

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


async def scrape_everything(stage: Scene, *, shuffled: bool = False) -> None:
    """Two scrapes of targets that show all of the contract; their lines in any order when `shuffled`."""
    targets = {
        name: FakeTarget(name, Identity("m", "d", "s", replica=name, role=role), seed)
        for seed, (name, role) in enumerate((("v1-0", "aggregated"), ("v1-1", "router"), ("v2-0", "autoscaler")))
    }
    mixer = random.Random(7)
    for step in range(2):
        for name, target in targets.items():
            lines = target.exposition(step).splitlines()
            if shuffled:
                mixer.shuffle(lines)
            stage.pages.texts[name] = "\n".join(lines) + "\n"
        await stage.step()


async def fetch(stage: Scene, **headers: str) -> tuple[bytes, dict[str, str]]:
    asked = {"Accept-Encoding": "identity", **headers}
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.get(f"{stage._url}/metrics", headers=asked) as response,
    ):
        assert response.status == 200
        return await response.read(), dict(response.headers)
