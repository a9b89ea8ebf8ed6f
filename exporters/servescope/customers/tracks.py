"""One target from edge to edge: what its counters gained, since when they count, which of its series ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import Identity
from servescope.contract.incrementing import SAME_START_MS, ScrapeGains, count_gains, order_objects
from servescope.contract.metrics import REPLICA_START_TIME
from servescope.contract.samples import Series, Window
from servescope.customers.edges import CounterReset, Floats, TargetEdge

Times = NDArray[np.int64]
Indexes = NDArray[np.intp]
Flags = NDArray[np.bool_]

INTERVALS_FRESH: Final = 2.5
"""After so many scrape intervals without a good scrape a target is no longer there, and its series end."""

_FOREVER_MS: Final = 10**13


MOST_ABSENT: Final = 2000
"""How many series that a target no longer has are remembered, in case they come back."""


@dataclass(frozen=True, slots=True, eq=False)
class TargetTrack:
    """A target as it was at an edge: all that the next edge is compared with.

    Per series, (m,): `values` and `starts_ms` as in `TargetEdge`, and whether it was `present` at the edge. Counters
    that were not have the value that they had last, 0 if the process began anew since. The last good scrape was at
    `scrape_ms`.
    """

    identity: Identity
    series: tuple[Series, ...]
    values: Floats
    starts_ms: Times
    present: Flags
    scrape_ms: int


def follow(
    identity: Identity,
    track: TargetTrack | None,
    window: Window,
    edges: Sequence[int],
    before_ms: int | None,
    fresh_ms: int,
) -> Iterator[tuple[TargetEdge | None, TargetTrack | None]]:
    """The target at each of the edges, ascending, None where there is nothing to say of it, and its track from then on.

    `window` has its scrapes after the edge before, `before_ms`, up to the last edge, and series without the labels of
    the identity; of a lane's first edge, whose `before_ms` is None, the scrapes shortly before it. A scrape counts as
    the target's state for `fresh_ms`.
    """
    window = _continue(track, window, before_ms)
    series, times = window.series, window.times
    counting = _Counting(window, track)
    column = 0 if before_ms is None else int(np.searchsorted(times, before_ms, "right"))
    present = np.zeros(len(series), dtype=bool)
    if track is not None:
        present[_places(series, track.series)] = track.present
    for edge_ms in edges:
        end = int(np.searchsorted(times, edge_ms, "right"))
        gains, resets = counting.advance(column, end, before_ms)
        values = counting.fresh_values(end, edge_ms - fresh_ms)
        ended = present & np.isnan(values)
        present = ~np.isnan(values)
        starts = counting.starts()
        resets += counting.last_counts(ended, end, before_ms)
        found = None
        if present.any() or ended.any():
            found = TargetEdge(identity, series, values, gains, starts, ended, resets)
        yield found, counting.track(identity, end, starts, present)
        column, before_ms = end, edge_ms


def _continue(track: TargetTrack | None, window: Window, before_ms: int | None) -> Window:
    """The scrapes in the canonical order of series, behind the track's own scrape.

    A target without a track was not there at the edge before: that is a scrape that failed.
    """
    series, rows = _order(window.series, track.series if track is not None else ())
    values = np.full((len(series), len(window.times) + 1), np.nan)
    values[rows, 1:] = window.values
    if track is not None:
        values[_places(series, track.series), 0] = track.values
        first = track.scrape_ms
    elif before_ms is not None:
        first = before_ms
    else:
        return Window(series, window.times, values[:, 1:])
    return Window(series, np.concatenate(([first], window.times)), values)


@lru_cache(maxsize=256)
def _order(scraped: tuple[Series, ...], tracked: tuple[Series, ...]) -> tuple[tuple[Series, ...], Indexes]:
    """All of the series, counters first, object after object; and where those that were scraped are among them."""
    known = frozenset(scraped)
    series = (*scraped, *(each for each in tracked if each not in known))
    counters = order_objects(series).tolist()
    counted = frozenset(counters)
    ordered = [*counters, *(row for row in range(len(series)) if row not in counted)]
    places = np.empty(len(series), dtype=np.intp)
    places[ordered] = np.arange(len(series))
    return tuple(series[row] for row in ordered), places[: len(scraped)]


@lru_cache(maxsize=256)
def _places(series: tuple[Series, ...], tracked: tuple[Series, ...]) -> Indexes:
    at = {each: place for place, each in enumerate(series)}
    return np.array([at[each] for each in tracked], dtype=np.intp)


class _Counting:
    """The counters of a window, scrape by scrape: what they gained, and since when each object counts."""

    def __init__(self, window: Window, track: TargetTrack | None) -> None:
        self._series, self._times, self._values = window.series, window.times, window.values
        self._gained: ScrapeGains = count_gains(window, memory_ms=_FOREVER_MS)
        columns = np.arange(len(window.times))
        self._last_good = np.maximum.accumulate(np.where(self._gained.succeeded, columns, -1))
        self._last_sound = np.maximum.accumulate(np.where(self._gained.sound, columns, -1), axis=1)
        # What is remembered of a target that is not there: counters, and when its process began.
        self._lasting = np.array([each.name == REPLICA_START_TIME for each in window.series], dtype=bool)
        self._lasting[self._gained.rows] = True
        # Since when each object counts, in milliseconds; 0 before it was seen.
        self._starts = np.zeros(len(self._gained.sound), dtype=np.int64)
        if track is not None:
            first_rows = self._gained.rows[np.searchsorted(self._gained.owner, np.arange(len(self._starts)))]
            starts = np.zeros(len(window.series), dtype=np.int64)
            starts[_places(window.series, track.series)] = track.starts_ms
            self._starts = starts[first_rows]

    def advance(self, column: int, end: int, before_ms: int | None) -> tuple[Floats, tuple[CounterReset, ...]]:
        """The gains (m,) over these columns, and the state before each reset that no edge has shown."""
        gained = self._gained
        gains = np.full(len(self._values), np.nan)
        if before_ms is not None:
            steps = gained.gains[:, column:end]
            known = ~np.isnan(steps)
            gains[gained.rows] = np.where(known.any(axis=1), np.where(known, steps, 0.0).sum(axis=1), np.nan)
        resets: list[CounterReset] = []
        for each in range(column, end):
            former = self._last_sound[:, each - 1] if each else np.full(len(self._starts), -1, dtype=np.intp)
            restarted = gained.restarted[:, each]
            shown = -1 if before_ms is None else before_ms
            lasts = [last for last in np.unique(former[restarted]).tolist() if self._times[last] > shown]
            resets += [self._reset(restarted & (former == last), last) for last in lasts]
            self._begin(each, gained.sound[:, each] & (restarted | (former < 0)), former, before_ms)
        return gains, tuple(resets)

    def last_counts(self, ended: Flags, end: int, before_ms: int | None) -> tuple[CounterReset, ...]:
        """What counters had counted when they ended, as far as no edge has shown it."""
        gained = self._gained
        if before_ms is None or not end or not ended[gained.rows].any():
            return ()
        last_sound = self._last_sound[:, end - 1]
        objects = np.bincount(gained.owner, ended[gained.rows], len(last_sound)) > 0
        lasts = [
            last for last in np.unique(last_sound[objects]).tolist() if last >= 0 and self._times[last] > before_ms
        ]
        return tuple(self._reset(objects & (last_sound == last), last) for last in lasts)

    def _reset(self, objects: Flags, column: int) -> CounterReset:
        rows = self._gained.rows[objects[self._gained.owner]]
        values = np.full(len(self._values), np.nan)
        values[rows] = self._values[rows, column]
        return CounterReset(int(self._times[column]), values, self.starts())

    def _begin(self, column: int, objects: Flags, former: Indexes, before_ms: int | None) -> None:
        """Set since when objects count that began anew at a column, or are seen there first."""
        if not objects.any():
            return
        known = former[objects]
        lower = np.where(known >= 0, self._times[np.maximum(known, 0)], self._times[column])
        first = self._gained.first[objects, column] & (known < 0)
        good = self._last_good[column - 1] if column else -1
        if good >= 0:
            lower = np.where(first, self._times[good], lower)
        started = self._gained.started[column]
        starts = lower if np.isnan(started) else np.where(known >= 0, np.maximum(lower, int(started)), int(started))
        if before_ms is not None:
            # The edge has shown the state before a reset, so that what began anew counts since then.
            starts = np.where(known >= 0, np.maximum(starts, before_ms), starts)
        self._starts[objects] = starts

    def starts(self) -> Times:
        """Since when each series counts, (m,), 0 for gauges."""
        starts = np.zeros(len(self._values), dtype=np.int64)
        starts[self._gained.rows] = self._starts[self._gained.owner]
        return starts

    def fresh_values(self, end: int, after_ms: int) -> Floats:
        """The values (m,) of the last good scrape before a column, NaN when that was not after a time."""
        values = np.full(len(self._values), np.nan)
        good = self._good_before(end)
        if good < 0 or self._times[good] <= after_ms:
            return values
        values[:] = self._values[:, good]
        rows, sound = self._gained.rows, self._sound_before(end)
        # A torn histogram shows what it was at the last scrape at which it was whole.
        usable = (sound >= 0) & (self._times[np.maximum(sound, 0)] > after_ms) & ~np.isnan(values[rows])
        values[rows] = np.where(usable, self._values[rows, np.maximum(sound, 0)], np.nan)
        return values

    def track(self, identity: Identity, end: int, starts: Times, present: Flags) -> TargetTrack | None:
        """The target as it is known before a column; None when no scrape was good."""
        good = self._good_before(end)
        if good < 0:
            return None
        values = self._values[:, good].copy()
        rows, sound = self._gained.rows, self._sound_before(end)
        last = np.maximum(sound, 0)
        known = np.where(sound >= 0, self._values[rows, last], np.nan)
        began = self._gained.started[good] - self._gained.started[last]
        values[rows] = np.where(~np.isnan(known) & (began > SAME_START_MS), 0.0, known)
        kept = ~np.isnan(values)
        kept &= present | self._lasting
        if np.count_nonzero(kept & ~present) > MOST_ABSENT:
            kept = present
        if kept.all():
            return TargetTrack(identity, self._series, values, starts, present, int(self._times[good]))
        series = tuple(each for each, is_kept in zip(self._series, kept.tolist(), strict=True) if is_kept)
        return TargetTrack(identity, series, values[kept], starts[kept], present[kept], int(self._times[good]))

    def _good_before(self, end: int) -> int:
        return int(self._last_good[end - 1]) if end else -1

    def _sound_before(self, end: int) -> Indexes:
        """The last sound column of each counter's row before a column, -1 where there is none."""
        if not end:
            return np.full(len(self._gained.rows), -1, dtype=np.intp)
        sound: Indexes = self._last_sound[self._gained.owner, end - 1]
        return sound
