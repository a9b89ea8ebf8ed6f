"""A collector alone notifies receivers: what it evaluates, whom it notifies, and what it keeps over a restart."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path

import pytest

from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.evaluation import Active, CompiledAlert, Instant, compile_alert
from servescope.collector.config import read_configuration
from servescope.contract.expressions import Vector
from servescope.contract.samples import Labels
from servescope.errors import ConfigurationError
from servescope.store.embedded import Store
from tests.collector.support.paging import ALERTMANAGER, CONFIGURATION, START, WEBHOOK, Scene
from tests.support.waiting import wait_for_async


@pytest.mark.slow
async def test_an_alert_waits_fires_is_kept_and_resolved(tmp_path: Path) -> None:
    """`for` and `keep_firing_for` are five minutes; an Alertmanager is sent nothing before the alert fires."""
    async with aclosing(Scene(tmp_path)) as scene:
        await scene.steps(3)
        scene.failed = 1
        await scene.steps(20)
        assert scene.states() == {"ServescopeReplicasFailed": "pending"}
        assert scene.receivers.sent("ServescopeReplicasFailed") == []
        await scene.step()
        assert scene.states() == {"ServescopeReplicasFailed": "firing"}
        (sent,) = scene.receivers.sent("ServescopeReplicasFailed")
        assert sent[2]["startsAt"] == "2027-01-15T08:06:00.000Z"
        assert sent[2]["endsAt"] == "2027-01-15T08:26:00.000Z"
        assert sent[2]["labels"]["severity"] == "warning"
        assert sent[2]["annotations"]["description"] == (
            "Number of failed replicas of chat (llama, v1), now or repeatedly within the last 30 minutes: 1, more than "
            "4 % of all."
        )

        scene.failed = 0
        await scene.steps(20)
        assert scene.states() == {"ServescopeReplicasFailed": "firing"}
        await scene.step()
        assert scene.states() == {"ServescopeReplicasFailed": "resolved"}
        assert scene.receivers.sent("ServescopeReplicasFailed")[-1][1] == "2027-01-15T08:11:15.000Z"
        await scene.steps(61)
        assert scene.states() == {}


@pytest.mark.slow
async def test_an_alertmanager_is_sent_firing_alerts_every_minute_and_resolved_ones_for_fifteen(tmp_path: Path) -> None:
    """At the first evaluation after the interval; endsAt is 20 minutes in the future, as long as a restart may take."""
    async with aclosing(Scene(tmp_path)) as scene:
        scene.failed = 1
        await scene.steps(21 + 10)
        starts = {sent["startsAt"] for _, _, sent in scene.receivers.sent("ServescopeReplicasFailed")}
        ends = [end for _, end, _ in scene.receivers.sent("ServescopeReplicasFailed")]
        assert starts == {"2027-01-15T08:05:15.000Z"}
        assert [end[11:19] for end in ends] == ["08:25:15", "08:26:30", "08:27:45"]
        scene.failed = 0
        await scene.steps(21 + 70)
        later = scene.receivers.sent("ServescopeReplicasFailed")[len(ends) :]
        over = [end for _, end, _ in later if end == later[-1][1]]
        assert 12 <= len(over) <= 14
        assert {sent["startsAt"] for _, _, sent in later} == starts


async def test_the_watchdog_is_sent(tmp_path: Path) -> None:
    """A service that expects it notices its absence."""
    async with aclosing(Scene(tmp_path)) as scene:
        await scene.step()
        assert [url for url, _, _ in scene.receivers.sent("ServescopeWatchdog")] == ["http://am:9093/api/v2/alerts"]


@pytest.mark.slow
async def test_a_webhook_is_notified_once_and_again_after_the_repeat_interval(tmp_path: Path) -> None:
    """The body is that of Alertmanager's webhooks, version 4."""
    async with aclosing(Scene(tmp_path, WEBHOOK)) as scene:
        scene.failed = 1
        await scene.steps(60)
        (fires,) = [body for _, body in scene.receivers.posts if "deployment_id" in body["groupLabels"]]
        scene.failed = 0
        await scene.steps(30)
        sent = [body["status"] for _, body in scene.receivers.posts if "deployment_id" in body["groupLabels"]]
        assert sent == ["firing", "resolved"]
        assert fires["version"] == "4"
        assert fires["groupLabels"] == {"model_name": "llama", "deployment_id": "chat", "inference_stack": "v1"}
        assert fires["groupKey"] == (
            '{}/{severity="warning"}:{deployment_id="chat", inference_stack="v1", model_name="llama"}'
        )
        assert fires["commonLabels"]["deployment_id"] == "chat"
        assert fires["alerts"][0]["endsAt"] == "0001-01-01T00:00:00Z"
        await scene.step(4 * 3600)
        assert len(scene.receivers.sent("ServescopeWatchdog")) == 2


@pytest.mark.slow
async def test_a_webhook_is_sent_one_body_for_a_deployment(tmp_path: Path) -> None:
    """Its alerts of one severity are in it, whatever their names; pages and the Watchdog are others."""
    async with aclosing(Scene(tmp_path, WEBHOOK)) as scene:
        scene.failed = 1
        await scene.steps(21)
        scene.up = False
        await scene.steps(60)
        keys: dict[str, set[str]] = {}
        last: dict[str, set[str]] = {}
        for _, body in scene.receivers.posts:
            severity = body["commonLabels"]["severity"]
            keys.setdefault(severity, set()).add(body["groupKey"])
            last[severity] = {each["labels"]["alertname"] for each in body["alerts"]}
        assert {severity: len(found) for severity, found in keys.items()} == {"none": 1, "warning": 1, "critical": 1}
        assert last["warning"] == {"ServescopeReplicasFailed", "ServescopeTargetDown"}
        assert last["critical"] == {"ServescopeDeploymentDown", "ServescopeNoActiveReplica"}


@pytest.mark.slow
async def test_a_ticket_names_the_metrics_that_are_missing(tmp_path: Path) -> None:
    """Those that the page of the target had before, in the headline and in the description."""
    async with aclosing(Scene(tmp_path)) as scene:
        await scene.steps(3)
        scene.lacking = True
        await scene.steps(45)
        _, _, sent = scene.receivers.sent("ServescopeMetricsMissing")[-1]
        assert sent["annotations"]["headline"] == "lacks replica_count_by_status"
        assert "no longer exposes replica_count_by_status that" in sent["annotations"]["description"]


async def test_a_receiver_that_hangs_delays_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another receiver is notified at the same evaluation."""
    async with aclosing(Scene(tmp_path, ALERTMANAGER + WEBHOOK)) as scene:
        scene.receivers.hung.add("http://hook:80/secret-path")
        scene.failed = 1
        await scene.steps(21)
        assert scene.states() == {"ServescopeReplicasFailed": "firing"}
        assert [url for url, _, _ in scene.receivers.sent("ServescopeReplicasFailed")] == [
            "http://am:9093/api/v2/alerts"
        ]
    assert "secret-path" not in caplog.text


async def test_a_failed_notification_is_counted_logged_and_retried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log names the receiver by its host, without the path, which may be a secret."""
    monkeypatch.setattr("servescope.collector.paging.notifier._FIRST_PAUSE_SECONDS", 0.1)
    async with aclosing(Scene(tmp_path, WEBHOOK)) as scene:
        scene.receivers.down.add("http://hook:80/secret-path")
        await scene.steps(2)
        problems = scene.collector.alerts.notifier.problems()
        assert problems == {"hook:80": "cannot connect: Connection refused"}
        scene.receivers.down.clear()
        await wait_for_async(lambda: scene.receivers.posts, "the next attempt")
        assert [status for _, status, _ in scene.receivers.sent("ServescopeWatchdog")] == ["firing"]
        assert scene.collector.alerts.notifier.problems() == {"hook:80": None}
        counted = scene.collector.telemetry.read(["servescope_notifications_total"])["servescope_notifications_total"]
        results = {dict(labels)["result"]: count for labels, count in counted.items()}
        # On a slow machine it is tried again before the receiver is back.
        assert (results["sent"], results["failed"] >= 1, results["dropped"]) == (1, True, 0)
    assert "receiver hook:80: notification failed, will retry: cannot connect: Connection refused" in caplog.text
    assert "secret-path" not in caplog.text


@pytest.mark.slow
async def test_a_restart_notifies_nobody_twice_and_sends_the_end(tmp_path: Path) -> None:
    """A firing alert keeps its start; one whose condition ended meanwhile resolves once targets were scraped."""
    async with aclosing(Scene(tmp_path, WEBHOOK)) as scene:
        scene.failed = 1
        await scene.steps(21)
        (before,) = scene.receivers.sent("ServescopeReplicasFailed")
        await scene.restart()
        await scene.step()
        assert scene.states() == {"ServescopeReplicasFailed": "firing"}
        assert len(scene.receivers.sent("ServescopeReplicasFailed")) == 1

        scene.failed = 0
        await scene.restart(seconds=1200)
        await scene.steps(3)
        assert scene.states() == {"ServescopeReplicasFailed": "firing"}
        await scene.steps(24)
        sent = scene.receivers.sent("ServescopeReplicasFailed")
        assert [status for _, status, _ in sent] == ["firing", "resolved"]
        assert sent[1][2]["startsAt"] == before[2]["startsAt"]
        assert sent[1][2]["fingerprint"] == before[2]["fingerprint"]


@pytest.mark.slow
async def test_a_restart_makes_no_start_of_what_is_down(tmp_path: Path) -> None:
    """The pages on a deployment that was up stay, though the collector has not seen it up since its own start."""
    pages = {"ServescopeDeploymentDown": "firing", "ServescopeNoActiveReplica": "firing"}
    async with aclosing(Scene(tmp_path)) as scene:
        await scene.steps(8)
        scene.up = False
        await scene.steps(48)
        assert scene.states().items() >= pages.items()
        await scene.restart()
        await scene.steps(48)
        assert scene.states().items() >= pages.items()


async def test_a_target_starts_until_it_has_answered(tmp_path: Path) -> None:
    """Since when it is listed is in its status and in the store; one that answered before does not start."""

    def since(scene: Scene) -> list[float | None]:
        store = Store(scene.folder / "servescope.db", read_only=True)
        statuses = [*(each.status for each in scene.collector.fleet.watched), *store.targets()]
        store.close()
        return [each.starting_since_ms for each in statuses]

    async with aclosing(Scene(tmp_path)) as scene:
        scene.up = False
        await scene.steps(4)
        await wait_for_async(lambda: since(scene) == [(START + 15) * 1000] * 2, "the status in the store")
        scene.up = True
        await scene.step()
        scene.up = False
        await scene.step()
        await wait_for_async(lambda: since(scene) == [None] * 2, "the status in the store")


async def test_an_alert_whose_evaluation_fails_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is counted and logged, and the alert keeps its state."""
    real = CompiledAlert.active
    broken = compile_alert(ALERTS["ServescopeReplicasBelowDesired"])

    def fails(alert: CompiledAlert, before: Mapping[Labels, Active], at: Instant) -> Vector:
        if alert == broken:
            raise RuntimeError("a bug")
        return real(alert, before, at)

    async with aclosing(Scene(tmp_path)) as scene:
        monkeypatch.setattr(CompiledAlert, "active", fails)
        scene.failed = 1
        await scene.steps(21)
        assert scene.states()["ServescopeReplicasFailed"] == "firing"
        errors = scene.collector.telemetry.read(["servescope_internal_errors_total"])
        assert errors["servescope_internal_errors_total"][("stage", "alert"),] == 21
        assert scene.states()["ServescopeInternalErrors"] == "pending"
    assert "alert ServescopeReplicasBelowDesired: not evaluated" in caplog.text


async def test_a_reload_changes_alerts_and_receivers(tmp_path: Path) -> None:
    """A disabled alert resolves; a new receiver is sent what fires."""
    async with aclosing(Scene(tmp_path)) as scene:
        scene.failed = 1
        await scene.steps(21)
        disabled = '[alerting]\ndisable = ["ServescopeReplicasFailed"]\nexternal_labels = { cluster = "eu" }\n'
        scene.configure(disabled + WEBHOOK)
        await scene.collector.reload()
        await scene.step()
        assert scene.states() == {"ServescopeReplicasFailed": "resolved"}
        sent = scene.receivers.sent("ServescopeWatchdog")
        assert sent[-1][0] == "http://hook:80/secret-path"
        assert sent[-1][2]["labels"]["cluster"] == "eu"


OPTIONS = 'options = "options.toml"'
_PROMISES = """
[alerts.waits]
ServescopeReplicasFailed = "1m"
[[alerts.objectives_of]]
deployment_id = "{}"
requests = {{ goal = 0.99 }}
"""


@pytest.mark.parametrize(
    ("deployment", "errors", "promised"), [("other", 0.03, "99.9 %"), ("chat", 0.03, ""), ("chat", 0.15, "99 %")]
)
async def test_a_deployment_is_held_to_what_the_options_promise(
    tmp_path: Path, deployment: str, errors: float, promised: str
) -> None:
    """A page for one that is promised more than it gets."""
    (tmp_path / "options.toml").write_text(_PROMISES.format(deployment))
    async with aclosing(Scene(tmp_path, f"[alerting]\n{OPTIONS}\n{ALERTMANAGER}")) as scene:
        scene.errors, scene.failed = errors, 1
        await scene.steps(60)

        pages = scene.receivers.sent("ServescopeRequestsBudgetBurnsFast")
        violated = f"violated the objective: {promised} of requests neither fail in the stack nor are refused by it."
        assert [page["annotations"]["description"].endswith(violated) for _, _, page in pages[-1:]] == [True] * bool(
            promised
        )
        starts = {sent["startsAt"] for _, _, sent in scene.receivers.sent("ServescopeReplicasFailed")}
        assert starts == {"2027-01-15T08:01:15.000Z"}


async def test_other_options_take_a_restart(tmp_path: Path) -> None:
    """A reload says so, and the alerts stay as they were; a file that is not there is refused."""
    (tmp_path / "options.toml").write_text(_PROMISES.format("chat"))
    async with aclosing(Scene(tmp_path, f"[alerting]\n{OPTIONS}\n{ALERTMANAGER}")) as scene:
        await scene.step()
        (tmp_path / "options.toml").write_text(_PROMISES.format("other"))
        loading = await scene.collector.reload()
        assert loading.needs_restart == ("alerting.options",)

        (tmp_path / "options.toml").unlink()
        with pytest.raises(ConfigurationError, match="no options file"):
            await scene.collector.reload()


async def test_the_alerts_of_a_deployment_that_left_resolve(tmp_path: Path) -> None:
    """Its figures are gone; the alert on its target fires."""
    async with aclosing(Scene(tmp_path)) as scene:
        scene.failed = 1
        await scene.steps(21)
        scene.up = False
        scene.seconds += 600
        await scene.steps(22)
        assert scene.states()["ServescopeReplicasFailed"] == "resolved"
        assert scene.states()["ServescopeTargetDown"] == "firing"


@pytest.mark.parametrize(
    ("alerting", "error"),
    [
        ('[alerting]\nonly = ["ServescopeReplicasFaild"]',
         "alerting.only: unknown alert 'ServescopeReplicasFaild'; did"),
        ('[alerting]\ndisable = ["Other"]', "alerting.disable: unknown alert 'Other'; known: Servescope"),
        ("[alerting]\nalertmanager = []", "unknown key 'alerting.alertmanager'; did you mean 'alertmanagers'?"),
        ('[alerting]\nresend_interval = "0s"', "alerting.resend_interval: '0s' is wrong, expected a duration above 0"),
        ('[alerting]\nexternal_labels = { severity = "x" }', "alerts already have a label 'severity'"),
        ('[alerting]\nexternal_labels = { "a-b" = "x" }', "'a-b' is not a label's name"),
        ('[alerting]\nwebhooks = ["http://x"]', "alerting.webhooks: ['http://x'] is wrong, expected tables"),
        ('[alerting]\nonly = ["ServescopeCollectorGone"]',
         "alerting.only: a collector cannot evaluate 'ServescopeCollectorGone', expected some of: Servescope"),
        ('[alerting]\nonly = ["ServescopeWatchdog"]\ndisable = ["ServescopeWatchdog"]',
         "alerting.disable: disables every alert of 'alerting.only', expected one to be left: ServescopeWatchdog"),
        ('[alerting]\nexternal_url = "collector"', "alerting.external_url: 'collector' is wrong, expected a URL"),
        # Alertmanager answers 422 to an alert with such a link.
        ('[alerting]\nexternal_url = "http://x:port"', "alerting.external_url: 'http://x:port' is wrong, expected a"),
        ('[alerting]\nexternal_url = "http://x/%zz"', "alerting.external_url: 'http://x/%zz' is wrong, expected a URL"),
        ('[alerting]\nrunbooks = "runbooks"', "alerting.runbooks: 'runbooks' is wrong, expected a URL such as"),
        ('[alerting]\ngrafana = "grafana:3000"', "alerting.grafana: 'grafana:3000' is wrong, expected a URL such as"),
        ('[[alerting.alertmanagers]]\nurl = "http://x/api/v2/alerts"',
         "alerting.alertmanagers[0].url: expected the base URL of an Alertmanager, without '/api/…' and '?…'"),
        ('[[alerting.alertmanagers]]\nurl = "http://x"\n[[alerting.alertmanagers]]\nurl = "http://x/"',
         "alerting.alertmanagers: the same url is listed twice"),
        ('[[alerting.webhooks]]\nurl = "http://x"\nseverities = ["page"]',
         "alerting.webhooks[0].severities: ['page'] is wrong, expected some of critical, warning, info, none"),
        ("[[alerting.webhooks]]\n", "alerting.webhooks[0]: 'url' is missing"),
        ('[[alerting.webhooks]]\nurl = "hook"', "alerting.webhooks[0].url: the URL is not a URL"),
        ('[[alerting.webhooks]]\nurl = "http://u:p@x/y"', "alerting.webhooks[0].url: the URL carries credentials"),
        ('[[alerting.alertmanagers]]\nurl = "http://x"\nbearer_token_file = "gone"',
         "alerting.alertmanagers[0]: secret file 'gone' cannot be read"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(tmp_path: Path, alerting: str, error: str) -> None:
    """The message names file, key, value and what was expected, and shows no secret."""
    path = tmp_path / "servescope.toml"
    path.write_text(CONFIGURATION.format(alerting=alerting))
    with pytest.raises(ConfigurationError) as raised:
        read_configuration(path)
    assert error in str(raised.value)
    assert str(raised.value).startswith(str(path))
