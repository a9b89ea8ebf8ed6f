"""What becomes of pages when receivers, clocks, releases and numbers are not as they ought to be."""

from __future__ import annotations

import math
import sqlite3
import threading
from pathlib import Path

import pytest

from servescope.collector.scrape import ScrapeError
from servescope.settings.access import Access
from servescope.store.embedded import Store
from servescope.store.records import KeptAlert
from servescope.store.writer import Round, StoreWriter
from tests.collector.paging.test_paging import ALERTMANAGER, WEBHOOK, Receivers, Scene, play

NAME = "ServescopeReplicasFailed"
_HOOK = "http://hook:80/secret-path"


class Choosy(Receivers):
    """Receivers that refuse what tells of one alert, as one does that finds it too large or wrong."""

    refused = ""

    async def __call__(self, url: str, access: Access, body: bytes, seconds: float, /) -> None:
        if self.refused and self.refused.encode() in body:
            raise ScrapeError("status", "HTTP status 400 Bad Request")
        await super().__call__(url, access, body, seconds)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servescope.collector.paging.sending._FIRST_PAUSE_SECONDS", 0.0)


def _statuses(scene: Scene) -> list[str]:
    return [status for _, status, _ in scene.receivers.told(NAME)]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_webhook_that_was_down_for_hours_is_told_of_an_end_meanwhile(tmp_path: Path, restarts: bool) -> None:
    """It took the alert to fire all the while; so it does when the collector was restarted in between."""

    async def act(scene: Scene) -> None:
        scene.failed = 1
        await scene.steps(21)
        assert _statuses(scene) == ["firing"]
        scene.receivers.down.add(_HOOK)
        scene.failed = 0
        await scene.steps(21)
        if restarts:
            await scene.restart(seconds=3600)
        for _ in range(60):
            await scene.step(60)
        assert _statuses(scene) == ["firing"]
        scene.receivers.down.clear()
        await scene.steps(2)
        assert _statuses(scene) == ["firing", "resolved"]
        await scene.steps(2)
        assert scene.states() == {}

    play(Scene(tmp_path, WEBHOOK), act)


def test_one_that_fired_twice_while_a_webhook_was_down_ends_there_too(tmp_path: Path) -> None:
    """The webhook knows the first time only, under the same fingerprint."""

    async def act(scene: Scene) -> None:
        scene.failed = 1
        await scene.steps(21)
        scene.receivers.down.add(_HOOK)
        for failed in (0, 1, 0):
            scene.failed = failed
            await scene.steps(22)
        scene.receivers.down.clear()
        await scene.steps(2)
        assert _statuses(scene) == ["firing", "resolved"]

    play(Scene(tmp_path, WEBHOOK), act)


def test_an_alertmanager_is_told_of_an_end_for_a_quarter_of_an_hour_whatever_a_webhook_is_owed(tmp_path: Path) -> None:
    """As by Prometheus, also while a webhook that is down keeps the end from being forgotten."""

    async def act(scene: Scene) -> None:
        scene.failed = 1
        await scene.steps(21)
        scene.receivers.down.add(_HOOK)
        scene.failed = 0
        for _ in range(40):
            await scene.step(60)
        assert scene.states() == {NAME: "resolved"}
        told = len(scene.receivers.told(NAME))
        for _ in range(10):
            await scene.step(60)
        assert len(scene.receivers.told(NAME)) == told

    play(Scene(tmp_path, ALERTMANAGER + WEBHOOK), act)


@pytest.mark.parametrize("receiver", [WEBHOOK, ALERTMANAGER], ids=["webhook", "alertmanager"])
def test_what_a_receiver_refuses_keeps_nothing_else_from_it(
    tmp_path: Path, receiver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the alerts behind it, now and later; what is wrong with it stays visible."""
    monkeypatch.setattr("servescope.collector.paging.sending.BATCH", 1)

    async def act(scene: Scene) -> None:
        scene.receivers = scene.collector.alerts.sender._post = Choosy()
        scene.receivers.refused = NAME
        scene.failed = 1
        await scene.steps(25)
        assert scene.states()[NAME] == "firing"
        assert len(scene.receivers.told("ServescopeWatchdog")) >= 1
        (problem,) = scene.collector.alerts.sender.problems().values()
        assert problem == "HTTP status 400 Bad Request"
        scene.receivers.refused = ""
        await scene.steps(1)
        assert len(scene.receivers.told(NAME)) == 1
        assert list(scene.collector.alerts.sender.problems().values()) == [None]

    scene = Scene(tmp_path, receiver)
    play(scene, act)


def test_another_url_of_the_same_host_is_another_receiver(tmp_path: Path) -> None:
    """Whoever is behind it knows nothing yet of what fires; also after a restart."""

    async def act(scene: Scene) -> None:
        scene.failed = 1
        await scene.steps(21)
        scene.configure(WEBHOOK.replace("secret-path", "another"))
        await scene.collector.reload()
        await scene.step()
        assert [url for url, _, _ in scene.receivers.told(NAME)] == [_HOOK, "http://hook:80/another"]
        scene.configure(WEBHOOK.replace("secret-path", "third"))
        await scene.restart()
        await scene.step()
        assert scene.receivers.told(NAME)[-1][0] == "http://hook:80/third"
        assert list(scene.collector.alerts.sender.problems()) == ["hook:80"]

    play(Scene(tmp_path, WEBHOOK), act)
    assert b"secret-path" not in (tmp_path / "servescope.db").read_bytes()


def test_an_alert_that_another_release_had_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The others stand as they stood, and receivers are told of them."""

    async def act(scene: Scene) -> None:
        scene.failed = 1
        await scene.steps(21)
        await scene.close()
        with sqlite3.connect(tmp_path / "servescope.db") as connection:
            connection.execute("UPDATE alerts SET alert = 'ServescopeFormerly' WHERE alert = 'ServescopeWatchdog'")
        connection.close()
        scene.open()
        await scene.steps(3)
        assert scene.states() == {NAME: "firing"}
        assert len(scene.receivers.told("ServescopeWatchdog")) == 2
        assert _statuses(scene) == ["firing"]

    play(Scene(tmp_path, WEBHOOK), act)
    assert "could not be read" not in caplog.text


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_an_alert_of_a_value_that_is_no_number_is_remembered(tmp_path: Path, value: float) -> None:
    """It must not keep all others from the store."""
    kept = KeptAlert(NAME, (("deployment_id", "chat"),), 1, 2, None, None, {"x": (2, "firing", 2)}, value)
    with Store(tmp_path / "servescope.db") as store:
        with store.transaction():
            store.write_alerts([kept])
        (found,) = store.read_alerts()
    assert found == kept
    assert repr(found.value) == repr(value)


def test_a_clock_that_is_set_back_neither_silences_nor_refuses(tmp_path: Path) -> None:
    """What fires began before it ends, as Alertmanager asks; what waits, and what is kept, does so no longer."""

    async def act(scene: Scene) -> None:
        scene.seconds += 86_400
        scene.failed = 1
        await scene.steps(21)
        assert scene.states() == {NAME: "firing"}
        scene.seconds -= 86_400
        await scene.steps(2)
        told = scene.receivers.told(NAME)[-1][2]
        assert told["startsAt"] < told["endsAt"] < "2027-01-15T09"
        scene.failed = 0
        await scene.step()
        scene.seconds += 86_400
        await scene.step()
        assert scene.states() == {NAME: "resolved"}
        scene.seconds -= 86_400
        await scene.steps(2)
        told = scene.receivers.told(NAME)[-1][2]
        assert told["startsAt"] <= told["endsAt"] < "2027-01-15T09"

        scene.failed = 1
        scene.seconds += 86_400
        await scene.step()
        scene.seconds -= 86_400
        await scene.steps(21)
        assert scene.states() == {NAME: "firing"}

    play(Scene(tmp_path), act)


def test_figures_that_could_not_be_derived_end_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake of ours is no end: what fires goes on firing until figures say otherwise."""

    async def act(scene: Scene) -> None:
        scene.failed = 1
        await scene.steps(21)
        with monkeypatch.context() as patch:
            patch.setattr(
                "servescope.collector.derive.Deriver.derive",
                lambda _, members, at_ms: {each: RuntimeError("a mistake") for each in members},
            )
            await scene.steps(45)
            assert scene.states()[NAME] == "firing"
        scene.failed = 0
        await scene.steps(21)
        assert scene.states()[NAME] == "resolved"
        assert _statuses(scene) == ["firing", "resolved"]

    play(Scene(tmp_path, WEBHOOK), act)


def test_slow_targets_have_their_time_after_a_restart(tmp_path: Path) -> None:
    """What held before an outage is taken to hold until the slowest of them can have been scraped twice."""

    async def act(scene: Scene) -> None:
        scene.failed = 1
        await scene.steps(21)
        scene.up = False
        await scene.restart(seconds=1800)
        for _ in range(4):
            await scene.step(30)
        assert scene.states()[NAME] == "firing"
        assert all(each.is_kept is False for each in scene.collector.alerts.shown)

    scene = Scene(tmp_path, "")
    path = tmp_path / "servescope.toml"
    path.write_text(path.read_text().replace('replica = "a"', 'replica = "a"\nscrape_interval = "2m"'))
    play(scene, act)


def test_a_webhook_is_told_of_its_severities_only(tmp_path: Path) -> None:
    """One for a service that waits for the Watchdog is told of nothing else; one for pages not of warnings."""
    webhooks = """
[[alerting.webhooks]]
url = "http://watchdog:80"
severities = ["none"]
repeat_interval = "1m"
[[alerting.webhooks]]
url = "http://page:80"
severities = ["critical"]
[[alerting.webhooks]]
url = "http://ticket:80"
severities = ["warning", "info"]
"""

    async def act(scene: Scene) -> None:
        scene.failed = 1
        await scene.steps(21)
        assert {url for url, _, _ in scene.receivers.told("ServescopeWatchdog")} == {"http://watchdog:80"}
        assert len(scene.receivers.told("ServescopeWatchdog")) == 6
        assert [url for url, _, _ in scene.receivers.told(NAME)] == ["http://ticket:80"]
        scene.configure(webhooks.replace('["warning", "info"]', '["info"]'))
        await scene.collector.reload()
        scene.failed = 0
        await scene.steps(21)
        assert [(url, status) for url, status, _ in scene.receivers.told(NAME)] == [
            ("http://ticket:80", "firing"), ("http://ticket:80", "resolved")
        ]  # fmt: skip

    play(Scene(tmp_path, webhooks), act)


def test_alerts_that_wait_for_a_store_that_hangs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often they change meanwhile: the oldest are given up, and the last is written."""
    writing, answers = threading.Event(), threading.Event()
    write = Round.write

    def hang(round_: Round, store: Store) -> None:
        writing.set()
        answers.wait(10)
        write(round_, store)

    monkeypatch.setattr(Round, "write", hang)
    alerts = [KeptAlert(NAME, (("deployment_id", f"chat-{number}"),), 1, 2, None, None) for number in range(10)]
    dropped: list[Round] = []
    path = tmp_path / "servescope.db"
    writer = StoreWriter(
        Store(path), on_written=lambda _: None, on_error=lambda _: None, on_dropped=dropped.append,
        backlog_samples=1_000,
    )  # fmt: skip
    writer.submit(Round())
    assert writing.wait(5)
    for step in range(50):
        writer.submit(Round(alerts=alerts[: 9 + step % 2], sums=(1_800_000_000_000 + step, {})))
    waiting = writer.backlog()
    answers.set()

    assert writer.close()
    assert waiting < 10
    assert len(dropped) > 40
    with Store(path, read_only=True) as reader:
        assert reader.read_alerts() == alerts


def test_a_clock_that_was_set_back_over_a_restart_ends_nothing(tmp_path: Path) -> None:
    """All that is stored is of a time that lies ahead: what fired fires, and its end is told."""

    async def act(scene: Scene) -> None:
        scene.failed = 1
        await scene.steps(21)
        await scene.restart(seconds=-7200)
        await scene.step()
        assert scene.states() == {NAME: "firing"}
        scene.failed = 0
        await scene.steps(21)
        assert _statuses(scene)[-1] == "resolved"

    play(Scene(tmp_path, WEBHOOK), act)
