"""Several metrics: the family's error, and shares against what was configured."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from servescope.cutover.evidence.shares import differs, log_evidence_of_mismatch, off_plan
from servescope.cutover.statistics.sequences import Floats
from servescope.cutover.statistics.several import holm


@given(hnp.arrays(np.float64, (5, 20), elements=st.floats(-10.0, 10.0)))
def test_adjusted_values_never_fall_below_and_only_fall_with_time(evidence: Floats) -> None:
    """An adjusted p-value is at least the plain one, at most 1, and what was claimed stays claimed."""
    plain = np.minimum(0.0, -np.maximum.accumulate(evidence, axis=-1))
    adjusted = holm(plain)
    assert (plain <= 0.0).all()
    assert (adjusted >= plain - 1e-12).all()
    assert (adjusted <= 0.0).all()
    assert (np.diff(adjusted, axis=1) <= 1e-12).all()


@given(hnp.arrays(np.float64, (5, 3), elements=st.floats(-10.0, 0.0)), st.permutations(range(5)))
def test_the_order_of_metrics_does_not_matter(log_p: Floats, order: list[int]) -> None:
    """Each metric has the same adjusted value wherever it is in the list."""
    np.testing.assert_allclose(holm(log_p[order]), holm(log_p)[order])


def test_two_metrics_share_alpha_and_one_has_all_of_it() -> None:
    """The strongest needs 1 ÷ (2 alpha), the other then 1 ÷ alpha."""
    found = np.exp(holm(np.log(np.array([[0.02], [0.04]]))))
    assert found.ravel().tolist() == pytest.approx([0.04, 0.04])
    assert np.exp(holm(np.log(np.array([[0.04]])))).item() == pytest.approx(0.04)


def test_a_larger_part_needs_less_evidence() -> None:
    """With three quarters of alpha, 4/3 of it; the other, alone afterwards, has all of it."""
    log_p = np.log(np.array([[0.03], [0.02]]))
    found = np.exp(holm(log_p, np.array([3.0, 1.0])))
    assert found.ravel().tolist() == pytest.approx([0.04, 0.04])
    np.testing.assert_allclose(holm(log_p, np.array([2.0, 2.0])), holm(log_p))


def test_requests_that_follow_the_configured_share_seldom_differ() -> None:
    """At most 5 % of days; conversations that stay with an arm need their dispersion."""
    random = np.random.default_rng(1)
    total = random.poisson(1500.0, (200, 288))
    v2 = random.binomial(total, 0.05).astype(float)
    alarms = [log_evidence_of_mismatch(n - x, x, 0.05).max() > math.log(20.0) for n, x in zip(total, v2, strict=True)]
    assert np.mean(alarms) <= 0.05
    clustered = 8.0 * random.binomial(total // 8, 0.05)
    loose = [
        log_evidence_of_mismatch(n - x, x, 0.05, dispersion=8.0).max() > math.log(20.0)
        for n, x in zip(total // 8 * 8, clustered, strict=True)
    ]
    assert np.mean(loose) <= 0.05


def test_another_share_is_found() -> None:
    """Half of what was configured within half an hour, in either direction."""
    random = np.random.default_rng(2)
    total = random.poisson(1500.0, 288)
    for share in (0.025, 0.1):
        v2 = random.binomial(total, share).astype(float)
        assert int(np.argmax(log_evidence_of_mismatch(total - v2, v2, 0.05) > math.log(20.0))) <= 6
    assert differs(0.025, 0.05)
    assert not differs(0.055, 0.05)
    assert differs(0.97, 0.95)


@pytest.mark.parametrize(("per_block", "share"), [(25.0, 0.25), (50.0, 0.5), (1500.0, 0.01), (1500.0, 0.5)])
def test_a_share_as_planned_is_hardly_ever_off(per_block: float, share: float) -> None:
    """For one block in a thousand of four weeks, as conversations of ten requests follow each other to one arm."""
    random = np.random.default_rng(3)
    conversations = random.poisson(per_block / 10.0, 28 * 288)
    v2 = random.binomial(conversations, share).astype(float)

    assert off_plan(10.0 * (conversations - v2), 10.0 * v2, share).mean() <= 0.001


def test_a_share_that_was_mended_is_as_planned_within_hours() -> None:
    """Few requests show after hours that it is off, and are no reason to wait for as long again."""
    random = np.random.default_rng(4)
    whole = random.poisson(25.0, 288)
    share = np.where(np.arange(288) < 144, 0.1, 0.5)
    v2 = random.binomial(whole, share)
    off = off_plan((whole - v2).astype(float), v2.astype(float), 0.5)

    assert off[36:144].all()
    assert not off[156:].any()


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_of_nothing_or_all_has_no_mismatch(share: float) -> None:
    """It is refused by its value."""
    with pytest.raises(ValueError, match=f"{share}"):
        log_evidence_of_mismatch(np.ones(1), np.ones(1), share)
