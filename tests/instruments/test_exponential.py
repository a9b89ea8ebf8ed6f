"""Exponential buckets: a value is counted in the one bucket it lies in, at every scale."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servescope.instruments.exponential import MOST_BUCKETS, SCALE, Exponential


def counted(*values: float, times: Sequence[float] | None = None) -> Exponential:
    exponential = Exponential()
    exponential.observe(np.array(values), None if times is None else np.array(times))
    return exponential


@given(st.floats(1e-9, 4e18))
def test_a_value_lies_in_its_bucket(value: float) -> None:
    """Above the lower bound, up to the upper one, as exactly as the logarithm is."""
    scale, offset, counts = counted(value).state().buckets()
    assert (scale, counts) == (SCALE, [1])
    place = math.log2(value) * 2**SCALE
    assert offset - 1e-9 < place <= offset + 1 + 1e-9


@pytest.mark.parametrize("power", [-20, -1, 0, 1, 30])
def test_a_power_of_two_is_the_last_of_its_bucket(power: int) -> None:
    """The upper bound belongs to a bucket, the lower one to the bucket before it."""
    _, offset, _ = counted(2.0**power).state().buckets()
    _, above, _ = counted(np.nextafter(2.0**power, math.inf)).state().buckets()
    assert (offset, above) == (power * 2**SCALE - 1, power * 2**SCALE)


def test_zeros_and_what_is_below_a_nanosecond_are_counted_apart() -> None:
    """They are in the count and the sum."""
    state = counted(0.0, 1e-12, 1.0).state()
    assert (state.zeros, state.count, state.sum) == (2, 3, 1.0 + 1e-12)


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=50), st.data())
def test_no_point_has_too_many_buckets_and_none_loses_a_value(values: list[float], data: st.DataObject) -> None:
    """Neighbours are added up until they fit; each value is still in the bucket that holds it."""
    times = data.draw(st.lists(st.integers(1, 9), min_size=len(values), max_size=len(values)))
    scale, offset, counts = counted(*values, times=times).state().buckets()
    expected: dict[int, int] = {}
    for value, often in zip(values, times, strict=True):
        ((place,),) = (counted(value).state().counts.nonzero(),)
        _, fine, _ = counted(value).state().buckets()
        assert len(place) == 1
        expected[fine >> (SCALE - scale)] = expected.get(fine >> (SCALE - scale), 0) + often
    assert len(counts) <= MOST_BUCKETS
    assert {offset + place: count for place, count in enumerate(counts) if count} == expected


def test_a_difference_is_what_came_between() -> None:
    """Bucket by bucket, zeros and sum too."""
    exponential = counted(1.5, 3.0, 0.0)
    before = exponential.state()
    exponential.observe(np.array([3.0, 100.0, 0.0]))
    rest = exponential.state().minus(before)
    assert (rest.count, rest.zeros, rest.sum) == (3, 1, 103.0)
    assert sum(rest.buckets()[2]) == 2
