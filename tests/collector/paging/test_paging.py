"""The collector alone calls people: what it evaluates, whom it tells, and what it remembers over a restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from servescope.alerting import evaluation as alert_evaluation
from servescope.alerting.alerts import ALERTS
from servescope.alerting.evaluation import View
from servescope.alerting.records import Condition
from servescope.collector.collector import Collector
from servescope.collector.config import read_configuration
from servescope.collector.scrape import Limits, ScrapeError
from servescope.collector.targets import Target
from servescope.contract.expressions import Vector
from servescope.errors import ConfigurationError
from servescope.settings.access import Access
from servescope.store.embedded import Store

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

    async def restart(self, seconds: float = 15.0) -> None:
        """Another collector goes on after so long a time; what the former had in memory is gone."""
        await self.close()
        self.seconds += seconds
        self.open()

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


@pytest.mark.slow
def test_an_alertmanager_is_told_again_every_minute_and_of_the_end_for_a_quarter_of_an_hour(tmp_path: Path) -> None:
    """As by Prometheus: at the first evaluation after the interval, with an end that lies ahead, later in the past."""

    async def act(scene: Scene) -> None:
        scene.failed = 1
        await scene.steps(21 + 10)
        starts = {told["startsAt"] for _, _, told in scene.receivers.told("ServescopeReplicasFailed")}
        ends = [end for _, end, _ in scene.receivers.told("ServescopeReplicasFailed")]
        assert starts == {"2027-01-15T08:05:15.000Z"}
        assert [end[11:19] for end in ends] == ["08:09:15", "08:10:30", "08:11:45"]
        scene.failed = 0
        await scene.steps(21 + 70)
        later = scene.receivers.told("ServescopeReplicasFailed")[len(ends) :]
        over = [end for _, end, _ in later if end == later[-1][1]]
        assert 12 <= len(over) <= 14
        assert {told["startsAt"] for _, _, told in later} == starts

    play(Scene(tmp_path), act)


def test_the_alert_that_always_fires_is_told_too(tmp_path: Path) -> None:
    """Whoever waits for it knows by its absence that nothing arrives."""

    async def act(scene: Scene) -> None:
        await scene.step()
        assert [url for url, _, _ in scene.receivers.told("ServescopeWatchdog")] == ["http://am:9093/api/v2/alerts"]

    play(Scene(tmp_path), act)


def test_a_webhook_is_told_once_of_each_and_again_after_hours(tmp_path: Path) -> None:
    """In Alertmanager's words for webhooks, version 4."""

    async def act(scene: Scene) -> None:
        scene.failed = 1
        await scene.steps(60)
        (fires,) = [body for _, body in scene.receivers.posts if "Failed" in body["groupKey"]]
        scene.failed = 0
        await scene.steps(30)
        told = [body["status"] for _, body in scene.receivers.posts if "Failed" in body["groupKey"]]
        assert told == ["firing", "resolved"]
        assert fires["version"] == "4"
        assert fires["groupLabels"] == {"alertname": "ServescopeReplicasFailed"}
        assert fires["commonLabels"]["deployment_id"] == "chat"
        assert fires["alerts"][0]["endsAt"] == "0001-01-01T00:00:00Z"
        await scene.step(4 * 3600)
        assert len(scene.receivers.told("ServescopeWatchdog")) == 2

    play(Scene(tmp_path, WEBHOOK), act)


def test_a_receiver_that_hangs_delays_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another is told at the same evaluation; one that fails is told once it is back, of what holds by then."""

    async def act(scene: Scene) -> None:
        scene.receivers.hung.add("http://hook:80/secret-path")
        scene.failed = 1
        await scene.steps(21)
        assert scene.states() == {"ServescopeReplicasFailed": "firing"}
        assert [url for url, _, _ in scene.receivers.told("ServescopeReplicasFailed")] == [
            "http://am:9093/api/v2/alerts"
        ]

    play(Scene(tmp_path, ALERTMANAGER + WEBHOOK), act)
    assert "secret-path" not in caplog.text


@pytest.mark.slow
def test_what_fails_is_counted_told_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the receiver by its host, never by a path that may be a secret."""

    async def act(scene: Scene) -> None:
        scene.receivers.down.add("http://hook:80/secret-path")
        await scene.steps(2)
        problems = scene.collector.alerts.sender.problems()
        assert problems == {"hook:80": "cannot connect: Connection refused"}
        scene.receivers.down.clear()
        await asyncio.sleep(1.1)
        assert [status for _, status, _ in scene.receivers.told("ServescopeWatchdog")] == ["firing"]
        assert scene.collector.alerts.sender.problems() == {"hook:80": None}
        counted = scene.collector.telemetry.read(["servescope_notifications_total"])["servescope_notifications_total"]
        assert {dict(labels)["result"]: count for labels, count in counted.items()} == {
            "sent": 1, "failed": 1, "dropped": 0
        }  # fmt: skip

    play(Scene(tmp_path, WEBHOOK), act)
    assert "receiver hook:80 could not be told: cannot connect: Connection refused; tried again" in caplog.text
    assert "secret-path" not in caplog.text


def test_a_restart_calls_nobody_twice_and_tells_the_end(tmp_path: Path) -> None:
    """What fired goes on firing since the same instant; what ended meanwhile is over once targets were scraped."""

    async def act(scene: Scene) -> None:
        scene.failed = 1
        await scene.steps(21)
        (before,) = scene.receivers.told("ServescopeReplicasFailed")
        await scene.restart()
        await scene.step()
        assert scene.states() == {"ServescopeReplicasFailed": "firing"}
        assert len(scene.receivers.told("ServescopeReplicasFailed")) == 1

        scene.failed = 0
        await scene.restart(seconds=1200)
        await scene.steps(3)
        assert scene.states() == {"ServescopeReplicasFailed": "firing"}
        await scene.steps(24)
        told = scene.receivers.told("ServescopeReplicasFailed")
        assert [status for _, status, _ in told] == ["firing", "resolved"]
        assert told[1][2]["startsAt"] == before[2]["startsAt"]
        assert told[1][2]["fingerprint"] == before[2]["fingerprint"]

    play(Scene(tmp_path, WEBHOOK), act)


def test_one_alert_that_cannot_be_evaluated_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is counted and told, and stands as it stood."""
    real = alert_evaluation.holding

    def fails(condition: Condition, view: View) -> Vector:
        if condition is ALERTS["ServescopeReplicaCrashLoop"].condition:
            raise RuntimeError("a mistake")
        return real(condition, view)

    async def act(scene: Scene) -> None:
        monkeypatch.setattr("servescope.collector.paging.states.holding", fails)
        scene.failed = 1
        await scene.steps(21)
        assert scene.states()["ServescopeReplicasFailed"] == "firing"
        errors = scene.collector.telemetry.read(["servescope_internal_errors_total"])
        assert errors["servescope_internal_errors_total"][("stage", "alert"),] == 21
        assert scene.states()["ServescopeInternalErrors"] == "pending"

    play(Scene(tmp_path), act)
    assert "alert ServescopeReplicaCrashLoop: not evaluated" in caplog.text


def test_a_reload_changes_what_is_evaluated_and_who_is_told(tmp_path: Path) -> None:
    """An alert that is disabled is over; a receiver that is new is told of what fires."""

    async def act(scene: Scene) -> None:
        scene.failed = 1
        await scene.steps(21)
        disabled = '[alerting]\ndisable = ["ServescopeReplicasFailed"]\nexternal_labels = { cluster = "eu" }\n'
        scene.configure(disabled + WEBHOOK)
        await scene.collector.reload()
        await scene.step()
        assert scene.states() == {"ServescopeReplicasFailed": "resolved"}
        told = scene.receivers.told("ServescopeWatchdog")
        assert told[-1][0] == "http://hook:80/secret-path"
        assert told[-1][2]["labels"]["cluster"] == "eu"

    play(Scene(tmp_path), act)


def test_a_deployment_that_left_is_over(tmp_path: Path) -> None:
    """Its figures are gone, and so is what they were told for."""

    async def act(scene: Scene) -> None:
        scene.failed = 1
        await scene.steps(21)
        scene.up = False
        scene.seconds += 600
        await scene.steps(22)
        assert scene.states()["ServescopeReplicasFailed"] == "resolved"
        assert scene.states()["ServescopeTargetDown"] == "firing"

    play(Scene(tmp_path), act)


@pytest.mark.parametrize(
    ("alerting", "error"),
    [
        (
            '[alerting]\nonly = ["ServescopeReplicasFaild"]',
            "alerting.only: unknown alert 'ServescopeReplicasFaild'; did",
        ),
        ('[alerting]\ndisable = ["Other"]', "alerting.disable: unknown alert 'Other'; known: Servescope"),
        ("[alerting]\nalertmanager = []", "unknown key 'alerting.alertmanager'; did you mean 'alertmanagers'?"),
        ('[alerting]\nresend_interval = "0s"', "alerting.resend_interval: '0s' is wrong, expected a duration above 0"),
        ('[alerting]\nexternal_labels = { severity = "x" }', "alerts have a label 'severity' of their own"),
        ('[alerting]\nexternal_labels = { "a-b" = "x" }', "'a-b' is not a label's name"),
        ('[alerting]\nwebhooks = ["http://x"]', "alerting.webhooks: ['http://x'] is wrong, expected tables"),
        (
            '[alerting]\nonly = ["ServescopeCollectorGone"]',
            "alerting.only: a collector cannot tell of 'ServescopeCollectorGone' itself, expected others: Servescope",
        ),
        (
            '[alerting]\nonly = ["ServescopeWatchdog"]\ndisable = ["ServescopeWatchdog"]',
            "alerting.disable: holds all that 'alerting.only' names, expected one to be left: ServescopeWatchdog",
        ),
        ('[alerting]\nexternal_url = "collector"', "alerting.external_url: 'collector' is wrong, expected a URL"),
        ('[alerting]\ngrafana = "grafana:3000"', "alerting.grafana: 'grafana:3000' is wrong, expected a URL such as"),
        (
            '[[alerting.alertmanagers]]\nurl = "http://x/api/v2/alerts"',
            "alerting.alertmanagers[0].url: expected the base URL of an Alertmanager, without '/api/…' and '?…'",
        ),
        (
            '[[alerting.alertmanagers]]\nurl = "http://x"\n[[alerting.alertmanagers]]\nurl = "http://x/"',
            "alerting.alertmanagers: a url stands twice, expected each once",
        ),
        (
            '[[alerting.webhooks]]\nurl = "http://x"\nseverities = ["page"]',
            "alerting.webhooks[0].severities: ['page'] is wrong, expected some of critical, warning, info, none",
        ),
        ("[[alerting.webhooks]]\n", "alerting.webhooks[0]: 'url' is missing"),
        ('[[alerting.webhooks]]\nurl = "hook"', "alerting.webhooks[0].url: the URL is not a URL"),
        ('[[alerting.webhooks]]\nurl = "http://u:p@x/y"', "alerting.webhooks[0].url: the URL carries credentials"),
        (
            '[[alerting.alertmanagers]]\nurl = "http://x"\nbearer_token_file = "gone"',
            "alerting.alertmanagers[0]: secret file 'gone' cannot be read",
        ),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, alerting: str, error: str) -> None:
    """With file, key, value and what would have been right; nothing of a secret."""
    path = tmp_path / "servescope.toml"
    path.write_text(_CONFIGURATION.format(alerting=alerting))
    with pytest.raises(ConfigurationError) as raised:
        read_configuration(path)
    assert error in str(raised.value)
    assert str(raised.value).startswith(str(path))
