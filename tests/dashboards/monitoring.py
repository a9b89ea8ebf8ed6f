"""What watches a stack, running: a collector of emulated deployments, a Prometheus with our rules, an Alertmanager."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from alerts.__main__ import GENERATED as RULES
from tests.support.prometheus import Prometheus, free_port, running

SCRAPE_INTERVAL: Final = "5s"
# So that not all is well: one target of several cannot be scraped.
FAULT: Final = "target-unreachable@chat-v2/engine-0"
_START_SECONDS, _END_SECONDS = 60.0, 20.0


@contextmanager
def running_monitoring(prometheus: Path, alertmanager: Path, folder: Path, *options: str) -> Iterator[Prometheus]:
    """The Prometheus, with more command-line options where given; it scrapes the collector, Alertmanager and itself."""
    folder.mkdir(parents=True, exist_ok=True)
    # Prometheus names groups after their files: not after where the checkout lies.
    shutil.copytree(RULES, folder / "rules", ignore=shutil.ignore_patterns("runbooks"))
    with ExitStack() as started:
        addresses = {
            "servescope": _start_collector(folder, started),
            "alertmanager": _start_alertmanager(alertmanager, folder, started),
        }
        configuration = {
            "global": {"scrape_interval": SCRAPE_INTERVAL, "evaluation_interval": SCRAPE_INTERVAL},
            "rule_files": [str(folder / "rules" / "*.rules.yml")],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [addresses["alertmanager"]]}]}]},
            "scrape_configs": [
                *(
                    {"job_name": job, "static_configs": [{"targets": [address]}]}
                    for job, address in addresses.items()
                ),
                # Its own port is known when it runs.
                {"job_name": "prometheus", "file_sd_configs": [{"files": [str(folder / "itself.json")]}]},
            ],
        }  # fmt: skip
        server = started.enter_context(running(prometheus, folder / "prometheus", configuration, options=options))
        (folder / "itself.json").write_text(json.dumps([{"targets": [f"127.0.0.1:{server.port}"]}]), encoding="utf-8")
        yield server


def _start_collector(folder: Path, started: ExitStack) -> str:
    """The address of a collector over an emulated v1 and v2, a replica of which cannot be scraped."""
    emulated = folder / "emulated"
    _start("emulate", [*_SERVESCOPE, "emulate", "--directory", str(emulated), "--fault", FAULT], folder, started)
    # Written last: then the lists of targets are there.
    _wait_for(lambda: (emulated / "servescope.toml").exists(), "the emulator's configuration")
    address = f"127.0.0.1:{free_port()}"
    command = [*_SERVESCOPE, "collect", "--config", str(emulated / "servescope.toml"), "--listen", address]
    _start("collect", command, folder, started)
    _wait_for(lambda: _answers(f"http://{address}/-/ready"), "the collector")
    return address


_SERVESCOPE = (sys.executable, "-m", "servescope.cli")


def _start_alertmanager(binary: Path, folder: Path, started: ExitStack) -> str:
    """The address of an Alertmanager that notifies nobody."""
    (folder / "alertmanager.yml").write_text(
        "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n", encoding="utf-8"
    )
    address = f"127.0.0.1:{free_port()}"
    command = [
        str(binary), f"--config.file={folder / 'alertmanager.yml'}", f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={address}", "--cluster.listen-address=", "--log.level=error",
    ]  # fmt: skip
    _start("alertmanager", command, folder, started)
    _wait_for(lambda: _answers(f"http://{address}/-/ready"), "Alertmanager")
    return address


def _start(name: str, command: Sequence[str], folder: Path, started: ExitStack) -> None:
    """Run a program until the stack of what was started is left; what it says goes to a log in the folder."""
    log = started.enter_context((folder / f"{name}.log").open("wb"))
    process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    def end() -> None:
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    started.callback(end)


def _wait_for(is_there: Callable[[], bool], name: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not is_there():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name} was not there within {_START_SECONDS:g} s")
        time.sleep(0.2)


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):
            return True
    except OSError:
        return False
