"""Replicas' lives: how they start, fail, come back, and are found to be unhealthy."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from functools import partial

import pytest

from servescope.emulator.clock import VirtualClock
from servescope.emulator.deployment.deployment import EmulatedDeployment
from servescope.emulator.deployment.replica import BackOff, ColdStart, PhaseOfStart, Start
from servescope.emulator.deployment.stack import V2
from servescope.emulator.effects import DeploymentEffects, EngineEffects
from servescope.emulator.workload.requests import WorkloadRequest
from servescope.errors import UsageError
from servescope.migration.scaling import TokenScaling
from tests.emulator.conftest import deploy, forget, shown, statuses

FIXED = replace(V2, scaling=TokenScaling(min_replica=3, initial_replicas=3, max_replica=3))


def request(number: int, *, stream: int | None = None) -> WorkloadRequest:
    """One of 2000 tokens in and 200 out; those of one stream share their prompt."""
    first = (number if stream is None else stream) * 1000
    return WorkloadRequest(number, 2000, 200, tuple(first + index for index in range(2200 // 32)))


def status(deployment: EmulatedDeployment) -> str:
    """The status of the first replica."""
    return deployment.replicas["engine-0"].status


def test_cold_start_goes_through_its_phases() -> None:
    """A start is in one phase after the other, each for its time, and stretches from the moment it is slowed down."""
    clock = VirtualClock()
    ready: list[float] = []
    phases = ColdStart(10.0, 20.0, 6.0, 4.0).phases(image_present=False)
    start = Start(phases, clock=clock, factor=1.0, ready=lambda: ready.append(clock.now))
    seen = []
    for moment in (5.0, 25.0):
        clock.run_until(moment)
        seen.append(start.phase)
    start.set_factor(3.0)  # 5 s of loading weights, and 10 s after them, are left
    clock.run_until(39.0)
    seen.append(start.phase)
    clock.run_until(100.0)
    assert seen == ["image_pull", "weights_load", "weights_load"]
    assert ready == [pytest.approx(25.0 + 3 * 15.0)]


def test_restarted_process_has_its_image() -> None:
    """A start on the same node skips the pull."""
    assert ColdStart().phases(image_present=True)[0] == PhaseOfStart("weights_load", 22.0)


def test_restart_loses_everything_and_serves_at_once() -> None:
    """Requests end as error, counters begin at zero, the cache is empty, the router knows it, and it serves."""
    deployment, clock = deploy(FIXED)
    outcomes: list[str] = []
    for number in range(12):
        deployment.send(request(number), outcomes.append)
    clock.run_until(2.0)
    had = deployment.replicas["engine-1"].engine.in_flight
    assert had > 0
    assert deployment.replicas["engine-1"].engine.cache.cached_blocks()
    deployment.restart("engine-1")
    assert outcomes == ["error"] * had
    assert statuses(deployment) == {"active": 3}
    assert shown(deployment, replica="engine-1")["requests_started_total"] == 0
    assert not deployment.replicas["engine-1"].engine.cache.cached_blocks()
    assert not deployment.router.index.cached_blocks("engine-1")  # type: ignore[attr-defined] # v2's router has one
    for number in range(100, 110):
        deployment.send(request(number), outcomes.append)
    clock.run_until(2.1)
    assert deployment.replicas["engine-1"].engine.in_flight > 0
    clock.run_until(60.0)
    assert len(outcomes) == 22
    gaps = shown(deployment, replica="router-0")["router_index_event_gaps_total"]
    assert gaps == 0
    cached = deployment.router.index.cached_blocks("engine-1")  # type: ignore[attr-defined] # v2's router has one
    assert cached == deployment.replicas["engine-1"].engine.cache.cached_blocks()


def test_unknown_replica_is_refused() -> None:
    """Restarting a replica that does not exist names those that do."""
    deployment, _ = deploy(FIXED)
    with pytest.raises(UsageError, match="unknown replica 'engine-9', known: engine-0, engine-1, engine-2"):
        deployment.restart("engine-9")


def test_crashing_replica_loops_with_back_off() -> None:
    """One replica fails, waits, starts without its image, fails again, and waits twice as long; the others serve on."""
    deployment, clock = deploy(replace(FIXED, cold_start=ColdStart(8.0, 10.0, 4.0, 1.0), back_off=BackOff(10.0, 300.0)))
    clock.run_until(30.0)
    deployment.apply_effects(DeploymentEffects(crashing_replicas=1, crash_after_seconds=20.0))
    clock.run_until(31.0)
    assert status(deployment) == "failed"
    assert statuses(deployment) == {"active": 2, "failed": 1}
    assert "engine-0" not in {target.identity.replica for target in deployment.targets()}
    clock.run_until(41.0)
    start = deployment.replicas["engine-0"].start
    assert start is not None
    assert start.phase == "weights_load"
    clock.run_until(56.0)  # 10 s of back-off and 15 s of start after 30 s
    assert status(deployment) == "active"
    clock.run_until(76.0)
    assert status(deployment) == "failed"
    clock.run_until(94.0)
    assert status(deployment) == "failed"
    clock.run_until(96.0)
    assert status(deployment) == "starting"
    deployment.apply_effects(DeploymentEffects())
    clock.run_until(400.0)
    assert statuses(deployment) == {"active": 3}


def test_without_a_worker_requests_wait_and_then_are_rejected() -> None:
    """While every replica has failed the router keeps some requests; what is beyond is rejected, and it says why."""
    deployment, clock = deploy(replace(FIXED, engine=replace(V2.engine, max_queue=300, error_share=0.0)))
    deployment.apply_effects(DeploymentEffects(crashing_replicas=3, crash_after_seconds=0.0))
    clock.run_until(1.0)
    assert statuses(deployment) == {"failed": 3}
    outcomes: list[str] = []
    hang_ups = [deployment.send(request(number), outcomes.append) for number in range(300)]
    clock.run_until(2.0)
    kept = deployment.router.queued_requests
    assert 0 < kept < 300
    assert outcomes == ["rejected"] * (300 - kept)
    router = shown(deployment, replica="router-0")
    assert router["router_fallbacks_total"] == router["router_unreported_decisions_total"] == 300 - kept
    hang_ups[0]()
    assert outcomes[-1] == "client_abort"
    deployment.apply_effects(DeploymentEffects())
    clock.run_until(300.0)
    assert deployment.outcomes["ok"] == kept - 1
    assert deployment.in_flight == 0


def test_hanging_up_ends_a_request_once() -> None:
    """What `send` returns aborts the request; after its end it has no effect."""
    deployment, clock = deploy(FIXED)
    outcomes: list[str] = []
    hang_up = deployment.send(request(1), outcomes.append)
    served = deployment.send(request(2), outcomes.append)
    clock.run_until(0.5)
    hang_up()
    hang_up()
    clock.run_until(60.0)
    served()
    assert outcomes == ["client_abort", "ok"]
    assert deployment.outcomes == {"client_abort": 1, "ok": 1}


def test_new_engines_are_announced() -> None:
    """Watchers get every replica whose engine is new: one that starts, and one that was restarted."""
    deployment, clock = deploy(replace(FIXED, scaling=TokenScaling(1000, max_replica=3, autoscaling_window=5)))
    seen: list[str] = []
    deployment.watch_engines(lambda replica: seen.append(replica.name))
    deployment.restart("engine-0")
    for number in range(6):
        clock.schedule(4.5, partial(deployment.send, request(number), forget))
    clock.run_until(5.0)
    assert seen == ["engine-0", "engine-1", "engine-2"]


def test_replica_that_was_given_up_leaves_nothing_behind() -> None:
    """Neither churn nor the drift of its draft goes on in an engine that is gone, and nothing keeps it."""
    assert FIXED.engine.speculation is not None
    drifting = replace(FIXED.engine.speculation, drift_per_hour=0.1)
    deployment, clock = deploy(
        replace(FIXED, engine=replace(FIXED.engine, speculation=drifting), scaling=TokenScaling(max_replica=3))
    )
    deployment.fleet.open(1)
    deployment.fleet.scale_to(3)
    engines = {name: weakref.ref(replica.engine) for name, replica in deployment.replicas.items()}
    for replica in deployment.replicas.values():
        replica.engine.apply_effects(EngineEffects(churn_share=0.5))
    assert statuses(deployment) == {"active": 2, "starting": 1}
    deployment.fleet.scale_to(1)
    # Until then a timer holds the one that drained.
    clock.run_until(deployment.plan.drain_seconds + 120.0)
    del replica
    gc.collect()
    assert [name for name, engine in engines.items() if engine() is not None] == ["engine-0"]


@pytest.mark.parametrize(
    ("effects", "message"),
    [
        (DeploymentEffects(cold_start_factor=0.0), "cold_start_factor is 0.0"),
        (DeploymentEffects(transfer_factor=float("nan")), "transfer_factor is nan"),
        (DeploymentEffects(crashing_replicas=-1), "crashing_replicas is -1"),
        (DeploymentEffects(crash_after_seconds=-1.0), "crash_after_seconds is -1.0"),
        (DeploymentEffects(max_replica=0), "max_replica is 0"),
    ],
)
def test_impossible_effects_are_refused(effects: DeploymentEffects, message: str) -> None:
    """An effect out of its range is refused by name, and changes nothing."""
    deployment, _ = deploy(FIXED)
    with pytest.raises(UsageError, match=message):
        deployment.apply_effects(effects)
    assert deployment.effects == DeploymentEffects()


def test_slow_cold_start_stretches_starts_under_way_and_to_come() -> None:
    """A replica that is starting takes longer from then on, and a new start from its beginning."""
    deployment, clock = deploy(replace(FIXED, cold_start=ColdStart(0.0, 30.0, 0.0, 0.0), back_off=BackOff(10.0)))
    deployment.fail("engine-0")  # starts at 10 s
    clock.run_until(14.0)
    deployment.apply_effects(DeploymentEffects(cold_start_factor=2.0))
    deployment.fail("engine-1")  # starts at 24 s
    ready: dict[str, float] = {}
    while clock.now < 100.0:
        clock.run_until(clock.now + 0.5)
        ready |= {name: clock.now for name in deployment.fleet.active("aggregated") if name not in ready}
    assert ready == {"engine-2": 14.5, "engine-0": 14.0 + 2 * 26.0, "engine-1": 24.0 + 2 * 30.0}
