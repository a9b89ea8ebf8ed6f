"""Judges of the running stack: each watches a cutover between the same two deployments, by a plan of its own."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.request import urlopen

from servescope.contract.own_metrics import OWN_METRICS
from servescope.errors import ServescopeError
from tests.live.deployments import find_emulator
from tests.live.stack import LiveStack, Program
from tests.support.prometheus import free_port

Undo = Callable[[], None]
OLD, NEW = "judged-v1", "judged-v2"
"""The deployments of the cutover."""
_CUTOVER, _LATE = "cutover", "late-cutover"

# Blocks are of five minutes of the wall clock: a judge knows no faster one.
_SETTLE_SECONDS: Final = 900.0
_LOOK_SECONDS: Final = 1.0


def blind_judge(stack: LiveStack) -> Undo:
    """Have a judge begin while v2 cannot be scraped; undone, it judges a new run."""
    emulator = stack.emulators[find_emulator(NEW)]
    number: int = emulator.switch_on("target-unreachable", deployment=NEW)["id"]
    _start_judge(stack, _CUTOVER)

    def undo() -> None:
        emulator.switch_off(number)
        _begin(stack, _CUTOVER)

    return undo


def harm_cutover(stack: LiveStack) -> Undo:
    """Let requests fail on v2 of a cutover whose judge runs; undone, it judges a new run, as harm stays proven."""
    emulator = stack.emulators[find_emulator(NEW)]
    number: int = emulator.switch_on("error-burst", 0.4, deployment=NEW)["id"]

    def undo() -> None:
        emulator.switch_off(number)
        _begin(stack, _CUTOVER)

    return undo


def kill_judge(stack: LiveStack) -> Undo:
    """Kill a judge that runs, and one that is started first if none does."""
    judge = stack.judges.get(_CUTOVER) or _start_judge(stack, _CUTOVER)
    _wait_until(lambda: bool(_scraped(stack, _CUTOVER)), "the judge was not scraped")
    judge.signal(signal.SIGKILL)

    def start_again() -> None:
        # One that was killed is still to be waited for.
        judge.end()
        judge.start()
        judge.wait_until_ready()

    return start_again


def lock_journal(stack: LiveStack) -> Undo:
    """Hold the journal of a cutover in another program, so that its judge cannot read it."""
    judge = _start_judge(stack, _LATE, shown=False)
    # Until it has data it would fire for the lack of them.
    _wait_until(lambda: _read_verdict(judge) != "NO DATA", "the judge has no data")
    _show(stack, _LATE, judge)
    connection = sqlite3.connect(stack.folder / f"{_LATE}.journal.db", isolation_level=None, timeout=30)
    connection.execute("BEGIN EXCLUSIVE")

    def release() -> None:
        connection.execute("ROLLBACK")
        connection.close()

    return release


# --- Their programs ---------------------------------------------------------------------------------------------------


def _start_judge(stack: LiveStack, plan: str, *, shown: bool = True) -> Program:
    """Begin a run of a plan of this name, and watch it."""
    (stack.folder / f"{plan}.toml").write_text(
        f'name = "{plan}"\n[arms]\nv1 = {{ deployment_id = "{OLD}" }}\nv2 = {{ deployment_id = "{NEW}" }}\n'
        "[[stages]]\nshare = 0.5\n",
        encoding="utf-8",
    )
    _begin(stack, plan)
    address = f"127.0.0.1:{free_port()}"
    command = [*_command("watch", stack, plan), "--listen", address]
    judge = stack.judges[plan] = Program(f"judge-{plan}", command, stack.folder, f"http://{address}/healthz")
    judge.start()
    judge.wait_until_ready()
    if shown:
        _show(stack, plan, judge)
    return judge


def _show(stack: LiveStack, plan: str, judge: Program) -> None:
    """Have Prometheus scrape a judge."""
    address = judge.ready_url.removeprefix("http://").removesuffix("/healthz")
    (stack.folder / "judges" / f"{plan}.json").write_text(json.dumps([{"targets": [address]}]), encoding="utf-8")


def _begin(stack: LiveStack, plan: str) -> None:
    """Begin a run of a plan, in place of the one that is under way."""
    command = [*_command("start", stack, plan), "--replace", "--by", "live", "--reason", "a new attempt"]
    done = subprocess.run(command, cwd=stack.folder, capture_output=True, text=True)
    if done.returncode:
        raise ServescopeError(f"judge start: {done.stderr}")


def _read_verdict(judge: Program) -> str:
    with urlopen(judge.ready_url.replace("/healthz", "/judgement"), timeout=20) as answer:
        shown: dict[str, Any] = json.load(answer)
    return str(shown["verdict"])


def _scraped(stack: LiveStack, plan: str) -> list[Any]:
    name = OWN_METRICS["servescope_judgement_age_seconds"].name
    found: list[Any] = stack.prometheus.answer("/api/v1/query", query=f'{name}{{plan="{plan}"}}')["data"]["result"]
    return found


def _command(verb: str, stack: LiveStack, plan: str) -> list[str]:
    past = ["--plan", str(stack.folder / f"{plan}.toml"), "--prometheus", f"http://127.0.0.1:{stack.prometheus.port}"]
    return [sys.executable, "-m", "servescope.cli", "judge", verb, *past]


def _wait_until(holds: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + _SETTLE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise ServescopeError(f"{problem} within {_SETTLE_SECONDS:g} s")
        time.sleep(_LOOK_SECONDS)
