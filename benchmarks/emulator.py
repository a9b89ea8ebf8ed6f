"""How fast the emulator replays a public trace: `servescope replay` with its defaults, on one core.

The trace is Mooncake's of conversations, which is not part of the project; `--trace` says where it lies. Every row is
a process of its own that may run on one core, as a user would start it: reading the trace is in its time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._dynamo import find_dynamo, replay_with_dynamo
from servescope.emulator.router.configuration import KvRouterParameters

_TRACE = "traces/conversation_trace.jsonl"
_MIB = 1 << 20
_WEIGHED = KvRouterParameters()
_ENVIRONMENTS = Path(__file__).parents[1] / ".cache" / "real"
# What the emulator is asked for, on the machine the project is developed on.
_TARGET_SECONDS, _TARGET_MIB = 60.0, 2048.0

# Pins itself to one core and is the command from then on; `leaps` turned off, engines go through every step.
_COMMAND = """
import os, sys
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
from servescope.cli import main
if sys.argv[1] == "steps":
    from servescope.emulator.engine.engine import Engine
    Engine.__init__.__kwdefaults__["leaps"] = False
sys.exit(main(sys.argv[2:]))
"""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One replay as a process: what it printed, and what it used."""

    report: dict[str, Any]
    seconds: float
    cpu_seconds: float
    peak_mib: float

    @property
    def digest(self) -> str:
        """A digest of every figure, to the last bit."""
        return hashlib.sha256(json.dumps(self.report["figures"], sort_keys=True).encode()).hexdigest()[:12]


def configure(parser: argparse.ArgumentParser) -> None:
    """Take the trace to replay."""
    folder = Path(os.environ.get("SERVESCOPE_REFERENCE", Path(__file__).parents[2] / "shared"))
    parser.add_argument(
        "--trace", type=Path, default=folder / _TRACE, help="a Mooncake trace for `emulator` (default: %(default)s)"
    )
    parser.add_argument(
        "--environments", type=Path, default=_ENVIRONMENTS,
        help="where `make real` has installed NVIDIA Dynamo, for its row of `emulator` (default: %(default)s)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Print what a replay takes, against going step by step, and whether the seed decides the result."""
    trace: Path = arguments.trace
    if not trace.is_file():
        print(f"emulator: no trace at {trace}: left out; --trace FILE names one")
        return
    leaping = replay(trace)
    rows = {
        "as it is": leaping,
        "again, same seed": replay(trace),
        "another seed": replay(trace, "--seed", "2"),
        "every step on its own": replay(trace, leaps=False),
    }
    report = leaping.report
    requests, prompt_tokens = report["requests"], report["trace"]["input_tokens"]
    print(f"{trace.name}: {requests} requests, {prompt_tokens / 1e6:.1f} million prompt tokens, over")
    print(
        f"{report['seconds']:.0f} s of the virtual clock, on {report['replay']['workers']} workers behind the KV router"
    )
    print(f"{'':<24}{'seconds':>9}{'CPU s':>9}{'requests/s':>12}{'Mtokens/s':>11}{'peak MiB':>10}  result")
    for name, row in rows.items():
        rate, tokens = requests / row.seconds, prompt_tokens / row.seconds / 1e6
        figures = f"{row.seconds:9.1f}{row.cpu_seconds:9.1f}{rate:12.0f}{tokens:11.1f}{row.peak_mib:10.0f}"
        print(f"{name:<24}{figures}  {row.digest}")
    _print_dynamo(arguments.environments, trace, leaping)
    print(f"{report['seconds'] / leaping.seconds:.0f} times as fast as time;", end=" ")
    print(f"1/{_TARGET_SECONDS / leaping.seconds:.0f} of the {_TARGET_SECONDS:.0f} s and", end=" ")
    print(f"1/{_TARGET_MIB / leaping.peak_mib:.0f} of the {_TARGET_MIB:.0f} MiB it may take")


def _print_dynamo(environments: Path, trace: Path, leaping: Replayed) -> None:
    """Dynamo's own replay on as many workers with as much cache, weighing alike; how long a step takes is its own."""
    python = find_dynamo(environments)
    if python is None:
        print(f"no NVIDIA Dynamo in {environments}: `make real` installs it; its row is left out")
        return
    settings = leaping.report["replay"]
    row = replay_with_dynamo(
        python, trace, workers=settings["workers"], cache_blocks=settings["cache_blocks"],
        block_tokens=settings["block_tokens"], max_batch_size=settings["max_batch_size"],
        max_num_tokens=settings["max_num_tokens"], prefill_load_scale=_WEIGHED.router_overlap_score_weight,
        temperature=_WEIGHED.router_temperature,
    )  # fmt: skip
    rate, tokens = row.requests / row.seconds, row.prompt_tokens / row.seconds / 1e6
    figures = f"{row.seconds:9.1f}{row.cpu_seconds:9.1f}{rate:12.0f}{tokens:11.1f}{row.peak_mib:10.0f}"
    ours = leaping.report["figures"]["kv_cache_hit_rate"]
    print(f"{'NVIDIA Dynamo, its own':<24}{figures}  hit rate {row.hit_rate:.1%}, ours {ours:.1%}")
    times, memory = row.seconds / leaping.seconds, row.peak_mib / leaping.peak_mib
    print(f"Dynamo's takes {times:.2f} times as long, {memory:.1f} times", end=" ")
    print("the memory; it keeps each request's times, not a page of counters and histograms for each worker")


def replay(trace: Path, *options: str, leaps: bool = True) -> Replayed:
    """Replay a trace in a process that has one core."""
    mode = "leaps" if leaps else "steps"
    command = [sys.executable, "-c", _COMMAND, mode, "replay", str(trace), "--format", "json", *options]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"servescope replay ended with {process.returncode}")
    return Replayed(json.loads(output), seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / _MIB)
