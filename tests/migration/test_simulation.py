"""v2's autoscaler on a load that v1 served."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from servescope.emulator.deployment.stack import V1
from servescope.emulator.workload.mixes import Mix
from servescope.increments.blocks import BLOCK_MS
from servescope.migration.scaling import ConcurrencyScaling, TokenScaling
from servescope.migration.traffic.in_flight import reconstruct_in_flight
from servescope.migration.traffic.simulation import (
    ReplicaCapacity,
    ServedLoad,
    TargetSimulation,
    load_of,
    measure_served,
    recommend_target,
    simulate_target,
)
from tests.support.served_traffic import read_served, record_past

CAPACITY = ReplicaCapacity(requests=100)
HELD = 1000.0
"""The tokens of a request in flight."""


def load_with(*tokens: float) -> ServedLoad:
    """A load of so many tokens in each block."""
    held = np.array(tokens)
    return ServedLoad(np.arange(held.size, dtype=np.int64) * BLOCK_MS, held, held / HELD)


def simulate(load: ServedLoad, target: float = 10_000, capacity: ReplicaCapacity = CAPACITY) -> TargetSimulation:
    """The autoscaler from one replica on, up to six."""
    return simulate_target(load, TokenScaling(target_in_flight_tokens=target, max_replica=6), capacity)


def test_replicas_are_tokens_over_target() -> None:
    """From the block after the load is seen there are as many replicas as the tokens are targets, up to the most."""
    assert simulate(load_with(*[35_000.0] * 4)).replicas.tolist() == [1, 4, 4, 4]
    crowded = simulate(load_with(*[90_000.0] * 4))
    assert crowded.replicas.tolist() == [1, 6, 6, 6]
    assert crowded.at_maximum_share == 0.75


def test_scaling_down_loses_caches() -> None:
    """After the load fell the replicas decay with their half-life of 900 s; each that stops loses its cache."""
    found = simulate(load_with(*[50_000.0] * 3, *[5_000.0] * 12))
    assert found.replicas.tolist()[3:] == [5, 4, 4, 3, 2, 2, 2, 1, 1, 1, 1, 1]
    assert (found.started, found.stopped) == (4, 4)


def test_requests_beyond_capacity() -> None:
    """Requests in flight that the replicas do not carry at once are beyond: by their number, or by the cache."""
    steady = load_with(*[30_000.0] * 5)
    assert simulate(steady, capacity=ReplicaCapacity(requests=30)).beyond_share == 0.0
    few = simulate(steady, capacity=ReplicaCapacity(requests=8))
    assert few.beyond.tolist() == [22, 6, 6, 6, 6]
    assert few.beyond_share == pytest.approx(46 / 150)
    full = simulate(steady, capacity=ReplicaCapacity(requests=100, tokens=9_000))
    assert full.beyond.tolist() == pytest.approx([21, 3, 3, 3, 3])


def test_a_new_replica_serves_after_it_started() -> None:
    """It is paid for from its order on, and serves from its start on."""
    found = simulate(load_with(*[30_000.0] * 4), capacity=ReplicaCapacity(requests=100, start_seconds=150, gpus=2))
    assert found.replicas.tolist() == [1, 3, 3, 3]
    assert found.serving.tolist() == [1, 2, 3, 3]
    assert found.replica_hours == pytest.approx(10 / 12)
    assert found.gpu_hours == pytest.approx(20 / 12)
    slow = simulate(load_with(*[30_000.0] * 4), capacity=ReplicaCapacity(requests=100, start_seconds=600))
    assert slow.serving.tolist() == [1, 1, 1, 3]
    assert slow.gpu_hours is None


def test_what_is_not_known_is_left_out() -> None:
    """A gap is no time without load: replicas are not known in it, and go on after it."""
    found = simulate(load_with(30_000.0, 30_000.0, float("nan"), 30_000.0))
    assert np.isnan(found.replicas).tolist() == [False, False, True, False]
    assert found.replicas[3] == 3
    assert found.replica_hours == pytest.approx(7 / 12)
    late = load_with(*[float("nan")] * 50, 10_000.0, 10_000.0)
    scaling = TokenScaling(target_in_flight_tokens=10_000, initial_replicas=4)
    assert simulate_target(late, scaling, CAPACITY).replicas[-2:].tolist() == [4, 4]


def test_the_cheapest_target_that_serves_as_v1_did_is_recommended() -> None:
    """Replicas may be as full as v1's were; targets beyond that are cheaper and not recommended."""
    load = load_with(*[40_000.0] * 50)
    served = measure_served(load, np.full(50, 4.0), 6, CAPACITY)
    simulations = [simulate(load, target) for target in (7_000, 10_000, 20_000)]
    found = recommend_target(simulations, served)
    assert (found.target, found.is_met) == (10_000, True)
    assert "at most 5 % fuller than v1's (up to 10,000 tokens in 95 % of the time, v1's up to 10,000)" in found.reason


def test_what_is_recommended_says_how_full_its_replicas_may_be() -> None:
    """A replica that holds 3 % more than v1's is not called as full: the reason has its figures and its limit."""
    load = load_with(*[41_200.0] * 50)
    served = replace(measure_served(load, np.full(50, 4.0), 6, CAPACITY), tokens_per_replica=np.full(50, 10_000.0))
    reason = recommend_target([simulate(load, 10_300)], served).reason
    assert "no fuller" not in reason
    assert "at most 5 % fuller than v1's (up to 10,300 tokens in 95 % of the time, v1's up to 10,000)" in reason


def test_no_target_is_as_good_as_v1() -> None:
    """Where none serves what v1 did, the one that comes nearest is named with what it lacks."""
    load = load_with(*[40_000.0] * 50)
    served = measure_served(load, np.full(50, 8.0), 8, CAPACITY)
    found = recommend_target([simulate(load, 10_000), simulate(load, 20_000)], served)
    assert (found.target, found.is_met) == (10_000, False)
    assert "replicas hold up to 10,000 tokens in 95 % of the time, more than 5 % beyond v1's 5,000" in found.reason


def test_what_v1_did_is_measured_the_same_way() -> None:
    """Its replicas were there and served: hours, caches lost, tokens of a replica."""
    load = load_with(*[40_000.0] * 12)
    replicas = np.array([4.0] * 6 + [2.0] * 6)
    found = measure_served(load, replicas, 4, ReplicaCapacity(requests=100, start_seconds=900, gpus=1))
    assert found.target is None
    assert (found.gpu_hours, found.stopped, found.at_maximum_share) == (3.0, 2, 0.5)
    assert found.most_tokens == 20_000


@pytest.mark.proof
def test_simulation_is_what_v2_does(tmp_path: Path) -> None:
    """The same traffic on an emulated v1, and on the same engines under v2's autoscaler: replica-hours within 10 %."""
    mix = Mix(requests_per_second=3.0, day_amplitude=0.8, day_seconds=5400, burst_factor=1.0)
    plan = replace(V1, scaling=ConcurrencyScaling(min_replica=1, initial_replicas=3, max_replica=8))
    scaling = TokenScaling(target_in_flight_tokens=12_000, initial_replicas=3)
    before = read_served(record_past(tmp_path / "v1.db", minutes=90, mix=mix, plan=plan))
    after = read_served(record_past(tmp_path / "v2.db", minutes=90, mix=mix, plan=replace(plan, scaling=scaling)))

    found = simulate_target(load_of(reconstruct_in_flight(before), before.blocks), scaling, CAPACITY)

    assert found.replica_hours == pytest.approx(float(after.replicas.sum()) / 12, rel=0.1)
    assert np.abs(found.replicas - after.replicas).mean() < 1.0
    assert np.nanmax(found.replicas) > 2 * np.nanmin(found.replicas)
