"""From scrapes to figures: the recent samples of every target, and all figures of a deployment at an instant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.catalog import FIGURES, METRICS, figure_key
from servescope.collector.config import format_duration
from servescope.expressions import LOOKBACK_MS, WindowReadings, compute, leaves
from servescope.identity import DEPLOYMENT_LABELS, Deployment
from servescope.samples import Sample, Series, Snapshot, Window, make_labels

REPLICAS: Final = METRICS["replica_count_by_status"]
_FIRST_ROWS, _FIRST_COLUMNS = 64, 32


class Ring:
    """The recent scrapes of one target, in arrays that are read without copying.

    Holds what an evaluation within the next `slack_ms` over a window may read: every scrape of the last window, or of
    the five minutes a gauge stays valid. Memory is bounded by the scrapes in that time times the series of the target;
    a series that was absent throughout is forgotten. Not thread safe.
    """

    def __init__(self, window_ms: int, slack_ms: int) -> None:
        self.hold_ms = max(window_ms, LOOKBACK_MS) + slack_ms
        self._rows: dict[Series, int] = {}
        self._series: tuple[Series, ...] = ()
        self._times = np.zeros(_FIRST_COLUMNS, dtype=np.int64)
        self._values = np.full((_FIRST_ROWS, _FIRST_COLUMNS), np.nan)
        self._start = self._end = 0
        # The last scrape's series and where they went: scrapes nearly always repeat them.
        self._last: tuple[Series, ...] = ()
        self._placed: NDArray[np.intp] = np.zeros(0, dtype=np.intp)

    def __len__(self) -> int:
        """The number of series held."""
        return len(self._series)

    @property
    def last_ms(self) -> int | None:
        """When the last scrape was, None before the first."""
        return int(self._times[self._end - 1]) if self._end > self._start else None

    def append(self, time_ms: int, snapshot: Snapshot | None) -> None:
        """Add a scrape, None for one that failed; `time_ms` must be after the last one's."""
        if self.last_ms is not None and time_ms <= self.last_ms:
            raise ValueError(f"scrape at {time_ms} ms is not after the last one at {self.last_ms} ms")
        self._expire(time_ms)
        self._make_room()
        self._times[self._end] = time_ms
        if snapshot is not None:
            # First the rows, which may move the array.
            placed = self._place(snapshot.series)
            self._values[placed, self._end] = snapshot.values
        self._end += 1

    def window(self) -> Window:
        """The scrapes held; a view, valid until the next append."""
        return Window(
            self._series,
            self._times[self._start : self._end],
            self._values[: len(self._series), self._start : self._end],
        )

    def latest(self) -> tuple[tuple[Series, ...], NDArray[np.float64]]:
        """The series held and a copy of their values in the last scrape, NaN where they were absent."""
        if self._end == self._start:
            return (), np.zeros(0)
        return self._series, self._values[: len(self._series), self._end - 1].copy()

    def is_spent(self, now_ms: int) -> bool:
        """Whether nothing held can matter to an evaluation any more."""
        return self.last_ms is None or self.last_ms < now_ms - self.hold_ms

    def _expire(self, time_ms: int) -> None:
        held = self._times[self._start : self._end]
        self._start += int(np.searchsorted(held, time_ms - self.hold_ms, side="left"))

    def _make_room(self) -> None:
        """Have a free column behind the last one, moving what is held to the front when the array is full."""
        if self._end < self._values.shape[1]:
            return
        held = self._end - self._start
        columns = self._values.shape[1]
        if held > columns // 2:
            columns *= 2
        kept = self._keep_living_rows()
        rows = max(_FIRST_ROWS, _rounded_up(len(kept)))
        values, times = np.full((rows, columns), np.nan), np.zeros(columns, dtype=np.int64)
        values[: len(kept), :held] = self._values[kept, self._start : self._end]
        times[:held] = self._times[self._start : self._end]
        self._values, self._times, self._start, self._end = values, times, 0, held

    def _keep_living_rows(self) -> NDArray[np.intp]:
        """The rows with any sample in what is held; the others are forgotten."""
        held = self._values[: len(self._series), self._start : self._end]
        living = np.flatnonzero(~np.isnan(held).all(axis=1))
        if len(living) < len(self._series):
            # The tuple is replaced only here and when series come: evaluation caches by its identity.
            self._series = tuple(self._series[row] for row in living)
            self._rows = {series: row for row, series in enumerate(self._series)}
            self._last, self._placed = (), np.zeros(0, dtype=np.intp)
        return living

    def _place(self, series: tuple[Series, ...]) -> NDArray[np.intp]:
        """The row of every series, new rows made for new ones."""
        if series is self._last:
            return self._placed
        placed = [self._rows.setdefault(each, len(self._rows)) for each in series]
        if len(self._rows) > len(self._series):
            self._series = tuple(self._rows)
            self._grow_rows()
        self._last, self._placed = series, np.asarray(placed, dtype=np.intp)
        return self._placed

    def _grow_rows(self) -> None:
        rows, columns = self._values.shape
        if len(self._series) > rows:
            values = np.full((_rounded_up(len(self._series)), columns), np.nan)
            values[:rows] = self._values
            self._values = values


def _rounded_up(rows: int) -> int:
    """Rows to allocate: an eighth more than needed, so that a few new series cost no copy."""
    return rows + rows // 8


@dataclass(frozen=True, slots=True)
class Derivation:
    """The figures of one deployment at an instant, absent ones left out.

    `figures` are by key; `exposed` are those that have a name of their own on `/metrics`, as samples; `counted` the
    replicas by status, when the collector had to count them itself.
    """

    figures: dict[str, float]
    exposed: list[Sample]
    counted: Sequence[Sample]


def derive_figures(
    windows: Sequence[Window], *, at_ms: int, window_ms: int, counted: Sequence[Sample] = ()
) -> Derivation:
    """Every figure of one deployment from the windows of its targets.

    Equal to the recording rules on the same scrapes: the same expressions, grouped by the same labels. `counted` are
    the replicas by status as the collector sees them (`count_targets`), used when no target reports them.
    """
    readings = WindowReadings(windows, at_ms=at_ms, window_ms=window_ms)
    if readings.gauges(REPLICAS.name, (), ()):
        counted = ()
    stand_in = WindowReadings([_instant_window(counted, at_ms)], at_ms=at_ms, window_ms=window_ms)
    by_key: dict[str, float] = {}
    exposed: list[Sample] = []
    window = ("window", format_duration(window_ms))
    for figure in FIGURES.values():
        source = stand_in if counted and REPLICAS.name in leaves(figure.expression) else readings
        for labels, value in compute(figure.expression, source, (*DEPLOYMENT_LABELS, *figure.by)).items():
            extra = {name: text for name, text in labels if name in figure.by}
            by_key[figure_key(figure.name, extra)] = value
            if figure.exposed is not None:
                exposed.append(Sample(figure.exposed, make_labels((*labels, window)), value))
    return Derivation(by_key, exposed, counted)


def count_targets(deployment: Deployment, healthy: Iterable[bool]) -> list[Sample]:
    """Replicas by status as the collector sees its own targets: scraped is active, failing is unhealthy.

    Marked `derived="true"`, for deployments whose replicas nothing else counts.
    """
    states = list(healthy)
    counts = {"active": sum(states), "unhealthy": len(states) - sum(states)}
    return [
        Sample(
            REPLICAS.name,
            make_labels((*deployment.labels(), ("derived", "true"), (REPLICAS.labels[0], status))),
            float(count),
        )
        for status, count in counts.items()
    ]


def _instant_window(samples: Sequence[Sample], at_ms: int) -> Window:
    series = tuple(Series(sample.name, sample.labels) for sample in samples)
    values = np.array([[sample.value] for sample in samples], dtype=np.float64).reshape(len(series), 1)
    return Window(series, np.array([at_ms], dtype=np.int64), values)
