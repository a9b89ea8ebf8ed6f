"""The recent scrapes of one target, kept so that rates over all targets cost little more than reading them.

What an evaluation would have to search for is noted when a scrape arrives: which counters were reset, and which
series came or went. A series that is in every scrape of a range needs its first and last value only.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import compress
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from servescope.contract.metrics import METRICS
from servescope.contract.samples import Series, Snapshot, Window
from servescope.increments.extrapolation import LOOKBACK_MS, Floats, Range, filled_ratio

MAX_HELD_SERIES: Final = 50_000

Rows = NDArray[np.intp]

_FIRST_ROWS, _FIRST_COLUMNS = 64, 8
# So many series take about 2 ms to look up, for which nothing else on the event loop need wait long.
_PART_SERIES: Final = 1_000
# Fewer rows are not worth giving back.
_SMALL_ROWS = 1024
_GAUGES: Final = frozenset(name for name, metric in METRICS.items() if metric.kind == "gauge")


class Reset(NamedTuple):
    """Counters that were lower than before in a scrape: their rows, and their values before."""

    scrape: int
    rows: Rows
    before: Floats


class PresenceChange(NamedTuple):
    """Series that were not in the scrape before, or are not in this one."""

    scrape: int
    rows: Rows


class ScrapeRange(NamedTuple):
    """A target's scrapes within a range, as far as they succeeded.

    `first` and `last` are the values of all rows in the first and the last of them, `first_ms` and `last_ms` their
    times, `scrapes` their number; below two there is nothing to compare, and the values are NaN. `resets` fell between
    them; the `turned` rows were not in all of them. `levels` are the values now, NaN where the last scrape failed or is
    too old.
    """

    first: Floats
    last: Floats
    first_ms: int
    last_ms: int
    scrapes: int
    resets: list[Reset]
    turned: Rows | None
    levels: Floats


class _Placed(NamedTuple):
    """Where the series of a scrape went: `kept` are the positions of those that had room, None for all."""

    offered: tuple[Series, ...]
    series: tuple[Series, ...]
    kept: Rows | None
    rows: Rows
    counters: Rows


class RecentScrapes:
    """The recent scrapes of one target.

    Holds what an evaluation within the next `slack_ms` over a window may read: every scrape of the last window, or of
    the five minutes a gauge stays valid. A series that was in none of them is forgotten, and its row given to another.
    At most `max_series` are held; a new one beyond is left out until an old one is forgotten. Memory is bounded by
    the scrapes in that time times that number. `version` changes whenever a row is given to another series. Not thread
    safe.
    """

    def __init__(self, window_ms: int, slack_ms: int, *, max_series: int = MAX_HELD_SERIES) -> None:
        self.hold_ms = max(window_ms, LOOKBACK_MS) + slack_ms
        self.max_series = max_series
        self.version = 0
        self._times: list[int] = []
        self._failed: list[int] = []
        # Scrapes that succeeded are counted: that of number n is in the column at n modulo the columns there are.
        self._first = 0
        self._clear()

    def _clear(self) -> None:
        self.version += 1
        self._row_of: dict[Series, int] = {}
        # By row; None where it waits to be given away.
        self._series: list[Series | None] = []
        self._free: list[int] = []
        # Column by column, so that a scrape is one stretch of memory.
        self._values = np.full((_FIRST_COLUMNS, _FIRST_ROWS), np.nan)
        self._before = np.full(_FIRST_ROWS, np.nan)
        self._is_shown = np.zeros(_FIRST_ROWS, dtype=np.bool_)
        self._gone_since = np.zeros(_FIRST_ROWS, dtype=np.int64)
        self._resets: list[Reset] = []
        self._turns: list[PresenceChange] = []
        nothing = np.zeros(0, dtype=np.intp)
        self._placed = _Placed((), (), None, nothing, nothing)
        self._reserved: _Placed | None = None

    def __len__(self) -> int:
        """The number of series held."""
        return len(self._row_of)

    @property
    def rows(self) -> list[Series | None]:
        """The series of every row, None where it has none; only to be read."""
        return self._series

    @property
    def last_ms(self) -> int | None:
        """When the last scrape was, None before the first."""
        return max((times[-1] for times in (self._times, self._failed) if times), default=None)

    @property
    def left_out(self) -> int:
        """How many series of the last scrape that succeeded had no room."""
        return len(self._placed.offered) - len(self._placed.series)

    @property
    def nbytes(self) -> int:
        """The memory of the arrays."""
        events = sum(turn.rows.nbytes for turn in self._turns)
        events += sum(reset.rows.nbytes + reset.before.nbytes for reset in self._resets)
        fixed = (self._values, self._before, self._is_shown, self._gone_since, self._placed.rows)
        return events + sum(each.nbytes for each in fixed)

    # --- A scrape arrives ---------------------------------------------------------------------------------------------

    def reserve(self, time_ms: int, offered: tuple[Series, ...]) -> Iterator[None]:
        """Give rows to the new series of the scrape that `append` adds next, a part at a time.

        After each part the rows are consistent, and their values those of the scrapes before. What is reserved and not
        appended is forgotten like a series that went away.
        """
        self._expire(time_ms - self.hold_ms)
        if self._is_placed(offered, self._placed):
            return
        number, rows = self._first + len(self._times), []
        for start in range(0, len(offered), _PART_SERIES):
            held = len(self._row_of)
            part = self._rows_for(offered[start : start + _PART_SERIES])
            rows.append(part)
            if len(self._row_of) > held:
                new = part[(part >= 0) & ~self._is_shown[part]]
                self._gone_since[new] = number
                self._turns.append(PresenceChange(number, new))
            yield
        self._reserved = _placed(offered, np.concatenate(rows) if rows else np.zeros(0, dtype=np.intp))

    def append(self, time_ms: int, snapshot: Snapshot | None) -> Snapshot | None:
        """Add a scrape, None for one that failed; `time_ms` must be after the last one's.

        Returns what was kept of it: the same snapshot unless series were left out.
        """
        last_ms = self.last_ms
        if last_ms is not None and time_ms <= last_ms:
            raise ValueError(f"scrape at {time_ms} ms is not after the last one at {last_ms} ms")
        self._expire(time_ms - self.hold_ms)
        if snapshot is None:
            self._failed.append(time_ms)
            return None
        self._make_column()
        number = self._first + len(self._times)
        placed = self._place(snapshot.series, number)
        values = snapshot.values if placed.kept is None else snapshot.values[placed.kept]
        self._note_resets(placed, values, number)
        self._values[number % len(self._values), placed.rows] = values
        self._times.append(time_ms)
        return snapshot if placed.kept is None else Snapshot(placed.series, values)

    def forget_after(self, time_ms: int) -> None:
        """Forget the scrapes that are later than an instant, as when the clock was set back."""
        if self.last_ms is None or self.last_ms <= time_ms:
            return
        held = [(at_ms, snapshot) for at_ms, snapshot in self._scrapes() if at_ms <= time_ms]
        self._times, self._failed = [], []
        self._clear()
        for at_ms, snapshot in held:
            self.append(at_ms, snapshot)

    def _scrapes(self) -> list[tuple[int, Snapshot | None]]:
        """The scrapes held, ascending, None for one that failed."""
        scrapes: dict[int, Snapshot | None] = dict.fromkeys(self._failed)
        series, rows = self._held()
        shown, snapshot = np.zeros(0, dtype=np.bool_), Snapshot((), np.zeros(0))
        for number, at_ms in enumerate(self._times, start=self._first):
            values = self._values[number % len(self._values), rows]
            known = ~np.isnan(values)
            if not np.array_equal(known, shown):
                shown, snapshot = known, Snapshot(tuple(compress(series, known.tolist())), values)
            scrapes[at_ms] = Snapshot(snapshot.series, values[known])
        return sorted(scrapes.items())

    def _expire(self, oldest_ms: int) -> None:
        """Forget the scrapes before an instant, and the series that were in these only."""
        self._failed = self._failed[bisect_left(self._failed, oldest_ms) :]
        past = bisect_left(self._times, oldest_ms)
        if not past:
            return
        del self._times[:past]
        self._first += past
        if not self._times:
            self._clear()
            return
        self._resets = [reset for reset in self._resets if reset.scrape > self._first]
        over = [turn for turn in self._turns if turn.scrape <= self._first]
        if over:
            self._turns = self._turns[len(over) :]
            for turn in over:
                self._forget(turn)

    def _forget(self, turn: PresenceChange) -> None:
        """Free the rows of the series that went away then and did not come back."""
        spent = turn.rows[~self._is_shown[turn.rows] & (self._gone_since[turn.rows] == turn.scrape)]
        if not spent.size:
            return
        for row in spent.tolist():
            series = self._series[row]
            if series is not None:
                del self._row_of[series]
                self._series[row] = None
                self._free.append(row)
        self.version += 1
        self._reserved = None
        if len(self._before) > _SMALL_ROWS and len(self._row_of) < len(self._before) // 4:
            self._shrink()

    def _make_column(self) -> None:
        """Have an empty column for the next scrape, in more memory when all are held."""
        columns, held = len(self._values), len(self._times)
        if held == columns:
            numbers = np.arange(self._first, self._first + held)
            values = np.full((columns + max(_FIRST_COLUMNS, columns // 4), self._values.shape[1]), np.nan)
            values[numbers % len(values)] = self._values[numbers % columns]
            self._values = values
        self._values[(self._first + held) % len(self._values)] = np.nan

    def _note_resets(self, placed: _Placed, values: Floats, number: int) -> None:
        """Note the counters that are lower than at their last sample, whenever that was."""
        counters = placed.rows[placed.counters]
        counted, before = values[placed.counters], self._before[counters]
        dropped = counted < before
        if dropped.any():
            self._resets.append(Reset(number, counters[dropped], before[dropped]))
        self._before[counters] = counted

    # --- Rows ---------------------------------------------------------------------------------------------------------

    def _place(self, offered: tuple[Series, ...], number: int) -> _Placed:
        """The rows of a scrape's series, new ones for new series, as far as there is room."""
        if self._is_placed(offered, self._placed):
            return self._placed
        placed, self._reserved = self._reserved, None
        if placed is None or placed.offered is not offered:
            placed = _placed(offered, self._rows_for(offered))
        self._note_turns(placed.rows, number)
        self._placed = placed
        return placed

    def _is_placed(self, offered: tuple[Series, ...], placed: _Placed) -> bool:
        """Whether these series have the rows they had, and none waits for room that there is now."""
        return offered is placed.offered and (placed.kept is None or len(self._row_of) == self.max_series)

    def _rows_for(self, series: tuple[Series, ...]) -> Rows:
        """The row of each series, -1 where there is no room for it."""
        known, new = self._row_of, False
        rows = []
        for each in series:
            row = known.get(each, -1)
            if row < 0 and len(known) < self.max_series:
                row, new = self._new_row(each), True
            rows.append(row)
        if new:
            self.version += 1
            self._grow_rows()
        return np.array(rows, dtype=np.intp)

    def _new_row(self, series: Series) -> int:
        if self._free:
            row = self._free.pop()
            self._series[row] = series
            self._before[row] = np.nan
        else:
            row = len(self._series)
            self._series.append(series)
        self._row_of[series] = row
        return row

    def _grow_rows(self) -> None:
        more = len(self._series) - len(self._before)
        if more > 0:
            # An eighth more than needed: a target that grows by a few series a scrape is not copied each time.
            self._resize(np.arange(len(self._before)), len(self._series) + len(self._series) // 8)

    def _shrink(self) -> None:
        """Give memory back after a target showed far more series than it does now."""
        kept = np.array(sorted(self._row_of.values()), dtype=np.intp)
        moved = np.full(len(self._before), -1, dtype=np.intp)
        moved[kept] = np.arange(len(kept))
        self._series = [self._series[row] for row in kept.tolist()]
        self._row_of = {series: row for row, series in enumerate(self._series) if series is not None}
        self._free = []
        self._resets = [_move_reset(reset, moved) for reset in self._resets]
        self._turns = [PresenceChange(turn.scrape, moved[turn.rows][moved[turn.rows] >= 0]) for turn in self._turns]
        self._placed = self._placed._replace(rows=moved[self._placed.rows])
        self._resize(kept, max(_FIRST_ROWS, len(kept) + len(kept) // 8))

    def _resize(self, kept: Rows, rows: int) -> None:
        """Have room for so many rows, with these at the front."""
        values = np.full((len(self._values), rows), np.nan)
        values[:, : len(kept)] = self._values[:, kept]
        self._values = values
        self._before = _fitted(self._before[kept], rows, np.nan)
        self._is_shown = _fitted(self._is_shown[kept], rows, False)
        self._gone_since = _fitted(self._gone_since[kept], rows, 0)

    def _note_turns(self, rows: Rows, number: int) -> None:
        """Write down which rows this scrape shows and the last one did not, and the other way round."""
        now = np.zeros_like(self._is_shown)
        now[rows] = True
        turned = np.flatnonzero(now != self._is_shown)
        # In the first scrape held everything is new, and nothing is missed.
        if turned.size:
            self._gone_since[turned] = number
            self._turns.append(PresenceChange(number, turned))
        self._is_shown = now

    # --- What is held is read -----------------------------------------------------------------------------------------

    def stretch(self, within: Range) -> ScrapeRange:
        """The scrapes within a range; views, valid until the next append."""
        times, rows = self._times, len(self._series)
        low, high = bisect_left(times, within.first_ms), bisect_right(times, within.at_ms)
        levels = self._levels(within, high)
        if high - low < 2:
            nothing = np.full(rows, np.nan)
            return ScrapeRange(nothing, nothing, 0, 0, 0, [], None, levels)
        first, last = self._first + low, self._first + high - 1
        values, columns = self._values, len(self._values)
        resets = self._resets
        if resets:
            resets = [reset for reset in resets if first < reset.scrape <= last]
        turned = None
        if self._turns and self._turns[-1].scrape > first:
            is_turned = np.zeros(rows, dtype=np.bool_)
            for turn in self._turns:
                if turn.scrape > first:
                    is_turned[turn.rows] = True
            turned = np.flatnonzero(is_turned)
        return ScrapeRange(
            values[first % columns, :rows],
            values[last % columns, :rows],
            times[low],
            times[high - 1],
            high - low,
            resets,
            turned,
            levels,
        )

    def _levels(self, within: Range, high: int) -> Floats:
        """The values of the last scrape; `high` scrapes that succeeded are not after the instant."""
        last_ms = self._times[high - 1] if high else -1
        failed = bisect_right(self._failed, within.at_ms)
        if not high or last_ms < within.oldest_level_ms or (failed and self._failed[failed - 1] > last_ms):
            return np.full(len(self._series), np.nan)
        return self._values[(self._first + high - 1) % len(self._values), : len(self._series)]

    def filled(self, within: Range) -> float | None:
        """The part of a range (0 to 1) over which the scrapes that succeeded reach back; None where it has none."""
        times = self._times
        low, high = bisect_left(times, within.first_ms), bisect_right(times, within.at_ms)
        return filled_ratio(times[low], times[high - 1], high - low, within) if high > low else None

    def samples(self, within: Range, rows: Rows) -> tuple[NDArray[np.int64], Floats]:
        """The times (n,) of the scrapes within a range that succeeded, and the values (n, k) of these rows."""
        low, high = bisect_left(self._times, within.first_ms), bisect_right(self._times, within.at_ms)
        columns = np.arange(self._first + low, self._first + high) % len(self._values)
        return np.array(self._times[low:high], dtype=np.int64), self._values[columns[:, None], rows]

    def window(self) -> Window:
        """The scrapes held, failed ones included; a copy."""
        series, rows = self._held()
        times = np.array(sorted((*self._times, *self._failed)), dtype=np.int64)
        values = np.full((len(rows), len(times)), np.nan)
        columns = np.arange(self._first, self._first + len(self._times)) % len(self._values)
        values[:, np.searchsorted(times, self._times)] = self._values[columns[:, None], rows].T
        return Window(series, times, values)

    def latest(self) -> tuple[tuple[Series, ...], Floats]:
        """The series of the last scrape and a copy of their values; nothing when it failed."""
        if not self._times or self._times[-1] != self.last_ms:
            return (), np.zeros(0)
        column = (self._first + len(self._times) - 1) % len(self._values)
        return self._placed.series, self._values[column, self._placed.rows]

    def is_spent(self, now_ms: int) -> bool:
        """Whether nothing held can matter to an evaluation any more."""
        return self.last_ms is None or self.last_ms < now_ms - self.hold_ms

    def _held(self) -> tuple[tuple[Series, ...], Rows]:
        held = [(series, row) for row, series in enumerate(self._series) if series is not None]
        return tuple(series for series, _ in held), np.array([row for _, row in held], dtype=np.intp)


def _placed(offered: tuple[Series, ...], rows: Rows) -> _Placed:
    """Where series go whose rows, -1 for those without room, are given."""
    kept = np.flatnonzero(rows >= 0) if len(rows) and rows.min() < 0 else None
    if kept is not None:
        rows = rows[kept]
    series = offered if kept is None else tuple(offered[position] for position in kept.tolist())
    counters = np.array([at for at, each in enumerate(series) if each.name not in _GAUGES], dtype=np.intp)
    return _Placed(offered, series, kept, rows, counters)


def _move_reset(reset: Reset, moved: Rows) -> Reset:
    held = moved[reset.rows] >= 0
    return Reset(reset.scrape, moved[reset.rows[held]], reset.before[held])


_Element = TypeVar("_Element", bound=np.generic)


def _fitted(values: NDArray[_Element], length: int, fill: float) -> NDArray[_Element]:
    fitted: NDArray[_Element] = np.full(length, fill, dtype=values.dtype)
    fitted[: len(values)] = values[:length]
    return fitted
