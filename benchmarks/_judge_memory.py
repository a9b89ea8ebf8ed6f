"""How much memory a judgement takes of a run that is days, months or most of a year old, and how long.

The past repeats one day of every target, made up as it is read: what is measured is the judge, and no store.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from benchmarks._judge_counting import SCRAPE_INTERVAL_MS
from benchmarks._judge_requests import BLOCKS_PER_DAY, EPOCH_MS
from benchmarks._judge_speed import fleet
from benchmarks._judge_trials import one_stage
from servescope.contract.events import Event
from servescope.contract.identity import Deployment
from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.plan.plan import Stage
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from servescope.judge.case import WatchedCase, freeze_plan
from servescope.store.records import RecordedSettings, TargetStatus

V1_REPLICAS, V2_REPLICAS = 18, 7
"""With a router for each stack, and an autoscaler, 28 targets."""
_DAY_MS: Final = BLOCKS_PER_DAY * BLOCK_MS
_STARTED_MS: Final = EPOCH_MS + 26 * 3_600_000
_SETTLED_MS: Final = 60_000
_STAGE_DAYS: Final = 7
"""How long a stage is, where a run has several."""


class RepeatedPast:
    """The past of targets that do every day what they did on the first."""

    def __init__(self, targets: Sequence[TargetIncrements]) -> None:
        self._targets = targets
        self.now_ms = 0

    def deployments(self) -> list[Deployment]:
        return sorted({target.identity.deployment() for target in self._targets})

    def targets(self) -> list[TargetStatus]:
        return [
            TargetStatus(each.target_id, "", each.identity, healthy=True, last_success_ms=self.now_ms)
            for each in self._targets
        ]

    def read_increments(
        self, deployment: Deployment, names: Sequence[str], start_ms: int, end_ms: int
    ) -> list[TargetIncrements]:
        first = max(0, -(-(start_ms - EPOCH_MS) // BLOCK_MS))
        numbers = np.arange(first, (min(end_ms, self.now_ms) - EPOCH_MS) // BLOCK_MS)
        return [
            replace(each.at(numbers % BLOCKS_PER_DAY), blocks=EPOCH_MS + numbers * BLOCK_MS)
            for each in self._targets
            if each.identity.deployment() == deployment
        ]

    def read_events(self, start_ms: int, end_ms: int) -> list[Event]:
        return []

    def settings_at(self, _: int) -> RecordedSettings:
        return RecordedSettings(BLOCK_MS, BLOCK_MS, SCRAPE_INTERVAL_MS, "closed")

    def remarks(self) -> tuple[str, ...]:
        return ()


def measure_memory(days: Sequence[int]) -> None:
    """Print the memory and the time of the first judgement of runs of so many days, and of the one after it."""
    print(f"{V1_REPLICAS + V2_REPLICAS + 3} targets, the first judgement of a run and the next, after one more block")
    for kind in ("one stage", f"stages of {_STAGE_DAYS} d"):
        for length in days:
            command = [sys.executable, "-m", "benchmarks._judge_memory", str(length), kind]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            found = json.loads(done.stdout)
            print(
                f"  {length:4d} d, {kind:14s} most memory {found['bytes'] / 2**20:6.0f} MiB, "
                f"first {found['first']:6.1f} s, next {found['next']:6.2f} s, {found['verdict']}",
                flush=True,
            )


def _measure(days: int, kind: str) -> dict[str, object]:
    past = RepeatedPast(fleet(V1_REPLICAS, V2_REPLICAS))
    share = V2_REPLICAS / (V1_REPLICAS + V2_REPLICAS)
    count = 1 if kind == "one stage" else -(-days // _STAGE_DAYS)
    plan = replace(one_stage(share, calibration="25h"), stages=(Stage(share),) * count)
    past.now_ms = _STARTED_MS
    frozen = freeze_plan(past, plan, _STARTED_MS)  # type: ignore[arg-type] # only what a judge reads
    decisions = [Decision("start", _STARTED_MS, stage=0)] + [
        Decision("advance", _STARTED_MS + stage * _STAGE_DAYS * _DAY_MS, "ada", "proven", stage=stage)
        for stage in range(1, count)
    ]
    case = WatchedCase(past)  # type: ignore[arg-type] # only what a judge reads
    seconds = []
    for block in range(2):
        past.now_ms = _STARTED_MS + days * _DAY_MS + block * BLOCK_MS + _SETTLED_MS
        began = time.process_time()
        judgement = case.judge(frozen, decisions, past.now_ms)
        seconds.append(time.process_time() - began)
    return {
        "first": seconds[0], "next": seconds[1], "verdict": judgement.verdict,
        "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(_measure(int(sys.argv[1]), sys.argv[2])))
