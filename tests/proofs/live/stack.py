"""A running stack: emulated deployments, the collector, a real Prometheus, a real Alertmanager and its receivers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

import yaml

from alerts.alertmanager import MIGRATION_WINDOW, RECEIVERS, SECRETS
from alerts.receivers import TEMPLATES_FOLDER, Receiver
from servescope.contract.own_metrics import JUDGE_JOB
from servescope.emulator.server.control_client import ControlClient
from servescope.errors import ServescopeError
from tests.proofs.live.compression import compress_alertmanager, compress_rules, milliseconds
from tests.proofs.live.customers import Backend, customer_targets, receiving, write_customers
from tests.proofs.live.deployments import Emulated
from tests.proofs.live.exporter import Exporter, exporting
from tests.proofs.live.frontend import Frontend, frontends
from tests.proofs.live.receivers import Receivers, listening
from tests.support.prometheus import Prometheus, free_port

ROOT: Final = Path(__file__).parents[3]
GENERATED: Final = ROOT / "alerts" / "generated"
SCRAPE_INTERVAL, EVALUATION_INTERVAL = "1m", "1m"
"""Of the collector and of Prometheus, and of its rules, before they are divided; slower than they would usually be, so
that a machine of two cores keeps up."""
_WINDOW, _RESEND, _LOOKBACK = "5m", "1m", "5m"
_HELD_SERIES = 2_000
"""Few, so that a target that shows new series all the time is soon at the limit."""
_START_SECONDS, _END_SECONDS = 300.0, 20.0


@dataclass(slots=True)
class Program:
    """A program of the stack: its command, and the process that runs it, None while it does not.

    It is ready when `ready_url` answers.
    """

    name: str
    command: Sequence[str]
    folder: Path
    ready_url: str
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run it in its folder; what it says goes to a log there."""
        path = os.pathsep.join([str(ROOT / "exporters"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": path}
            )

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self.process is None:
            raise ServescopeError(f"{self.name} does not run")
        self.process.send_signal(number)

    def end(self) -> None:
        """End it and wait until it has ended; without effect when it does not run."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def start_again(self) -> None:
        """End it, which one that was killed needs as well, start it and wait until it is ready."""
        self.end()
        self.start()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until it is ready; raises ServescopeError when it ends, or does not within minutes."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                with urlopen(self.ready_url, timeout=5):
                    return
            except (URLError, OSError):
                pass
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                said = (self.folder / f"{self.name}.log").read_text(encoding="utf-8", errors="replace")[-2000:]
                raise ServescopeError(f"{self.name} did not start: {said}")
            time.sleep(0.1)


@dataclass
class LiveStack:
    """The running parts, and how to reach them; durations of rules and programs are divided by `times`."""

    folder: Path
    times: int
    emulators: Mapping[str, ControlClient]
    collector: Program
    collector_url: str
    alertmanager: Program
    alertmanager_url: str
    server: Program
    prometheus: Prometheus
    receivers: Receivers
    exporter: Exporter
    frontends: Mapping[str, Frontend]
    export: Program
    backend: Backend
    judges: dict[str, Program] = field(default_factory=dict)

    def end_judges(self) -> None:
        """End those judges of cutovers that were started."""
        for judge in self.judges.values():
            judge.end()

    def seconds(self, duration: str) -> float:
        """How long a duration of the emulated stack lasts on the wall clock."""
        return milliseconds(duration) / 1000 / self.times

    def firing(self) -> list[dict[str, Any]]:
        """Prometheus' alerts, pending ones too, each with `labels` and `state`."""
        alerts: list[dict[str, Any]] = self.prometheus.answer("/api/v1/alerts")["data"]["alerts"]
        return alerts

    def received(self) -> list[dict[str, Any]]:
        """Alertmanager's alerts, each with `labels` and `status`, with the inhibiting alerts in `inhibitedBy`."""
        with urlopen(f"{self.alertmanager_url}/api/v2/alerts", timeout=20) as answer:
            alerts: list[dict[str, Any]] = json.load(answer)
        return alerts


@contextmanager
def live_stack(
    folder: Path,
    *,
    times: int,
    prometheus: Path,
    alertmanager: Path,
    emulated: Mapping[str, Emulated],
    listed_by_hand: Sequence[str] = (),
    faces: Sequence[str] = (),
) -> Iterator[LiveStack]:
    """The stack of these emulators, every part running and every target scraped.

    `faces` are `DEPLOYMENT=NAME`, each the program in whose names a deployment is shown, in place of our own.
    The targets of the deployments `listed_by_hand` are listed in `lists/` of the folder, which nobody changes but the
    caller; those of the others the emulator lists.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as open_parts:
        exporter = open_parts.enter_context(exporting())
        served = open_parts.enter_context(frontends(times))
        customers, backend = open_parts.enter_context(customer_targets()), open_parts.enter_context(receiving())
        emulators = _start_emulators(folder, times, emulated, faces, open_parts)
        _write_collector_configuration(
            folder, times, emulated, listed_by_hand, (exporter, *served.values(), *customers)
        )
        collector, collector_url = _collector(folder)
        export, export_url = _export(folder, backend)
        tokens = {name: f"token-of-{name}" for name in RECEIVERS.values()}
        receivers = open_parts.enter_context(listening(tokens))
        manager, manager_url = make_alertmanager(folder, times, alertmanager, receivers)
        scraped = {"servescope": collector_url, "servescope-customers": export_url}
        server, port = _prometheus(folder, times, prometheus, scraped, manager_url)
        for program in (collector, export, manager, server):
            program.start()
            open_parts.callback(program.end)
            program.wait_until_ready()
        stack = LiveStack(
            folder, times, emulators, collector, collector_url, manager, manager_url, server, Prometheus(port),
            receivers, exporter, served, export, backend,
        )  # fmt: skip
        open_parts.callback(stack.end_judges)
        yield stack


def _divided(duration: str, times: int) -> str:
    return f"{milliseconds(duration) // times}ms"


def _start_emulators(
    folder: Path, times: int, emulated: Mapping[str, Emulated], faces: Sequence[str], open_parts: ExitStack
) -> dict[str, ControlClient]:
    started: list[tuple[str, Program, str]] = []
    for name, scenario in emulated.items():
        path = folder / f"{name}.toml"
        path.write_text(scenario.scenario(), encoding="utf-8")
        port, deployments = free_port(), {each.name for each in scenario.deployments}
        own_faces = [f"--metrics={face}" for face in faces if face.partition("=")[0] in deployments]
        emulator = Program(
            f"emulator-{name}",
            [
                sys.executable, "-m", "servescope.cli", "emulate", "--scenario", str(path),
                "--speed-up", str(times), "--listen", f"127.0.0.1:{port}",
                "--directory", str(folder / "emulated" / name), *own_faces,
            ],
            folder,
            f"http://127.0.0.1:{port}/",
        )  # fmt: skip
        emulator.start()
        open_parts.callback(emulator.end)
        started.append((name, emulator, f"http://127.0.0.1:{port}"))
    for name, emulator, _ in started:
        emulator.wait_until_ready()
        deadline = time.monotonic() + _START_SECONDS
        # Written last: then the lists of targets are there.
        while not (folder / "emulated" / name / "servescope.toml").exists():
            if time.monotonic() > deadline:
                raise ServescopeError(f"emulator {name} has written no configuration")
            time.sleep(0.1)
    return {name: ControlClient(url) for name, _, url in started}


def _write_collector_configuration(
    folder: Path,
    times: int,
    emulated: Mapping[str, Emulated],
    listed_by_hand: Sequence[str],
    beside: Sequence[Exporter | Frontend],
) -> None:
    interval = _divided(SCRAPE_INTERVAL, times)
    lines = [
        "[collector]",
        'store = "servescope.db"',
        f'scrape_interval = "{interval}"',
        f'scrape_timeout = "{interval}"',
        # What rules read are the contract's series; the figures of its own are for the store.
        f'evaluation_interval = "{_divided(_WINDOW, times)}"',
        f'discovery_interval = "{interval}"',
        f'window = "{_divided(_WINDOW, times)}"',
        f"max_held_series = {_HELD_SERIES}",
    ]
    (folder / "lists").mkdir(exist_ok=True)
    for emulator, scenario in emulated.items():
        for deployed in scenario.deployments:
            listed = folder / "emulated" / emulator / "targets" / f"{deployed.name}.json"
            if deployed.name in listed_by_hand:
                by_hand = folder / "lists" / f"{deployed.name}.json"
                by_hand.write_bytes(listed.read_bytes())
                listed = by_hand
            lines += ["", "[[deployments]]", *_assigned(deployed.labels)]
            lines += ["[[deployments.file_sd]]", f"files = [{json.dumps(str(listed))}]"]
    for each in beside:
        lines += ["", "[[deployments]]", *_assigned(each.labels), "fixed_labels = true"]
        lines += ["[[deployments.targets]]", f'url = "{each.url}"']
    for (model_name, environment), shares in _pairs_of_stacks(emulated).items():
        lines += ["", "[[traffic_split]]", *_assigned({"model_name": model_name, "environment": environment})]
        lines += ["stacks = { " + ", ".join(f"{stack} = {share}" for stack, share in shares.items()) + " }"]
    (folder / "servescope.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _assigned(values: Mapping[str, str]) -> list[str]:
    return [f"{key} = {json.dumps(value)}" for key, value in values.items()]


def _pairs_of_stacks(emulated: Mapping[str, Emulated]) -> dict[tuple[str, str], dict[str, float]]:
    """By model and environment with deployments of several stacks: the share of each, as the emulator has it."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for scenario in emulated.values():
        for deployed in scenario.deployments if scenario.split_configured else ():
            labels = deployed.labels
            key = (labels["model_name"], labels["environment"])
            found.setdefault(key, {})[labels["inference_stack"]] = deployed.share
    return {
        key: {stack: share / sum(shares.values()) for stack, share in shares.items()}
        for key, shares in found.items()
        if len(shares) > 1
    }


def _collector(folder: Path) -> tuple[Program, str]:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "servescope.cli", "collect", "--config", str(folder / "servescope.toml")]
    program = Program("collector", [*command, "--listen", address], folder, f"http://{address}/-/ready")
    return program, f"http://{address}"


def _export(folder: Path, backend: Backend) -> tuple[Program, str]:
    address, pull_address = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    command = [
        sys.executable, "-m", "servescope.cli", "customers", "run",
        "--config", str(write_customers(folder, backend)), "--store", str(folder / "servescope.db"),
        "--listen", address, "--pull-listen", pull_address,
    ]  # fmt: skip
    return Program("customers", command, folder, f"http://{address}/healthz"), f"http://{address}"


def _prometheus(
    folder: Path, times: int, binary: Path, urls: Mapping[str, str], manager_url: str
) -> tuple[Program, int]:
    rules = folder / "rules"
    rules.mkdir(exist_ok=True)
    for path in GENERATED.glob("*.rules.yml"):
        document = compress_rules(yaml.safe_load(path.read_text(encoding="utf-8")), times)
        for group in document["groups"]:
            group["interval"] = _divided(EVALUATION_INTERVAL, times)
        (rules / path.name).write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    interval, port = _divided(SCRAPE_INTERVAL, times), free_port()
    scraped = {**urls, "prometheus": f"http://127.0.0.1:{port}", "alertmanager": manager_url}
    (folder / "judges").mkdir(exist_ok=True)
    configuration = {
        "global": {
            "scrape_interval": interval,
            "scrape_timeout": interval,
            "evaluation_interval": _divided(EVALUATION_INTERVAL, times),
        },
        "rule_files": [str(rules / "*.rules.yml")],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [_authority(manager_url)]}]}]},
        "scrape_configs": [
            *({"job_name": job, "static_configs": [{"targets": [_authority(url)]}]} for job, url in scraped.items()),
            {"job_name": JUDGE_JOB, "file_sd_configs": [{"files": [str(folder / "judges" / "*.json")]}]},
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration, sort_keys=False), encoding="utf-8")
    command = [
        str(binary), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        f"--query.lookback-delta={_divided(_LOOKBACK, times)}",
        f"--rules.alert.resend-delay={_divided(_RESEND, times)}",
    ]  # fmt: skip
    return Program("prometheus", command, folder, f"http://127.0.0.1:{port}/-/ready"), port


def make_alertmanager(folder: Path, times: int, binary: Path, receivers: Receivers) -> tuple[Program, str]:
    """An Alertmanager with our routes, its durations divided, which calls these receivers; and its URL."""
    secrets = folder / "secrets"
    secrets.mkdir(exist_ok=True)
    for name, token in receivers.tokens.items():
        (secrets / f"{name}_token").write_text(token, encoding="utf-8")
    text = (GENERATED / "alertmanager.yml").read_text(encoding="utf-8")
    # Where it calls and where the tokens are is all that is this stack's own.
    text = text.replace("http://127.0.0.1:9095", f"http://127.0.0.1:{receivers.port}")
    text = text.replace(SECRETS, str(secrets)).replace(TEMPLATES_FOLDER, str(GENERATED / "templates"))
    document = compress_alertmanager(yaml.safe_load(text), times)
    _open_migration_window(document)
    _render_beside(document, secrets, receivers)
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    command = [
        str(binary), f"--config.file={folder / 'alertmanager.yml'}", f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={address}", "--cluster.listen-address=", "--log.level=warn",
    ]  # fmt: skip
    return Program("alertmanager", command, folder, f"http://{address}/-/ready"), f"http://{address}"


def _open_migration_window(document: dict[str, Any]) -> None:
    """Let a migration be planned for all time: only deployments that say `promoting` are muted by it."""
    for interval in document["time_intervals"]:
        if interval["name"] == MIGRATION_WINDOW:
            interval["time_intervals"] = [{"times": [{"start_time": "00:00", "end_time": "24:00"}]}]


def _render_beside(document: dict[str, Any], secrets: Path, receivers: Receivers) -> None:
    """Also configure the receivers for people as Slack, whose messages the templates render."""
    for each in document["receivers"]:
        name = each["name"]
        if name != RECEIVERS["none"]:
            slack = Receiver(name, "slack", {"channel": "#live"})
            (secrets / slack.secret).write_text(f"http://127.0.0.1:{receivers.port}/rendered/{name}", encoding="utf-8")
            each["slack_configs"] = slack.configuration(str(secrets))["slack_configs"]


def _authority(url: str) -> str:
    return url.removeprefix("http://")
