"""Compare the routers: `python -m tests.proofs.truth`, or `--help`.

Ends with 0 when every figure agrees within 5 points or its difference is explained, 1 when one does not or Dynamo
cannot be had, 2 for wrong arguments. Everything listens on 127.0.0.1 and is ended by its process id.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.proofs.real.environments import DYNAMO, DYNAMO_VERSION, ensure_environment
from tests.proofs.truth.dynamo import run_real
from tests.proofs.truth.emulated import run_emulated
from tests.proofs.truth.report import MARKERS, Compared, TraceCompared, apart, holds, render
from tests.proofs.truth.settings import CONCURRENCY, SETTINGS, TRACE_SETTINGS, WORKERS, make_prompts
from tests.proofs.truth.traces import replay_emulated, replay_real
from tests.support.proofs import make_parser, parse, run_in_folder

ROOT = Path(__file__).parents[3]
_REFERENCE = Path(os.environ.get("SERVESCOPE_REFERENCE", ROOT.parent / "shared"))


def main(words: Sequence[str] | None = None) -> int:
    """Run the comparison as the arguments ask."""
    arguments = _parse(words)
    return run_in_folder("tests.proofs.truth", lambda folder: _compare(arguments, folder), keep=arguments.keep)


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("tests.proofs.truth", "The emulated router beside Dynamo's real one, on the same prompts.")
    parser.add_argument("--requests", type=int, default=600, metavar="N", help="prompts of each setting (default: 600)")
    parser.add_argument(
        "--trace", type=Path, default=_REFERENCE / "traces" / "conversation_trace.jsonl",
        help="a Mooncake trace, left out when it is not there (default: %(default)s)",
    )  # fmt: skip
    return parse(parser, words, MARKERS, requests=1)


def _compare(arguments: argparse.Namespace, logs: Path) -> int:
    live: list[Compared] = []
    for setting in SETTINGS:
        prompts = make_prompts(setting.traffic, arguments.requests)
        ours = run_emulated(setting, prompts)
        live.append(Compared(setting, ours, run_real(setting, prompts, environments=arguments.environments, logs=logs)))
        _print(live[-1], f"{setting.traffic}, {setting.cache_blocks} blocks")
    traces: list[TraceCompared] = []
    if arguments.trace.is_file():
        python = ensure_environment(arguments.environments, DYNAMO) / "bin" / "python"
        for replayed in TRACE_SETTINGS:
            hit_rate = replay_emulated(replayed, arguments.trace)
            traces.append(TraceCompared(replayed, hit_rate, replay_real(replayed, arguments.trace, python=python)))
            _print(traces[-1], f"{arguments.trace.name}, {replayed.cache_blocks} blocks")
    else:
        print(f"no trace at {arguments.trace}: left out; --trace FILE names one")
    if arguments.report is not None:
        MARKERS.write(arguments.report, render(_facts(arguments.requests), live, traces))
    made: list[Compared | TraceCompared] = [*live, *traces]
    wrong = [compared for compared in made if not holds(compared)]
    print(f"{len(made) - len(wrong)} of {len(made)} settings agree, or are explained")
    return 1 if wrong else 0


def _print(compared: Compared | TraceCompared, what: str) -> None:
    setting = compared.setting
    figures = ", ".join(f"{name} {ours:.3f} and {real:.3f}" for name, (ours, real) in compared.pairs.items())
    mark = "ok  " if holds(compared) else "FAIL"
    print(
        f"{mark} {what}, weight {setting.weight_shown}, T {setting.temperature:g}: {figures}; "
        f"{100 * apart(compared):.1f} points apart",
        flush=True,
    )


def _facts(requests: int) -> dict[str, str]:
    return {
        "Run": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores, {platform.machine()}",
        "Real": f"NVIDIA Dynamo {DYNAMO_VERSION}: frontend with KV router, {WORKERS} mock workers, on loopback",
        "Prompts": f"{requests} of each kind in the same order to both, {CONCURRENCY} at once",
        "In each cell": "ours, then Dynamo's",
    }


if __name__ == "__main__":
    sys.exit(main())
