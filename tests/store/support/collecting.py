"""A `servescope collect` in a process of its own, with one target that numbers its answers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from servescope.store.embedded import Store
from tests.support.numbered_targets import METRIC, NumberedTargets, answering_with_numbers
from tests.support.prometheus import free_port
from tests.support.slowness import slowness
from tests.support.waiting import deadline_seconds, wait_for

_TARGET = "/r0/metrics"
_CONFIGURATION = """
[collector]
listen = "127.0.0.1:{port}"
store = "{store}"
scrape_interval = "{interval_ms}ms"
scrape_timeout = "{interval_ms}ms"
evaluation_interval = "{interval_ms}ms"
window = "{window_ms}ms"

[[deployments]]
deployment_id = "chat"
model_name = "llama"
inference_stack = "v1"
targets = [{{ url = "{url}", source = "servescope", replica = "r0" }}]
"""


@dataclass(slots=True)
class Collecting:
    """A running collector, its store and its log."""

    process: subprocess.Popen[bytes]
    url: str
    store: Path
    log: Path
    targets: NumberedTargets

    def get(self, path: str) -> str:
        """What it answers, whatever the status."""
        try:
            with urlopen(f"{self.url}{path}", timeout=deadline_seconds()) as answer:
                return str(answer.read().decode())
        except HTTPError as error:
            return error.read().decode()

    def store_problem(self) -> str | None:
        """Why the store cannot be written, as the API reports it."""
        status: dict[str, Any] = json.loads(self.get("/api/v1/status"))
        problem: str | None = status["store"]["problem"]
        return problem

    def own(self, name: str) -> float:
        """A series of its own on /metrics."""
        found = re.search(rf"^{name}(?:{{.*}})? (\S+)$", self.get("/metrics"), re.MULTILINE)
        assert found, name
        return float(found[1])

    def shown(self) -> int:
        """The number of the last answer that /metrics shows."""
        found = re.search(rf"^{METRIC}{{.*}} (\S+)$", self.get("/metrics"), re.MULTILINE)
        return round(float(found[1])) if found else 0

    def scrapes(self) -> list[int | None]:
        """The numbers of the answers in the store, None for each scrape that failed."""
        with Store(self.store, read_only=True) as store:
            return [
                None if snapshot is None else round(snapshot.values[0])
                for target in store.targets()
                for _, snapshot in store.read_scrapes(target.target_id, 0, 1 << 41)
            ]

    def stored(self) -> list[int]:
        """The numbers of the answers in the store."""
        return [number for number in self.scrapes() if number is not None]

    def wait_for_scrapes(self) -> int:
        """Wait until /metrics shows an answer that was sent after this call; returns its number."""
        sent = self.targets.last_sent(_TARGET)
        return wait_for(
            lambda: shown if (shown := self.shown()) > sent else None, "a scrape", process=self.process, log=self.log
        )


@contextmanager
def collecting(folder: Path, store: Path, *command: str) -> Iterator[Collecting]:
    """Run `servescope collect` on a store; `command` runs the command line in place of `python -m servescope.cli`."""
    with answering_with_numbers() as targets:
        port = free_port()
        settings = folder / "servescope.toml"
        interval_ms = round(250 * slowness())  # it is the timeout as well
        times = {"interval_ms": interval_ms, "window_ms": 20 * interval_ms}
        settings.write_text(_CONFIGURATION.format(port=port, store=store, url=f"{targets.url}{_TARGET}", **times))
        log = folder / "collect.log"
        words = [*(command or (sys.executable, "-m", "servescope.cli")), "collect", "--config", str(settings)]
        # Through a pipe, as a process that may not let files grow could not write its log either.
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        copying = threading.Thread(target=_copy, args=(process.stdout, log), daemon=True)
        copying.start()
        running = Collecting(process, f"http://127.0.0.1:{port}", store, log, targets)
        try:
            wait_for(lambda: running.get("/-/healthy"), "the collector", ignoring=(URLError,), process=process, log=log)
            yield running
            process.terminate()
            assert process.wait(deadline_seconds()) == 0, log.read_text()
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            copying.join(deadline_seconds())


def _copy(output: IO[bytes] | None, log: Path) -> None:
    assert output is not None
    with output, log.open("wb", buffering=0) as file:
        for line in output:
            file.write(line)
