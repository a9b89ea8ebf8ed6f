"""The collector with a real Alertmanager: kills of the collector cause no second notification and lose no end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.support.answering import Handler, answering
from tests.support.prometheus import free_port
from tests.support.waiting import deadline_seconds, wait_for

pytestmark = pytest.mark.proof
NAME = "ServescopeReplicasFailed"
_CONFIGURATION = """
[collector]
listen = "127.0.0.1:{port}"
scrape_interval = "500ms"
scrape_timeout = "500ms"
evaluation_interval = "500ms"
[[deployments]]
deployment_id = "chat"
model_name = "llama"
inference_stack = "v1"
[[deployments.targets]]
url = "http://127.0.0.1:{target}/metrics"
[alerting]
# An alert is then valid for longer than a restart takes on a busy machine.
resend_interval = "15s"
[[alerting.alertmanagers]]
url = "http://127.0.0.1:{alertmanager}"
"""
_ROUTES = """
route:
  receiver: loopback
  group_by: [alertname]
  group_wait: 0s
  group_interval: 500ms
  repeat_interval: 1h
receivers:
  - name: loopback
    webhook_configs:
      - url: http://127.0.0.1:{port}/
        send_resolved: true
"""
# The alerts as they are but for their minutes, which are seconds here.
_COLLECT = """
import dataclasses, sys
from servescope.alerting import alerts
seconds = lambda duration: duration.replace("m", "s")
make_alerts = alerts.make_alerts
alerts.make_alerts = lambda *chosen: {
    name: dataclasses.replace(each, for_=seconds(each.for_), keep_firing_for=seconds(each.keep_firing_for))
    for name, each in make_alerts(*chosen).items()
}
from servescope.cli import main
sys.exit(main(["collect", "--config", sys.argv[1]]))
"""


# More than twice as many as there are groups: each query of its log is the flush of one.
FLUSHES = 12


class Loopback:
    """A target with failed replicas, and a receiver that records its notifications, on one free port."""

    def __init__(self) -> None:
        self.failed = 0
        self.port = 0
        self.notifications: list[dict[str, Any]] = []

    def answer(self, request: Handler) -> None:
        """Take a notification, or answer a scrape."""
        if request.command == "POST":
            self.notifications.append(json.loads(request.body))
            request.reply(200, "")
        else:
            request.reply(
                200,
                'replica_count_by_status{deployment_id="x",status="active"} 1\n'
                f'replica_count_by_status{{deployment_id="x",status="failed"}} {self.failed}\n',
            )

    def statuses(self) -> list[str]:
        """The statuses of the alert's notifications, in order."""
        return [each["status"] for each in self.notifications if each["groupLabels"]["alertname"] == NAME]


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    """Target and receiver."""
    found = Loopback()
    with answering(found.answer) as url:
        found.port = int(url.rpartition(":")[2])
        yield found


@contextmanager
def ended(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ) as process:
        try:
            yield process
        finally:
            process.kill()


def fetch(port: int, path: str) -> Any:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=deadline_seconds()) as answer:
            return json.loads(answer.read())
    except (URLError, OSError):
        return None


def flushes(port: int) -> float:
    """How often Alertmanager flushed a group of alerts: it then sends what has not been sent."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=deadline_seconds()) as answer:
        (found,) = re.findall(rb"^alertmanager_nflog_queries_total (\S+)", answer.read(), re.MULTILINE)
    return float(found)


def wait_for_flushes(port: int) -> None:
    """Until each group has been flushed, whichever they are: a notification that is due has been sent by then."""
    before = flushes(port)
    wait_for(lambda: flushes(port) >= before + FLUSHES, "flushes of Alertmanager's groups")


def test_a_kill_notifies_nobody_twice_and_loses_no_end(alertmanager: Path, tmp_path: Path, loopback: Loopback) -> None:
    """One notification for the firing alert over two kills, and one for its end, which was during the second."""
    port, own = free_port(), free_port()
    (tmp_path / "alertmanager.yml").write_text(_ROUTES.format(port=loopback.port))
    (tmp_path / "servescope.toml").write_text(_CONFIGURATION.format(port=own, target=loopback.port, alertmanager=port))
    alerting = [
        str(alertmanager), f"--config.file={tmp_path / 'alertmanager.yml'}", f"--storage.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=", "--log.level=error",
    ]  # fmt: skip
    collect = [sys.executable, "-c", _COLLECT, str(tmp_path / "servescope.toml")]

    def evaluated() -> bool:
        return (fetch(own, "/api/v1/alerts") or {}).get("evaluated_ms") is not None

    def updated() -> str:
        alerts = [each for each in fetch(port, "/api/v2/alerts") if each["labels"]["alertname"] == NAME]
        return max((each["updatedAt"] for each in alerts), default="")

    loopback.failed = 2
    with ended(alerting):
        wait_for(lambda: fetch(port, "/api/v2/status"), "Alertmanager")
        with ended(collect) as collector:
            wait_for(lambda: loopback.statuses() == ["firing"], "the notification that it fires")
            (known,) = [each for each in fetch(port, "/api/v2/alerts") if each["labels"]["alertname"] == NAME]
            collector.send_signal(signal.SIGKILL)
        with ended(collect) as collector:
            wait_for(evaluated, "an evaluation after the restart")
            # Sent again, so that Alertmanager would notify again if it took it for another alert.
            wait_for(lambda: updated() > known["updatedAt"], "the alert in Alertmanager after the restart")
            wait_for_flushes(port)
            (again,) = [each for each in fetch(port, "/api/v2/alerts") if each["labels"]["alertname"] == NAME]
            assert (again["fingerprint"], again["startsAt"]) == (known["fingerprint"], known["startsAt"])
            assert loopback.statuses() == ["firing"]
            collector.send_signal(signal.SIGKILL)
        loopback.failed = 0
        with ended(collect):
            wait_for(lambda: "resolved" in loopback.statuses(), "the notification that it resolved")
            wait_for_flushes(port)

    assert loopback.statuses() == ["firing", "resolved"]
