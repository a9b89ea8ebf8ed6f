"""The hit rate on a public trace: Dynamo's own replay of it, and ours with workers that take as long."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks._dynamo import replay_with_dynamo
from servescope.emulator.deployment.deployment import EmulatedDeployment
from servescope.emulator.deployment.sizing import WorkerSettings
from servescope.emulator.deployment.stack import EmulatedStack
from servescope.emulator.replay import ReplaySettings, plan_workers
from servescope.emulator.router.configuration import KvRouterParameters
from servescope.emulator.workload.plans import ReplayedTraffic
from servescope.emulator.workload.traces import survey_trace
from tests.proofs.truth.emulated import COST, clamp_costs, read_figures
from tests.proofs.truth.settings import TraceSetting


def replay_emulated(setting: TraceSetting, trace: Path) -> float:
    """Our hit rate; requests arrive when the trace says, as they do in Dynamo's replay."""
    plan = plan_workers(ReplaySettings(engine=WorkerSettings(blocks=setting.cache_blocks)), survey_trace(trace))
    plan = replace(
        plan, routing=KvRouterParameters(setting.weight, setting.temperature), engine=replace(plan.engine, cost=COST)
    )
    stack = EmulatedStack.of([(plan, 1.0)], traffic=ReplayedTraffic(trace, jitter_seconds=0.0), seed=1)
    (deployment,) = stack.deployments
    assert isinstance(deployment, EmulatedDeployment)
    if setting.clamped:
        clamp_costs(deployment.router)
    while not stack.traffic.ended or deployment.in_flight:
        stack.clock.run_until(stack.clock.now + 1.0)
    return read_figures(deployment).hit_rate


def replay_real(setting: TraceSetting, trace: Path, *, python: Path) -> float:
    """Dynamo's hit rate."""
    scaled = setting.weight_is == "scale"
    return replay_with_dynamo(
        python,
        trace,
        cache_blocks=setting.cache_blocks,
        credit=1.0 if scaled else setting.weight,
        prefill_load_scale=setting.weight if scaled else 1.0,
        temperature=setting.temperature,
    ).hit_rate
