"""The export to customers as a process, on a store that is filled on an emulated clock, and its backend."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

from servescope.contract.identity import Identity
from servescope.contract.samples import Sample, Snapshot, make_labels
from servescope.settings.clock import EmulatedTime
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus
from tests.support.commands import run
from tests.support.otlp_receiver import Receiver
from tests.support.programs import answers, end
from tests.support.prometheus import free_port
from tests.support.waiting import wait_for

SPEED = 40.0
ORIGIN = 1_800_000_000
ENGINE = Identity("llama", "chat", "v2", environment="prod", replica="engine-0")
COLLECTOR = """
[[deployments]]
deployment_id = "chat"
model_name = "llama"
inference_stack = "v2"
environment = "prod"
fixed_labels = true
claims = { targets = ["127.0.0.1:9"] }
targets = [{ url = "http://127.0.0.1:9/metrics" }]
"""
CUSTOMERS = """
collector = "servescope.toml"

[[customers]]
name = "acme"
metrics = ["output_tokens_total"]
labels = ["deployment_id", "replica"]
replica_key_file = "acme.key"
resolution = "replica"
interval = "10s"

[[customers.deployments]]
deployment_id = "chat"
model_name = "llama"
inference_stack = "v2"
environment = "prod"

[[customers.push]]
protocol = "otlp-http"
url = "{url}"
temporality = "delta"

[customers.pull]
token_file = "acme.token"
requests_per_minute = 100
"""
REPLICAS = 20
"""How many there are at a time in a fleet whose replicas come and go."""
_CHURN_SECONDS = 60
_LIFETIME_SECONDS = (1_800.0, 18_000.0)
_KEPT_MS = 6 * 3_600_000
TOKEN = "a-token-of-acme-that-nobody-knows"


@dataclass
class Exported:
    """A folder in which a store is filled by an emulated clock, and the export that reads it."""

    folder: Path
    receiver: Receiver
    clock: EmulatedTime
    interval_seconds: float = 10
    address: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    pull_address: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")

    def words(self, verb: str, *arguments: str) -> list[str]:
        """A verb of `servescope customers` on this folder."""
        return ["customers", verb, "--config", "customers.toml", *arguments]

    def run(self, verb: str, *arguments: str) -> str:
        """What a verb prints."""
        with chdir(self.folder), patch.dict(os.environ, self.environment()):
            done = run(*self.words(verb, *arguments))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def environment(self) -> dict[str, str]:
        """Of a process that lives in the clock's time."""
        return {**os.environ, "SERVESCOPE_CLOCK": str(self.folder / "clock")}

    @contextmanager
    def running(self, *past: str) -> Iterator[subprocess.Popen[bytes]]:
        """The export of the store, or of a past of its own, once it answers; killed in the end as `kill -9` does."""
        chosen = past or ("--store", "past.db")
        words = self.words("run", *chosen, "--listen", self.address, "--pull-listen", self.pull_address)
        command = [sys.executable, "-m", "servescope.cli", *words]
        with (self.folder / "run.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.folder, env=self.environment(), stdout=log, stderr=log)
        try:
            wait_for(
                lambda: answers(f"http://{self.address}/healthz"), "the export", process=process,
                log=self.folder / "run.log",
            )  # fmt: skip
            yield process
        finally:
            process.kill()
            end(process)

    def points(self) -> Counter[tuple[int, int, int]]:
        """Start, end (seconds) and value of every point that was received, and how often."""
        found: Counter[tuple[int, int, int]] = Counter()
        for request in list(self.receiver.requests):
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        for point in metric.sum.data_points:
                            times = (point.start_time_unix_nano // 10**9, point.time_unix_nano // 10**9)
                            found[(*times, point.as_int)] += 1
        return found

    def wait_for_points(self, more: int) -> None:
        """Wait until so many more requests were received."""
        wanted = len(self.receiver.requests) + more
        wait_for(lambda: len(self.receiver.requests) >= wanted, f"{wanted} requests", log=self.folder / "run.log")

    def wait_for_intervals(self, number: int) -> None:
        """Wait until so many intervals of the customer are over."""
        until = self.clock.now() + self.interval_seconds * number
        wait_for(lambda: self.clock.now() > until, f"{number} intervals", log=self.folder / "run.log")


Fill = Callable[[Store, EmulatedTime, threading.Event], None]
"""What fills a store, in the time of a clock, until it is to end."""


@contextmanager
def exporting(
    folder: Path, fill: Fill | None = None, *, speed: float = SPEED, customers: str = CUSTOMERS, interval: float = 10
) -> Iterator[Exported]:
    """A store that gets a scrape every five seconds of its clock, of an engine with three tokens a second.

    Another `fill` writes something else into it; `interval` is that of the `customers`, in seconds.
    """
    ended = threading.Event()
    clock = EmulatedTime(time.time(), float(ORIGIN), speed)
    clock.write(folder / "clock")
    (folder / "servescope.toml").write_text(COLLECTOR, encoding="utf-8")
    (folder / "acme.key").write_text("k" * 40 + "\n", encoding="utf-8")
    (folder / "acme.token").write_text(f"{TOKEN}\n", encoding="utf-8")
    with Receiver() as receiver, Store(folder / "past.db") as store:
        (folder / "customers.toml").write_text(customers.replace("{url}", receiver.url), encoding="utf-8")
        store.append_figures(ENGINE.deployment(), ORIGIN * 1000, {"request_rate": 1.0})
        filling = threading.Thread(target=fill or _fill, args=(store, clock, ended))
        filling.start()
        try:
            yield Exported(folder, receiver, clock, interval)
        finally:
            ended.set()
            filling.join()


def _fill(store: Store, clock: EmulatedTime, ended: threading.Event) -> None:
    status = TargetStatus(ENGINE.target_id, "http://127.0.0.1:9/metrics", ENGINE, scrape_interval_ms=5_000)
    store.set_target(status)
    scraped = ORIGIN - 60
    while not ended.wait(0.02):
        while scraped + 5 <= clock.now():
            scraped += 5
            sample = Sample("output_tokens_total", make_labels(ENGINE.labels()), 3.0 * (scraped - ORIGIN) + 1000)
            store.append_scrape(ENGINE.target_id, scraped * 1000, Snapshot.of([sample]))


def fill_with_churn(store: Store, clock: EmulatedTime, ended: threading.Event) -> None:
    """Scrapes each minute, of replicas with three tokens a second; one that ends is followed by one of another name."""
    chance = random.Random(1)
    alive: dict[str, float] = {}
    scraped, number = ORIGIN - 2 * _CHURN_SECONDS, 0
    while not ended.wait(0.02):
        while scraped + _CHURN_SECONDS <= clock.now():
            scraped += _CHURN_SECONDS
            alive = {name: until for name, until in alive.items() if until > scraped}
            while len(alive) < REPLICAS:
                number += 1
                alive[f"engine-{number}"] = scraped + chance.uniform(*_LIFETIME_SECONDS)
            identities = {name: replace(ENGINE, replica=name) for name in alive}
            with store.transaction():
                for name, identity in identities.items():
                    tokens = 3.0 * (scraped - ORIGIN) + 10_000
                    sample = Sample("output_tokens_total", make_labels(identity.labels()), tokens)
                    status = TargetStatus(identity.target_id, f"http://{name}/", identity, scrape_interval_ms=60_000)
                    store.set_target(status)
                    store.append_scrape(identity.target_id, scraped * 1000, Snapshot.of([sample]))
                store.unlist_targets([identity.target_id for identity in identities.values()])
            if scraped % (30 * _CHURN_SECONDS) == 0:
                store.prune(scraped * 1000 - _KEPT_MS)
