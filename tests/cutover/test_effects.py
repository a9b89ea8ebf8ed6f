"""Effects of blocks: what they estimate, how sure they are, and what leaves a block out."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from servescope.cutover.statistics.effects import (
    BlockEffects,
    inflation,
    mean_effects,
    merge_blocks,
    ratio_effects,
    replica_variance,
    reversed_effects,
)
from servescope.cutover.statistics.sequences import Floats, accumulate

counts = hnp.arrays(np.float64, 30, elements=st.integers(0, 60).map(float))
sums = hnp.arrays(np.float64, 30, elements=st.floats(0.1, 100.0))


@pytest.mark.slow
@given(counts, sums, counts, sums)
def test_swapped_arms_flip_the_sign(n1: Floats, s1: Floats, n2: Floats, s2: Floats) -> None:
    """With the same variances, blocks and gaps."""
    one, other = mean_effects(n1, s1, n2, s2, 0.6), mean_effects(n2, s2, n1, s1, 0.6)
    np.testing.assert_allclose(one.effects, -other.effects, atol=1e-12)
    np.testing.assert_allclose(one.effects, reversed_effects(other).effects, atol=1e-12)
    np.testing.assert_array_equal(one.sampling, other.sampling)


@pytest.mark.slow
@given(counts, sums, counts, sums, st.floats(1e-3, 1e3))
def test_units_do_not_matter(n1: Floats, s1: Floats, n2: Floats, s2: Floats, unit: float) -> None:
    """Seconds or milliseconds: the same effects."""
    here, there = mean_effects(n1, s1, n2, s2, 0.6), mean_effects(n1, s1 * unit, n2, s2 * unit, 0.6)
    np.testing.assert_allclose(here.effects, there.effects, atol=1e-9)


@pytest.mark.slow
@given(counts, sums, counts, sums, st.integers(1, 30))
def test_blocks_that_are_there_never_change(n1: Floats, s1: Floats, n2: Floats, s2: Floats, length: int) -> None:
    """The effects of a shorter past are the first of those of the longer one."""
    whole = mean_effects(n1, s1, n2, s2, 0.6)
    part = mean_effects(n1[:length], s1[:length], n2[:length], s2[:length], 0.6)
    np.testing.assert_array_equal(part.last, whole.last[: part.last.size])
    np.testing.assert_allclose(part.effects, whole.effects[: part.effects.size], atol=1e-12)


@pytest.mark.slow
@given(counts, counts)
def test_merged_blocks_have_enough_or_fifteen_minutes(n1: Floats, n2: Floats) -> None:
    """They follow each other without a gap, and none has more than three."""
    firsts, lasts = merge_blocks(n1, n2)
    assert firsts.tolist() == [0, *(int(last) + 1 for last in lasts[:-1])][: firsts.size]
    for first, last in zip(firsts, lasts, strict=True):
        assert last - first + 1 <= 3
        assert last - first + 1 == 3 or min(n1[first : last + 1].sum(), n2[first : last + 1].sum()) >= 20.0


def test_sparse_and_one_armed_blocks_carry_no_information() -> None:
    """Fewer than five requests after merging, or none in an arm, leave the variance infinite and the estimate alone."""
    n1, n2 = np.full(6, 100.0), np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    blocks = mean_effects(n1, n1, n2, n2 * 5.0, 0.6)
    assert np.isinf(blocks.sampling).all()
    assert accumulate(blocks.effects, blocks.variances(0.001, inflation(blocks, 0.001))).information.tolist() == [
        0.0,
        0.0,
    ]


def test_a_known_ratio_is_found_without_bias_from_few_requests() -> None:
    """Twenty lognormal requests a block: the mean effect is ln 1.2 within 1 %, though a logarithm of a mean is low."""
    random = np.random.default_rng(3)
    cv2 = math.expm1(0.49)
    n1, n2 = np.full(2000, 400.0), np.full(2000, 20.0)
    s1 = random.lognormal(-1.0, 0.7, (2000, 400)).sum(axis=1)
    s2 = 1.2 * random.lognormal(-1.0, 0.7, (2000, 20)).sum(axis=1)
    blocks = mean_effects(n1, s1, n2, s2, cv2)
    assert blocks.effects.mean() == pytest.approx(math.log(1.2), abs=0.01)
    assert blocks.effects.var() == pytest.approx(float(blocks.sampling.mean()), rel=0.12)


def test_excess_noise_is_averaged_by_merged_blocks() -> None:
    """A block of fifteen minutes has a third of the excess of one of five."""
    blocks = BlockEffects(np.zeros(2), np.zeros(2), np.array([1, 3]), np.array([0, 3]))
    assert blocks.variances(0.006).tolist() == pytest.approx([0.006, 0.002])


def test_a_ratio_of_sums_and_its_variance_between_replicas() -> None:
    """The delta method's variance is that of the simulated logarithm, and replicas of unequal size weigh by their
    whole.
    """
    random = np.random.default_rng(5)
    whole = np.tile(np.array([[1000.0], [3000.0], [2000.0], [500.0]]), (1, 4000))
    replicas = 0.6 * np.exp(random.normal(size=(4, 4000)) * 0.1)
    v2 = whole * replicas * 1.1
    v1 = whole * 0.6 * np.exp(random.normal(size=(4, 4000)) * 0.1)
    blocks = ratio_effects(v1, whole, v2, whole, least_whole=100.0)
    assert blocks.effects.mean() == pytest.approx(math.log(1.1), abs=0.005)
    assert blocks.effects.var() == pytest.approx(float(blocks.sampling.mean()), rel=0.25)


def test_a_ratio_without_enough_below_the_line_is_no_effect() -> None:
    """Not 0 and not NaN: no information."""
    part, whole = np.ones((2, 6)), np.full((2, 6), 2.0)
    blocks = ratio_effects(part, whole, part, whole, least_whole=100.0)
    assert np.isinf(blocks.sampling).all()
    assert np.isfinite(blocks.effects).all()


def test_a_noisier_v2_widens_and_a_quieter_one_does_not_narrow() -> None:
    """Three times the predicted spread is found within hours; a third of it changes nothing; an effect is no noise."""
    random = np.random.default_rng(2)
    steps = np.ones(144, dtype=np.int64)
    for spread, effect, least, most in ((3.0, 0.0, 3.0, 9.5), (0.3, 0.0, 1.0, 1.0), (1.0, 0.5, 1.0, 1.4)):
        effects = random.normal(size=144) * 0.1 * spread + effect
        factor = inflation(BlockEffects(effects, np.full(144, 0.01), steps, np.arange(144)), 0.0)
        assert least <= factor[-1] <= most
        assert (factor >= 1.0).all()
        assert factor[0] == 1.0


def test_replicas_that_differ_for_good() -> None:
    """One replica against many leaves the variance of one; more replicas less."""
    assert float(replica_variance(0.01, 1e9, 1)) == pytest.approx(0.01)
    assert float(replica_variance(0.01, 4, 4)) == pytest.approx(0.005)


def test_the_variance_of_one_replica_is_that_of_its_past() -> None:
    """Blocks that come later change no variance before them, and the first block has none yet."""
    random = np.random.default_rng(4)
    whole = random.uniform(9e3, 11e3, size=(1, 20))
    parts = whole * random.uniform(0.9, 1.1, size=(1, 20))
    found, early = (
        ratio_effects(parts[:, :end], whole[:, :end], parts[:, :end], whole[:, :end], least_whole=100.0)
        for end in (20, 8)
    )

    assert np.array_equal(found.sampling[:8], early.sampling)
    assert np.isinf(found.sampling[0])
    assert np.isfinite(found.sampling[1:]).all()
