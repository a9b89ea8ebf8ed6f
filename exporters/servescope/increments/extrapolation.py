"""Prometheus' arithmetic on samples: the increase and rate of a counter over a range, and the value of a gauge.

Per series and identical to the last bit, as operations are in Prometheus' order. Needs numpy, which
`import servescope` must not load: import this module where it is used.
https://github.com/prometheus/prometheus/blob/v2.42.0/promql/functions.go (extrapolatedRate)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.contract.samples import Window
from servescope.errors import ExpressionError

Floats = NDArray[np.float64]

WindowBounds = Literal["closed", "left-open"]
"""Whether a range includes the sample on its left edge: in Prometheus 2 it does, from 3.0 on it does not."""

REACH = 1.1
"""A series reaches an end of a range that is not more than this many of its intervals away."""

LOOKBACK_MS = 300_000
"""How long the last scrape of a gauge is its value, as in Prometheus."""


@dataclass(frozen=True, slots=True)
class Range:
    """The `window_ms` before `at_ms`, and whether its left edge belongs to it."""

    at_ms: int
    window_ms: int
    bounds: WindowBounds = "closed"

    def __post_init__(self) -> None:
        if self.window_ms <= 0:
            raise ExpressionError(f"window of {self.window_ms} ms is not above 0")

    @property
    def start_ms(self) -> int:
        """The left edge."""
        return self.at_ms - self.window_ms

    @property
    def first_ms(self) -> int:
        """The earliest time within."""
        return self.start_ms + (self.bounds == "left-open")

    @property
    def oldest_level_ms(self) -> int:
        """The earliest time at which a gauge's last scrape still counts."""
        return self.at_ms - LOOKBACK_MS + (self.bounds == "left-open")

    @property
    def seconds(self) -> float:
        """The length of the window, rounded as Go rounds a duration's seconds."""
        whole, rest = divmod(self.window_ms, 1000)
        return whole + rest * 1_000_000 / 1e9


class Spans(NamedTuple):
    """Where the samples of series, or of targets, lie in a range: seconds, all (n,).

    `sampled` from the first sample to the last, `to_start` and `to_end` from them to the range's ends, `limit` the
    distance up to which a series is taken to reach an end, `half` what is added where it does not.
    """

    sampled: Floats
    to_start: Floats
    to_end: Floats
    limit: Floats
    half: Floats

    def repeated(self, lengths: NDArray[np.intp]) -> Spans:
        """Each element as many times as its target has series."""
        return Spans(*(np.repeat(each, lengths) for each in self))


def measure_spans(
    first_ms: NDArray[np.int64], last_ms: NDArray[np.int64], counts: NDArray[np.int64], within: Range
) -> Spans:
    """The spans of samples by their first and last time and their number; NaN or infinite below two."""
    sampled = (last_ms - first_ms) / 1000
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = sampled / (counts - 1)
    return Spans(
        sampled, (first_ms - within.start_ms) / 1000, (within.at_ms - last_ms) / 1000, distance * REACH, distance / 2
    )


def filled_ratio(first_ms: int, last_ms: int, scrapes: int, within: Range) -> float:
    """The part of a range (0 to 1) over which a target's scrapes in it reach back, by the first and last of them.

    It is 1 where increases are extrapolated to the range's start; `scrapes` is at least 1.
    """
    to_start = first_ms - within.start_ms
    is_reached = scrapes > 1 and to_start < REACH * (last_ms - first_ms) / (scrapes - 1)
    return 1.0 if is_reached else 1.0 - to_start / within.window_ms


def extrapolation_factors(deltas: Floats, firsts: Floats, spans: Spans, bounds: WindowBounds) -> Floats:
    """The factors that extrapolate each increase between first and last sample to the ends of the range.

    A counter is never extrapolated to before it would have been 0. Prometheus 2 applies this limit before it checks
    whether the series reaches the start of the range; Prometheus 3, whose ranges are left-open, applies it after.
    """
    sampled, to_start, to_end, limit, half = spans
    with np.errstate(all="ignore"):
        to_zero = sampled * (firsts / deltas)
        is_near_zero = (deltas > 0) & (firsts >= 0)
        if bounds == "closed":
            to_start = np.where(is_near_zero & (to_zero < to_start), to_zero, to_start)
            to_start = np.where(to_start < limit, to_start, half)
        else:
            to_start = np.where(to_start < limit, to_start, half)
            to_start = np.where(is_near_zero & (to_zero < to_start), to_zero, to_start)
        to_end = np.where(to_end < limit, to_end, half)
        factors: Floats = (sampled + to_start + to_end) / sampled
    return factors


class Changes(NamedTuple):
    """How much series changed over a range: what was counted between their samples, and the factor that extends it.

    Both (m,), NaN where a series has fewer than two samples.
    """

    deltas: Floats
    factors: Floats

    def increases(self) -> Floats:
        """The increase of every series."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.deltas * self.factors

    def rates(self, within: Range) -> Floats:
        """The increase of every series per second."""
        # Divided before it is multiplied, as in Prometheus: the last bit depends on it.
        with np.errstate(over="ignore", invalid="ignore"):
            return self.deltas * (self.factors / within.seconds)


def window_changes(window: Window, within: Range) -> Changes:
    """The changes of every series of a window."""
    low, high = np.searchsorted(window.times, (within.first_ms, within.at_ms + 1)).tolist()
    times = np.broadcast_to(window.times[low:high], (len(window.series), high - low))
    return sample_changes(times, window.values[:, low:high], within)


def sample_changes(times: NDArray[np.int64], values: Floats, within: Range) -> Changes:
    """The changes of series sample by sample: `times` and `values` within the range, (m, n), NaN where absent."""
    deltas, factors = np.full(len(values), np.nan), np.full(len(values), np.nan)
    present = ~np.isnan(values)
    counts = present.sum(axis=1)
    usable = np.flatnonzero(counts >= 2)
    if usable.size:
        times, values, present, counts = times[usable], values[usable], present[usable], counts[usable]
        rows = np.arange(len(usable))
        first = present.argmax(axis=1)
        last = present.shape[1] - 1 - present[:, ::-1].argmax(axis=1)
        firsts = values[rows, first]
        # What overflows is infinite, and left out when it is computed with.
        with np.errstate(over="ignore", invalid="ignore"):
            found = values[rows, last] - firsts
            add_resets(found, _resets(values, present))
        spans = measure_spans(times[rows, first], times[rows, last], counts, within)
        deltas[usable], factors[usable] = found, extrapolation_factors(found, firsts, spans, within.bounds)
    return Changes(deltas, factors)


def step_gains(before: Floats, values: Floats, is_reset: NDArray[np.bool_]) -> Floats:
    """What counters gained from one sample to the next: one that was reset in between began again at 0."""
    return np.where(is_reset, values, values - before)


def add_resets(deltas: Floats, resets: Iterable[tuple[NDArray[np.intp], Floats]]) -> None:
    """Make what counters gained of the differences of their last and first samples, (m,).

    `resets` are, in their order, the rows that were reset and what they had counted before.
    """
    # One after the other, from the first on, as in Prometheus: a sum in another order has another last bit.
    for rows, before in resets:
        deltas[rows] += before


def _resets(values: Floats, present: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.intp], Floats]]:
    """The rows that are lower than at their sample before, column by column, and their values then."""
    columns = np.arange(values.shape[1])
    latest = np.maximum.accumulate(np.where(present, columns, 0), axis=1)
    before = np.take_along_axis(values, latest, axis=1)[:, :-1]
    dropped = values[:, 1:] < before
    for column in np.flatnonzero(dropped.any(axis=0)).tolist():
        rows = np.flatnonzero(dropped[:, column])
        yield rows, before[rows, column]


def window_levels(window: Window, within: Range) -> Floats:
    """Each series' value in the last scrape at or before the instant, (m,); NaN where it was absent or is too old.

    A scrape that failed, or no longer showed the series, ends it, as a stale marker does in Prometheus.
    """
    column = int(np.searchsorted(window.times, within.at_ms, side="right")) - 1
    if column < 0 or int(window.times[column]) < within.oldest_level_ms:
        return np.full(len(window.series), np.nan)
    return window.values[:, column]
