"""An emulated v1, recorded as a collector records it, beside the tokens that were really in flight."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from servescope.emulator.deployment.autoscaler import Load
from servescope.emulator.deployment.plan import DeploymentPlan
from servescope.emulator.deployment.stack import V1, EmulatedStack
from servescope.emulator.faults.faults import Faults
from servescope.emulator.scenario.recording import START_MS, StackRecorder
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.migration.traffic.traffic import ServedTraffic
from servescope.migration.traffic.traffic_reading import find_deployment, read_traffic
from servescope.store.embedded import Store
from tests.support.kept import kept

_INTERVAL_MS = 30_000


@dataclass(frozen=True, eq=False)
class EmulatedPast:
    """A store, and by block of five minutes what an autoscaler of tokens would have seen of it: (n,) means."""

    store: Path
    end_ms: int
    tokens: NDArray[np.float64]
    requests: NDArray[np.float64]


def kept_past(name: str, *, minutes: int, mix: Mix) -> EmulatedPast:
    """What `record_past` makes, kept under this name, to be read only."""

    def make(folder: Path) -> None:
        past = record_past(folder / "v1.db", minutes=minutes, mix=mix)
        np.savez(folder / "seen.npz", end_ms=past.end_ms, tokens=past.tokens, requests=past.requests)

    folder = kept(name, make, minutes, mix)
    with np.load(folder / "seen.npz") as seen:
        return EmulatedPast(folder / "v1.db", int(seen["end_ms"]), seen["tokens"], seen["requests"])


def read_served(past: EmulatedPast) -> ServedTraffic:
    """What was served, as the store has it."""
    with Store(past.store, read_only=True) as store:
        return read_traffic(store, find_deployment(store, None), START_MS, past.end_ms)


def record_past(path: Path, *, minutes: int, mix: Mix, plan: DeploymentPlan = V1, seed: int = 1) -> EmulatedPast:
    """Emulate a deployment for so many minutes of its own time, a multiple of five."""
    stack = EmulatedStack.of([(plan, 1.0)], traffic=GeneratedTraffic(mix), seed=seed, epoch=START_MS / 1000)
    deployment = stack.deployments[0]
    seen: list[tuple[float, float]] = []
    evaluate = deployment.autoscaler.evaluate

    def watched(now: float, load: Load) -> int:
        seen.append((load.in_flight_tokens, load.requests))
        return evaluate(now, load)

    with Store.begin(path) as store, patch.object(deployment.autoscaler, "evaluate", watched):
        recorder = StackRecorder(stack, Faults(stack, []), store, start_ms=START_MS, interval_ms=_INTERVAL_MS)
        recorder.run_until(minutes * 60)
        recorder.finish()
    blocks = np.array(seen).reshape(minutes // 5, -1, 2).mean(axis=1)
    return EmulatedPast(path, START_MS + minutes * 60_000 + 60_000, blocks[:, 0], blocks[:, 1])
