"""The values of expressions: from windows of samples, or from increases that are already known.

Agrees with Prometheus 2.42 on the same samples: the window is closed on both sides, counter resets are added back,
increases are extrapolated to the window's ends, a gauge is read from the last scrape within five minutes. A group
without data is absent: no result is ever NaN or infinite. Needs numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Protocol, assert_never

from servescope.contract.expressions import (
    Difference,
    Expression,
    FractionAbove,
    Increase,
    Level,
    Matchers,
    Quantile,
    Rate,
    Ratio,
    Vector,
    matches,
)
from servescope.contract.samples import Labels, Sample, Series, Window
from servescope.increments.extrapolation import Range, WindowBounds, window_changes, window_levels


class Readings(Protocol):
    """Provides the sums that the leaves of an expression need."""

    def counters(self, name: str, where: Matchers, by: Sequence[str], *, per_second: bool) -> Vector:
        """Sum of the increases (or rates) of the counter's series, per group."""

    def gauges(self, name: str, where: Matchers, by: Sequence[str]) -> dict[Labels, list[float]]:
        """The gauge's values now, per group."""

    def buckets(self, histogram: str, by: Sequence[str]) -> dict[Labels, dict[float, float]]:
        """Sum of the rates of the cumulative buckets by their upper edge, per group."""


def evaluate(
    expression: Expression,
    windows: Sequence[Window],
    *,
    at_ms: int,
    window_ms: int,
    by: Sequence[str],
    bounds: WindowBounds = "closed",
) -> Vector:
    """The expression's value per group at `at_ms` over the `window_ms` before it; a group without data is absent."""
    return compute(expression, WindowReadings(windows, at_ms=at_ms, window_ms=window_ms, bounds=bounds), by)


def evaluate_increases(
    expression: Expression, increases: Iterable[Sample], *, by: Sequence[str], seconds: float | None = None
) -> Vector:
    """The expression over increases already known, one sample per series; gauges as they are.

    With `seconds` None, rates are plain increases: correct for ratios, means, quantiles and fractions, whose time
    cancels; the caller leaves plain rates out. Used where only totals since a start, or between two texts, are known.
    """
    return compute(expression, _IncreaseReadings(tuple(increases), seconds), by)


def compute(expression: Expression, readings: Readings, by: Sequence[str]) -> Vector:
    """The expression's value per group from any source of readings; absent, never infinite, where it overflows."""
    return {group: value for group, value in _compute(expression, readings, tuple(by)).items() if math.isfinite(value)}


def _compute(expression: Expression, readings: Readings, by: tuple[str, ...]) -> Vector:
    match expression:
        case Rate(name, where):
            return readings.counters(name, where, by, per_second=True)
        case Increase(name, where):
            return readings.counters(name, where, by, per_second=False)
        case Level(name, over, where):
            return {group: _OVER[over](values) for group, values in readings.gauges(name, where, by).items()}
        case Ratio(numerator, denominator):
            below = compute(denominator, readings, by)
            above = compute(numerator, readings, by)
            return {group: value / below[group] for group, value in above.items() if below.get(group, 0.0) > 0.0}
        case Difference(left, right):
            less = compute(right, readings, by)
            return {group: value - less[group] for group, value in compute(left, readings, by).items() if group in less}
        case Quantile(quantile, histogram):
            quantiles = {
                group: bucket_quantile(quantile, buckets) for group, buckets in readings.buckets(histogram, by).items()
            }
            return {group: value for group, value in quantiles.items() if value is not None}
        case FractionAbove(histogram=histogram):
            counts = readings.counters(f"{histogram}_count", (), by, per_second=True)
            below_edge = {
                group: next((buckets[edge] for edge in expression.edges if edge in buckets), None)
                for group, buckets in readings.buckets(histogram, by).items()
            }
            return {
                group: 1.0 - below / counts[group]
                for group, below in below_edge.items()
                if below is not None and counts.get(group, 0.0) > 0.0
            }
        case _:
            assert_never(expression)


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_OVER: Mapping[str, Callable[[list[float]], float]] = {"sum": sum, "avg": _average, "max": max}


def bucket_quantile(quantile: float, buckets: Mapping[float, float]) -> float | None:
    """The quantile of cumulative bucket counts by upper edge, as Prometheus' `histogram_quantile` finds it.

    None when there is no observation, no `+Inf` bucket, or no other bucket, and for the quantile 0 of a histogram whose
    lowest bucket is empty. Above the highest finite edge it is that edge.
    """
    edges = sorted(buckets)
    if len(edges) < 2 or edges[-1] != math.inf:
        return None
    counts = _made_monotonic([buckets[edge] for edge in edges])
    if counts[-1] <= 0:
        return None
    rank = quantile * counts[-1]
    index = next((i for i in range(len(edges) - 1) if counts[i] >= rank), len(edges) - 1)
    if index == len(edges) - 1:
        return edges[-2]
    if index == 0 and edges[0] <= 0:
        return edges[0]
    start, below = (edges[index - 1], counts[index - 1]) if index else (0.0, 0.0)
    if counts[index] == below:  # only for the quantile 0: 0 ÷ 0, which is NaN in Prometheus
        return None
    return start + (edges[index] - start) * ((rank - below) / (counts[index] - below))


def _made_monotonic(counts: list[float]) -> list[float]:
    # Scrapes are not atomic, so a cumulative bucket may be below the one before it; Prometheus raises it.
    highest = -math.inf
    return [highest := max(highest, count) for count in counts]


class WindowReadings:
    """Readings over windows of samples: Prometheus' `rate` and instant look-up, vectorised per window.

    Make one per evaluation instant and evaluate all expressions with it; rates are computed once per window.
    For another instant over the same windows use `at`, which keeps the grouping of their series.
    """

    def __init__(
        self, windows: Sequence[Window], *, at_ms: int, window_ms: int, bounds: WindowBounds = "closed"
    ) -> None:
        self._windows = tuple(windows)
        self._groups: dict[tuple[int, str, Matchers, tuple[str, ...]], _RowsByGroup] = {}
        self._rows: dict[int, dict[str, list[int]]] = {}
        self._read(at_ms, window_ms, bounds)

    def at(self, at_ms: int) -> WindowReadings:
        """The readings of the same windows at another instant."""
        other = copy(self)
        other._read(at_ms, self._range.window_ms, self._range.bounds)
        return other

    def _read(self, at_ms: int, window_ms: int, bounds: WindowBounds) -> None:
        self._range = within = Range(at_ms, window_ms, bounds)
        self._changes = [window_changes(window, within) for window in self._windows]
        self._rates = [changes.rates(within) for changes in self._changes]
        self._levels = [window_levels(window, within) for window in self._windows]

    def counters(self, name: str, where: Matchers, by: Sequence[str], *, per_second: bool) -> Vector:
        """Sum of the rates, or increases, of the counter's series, per group."""
        sums: Vector = {}
        for number, rates in enumerate(self._rates):
            values = rates if per_second else self._changes[number].increases()
            for group, rows in self._rows_by_group(number, name, where, tuple(by)):
                for value in values[rows].tolist():
                    if value == value:
                        sums[group] = sums.get(group, 0.0) + value
        return sums

    def gauges(self, name: str, where: Matchers, by: Sequence[str]) -> dict[Labels, list[float]]:
        """The gauge's values in each window's last scrape, per group."""
        values: dict[Labels, list[float]] = {}
        for number, current in enumerate(self._levels):
            for group, rows in self._rows_by_group(number, name, where, tuple(by)):
                present = [value for value in current[rows].tolist() if value == value]
                if present:
                    values.setdefault(group, []).extend(present)
        return values

    def buckets(self, histogram: str, by: Sequence[str]) -> dict[Labels, dict[float, float]]:
        """Sum of the rates of the cumulative buckets by their upper edge, per group."""
        by_edge = self.counters(f"{histogram}_bucket", (), (*by, "le"), per_second=True)
        return _edges_by_group(by_edge)

    def _rows_by_group(self, number: int, name: str, where: Matchers, by: tuple[str, ...]) -> _RowsByGroup:
        key = (number, name, where, by)
        found = self._groups.get(key)
        if found is None:
            series = self._windows[number].series
            rows = self._rows.get(number)
            if rows is None:
                rows = self._rows[number] = _rows_by_name(series)
            found = self._groups[key] = _group_rows(series, rows.get(name, ()), where, by)
        return found


class _IncreaseReadings:
    """Readings from increases that are already known."""

    def __init__(self, samples: tuple[Sample, ...], seconds: float | None) -> None:
        self._series = tuple(Series(sample.name, sample.labels) for sample in samples)
        self._rows = _rows_by_name(self._series)
        self._values = [sample.value for sample in samples]
        self._seconds = seconds

    def counters(self, name: str, where: Matchers, by: Sequence[str], *, per_second: bool) -> Vector:
        divisor = self._seconds if per_second and self._seconds else 1.0
        return {group: sum(values) / divisor for group, values in self.gauges(name, where, by).items()}

    def gauges(self, name: str, where: Matchers, by: Sequence[str]) -> dict[Labels, list[float]]:
        return {
            group: [self._values[row] for row in rows]
            for group, rows in _group_rows(self._series, self._rows.get(name, ()), where, tuple(by))
        }

    def buckets(self, histogram: str, by: Sequence[str]) -> dict[Labels, dict[float, float]]:
        return _edges_by_group(self.counters(f"{histogram}_bucket", (), (*by, "le"), per_second=True))


def _edges_by_group(by_edge: Vector) -> dict[Labels, dict[float, float]]:
    groups: dict[Labels, dict[float, float]] = {}
    for labels, value in by_edge.items():
        edge = next((text for name, text in labels if name == "le"), None)
        if edge is not None:
            group = tuple(pair for pair in labels if pair[0] != "le")
            edges = groups.setdefault(group, {})
            edges[float(edge)] = edges.get(float(edge), 0.0) + value
    return groups


_RowsByGroup = list[tuple[Labels, list[int]]]


def _group_rows(
    series: Sequence[Series], candidates: Iterable[int], where: Matchers, by: tuple[str, ...]
) -> _RowsByGroup:
    groups: dict[Labels, list[int]] = {}
    for row in candidates:
        labels = dict(series[row].labels)
        if matches(labels, where):
            group = tuple(sorted((label, labels[label]) for label in by if label in labels))
            groups.setdefault(group, []).append(row)
    return list(groups.items())


def _rows_by_name(series: Sequence[Series]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, (name, _) in enumerate(series):
        rows.setdefault(name, []).append(row)
    return rows
