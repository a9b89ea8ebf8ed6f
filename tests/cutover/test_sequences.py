"""Bounds that hold at every look: their level, their shape, and what they cost."""

import math

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.cutover.statistics.sequences import (
    accumulate,
    half_width,
    information_to_settle,
    information_wanted,
    lasting_information,
    log_evidence,
    normal_probability,
    split_alpha,
    tuned,
)
from tests.support.drawing import examples

alphas = st.floats(0.001, 0.2)
wanted = st.floats(1.0, 1e5)
information = st.floats(1e-2, 1e6)


@given(information, alphas, wanted)
def test_the_bound_is_where_the_evidence_reaches_its_level(gathered: float, alpha: float, tune: float) -> None:
    """An estimate that is half a width away has evidence of exactly 1 ÷ alpha."""
    width = float(half_width(gathered, alpha, tune))
    evidence = float(log_evidence(gathered * width, gathered, tuned(tune, alpha)))
    assert evidence == pytest.approx(-math.log(alpha), abs=1e-9)


@given(information, alphas, wanted)
def test_the_bound_agrees_with_the_published_closed_form(gathered: float, alpha: float, tune: float) -> None:
    """The closed form of Robbins' mixture is the same within 1 %, and never the wider one."""
    rho = tuned(tune, alpha)
    closed = math.sqrt((gathered + rho) / gathered**2 * math.log((gathered + rho) / (rho * (2 * alpha) ** 2)))
    assert closed <= float(half_width(gathered, alpha, tune)) * (1.0 + 1e-12)
    assert float(half_width(gathered, alpha, tune)) == pytest.approx(closed, rel=0.08 if alpha > 0.1 else 0.03)


def test_the_planning_constants() -> None:
    """At 5 % and the information wanted, the bound is 2.77 standard errors: the planner's one line."""
    assert float(half_width(1000.0, 0.05, 1000.0)) * math.sqrt(1000.0) == pytest.approx(2.766, abs=0.001)
    assert information_to_settle(math.log(1.1), 0.05, 1800.0, power=0.9) == pytest.approx(1800.0, rel=0.02)
    assert math.isinf(information_to_settle(0.0, 0.05, 1000.0))
    assert math.isinf(information_to_settle(-0.1, 0.05, 1000.0))


@given(st.floats(0.01, 1.0), alphas, wanted)
def test_the_information_that_settles_does_and_less_does_not(distance: float, alpha: float, tune: float) -> None:
    """At it the half width is the distance, just before it is more."""
    needed = information_to_settle(distance, alpha, tune)
    assert float(half_width(needed * 1.001, alpha, tune)) <= distance
    assert float(half_width(needed * 0.99, alpha, tune)) > distance


def test_tuning_to_the_wanted_information_is_best_there() -> None:
    """Other tunings are wider at that information; ten times off costs about a quarter."""
    here = float(half_width(500.0, 0.05, 500.0))
    for other in (50.0, 250.0, 1000.0, 5000.0):
        assert float(half_width(500.0, 0.05, other)) >= here * 0.999
    assert float(half_width(500.0, 0.05, 5000.0)) / here == pytest.approx(1.27, abs=0.05)
    assert information_wanted(0.1) == pytest.approx(440.0, rel=0.01)


def test_no_information_bounds_nothing() -> None:
    """Before the first block the width is infinite, the evidence 0 and the estimate 0."""
    path = accumulate(np.array([0.3, 0.3]), np.array([np.inf, 0.01]))
    assert math.isinf(path.limits((0.05, 0.05), 100.0)[1][0])
    assert math.isinf(-path.limits((0.05, 0.05), 100.0)[0][0])
    assert path.log_evidence_above(0.0, 0.05, 100.0)[0] == 0.0
    assert path.estimate.tolist() == pytest.approx([0.0, 0.3])


@given(
    st.lists(st.tuples(st.floats(-1, 1), st.floats(1e-4, 1.0)), min_size=1, max_size=30),
    st.floats(-0.2, 0.2),
    st.floats(0.0, 0.01),
)
def test_swapped_arms_swap_the_bounds(blocks: list[tuple[float, float]], bound: float, persistent: float) -> None:
    """Reversed effects have the negative estimate, exchanged limits and exchanged evidence."""
    effects, variances = (np.array(each) for each in zip(*blocks, strict=True))
    path, swapped = accumulate(effects, variances, persistent), accumulate(-effects, variances, persistent)
    (low, _), (_, high) = (each.limits((0.05, 0.05), 100.0) for each in (path, swapped))
    np.testing.assert_allclose(low, -high, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        path.log_evidence_above(bound, 0.05, 100.0), swapped.log_evidence_below(-bound, 0.05, 100.0), atol=1e-9
    )


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(1e-4, 1.0)), min_size=1, max_size=30))
def test_a_path_never_changes_when_later_blocks_come(blocks: list[tuple[float, float]]) -> None:
    """What was known after each block is the same from a shorter list of blocks."""
    effects, variances = (np.array(each) for each in zip(*blocks, strict=True))
    whole = accumulate(effects, variances)
    part = accumulate(effects[: len(blocks) // 2], variances[: len(blocks) // 2])
    (_, high), (_, known) = (each.limits((0.05, 0.05), 10.0) for each in (whole, part))
    np.testing.assert_allclose(high[: part.estimate.size], known)


@pytest.mark.slow
@given(st.floats(-40.0, 40.0), st.floats(0.1, 1e4), st.floats(0.1, 1e4))
@settings(max_examples=examples(40))
def test_evidence_grows_with_the_total_and_agrees_with_quadrature(score: float, variance: float, rho: float) -> None:
    """More drift is more evidence, and the closed form is the mixture over the half normal distribution."""
    total = score * math.sqrt(variance)
    here = float(log_evidence(total, variance, rho))
    assert here <= float(log_evidence(total + math.sqrt(variance), variance, rho)) + 1e-9
    points, weights = np.polynomial.legendre.leggauss(100)
    drift = (points + 1.0) * 0.5 * (10.0 / math.sqrt(rho) + 10.0 * abs(total) / variance)
    logs = drift * total - 0.5 * drift**2 * variance + 0.5 * math.log(2 * rho / math.pi) - 0.5 * rho * drift**2
    mixed = float(scipy.special.logsumexp(logs, b=weights * drift.max() / (points.max() + 1.0)))
    if abs(score) < 6.0 and 0.01 < variance / rho < 100.0:
        assert here == pytest.approx(mixed, abs=0.02)


@given(st.floats(-30.0, 8.0))
def test_normal_probabilities_agree_with_scipy(score: float) -> None:
    """To twelve digits, far into the tail."""
    assert float(normal_probability(np.array(score))) == pytest.approx(float(scipy.special.ndtr(score)), rel=1e-12)


def test_a_mean_that_itself_varies_is_never_known_better() -> None:
    """What replicas differ by for good bounds the information, and without it all is left."""
    assert lasting_information(np.array([1e12]), 0.01)[0] == pytest.approx(100.0)
    assert lasting_information(np.array([50.0]), 0.0)[0] == 50.0


def test_alpha_is_divided_so_that_the_smallest_shares_have_most() -> None:
    """Parts sum to one, none is nothing, and a single stage has all."""
    parts = split_alpha((0.01, 0.05, 0.25, 0.5, 1.0))
    assert sum(parts) == pytest.approx(1.0)
    assert parts[0] > 0.7 > parts[1] > parts[2] > parts[3] > parts[4] == pytest.approx(0.02)
    assert split_alpha((0.25,)) == pytest.approx((1.0,))
    assert split_alpha((1.0,)) == (1.0,)
    with pytest.raises(ValueError, match="no stage"):
        split_alpha(())


@pytest.mark.parametrize("alpha", [0.0, 0.5, -1.0])
def test_an_impossible_level_is_refused(alpha: float) -> None:
    """By its value."""
    with pytest.raises(ValueError, match=f"alpha is {alpha}"):
        tuned(100.0, alpha)


@pytest.mark.parametrize("persistent", [0.0, 0.0005])
def test_the_bounds_hold_at_every_look(persistent: float) -> None:
    """Of 2 000 days of looking at no effect every block, at most alpha ever cross, replicas' differences included."""
    random = np.random.default_rng(7)
    days, blocks, variance = 2000, 288, 0.02
    effects = random.normal(size=(days, blocks)) * math.sqrt(variance)
    effects += random.normal(size=(days, 1)) * math.sqrt(persistent)
    information = np.arange(1, blocks + 1) / variance
    estimates = np.cumsum(effects, axis=1) / np.arange(1, blocks + 1)
    width = half_width(lasting_information(information, persistent), 0.05, 1000.0)
    crossed = float((estimates > width).any(axis=1).mean())
    assert 0.005 < crossed <= 0.06
