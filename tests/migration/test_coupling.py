"""Bounds of a mean product by histograms: no way in which sizes come together is beyond them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.migration.traffic.coupling import bound_product, spread_most, spread_part
from servescope.migration.traffic.traffic import Floats, SizeDistribution
from tests.support.drawing import examples

EDGES = (1.0, 2.0, 5.0, 10.0, 20.0)
SIZES = st.lists(st.floats(0, 60), min_size=1, max_size=30)


def histogram(values: Floats) -> SizeDistribution:
    """The values as a histogram counts them."""
    rows = np.searchsorted(EDGES, values, side="left")
    return SizeDistribution(EDGES, np.bincount(rows, minlength=len(EDGES) + 1).astype(float), float(values.sum()))


@pytest.mark.slow
@given(pairs=st.lists(st.tuples(st.floats(0, 60), st.floats(0, 60)), min_size=1, max_size=30))
@settings(max_examples=examples(300), deadline=None)
def test_no_pairs_are_beyond_the_bounds(pairs: list[tuple[float, float]]) -> None:
    """Whatever two sizes come together in, the mean of their product is within the bounds of both histograms."""
    one, other = (np.array(each) for each in zip(*pairs, strict=True))
    low, high = bound_product(spread_most(histogram(one)), spread_most(histogram(other)))
    assert low - 1e-6 <= float((one * other).mean()) <= high + 1e-6


@pytest.mark.slow
@given(pairs=st.lists(st.tuples(st.floats(0, 60), st.floats(0, 60), st.floats(0, 1)), min_size=1, max_size=30))
@settings(max_examples=examples(300), deadline=None)
def test_no_parts_are_beyond_the_bounds(pairs: list[tuple[float, float, float]]) -> None:
    """The same of a part of one of the sizes, of which the mean alone is known."""
    one, whole, shares = (np.array(each) for each in zip(*pairs, strict=True))
    part = whole * shares
    low, high = bound_product(spread_most(histogram(one)), spread_part(spread_most(histogram(whole)), part.mean()))
    assert low - 1e-6 <= float((one * part).mean()) <= high + 1e-6


def test_bounds_are_reached() -> None:
    """Of sizes that lie on the edges, the extreme ways to pair them have exactly the bounds."""
    one, other = np.array([1.0, 2.0, 5.0, 20.0]), np.array([2.0, 5.0, 10.0, 20.0])
    steps = [spread_most(SizeDistribution((0.5, *EDGES), np.array([0, *histogram(each).counts]), each.sum()))
             for each in (one, other)]  # fmt: skip
    low, high = bound_product(*steps)
    assert high >= float((one * other).mean())
    assert low <= float((one * other[::-1]).mean())
    same = np.array([5.0, 5.0])
    assert bound_product(spread_most(histogram(same)), spread_most(histogram(same))) == pytest.approx((25.0, 25.0))


def test_bounds_of_parts_are_reached() -> None:
    """A part of two times may be all of the longer: of that with the smaller size, or of that with the larger."""
    one, whole = histogram(np.array([1.0, 10.0])), histogram(np.array([5.0, 10.0]))
    part = spread_part(spread_most(whole), 5.0)
    assert bound_product(spread_most(one), part) == pytest.approx((5.0, 50.0))


def test_what_has_no_size_counts_as_zero() -> None:
    """Half of the requests without a token: the prompts of the others are with the longest or with the shortest."""
    prompts, durations = histogram(np.array([5.0, 5.0])), histogram(np.array([1.0, 1.0, 10.0, 10.0]))
    low, high = bound_product(spread_most(prompts, 4), spread_most(durations))
    assert (low, high) == pytest.approx((2.5, 25.0))


@given(values=SIZES)
def test_most_spread_values_keep_buckets_and_mean(values: list[float]) -> None:
    """They have the mean that was observed, and as many observations in each bucket, edges included."""
    sizes = histogram(np.array(values))
    steps = spread_most(sizes)
    assert float((steps.values * steps.shares).sum()) == pytest.approx(sizes.mean, abs=1e-9)
    assert float(steps.shares.sum()) == pytest.approx(1.0)
    assert (np.diff(steps.values) >= 0).all()
