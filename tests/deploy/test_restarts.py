"""What restarts a process that ends by itself, wherever it runs, as one does whose store's -shm file is truncated."""

from __future__ import annotations

import configparser
import os
import shutil
import signal
import subprocess
import sys
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from servescope.cli import COMMANDS
from servescope.store.embedded import Store
from tests.conftest import ROOT
from tests.deploy.support.compose import Service, read_compose
from tests.support.answering import Handler, answering
from tests.support.collect_command import collecting, wait_until
from tests.support.prometheus import free_port
from tests.support.waiting import deadline_seconds, wait_for

SERVICES = read_compose(ROOT / "docker-compose.yml").services
MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").rglob("*.yaml"))
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
EVERY_UNIT = pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)

READ = """
import sys, time
from servescope.store.embedded import Store
with Store(sys.argv[1], read_only=True) as store:
    while True:
        store.time_range()
        print("read", flush=True)
        time.sleep(0.05)
"""


# --- What is configured -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("service", SERVICES.values(), ids=str)
def test_compose_restarts_every_service(service: Service) -> None:
    """Unless somebody stopped it."""
    assert service.said["restart"] == "unless-stopped"


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_kubernetes_restarts_every_container(path: Path) -> None:
    """Pods are of what makes them anew, and restart each container that ends; a sidecar says so itself."""
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        if not isinstance(document, dict):
            continue  # a patch
        template = pod_template(document)
        assert document["kind"] not in ("Pod", "Job", "CronJob", "ReplicaSet")
        if template is None:
            continue
        assert document["kind"] in ("Deployment", "StatefulSet")
        # https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#pod-template
        assert template["spec"].get("restartPolicy", "Always") == "Always"
        for container in template["spec"].get("initContainers", []):
            assert container.get("restartPolicy", "Always") == "Always"


def pod_template(document: dict[str, Any]) -> Any:
    """The template of a workload's pods, None for what is none."""
    return document.get("spec", {}).get("template")


def read_unit(path: Path) -> configparser.ConfigParser:
    """A unit of systemd, whose keys are case-sensitive."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(path.read_text(encoding="utf-8"))
    return parser


@EVERY_UNIT
def test_systemd_restarts_every_service_for_ever(path: Path) -> None:
    """However it ended, and however often; as one user without privileges, who owns the store."""
    unit = read_unit(path)
    service = unit["Service"]
    assert (service["Restart"], unit["Unit"]["StartLimitIntervalSec"]) == ("always", "0")
    assert (service["User"], service["StateDirectory"], service["WorkingDirectory"]) == (
        "servescope", "servescope", "/var/lib/servescope",
    )  # fmt: skip
    assert (service["NoNewPrivileges"], service["CapabilityBoundingSet"]) == ("yes", "")
    assert unit["Install"]["WantedBy"] == "multi-user.target"


def test_systemd_has_every_command_that_keeps_a_store_open() -> None:
    """With arguments that it takes, all on the same store."""
    stores, verbs = set(), set()
    for path in UNITS:
        program, name, *words = read_unit(path)["Service"]["ExecStart"].split()
        parser = ArgumentParser(exit_on_error=False)
        command = import_module(COMMANDS[name][0])
        command.configure(parser)
        arguments = parser.parse_args(words)
        assert program == "/opt/servescope/bin/servescope"
        stores.add(str(arguments.store))
        verbs.add((name, getattr(arguments, "verb", "")))
    assert stores == {"/var/lib/servescope/servescope.db"}
    assert verbs == {("collect", ""), ("console", ""), ("customers", "run"), ("judge", "watch")}


@EVERY_UNIT
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_its_units(path: Path, tmp_path: Path) -> None:
    """Every section and key; the program is that of the tests."""
    program = str(Path(sys.executable).with_name("servescope"))
    copy = tmp_path / path.name
    for wrong in (False, True):
        text = path.read_text(encoding="utf-8").replace("/opt/servescope/bin/servescope", program)
        copy.write_text(text.replace("Restart=", "Restrat=") if wrong else text)
        done = subprocess.run(
            ["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False, timeout=deadline_seconds()
        )
        assert ("Unknown key" in done.stderr, copy.name in done.stderr) == (wrong, wrong), done.stderr


# --- What ends, and what is there again -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_truncated_index_ends_collector_and_readers_and_costs_no_committed_sample(tmp_path: Path) -> None:
    """By SIGBUS, which nothing can catch: SQLite has the file in memory. A collector that is restarted has all."""
    store, log = tmp_path / "servescope.db", tmp_path / "collect.log"
    counts: list[int] = []

    def page(request: Handler) -> None:
        counts.append(len(counts))
        request.reply(200, f'output_tokens_total{{deployment_id="x"}} {counts[-1]}\n', Content_Type="text/plain")

    def read() -> list[float | None]:
        """What each scrape found, None for one that timed out, as some do on a busy machine."""
        # Closed again before the file is truncated: it is in the memory of whoever has the store open.
        with Store(store, read_only=True) as opened:
            found = [opened.read_scrapes(each.target_id, 0, 1 << 41) for each in opened.targets()]
        scrapes = [snapshot for each in found for _, snapshot in each]
        return [None if snapshot is None else float(snapshot.values[0]) for snapshot in scrapes]

    with answering(page) as url:
        (tmp_path / "servescope.toml").write_text(
            f'[collector]\nlisten = "127.0.0.1:{free_port()}"\nscrape_interval = "200ms"\nscrape_timeout = "200ms"\n'
            f'evaluation_interval = "200ms"\nwindow = "10s"\n[[deployments]]\ndeployment_id = "chat"\n'
            f'model_name = "m"\ninference_stack = "v1"\n[[deployments.targets]]\nurl = "{url}/metrics"\n'
        )
        with collecting(folder=tmp_path) as collector:
            wait_until(lambda: len(read()) > 10, log)
            with subprocess.Popen([sys.executable, "-c", READ, store], stdout=subprocess.PIPE) as reader:
                assert reader.stdout is not None
                assert reader.stdout.readline() == b"read\n"
                committed = read()
                os.truncate(f"{store}-shm", 0)
                wait_for(lambda: None not in (collector.poll(), reader.poll()), "both to end")
        assert (collector.returncode, reader.returncode) == (-signal.SIGBUS, -signal.SIGBUS)
        with collecting(folder=tmp_path):
            wait_until(lambda: len(read()) > len(committed) + 3, log)
            stored = read()
    assert stored[: len(committed)] == committed
    # At most the scrape under way when it ended is missing, and what timed out.
    found = [int(count) for count in stored if count is not None]
    assert len(set(range(found[-1])) - set(found)) <= 1 + stored.count(None)
