"""A collector on a clock of its own, with one target and receivers that record what they are sent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from servescope.collector.collector import Collector
from servescope.collector.config import read_configuration
from servescope.collector.scrapes.scrape import Limits
from servescope.collector.targets.target import Target
from servescope.settings.access import Access
from servescope.store.embedded import Store
from servescope.web.connections import FetchError

START = 1_800_000_000
CONFIGURATION = """
[collector]
listen = "127.0.0.1:0"
[[deployments]]
deployment_id = "chat"
model_name = "llama"
inference_stack = "v1"
[[deployments.targets]]
url = "http://a:80"
replica = "a"
{alerting}
"""
ALERTMANAGER = """
[[alerting.alertmanagers]]
url = "http://am:9093"
"""
WEBHOOK = """
[[alerting.webhooks]]
url = "http://hook:80/secret-path"
"""


class Receivers:
    """Records what receivers were sent, by URL; those in `down` fail, those in `hung` never answer."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, Any]] = []
        self.down: set[str] = set()
        self.hung: set[str] = set()

    async def __call__(self, url: str, _: Access, body: bytes, seconds: float, /) -> None:
        if url in self.hung:
            await asyncio.sleep(3600)
        if url in self.down:
            raise FetchError("unreachable", "cannot connect: Connection refused")
        self.posts.append((url, json.loads(body)))

    def sent(self, name: str) -> list[tuple[str, str, Any]]:
        """Of an alert, in order: the URL, a webhook's status or an Alertmanager's endsAt, and the whole alert."""
        found = []
        for url, body in self.posts:
            alerts = body["alerts"] if isinstance(body, dict) else body
            for alert in alerts:
                if alert["labels"]["alertname"] == name:
                    found.append((url, alert.get("status", alert["endsAt"]), alert))
        return found


class Scene:
    """A collector of one target whose text the test sets, on a clock of its own."""

    def __init__(self, folder: Path, alerting: str = ALERTMANAGER) -> None:
        self.folder, self.seconds = folder, float(START)
        self.receivers = Receivers()
        self.failed = self.errors = 0.0
        self.up = True
        self.lacking = False
        self.configure(alerting)
        self.open()

    def configure(self, alerting: str) -> None:
        (self.folder / "servescope.toml").write_text(CONFIGURATION.format(alerting=alerting))

    def open(self) -> None:
        configuration = read_configuration(self.folder / "servescope.toml")
        path = self.folder / "servescope.db"
        self.collector = Collector(
            configuration, Store(path), Store(path, read_only=True), self._fetch, clock=lambda: self.seconds,
            reread=lambda: read_configuration(self.folder / "servescope.toml"), post=self.receivers,
        )  # fmt: skip

    async def _fetch(self, target: Target, _: Limits, /) -> bytes:
        if not self.up:
            raise FetchError("unreachable", "cannot connect: Connection refused")
        replicas = (
            'replica_count_by_status{deployment_id="x",status="active"} 1\n'
            f'replica_count_by_status{{deployment_id="x",status="failed"}} {self.failed}\n'
        )
        requests = f'requests_total{{deployment_id="x",outcome="ok"}} {self.seconds - START}\n'
        requests += f'requests_total{{deployment_id="x",outcome="error"}} {self.errors * (self.seconds - START)}\n'
        return (requests if self.lacking else replicas + requests).encode()

    async def step(self, seconds: float = 15.0) -> None:
        """Advance the clock, scrape, evaluate, and let notifications be sent."""
        self.seconds += seconds
        await self.collector.discovering.discover()
        for watched in self.collector.fleet.watched:
            await self.collector.scraping.scrape(watched)
        self.collector.evaluating.evaluate(self.collector.clock.now_ms)
        for _ in range(4):
            await asyncio.sleep(0)

    async def steps(self, count: int) -> None:
        for _ in range(count):
            await self.step()

    async def restart(self, seconds: float = 15.0) -> None:
        """Stop the collector and start another one on the same store after this much time."""
        await self.aclose()
        self.seconds += seconds
        self.open()

    async def aclose(self) -> None:
        await self.collector.alerts.close()
        self.collector.close()

    def states(self) -> dict[str, str]:
        """The state of every alert but the Watchdog."""
        shown = self.collector.alerts.shown
        return {each.name: each.state for each in shown if each.name != "ServescopeWatchdog"}
