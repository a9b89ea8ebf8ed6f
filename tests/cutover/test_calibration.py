"""The noise of v1 against itself: what it is of known pasts, and what is said where there is too little past."""

import math

import numpy as np
import pytest

from servescope.contract.metrics import METRICS
from servescope.cutover.comparison.calibration import (
    ONLINE_BURN_IN,
    calibrate_means,
    coefficient2_from_buckets,
    excess_variance,
    long_run_variance,
    online_path,
    replica_groups,
    scaled_tau2,
    student_factor,
)
from servescope.cutover.plan.plan import Noise
from servescope.cutover.statistics.effects import BlockEffects
from servescope.cutover.statistics.sequences import Floats

EDGES = np.array(METRICS["time_to_first_token_seconds"].edges)
CV2 = 0.6


def _drift(random: np.random.Generator, spread: float, blocks: int, correlation: float) -> Floats:
    keep = math.exp(-1.0 / correlation)
    values = np.empty(blocks)
    values[0] = random.normal() * spread
    for block in range(1, blocks):
        values[block] = keep * values[block - 1] + random.normal() * spread * math.sqrt(1.0 - keep**2)
    return values


def _past(replicas: int, *, spread: float = 0.05, lasting: float = 0.0, requests: int = 200, seed: int = 1,
          blocks: int = 576) -> tuple[Floats, Floats]:  # fmt: skip
    """Counts and sums of replicas that drift, correlated over 20 minutes: (P, B) each."""
    random = np.random.default_rng(seed)
    counts = random.poisson(requests, (replicas, blocks)).astype(float)
    noise = random.normal(size=(replicas, blocks)) * np.sqrt(CV2 / np.maximum(counts, 1.0))
    drift = np.array([_drift(random, spread, blocks, 4.0) for _ in range(replicas)])
    return counts, counts * np.exp(noise + drift + random.normal(size=(replicas, 1)) * lasting)


def _true(spread: float) -> float:
    keep = math.exp(-0.25)
    return spread**2 * (1.0 + keep) / (1.0 - keep)


def test_excess_noise_is_that_of_the_drift_with_its_autocorrelation() -> None:
    """For arms of two of ten replicas, and for halves; more replicas never have less than halves show."""
    noise = calibrate_means(*_past(10), CV2, 440.0, v2_replicas=2)
    assert noise is not None
    assert noise.calibrated
    assert noise.tau2 == pytest.approx(_true(0.05) * (1 / 2 + 1 / 8), rel=0.35)
    assert noise.least_tau2 == pytest.approx(_true(0.05) * (2 / 5), rel=0.4)
    assert noise.pod_tau2 < 2e-4


def test_replicas_that_differ_for_good_are_noticed() -> None:
    """Their variance, and not more of it than few replicas can show."""
    noise = calibrate_means(*_past(10, lasting=0.05), CV2, 440.0)
    assert noise is not None
    assert 0.4 * 0.0025 < noise.pod_tau2 < 3.0 * 0.0025


def test_quiet_replicas_have_no_excess() -> None:
    """Sampling alone is not counted twice."""
    noise = calibrate_means(*_past(10, spread=0.0), CV2, 440.0)
    assert noise is not None
    assert noise.tau2 < 0.3 * CV2 * (4.0 / 2000.0)


@pytest.mark.parametrize(("replicas", "blocks"), [(1, 576), (10, 280)])
def test_one_replica_or_less_than_a_day_calibrates_nothing(replicas: int, blocks: int) -> None:
    """None, so that the noise is estimated meanwhile and the verdict says so."""
    assert calibrate_means(*_past(replicas, blocks=blocks), CV2, 440.0) is None


def test_fewer_replicas_than_calibrated_have_more_noise_and_more_replicas_no_less_than_halves() -> None:
    """In proportion between the two sizes that were calibrated."""
    noise = Noise(0.01, 0.0, CV2, 440.0, 576, True, spread=0.5, least_tau2=0.004, least_spread=0.2)
    found = scaled_tau2(noise, np.array([1.0, 0.5, 0.35, 0.2, 0.1]))
    assert found.tolist() == pytest.approx([0.02, 0.01, 0.007, 0.004, 0.004])


@pytest.mark.parametrize(("replicas", "size"), [(2, None), (3, 1), (12, 1), (12, 4), (200, 2), (5, 9)])
def test_groups_are_of_one_size_and_use_all_replicas(replicas: int, size: int | None) -> None:
    """At most half of the replicas, the same at every call."""
    groups = replica_groups(replicas, size)
    sizes = {int(group.sum()) for group in groups}
    assert len(sizes) == 1
    assert sizes.pop() == min(size or replicas // 2, replicas // 2)
    assert [group.tolist() for group in groups] == [group.tolist() for group in replica_groups(replicas, size)]
    assert len({min(tuple(group), tuple(~group)) for group in groups}) == len(groups) >= min(replicas - 1, 3)


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("lognormal", lambda random: random.lognormal(-1.0, 0.7, 200_000)),
        ("heavy lognormal", lambda random: random.lognormal(-1.0, 1.0, 200_000)),
        ("exponential", lambda random: random.exponential(0.5, 200_000)),
        ("two modes", lambda random: np.where(
            random.random(200_000) < 0.9, random.lognormal(-1.0, 0.4, 200_000), random.lognormal(1.0, 0.4, 200_000))),
    ],
)  # fmt: skip
def test_the_variation_of_one_observation_is_read_from_buckets(name: str, draw: object) -> None:
    """Within 6 % on the contract's edges, where middles of buckets are off by a third."""
    values = draw(np.random.default_rng(2))  # type: ignore[operator]
    counts = np.histogram(values, np.concatenate([[0.0], EDGES, [np.inf]]))[0].astype(float)
    exact = float(values.var() / values.mean() ** 2)
    assert coefficient2_from_buckets(counts, EDGES, float(values.mean())) == pytest.approx(exact, rel=0.06)
    in_milliseconds = coefficient2_from_buckets(counts, EDGES * 1e3, float(values.mean()) * 1e3)
    assert in_milliseconds == pytest.approx(exact, rel=0.06)


def test_an_empty_histogram_has_no_variation() -> None:
    """None, and neither 0 nor NaN."""
    assert coefficient2_from_buckets(np.zeros(EDGES.size + 1), EDGES, 0.0) is None


def test_gaps_do_not_count_as_quiet_blocks() -> None:
    """A third of the blocks missing leaves the excess variance as it is."""
    random = np.random.default_rng(8)
    effects = _drift(random, 0.1, 6000, 4.0)
    steps, last = np.ones(6000, dtype=np.int64), np.arange(6000)
    whole = excess_variance(BlockEffects(effects, np.full(6000, 1e-6), steps, last))
    sampling = np.where(random.random(6000) < 0.33, np.inf, 1e-6)
    missing = excess_variance(BlockEffects(effects, sampling, steps, last))
    assert whole == pytest.approx(_true(0.1), rel=0.3)
    assert missing == pytest.approx(whole * 0.67 + 0.01 * 0.33, rel=0.3)


def test_few_degrees_of_freedom_cost_more() -> None:
    """Less with more of them, towards one."""
    factors = [student_factor(freedom, 3.0) for freedom in (2.0, 5.0, 20.0, 200.0)]
    assert factors == sorted(factors, reverse=True)
    assert factors[-1] == pytest.approx(1.03, abs=0.03)


@pytest.mark.slow
def test_without_a_past_nothing_is_decided_before_three_hours() -> None:
    """No information before the burn-in, and then bounds that hold on most days of drift."""
    random = np.random.default_rng(9)
    outside = 0
    for _ in range(150):
        effects = _drift(random, 0.03, 96, 4.0 / 3.0) + random.normal(size=96) * 0.03
        blocks = BlockEffects(effects, np.full(96, 0.0009), np.full(96, 3), np.arange(96) * 3 + 2)
        path = online_path(blocks)
        assert not path.information[: ONLINE_BURN_IN - 1].any()
        outside += bool((path.limits((0.05, 0.05), 440.0)[0] > 0.0).any())
    assert outside / 150 <= 0.06


def test_long_run_variance_of_independent_values_is_their_variance() -> None:
    """And larger where they follow each other."""
    random = np.random.default_rng(10)
    values = random.normal(size=20_000)
    assert long_run_variance(values, 36) == pytest.approx(1.0, rel=0.15)
    assert long_run_variance(np.repeat(values[:5000], 4), 36) == pytest.approx(4.0, rel=0.2)
