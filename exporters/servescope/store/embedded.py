"""The embedded store: figures, translated scrapes and the health of targets, in one SQLite file (`schema`).

One process writes, any number read meanwhile (WAL). Every stored number is finite; what was absent is not stored. Rows
are appended one by one, so that none is ever lost, and put together in packs once there are enough of them.

`Store` is the only access to the file. Each kind of table has a class of its own: `Owners`, `SeriesLayouts`,
`RecentRows`, `Packs`, `SettingsTable`, `AlertTables`; a `Packer` turns recent rows into packs, `Retention` deletes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.events import EVENT_KINDS, Event, EventKind
from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import Series, Snapshot, Window
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from servescope.settings.clock import AHEAD_MS, BELIEVED_AFTER_MS, believed_ms
from servescope.settings.values import format_instant
from servescope.store import records
from servescope.store.history import History
from servescope.store.packing.layouts import SeriesLayouts
from servescope.store.packing.packer import Owner, Packer
from servescope.store.packing.packing import Keys
from servescope.store.packing.recent import RecentRows
from servescope.store.packing.rows import OwnedRows
from servescope.store.packing.runs import Packs
from servescope.store.packing.segments import MOST_NUMBERS, KeySelection, Segment, assemble, sample_names, thin
from servescope.store.schema import FIGURES, INCREMENTS, LATEST_MS, SCRAPES, TIME_BITS
from servescope.store.tables.alerts import AlertTables, Sums
from servescope.store.tables.block_increments import BlockIncrements
from servescope.store.tables.connection import StoreConnection, guarded
from servescope.store.tables.events import EventTable
from servescope.store.tables.file import file_size
from servescope.store.tables.future import FutureRows, StoredTimes
from servescope.store.tables.increments import Division, block_rows, make_increments, wanted_names
from servescope.store.tables.open_blocks import OpenBlocks
from servescope.store.tables.owners import Owners
from servescope.store.tables.retention import Retention
from servescope.store.tables.settings import SettingsTable

__all__ = ["Store"]

_logger = logging.getLogger(__name__)

MOST_EVENTS: Final = 100_000
"""The events that are read at once, at most."""
_PRUNE_ROWS = 2_000
_SETTLE_MS = 5_000


class Store(StoreConnection, History):
    """The figures, scrapes and targets in one file; safe to use from several threads, one at a time.

    With `read_only` the file must exist; any number of processes may read while one writes, and when another file
    replaces it, that one is read. Otherwise it is created when missing, and a second writer is refused. With
    `opened=False` nothing is opened yet: a reader does so at its first read, a writer with `reopen`. Raises StoreError,
    also for a file that is not a store of ours or is of another schema version.

    `now_ms` is the clock. What is stored as later than it shows, by more than `AHEAD_MS`, is not read, as a clock was
    ahead; what is to be stored as later is refused. Without it every time is as good as any.
    """

    def _forget(self) -> None:
        self._owners = Owners(self._connection, self.path)
        self._alerts = AlertTables(self._connection, self.path)
        self._settings = SettingsTable(self._connection, self.path)
        self._events = EventTable(self._connection, self.path)
        self._layouts = SeriesLayouts(self._connection, self.path)
        self._packs = Packs(self._connection, self.path, self._layouts)
        self._recent = RecentRows(self._connection, self.path, self._layouts)
        self._rows = OwnedRows(self._packs, self._recent)
        self._future = FutureRows(self._owners, self._settings, self._alerts, self._events, self._layouts, self._rows)
        self._times = StoredTimes(lambda: self.now_ms(), self.path, self._rows, self._future)
        self._blocks = BlockIncrements(self._owners, self._rows)
        self._packer = Packer(self._recent, self._packs)
        self._open_blocks = OpenBlocks(lambda target, before_ms: self._rows.last_ms(SCRAPES, target, before_ms - 1))
        self._retention = Retention(
            self._connection,
            self._owners,
            self._settings,
            self._events,
            self._layouts,
            self._packs,
            self._recent,
            self._packer,
        )

    # --- Writing ------------------------------------------------------------------------------------------------------

    @guarded
    def append_scrape(self, target_id: str, time_ms: int, snapshot: Snapshot | None, *, follows: bool = False) -> None:
        """Add one scrape's contract samples, None for a scrape that failed; the same time again replaces it.

        Scrapes may come in any order, those of the past as well, unless each `follows` those before. The target must
        have been given to `set_target` before. The increments of a block are stored with the first scrape of another
        one. Raises RefusedError when a value is not finite, or the time is not within 1970 … 2109; UntimelyError for a
        time later than now, and with `follows` for one before the last scrape of the target.
        """
        target = self._owners.known_target(target_id)
        last_ms = self._times.last_ms(SCRAPES, target) if follows else 0
        self._times.check(time_ms, last_ms, f"a scrape of {target_id!r}", len(snapshot.series) if snapshot else 0)
        layout, body = None, None
        if snapshot is not None:
            _check_finite(snapshot.values, target_id)
            layout = self._layouts.row_of_series(target_id, snapshot.series, time_ms)
            body = snapshot.values.astype("<f8", copy=False).tobytes()
        self._open_blocks.note(target, time_ms)
        self._append(SCRAPES, target, time_ms, layout, body)
        if not self._connection.in_transaction:
            self._settle()

    @guarded
    def append_increments(self, increments: TargetIncrements) -> None:
        """Add blocks of a target, in place of those stored of the same times; for a history that has no scrapes.

        The target must have been given to `set_target` before.
        """
        target = self._owners.known_target(increments.target_id)
        self._append_blocks(target, increments)

    @guarded
    def close_blocks(self, before_ms: int) -> None:
        """Store the increments of blocks that ended before an instant and whose targets got no scrape since."""
        self._open_blocks.note_idle(self._owners.rows(SCRAPES), before_ms)
        with self.transaction():
            pass

    @guarded
    def append_figures(
        self, deployment: Deployment, time_ms: int, values: Mapping[str, float], *, follows: bool = False
    ) -> None:
        """Add a deployment's figures at one instant; the same time again replaces them. Values must be finite.

        Raises UntimelyError as `append_scrape` does.
        """
        keys = sorted(values)
        body = np.array([values[key] for key in keys], dtype="<f8")
        _check_finite(body, deployment.deployment_id)
        row = self._owners.keep_deployment(deployment)
        last_ms = self._times.last_ms(FIGURES, row) if follows else 0
        self._times.check(time_ms, last_ms, f"the figures of {deployment.deployment_id!r}", len(keys))
        self._append(FIGURES, row, time_ms, self._layouts.row_of_figures(keys, time_ms), body.tobytes())

    def _append_blocks(self, target: int, increments: TargetIncrements) -> None:
        for start_ms, (series, values) in zip(increments.blocks.tolist(), block_rows(increments), strict=True):
            end_ms = start_ms + BLOCK_MS
            layout = self._layouts.row_of_block(series, end_ms)
            self._append(INCREMENTS, target, end_ms, layout, values.astype("<f8", copy=False).tobytes())

    def _append(self, kind: int, owner: int, time_ms: int, layout: int | None, body: bytes | None) -> None:
        self._recent.append(kind, owner, time_ms, layout, body)
        self._packer.note(kind, owner)
        self._times.note_row(kind, owner, time_ms)

    # --- A clock that was set -----------------------------------------------------------------------------------------

    @guarded
    def drop_future(self, *, believed: bool = False) -> Event | None:
        """Drop what is stored as later than now, as a clock that was ahead has left it; None when there is nothing.

        Returns the event that it adds to the event log, in the same transaction. Raises AheadError where that is more
        than an hour of scrapes, unless the clock is `believed`: it may be what is wrong, and what is dropped is gone.
        """
        now_ms = self.now_ms()
        if self._times.newest_ms() <= now_ms + AHEAD_MS:
            return None
        covered_ms = self._future.covered_ms(now_ms)
        if covered_ms > BELIEVED_AFTER_MS and not believed:
            raise records.AheadError(
                f"store {self.path}: the clock shows {format_instant(now_ms)}, but {covered_ms / 3_600_000:.1f} hours "
                f"of what is stored are later, until {format_instant(self._times.newest_ms())}"
            )
        with self.transaction():
            event = self._future.drop(now_ms)
        self._forget()
        return event

    @guarded
    def believed_ms(self, now_ms: int) -> int:
        """The time by whose age history is deleted: now, unless the clock was set forward within the last hour.

        That shows in what every evaluation stores: the last that is an hour old is of before.
        """
        until_ms = now_ms - BELIEVED_AFTER_MS
        with self._snapshot():
            lasts = [self._alerts.last_sums_ms(until_ms)]
            lasts += [self._rows.last_ms(FIGURES, owner, until_ms) for owner in self._owners.rows(FIGURES)]
        return believed_ms(now_ms, max((last for last in lasts if last is not None), default=None))

    @guarded
    def set_target(self, status: records.TargetStatus) -> None:
        """Keep the latest status of a target, in place of its former one."""
        self._owners.keep_target(status)

    @guarded
    def unlist_targets(self, keep: Iterable[str]) -> None:
        """Have `targets()` show only those of `keep`; the scrapes of the others stay for their retention.

        One that has none leaves nothing behind, nor does a deployment that had no other.
        """
        gone = self._owners.unlist(keep)
        self._layouts.forget(gone)
        if gone:
            self._owners.delete_unused()

    @guarded
    def record_settings(self, time_ms: int, settings: records.RecordedSettings) -> None:
        """Keep how figures are derived from a time on, now at the latest; nothing is written while it is the same."""
        since_ms = self._times.until(time_ms)
        self._settings.record(since_ms, settings)
        self._times.note(since_ms)

    @guarded
    def write_alerts(self, alerts: Iterable[records.KeptAlert]) -> None:
        """Keep the state of alerts, in place of the former one; none of it is later than now."""
        now_ms = self.now_ms()
        self._alerts.write_alerts([each.known_at(now_ms) for each in alerts])

    @guarded
    def append_events(self, events: Iterable[Event]) -> None:
        """Add events to the log; what is of later happened now."""
        for each in events:
            known = replace(each, time_ms=self._times.until(each.time_ms))
            self._events.append([known])
            self._times.note(known.time_ms)

    @guarded
    def append_sums(self, time_ms: int, sums: Sums, *, follows: bool = False) -> None:
        """Keep what the counters of objectives counted up to an instant, in place of all that is not before it.

        Raises UntimelyError as `append_scrape` does, but for a time that is a small correction of the clock earlier.
        """
        last_ms = (self._alerts.last_sums_ms() or 0) - AHEAD_MS if follows else 0
        self._times.check(time_ms, last_ms, "the sums of objectives", len(sums))
        self._alerts.append_sums(time_ms, sums)
        self._times.note(time_ms)

    @guarded
    def forget_sums(self, times: Iterable[int]) -> None:
        """Forget the sums of some instants."""
        self._alerts.forget_sums(times)

    # --- Increments ---------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Compute the blocks that were closed, from their scrapes."""
        while (due := self._open_blocks.take_due()) is not None:
            try:
                for found in self._blocks.compute(*due):
                    self._append_blocks(due[0], found)
            except records.StoreError as error:
                if error.damaged:
                    raise
                _logger.error("%s; the increments of its block are not stored in %s", error, self.path)  # noqa: TRY400

    # --- Retention ----------------------------------------------------------------------------------------------------

    @guarded
    def prune(self, before_ms: int, *, increments_before_ms: int | None = None, rows: int = _PRUNE_ROWS) -> int:
        """Delete what is older than `before_ms`, at most about `rows` rows; returns how many.

        Increments and events go when they are older than `increments_before_ms`, the same unless given. A pack is
        deleted as a whole once all of it is older. Call it again while it returns `rows` or more.
        """
        increments_ms = before_ms if increments_before_ms is None else increments_before_ms
        return self._retention.prune(before_ms, increments_ms, rows)

    @guarded
    def prune_to_size(self, limit_bytes: int, *, rows: int = _PRUNE_ROWS) -> int:
        """Delete the oldest until the rest fits into `limit_bytes`, at most about `rows`; returns how many.

        What counts are the pages in use; those set free are used again, so that the file does not outgrow the limit.
        """
        return self._retention.prune_to_size(limit_bytes, rows)

    def size_bytes(self) -> int:
        """The size of the file and of its write-ahead log."""
        return sum(file_size(f"{self.path}{ending}") for ending in ("", "-wal"))

    # --- Packing ------------------------------------------------------------------------------------------------------

    @guarded
    def pack_due(self) -> bool:
        """Pack the rows of one target, or deployment, that has enough of them for a pack; False when none has."""
        return self._pack(self._packer.take_due())

    @guarded
    def pack_idle(self, before_ms: int) -> bool:
        """Pack the rows of one target, or deployment, that got none since `before_ms`; False when none has any."""
        return self._pack(self._packer.find_idle(before_ms), idle=True)

    def _pack(self, owner: Owner | None, *, idle: bool = False) -> bool:
        if owner is None:
            return False
        with self.transaction():
            self._packer.pack_oldest(*owner, idle=idle)
        return True

    # --- Reading ------------------------------------------------------------------------------------------------------

    @guarded
    def deployments(self) -> list[Deployment]:
        """Every deployment seen within retention, sorted."""
        with self._snapshot():
            return sorted(deployment for _, deployment in self._owners.deployments())

    @guarded
    def latest_figures(self) -> dict[Deployment, tuple[int, dict[str, float]]]:
        """Each deployment's last instant, in milliseconds, and its figures then."""
        latest = {}
        with self._snapshot():
            until_ms = self._times.until(LATEST_MS)
            for owner, deployment in self._owners.deployments():
                row = self._rows.last(FIGURES, owner, until_ms)
                if row is not None and row.values is not None:
                    keys = map(str, row.keys or ())
                    latest[deployment] = (row.time_ms, dict(zip(keys, row.values.tolist(), strict=True)))
        return latest

    @guarded
    def read_figures(
        self,
        deployment: Deployment,
        start_ms: int,
        end_ms: int,
        *,
        names: Sequence[str] | None = None,
        max_points: int | None = None,
    ) -> records.FigureTable:
        """A deployment's figures from start to end, both included; empty when nothing was stored.

        `names` are figure keys, all when None. With `max_points` the time is cut into at most so many equal buckets, of
        each of which the last instant is read: a ratio is never averaged. Raises TooLargeError as `read_samples` does.
        """
        width = None if max_points is None else _bucket_width(end_ms - start_ms, max_points)
        selection = KeySelection(None if names is None else frozenset(names))
        with self._snapshot():
            owner = self._owners.find_deployment(deployment)
            segments = iter(()) if owner is None else self._segments(FIGURES, owner, start_ms, end_ms, selection)
            if width is None:
                times, keys, values = self._assemble(segments, MOST_NUMBERS)
            else:
                times, keys, values = thin(
                    self._assemble((thin(segment, width) for segment in segments), MOST_NUMBERS), width
                )
        rows = {str(key): row for key, row in zip(keys, values, strict=True)}
        if names is None:
            # A key that is absent at every instant read is left out: it belongs to other instants.
            return records.FigureTable(times, {key: rows[key] for key in sorted(rows) if not np.isnan(rows[key]).all()})
        return records.FigureTable(times, {name: rows.get(name, np.full(len(times), np.nan)) for name in names})

    @guarded
    def targets(self) -> list[records.TargetStatus]:
        """The latest status of every target of the running configuration, by target id."""
        with self._snapshot():
            return [self._known(status) for status in self._owners.statuses()]

    def _known(self, status: records.TargetStatus) -> records.TargetStatus:
        """A status as of now, where it is of later."""
        until_ms = self._times.until(LATEST_MS)
        if not status.is_later_than(until_ms):
            return status
        target = self._owners.find_target(status.target_id)
        return status.known_at(until_ms, target and self._rows.last_ms(SCRAPES, target, until_ms))

    @property
    def settle_ms(self) -> int:
        """How long after an instant all is stored that was scraped up to it, unless it is late."""
        return _SETTLE_MS

    def scrape_intervals(self) -> dict[Identity, int]:
        """How far the scrapes of each target are apart; raises StoreError."""
        return {status.identity: status.scrape_interval_ms for status in self.targets()}

    @guarded
    def read_samples(
        self, deployment: Deployment, names: Sequence[str], start_ms: int, end_ms: int, *, most: int | None = None
    ) -> list[Window]:
        """The stored scrapes of a deployment from start to end, both included: one window per target that has any.

        `names` are contract metrics; a histogram's name selects its buckets, sum and count. Series stay native, before
        any sum; failed scrapes are columns of NaN. Raises TooLargeError when that is more than `most` numbers,
        `MOST_NUMBERS` when None, as it is over a long time of a target that always showed other series.
        """
        selection = KeySelection(sample_names(names))
        windows, left = [], MOST_NUMBERS if most is None else most
        with self._snapshot():
            for target in self._owners.targets_of(self._owners.find_deployment(deployment)):
                segments = self._segments(SCRAPES, target, start_ms, end_ms, selection)
                times, keys, values = self._assemble(segments, left)
                left -= values.size
                windows.append(Window(tuple(key for key in keys if isinstance(key, Series)), times, values))
        return [window for window in windows if len(window.times)]

    @guarded
    def read_increments(
        self, deployment: Deployment, names: Sequence[str], start_ms: int, end_ms: int
    ) -> list[TargetIncrements]:
        """The increments of a deployment's targets in the blocks that lie between start and end.

        `names` are contract metrics, gauges of `JUDGED_GAUGES` among them. A block is there once a scrape of another
        one was stored. Raises TooLargeError as `read_samples` does.
        """
        selection = KeySelection(wanted_names(names))
        divisions: dict[int, Division] = {}
        found, left = [], MOST_NUMBERS
        with self._snapshot():
            statuses = dict(self._owners.statuses_of(self._owners.find_deployment(deployment)))
            for target, segments in self._rows.segments_of(
                INCREMENTS, tuple(statuses), start_ms + BLOCK_MS, self._times.until(end_ms), selection
            ):
                segment = self._assemble(segments, left)
                left -= segment.values.size
                if len(segment.times):
                    found.append(make_increments(statuses[target], segment, divisions))
        return found

    @guarded
    def read_events(
        self, start_ms: int, end_ms: int, *, kinds: Sequence[EventKind] = EVENT_KINDS, most: int = MOST_EVENTS
    ) -> list[Event]:
        """The event log from start to end, both included, in the order of time; the last `most` of more."""
        with self._snapshot():
            return self._events.between(start_ms, self._times.until(end_ms), kinds, most)

    def clock_set_back(self, start_ms: int, end_ms: int, *, most: int) -> list[Event]:
        """The events of a clock that was set back, the last `most` of more."""
        return self.read_events(start_ms, end_ms, kinds=["clock_set_back"], most=most)

    @guarded
    def read_scrapes(self, target_id: str, start_ms: int, end_ms: int) -> list[tuple[int, Snapshot | None]]:
        """A target's scrapes from start to end, both included, as they were appended; none for an unknown target."""
        known: dict[Keys, tuple[Series, ...]] = {}
        scrapes: dict[int, Snapshot | None] = {}
        with self._snapshot():
            target, end_ms = self._owners.find_target(target_id), self._times.until(end_ms)
            rows = [] if target is None else self._rows.between(SCRAPES, target, start_ms, end_ms)
        latest: tuple[Keys, tuple[Series, ...]] = ((), ())
        for row in rows:
            if row.keys is None or row.values is None:
                scrapes[row.time_ms] = None
                continue
            if row.keys is not latest[0]:
                series = tuple(key for key in row.keys if isinstance(key, Series))
                latest = (row.keys, known.setdefault(row.keys, series))
            scrapes[row.time_ms] = Snapshot(latest[1], row.values)
        return sorted(scrapes.items())

    @guarded
    def last_scrape_ms(self, target_id: str, until_ms: int) -> int | None:
        """When the last stored scrape of a target is from that is not after an instant; None without any."""
        with self._snapshot():
            target = self._owners.find_target(target_id)
            return None if target is None else self._rows.last_ms(SCRAPES, target, self._times.until(until_ms))

    @guarded
    def time_range(self) -> tuple[int, int] | None:
        """When the first and the last figures are from, in milliseconds; None when there are none."""
        with self._snapshot():
            ends = self._ends(FIGURES)
        return (min(ends), max(ends)) if ends else None

    @guarded
    def held_range(self) -> tuple[int, int] | None:
        """When the first and the last of all that it holds are from, figures and scrapes."""
        with self._snapshot():
            ends = [*self._ends(FIGURES), *self._ends(SCRAPES)]
        return (min(ends), max(ends)) if ends else None

    def _ends(self, kind: int) -> list[int]:
        return self._rows.ends(kind, self._owners.rows(kind), self.now_ms())

    @guarded
    def settings_at(self, time_ms: int) -> records.RecordedSettings | None:
        """How the figures of a time were derived; the first known when it is older, None when nothing is known."""
        with self._snapshot():
            return self._settings.at(self._times.until(time_ms))

    @guarded
    def read_alerts(self) -> list[records.KeptAlert]:
        """The last state of alerts; raises StoreError when that is damaged."""
        with self._snapshot():
            now_ms = self.now_ms()
            return [each.known_at(now_ms) for each in self._alerts.read_alerts()]

    @guarded
    def read_sums(self, *, until_ms: int) -> list[tuple[int, Sums]]:
        """What the counters of objectives counted up to each instant that is kept, none after `until_ms`."""
        with self._snapshot():
            return self._alerts.read_sums(self._times.until(until_ms))

    def _segments(
        self, kind: int, owner: int, start_ms: int, end_ms: int, selection: KeySelection
    ) -> Iterator[Segment]:
        """What is stored of an owner from start to end, and not later than now."""
        return self._rows.segments(kind, owner, start_ms, self._times.until(end_ms), selection)

    def _assemble(self, segments: Iterable[Segment], most: int) -> Segment:
        try:
            return assemble(segments, most=most)
        except records.TooLargeError as error:
            raise records.TooLargeError(f"store {self.path}: {error}") from None


def _check_finite(values: NDArray[np.float64], owner: str) -> None:
    if not np.isfinite(values).all():
        raise records.RefusedError(f"a value of {owner!r} is not finite; absent values are left out instead")


def _bucket_width(span_ms: int, max_points: int) -> int:
    """The width of a bucket in milliseconds; a range that starts inside one touches one more than fit into it."""
    if max_points < 1:
        raise records.StoreError(f"max_points {max_points!r} is below 1")
    return max(span_ms, 0) // max(max_points - 1, 1) + 1 if max_points > 1 else 1 << TIME_BITS
