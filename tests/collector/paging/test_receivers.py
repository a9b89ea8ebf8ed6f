"""Notifications while receivers, clocks, releases or numbers misbehave."""

from __future__ import annotations

import math
import sqlite3
import threading
from contextlib import aclosing
from pathlib import Path

import pytest

from servescope.settings.access import Access
from servescope.store.embedded import Store
from servescope.store.records import KeptAlert
from servescope.store.writer import StoreWriter, WriteBatch
from servescope.web.connections import FetchError
from tests.collector.support.paging import ALERTMANAGER, WEBHOOK, Receivers, Scene
from tests.support.waiting import deadline_seconds

NAME = "ServescopeReplicasFailed"
_HOOK = "http://hook:80/secret-path"


class Choosy(Receivers):
    """Receivers that refuse notifications of one alert, as one that finds it too large or malformed."""

    refused = ""
    error = FetchError("status", "HTTP status 400 Bad Request")

    async def __call__(self, url: str, access: Access, body: bytes, seconds: float, /) -> None:
        if self.refused and self.refused.encode() in body:
            raise self.error
        await super().__call__(url, access, body, seconds)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servescope.collector.paging.notifier._FIRST_PAUSE_SECONDS", 0.0)


def _statuses(scene: Scene) -> list[str]:
    return [status for _, status, _ in scene.receivers.sent(NAME)]


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_webhook_that_was_down_for_hours_is_sent_the_end(tmp_path: Path, restarts: bool) -> None:
    """Also when the collector was restarted in between."""
    async with aclosing(Scene(tmp_path, WEBHOOK)) as scene:
        scene.failed = 1
        await scene.steps(21)
        assert _statuses(scene) == ["firing"]
        scene.receivers.down.add(_HOOK)
        scene.failed = 0
        await scene.steps(21)
        if restarts:
            await scene.restart(seconds=3600)
        for _ in range(12):
            await scene.step(300)
        assert _statuses(scene) == ["firing"]
        scene.receivers.down.clear()
        await scene.steps(2)
        assert _statuses(scene) == ["firing", "resolved"]
        await scene.steps(2)
        assert scene.states() == {}


@pytest.mark.slow
async def test_an_alert_that_fired_twice_while_a_webhook_was_down_resolves_there(tmp_path: Path) -> None:
    """The webhook knows the first of the two only, under the same fingerprint."""
    async with aclosing(Scene(tmp_path, WEBHOOK)) as scene:
        scene.failed = 1
        await scene.steps(21)
        scene.receivers.down.add(_HOOK)
        for failed in (0, 1, 0):
            scene.failed = failed
            await scene.steps(22)
        scene.receivers.down.clear()
        await scene.steps(2)
        assert _statuses(scene) == ["firing", "resolved"]


@pytest.mark.slow
async def test_an_alertmanager_is_sent_the_end_for_fifteen_minutes_whatever_a_webhook_still_needs(
    tmp_path: Path,
) -> None:
    """As by Prometheus, also while the resolved alert is kept for a webhook that is down."""
    async with aclosing(Scene(tmp_path, ALERTMANAGER + WEBHOOK)) as scene:
        scene.failed = 1
        await scene.steps(21)
        scene.receivers.down.add(_HOOK)
        scene.failed = 0
        for _ in range(40):
            await scene.step(60)
        assert scene.states() == {NAME: "resolved"}
        sent = len(scene.receivers.sent(NAME))
        for _ in range(10):
            await scene.step(60)
        assert len(scene.receivers.sent(NAME)) == sent


@pytest.mark.slow
@pytest.mark.parametrize("receiver", [WEBHOOK, ALERTMANAGER], ids=["webhook", "alertmanager"])
@pytest.mark.parametrize(
    "error",
    [
        FetchError("status", "HTTP status 400 Bad Request"),
        FetchError("rate_limited", "HTTP status 429 Too Many Requests", retry_after_seconds=3600.0),
        FetchError("timeout", "no answer within 10 s"),
        FetchError("unreachable", "connection lost: Connection reset by peer"),
    ],
    ids=lambda error: error.outcome,
)
async def test_a_refused_notification_delays_no_other(
    tmp_path: Path, receiver: str, error: FetchError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by a status nor by a failure, now and after all failed; the reason stays visible."""
    monkeypatch.setattr("servescope.collector.paging.notifier.MAX_ALERTS_PER_REQUEST", 1)
    scene = Scene(tmp_path, receiver)
    async with aclosing(scene):
        scene.receivers = scene.collector.alerts.notifier._post = Choosy()
        scene.receivers.refused, scene.receivers.error = NAME, error
        scene.failed = 1
        await scene.steps(25)
        assert scene.states()[NAME] == "firing"
        before = len(scene.receivers.sent("ServescopeWatchdog"))
        assert before >= 1
        # Both are due again, and fail once.
        scene.receivers.down |= {url for url, _ in scene.receivers.posts}
        await scene.step(4 * 3600)
        await scene.steps(2)
        scene.receivers.down.clear()
        await scene.steps(2)
        assert len(scene.receivers.sent("ServescopeWatchdog")) > before
        (problem,) = scene.collector.alerts.notifier.problems().values()
        assert problem == str(error)
        scene.receivers.refused = ""
        await scene.steps(1)
        assert len(scene.receivers.sent(NAME)) == 1
        assert list(scene.collector.alerts.notifier.problems().values()) == [None]


@pytest.mark.slow
async def test_a_webhook_that_did_not_answer_in_time_is_sent_the_end(tmp_path: Path) -> None:
    """It may have taken that the alert fires. Also when the collector was restarted in between."""
    async with aclosing(Scene(tmp_path, WEBHOOK)) as scene:
        scene.receivers = scene.collector.alerts.notifier._post = Choosy()
        scene.receivers.refused, scene.receivers.error = NAME, FetchError("timeout", "no answer within 10 s")
        for failed in (1, 0):
            scene.failed = failed
            await scene.steps(25)
        assert scene.states() == {NAME: "resolved"}
        await scene.restart()
        scene.receivers.refused = ""
        await scene.steps(2)
        assert _statuses(scene) == ["resolved"]


async def test_another_url_of_the_same_host_is_another_receiver(tmp_path: Path) -> None:
    """It is sent everything that fires; also after a restart."""
    async with aclosing(Scene(tmp_path, WEBHOOK)) as scene:
        scene.failed = 1
        await scene.steps(21)
        scene.configure(WEBHOOK.replace("secret-path", "another"))
        await scene.collector.reload()
        await scene.step()
        assert [url for url, _, _ in scene.receivers.sent(NAME)] == [_HOOK, "http://hook:80/another"]
        scene.configure(WEBHOOK.replace("secret-path", "third"))
        await scene.restart()
        await scene.step()
        assert scene.receivers.sent(NAME)[-1][0] == "http://hook:80/third"
        assert list(scene.collector.alerts.notifier.problems()) == ["hook:80"]
    assert b"secret-path" not in (tmp_path / "servescope.db").read_bytes()


async def test_a_stored_alert_of_another_release_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The other alerts keep their states, and receivers are sent them."""
    async with aclosing(Scene(tmp_path, WEBHOOK)) as scene:
        scene.failed = 1
        await scene.steps(21)
        await scene.aclose()
        with sqlite3.connect(tmp_path / "servescope.db") as connection:
            connection.execute("UPDATE alerts SET alert = 'ServescopeFormerly' WHERE alert = 'ServescopeWatchdog'")
        connection.close()
        scene.open()
        await scene.steps(3)
        assert scene.states() == {NAME: "firing"}
        assert len(scene.receivers.sent("ServescopeWatchdog")) == 2
        assert _statuses(scene) == ["firing"]
    assert "could not be read" not in caplog.text


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_an_alert_whose_value_is_not_finite_is_stored(tmp_path: Path, value: float) -> None:
    """It must not prevent the others from being stored."""
    kept = KeptAlert(NAME, (("deployment_id", "chat"),), 1, 2, None, None, {"x": (2, "firing", 2)}, value)
    with Store(tmp_path / "servescope.db") as store:
        with store.transaction():
            store.write_alerts([kept])
        (found,) = store.read_alerts()
    assert found == kept
    assert repr(found.value) == repr(value)


@pytest.mark.slow
async def test_a_clock_that_is_set_back_stops_no_notification(tmp_path: Path) -> None:
    """An alert starts before it ends, as Alertmanager requires; neither `for` nor `keep_firing_for` gets longer."""
    async with aclosing(Scene(tmp_path)) as scene:
        scene.seconds += 86_400
        scene.failed = 1
        await scene.steps(21)
        assert scene.states() == {NAME: "firing"}
        scene.seconds -= 86_400
        await scene.steps(2)
        sent = scene.receivers.sent(NAME)[-1][2]
        assert sent["startsAt"] < sent["endsAt"] < "2027-01-15T09"
        scene.failed = 0
        await scene.step()
        scene.seconds += 86_400
        await scene.step()
        assert scene.states() == {NAME: "resolved"}
        scene.seconds -= 86_400
        await scene.steps(2)
        sent = scene.receivers.sent(NAME)[-1][2]
        assert sent["startsAt"] <= sent["endsAt"] < "2027-01-15T09"

        scene.failed = 1
        scene.seconds += 86_400
        await scene.step()
        scene.seconds -= 86_400
        await scene.steps(21)
        assert scene.states() == {NAME: "firing"}


@pytest.mark.slow
async def test_figures_that_could_not_be_derived_resolve_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an internal error what fires goes on firing until there are figures again."""
    async with aclosing(Scene(tmp_path, WEBHOOK)) as scene:
        scene.failed = 1
        await scene.steps(21)
        with monkeypatch.context() as patch:
            patch.setattr(
                "servescope.collector.figures.derive.Deriver.derive",
                lambda _, members, at_ms: {each: RuntimeError("a bug") for each in members},
            )
            await scene.steps(45)
            assert scene.states()[NAME] == "firing"
        scene.failed = 0
        await scene.steps(21)
        assert scene.states()[NAME] == "resolved"
        assert _statuses(scene) == ["firing", "resolved"]


async def test_alerts_of_slow_targets_stay_after_a_restart(tmp_path: Path) -> None:
    """What held before an outage is assumed to hold until the slowest target can have been scraped twice."""
    scene = Scene(tmp_path, "")
    path = tmp_path / "servescope.toml"
    path.write_text(path.read_text().replace('replica = "a"', 'replica = "a"\nscrape_interval = "2m"'))
    async with aclosing(scene):
        scene.failed = 1
        await scene.steps(21)
        scene.up = False
        await scene.restart(seconds=1800)
        for _ in range(4):
            await scene.step(30)
        assert scene.states()[NAME] == "firing"
        assert all(each.is_kept is False for each in scene.collector.alerts.shown)


async def test_a_webhook_is_sent_its_severities_only(tmp_path: Path) -> None:
    """One for the Watchdog gets nothing else; one for critical alerts gets no warnings."""
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
    async with aclosing(Scene(tmp_path, webhooks)) as scene:
        scene.failed = 1
        await scene.steps(21)
        assert {url for url, _, _ in scene.receivers.sent("ServescopeWatchdog")} == {"http://watchdog:80"}
        assert len(scene.receivers.sent("ServescopeWatchdog")) == 6
        assert [url for url, _, _ in scene.receivers.sent(NAME)] == ["http://ticket:80"]
        scene.configure(webhooks.replace('["warning", "info"]', '["info"]'))
        await scene.collector.reload()
        scene.failed = 0
        await scene.steps(21)
        assert [(url, status) for url, status, _ in scene.receivers.sent(NAME)] == [
            ("http://ticket:80", "firing"), ("http://ticket:80", "resolved")
        ]  # fmt: skip


def test_alerts_that_wait_for_a_store_that_hangs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often they change meanwhile: the oldest are dropped, and the last is written."""
    writing, answers = threading.Event(), threading.Event()
    write = WriteBatch.write

    def hang(round_: WriteBatch, store: Store) -> None:
        writing.set()
        answers.wait(deadline_seconds())
        write(round_, store)

    monkeypatch.setattr(WriteBatch, "write", hang)
    monkeypatch.setattr("servescope.store.writer._MOST_NUMBERS", 1_000)
    alerts = [KeptAlert(NAME, (("deployment_id", f"chat-{number}"),), 1, 2, None, None) for number in range(10)]
    dropped: list[WriteBatch] = []
    path = tmp_path / "servescope.db"
    writer = StoreWriter(Store(path), on_written=lambda _: None, on_error=lambda _: None, on_dropped=dropped.append)
    writer.submit(WriteBatch())
    assert writing.wait(deadline_seconds())
    for step in range(50):
        writer.submit(WriteBatch(alerts=alerts[: 9 + step % 2], sums=(1_800_000_000_000 + step, {})))
    waiting = writer.backlog()
    answers.set()

    assert writer.close()
    assert waiting < 10
    assert len(dropped) > 40
    with Store(path, read_only=True) as reader:
        assert reader.read_alerts() == alerts


@pytest.mark.slow
async def test_a_clock_that_was_set_back_over_a_restart_resolves_nothing(tmp_path: Path) -> None:
    """Everything stored has a time in the future: what fired still fires, and its end is sent."""
    async with aclosing(Scene(tmp_path, WEBHOOK)) as scene:
        scene.failed = 1
        await scene.steps(21)
        await scene.restart(seconds=-7200)
        await scene.step()
        assert scene.states() == {NAME: "firing"}
        scene.failed = 0
        await scene.steps(21)
        assert _statuses(scene)[-1] == "resolved"
