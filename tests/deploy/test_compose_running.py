"""The image as its Dockerfile makes it and the services of the Compose file, all outside containers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from yarl import URL

from tests.conftest import ROOT
from tests.deploy.support.compose import Composition, Outside, read_compose
from tests.support.otlp_receiver import Receiver, attributes
from tests.support.prometheus import Prometheus
from tests.support.waiting import deadline_seconds, wait_for

pytestmark = pytest.mark.slow

# Nothing else of the mounted files is changed: a test does not wait for a rhythm, and all is on this machine.
_HASTENED = (
    # Otherwise an alert that fires before Prometheus knows of its Alertmanager is sent again after minutes.
    ("resend-delay=5m", "resend-delay=1s"),
    ("scrape_interval: 15s", "scrape_interval: 1s"),
    ('name = "acme"', 'name = "acme"\ninterval = "10s"'),
    ('scrape_interval = "5s"', 'scrape_interval = "1s"\nevaluation_interval = "1s"'),
    ('"stacks:*"', '"127.0.0.1:*"'),
)


@dataclass(frozen=True, slots=True)
class Image:
    """What the Dockerfile made, outside a container: a virtual environment."""

    entry_point: Path
    python: Path


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The Dockerfile's COPY and pip instructions carried out in a fresh environment, from what .dockerignore lets by.

    What the tests' own environment has is found by pip as installed already and not downloaded again, and so is pip.
    """
    folder = tmp_path_factory.mktemp("image")
    environment = folder / "python"
    venv.create(environment)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    pip = environment / "bin" / "pip"
    pip.write_text('#!/bin/sh\nexec python -m pip "$@"\n', encoding="utf-8")
    pip.chmod(0o755)
    context = _copy_context(folder / "context")
    for instruction, rest in _instructions():
        if instruction == "COPY":
            _copy(context, folder / "src", rest.split())
        if instruction == "RUN" and "pip " in rest:
            _run_pip(rest, folder, environment)
    (entry_point,) = [json.loads(rest) for instruction, rest in _instructions() if instruction == "ENTRYPOINT"]
    return Image(environment / "bin" / entry_point[0], environment / "bin" / "python")


def _instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    return [(instruction, " ".join(rest.split())) for instruction, rest in lines]


def _copy_context(folder: Path) -> Path:
    """What the builder gets to see: .dockerignore hides everything but what it names."""
    hidden, *rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert hidden == "*"
    folder.mkdir()
    for name in [rule.removeprefix("!") for rule in rules if rule.startswith("!")]:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return folder


def _copy(context: Path, workplace: Path, words: list[str]) -> None:
    *sources, target = words
    for name in sources:
        place = workplace / target
        if (context / name).is_dir():
            shutil.copytree(context / name, place)
        else:
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(context / name, place)


def _run_pip(line: str, folder: Path, environment: Path) -> None:
    command = re.sub(r"--mount=\S+", "", line).replace("/wheels", str(folder / "wheels"))
    path = f"{environment / 'bin'}:{os.environ['PATH']}"
    settings = {**os.environ, "PATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    settings.pop("PYTHONPATH", None)
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder / "src",
        env=settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=deadline_seconds(),
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def test_image_runs_the_commands_of_its_services(image: Image, tmp_path: Path) -> None:
    """The entry point starts, and it and the console's pages are of the wheel that the Dockerfile built."""
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    said = subprocess.run(
        [image.entry_point, "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=deadline_seconds(),
        env=settings,
    )
    where = subprocess.run(
        [image.python, "-c", "from servescope import console as c; print(c.__file__); print(c.find_app())"],
        capture_output=True, text=True, check=True, timeout=deadline_seconds(), env=settings, cwd=tmp_path,
    )  # fmt: skip

    assert re.fullmatch(r"servescope \d+\.\d+\.\d+\n", said.stdout)
    module, pages = map(Path, where.stdout.split())
    assert module.is_relative_to(image.python.parent.parent)
    assert pages == module.parent / "_app" / "server.py"
    assert (pages.parent / ".streamlit" / "config.toml").is_file()


@dataclass(frozen=True, slots=True)
class Running:
    """The composition while it runs outside containers."""

    composition: Composition
    outside: Outside
    backend: Receiver

    def get(self, service: str, url: str) -> Any:
        """The JSON at a URL as the service knows it."""
        with urlopen(
            self.outside.url_of(self.composition.services[service], url), timeout=deadline_seconds()
        ) as answer:
            return json.loads(answer.read())


@pytest.fixture(scope="module")
def running(
    image: Image, prometheus: Path, alertmanager: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """All services but Grafana, started as the file says, each once what it depends on is healthy.

    In place of OpenTelemetry's collector is a receiver of the tests.
    """
    composition = read_compose(ROOT / "docker-compose.yml")
    outside = composition.outside(tmp_path_factory.mktemp("compose"), *_HASTENED)
    ours = {service.name: image.entry_point for service in composition.services.values() if "build" in service.said}
    executables = {**ours, "prometheus": prometheus, "alertmanager": alertmanager}
    backend = URL(outside.url_of(composition.services["customers"], "http://backend:4318"))
    with Receiver(backend.port or 0) as receiver, outside.running(executables):
        yield Running(composition, outside, receiver)


def test_own_health_checks_pass(running: Running, image: Image) -> None:
    """The health checks of our own services, which ask with the image's Python, succeed as the file has them."""
    for service in running.composition.services.values():
        if "build" in service.said:
            kind, *words = service.said["healthcheck"]["test"]
            assert (kind, words[0]) == ("CMD", "python")
            command = [str(image.python), *(running.outside.rewrite(service, word) for word in words[1:])]
            subprocess.run(command, check=True, timeout=deadline_seconds(), capture_output=True)


def test_collector_scrapes_the_emulated_stacks(running: Running) -> None:
    """The collector finds the targets of both deployments in the lists the emulator wrote, and reads each."""

    def all_read() -> bool:
        targets = running.get("collector", "http://127.0.0.1:9900/api/v1/targets")["targets"]
        deployments = {target["identity"]["deployment_id"] for target in targets}
        return deployments == {"chat-v1", "chat-v2"} and all(target["healthy"] for target in targets)

    wait_for(all_read, "both deployments' targets to be scraped")


def test_prometheus_scrapes_everything_it_names(running: Running) -> None:
    """Prometheus reads the collector, Alertmanager and itself, and has the collector's contract series."""

    def all_up() -> bool:
        found = running.get("prometheus", "http://127.0.0.1:9090/api/v1/targets?state=active")["data"]["activeTargets"]
        return {target["labels"]["job"] for target in found if target["health"] == "up"} == {
            "servescope", "prometheus", "alertmanager",
        }  # fmt: skip

    wait_for(all_up, "Prometheus' targets to be up")
    wait_for(lambda: _prometheus(running).query("requests_total", at_ms=_now_ms()), "contract series in Prometheus")


def test_prometheus_has_the_generated_rules(running: Running) -> None:
    """Each rule that `python -m alerts` writes is loaded, and none of them fails."""
    rules = _prometheus(running).rules()
    written = sum(
        path.read_text(encoding="utf-8").count("  - record:") for path in (ROOT / "alerts" / "generated").glob("*.yml")
    )

    assert len([rule for rule in rules if rule["type"] == "recording"]) == written
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}


def test_prometheus_sends_alerts_to_alertmanager(running: Running) -> None:
    """Prometheus has the Alertmanager of the file as its receiver of alerts."""
    (service,) = [each for each in running.composition.services.values() if each.name == "alertmanager"]
    there = running.outside.rewrite(service, f"http://0.0.0.0:{service.port}/api/v2/alerts")

    def known() -> bool:
        found = running.get("prometheus", "http://127.0.0.1:9090/api/v1/alertmanagers")["data"]["activeAlertmanagers"]
        return [each["url"] for each in found] == [there]

    wait_for(known, "Prometheus to know its Alertmanager")


def test_alerts_reach_their_receiver(running: Running) -> None:
    """The Watchdog, which always fires, is with the receiver that the generated routes have for it."""

    def receivers() -> list[str]:
        alerts = running.get("alertmanager", "http://127.0.0.1:9093/api/v2/alerts")
        return [
            receiver["name"]
            for alert in alerts
            if alert["labels"]["alertname"] == "ServescopeWatchdog"
            for receiver in alert["receivers"]
        ]

    wait_for(lambda: receivers() == ["watchdog"], "the Watchdog at its receiver")


def test_customers_points_reach_the_backend(running: Running) -> None:
    """What acme is to have of both deployments arrives where its backend listens."""

    def received() -> set[str]:
        resources = [resource for request in running.backend.requests for resource in request.resource_metrics]
        return {attributes(resource.resource).get("deployment_id", "") for resource in resources}

    wait_for(lambda: received() >= {"chat-v1", "chat-v2"}, "points of both deployments at the customer's backend")


def test_grafanas_datasource_answers(running: Running) -> None:
    """The URL of Grafana's datasource, as Grafana has it, answers a query."""
    provisioned = running.outside.path_of(
        running.composition.services["grafana"], "/etc/grafana/provisioning/datasources/prometheus.yml"
    )
    (url,) = re.findall(r"url: (\S+)", provisioned.read_text(encoding="utf-8"))
    with urlopen(f"{url}/api/v1/query?query=1", timeout=deadline_seconds()) as answer:
        assert json.loads(answer.read())["status"] == "success"


def _prometheus(running: Running) -> Prometheus:
    url = running.outside.url_of(running.composition.services["prometheus"], "http://127.0.0.1:9090")
    return Prometheus(int(url.rpartition(":")[2]))


def _now_ms() -> int:
    return round(time.time() * 1000)
