"""Recent values are those that were appended, whatever keys come, go and come back."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servescope.collector.paging.recent_values import RecentValues, reduced

SPAN_MS = 1_000
instants = st.lists(
    st.tuples(st.integers(-400, 300), st.dictionaries(st.integers(0, 30), st.floats(-9, 9), max_size=12)), max_size=150
)


@pytest.mark.slow
@given(instants)
def test_the_last_span_is_kept(steps: list[tuple[int, dict[int, float]]]) -> None:
    """Keys that come, go and return, more than there is room for, and clocks that are set back."""
    track: RecentValues[int] = RecentValues(SPAN_MS)
    held: dict[int, dict[int, float]] = {}
    at_ms = 10_000
    for step, values in steps:
        at_ms += step
        track.append(at_ms, values)
        held = {time: found for time, found in held.items() if at_ms - SPAN_MS <= time < at_ms} | {at_ms: values}
        times, rows = track.between(at_ms - SPAN_MS, at_ms)
        assert [track.by_key(row) for row in rows] == [held[time] for time in times.tolist()]
        assert times.tolist() == sorted(held)


@given(st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=12))
def test_aggregates_are_those_of_the_values(values: list[int | None]) -> None:
    """Average, extremes, last value and changes skip absent values; without a value there is none."""
    track: RecentValues[str] = RecentValues(SPAN_MS)
    for number, value in enumerate(values):
        track.append(number, {} if value is None else {"a": float(value)})
    present = [value for value in values if value is not None]
    _, rows = track.between(0, SPAN_MS)
    for function, expected in (
        ("max", max(present, default=None)), ("min", min(present, default=None)),
        ("last", present[-1] if present else None),
        ("avg", sum(present) / len(present) if present else None),
        ("changes", sum(one != other for one, other in pairwise(present)) if present else None),
    ):  # fmt: skip
        found = track.by_key(reduced(function, rows)).get("a", math.nan)
        assert math.isnan(found) if expected is None else found == pytest.approx(expected)
