"""What people read: the notifications of a real Alertmanager with our templates, as a chat's webhook gets them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from alerts.alertmanager import configuration
from alerts.also_firing import also_firing
from alerts.options import Options, make_options
from alerts.receivers import HEADLINE, RECEIVERS
from alerts.rules import alert_groups, alert_rule
from alerts.templates import render_templates
from servescope.alerting.alerts import ALERTS
from servescope.alerting.headlines import MOST_CHARACTERS
from servescope.alerting.rules.links import causes_of, dashboard_path
from servescope.alerting.rules.records import labels_of
from servescope.collector.paging.annotations import Links, annotate, render
from tests.support.alert_stories import TARGET, firing
from tests.support.alert_stories import series as _series
from tests.support.alertmanager import running_alertmanager
from tests.support.answering import Handler, answering
from tests.support.promtool import Suite, failures
from tests.support.waiting import deadline_seconds, wait_for

pytestmark = pytest.mark.slow
_STARTED = datetime(2026, 11, 20, 8, 30, tzinfo=UTC)


class Chat:
    """Chats on loopback, which keep what was posted to each by the last part of its address."""

    def __init__(self) -> None:
        self.url = ""
        self.posted: list[tuple[str, dict[str, Any]]] = []

    def answer(self, request: Handler) -> None:
        """Keep what is posted."""
        self.posted.append((request.path.removeprefix("/"), json.loads(request.body)))
        request.reply(200, "ok")

    def wait_for(self, count: int) -> list[tuple[str, dict[str, Any]]]:
        """What was posted, once it is so much."""
        wait_for(lambda: len(self.posted) >= count, f"{count} notifications")
        return sorted(self.posted, key=lambda post: (post[0], json.dumps(post[1])))


@pytest.fixture
def chat() -> Iterator[Chat]:
    chat = Chat()
    with answering(chat.answer) as chat.url:
        yield chat


@contextmanager
def alerting(binary: Path, folder: Path, options: Options) -> Iterator[str]:
    """A running Alertmanager with our configuration and templates; nothing but the waiting of a group is shorter."""
    (folder / "templates").mkdir()
    (folder / "templates" / "servescope.tmpl").write_text(render_templates(options), encoding="utf-8")
    document = configuration(options=options)
    for route in (document["route"], *document["route"]["routes"]):
        route |= {"group_wait": "1s", "group_interval": "1s"}
    with running_alertmanager(
        binary, folder, yaml.safe_dump(document), "--web.external-url=https://alerts.example", "--web.route-prefix=/"
    ) as address:
        yield f"http://{address}"
    assert b"level=error" not in (folder / "alertmanager.log").read_bytes()


def chatting(folder: Path, chat: Chat, **said: Any) -> Options:
    """Options by which every receiver is a chat of ours; a receiver's secret is its address there."""
    receivers = {name: {"kind": "slack", "channel": f"#{name}"} for name in RECEIVERS.values()}
    places = {"secrets": str(folder / "secrets"), "templates": str(folder / "templates")}
    table = {"receivers": receivers, "grafana": "https://grafana.example", **places, **said}
    options = make_options({"runbooks": "https://books.example", "alerts": table}, origin="options.toml")
    (folder / "secrets").mkdir()
    for name, receiver in options.receivers.items():
        url = f"{chat.url}/{name}"
        (folder / "secrets" / receiver.secret).write_text(url, encoding="utf-8")
    return options


DEPLOYMENT = {
    "model_name": "llama 70b", "deployment_id": "chat-v2", "inference_stack": "v2", "environment": "live",
}  # fmt: skip


def send(url: str, options: Options, name: str, **what: Any) -> None:
    """Send Alertmanager an alert as `post` does, with the arguments of `alerts_of`."""
    post(url, alerts_of(options, name, **what))


def post(url: str, alerts: Sequence[Mapping[str, Any]]) -> None:
    """Send Alertmanager alerts as Prometheus does, their templates rendered."""
    headers = {"Content-Type": "application/json"}
    with urlopen(
        Request(f"{url}/api/v2/alerts", json.dumps(alerts).encode(), headers), timeout=deadline_seconds()
    ) as answer:
        assert answer.status == 200


def alerts_of(
    options: Options,
    name: str,
    *,
    over: bool = False,
    began: datetime = _STARTED,
    replicas: Sequence[str] = ("r0",),
    value: float = 2.0,
    **labels: str,
) -> list[dict[str, Any]]:
    """An alert of a value, of each replica if it has replicas, with these labels in place of the deployment's.

    Where it `began` long ago, Alertmanager waits for no other alert of the same message.
    """
    return [
        _alert(options, name, over=over, began=began, value=value, labels={**labels, "replica": replica})
        for replica in replicas
    ]


def _alert(
    options: Options, name: str, *, over: bool, began: datetime, value: float, labels: Mapping[str, str]
) -> dict[str, Any]:
    alert = ALERTS[name]
    every = {"cause": next(iter(causes_of(alert)), ""), **DEPLOYMENT, **labels}
    known = {key: text for key, text in every.items() if key in labels_of(alert.condition)}
    # Rendered as Prometheus does: tests/collector/paging/test_annotations.py.
    annotations = annotate(
        alert, known, value, Links(options.common.runbooks, options.grafana), listed=["requests_total"]
    )
    annotations |= {key: labels.get(key, "") for key in also_firing(alert, options)}
    ends = {"endsAt": (_STARTED + timedelta(minutes=20)).isoformat()} if over else {}
    return {
        "labels": {"alertname": name, **alert.labels, **known},
        "annotations": annotations,
        "startsAt": began.isoformat(),
        **ends,
    }


def test_a_notification_says_what_to_know_and_where_to_go(alertmanager: Path, tmp_path: Path, chat: Chat) -> None:
    """The headline, a line for each alert, the runbook, the dashboard, and a silence of what they have in common."""
    options = chatting(tmp_path, chat)
    dashboard = "https://grafana.example/d/" + render(
        dashboard_path(ALERTS["ServescopeUpButNotServing"]), {**DEPLOYMENT, "replica": "r0", "cause": "hung"}, 2.0
    )

    with alerting(alertmanager, tmp_path, options) as url:
        began = datetime.now(UTC)
        send(url, options, "ServescopeUpButNotServing", began=began, replicas=("r0", "r1"))
        ((receiver, post),) = chat.wait_for(1)
    (shown,) = post["attachments"]
    headline = "chat-v2: 2 requests hang, no token +1 more (critical, live, replica r0)"

    assert (receiver, post["channel"]) == ("page", "#page")
    assert (shown["title"], shown["fallback"]) == (headline, headline)
    assert shown["title_link"] == "https://books.example/ServescopeUpButNotServing.md"
    assert shown["text"].splitlines() == [
        *(
            f"- since {began:%Y-%m-%d %H:%M:%S} UTC: Replica {replica} of chat-v2 (llama 70b, v2) has 2 requests in "
            "flight and processes no tokens."
            for replica in ("r0", "r1")
        ),
        "Runbook: https://books.example/ServescopeUpButNotServing.md",
        f"Dashboard: {dashboard}",
        "Silence: https://alerts.example/#/silences/new?filter=%7B"
        "alertname%3D%22ServescopeUpButNotServing%22%2C%20cause%3D%22hung%22%2C%20component%3D%22engine%22%2C%20"
        "deployment_id%3D%22chat-v2%22%2C%20environment%3D%22live%22%2C%20family%3D%22serving%22%2C%20"
        "inference_stack%3D%22v2%22%2C%20"
        "model_name%3D%22llama%2070b%22%2C%20severity%3D%22critical%22%2C%20team%3D%22serving%22%7D",
    ]


def test_a_notification_says_what_is_over(alertmanager: Path, tmp_path: Path, chat: Chat) -> None:
    """The headline reports it, and the line since when."""
    options = chatting(tmp_path, chat)

    with alerting(alertmanager, tmp_path, options) as url:
        send(url, options, "ServescopeReplicasFailed", status="failed")
        chat.wait_for(1)
        send(url, options, "ServescopeReplicasFailed", status="failed", over=True)
        (receiver, post), _ = chat.wait_for(2)
    (shown,) = post["attachments"]

    assert receiver == "ticket"
    assert shown["title"] == "RESOLVED chat-v2: 2 replicas failed (warning, live)"
    assert shown["text"].splitlines()[0] == (
        "- resolved at 2026-11-20 08:50:00 UTC: Number of failed replicas of chat-v2 (llama 70b, v2), now or "
        "repeatedly within the last 30 minutes: 2, more than 4 % of all."
    )


def is_over(attachment: Mapping[str, str]) -> bool:
    """Whether a chat's message says that its alerts are over."""
    return attachment["title"].startswith("RESOLVED ")


def test_the_end_of_a_page_announces_the_ticket(alertmanager: Path, tmp_path: Path, chat: Chat) -> None:
    """The slow burn that the page muted outlasts it: who was woken knows of the ticket before it comes."""
    options = chatting(tmp_path, chat)
    fast, slow = "ServescopeRequestsBudgetBurnsFast", "ServescopeRequestsBudgetBurns"

    with alerting(alertmanager, tmp_path, options) as url:
        send(url, options, fast, also_firing=slow)
        chat.wait_for(1)
        send(url, options, slow)
        send(url, options, fast, over=True, also_firing=slow)
        posts = chat.wait_for(3)
    shown = [(receiver, post["attachments"][0]) for receiver, post in posts]
    texts = {receiver: each["text"] for receiver, each in shown if (receiver == "page") is is_over(each)}

    assert texts.keys() == {"page", "ticket"}
    assert f"Beside it at its end: {slow}. A ticket is opened for what lasts.\n" in texts["page"]
    assert "at its end" not in texts["ticket"]


def test_one_incident_is_one_message(alertmanager: Path, tmp_path: Path, chat: Chat) -> None:
    """The pages of a deployment, all its replicas, and what else fires there; another deployment's are another."""
    options = chatting(tmp_path, chat)
    frozen, failing = "ServescopeUpButNotServing", "ServescopeRequestsBudgetBurnsFast"
    causes = "ServescopeReplicasFailed, ServescopeTargetDown (pending)"
    now = datetime.now(UTC)

    with alerting(alertmanager, tmp_path, options) as url:
        post(
            url,
            [
                *alerts_of(options, frozen, began=now, replicas=("r0", "r1")),
                *alerts_of(options, failing, began=now, value=0.9712, also_firing=causes),
                *alerts_of(options, "ServescopeReplicasFailed", status="failed"),
                *alerts_of(options, "ServescopeDeploymentDown", deployment_id="code-v2"),
                *alerts_of(options, "ServescopeCollectorGone"),
            ],
        )
        send(url, options, "ServescopeCollectorDown", began=now, instance="c:9400", job="servescope")
        posts = [(receiver, sent["attachments"][0]) for receiver, sent in chat.wait_for(4)]

    assert sorted((receiver, shown["title"]) for receiver, shown in posts) == [
        ("page", "chat-v2: 97 % of requests fail +2 more (critical, live)"),
        ("page", "code-v2: no engine answers (critical, live)"),
        ("page", "servescope: no collector is running (critical)"),
        ("ticket", "chat-v2: 2 replicas failed (warning, live)"),
    ]
    (shown,) = (shown for _, shown in posts if "+2 more" in shown["title"])
    assert shown["title_link"].endswith(f"/{failing}.md")
    assert [line.partition(":")[0] for line in shown["text"].splitlines()] == [
        f"- since {now:%Y-%m-%d %H}", "Runbook", "Dashboard", *[f"- since {now:%Y-%m-%d %H}"] * 2, "Runbook",
        "Dashboard",
        "Also firing", "Silence",
    ]  # fmt: skip
    assert f"Also firing: {causes}\n" in shown["text"]
    assert "r0 of chat-v2" in shown["text"]
    assert "r1 of chat-v2" in shown["text"]


def test_a_regression_that_the_judge_proves_is_in_the_message_of_its_symptoms(
    alertmanager: Path, tmp_path: Path, chat: Chat
) -> None:
    """One page of the judge's verdict and of the budget that burns on v2, and no ticket that compares the stacks."""
    options = chatting(tmp_path, chat)
    now = datetime.now(UTC)

    with alerting(alertmanager, tmp_path, options) as url:
        post(
            url,
            [
                *alerts_of(options, "ServescopeCutoverDegraded", began=now, plan="chat", verdict="DEGRADED"),
                *alerts_of(options, "ServescopeRequestsBudgetBurnsFast", began=now, value=1.0),
                *alerts_of(options, "ServescopeNewStackWorse", began=now),
            ],
        )
        chat.wait_for(1)
        send(url, options, "ServescopeJudgeGone", cause="gone", plan="chat")
        posts = {receiver: sent["attachments"][0]["title"] for receiver, sent in chat.wait_for(2)}

    assert posts == {
        "page": "chat-v2: 100 % of requests fail +1 more (critical, live)",
        "ticket": "chat-v2: judge of cutover is gone (warning, live)",
    }


@pytest.mark.parametrize("name", ALERTS)
def test_the_first_sixty_characters_say_what_is_wrong_and_where(amtool: Path, tmp_path: Path, name: str) -> None:
    """Also of a name of 40 characters, while three others fire there; all of it, with the rest, follows."""
    alert = ALERTS[name]
    long, short = "llama-3-3-70b-instruct-fp8-eu-west-1-aaa", "llama-3-3-…-west-1-aaa"
    places = dict.fromkeys(("deployment_id", "model_name", "plan", "customer", "instance"), long)
    value = 0.99 if "humanizePercentage" in alert.headline else 123.0
    shown = _alert(Options(), name, over=False, began=_STARTED, value=value, labels={**places, "replica": "r0"})
    named = [label for label in places if label in shown["labels"]]
    own, lists = shown["annotations"]["headline"], alert.lists is not None
    where = short if named else "servescope"

    title = headline_of(amtool, tmp_path, [shown] * 4)
    over = headline_of(amtool, tmp_path, [{**shown, "status": "resolved"}])

    assert len(own) <= MOST_CHARACTERS or lists
    assert not {"{", "[", "."} & set(own)
    assert title[:60].startswith(f"{where}: {own}{' +3 more' if not lists else ''}")
    assert over[:60].startswith(f"RESOLVED {where}: {own}")
    assert title.endswith(f", {long})") is bool(named)
    assert f"({alert.severity}" in title


def headline_of(amtool: Path, folder: Path, alerts: Sequence[Mapping[str, Any]]) -> str:
    """The headline of a message of these alerts, firing ones unless they say otherwise."""
    (folder / "servescope.tmpl").write_text(render_templates(), encoding="utf-8")
    data = {"alerts": [{"status": "firing", **alert} for alert in alerts]}
    (folder / "data.json").write_text(json.dumps(data), encoding="utf-8")
    command = [
        str(amtool), "template", "render", f"--template.glob={folder}/*.tmpl", f"--template.text={HEADLINE}",
        f"--template.data={folder / 'data.json'}",
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_message_of_many_replicas_stays_readable(alertmanager: Path, tmp_path: Path, chat: Chat) -> None:
    """Twenty lines, and how many more there are."""
    options = chatting(tmp_path, chat)

    with alerting(alertmanager, tmp_path, options) as url:
        replicas = [f"r{number}" for number in range(64)]
        send(url, options, "ServescopeUpButNotServing", began=datetime.now(UTC), replicas=replicas)
        ((_, post),) = chat.wait_for(1)
    lines = post["attachments"][0]["text"].splitlines()

    assert post["attachments"][0]["title"].startswith("chat-v2: 2 requests hang, no token +63 more (")
    assert [line[:10] for line in lines[:20]] == ["- since 20"] * 20
    assert [line.partition(":")[0] for line in lines[20:]] == ["Runbook", "Dashboard", "… and 44 more", "Silence"]


def test_a_page_lists_what_else_fires_there(both_promtools: Path, tmp_path: Path) -> None:
    """Causes that have tickets, what it mutes, and what is of the whole model; not another deployment's."""
    page = ALERTS["ServescopeRequestsBudgetBurnsFast"]
    here = {"model_name": "m", "environment": "e", "inference_stack": "v2", "deployment_id": 'd"1.0'}
    beside = {
        "ServescopeCause": here,
        "ServescopeElsewhere": {**here, "deployment_id": "d"},
        "ServescopeInStaging": {**here, "environment": "staging"},
        "ServescopeOfModel": {"model_name": "m", "environment": "e"},
        "SomebodyElses": here,
    }
    rules = [
        {"alert": name, "expr": f"{name} > 0", "labels": {"severity": "warning"}} for name in beside
    ] + [
        {"alert": "ServescopeToCome", "expr": "ServescopeCause > 0", "for": "1h"},
        {**alert_rule(page), "expr": "burns > 0", "for": "0s"},
    ]  # fmt: skip
    series = [
        {
            "series": f"{name}{{{','.join(f'{key}={json.dumps(text)}' for key, text in labels.items())}}}",
            "values": "1x9",
        }
        for name, labels in {**beside, "burns": here}.items()
    ]
    listed = "ServescopeCause, ServescopeOfModel, ServescopeToCome (pending)"
    annotations = {**firing(page, here, 1.0)["exp_annotations"], "also_firing": listed}
    test = {
        "name": "a page", "interval": "1m", "input_series": series,
        "alert_rule_test": [{
            "eval_time": "5m", "alertname": page.name,
            "exp_alerts": [{"exp_labels": {**here, **page.labels}, "exp_annotations": annotations}],
        }],
    }  # fmt: skip
    suite = Suite([test], [{"name": "beside", "rules": rules}])

    assert failures(both_promtools, tmp_path, {"page": suite}) == {}


def test_a_ticket_names_the_metrics_that_are_missing(both_promtools: Path, tmp_path: Path) -> None:
    """Of its target alone; where nothing lists them, it says that there are such."""
    alert = ALERTS["ServescopeMetricsMissing"]
    known, unknown = {**TARGET, "replica": "r0"}, {**TARGET, "replica": "r1"}
    lacking = [{**known, "metric": metric} for metric in ("requests_total", "queued_requests")]
    series = {"servescope_target_missing_metrics": [known, unknown], "servescope_target_lacks": lacking}

    def named(target: Mapping[str, str], names: str) -> dict[str, Any]:
        expected = firing(alert, target, 1.0)
        for key in ("headline", "description"):
            expected["exp_annotations"][key] = expected["exp_annotations"][key].replace("metrics", names, 1)
        return expected

    listed = named(known, "queued_requests, requests_total")
    test = {
        "name": "a ticket", "interval": "1m",
        "input_series": [
            {"series": _series(name, labels), "values": "1x15"} for name, each in series.items() for labels in each
        ],
        "alert_rule_test": [
            {"eval_time": "12m", "alertname": alert.name, "exp_alerts": [listed, firing(alert, unknown, 1.0)]}
        ],
    }  # fmt: skip

    assert listed["exp_annotations"]["headline"] == "lacks queued_requests, requests_total"
    assert failures(both_promtools, tmp_path, {"ticket": Suite([test], alert_groups([alert]))}) == {}


def test_a_page_goes_out_in_a_migration_window_and_an_expected_ticket_does_not(
    alertmanager: Path, tmp_path: Path, chat: Chat
) -> None:
    """Of what is being promoted, warnings wait; its pages, what compares it, and everything else do not."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    window = {"from": now - timedelta(hours=1), "until": now + timedelta(hours=1)}
    options = chatting(tmp_path, chat, migration_windows=[window])

    with alerting(alertmanager, tmp_path, options) as url:
        for deployment, phase in (("moving", "promoting"), ("staying", "stable")):
            send(url, options, "ServescopeQueueGrowing", deployment_id=deployment, rollout_phase=phase)
        send(url, options, "ServescopeUpButNotServing", deployment_id="moving", rollout_phase="promoting")
        # What compares the stacks is about the migration itself.
        send(url, options, "ServescopeNewStackWorse", cause="errors", deployment_id="new", rollout_phase="promoting")
        chat.wait_for(3)
        # Sent when this one is notified of, what waits would have been too.
        send(url, options, "ServescopeQueueGrowing", deployment_id="later", rollout_phase="stable")
        titles = [(receiver, post["attachments"][0]["title"]) for receiver, post in chat.wait_for(4)]

    assert sorted(titles) == [
        ("page", "moving: 2 requests hang, no token (critical, live, replica r0)"),
        ("ticket", "later: queue of 2 grows (warning, live)"),
        ("ticket", "new: more errors than before (warning, live)"),
        ("ticket", "staying: queue of 2 grows (warning, live)"),
    ]


def test_outside_of_a_migration_window_the_ticket_goes_out(alertmanager: Path, tmp_path: Path, chat: Chat) -> None:
    """A window that is over, and one to come, wait for nothing."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    hour = timedelta(hours=1)
    windows = [{"from": now - 3 * hour, "until": now - hour}, {"from": now + hour, "until": now + 3 * hour}]
    options = chatting(tmp_path, chat, migration_windows=windows)

    with alerting(alertmanager, tmp_path, options) as url:
        send(url, options, "ServescopeQueueGrowing", rollout_phase="promoting")
        ((receiver, _),) = chat.wait_for(1)

    assert receiver == "ticket"
