"""What people read: the notifications of a real Alertmanager with our templates, as a chat's webhook gets them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from alerts.alertmanager import configuration
from alerts.options import Options, make_options
from alerts.receivers import RECEIVERS
from alerts.rules import annotations_of
from alerts.templates import render_templates
from servescope.alerting.alerts import ALERTS
from servescope.alerting.records import labels_of
from tests.support.alertmanager import running_alertmanager
from tests.support.waiting import deadline_seconds, wait_for

pytestmark = pytest.mark.slow
_STARTED = datetime(2026, 11, 20, 8, 30, tzinfo=UTC)
_MOST_BYTES = 1_000_000


class Chat(ThreadingHTTPServer):
    """Chats on loopback, which keep what was posted to each by the last part of its address."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posted: list[tuple[str, dict[str, Any]]] = []

    def wait_for(self, count: int) -> list[tuple[str, dict[str, Any]]]:
        """What was posted, once it is so much."""
        wait_for(lambda: len(self.posted) >= count, f"{count} notifications")
        return sorted(self.posted, key=lambda post: (post[0], json.dumps(post[1])))


class _Handler(BaseHTTPRequestHandler):
    server: Chat

    def do_POST(self) -> None:
        body = self.rfile.read(min(int(self.headers["Content-Length"]), _MOST_BYTES))
        self.server.posted.append((self.path.removeprefix("/"), json.loads(body)))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def chat() -> Iterator[Chat]:
    server = Chat()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


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
    links = {"runbooks": "https://books.example", "grafana": "https://grafana.example"}
    places = {"secrets": str(folder / "secrets"), "templates": str(folder / "templates")}
    options = make_options({"alerts": {"receivers": receivers, **links, **places, **said}}, origin="options.toml")
    (folder / "secrets").mkdir()
    for name, receiver in options.receivers.items():
        url = f"http://127.0.0.1:{chat.server_address[1]}/{name}"
        (folder / "secrets" / receiver.secret).write_text(url, encoding="utf-8")
    return options


DEPLOYMENT = {
    "model_name": "llama 70b", "deployment_id": "chat-v2", "inference_stack": "v2", "environment": "live",
}  # fmt: skip


def send(
    url: str, options: Options, name: str, *, over: bool = False, replicas: Sequence[str] = ("r0",), **labels: str
) -> None:
    """Send Alertmanager an alert, of each replica if it has replicas, as Prometheus does, its templates rendered."""
    body = [_alert(options, name, over=over, labels={**labels, "replica": replica}) for replica in replicas]
    headers = {"Content-Type": "application/json"}
    with urlopen(
        Request(f"{url}/api/v2/alerts", json.dumps(body).encode(), headers), timeout=deadline_seconds()
    ) as answer:
        assert answer.status == 200


def _alert(options: Options, name: str, *, over: bool, labels: Mapping[str, str]) -> dict[str, Any]:
    alert = ALERTS[name]
    known = {key: value for key, value in {**DEPLOYMENT, **labels}.items() if key in labels_of(alert.condition)}
    annotations = {key: _filled(text, known) for key, text in annotations_of(alert, options).items()}
    ends = {"endsAt": (_STARTED + timedelta(minutes=20)).isoformat()} if over else {}
    every = {"alertname": name, **alert.labels, **known}
    return {"labels": every, "annotations": annotations, "startsAt": _STARTED.isoformat(), **ends}


def _filled(text: str, labels: Mapping[str, str]) -> str:
    for name, value in labels.items():
        text = text.replace(f"{{{{ $labels.{name} }}}}", value).replace(f"{{{{ $labels.{name} | urlquery }}}}", value)
    return text.replace("{{ $value | humanize }}", "2")


def test_a_notification_says_what_to_know_and_where_to_go(alertmanager: Path, tmp_path: Path, chat: Chat) -> None:
    """The headline, a line for each alert, the runbook, the dashboard, and a silence of what they have in common."""
    options = chatting(tmp_path, chat)
    dashboard = _filled(annotations_of(ALERTS["ServescopeUpButNotServing"], options)["dashboard_url"], DEPLOYMENT)

    with alerting(alertmanager, tmp_path, options) as url:
        send(url, options, "ServescopeUpButNotServing", replicas=("r0", "r1"))
        ((receiver, post),) = chat.wait_for(1)
    (shown,) = post["attachments"]
    headline = "[FIRING 2] critical: A replica accepts requests but processes no tokens. chat-v2 (live)"

    assert (receiver, post["channel"]) == ("page", "#page")
    assert (shown["title"], shown["fallback"]) == (headline, headline)
    assert shown["title_link"] == "https://books.example/ServescopeUpButNotServing.md"
    assert shown["text"].splitlines() == [
        *(
            f"- since 2026-11-20 08:30:00 UTC: Replica {replica} of chat-v2 (llama 70b, v2) has 2 requests in flight "
            "and processes no tokens."
            for replica in ("r0", "r1")
        ),
        "Runbook: https://books.example/ServescopeUpButNotServing.md",
        f"Dashboard: {dashboard.replace('{{ $labels.replica | urlquery }}', 'r0')}",
        "Silence: https://alerts.example/#/silences/new?filter=%7B"
        "alertname%3D%22ServescopeUpButNotServing%22%2C%20component%3D%22engine%22%2C%20deployment_id%3D%22chat-v2%22"
        "%2C%20environment%3D%22live%22%2C%20family%3D%22serving%22%2C%20inference_stack%3D%22v2%22%2C%20"
        "model_name%3D%22llama%2070b%22%2C%20severity%3D%22critical%22%2C%20team%3D%22serving%22%7D",
    ]


def test_a_notification_says_what_is_over(alertmanager: Path, tmp_path: Path, chat: Chat) -> None:
    """The headline reports it, and the line since when."""
    options = chatting(tmp_path, chat)

    with alerting(alertmanager, tmp_path, options) as url:
        send(url, options, "ServescopeReplicasFailed", status="failed")
        chat.wait_for(1)
        send(url, options, "ServescopeReplicasFailed", status="failed", over=True)
        (_, _), (receiver, post) = chat.wait_for(2)
    (shown,) = post["attachments"]

    assert receiver == "ticket"
    assert shown["title"] == "[RESOLVED] warning: Replicas have failed. chat-v2 (live)"
    assert shown["text"].splitlines()[0] == (
        "- resolved at 2026-11-20 08:50:00 UTC: Number of failed replicas of chat-v2 (llama 70b, v2): 2."
    )


def test_a_page_goes_out_in_a_migration_window_and_an_expected_ticket_does_not(
    alertmanager: Path, tmp_path: Path, chat: Chat
) -> None:
    """Of what is being promoted, warnings wait; its pages, and warnings of everything else, do not."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    window = {"from": now - timedelta(hours=1), "until": now + timedelta(hours=1)}
    options = chatting(tmp_path, chat, migration_windows=[window])

    with alerting(alertmanager, tmp_path, options) as url:
        for deployment, phase in (("moving", "promoting"), ("staying", "stable")):
            send(url, options, "ServescopeQueueGrowing", deployment_id=deployment, rollout_phase=phase)
        send(url, options, "ServescopeRequestsBudgetBurnsFast", deployment_id="moving", rollout_phase="promoting")
        chat.wait_for(2)
        # Sent when this one is notified of, what waits would have been too.
        send(url, options, "ServescopeQueueGrowing", deployment_id="later", rollout_phase="stable")
        titles = [(receiver, post["attachments"][0]["title"]) for receiver, post in chat.wait_for(3)]

    assert titles == [
        ("page", "[FIRING 1] critical: Requests: the error budget is burning fast. moving (live)"),
        ("ticket", "[FIRING 1] warning: Requests arrive faster than they are served. later (live)"),
        ("ticket", "[FIRING 1] warning: Requests arrive faster than they are served. staying (live)"),
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
