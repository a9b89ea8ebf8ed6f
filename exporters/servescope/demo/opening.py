"""What the demo opens on: a stack that runs, the two days it has behind it, and the run of a plan that is under way."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.plan.files import parse_plan
from servescope.demo.pacing import FULL_SPEED, NEVER
from servescope.demo.past import PastLoad, write_past
from servescope.emulator.deployment.stack import EmulatedStack
from servescope.emulator.faults.faults import Faults
from servescope.emulator.scenario.deployment_settings import DescribedDeployment
from servescope.emulator.scenario.recording import StackRecorder
from servescope.emulator.scenario.scenario import Scenario, read_scenario
from servescope.emulator.server.server import format_configuration
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.errors import ServescopeError
from servescope.increments.blocks import BLOCK_MS
from servescope.judge.case import freeze_plan, judge_case
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import start_run, summarise, write_decision
from servescope.settings.clock import EmulatedTime
from servescope.settings.tables import read_document
from servescope.settings.values import format_duration
from servescope.store.embedded import Store

INTERVAL_SECONDS: Final = 60
"""From one scrape to the next, of the emulation."""

OLD: Final = "chat-v1"
CLOCK: Final = "clock"
PLAN: Final = "cutover.toml"
JOURNAL: Final = "cutover.journal"
STORE: Final = "servescope.db"

_HERE = Path(__file__).parent
_HOUR_MS: Final = 3_600_000
_DAY_SECONDS: Final = 86_400
# Long ago, so that the emulation does not overtake the calendar: 28 days take eleven hours.
_DAYS_AGO: Final = 28
_MORNING_SECONDS: Final = 11 * 3600
# The first of these minutes fill caches and are not kept.
_EMULATED_SECONDS: Final = 900
_COLD_SECONDS: Final = 300
_PAST_HOURS: Final = 48
# The stages so far: when each began, and its share.
_OLD_AGE_SECONDS: Final = 240.0 * 3600
_NEW_AGE_SECONDS: Final = 9.0 * 3600
_WHO: Final = "the demo"
_STAGES: Final = ((-9 * _HOUR_MS, 0.05), (-6 * _HOUR_MS, 0.25))


def choose_opening() -> float:
    """When the demo opens, in Unix seconds of the emulation: on a morning some weeks ago."""
    return (time.time() // _DAY_SECONDS - _DAYS_AGO) * _DAY_SECONDS + _MORNING_SECONDS


@dataclass(frozen=True, slots=True)
class Opening:
    """A stack at the present of the clock, with its faults; its past is in the store.

    `opened_seconds` have passed of the stack's clock. `configuration` is what a collector needs to go on from there.
    """

    stack: EmulatedStack
    faults: Faults
    opened_seconds: float
    configuration: str


def put_files(folder: Path, opens_at: float) -> None:
    """Put the plan, an empty store and a clock that does not run yet into the folder, in place of an earlier demo's."""
    for path in (*folder.glob(f"{STORE}*"), *folder.glob(f"{JOURNAL}*")):
        path.unlink()
    shutil.copyfile(_HERE / PLAN, folder / PLAN)
    EmulatedTime(NEVER, opens_at, FULL_SPEED).write(folder / CLOCK)
    Store.begin(folder / STORE).close()


def open_cutover(folder: Path, opens_at: float) -> Opening:
    """Emulate a few minutes, and write the past that they show and the run of the plan into `folder`.

    `put_files` has put there what it needs.
    """
    scenario = _read_scenario()
    opened_ms = round(opens_at * 1000)
    start_ms = opened_ms - _EMULATED_SECONDS * 1000
    stack = scenario.build(epoch=start_ms / 1000)
    faults = Faults(stack)
    kept_ms = start_ms + _COLD_SECONDS * 1000
    with Store(folder / STORE) as store:
        recorder = StackRecorder(
            stack, faults, store, start_ms=start_ms, interval_ms=INTERVAL_SECONDS * 1000, from_ms=kept_ms,
            log_shares=False,
        )  # fmt: skip
        recorder.run_until(_EMULATED_SECONDS)
        emulated = recorder.windows(kept_ms)
        recorder.finish()
        blocks = np.arange(opened_ms - _PAST_HOURS * _HOUR_MS, kept_ms, BLOCK_MS)
        loads = {
            described.plan.identity.deployment_id: _load(scenario, described, blocks - start_ms, opened_ms)
            for described in scenario.deployments
        }
        write_past(store, emulated, loads, blocks, seed=scenario.seed)
        while store.pack_idle(opened_ms):
            pass
        _begin_run(folder, store, opened_ms)
    return Opening(stack, faults, stack.clock.now, _configure_collector(stack))


def _configure_collector(stack: EmulatedStack) -> str:
    interval = format_duration(INTERVAL_SECONDS * 1000)
    text = format_configuration(stack.deployments, scrape_interval=interval, window="5m")
    # It measures seconds of this machine, and would wait for minutes of the emulation.
    return f'{text}\n[alerting]\ndisable = ["ServescopeEventLoopLags"]\n'


def _read_scenario() -> Scenario:
    """The scenario, with deployments as old as they are in the demo's past."""
    scenario = read_scenario(_HERE / "scenario.toml").reporting_together()
    aged = []
    for each in scenario.deployments:
        age_seconds = _OLD_AGE_SECONDS if each.plan.identity.deployment_id == OLD else _NEW_AGE_SECONDS
        aged.append(each._replace(plan=replace(each.plan, opens_seconds=-age_seconds)))
    return replace(scenario, deployments=tuple(aged))


def _load(
    scenario: Scenario, described: DescribedDeployment, since_start_ms: NDArray[np.int64], opened_ms: int
) -> PastLoad:
    """The load of a deployment in the blocks of the past: its share, of what the time of day brings."""
    if not isinstance(scenario.traffic, GeneratedTraffic):
        raise ServescopeError("the demo's traffic is a trace, expected it to be generated")
    day = np.vectorize(scenario.traffic.mix.day_factor)
    middles = (since_start_ms + BLOCK_MS / 2) / 1000
    usual = day(np.arange(_COLD_SECONDS, _EMULATED_SECONDS, INTERVAL_SECONDS)).mean()
    before_opening_ms = since_start_ms - _EMULATED_SECONDS * 1000
    new_share = np.zeros(len(before_opening_ms))
    for from_ms, share in _STAGES:
        new_share[before_opening_ms >= from_ms] = share
    now = _STAGES[-1][1]
    is_old = described.plan.identity.deployment_id == OLD
    of_now = (1 - new_share) / (1 - now) if is_old else new_share / now
    load = of_now * day(middles) / usual
    # As many replicas as there are now, all the time.
    started_ms = opened_ms - _EMULATED_SECONDS * 1000 + round(described.plan.opens_seconds * 1000)
    return PastLoad(load, load, described.plan.engine.error_share, started_ms)


def _begin_run(folder: Path, store: Store, opened_ms: int) -> None:
    """Start the run of the plan with its first stage, and advance it to the present one."""
    plan = parse_plan(read_document(folder / PLAN, "plan"), str(folder / PLAN))
    with CutoverJournal(folder / JOURNAL) as journal:
        began_ms = opened_ms + _STAGES[0][0]
        run = start_run(
            journal, freeze_plan(store, plan, began_ms), by=_WHO, reason="v2 is ready for its first requests"
        )
        for stage, (from_ms, share) in enumerate(_STAGES[1:], start=1):
            at_ms = opened_ms + from_ms
            evidence = summarise(judge_case(store, run.frozen, run.decisions, at_ms))
            reason = f"no harm seen so far, and at {100 * share:g} % the loads of both stacks can be compared"
            advance = Decision("advance", at_ms, by=_WHO, reason=reason, stage=stage)
            run = write_decision(journal, run, advance, evidence)
