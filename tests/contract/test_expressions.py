"""The algebra of derived figures: its PromQL, and its values over windows of samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from servescope.contract.expressions import (
    Difference,
    Expression,
    FractionAbove,
    Level,
    Quantile,
    Ratio,
    Vector,
    increase,
    is_per_second,
    leaves,
    level,
    mean,
    name_promql,
    promql,
    rate,
    rename,
    selector_promql,
)
from servescope.contract.figures import FIGURES
from servescope.contract.samples import Sample, Series, Window, format_edge, make_labels
from servescope.errors import ExpressionError
from servescope.increments.extrapolation import LOOKBACK_MS, WindowBounds
from servescope.increments.readings import bucket_quantile, evaluate, evaluate_increases
from tests.support.drawing import examples

ABSENT = math.nan
SECOND = 1000
REQUESTS = "requests_total"


def window(rows: Mapping[tuple[str, str], Sequence[float]], *, every: int = SECOND, first: int = 0) -> Window:
    """A window with one row per (name, labels as `a=1,b=2`), one scrape every second."""
    series = tuple(Series(name, make_labels(_pairs(labels))) for name, labels in rows)
    values = np.array(list(rows.values()), dtype=np.float64)
    return Window(series, first + every * np.arange(values.shape[1], dtype=np.int64), values)


def _pairs(labels: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in labels.split(",")) if labels else {}


def value(
    expression: Expression, *windows: Window, at: float, over: float = 10, by: Sequence[str] = ()
) -> float | None:
    """The value of an expression whose group has no labels; times in seconds."""
    found = evaluate(expression, windows, at_ms=round(at * SECOND), window_ms=round(over * SECOND), by=by)
    assert set(found) <= {()}
    return found.get(())


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (rate(REQUESTS), "sum by (a, b) (rate(requests_total[5m]))"),
        (increase(REQUESTS, outcome="ok"), 'sum by (a, b) (increase(requests_total{outcome="ok"}[5m]))'),
        (rate(REQUESTS, outcome=("error", "rejected"), role="decode"),
         'sum by (a, b) (rate(requests_total{outcome=~"error|rejected",role="decode"}[5m]))'),
        (level("queued_requests", "max"), "max by (a, b) (queued_requests)"),
        (Ratio(rate("x_total"), rate("y_total")),
         "sum by (a, b) (rate(x_total[5m])) / (sum by (a, b) (rate(y_total[5m])) > 0)"),
        (
            Ratio(Difference(rate("x_total"), rate("y_total")), rate("z_total")),
            "(sum by (a, b) (rate(x_total[5m])) - sum by (a, b) (rate(y_total[5m]))) "
            "/ (sum by (a, b) (rate(z_total[5m])) > 0)",
        ),
        (mean("x"), "sum by (a, b) (rate(x_sum[5m])) / (sum by (a, b) (rate(x_count[5m])) > 0)"),
        (Quantile(0.95, "x_seconds"),
         "histogram_quantile(0.95, sum by (a, b, le) (rate(x_seconds_bucket[5m]))) >= -Inf"),
        (
            FractionAbove(1, "x_seconds"),
            '1 - sum by (a, b) (rate(x_seconds_bucket{le="1.0"}[5m])) '
            "/ (sum by (a, b) (rate(x_seconds_count[5m])) > 0)",
        ),
    ],
)  # fmt: skip
def test_an_expression_is_written_as_promql(expression: Expression, text: str) -> None:
    """Increased per series, then summed, then divided; nothing is divided by nothing."""
    assert promql(expression, window="5m", by=("a", "b"), collectors=()) == text


def test_a_series_of_several_collectors_counts_once() -> None:
    """The highest, after each collector's own increase and before any sum."""
    once = "max without (instance, job, pod)"
    rates = f"{once} (rate(x_seconds_bucket[5m]))"

    assert promql(rate("x_total"), window="5m", by=("a",)) == f"sum by (a) ({once} (rate(x_total[5m])))"
    assert promql(level("x"), window="", by=("a",)) == f"sum by (a) ({once} (x))"
    assert promql(level("x", "max"), window="", by=("a",)) == "max by (a) (x)"
    assert promql(Quantile(0.5, "x_seconds"), window="5m", by=("a",)) == (
        f"histogram_quantile(0.5, sum by (a, le) ({rates})) >= -Inf"
    )
    assert promql(rate("x_total"), window="5m", by=("a",), collectors=("instance",)) == (
        "sum by (a) (max without (instance) (rate(x_total[5m])))"
    )


def test_label_values_are_quoted_in_promql() -> None:
    """A value matches itself, also where it has a quote or a character of regular expressions."""
    assert (
        promql(rate("x", path='a"b\\'), window="1m", by=(), collectors=())
        == 'sum by () (rate(x{path="a\\"b\\\\"}[1m]))'
    )
    assert (
        promql(rate("x", v=("1.5", "a|b")), window="1m", by=(), collectors=())
        == 'sum by () (rate(x{v=~"1\\\\.5|a\\\\|b"}[1m]))'
    )


def test_names_that_are_not_plain_are_quoted() -> None:
    """As Prometheus 3 and VictoriaMetrics take them; the labels of a group are quoted by who names them."""
    dotted = rename(rate(REQUESTS, outcome="ok"), label=lambda label: f"x.{label}", series=lambda name: f"x.{name}")

    assert promql(dotted, window="5m", by=[name_promql("service.name")], collectors=()) == (
        'sum by ("service.name") (rate({"x.requests_total","x.outcome"="ok"}[5m]))'
    )
    assert selector_promql("x.y") == '{"x.y"}'
    assert selector_promql("x_y", (("z", ("1",)),)) == 'x_y{z="1"}'


def test_a_left_open_window_leaves_out_its_first_edge() -> None:
    """As Prometheus 3 reads a range: of samples every 5 s, 10 s hold two, not three."""
    samples = window({(REQUESTS, ""): [100, 110, 140]}, every=5 * SECOND)

    def left_open(at_ms: int) -> Vector:
        return evaluate(increase(REQUESTS), [samples], at_ms=at_ms, window_ms=10_000, by=(), bounds="left-open")

    assert left_open(10_000) == {(): 30 * 10 / 5}
    assert left_open(9_999) == {(): pytest.approx(10 * (5 + 0.001 + 4.999) / 5)}


def test_a_counter_near_zero_is_met_after_the_threshold_when_left_open() -> None:
    """Prometheus 3 extends by half a distance, or to where it was 0 if that is nearer; 2 asks otherwise."""
    samples = window({(REQUESTS, ""): [ABSENT, ABSENT, ABSENT, 8, 18, 28, 38]})
    left_open = evaluate(increase(REQUESTS), [samples], at_ms=6_000, window_ms=6_000, by=(), bounds="left-open")

    assert value(increase(REQUESTS), samples, at=6, over=6) == pytest.approx(30 * (3 + 0.8) / 3)
    assert left_open == {(): pytest.approx(30 * (3 + 0.5) / 3)}


def test_an_increase_reaches_the_window_s_end_when_a_sample_was_due_there() -> None:
    """Up to 1.1 times the mean distance between samples; beyond that, half a distance is added."""
    samples = window({(REQUESTS, ""): [1000, 1010, 1020, 1030]})

    assert value(increase(REQUESTS), samples, at=4.099, over=4.099) == pytest.approx(30 * 4.099 / 3)
    assert value(increase(REQUESTS), samples, at=4.101, over=4.101) == pytest.approx(30 * 3.5 / 3)


def test_a_counter_that_stands_still_has_the_rate_zero() -> None:
    """Idle is 0 for a counter that is there: data, and nothing happened."""
    assert value(rate(REQUESTS), window({(REQUESTS, ""): [7, 7, 7]}), at=2) == 0


def test_series_are_increased_first_and_then_summed() -> None:
    """One replica's restart does not hide the other's progress, as it would after a sum."""
    left = window({(REQUESTS, "replica=0"): [100, 110, 0, 10, 20, 30]}, every=2 * SECOND)
    right = window({(REQUESTS, "replica=1"): [0, 10, 20, 30, 40, 50]}, every=2 * SECOND)

    assert value(increase(REQUESTS), left, right, at=10) == 10 + 30 + 50


def test_a_group_has_the_labels_it_is_grouped_by() -> None:
    """Labels that are not asked for are summed over; one that a series lacks is not in its group."""
    samples = window({
        (REQUESTS, "stack=v1,outcome=ok"): [0, 10], (REQUESTS, "stack=v1,outcome=error"): [0, 2],
        (REQUESTS, "outcome=ok"): [0, 5],
    })  # fmt: skip

    found = evaluate(increase(REQUESTS), [samples], at_ms=SECOND, window_ms=SECOND, by=("stack", "phase"))

    assert found == {(("stack", "v1"),): 12, (): 5}


def test_where_keeps_the_series_whose_label_has_one_of_the_values() -> None:
    """A label that is absent has the empty value, as in Prometheus."""
    samples = window({
        (REQUESTS, "outcome=ok"): [0, 10], (REQUESTS, "outcome=error"): [0, 2],
        (REQUESTS, "outcome=rejected"): [0, 1], (REQUESTS, ""): [0, 50],
    })  # fmt: skip

    assert value(increase(REQUESTS, outcome=("error", "rejected")), samples, at=1, over=1) == 3
    assert value(increase(REQUESTS, outcome=""), samples, at=1, over=1) == 50
    assert value(increase(REQUESTS, outcome="client_abort"), samples, at=1, over=1) is None


def test_a_window_of_no_length_is_refused() -> None:
    """The error names the value."""
    with pytest.raises(ExpressionError, match="window of 0 ms"):
        value(rate(REQUESTS), at=1, over=0)


def test_a_level_is_summed_averaged_or_the_highest() -> None:
    """Over what each target showed in its last scrape."""
    targets = [window({("busy", "gpu=0"): [9, 1], ("busy", "gpu=1"): [9, 2]}), window({("busy", "gpu=0"): [9, 6]})]

    assert value(level("busy"), *targets, at=1) == 9
    assert value(level("busy", "avg"), *targets, at=1) == 3
    assert value(level("busy", "max"), *targets, at=1) == 6


def test_a_failed_scrape_ends_a_gauge_and_the_next_good_one_brings_it_back() -> None:
    """No value is carried over a scrape that did not expose it."""
    samples = window({("busy", ""): [1, ABSENT, 3]})

    assert [value(level("busy"), samples, at=at) for at in (-0.001, 0, 0.999, 1, 1.999, 2)] == [
        None, 1, 1, None, None, 3,
    ]  # fmt: skip


def test_a_gauge_is_held_for_five_minutes_after_the_last_scrape() -> None:
    """To the millisecond, and no longer."""
    samples = window({("busy", ""): [1]})

    assert value(level("busy"), samples, at=LOOKBACK_MS / SECOND) == 1
    assert value(level("busy"), samples, at=LOOKBACK_MS / SECOND + 0.001) is None
    left_open = [
        evaluate(level("busy"), [samples], at_ms=at_ms, window_ms=SECOND, by=(), bounds="left-open")
        for at_ms in (LOOKBACK_MS - 1, LOOKBACK_MS)
    ]
    assert left_open == [{(): 1}, {}]


def test_a_ratio_over_nothing_is_absent() -> None:
    """Idle deployments have no error share; it is not 0, and not an error."""
    idle = window({("errors_total", ""): [3, 3], ("all_total", ""): [9, 9]})
    busy = window({("errors_total", ""): [3, 4], ("all_total", ""): [9, 13]})
    share = Ratio(rate("errors_total"), rate("all_total"))

    assert value(share, idle, at=1) is None
    assert value(share, busy, at=1) == pytest.approx(0.25)


def test_a_ratio_or_difference_without_one_side_is_absent() -> None:
    """Also where the missing side would be 0: absent is not zero."""
    samples = window({("x_total", ""): [0, 10]})

    assert value(Ratio(rate("x_total"), rate("y_total")), samples, at=1) is None
    assert value(Ratio(rate("y_total"), rate("x_total")), samples, at=1) is None
    assert value(Difference(rate("x_total"), rate("y_total")), samples, at=1) is None


def histogram(counts: Mapping[float, float], total: float = 0.0) -> Window:
    """A window over which a histogram `x` got these cumulative counts."""
    rows = {("x_bucket", f"le={format_edge(edge)}"): [0.0, count] for edge, count in counts.items()}
    return window({**rows, ("x_sum", ""): [0.0, total], ("x_count", ""): [0.0, max(counts.values(), default=0.0)]})


def test_a_quantile_of_no_observation_is_absent() -> None:
    """As is one without the `+Inf` bucket, without any other, or without a histogram."""
    median = Quantile(0.5, "x")

    assert value(median, histogram({1.0: 0, math.inf: 0}), at=1, over=1) is None
    assert value(median, histogram({1.0: 5, 2.0: 9}), at=1, over=1) is None
    assert value(median, histogram({math.inf: 9}), at=1, over=1) is None
    assert value(median, histogram({}), at=1, over=1) is None


def test_buckets_of_one_edge_are_one_bucket() -> None:
    """However their edges are written, `1` and `1.0` are the same."""
    samples = window({
        ("x_bucket", "le=1"): [0, 2], ("x_bucket", "le=1.0"): [0, 2], ("x_bucket", "le=+Inf"): [0, 8],
    })  # fmt: skip

    assert value(Quantile(0.25, "x"), samples, at=1, over=1) == 0.5


def test_the_lowest_edge_may_be_zero_or_less() -> None:
    """Then it is the answer itself: there is no 0 below it to interpolate from."""
    assert bucket_quantile(0.1, {-1.0: 5, 1.0: 10, math.inf: 10}) == -1.0
    assert bucket_quantile(0.1, {0.0: 5, 1.0: 10, math.inf: 10}) == 0.0


def test_the_quantile_zero_of_an_empty_lowest_bucket_is_absent() -> None:
    """Prometheus divides 0 by 0 there; with observations in that bucket it is 0."""
    assert bucket_quantile(0.0, {1.0: 0, 2.0: 4, math.inf: 4}) is None
    assert bucket_quantile(0.0, {1.0: 2, 2.0: 4, math.inf: 4}) == 0.0


@pytest.mark.parametrize("quantile", [-0.1, 1.1, math.nan])
def test_what_is_no_quantile_is_refused(quantile: float) -> None:
    """The error names the value."""
    with pytest.raises(ExpressionError, match=f"quantile {quantile!r} is not within"):
        Quantile(quantile, "x")


def test_the_fraction_above_an_edge_is_exact() -> None:
    """It is absent where the histogram has no such edge, and where nothing was observed."""
    samples = histogram({1.0: 6, 2.0: 9, math.inf: 10})

    assert value(FractionAbove(2.0, "x"), samples, at=1, over=1) == pytest.approx(0.1)
    assert value(FractionAbove(1.5, "x"), samples, at=1, over=1) is None
    assert value(FractionAbove(2.0, "x"), histogram({2.0: 0, math.inf: 0}), at=1, over=1) is None


def test_the_mean_of_a_histogram_is_its_sum_by_its_count() -> None:
    """Of the observations within the window only."""
    assert value(mean("x"), histogram({1.0: 1, math.inf: 4}, total=10.0), at=1, over=1) == pytest.approx(2.5)
    assert value(mean("x"), histogram({1.0: 0, math.inf: 0}), at=1, over=1) is None


def test_expressions_are_evaluated_over_increases_already_known() -> None:
    """Ratios and quantiles need no time; rates are per second where it is given."""
    increases = [
        Sample("x_bucket", make_labels({"le": "1.0"}), 4), Sample("x_bucket", make_labels({"le": "2.0"}), 8),
        Sample("x_bucket", make_labels({"le": "+Inf"}), 8), Sample("x_sum", (), 12), Sample("x_count", (), 8),
    ]  # fmt: skip

    assert evaluate_increases(Quantile(0.5, "x"), increases, by=()) == {(): 1.0}
    assert evaluate_increases(mean("x"), increases, by=()) == {(): 1.5}
    assert evaluate_increases(rate("x_count"), increases, by=(), seconds=4.0) == {(): 2.0}
    assert evaluate_increases(increase("x_count"), increases, by=(), seconds=4.0) == {(): 8.0}


def test_a_rate_depends_on_the_seconds_and_a_ratio_of_rates_does_not() -> None:
    """The figures that need no duration."""
    assert is_per_second(rate("x"))
    assert is_per_second(Difference(rate("x"), rate("y")))
    assert is_per_second(Ratio(rate("x"), level("y")))
    assert not is_per_second(Ratio(rate("x"), rate("y")))
    assert not is_per_second(increase("x"))
    assert not is_per_second(Quantile(0.5, "x"))


def test_leaves_are_the_metrics_an_expression_reads() -> None:
    """A quantile reads its histogram, a mean its sum and its count."""
    assert leaves(Ratio(Difference(rate("a"), rate("b")), level("c"))) == {"a", "b", "c"}
    assert leaves(Quantile(0.5, "x")) | leaves(mean("y")) == {"x", "y_sum", "y_count"}


SCRAPES = st.lists(
    st.tuples(
        st.integers(1, 40_000),  # milliseconds since the scrape before
        st.one_of(st.just(ABSENT), st.integers(0, 50).map(float), st.floats(0, 1e9, width=32)),
    ),
    max_size=12,
)


def plain_factor(
    samples: Sequence[tuple[int, float]], at_ms: int, window_ms: int, bounds: WindowBounds
) -> tuple[float, float] | None:
    """The increase between one series' samples and what extends it to the range's ends, a sample after the other."""
    start_ms = at_ms - window_ms
    first_ms = start_ms if bounds == "closed" else start_ms + 1
    inside = [(time, value) for time, value in samples if first_ms <= time <= at_ms and value == value]
    if len(inside) < 2:
        return None
    (first_time, first), (last_time, last) = inside[0], inside[-1]
    total = last - first
    for (_, before), (_, after) in pairwise(inside):
        total += before if after < before else 0.0
    sampled = (last_time - first_time) / 1000
    distance = sampled / (len(inside) - 1)
    to_start, to_end = (first_time - start_ms) / 1000, (at_ms - last_time) / 1000
    to_zero = sampled * (first / total) if total > 0 and first >= 0 else math.inf
    if bounds == "closed":
        to_start = min(to_start, to_zero)
        to_start = to_start if to_start < distance * 1.1 else distance / 2
    else:
        to_start = to_start if to_start < distance * 1.1 else distance / 2
        to_start = min(to_start, to_zero)
    to_end = to_end if to_end < distance * 1.1 else distance / 2
    return total, (sampled + to_start + to_end) / sampled


BOUNDS: st.SearchStrategy[WindowBounds] = st.sampled_from(("closed", "left-open"))


@given(st.lists(SCRAPES, min_size=1, max_size=3), st.integers(0, 200_000), st.integers(1, 120_000), BOUNDS)
def test_increases_are_those_of_a_plain_reading(
    targets: list[list[tuple[int, float]]], at: int, over: int, bounds: WindowBounds
) -> None:
    """Vectorised over targets, and with any gaps and resets, the sum is that of one series at a time."""
    windows, expected = [], []
    for scrapes in targets:
        samples = plain_samples(scrapes)
        windows.append(window_of(samples))
        expected.append(plain_factor(samples, at, over, bounds))
    known = [found[0] * found[1] for found in expected if found is not None]

    found = evaluate(increase("x"), windows, at_ms=at, window_ms=over, by=(), bounds=bounds)

    assert found == ({(): pytest.approx(sum(known), rel=1e-9, abs=1e-6)} if known else {})


@pytest.mark.slow
@settings(max_examples=examples(400))
@given(SCRAPES, st.one_of(st.integers(0, 200_000), st.integers(0, 11)), st.integers(1, 120_000), BOUNDS)
def test_one_series_is_that_of_a_plain_reading_to_the_bit(
    scrapes: list[tuple[int, float]], at: int, over: int, bounds: WindowBounds
) -> None:
    """Also where the range begins or ends on a sample, and where its length is no whole number of seconds."""
    samples = plain_samples(scrapes)
    if at < len(samples):
        at = samples[at][0] + over * (at % 2)
    expected = plain_factor(samples, at, over, bounds)
    seconds = over // 1000 + over % 1000 * 1_000_000 / 1e9
    windows = [window_of(samples)]

    rates = evaluate(rate("x"), windows, at_ms=at, window_ms=over, by=(), bounds=bounds)
    increases = evaluate(increase("x"), windows, at_ms=at, window_ms=over, by=(), bounds=bounds)

    assert rates == ({(): expected[0] * (expected[1] / seconds)} if expected else {})
    assert increases == ({(): expected[0] * expected[1]} if expected else {})


def plain_samples(scrapes: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Times and values, from the milliseconds between them."""
    return [(time, value) for time, (_, value) in zip(accumulate(step for step, _ in scrapes), scrapes, strict=True)]


def window_of(samples: Sequence[tuple[int, float]]) -> Window:
    times = np.array([time for time, _ in samples], dtype=np.int64)
    return Window((Series("x", ()),), times, np.array([[value for _, value in samples]], dtype=np.float64))


def plain_quantile(quantile: float, buckets: Mapping[float, float]) -> float | None:
    """The quantile by walking the buckets upwards."""
    highest, below, start = 0.0, 0.0, 0.0
    counts = {edge: (highest := max(highest, buckets[edge])) for edge in sorted(buckets)}
    for edge, count in counts.items():
        if count >= quantile * highest:
            if edge == math.inf:
                return start
            if edge <= 0 and below == 0:
                return edge
            return start + (edge - start) * (quantile * highest - below) / (count - below)
        below, start = count, edge
    return None


@given(
    st.dictionaries(st.integers(-2, 50).map(float), st.integers(0, 30).map(float), min_size=1, max_size=8),
    st.integers(1, 40).map(float),
    st.floats(0.01, 1),
)
def test_quantiles_are_those_of_a_plain_reading(buckets: dict[float, float], rest: float, quantile: float) -> None:
    """For any counts, rising or not, and any edges, below zero too."""
    counts = {**buckets, math.inf: rest}
    lowest = min(counts)
    assume(lowest > 0 or counts[lowest] > 0)

    assert bucket_quantile(quantile, counts) == pytest.approx(plain_quantile(quantile, counts))


@st.composite
def contract_windows(draw: st.DrawFn) -> Window:
    """A few scrapes of everything a figure reads, with anything missing anywhere."""
    names = sorted({leaf for figure in FIGURES.values() for leaf in leaves(figure.expression)})
    columns = draw(st.integers(0, 4))
    rows: dict[tuple[str, str], list[float]] = {}
    values = st.one_of(st.just(ABSENT), st.integers(0, 3).map(float), st.floats(0, 1e12))
    for name in names:
        for labels in ("le=0.5", "le=+Inf") if name.endswith("_seconds") else ("",):
            full_name = f"{name}_bucket" if name.endswith("_seconds") else name
            rows[full_name, labels] = draw(st.lists(values, min_size=columns, max_size=columns))
    return window(rows)


@pytest.mark.slow
@given(contract_windows(), st.integers(0, 5_000))
def test_a_figure_is_a_finite_number_or_absent(samples: Window, at_ms: int) -> None:
    """Whatever is missing, never NaN and never infinite."""
    for figure in FIGURES.values():
        found: Vector = evaluate(figure.expression, [samples], at_ms=at_ms, window_ms=3_000, by=figure.by)
        assert all(math.isfinite(one) for one in found.values())


def test_an_expression_can_be_a_key() -> None:
    """Equal expressions are one: what was computed for one figure serves another."""
    assert len({rate("x", a="1"), rate("x", a=("1",)), Level("y"), level("y")}) == 2
