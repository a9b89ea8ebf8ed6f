"""Series and values as text: the same number always has the same text, the one Prometheus' clients print."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.utils import floatToGoString

from servescope.contract.samples import format_edge, format_series, format_value, make_labels

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("edge", "text"),
    [
        (0.5, "0.5"),
        (1, "1.0"),
        (2560.0, "2560.0"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (999999.0, "999999.0"),
        (1e6, "1e+06"),
        (1234567.0, "1.234567e+06"),
        (20500000.0, "2.05e+07"),
        (1e10, "1e+10"),
        (1e16, "1e+16"),
        (math.inf, "+Inf"),
    ],
)
def test_an_edge_has_one_text(edge: float, text: str) -> None:
    """Edges are written as Prometheus' clients write them, exponents from a million up."""
    assert format_edge(edge) == text


def test_what_is_no_finite_number_has_a_text() -> None:
    """NaN and the infinities have the names an exposition gives them."""
    assert [format_value(value) for value in (math.nan, math.inf, -math.inf)] == ["NaN", "+Inf", "-Inf"]


@given(st.floats(min_value=0, max_value=1e10, exclude_max=True))
def test_values_are_written_as_prometheus_client_does(value: float) -> None:
    """Below 1e10, from where its exponents have a digit too many, the texts are the same."""
    assert format_value(value) == floatToGoString(value)  # type: ignore[no-untyped-call]


@given(FINITE)
def test_a_text_gives_its_value_back(value: float) -> None:
    """No digit is lost on the way through an exposition."""
    assert float(format_value(value)) == value


def test_labels_are_sorted_and_an_empty_value_is_no_label() -> None:
    """Two ways to give the same labels make the same key."""
    assert make_labels({"role": "router", "environment": "", "replica": "0"}) == (("replica", "0"), ("role", "router"))
    assert make_labels([("role", "router"), ("replica", "0")]) == make_labels({"replica": "0", "role": "router"})


def test_a_series_is_written_with_its_labels_quoted() -> None:
    """What would end a label's value is escaped; a series without labels is its bare name."""
    assert format_series("up", ()) == "up"
    assert format_series("x", (("a", 'say "hi"'), ("b", "C:\\tmp\nend"))) == r'x{a="say \"hi\"",b="C:\\tmp\nend"}'
