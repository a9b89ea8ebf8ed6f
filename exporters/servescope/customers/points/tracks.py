"""One target from boundary to boundary: what its counters gained, since when they count, which of its series ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import Identity
from servescope.contract.metrics import REPLICA_START_TIME
from servescope.contract.samples import Series, Window
from servescope.customers.points.edges import Floats, TargetInterval
from servescope.increments.accumulation import SAME_START_MS, ScrapeGains, count_gains, order_objects

Indexes = NDArray[np.intp]
Flags = NDArray[np.bool_]

INTERVALS_FRESH: Final = 2.5
"""After so many scrape intervals without a good scrape a target is no longer there, and its series end."""

_FOREVER_MS: Final = 10**13


MOST_ABSENT: Final = 2000
"""How many series that a target no longer has are remembered, in case they come back."""


@dataclass(frozen=True, slots=True, eq=False)
class TargetTrack:
    """A target as it was at a boundary: all that the next boundary is compared with.

    Per series, (m,): `values` and `counted` as in `TargetInterval`, whether it was `present` at the boundary, and
    whether it was `scraped` at `scrape_ms`, the last good scrape. Counters that were not have the value that they had
    last, 0 if the process began anew since.
    """

    identity: Identity
    series: tuple[Series, ...]
    values: Floats
    counted: Floats
    present: Flags
    scraped: Flags
    since_ms: int
    scrape_ms: int


def follow(
    identity: Identity,
    track: TargetTrack | None,
    window: Window,
    boundaries: Sequence[int],
    before_ms: int | None,
    fresh_ms: int,
    since_ms: int = 0,
) -> Iterator[tuple[TargetInterval | None, TargetTrack | None]]:
    """For each of `boundaries`, times in milliseconds ascending, the target at that boundary and the track to continue
    from.

    The target is None where no series has a value, has ended or gained since the boundary before; the track is None
    before the first good scrape. `before_ms` is the boundary before the first of `boundaries`, None where that is the
    first of a lane, at which nothing is gained. `window` has the scrapes after `before_ms` up to the last boundary (of
    a lane's first boundary, those shortly before it), in series without the labels of the identity. A scrape counts as
    the target's state for `fresh_ms`. Nothing is known of the target before `since_ms`, when it became the customer's:
    neither the window nor the track reaches further back.
    """
    known_ms = None if before_ms is None else max(before_ms, since_ms)
    window = _continue(track, window, known_ms)
    series, times = window.series, window.times
    counting = _Counting(window, track)
    column = 0 if known_ms is None else int(np.searchsorted(times, known_ms, "right"))
    present = np.zeros(len(series), dtype=bool)
    if track is not None:
        present[_places(series, track.series)] = track.present
    for boundary_ms in boundaries:
        end = int(np.searchsorted(times, boundary_ms, "right"))
        gains = counting.begin(boundary_ms) if before_ms is None else counting.advance(min(column, end), end, before_ms)
        values = counting.fresh_values(end, boundary_ms - fresh_ms)
        ended = present & np.isnan(values)
        present = ~np.isnan(values)
        found = None
        # One that came back and left between two boundaries has neither a value nor an end, and counted all the same.
        if present.any() or ended.any() or not np.isnan(gains).all():
            found = TargetInterval(identity, series, values, gains, counting.counted(end), counting.since_ms, ended)
        yield found, counting.track(identity, boundary_ms, end, present)
        column, before_ms = max(column, end), boundary_ms


def _continue(track: TargetTrack | None, window: Window, before_ms: int | None) -> Window:
    """The scrapes in the canonical order of series, behind the track's own scrape.

    A target without a track was not there at the boundary before: that is a scrape that failed.
    """
    series, rows = _order(window.series, track.series if track is not None else ())
    if track is not None:
        places, scraped = _places(series, track.series), track.scraped
        # What is remembered of series that were not in the last good scrape is from before it.
        earlier = ~scraped | np.array([each.name == REPLICA_START_TIME for each in track.series], dtype=bool)
        first = [track.scrape_ms - 1, track.scrape_ms]
        values = np.full((len(series), len(window.times) + 2), np.nan)
        values[places[earlier], 0] = track.values[earlier]
        values[places[scraped], 1] = track.values[scraped]
    else:
        first = [] if before_ms is None else [before_ms]
        values = np.full((len(series), len(window.times) + len(first)), np.nan)
    values[rows, len(first) :] = window.values
    return Window(series, np.concatenate((np.array(first, dtype=np.int64), window.times)), values)


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


def _find_other_buckets(values: Floats, gained: ScrapeGains, last_sound: Indexes) -> Flags:
    """The scrapes (n,) at which a histogram has other buckets than before, to which what was counted does not fit."""
    former = np.concatenate((np.full((len(last_sound), 1), -1), last_sound[:, :-1]), axis=1)[gained.owner]
    absent = np.isnan(values)
    differs: Flags = absent != np.take_along_axis(absent, np.maximum(former, 0), axis=1)
    differs &= gained.sound[gained.owner] & (former >= 0)
    changed: Flags = np.logical_or.reduce(differs, axis=0)
    return changed


class _Counting:
    """The counters of a window, scrape by scrape: what they gained, and in all since when."""

    def __init__(self, window: Window, track: TargetTrack | None) -> None:
        self._series, self._times, self._values = window.series, window.times, window.values
        self._gained: ScrapeGains = count_gains(window, memory_ms=_FOREVER_MS)
        columns = np.arange(len(window.times))
        self._last_good = np.maximum.accumulate(np.where(self._gained.succeeded, columns, -1))
        self._last_sound = np.maximum.accumulate(np.where(self._gained.sound, columns, -1), axis=1)
        # What is remembered of a target that is not there: counters, and when its process began.
        self._lasting = np.array([each.name == REPLICA_START_TIME for each in window.series], dtype=bool)
        self._lasting[self._gained.rows] = True
        self._has_other_buckets = _find_other_buckets(self._values[self._gained.rows], self._gained, self._last_sound)
        self._counted = np.zeros(len(window.series))
        self.since_ms = 0
        """Since when all of them count; 0 before the target was seen."""
        if track is not None:
            self._counted[_places(window.series, track.series)] = track.counted
            self.since_ms = track.since_ms

    def begin(self, boundary_ms: int) -> Floats:
        """Begin to count at a lane's first boundary; the gains (m,), none of which is known."""
        self.since_ms = boundary_ms
        return np.full(len(self._values), np.nan)

    def advance(self, column: int, end: int, before_ms: int) -> Floats:
        """Count on over these columns, which are after a boundary; the gains (m,) over them."""
        columns = range(column, end)
        if not self.since_ms:
            self.since_ms = next((self._began(each) for each in columns if self._gained.succeeded[each]), 0)
        elif self._has_other_buckets[column:end].any():
            self._counted[:], self.since_ms = 0.0, before_ms
        steps = self._steps(column, end)
        known = ~np.isnan(steps)
        gained = np.where(known, steps, 0.0).sum(axis=1)
        self._counted[self._gained.rows] += gained
        gains = np.full(len(self._values), np.nan)
        gains[self._gained.rows] = np.where(known.any(axis=1), gained, np.nan)
        return gains

    def _began(self, column: int) -> int:
        """When a target that is seen first at a column began to count: there, or with its process
        since the boundary.
        """
        time_ms = int(self._times[column])
        is_new = self._gained.first[:, column].any()
        return min(int(self._gained.started[column]), time_ms) if is_new else time_ms

    def _steps(self, column: int, end: int) -> Floats:
        """The gains of counters' rows from scrape to scrape.

        Of a histogram that changed its buckets, one that was not there gained what the one below it did.
        """
        rows, owner = self._gained.rows, self._gained.owner
        steps = self._gained.gains[:, column:end]
        known_rows, known_columns = np.nonzero(~np.isnan(steps))
        is_known = np.zeros((len(self._gained.sound), end - column), dtype=bool)
        is_known[owner[known_rows], known_columns] = True
        absent = np.isnan(steps) & is_known[owner]
        if absent.any():
            steps = steps.copy()
            for row in np.flatnonzero(absent.any(axis=1)).tolist():
                if self._series[rows[row]].name.endswith("_bucket"):
                    below = steps[row - 1] if row and owner[row - 1] == owner[row] else np.zeros(end - column)
                    steps[row] = np.where(absent[row], below, steps[row])
        return steps

    def counted(self, end: int) -> Floats:
        """What each series counted before a column (m,), NaN where it was not among the last of its object."""
        counted = self._counted.copy()
        counted[self._gained.rows[np.isnan(self._last_values(end))]] = np.nan
        return counted

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

    def track(self, identity: Identity, boundary_ms: int, end: int, present: Flags) -> TargetTrack | None:
        """The target as it is known before a column; None when no scrape was good."""
        good = self._good_before(end)
        if good < 0:
            return None
        values = self._values[:, good].copy()
        rows, known = self._gained.rows, self._last_values(end)
        began = self._gained.started[good] - self._gained.started[np.maximum(self._sound_before(end), 0)]
        values[rows] = np.where(~np.isnan(known) & (np.abs(began) > SAME_START_MS), 0.0, known)
        kept = ~np.isnan(values)
        kept &= present | self._lasting
        if np.count_nonzero(kept & ~present) > MOST_ABSENT:
            # What is forgotten would be missing in sums over series: all begin anew.
            kept = present & kept
            self._counted[:], self.since_ms = 0.0, boundary_ms
        series = (
            self._series
            if kept.all()
            else tuple(each for each, is_kept in zip(self._series, kept.tolist(), strict=True) if is_kept)
        )
        return TargetTrack(
            identity, series, values[kept], self._counted[kept], present[kept],
            self._scraped(good)[kept], self.since_ms, int(self._times[good]),
        )  # fmt: skip

    def _scraped(self, column: int) -> Flags:
        """Which series a scrape has; all parts of a histogram of which it has some."""
        scraped: Flags = ~np.isnan(self._values[:, column])
        rows, owner = self._gained.rows, self._gained.owner
        objects = np.zeros(len(self._gained.sound), dtype=bool)
        objects[owner[scraped[rows]]] = True
        scraped[rows] = objects[owner]
        return scraped

    def _last_values(self, end: int) -> Floats:
        """The values of counters' rows at the last sound scrape before a column, NaN where there is none."""
        sound = self._sound_before(end)
        return np.where(sound >= 0, self._values[self._gained.rows, np.maximum(sound, 0)], np.nan)

    def _good_before(self, end: int) -> int:
        return int(self._last_good[end - 1]) if end else -1

    def _sound_before(self, end: int) -> Indexes:
        """The last sound column of each counter's row before a column, -1 where there is none."""
        if not end:
            return np.full(len(self._gained.rows), -1, dtype=np.intp)
        sound: Indexes = self._last_sound[self._gained.owner, end - 1]
        return sound
