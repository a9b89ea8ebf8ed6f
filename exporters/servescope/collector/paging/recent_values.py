"""Recent values of series, which conditions on the past read."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from servescope.increments.extrapolation import Floats
from servescope.settings.clock import BELIEVED_AFTER_MS, believed_ms

Key = TypeVar("Key", bound=Hashable)

# Six hours of one evaluation per second; with shorter intervals less of the past is kept.
MOST_ROWS: Final = 25_000
_FIRST_ROWS: Final = 64
_FIRST_COLUMNS: Final = 8


class RecentValues(Generic[Key]):
    """The values of some keys at instants in milliseconds, for the last `span_ms`; NaN where a key had none.

    Rows older than the span are dropped, and so are keys without a value within it. Memory is bounded by `MOST_ROWS`
    rows of the current keys. Not thread safe.
    """

    def __init__(self, span_ms: int) -> None:
        self._span_ms = span_ms
        self.columns: dict[Key, int] = {}
        self._times = np.zeros(_FIRST_ROWS, dtype=np.int64)
        self._values = np.full((_FIRST_ROWS, _FIRST_COLUMNS), np.nan)
        self._start = self._end = 0
        # The keys of the last instant, and their columns.
        self._last: list[Key] = []
        self._places = np.zeros(0, dtype=np.intp)

    @property
    def times(self) -> NDArray[np.int64]:
        """The instants kept, ascending; a view."""
        return self._times[self._start : self._end]

    def append(self, at_ms: int, values: Mapping[Key, float]) -> None:
        """Append the values of an instant by their keys; drops later instants, as after a clock was set back."""
        self.append_each(at_ms, list(values), list(values.values()))

    def append_each(self, at_ms: int, keys: list[Key], values: Sequence[float] | Floats) -> None:
        """Append an instant's values, one for each of the keys; drops later instants too."""
        self._end = self._start + int(np.searchsorted(self.times, at_ms))
        self._start += int(np.searchsorted(self.times, self.believed_ms(at_ms) - self._span_ms))
        self._start = max(self._start, self._end - MOST_ROWS + 1)
        # The keys are nearly always those of the last time, and comparing them is faster than looking each up.
        new = [] if keys == self._last else [key for key in keys if key not in self.columns]
        rows, columns = self._values.shape
        if self._end == rows or len(self.columns) + len(new) > columns:
            self._make_room(len(keys))
            # Keys that were dropped for lack of a value may have one now.
            new = [key for key in keys if key not in self.columns]
        for key in new:
            self.columns[key] = len(self.columns)
        if keys != self._last:
            self._last = keys
            self._places = np.array([self.columns[key] for key in keys], dtype=np.intp)
        row = self._values[self._end]
        row[:] = np.nan
        row[self._places] = values
        self._times[self._end] = at_ms
        self._end += 1

    def believed_ms(self, at_ms: int) -> int:
        """The time by whose age values are dropped: an instant, unless the clock was set forward to it lately."""
        earlier = self.latest(at_ms - BELIEVED_AFTER_MS)
        return believed_ms(at_ms, None if earlier is None else earlier[0])

    def between(self, first_ms: int, last_ms: int) -> tuple[NDArray[np.int64], Floats]:
        """The instants (n,) from first to last, both included, and the values (n, keys) then; views."""
        low, high = np.searchsorted(self.times, (first_ms, last_ms + 1)).tolist()
        rows = slice(self._start + low, self._start + high)
        return self._times[rows], self._values[rows, : len(self.columns)]

    def latest(self, at_ms: int) -> tuple[int, Floats] | None:
        """The last instant not after one, and the values (keys,) then; None when there is none."""
        found = int(np.searchsorted(self.times, at_ms, side="right"))
        if not found:
            return None
        row = self._start + found - 1
        return int(self._times[row]), self._values[row, : len(self.columns)]

    def by_key(self, values: Floats) -> dict[Key, float]:
        """Values (keys,) by their keys, absent ones left out."""
        return {
            key: value for key, value in zip(self.columns, values.tolist(), strict=True) if value == value
        }  # fmt: skip

    def retain(self, kept: NDArray[np.bool_]) -> None:
        """Keep the rows where `kept` (n,) is true."""
        rows = self._start + np.flatnonzero(kept)
        self._copy(rows, np.arange(len(self.columns)))

    def drop(self, keys: Iterable[Key]) -> None:
        """Drop some keys."""
        gone = set(keys)
        kept = [key for key in self.columns if key not in gone]
        columns = np.array([self.columns[key] for key in kept], dtype=np.intp)
        self.columns = {key: number for number, key in enumerate(kept)}
        self._copy(np.arange(self._start, self._end), columns)

    def _make_room(self, new: int) -> None:
        """Make room for one more row and for so many more keys; drops keys without a value."""
        held = self._values[self._start : self._end, : len(self.columns)]
        had_one = ~np.isnan(held).all(axis=0)
        kept = [key for key, had in zip(self.columns, had_one.tolist(), strict=True) if had]
        self.columns = {key: number for number, key in enumerate(kept)}
        self._copy(np.arange(self._start, self._end), np.flatnonzero(had_one), new)

    def _copy(self, rows: NDArray[np.intp], old: NDArray[np.intp], new: int = 0) -> None:
        """Keep only these rows and columns, with room for as many rows again and for so many new keys."""
        keys = (len(self.columns) + new) * 9 // 8
        values = np.full((max(_FIRST_ROWS, 2 * len(rows) + 1), max(_FIRST_COLUMNS, keys)), np.nan)
        values[: len(rows), : len(old)] = self._values[np.ix_(rows, old)]
        times = np.zeros(len(values), dtype=np.int64)
        times[: len(rows)] = self._times[rows]
        self._values, self._times = values, times
        self._start, self._end = 0, len(rows)
        self._last, self._places = [], np.zeros(0, dtype=np.intp)


def reduced(function: str, values: Floats) -> Floats:
    """The average, maximum, minimum, last or number of changes of values (n, k) over time; NaN where there is none.

    Absent values are skipped, so that a value is compared with the last one before it.
    """
    if not len(values):
        return np.full(values.shape[1], np.nan)
    if function == "max":
        return np.asarray(np.fmax.reduce(values, axis=0))
    if function == "min":
        return np.asarray(np.fmin.reduce(values, axis=0))
    absent = np.isnan(values)
    if function == "last":
        rows = len(values) - 1 - np.argmin(absent[::-1], axis=0)
        return np.asarray(values[rows, np.arange(values.shape[1])])
    counts = len(values) - absent.sum(axis=0)
    if function == "avg":
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(absent, 0.0, values).sum(axis=0) / counts)
    found = (values[1:] != values[:-1]).sum(axis=0).astype(np.float64)
    for column in np.flatnonzero(absent.any(axis=0)).tolist():
        present = values[~absent[:, column], column]
        found[column] = float((present[1:] != present[:-1]).sum())
    return np.where(counts > 0, found, np.nan)
