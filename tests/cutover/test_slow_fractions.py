"""Slow fractions at shared edges: what they find, and what they never interpolate."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from servescope.cutover.statistics.change import schedule
from servescope.cutover.statistics.sequences import Floats
from servescope.cutover.statistics.slow_fractions import (
    SlowFractions,
    choose_edges,
    difference_path,
    log_evidence_of_harm,
    slow_fractions,
)

counts = hnp.arrays(np.float64, 10, elements=st.integers(0, 200).map(float))
shares = hnp.arrays(np.float64, 10, elements=st.floats(0.0, 1.0))


def _day(random: np.random.Generator, share: float, fractions: tuple[float, float]) -> SlowFractions:
    load = 1500.0 * (1.0 + 0.6 * np.sin(2.0 * np.pi * (np.arange(288) / 288.0 + random.random())))
    n1, n2 = random.poisson(load * (1.0 - share)), random.poisson(load * share)
    x1, x2 = random.binomial(n1, fractions[0]), random.binomial(n2, fractions[1])
    return slow_fractions(*(each.astype(float) for each in (n1, x1, n2, x2)))


def _harm(strata: SlowFractions) -> Floats:
    starts, weights = schedule(strata.weight.size)
    return log_evidence_of_harm(
        strata, 0.0, floor=0.0, alpha=0.05, wanted=200.0, starts=starts, weights=weights
    )  # fmt: skip


@pytest.mark.parametrize(("share", "fraction"), [(0.01, 0.3), (0.01, 0.01), (0.25, 0.02)])
def test_equal_tails_seldom_alarm(share: float, fraction: float) -> None:
    """At most 5 % of days, of a rare tail in a small arm, too, whose counts are far from normal."""
    random = np.random.default_rng(1)
    alarms = [(_harm(_day(random, share, (fraction, fraction))) > math.log(20.0)).any() for _ in range(200)]
    assert np.mean(alarms) <= 0.05


def test_a_heavier_tail_is_found() -> None:
    """2 % to 5 % slow requests at a quarter of the requests, within the hour."""
    random = np.random.default_rng(2)
    delays = [int(np.argmax(_harm(_day(random, 0.25, (0.02, 0.05))) > math.log(20.0))) for _ in range(40)]
    assert 0 < np.median(delays) <= 11


@pytest.mark.slow
@given(counts, shares, counts, shares)
def test_swapped_arms_flip_the_sign(n1: Floats, p1: Floats, n2: Floats, p2: Floats) -> None:
    """With the same variance and weight."""
    x1, x2 = np.floor(n1 * p1), np.floor(n2 * p2)
    one, other = slow_fractions(n1, x1, n2, x2), slow_fractions(n2, x2, n1, x1)
    np.testing.assert_allclose(one.excess, -other.excess, atol=1e-9)
    np.testing.assert_allclose(one.variance, other.variance, atol=1e-9)
    np.testing.assert_array_equal(one.weight, other.weight)


def test_the_difference_is_covered_at_every_look() -> None:
    """Of 200 days with 30 % and 33 %, the interval leaves the true difference out on at most 5 %."""
    random = np.random.default_rng(3)
    missed = 0
    for _ in range(200):
        _, low, high = difference_path(_day(random, 0.25, (0.30, 0.33)), 0.0, alpha=0.025, wanted=200.0)
        missed += bool(((low > 0.03) | (high < 0.03)).any())
    assert missed <= 10


def test_without_control_there_is_no_difference() -> None:
    """An infinite interval and no evidence, and a single request is no stratum."""
    strata = slow_fractions(np.array([0.0, 5.0]), np.zeros(2), np.array([9.0, 0.0]), np.array([9.0, 0.0]))
    assert difference_path(strata, 0.0, alpha=0.05, wanted=9.0)[2].tolist() == [math.inf, math.inf]
    assert _harm(strata).tolist() == [0.0, 0.0]


def test_edges_with_information_are_chosen() -> None:
    """The objective's, one near p65 and one in the tail; none where all is on one side."""
    edges = np.array([0.1, 0.5, 1.0, 2.5, 10.0])
    above = np.array([0.99, 0.31, 0.07, 0.02, 0.0])
    assert choose_edges(edges, above) == (0.5, 1.0)
    assert choose_edges(edges, above, objective=2.5) == (0.5, 1.0, 2.5)
    assert choose_edges(edges, above, objective=7.0) == (0.5, 1.0)
    assert choose_edges(edges, np.ones(5)) == ()
