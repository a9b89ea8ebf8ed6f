"""The values of expressions: from windows of samples, or from increases that are already known.

Agrees with Prometheus 2.42 on the same samples: the window is closed on both sides, counter resets are added back,
increases are extrapolated to the window's ends, a gauge is read from the last scrape within five minutes. A group
without data is absent: no result is ever NaN or infinite. Needs numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from servescope.contract.expressions import Expression, Matchers, Vector, matches
from servescope.contract.samples import Labels, Sample, Series, Window
from servescope.increments.extrapolation import Floats, Range, WindowBounds, window_changes, window_levels
from servescope.increments.program import Leaf, Program, bucket_quantiles


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
    samples = tuple(increases)
    values = np.array([sample.value for sample in samples])
    series = tuple(Series(sample.name, sample.labels) for sample in samples)
    return compute(expression, Readings([SeriesValues(series, values / (seconds or 1.0), values, values)]), by)


def compute(expression: Expression, readings: Readings, by: Sequence[str]) -> Vector:
    """The expression's value per group; absent, never infinite, where it overflows."""
    return derive(_program(expression, tuple(by)), readings)[0]


class _Alone(NamedTuple):
    """An expression that is derived by itself."""

    expression: Expression
    by: tuple[str, ...]
    name: str = ""
    exposed: str | None = None


@lru_cache(1024)
def _program(expression: Expression, by: tuple[str, ...]) -> Program:
    return Program([_Alone(expression, by)], level=())


def derive(program: Program, readings: Readings) -> list[Vector]:
    """The values of every figure of a program in their order, per group; a group without data is absent."""
    sums = _GroupSums(program.leaves, readings)
    return [
        {group: value for group, value in zip(sums.groups[by], values.tolist(), strict=True) if value == value}
        for by, values in zip(program.grouped_by, program.run(sums), strict=True)
    ]


def bucket_quantile(quantile: float, buckets: Mapping[float, float]) -> float | None:
    """The quantile of cumulative bucket counts by upper edge; None where `bucket_quantiles` knows of none."""
    edges = sorted(buckets)
    (found,) = bucket_quantiles(quantile, np.array(edges), np.array([[buckets[edge] for edge in edges]])).tolist()
    return None if math.isnan(found) else found


# --- What is read -----------------------------------------------------------------------------------------------------


class SeriesValues:
    """Series with their rates, their increases and their values now, all (m,), NaN where they have none."""

    def __init__(self, series: Sequence[Series], rates: Floats, increases: Floats, levels: Floats) -> None:
        self._rows, self._levels = _rows_of(tuple(series)), levels.tolist()
        self._counted = {"rate": rates.tolist(), "increase": increases.tolist()}
        self._counted["buckets"] = self._counted["rate"]

    def read(self, leaf: Leaf) -> Iterable[tuple[Labels, list[float]]]:
        """The values that a leaf adds up, by group; of buckets also by their edge."""
        values = self._counted.get(leaf.kind, self._levels)
        by = leaf.by | {"le"} if leaf.kind == "buckets" else leaf.by
        for group, rows in self._rows.by_group(leaf.name, leaf.where, by).items():
            yield group, [value for row in rows if (value := values[row]) == value]


class _SeriesRows:
    """Which of the series of a target are of which group."""

    def __init__(self, series: Sequence[Series]) -> None:
        self._series = series
        self._rows: dict[str, list[int]] = {}
        self._groups: dict[tuple[str, Matchers, frozenset[str]], dict[Labels, list[int]]] = {}
        for row, (name, _) in enumerate(series):
            self._rows.setdefault(name, []).append(row)

    def by_group(self, name: str, where: Matchers, by: frozenset[str]) -> dict[Labels, list[int]]:
        """The rows of the series of a name that match, by their labels among `by`."""
        found = self._groups.get((name, where, by))
        if found is None:
            grouped: dict[Labels, list[int]] = {}
            for row in self._rows.get(name, ()):
                labels = self._series[row].labels
                if not where or matches(dict(labels), where):
                    grouped.setdefault(tuple(sorted(pair for pair in labels if pair[0] in by)), []).append(row)
            found = self._groups[name, where, by] = grouped
        return found


# Instants of a past are derived one after the other, from the same series.
_rows_of = lru_cache(128)(_SeriesRows)


class Readings:
    """What expressions are computed from: the values of the series of several targets.

    Make one and evaluate all expressions with it.
    """

    def __init__(self, targets: Iterable[SeriesValues]) -> None:
        self._targets = tuple(targets)

    def add_up(self, leaf: Leaf) -> dict[Labels, float]:
        """The sums of a leaf by group, and of buckets by their edge, those that have any."""
        values: dict[Labels, list[float]] = {}
        for target in self._targets:
            for group, each in target.read(leaf):
                values.setdefault(group, []).extend(each)
        add = _ADDED.get(leaf.kind, sum)
        return {group: add(each) for group, each in values.items() if each}


class WindowReadings(Readings):
    """Readings over windows of samples: Prometheus' `rate` and instant look-up, vectorised per window."""

    def __init__(
        self, windows: Iterable[Window], *, at_ms: int, window_ms: int, bounds: WindowBounds = "closed"
    ) -> None:
        within = Range(at_ms, window_ms, bounds)
        super().__init__(_read(window, within) for window in windows)


def _read(window: Window, within: Range) -> SeriesValues:
    changes = window_changes(window, within)
    return SeriesValues(window.series, changes.rates(within), changes.increases(), window_levels(window, within))


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_ADDED: Final[Mapping[str, Callable[[list[float]], float]]] = {"avg": _average, "max": max}


class _GroupSums:
    """The sums that a program's leaves need; `groups` are by the labels of a group those that any leaf has."""

    def __init__(self, leaves: Sequence[Leaf], readings: Readings) -> None:
        self._by = [leaf.by for leaf in leaves]
        self._found: list[Mapping[Labels, Any]] = []
        groups: dict[frozenset[str], dict[Labels, None]] = {}
        for leaf in leaves:
            found = readings.add_up(leaf)
            self._found.append(_by_edge(found) if leaf.kind == "buckets" else found)
            groups.setdefault(leaf.by, {}).update(dict.fromkeys(self._found[-1]))
        self.groups = {by: list(each) for by, each in groups.items()}

    def values(self, leaf: int) -> Floats:
        """The sums, (n,)."""
        return self._of_each(leaf, lambda found: found)

    def quantiles(self, leaf: int, quantile: float) -> Floats:
        """The quantile of each group's buckets, (n,)."""
        return self._of_each(leaf, lambda buckets: bucket_quantile(quantile, buckets))

    def buckets(self, leaf: int, edge: float) -> Floats:
        """The sums of the buckets of one edge, (n,)."""
        return self._of_each(leaf, lambda buckets: buckets.get(edge))

    def _of_each(self, leaf: int, read: Callable[[Any], float | None]) -> Floats:
        found = self._found[leaf]
        return np.array(
            [read(found[group]) if group in found else None for group in self.groups[self._by[leaf]]], float
        )


def _by_edge(sums: Mapping[Labels, float]) -> dict[Labels, dict[float, float]]:
    groups: dict[Labels, dict[float, float]] = {}
    for labels, value in sums.items():
        edge = next((text for name, text in labels if name == "le"), None)
        if edge is not None:
            edges = groups.setdefault(tuple(pair for pair in labels if pair[0] != "le"), {})
            edges[float(edge)] = edges.get(float(edge), 0.0) + value
    return groups
