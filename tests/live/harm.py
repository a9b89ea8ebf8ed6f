"""What is done to the parts of the stack that are no emulated deployment: lists, the collector, its files."""

from __future__ import annotations

import json
import signal
import sqlite3
import threading
import time
from collections.abc import Callable

from servescope.emulator.faults import parse_fault
from tests.live.deployments import find_emulator
from tests.live.stack import LiveStack

Undo = Callable[[], None]


def stop_listing(stack: LiveStack, deployment: str) -> Undo:
    """Take the first target of a deployment off its list, which nobody else writes."""
    path = stack.folder / "lists" / f"{deployment}.json"
    before = path.read_text(encoding="utf-8")
    path.write_text(json.dumps(json.loads(before)[1:]), encoding="utf-8")

    def list_again() -> None:
        path.write_text(before, encoding="utf-8")

    return list_again


def lock_store(stack: LiveStack) -> Undo:
    """Write to the collector's store from another program, in one transaction that does not end."""
    connection = sqlite3.connect(stack.folder / "servescope.db", isolation_level=None, timeout=30)
    connection.execute("BEGIN IMMEDIATE")

    def let_go() -> None:
        connection.execute("ROLLBACK")
        connection.close()

    return let_go


def break_configuration(stack: LiveStack) -> Undo:
    """Have the collector read a configuration with a wrong value."""
    path = stack.configuration_path
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace("scrape_interval = ", "scrape_interval = 0 # ", 1), encoding="utf-8")
    stack.collector.signal(signal.SIGHUP)

    def mend() -> None:
        path.write_text(before, encoding="utf-8")
        stack.collector.signal(signal.SIGHUP)

    return mend


def damage_store(stack: LiveStack) -> Undo:
    """End the collector, cut the latest rows of its store short as a failing disk may, and start it again."""
    stack.collector.end()
    connection = sqlite3.connect(stack.folder / "servescope.db", isolation_level=None, timeout=30)
    connection.execute("UPDATE recent_scrapes SET body = substr(body, 1, 11) WHERE body IS NOT NULL")
    connection.close()
    _start_collector(stack)
    return lambda: None


def kill_collector(stack: LiveStack) -> Undo:
    """Kill the collector."""
    stack.collector.signal(signal.SIGKILL)
    return lambda: _start_collector(stack)


def _start_collector(stack: LiveStack) -> None:
    # One that was killed is still to be waited for.
    stack.collector.end()
    stack.collector.start()
    stack.collector.wait_until_ready(f"{stack.collector_url}/-/ready")


def rise_and_fall(stack: LiveStack, surge: str, deployment: str, every: str) -> Undo:
    """Let the traffic of a deployment's emulator rise and fall, each for so long, until it is undone."""
    emulator, fault = stack.emulators[find_emulator(deployment)], parse_fault(surge)
    ended = threading.Event()

    def go_on() -> None:
        while not ended.is_set():
            emulator.switch_on(fault.kind.name, fault.intensity, seconds=stack.seconds(every) * stack.times)
            ended.wait(2 * stack.seconds(every))

    thread = threading.Thread(target=go_on, name="servescope-live-tide", daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join()

    return end


def start_too_late(stack: LiveStack, deployment: str, *, surge: str, surge_for: str, slow_start: str) -> Undo:
    """A surge that is over before the replicas it brings serve, as they take long to start."""
    emulator, start = stack.emulators[find_emulator(deployment)], parse_fault(f"{slow_start}@{deployment}")
    number: int = emulator.switch_on(start.kind.name, start.intensity, deployment=deployment)["id"]
    more = parse_fault(surge)
    emulator.switch_on(more.kind.name, more.intensity, seconds=stack.seconds(surge_for) * stack.times)
    return lambda: _quietly(emulator.switch_off(number))


def rename_then_cut_off(stack: LiveStack, deployment: str, replica: str) -> Undo:
    """A metric of a replica is renamed, and as soon as that is known it cannot be reached any more."""
    emulator = stack.emulators[find_emulator(deployment)]
    numbers = [emulator.switch_on("metric-renamed", deployment=deployment, replica=replica)["id"]]
    time.sleep(stack.seconds("3m"))
    numbers.append(emulator.switch_on("target-unreachable", deployment=deployment, replica=replica)["id"])

    def end() -> None:
        for number in reversed(numbers):
            emulator.switch_off(number)

    return end


def _quietly(_: object) -> None:
    """Nothing is done with it."""
