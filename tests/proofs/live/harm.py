"""Faults in the parts of the stack that are not emulated deployments: lists, the collector, its files."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import yaml

from servescope.emulator.faults.faults import parse_fault
from servescope.errors import ServescopeError
from tests.proofs.live.customers import CONFIGURATION, METRIC, OTHER_METRIC
from tests.proofs.live.deployments import EMULATED, find_emulator
from tests.proofs.live.stack import LiveStack, Program
from tests.support.prometheus import free_port

Undo = Callable[[], None]
_STARVED_SECONDS: Final = 0.7


def stop_listing(stack: LiveStack, deployment: str, *replicas: str) -> Undo:
    """Remove these replicas of a deployment from its list, which nobody else writes."""
    path = stack.folder / "lists" / f"{deployment}.json"
    before = path.read_text(encoding="utf-8")
    kept = [each for each in json.loads(before) if each["labels"]["replica"] not in replicas]
    path.write_text(json.dumps(kept), encoding="utf-8")

    def list_again() -> None:
        path.write_text(before, encoding="utf-8")

    return list_again


def break_list(stack: LiveStack, deployment: str) -> Undo:
    """Write something to a deployment's list that is no list of targets."""
    path = stack.folder / "lists" / f"{deployment}.json"
    before = path.read_text(encoding="utf-8")
    path.write_text("[{", encoding="utf-8")

    def repair() -> None:
        path.write_text(before, encoding="utf-8")

    return repair


def lock_store(stack: LiveStack) -> Undo:
    """Write to the collector's store from another program, in one transaction that does not end."""
    return hold(stack.folder / "servescope.db", "BEGIN IMMEDIATE")


def hold(database: Path, begin: str) -> Undo:
    """Begin a transaction of a database from another program, which ends when it is undone."""
    connection = sqlite3.connect(database, isolation_level=None, timeout=30)
    connection.execute(begin)

    def let_go() -> None:
        connection.execute("ROLLBACK")
        connection.close()

    return let_go


def break_configuration(stack: LiveStack) -> Undo:
    """Have the collector read a configuration with a wrong value."""
    return _reconfigure(
        stack.collector, stack.folder / "servescope.toml", "scrape_interval = ", "scrape_interval = 0 # "
    )


def slow_down_scrapes(stack: LiveStack, deployment: str) -> Undo:
    """Have the collector ask all targets of a deployment together once a minute."""
    listed = f'/{deployment}.json"]\n'
    return _reconfigure(
        stack.collector, stack.folder / "servescope.toml", listed, f"{listed}max_scrapes_per_minute = 1\n"
    )


def break_prometheus(stack: LiveStack) -> Undo:
    """Have Prometheus read a configuration with a key that does not exist."""
    return _reconfigure(stack.server, stack.folder / "prometheus.yml", "global:\n", "global:\n  no_such_key: 1\n")


def break_alertmanager(stack: LiveStack) -> Undo:
    """Have Alertmanager read a configuration whose route has a receiver that does not exist."""
    return _reconfigure(
        stack.alertmanager,
        stack.folder / "alertmanager.yml",
        "route:\n  receiver: ticket",
        "route:\n  receiver: nobody",
    )


def _reconfigure(program: Program, path: Path, old: str, new: str) -> Undo:
    before = path.read_text(encoding="utf-8")
    if old not in before:
        raise ServescopeError(f"{path.name} has no {old!r}")
    path.write_text(before.replace(old, new, 1), encoding="utf-8")
    program.signal(signal.SIGHUP)

    def restore() -> None:
        path.write_text(before, encoding="utf-8")
        program.signal(signal.SIGHUP)

    return restore


def add_failing_rule(stack: LiveStack) -> Undo:
    """Have Prometheus read a rule that fails whenever it is evaluated, by many-to-many matching."""
    path = stack.folder / "rules" / "failing.rules.yml"
    rule = {"record": "live:targets:product", "expr": "up * on () servescope_target_up"}
    path.write_text(yaml.safe_dump({"groups": [{"name": "servescope-failing", "rules": [rule]}]}), encoding="utf-8")
    stack.server.signal(signal.SIGHUP)

    def take_away() -> None:
        path.unlink()
        stack.server.signal(signal.SIGHUP)

    return take_away


def add_dead_alertmanager(stack: LiveStack) -> Undo:
    """Have Prometheus send its alerts to a second Alertmanager, which does not run."""
    address = stack.alertmanager_url.removeprefix("http://")
    return _reconfigure(
        stack.server,
        stack.folder / "prometheus.yml",
        f"- {address}\n",
        f"- {address}\n      - 127.0.0.1:{free_port()}\n",
    )


def pause_prometheus(stack: LiveStack) -> Undo:
    """Stop Prometheus again and again, each time for that of several evaluations."""
    return _stop_and_go(stack.server, stack.seconds("3m"))


def empty_lists(stack: LiveStack) -> Undo:
    """Have the collector read lists without targets, as of an orchestrator that answers with nothing."""
    nothing = stack.folder / "nothing.json"
    nothing.write_text("[]", encoding="utf-8")
    path = stack.folder / "servescope.toml"
    before = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"(?m)^files = .*$", f"files = [{json.dumps(str(nothing))}]", before), encoding="utf-8")
    stack.collector.signal(signal.SIGHUP)

    def restore() -> None:
        path.write_text(before, encoding="utf-8")
        stack.collector.signal(signal.SIGHUP)

    return restore


def cut_off_all(stack: LiveStack) -> Undo:
    """Let the collector reach no target of any emulator."""
    numbers = [
        (emulator, emulator.switch_on("target-unreachable", deployment=deployed.name)["id"])
        for name, emulator in stack.emulators.items()
        for deployed in EMULATED[name].deployments
    ]

    def let_through() -> None:
        for emulator, number in numbers:
            emulator.switch_off(number)

    return let_through


def shut_receiver(stack: LiveStack, receiver: str) -> Undo:
    """Let a receiver reject Alertmanager's requests."""
    stack.receivers.shut.add(receiver)
    return lambda: stack.receivers.shut.discard(receiver)


def overflow(stack: LiveStack) -> Undo:
    """Let a target show new series with every scrape."""
    stack.exporter.overflows.set()
    return stack.exporter.overflows.clear


def delay_tokens(stack: LiveStack, frontend: str, duration: str = "") -> Undo:
    """Let the tokens of a frontend come late, for a while where one is given; undoing is to wait for that."""
    late = stack.frontends[frontend].is_late
    late.set()
    if not duration:
        return late.clear
    timer = threading.Timer(stack.seconds(duration), late.clear)
    timer.start()
    return timer.join


def starve_collector(stack: LiveStack) -> Undo:
    """Stop the collector half of the time, as on an overloaded machine."""
    return _stop_and_go(stack.collector, _STARVED_SECONDS)


def kill_collector(stack: LiveStack) -> Undo:
    """Kill the collector."""
    stack.collector.signal(signal.SIGKILL)
    return lambda: _start_collector(stack)


def _start_collector(stack: LiveStack) -> None:
    # One that was killed is still to be waited for.
    stack.collector.end()
    stack.collector.start()
    stack.collector.wait_until_ready()


def surge(stack: LiveStack, text: str, deployment: str) -> Undo:
    """Have a deployment's emulator get more traffic."""
    emulator, fault = stack.emulators[find_emulator(deployment)], parse_fault(text)
    number: int = emulator.switch_on(fault.kind.name, fault.intensity)["id"]

    def end() -> None:
        emulator.switch_off(number)

    return end


def lose_requests(stack: LiveStack, deployment: str, replica: str) -> Undo:
    """Half of a replica's requests leave and stay in flight, until its process restarts."""
    emulator = stack.emulators[find_emulator(deployment)]
    number: int = emulator.switch_on("requests-lost", 0.5, deployment=deployment, replica=replica)["id"]

    def restart() -> None:
        emulator.switch_off(number)
        emulator.switch_on("restarts", 1440, deployment=deployment, replica=replica, seconds=90)

    return restart


def move_traffic(stack: LiveStack, deployment: str, share: float) -> Undo:
    """Give a deployment another share of its emulator's traffic."""
    emulator = stack.emulators[find_emulator(deployment)]
    before = emulator.read_traffic_split()
    emulator.set_share(deployment, share)

    def move_back() -> None:
        emulator.set_share(deployment, before[deployment])

    return move_back


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


# --- The export to customers ------------------------------------------------------------------------------------------


def refuse_export(stack: LiveStack, customer: str) -> Undo:
    """A customer's backend answers 503."""
    stack.backend.statuses[customer] = 503

    def accept() -> None:
        del stack.backend.statuses[customer]

    return accept


def slow_down_export(stack: LiveStack, customer: str) -> Undo:
    """A customer's backend accepts each request after 100 seconds."""
    stack.backend.slow.add(customer)

    def answer_at_once() -> None:
        stack.backend.slow.remove(customer)
        stack.backend.released.set()

    return answer_at_once


def reject_export(stack: LiveStack, customer: str) -> Undo:
    """A customer's backend refuses for good; undone, the export begins anew, as a gap is reported for an hour."""
    stack.backend.statuses[customer] = 400

    def accept() -> None:
        del stack.backend.statuses[customer]
        stack.export.start_again()

    return accept


def withhold_export(stack: LiveStack, customer: str) -> Undo:
    """A customer's policy lists a metric that its deployment does not report, then SIGHUP."""
    path = stack.folder / CONFIGURATION
    before = path.read_text(encoding="utf-8")
    head, name, policy = before.partition(f'name = "{customer}"')
    path.write_text(f"{head}{name}{policy.replace(METRIC, OTHER_METRIC, 1)}", encoding="utf-8")
    stack.export.signal(signal.SIGHUP)

    def restore() -> None:
        path.write_text(before, encoding="utf-8")
        stack.export.signal(signal.SIGHUP)

    return restore


def kill_export(stack: LiveStack) -> Undo:
    """Kill the export to customers."""
    stack.export.signal(signal.SIGKILL)
    return stack.export.start_again


def _stop_and_go(program: Program, seconds: float) -> Undo:
    """Have a program stop for so long again and again, and run for as long in between."""
    ended = threading.Event()

    def stop_and_go() -> None:
        while not ended.is_set():
            program.signal(signal.SIGSTOP)
            ended.wait(seconds)
            program.signal(signal.SIGCONT)
            ended.wait(seconds)

    return _until_undone(stop_and_go, ended)


def _until_undone(go_on: Callable[[], None], ended: threading.Event) -> Undo:
    """Have something go on in a thread until `ended` is set by undoing it."""
    thread = threading.Thread(target=go_on, name="servescope-live-harm", daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join()

    return end
