"""Kills collectors with SIGKILL at random moments and finds what is missing in their stores.

`python -m tests.kills --kills 200` does it 200 times and prints what it found; 1 when anything was lost that had been
answered before the scrape in flight.

Each collector is a process of its own on a store of its own, restarted on it after every kill. Its targets number their
answers, so that every scrape is known: one whose answer was sent completely must be in the store, but for the last one
before the kill. Runs are short here, so that the kills meet packing as often as appending.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servescope.collector.config import CollectorSettings, Configuration
from servescope.collector.targets.deployments import DeploymentSettings, TargetSettings
from servescope.contract.identity import Deployment
from servescope.store.embedded import Store
from tests.support.numbered_targets import METRIC, NumberedTargets, answering_with_numbers

TARGETS = 3
_DEPLOYMENT = Deployment("llama", "chat", "v1")
_INTERVAL_MS = 250
_PACK_ROWS = 8
_START_SECONDS = 20.0


@dataclass(slots=True)
class Findings:
    """The result: `lost` names every answer that is missing; those in flight at a kill are only counted."""

    kills: int = 0
    answers: int = 0
    in_flight: int = 0
    runs: int = 0
    lost: list[str] = field(default_factory=list)


def kill_collectors(folder: Path, kills: int, *, parallel: int = 2, seed: int = 0) -> Findings:
    """Kill collectors so many times, `parallel` of them at once, and return what was missing afterwards."""
    found = Findings()
    context = multiprocessing.get_context("forkserver")
    # Starting an interpreter takes longer than the life of most of these collectors.
    context.set_forkserver_preload(
        ["servescope.collector.command", "servescope.collector.scrapes.fetch", "servescope.collector.api.serve"]
    )
    with answering_with_numbers() as server:
        shares = [kills // parallel + (number < kills % parallel) for number in range(parallel)]
        victims = [_Victim(folder, number, server, context, seed) for number in range(parallel)]
        threads = [
            threading.Thread(target=victim.suffer, args=(share, found))
            for victim, share in zip(victims, shares, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found


class _Victim:
    """One store, and the collectors that are started on it and killed."""

    def __init__(self, folder: Path, number: int, server: NumberedTargets, context: Any, seed: int) -> None:
        self._path = folder / f"victim-{number}.db"
        self._server, self._context = server, context
        self._names = [f"/{number}-{target}/metrics" for target in range(TARGETS)]
        self._random = random.Random(seed * 1000 + number)
        self._in_flight: dict[str, set[int]] = {name: set() for name in self._names}

    def suffer(self, kills: int, found: Findings) -> None:
        """Start, kill and examine so many times; then once more without a kill, for figures must go on."""
        try:
            for _ in range(kills):
                self._live_and_die()
                self._examine(found)
                found.kills += 1
            self._go_on(found)
        except Exception as error:
            found.lost.append(f"{self._path.name}: {type(error).__name__}: {error}")

    def _live_and_die(self) -> None:
        process = self._start()
        try:
            self._await_answers(process)
            time.sleep(self._random.uniform(0.0, 0.6))
        finally:
            process.kill()
            process.join()
        # A request that was on its way is answered, in vain, a moment later.
        time.sleep(0.03)
        for name in self._names:
            # The one in flight: its answer may have been sent, and was not stored yet.
            self._in_flight[name].add(self._server.last_sent(name))

    def _start(self) -> Any:
        urls = [f"{self._server.url}{name}" for name in self._names]
        process = self._context.Process(target=_collect, args=(str(self._path), urls), daemon=True)
        process.start()
        return process

    def _await_answers(self, process: Any) -> None:
        """Wait until every target has answered this collector at least once."""
        before = {name: self._server.last_sent(name) for name in self._names}
        deadline = time.monotonic() + _START_SECONDS
        while any(self._server.last_sent(name) == before[name] for name in self._names):
            if time.monotonic() > deadline or not process.is_alive():
                raise TimeoutError("the collector did not scrape all its targets")
            time.sleep(0.005)

    def _examine(self, found: Findings) -> None:
        connection = sqlite3.connect(self._path)
        try:
            (intact,) = connection.execute("PRAGMA integrity_check").fetchone()
        finally:
            connection.close()
        if intact != "ok":
            found.lost.append(f"{self._path.name}: integrity_check: {intact}")
        with Store(self._path, read_only=True) as store:
            windows = store.read_samples(_DEPLOYMENT, [METRIC], 0, 1 << 41)
        stored = {
            dict(series.labels)["replica"]: [int(value) for value in row.tolist() if value == value]
            for window in windows
            for series, row in zip(window.series, window.values, strict=True)
        }
        for name in self._names:
            self._compare(name, stored.get(name.split("/")[1], []), found)

    def _compare(self, name: str, stored: Sequence[int], found: Findings) -> None:
        if [*stored] != sorted({*stored}):
            found.lost.append(f"{name}: stored twice, or not in order: {stored}")
        sent = {*range(1, self._server.last_sent(name) + 1)} - self._server.unsent(name)
        missing = sent - {*stored}
        found.lost += [f"{name}: answer {answer} is missing" for answer in sorted(missing - self._in_flight[name])]
        self._in_flight[name] &= missing

    def _go_on(self, found: Findings) -> None:
        process = self._start()
        try:
            self._await_answers(process)
            with Store(self._path, read_only=True) as store:
                since, deadline = time.time() * 1000, time.monotonic() + _START_SECONDS
                latest = store.latest_figures()
                while "output_tokens_per_second" not in latest[_DEPLOYMENT][1] or latest[_DEPLOYMENT][0] < since:
                    if time.monotonic() > deadline:
                        raise TimeoutError("no figures after the last kill")
                    time.sleep(0.05)
                    latest = store.latest_figures()
                (runs,) = store._connection.execute("SELECT count(*) FROM runs").fetchone()
        finally:
            process.kill()
            process.join()
        found.runs += runs
        found.answers += sum(self._server.last_sent(name) for name in self._names)
        found.in_flight += sum(map(len, self._in_flight.values()))


def _collect(path: str, urls: Sequence[str]) -> None:
    """A collector in this process, as `servescope collect` runs it, but with short runs."""
    from servescope.collector import command

    for module in ("packer", "packing", "recent"):
        constants = sys.modules[f"servescope.store.packing.{module}"].__dict__
        assert "PACK_ROWS" in constants, module
        constants["PACK_ROWS"] = _PACK_ROWS
    targets = tuple(TargetSettings(url, replica=url.split("/")[3], source="servescope") for url in urls)
    settings = CollectorSettings(
        listen=("127.0.0.1", 0),
        store=Path(path),
        scrape_interval_ms=_INTERVAL_MS,
        # A scrape that was answered too late would look like one that was lost.
        scrape_timeout_ms=10_000,
        evaluation_interval_ms=_INTERVAL_MS,
        window_ms=5_000,
    )
    configuration = Configuration(settings, (DeploymentSettings(_DEPLOYMENT, targets),), "the kills")
    asyncio.run(command.collect(configuration, asyncio.Event()))


def main() -> int:
    """Kill so many times and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="servescope-kills-") as folder:
        found = kill_collectors(Path(folder), arguments.kills, parallel=arguments.parallel, seed=arguments.seed)
    print(
        f"{found.kills} kills in {time.monotonic() - started:.0f} s: {found.answers} scrapes answered, "
        f"{found.runs} runs packed, {found.in_flight} scrapes lost in flight, {len(found.lost)} lost otherwise"
    )
    for line in found.lost:
        print(f"  {line}")
    return 1 if found.lost else 0


if __name__ == "__main__":
    sys.exit(main())
