"""Known ways in which scaling and health checks go wrong, each beside the case in which they go well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from servescope.emulator.clock import VirtualClock
from servescope.emulator.deployment.deployment import EmulatedDeployment
from servescope.emulator.deployment.replica import ColdStart, HealthCheck
from servescope.emulator.deployment.stack import V2
from servescope.emulator.effects import DeploymentEffects, EngineEffects
from servescope.emulator.workload.requests import WorkloadRequest
from servescope.instruments.testing import value
from servescope.migration.scaling import TokenScaling
from tests.emulator.conftest import deploy, forget, statuses

ENGINE = replace(V2.engine, error_share=0.0, max_queue=1000)
PLAN = replace(V2, engine=ENGINE)
QUICK = TokenScaling(
    target_in_flight_tokens=16_000, autoscaling_window=30.0, scale_down_delay=60.0, scale_down_half_life_seconds=60.0
)


def load(
    deployment: EmulatedDeployment,
    clock: VirtualClock,
    *,
    rate: float,
    seconds: float,
    start: float = 0.0,
    streams: int = 0,
) -> None:
    """Requests at an even rate from `start` on; with `streams` they share so many prompts, else nothing."""
    for number in range(int(rate * seconds)):
        stream = number % streams if streams else number + int(start * 1000)
        shared = [stream * 100_000 + index for index in range(2000 // 32)]
        private = [10**12 + (number + int(start * 1000)) * 1000 + index for index in range(200 // 32)]
        blocks = tuple(shared + private)
        request = WorkloadRequest(number, len(shared) * 32 + 16, 200, blocks)
        clock.schedule(start + number / rate - clock.now, partial(deployment.send, request, forget))


def gauge(deployment: EmulatedDeployment, name: str) -> float:
    """One of the autoscaler's gauges."""
    found = value(deployment.autoscaler.instruments, f"autoscaler_{name}")
    assert found is not None
    return found


def follow(deployment: EmulatedDeployment, clock: VirtualClock, *, until: float) -> list[int]:
    """The replicas that were asked for, every five seconds."""
    asked = []
    while clock.now < until:
        clock.run_until(clock.now + 5.0)
        asked.append(int(gauge(deployment, "rounded_desired_scale")))
    return asked


def count_turns(numbers: Sequence[int]) -> int:
    """How often the numbers turn from rising to falling or back."""
    steps = [later - earlier for earlier, later in pairwise(numbers) if later != earlier]
    return sum(before * after < 0 for before, after in pairwise(steps))


def peak_and_need(cold_start_factor: float) -> tuple[int, int]:
    """The most replicas that are asked for after a step in load, and how many serve it in the end."""
    scaling = replace(QUICK, max_replica=40)
    deployment, clock = deploy(replace(PLAN, scaling=scaling))
    deployment.apply_effects(DeploymentEffects(cold_start_factor=cold_start_factor))
    load(deployment, clock, rate=6.0, seconds=600.0)
    asked = follow(deployment, clock, until=600.0)
    return max(asked), asked[-1]


@pytest.mark.proof
def test_scaling_overshoots_while_new_replicas_start() -> None:
    """What queues during slow starts looks like lasting load: far more is asked for than is needed in the end."""
    slow_peak, slow_need = peak_and_need(4.0)
    quick_peak, quick_need = peak_and_need(0.05)
    assert slow_peak > 2 * slow_need
    assert slow_peak > 2.5 * quick_need
    assert quick_peak <= quick_need + 2


@pytest.mark.slow
def test_pinned_at_the_maximum_shows_as_a_lasting_gap() -> None:
    """The raw need stays above the bound, what is sent stays at it, and requests wait; released, it goes up at once."""
    scaling = replace(QUICK, max_replica=8)
    deployment, clock = deploy(replace(PLAN, scaling=scaling, cold_start=ColdStart(1.0, 1.0, 1.0, 1.0)))
    deployment.apply_effects(DeploymentEffects(max_replica=2))
    load(deployment, clock, rate=8.0, seconds=600.0)
    clock.run_until(300.0)
    for _ in range(12):
        clock.run_until(clock.now + 5.0)
        assert gauge(deployment, "desired_scale") > 4
        assert gauge(deployment, "policy_desired_scale") == gauge(deployment, "rounded_desired_scale") == 2
        assert deployment.count_replicas()["active"] == 2
    deployment.apply_effects(DeploymentEffects())
    clock.run_until(clock.now + 20.0)
    assert deployment.count_replicas()["active"] > 4


def test_bound_that_falls_takes_replicas_at_once() -> None:
    """A maximum below what there is does not wait for the delay or the half-life."""
    scaling = TokenScaling(min_replica=4, initial_replicas=4, max_replica=4)
    deployment, clock = deploy(replace(PLAN, scaling=scaling))
    deployment.apply_effects(DeploymentEffects(max_replica=2))
    clock.run_until(5.0)
    assert deployment.count_replicas()["active"] == 2


def hit_rate_after_a_lull(half_life: float) -> tuple[float, int]:
    """Hit rate of the minute in which traffic is back after a lull, and how few replicas there were before it."""
    scaling = TokenScaling(
        target_in_flight_tokens=8_000, min_replica=1, initial_replicas=6, max_replica=6, autoscaling_window=30.0,
        scale_down_delay=30.0, scale_down_half_life_seconds=half_life,
    )  # fmt: skip
    # 40 shared prompts fill the caches of six replicas, and not that of one.
    engine = replace(ENGINE, cache_blocks=900)
    deployment, clock = deploy(replace(PLAN, engine=engine, scaling=scaling))
    load(deployment, clock, rate=4.0, seconds=240.0, streams=40)
    load(deployment, clock, rate=4.0, seconds=60.0, start=500.0, streams=40)
    clock.run_until(499.0)
    fewest = deployment.count_replicas()["active"]
    router = deployment.router.instruments
    before = [value(router, f"kv_cache_{name}_tokens_total") or 0.0 for name in ("reused", "eligible")]
    clock.run_until(560.0)
    after = [value(router, f"kv_cache_{name}_tokens_total") or 0.0 for name in ("reused", "eligible")]
    return (after[0] - before[0]) / (after[1] - before[1]), fewest


@pytest.mark.proof
def test_fast_scale_down_loses_the_caches() -> None:
    """A short half-life gives the caches up in a lull, so that prompts are computed anew; a long one keeps both."""
    fast, few = hit_rate_after_a_lull(half_life=20.0)
    slow, many = hit_rate_after_a_lull(half_life=1800.0)
    assert few == 1
    assert many >= 5
    assert slow > 0.9
    assert fast < slow - 0.3


@pytest.mark.slow
@pytest.mark.parametrize(("careful", "fewest", "most"), [(False, 6, 1000), (True, 0, 2)])
def test_scaling_flaps_without_window_and_delay(careful: bool, fewest: int, most: int) -> None:
    """Bursts a minute apart turn the count up and down each time; window, delay and half-life keep it still."""
    scaling = TokenScaling(target_in_flight_tokens=8_000, max_replica=6)
    if not careful:
        scaling = replace(scaling, autoscaling_window=5.0, scale_down_delay=5.0, scale_down_half_life_seconds=1.0)
    deployment, clock = deploy(replace(PLAN, scaling=scaling))
    for burst in range(10):
        load(deployment, clock, rate=4.0, seconds=15.0, start=burst * 60.0)
    assert fewest <= count_turns(follow(deployment, clock, until=600.0)) <= most


def freeze_one(health_check: HealthCheck) -> tuple[EmulatedDeployment, VirtualClock]:
    """Three replicas under load, the first of which stops working after 30 seconds; two minutes later."""
    scaling = TokenScaling(min_replica=3, initial_replicas=3, max_replica=3)
    deployment, clock = deploy(replace(PLAN, scaling=scaling, health_check=health_check))
    load(deployment, clock, rate=3.0, seconds=600.0)
    clock.run_until(30.0)
    deployment.replicas["engine-0"].engine.apply_effects(EngineEffects(frozen=True))
    clock.run_until(150.0)
    return deployment, clock


@pytest.mark.slow
def test_frozen_engine_looks_healthy_to_a_check_that_only_asks() -> None:
    """It stays active, gets requests and answers none of them; the healthy ones go on."""
    deployment, clock = freeze_one(HealthCheck())
    frozen = deployment.replicas["engine-0"]
    assert frozen.status == "active"
    stuck = frozen.engine.in_flight
    assert stuck > 0
    clock.run_until(clock.now + 60.0)
    assert frozen.engine.in_flight >= stuck
    assert deployment.outcomes["error"] == 0


@pytest.mark.slow
def test_check_of_progress_finds_a_frozen_engine_and_restarts_it() -> None:
    """It becomes unhealthy, gets nothing new, and is ended with its requests and started again."""
    deployment, clock = freeze_one(HealthCheck(stalled_seconds=20.0, restart_after_seconds=100.0))
    frozen = deployment.replicas["engine-0"]
    stuck = frozen.engine.in_flight
    assert stuck > 0
    assert statuses(deployment) == {"active": 2, "unhealthy": 1}
    clock.run_until(170.0)
    assert frozen.engine.in_flight == stuck
    clock.run_until(185.0)
    assert statuses(deployment) == {"active": 2, "failed": 1}
    assert deployment.outcomes["error"] == stuck
    clock.run_until(260.0)
    assert statuses(deployment) == {"active": 3}
    assert frozen.processes == 2
    assert frozen.engine.steps > 0


@pytest.mark.slow
def test_engine_that_thaws_is_active_again_with_its_cache() -> None:
    """One that was only stalled keeps its requests and its cache, and the router knows what it has."""
    deployment, clock = freeze_one(HealthCheck(stalled_seconds=20.0, restart_after_seconds=1000.0))
    thawed = deployment.replicas["engine-0"]
    assert statuses(deployment) == {"active": 2, "unhealthy": 1}
    thawed.engine.apply_effects(EngineEffects())
    clock.run_until(clock.now + 30.0)
    assert statuses(deployment) == {"active": 3}
    assert thawed.processes == 1
    clock.run_until(700.0)
    assert deployment.in_flight == 0
    assert deployment.outcomes.keys() == {"ok"}
    index = deployment.router.index  # type: ignore[attr-defined] # v2's router has one
    assert index.cached_blocks("engine-0") == thawed.engine.cache.cached_blocks()


def test_idle_engine_is_not_stalled() -> None:
    """Without requests there is no progress to miss."""
    scaling = TokenScaling(min_replica=3, initial_replicas=3, max_replica=3)
    deployment, clock = deploy(replace(PLAN, scaling=scaling, health_check=HealthCheck(stalled_seconds=5.0)))
    clock.run_until(600.0)
    assert deployment.count_replicas()["active"] == 3
