"""The judge of the running stack, which watches a cutover between two of its deployments on its Prometheus."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import Final

from servescope.contract.own_metrics import OWN_METRICS
from servescope.errors import ServescopeError
from tests.proofs.live.deployments import find_emulator
from tests.proofs.live.harm import Undo, hold, move_traffic
from tests.proofs.live.stack import LiveStack, Program
from tests.support.prometheus import free_port

OLD, NEW = "judged-v1", "judged-v2"
"""The deployments of the cutover."""
_CUTOVER = "cutover"

_START_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 1.0


def idle_judge(stack: LiveStack) -> Undo:
    """Have a judge begin while v2 gets no request; undone, it judges a new run."""
    move_back = move_traffic(stack, NEW, 0.0)
    _start_judge(stack)

    def undo() -> None:
        move_back()
        _begin(stack)

    return undo


def blind_judge(stack: LiveStack) -> Undo:
    """Have a judge judge a new run while v2 cannot be scraped; undone, it judges another."""
    judge_again = _break_new(stack, "target-unreachable")
    _begin(stack)
    return judge_again


def harm_cutover(stack: LiveStack) -> Undo:
    """Let requests fail on v2 of a cutover whose judge runs; undone, it judges a new run, as harm stays proven."""
    return _break_new(stack, "error-burst", 0.4)


def _break_new(stack: LiveStack, fault: str, intensity: float | None = None) -> Undo:
    """Switch a fault of v2 on beside a judge that runs; undone, it judges a new run without the fault."""
    _running_judge(stack)
    emulator = stack.emulators[find_emulator(NEW)]
    number: int = emulator.switch_on(fault, intensity, deployment=NEW)["id"]

    def undo() -> None:
        emulator.switch_off(number)
        _begin(stack)

    return undo


def kill_judge(stack: LiveStack) -> Undo:
    """Kill the judge of a cutover."""
    judge = _running_judge(stack)
    judge.signal(signal.SIGKILL)
    return judge.start_again


def lock_journal(stack: LiveStack) -> Undo:
    """Hold the journal of a cutover in another program, so that its judge cannot read it."""
    _running_judge(stack)
    return hold(stack.folder / f"{_CUTOVER}.journal.db", "BEGIN EXCLUSIVE")


# --- The program ------------------------------------------------------------------------------------------------------


def _running_judge(stack: LiveStack) -> Program:
    """The judge, which is started where none runs yet, once Prometheus has scraped it."""
    judge = stack.judges.get(_CUTOVER) or _start_judge(stack)
    deadline = time.monotonic() + _START_SECONDS
    while not _is_scraped(stack):
        if time.monotonic() > deadline:
            raise ServescopeError(f"the judge was not scraped within {_START_SECONDS:g} s")
        time.sleep(_LOOK_SECONDS)
    return judge


def _start_judge(stack: LiveStack) -> Program:
    """Begin a run of the plan, watch it, and have Prometheus scrape that."""
    (stack.folder / f"{_CUTOVER}.toml").write_text(
        f'name = "{_CUTOVER}"\n[arms]\nv1 = {{ deployment_id = "{OLD}" }}\nv2 = {{ deployment_id = "{NEW}" }}\n'
        "[[stages]]\nshare = 0.5\n",
        encoding="utf-8",
    )
    _begin(stack)
    address = f"127.0.0.1:{free_port()}"
    command = [*_command("watch", stack), "--listen", address]
    judge = stack.judges[_CUTOVER] = Program("judge", command, stack.folder, f"http://{address}/healthz")
    judge.start()
    judge.wait_until_ready()
    (stack.folder / "judges" / "judge.json").write_text(json.dumps([{"targets": [address]}]), encoding="utf-8")
    return judge


def _begin(stack: LiveStack) -> None:
    """Begin a run of the plan, in place of the one that is under way."""
    command = [*_command("start", stack), "--replace", "--by", "live", "--reason", "a new attempt"]
    done = subprocess.run(command, cwd=stack.folder, capture_output=True, text=True)
    if done.returncode:
        raise ServescopeError(f"judge start: {done.stderr}")


def _is_scraped(stack: LiveStack) -> bool:
    name = OWN_METRICS["servescope_judgement_age_seconds"].name
    return bool(stack.prometheus.answer("/api/v1/query", query=name)["data"]["result"])


def _command(verb: str, stack: LiveStack) -> list[str]:
    past = [f"--plan={stack.folder / f'{_CUTOVER}.toml'}", f"--prometheus=http://127.0.0.1:{stack.prometheus.port}"]
    return [sys.executable, "-m", "servescope.cli", "judge", verb, *past]
