"""What one replica of few proves alone is taken away from what its arm proves, and nothing else is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from servescope.cutover.comparison.leaving_out import Remaining, without_one
from servescope.cutover.comparison.paths import ArmSums, Levels, MetricPath, mean_path, ratio_path
from servescope.cutover.plan.plan import MetricPlan, Noise
from servescope.cutover.statistics.sequences import Floats

BLOCKS = 24
METRIC = MetricPlan("time_to_first_token_seconds", "mean", "lower", margin=0.1, floor=0.02)
NOISE = Noise(0.001, 0.0001, 0.6, 440.0, 576, calibrated=True, spread=0.45, least_tau2=0.001, least_spread=0.45)
LEVELS = Levels(harm=0.05, weight=1.0, low=0.01, high=0.04)
LEVEL = -math.log(LEVELS.harm)


def test_harm_of_one_replica_is_its_own() -> None:
    """One of three is 60 % slower: it would prove harm of v2, and is named instead; limits stay in order."""
    v1, v2 = arm(4), arm(3, slower={1: 1.6})
    plain, remaining = path_of(v1, v2), left(v1, v2)
    proven = np.minimum(plain.harm, plain.material) >= LEVEL

    assert proven[-1]
    assert (np.minimum(remaining.path.harm, remaining.path.material) < LEVEL).all()
    assert (remaining.proving[proven] == 1).all()
    assert (remaining.proving[~proven] == -1).all()
    assert (remaining.path.low <= plain.low).all()
    assert remaining.path.low[-1] < remaining.path.cost[-1] < remaining.path.high[-1]


def test_a_slow_replica_is_not_its_arm_by_the_time_that_it_takes() -> None:
    """One of two decodes at a third of the speed, and so takes three quarters of the seconds of both."""
    v1, v2 = ((each.below * 10.0, each.above * 40.0) for each in (arm(4), arm(2, slower={1: 3.0})))
    speed = replace(METRIC, name="tps_per_request", kind="ratio", better="higher")

    def of_speed(one: ArmSums, other: ArmSums, proves: int = 3) -> MetricPath:
        return ratio_path(speed, NOISE, one, other, LEVELS, least_below=60.0, proves=proves)

    remaining = without_one(ArmSums(*v1), ArmSums(*v2), of_speed, LEVEL, math.log1p(METRIC.margin or 0.0))

    assert of_speed(ArmSums(*v1), ArmSums(*v2)).harm[-1] >= LEVEL
    assert remaining.path.harm[-1] < LEVEL
    assert remaining.proving[-1] == 1


def test_harm_of_all_stays_as_it_is() -> None:
    """All are 20 % slower, and two of three 30 %: nothing is taken from what is proven."""
    for slower in (dict.fromkeys(range(3), 1.2), {0: 1.3, 2: 1.3}):
        v1, v2 = arm(4), arm(3, slower=slower)
        plain, remaining = path_of(v1, v2), left(v1, v2)

        assert min(plain.harm[-1], plain.material[-1]) >= LEVEL
        assert (remaining.path.harm[-1], remaining.path.material[-1]) == (plain.harm[-1], plain.material[-1])
        assert remaining.proving[-1] == -1


def test_health_by_one_replica_of_v1_is_none() -> None:
    """v2 is 15 % slower than v1 but for one of three that is twice as slow: v2 is not bounded, and could be."""
    v1, v2 = arm(3, slower={0: 2.0}), arm(3, slower=dict.fromkeys(range(3), 1.15))

    assert path_of(v1, v2).bounded[-1]
    assert not left(v1, v2).path.bounded.any()
    assert left(v1, v2).path.high[-1] > math.log1p(METRIC.margin or 0.0)


def test_health_of_equal_arms_stays_as_it_is() -> None:
    """What is bounded at the end without it is bounded with it."""
    v1, v2 = arm(3), arm(3)

    assert path_of(v1, v2).bounded[-1]
    assert left(v1, v2).path.bounded[-1]


@pytest.mark.parametrize("replicas", [1, 8])
def test_one_replica_or_many_are_not_left_out(replicas: int) -> None:
    """Of one there is nothing left, and of many one does not matter."""
    v1, v2 = arm(8), arm(replicas, slower={0: 2.0} if replicas == 1 else dict.fromkeys(range(3), 2.0))
    plain, remaining = path_of(v1, v2), left(v1, v2)

    assert np.array_equal(plain.harm, remaining.path.harm)
    assert np.array_equal(plain.bounded, remaining.path.bounded)


def test_a_replica_that_has_nearly_all_requests_is_the_arm() -> None:
    """The few requests of the other neither hide its harm nor refute its health."""
    for slower in (1.0, 1.5):
        v1, v2 = arm(4), arm(2, slower={0: slower, 1: 3.0 if slower == 1.0 else 1.0}, requests=(200.0, 1.0))
        plain, remaining = path_of(v1, v2), left(v1, v2)

        assert np.array_equal(plain.harm, remaining.path.harm)
        assert np.array_equal(plain.bounded, remaining.path.bounded)


def test_replicas_that_come_later_change_nothing_before() -> None:
    """Five more join at the end: what was found before stays."""
    v1, v2 = arm(4), arm(3, slower={1: 1.6})
    before = left(v1, v2)
    joined = [np.zeros((5, BLOCKS)) for _ in range(2)]
    for each in joined:
        each[:, 20:] = 80.0
    more = ArmSums(np.concatenate([v2.above, 0.4 * joined[0]]), np.concatenate([v2.below, joined[1]]))
    after = left(v1, more)

    assert np.array_equal(before.path.harm[:20], after.path.harm[:20])
    assert np.array_equal(before.proving[:20], after.proving[:20])


def path_of(v1: ArmSums, v2: ArmSums, proves: int = 3) -> MetricPath:
    return mean_path(METRIC, NOISE, (), v1, v2, LEVELS, proves=proves)


def left(v1: ArmSums, v2: ArmSums) -> Remaining:
    return without_one(v1, v2, path_of, LEVEL, math.log1p(METRIC.margin or 0.0))


def arm(replicas: int, *, slower: dict[int, float] | None = None, requests: tuple[float, ...] = ()) -> ArmSums:
    random = np.random.default_rng(replicas)
    below: Floats = np.repeat(np.array(requests or (100.0,) * replicas)[:, None], BLOCKS, axis=1)
    means = 0.5 * (1.0 + np.sqrt(0.6 / below) * random.standard_normal(below.shape) / 2.0)
    for replica, factor in (slower or {}).items():
        means[replica] *= factor
    return ArmSums(below * means, below)
