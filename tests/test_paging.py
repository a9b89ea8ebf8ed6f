"""The collector alone calls people: what it evaluates, whom it tells, and what it remembers over a restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from servescope.collector.access import Access
from servescope.collector.collector import Collector
from servescope.collector.config import read_configuration
from servescope.collector.scrape import Limits, ScrapeError
from servescope.collector.store import Store
from servescope.collector.targets import Target

START = 1_800_000_000
_CONFIGURATION = """
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
    """What receivers were told, by URL; those in `down` fail, those in `hung` never answer."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, Any]] = []
        self.down: set[str] = set()
        self.hung: set[str] = set()

    async def __call__(self, url: str, _: Access, body: bytes, seconds: float, /) -> None:
        if url in self.hung:
            await asyncio.sleep(3600)
        if url in self.down:
            raise ScrapeError("unreachable", "cannot connect: Connection refused")
        self.posts.append((url, json.loads(body)))

    def told(self, name: str) -> list[tuple[str, str, Any]]:
        """Of an alert, in order: whom it was told, a webhook's status or an Alertmanager's end, and all of it."""
        found = []
        for url, body in self.posts:
            alerts = body["alerts"] if isinstance(body, dict) else body
            for alert in alerts:
                if alert["labels"]["alertname"] == name:
                    found.append((url, alert.get("status", alert["endsAt"]), alert))
        return found


class Scene:
    """A collector of one target whose page is told, on a clock of its own."""

    def __init__(self, folder: Path, alerting: str = ALERTMANAGER) -> None:
        self.folder, self.seconds = folder, float(START)
        self.receivers = Receivers()
        self.failed = 0.0
        self.up = True
        self.configure(alerting)
        self.open()

    def configure(self, alerting: str) -> None:
        (self.folder / "servescope.toml").write_text(_CONFIGURATION.format(alerting=alerting))

    def open(self) -> None:
        configuration = read_configuration(self.folder / "servescope.toml")
        path = self.folder / "servescope.db"
        self.collector = Collector(
            configuration, Store(path), Store(path, read_only=True), self._fetch, clock=lambda: self.seconds,
            reread=lambda: read_configuration(self.folder / "servescope.toml"), post=self.receivers,
        )  # fmt: skip

    async def _fetch(self, target: Target, _: Limits, /) -> bytes:
        if not self.up:
            raise ScrapeError("unreachable", "cannot connect: Connection refused")
        return (
            'replica_count_by_status{deployment_id="x",status="active"} 1\n'
            f'replica_count_by_status{{deployment_id="x",status="failed"}} {self.failed}\n'
            f'requests_total{{deployment_id="x",outcome="ok"}} {self.seconds - START}\n'
        ).encode()

    async def step(self, seconds: float = 15.0) -> None:
        """Let time pass, scrape, evaluate, and let receivers be told."""
        self.seconds += seconds
        await self.collector.discover()
        for watched in self.collector.watched:
            await self.collector.scrape(watched)
        self.collector.evaluate(self.collector.now_ms)
        for _ in range(20):
            await asyncio.sleep(0)

    async def steps(self, count: int) -> None:
        for _ in range(count):
            await self.step()

    async def close(self) -> None:
        await self.collector.alerts.close()
        self.collector.close()

    def states(self) -> dict[str, str]:
        """Every alert but the one that always fires, and its state."""
        shown = self.collector.alerts.shown
        return {each.name: each.state for each in shown if each.name != "ServescopeWatchdog"}


def play(scene: Scene, act: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        try:
            await act(scene)
        finally:
            await scene.close()

    asyncio.run(run())


def test_an_alert_waits_fires_is_kept_and_resolved(tmp_path: Path) -> None:
    """`for` is five minutes, `keep_firing_for` as many; an Alertmanager is told of neither before it fires."""

    async def act(scene: Scene) -> None:
        await scene.steps(3)
        scene.failed = 1
        await scene.steps(20)
        assert scene.states() == {"ServescopeReplicasFailed": "pending"}
        assert scene.receivers.told("ServescopeReplicasFailed") == []
        await scene.step()
        assert scene.states() == {"ServescopeReplicasFailed": "firing"}
        (told,) = scene.receivers.told("ServescopeReplicasFailed")
        assert told[2]["startsAt"] == "2027-01-15T08:06:00.000Z"
        assert told[2]["endsAt"] == "2027-01-15T08:10:00.000Z"
        assert told[2]["labels"]["severity"] == "warning"
        assert told[2]["annotations"]["description"] == "1 replicas of chat (llama, v1) have failed."

        scene.failed = 0
        await scene.steps(20)
        assert scene.states() == {"ServescopeReplicasFailed": "firing"}
        await scene.step()
        assert scene.states() == {"ServescopeReplicasFailed": "resolved"}
        assert scene.receivers.told("ServescopeReplicasFailed")[-1][1] == "2027-01-15T08:11:15.000Z"
        await scene.steps(61)
        assert scene.states() == {}

    play(Scene(tmp_path), act)
