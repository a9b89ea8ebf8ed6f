"""What is stored as later than the clock shows, as a clock that was ahead has left it: how much, and dropping it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from servescope.contract.events import Event
from servescope.increments.blocks import BLOCK_MS
from servescope.settings.clock import AHEAD_MS
from servescope.settings.values import format_instant
from servescope.store.packing.layouts import SeriesLayouts
from servescope.store.packing.rows import OwnedRows
from servescope.store.records import UntimelyError
from servescope.store.schema import FIGURES, INCREMENTS, LATEST_MS, SCRAPES, checked_time
from servescope.store.tables.alerts import AlertTables
from servescope.store.tables.events import EventTable
from servescope.store.tables.owners import Owners
from servescope.store.tables.settings import SettingsTable

_KINDS: Final = {"scrapes": SCRAPES, "figures": FIGURES, "increments": INCREMENTS}


class FutureRows:
    """What is later than an instant in all tables. Not thread safe."""

    def __init__(
        self,
        owners: Owners,
        settings: SettingsTable,
        alerts: AlertTables,
        events: EventTable,
        layouts: SeriesLayouts,
        rows: OwnedRows,
    ) -> None:
        self._owners, self._settings, self._alerts, self._events = owners, settings, alerts, events
        self._layouts, self._rows = layouts, rows

    def newest_ms(self) -> int:
        """When the last of all is from that has a time of its own, events and settings as well; 0 without any."""
        return max(self._last_row_ms(), self._events.last_ms() or 0, self._settings.last_ms() or 0)

    def _last_row_ms(self) -> int:
        """When the last row of whatever owner is from, 0 without any."""
        ends = (end for kind in _KINDS.values() for end in self._rows.ends(kind, self._owners.rows(kind)))
        return max((self._alerts.last_sums_ms() or 0, *ends))

    def covered_ms(self, after_ms: int) -> int:
        """How much time of scrapes is later than an instant: the most of any target, in whole blocks."""
        counts = (self._rows.count_after(INCREMENTS, owner, after_ms) for owner in self._owners.rows(INCREMENTS))
        return max(counts, default=0) * BLOCK_MS

    def drop(self, now_ms: int) -> Event:
        """Drop all that is later than an instant, and add to the event log that and how much; the caller commits.

        Events stay, as of that instant, and so do the settings of figures and the states of alerts.
        """
        newest_ms, last_row_ms = self.newest_ms(), self._last_row_ms()
        firsts = (self._rows.first_ms_after(SCRAPES, owner, now_ms) for owner in self._owners.rows(SCRAPES))
        first_ms = min((first for first in firsts if first is not None), default=last_row_ms)
        dropped = {
            name: sum(self._rows.delete_after(kind, owner, now_ms) for owner in self._owners.rows(kind))
            for name, kind in _KINDS.items()
        }
        self._alerts.forget_after(now_ms)
        # Of what was dropped the clock shows how long it was, not when: the last of it is from just now.
        kept_until_ms = max(self._rows.ends(SCRAPES, self._owners.rows(SCRAPES)), default=0)
        missing_from_ms = min(kept_until_ms, now_ms - (last_row_ms - first_ms))
        self._settings.forget_after(now_ms)
        self._owners.forget_after(now_ms, lambda target: self._rows.last_ms(SCRAPES, target, now_ms))
        self._layouts.forget_after(now_ms)
        self._events.move_to(now_ms)
        text = (
            f"the clock was set back from {format_instant(newest_ms)} to {format_instant(now_ms)}: what was stored as "
            f"later is dropped, {dropped['scrapes']} scrapes and {dropped['figures']} evaluations"
        )
        detail = {"from_ms": newest_ms, "to_ms": now_ms, "first_ms": first_ms, "missing_from_ms": missing_from_ms}
        detail |= dropped
        event = Event(now_ms, "clock_set_back", (), text, tuple((name, str(value)) for name, value in detail.items()))
        self._events.append([event])
        return event


class StoredTimes:
    """Which times are of now by the clock `now_ms`, and follow what is stored. Not thread safe."""

    def __init__(self, now_ms: Callable[[], int], path: Path, rows: OwnedRows, future: FutureRows) -> None:
        self._now_ms, self._path, self._rows, self._future = now_ms, path, rows, future
        self._newest_ms: int | None = None
        # When the last row of an owner is from, by kind and owner, of those that were asked for.
        self._last: dict[tuple[int, int], int] = {}

    def until(self, time_ms: int) -> int:
        """The instant, or the latest that is of now where that is earlier."""
        return min(time_ms, self._now_ms() + AHEAD_MS)

    def newest_ms(self) -> int:
        """When the last of all that is stored is from, 0 without any."""
        if self._newest_ms is None:
            self._newest_ms = self._future.newest_ms()
        return self._newest_ms

    def last_ms(self, kind: int, owner: int) -> int:
        """When the last row of an owner is from, 0 without any."""
        if (kind, owner) not in self._last:
            self._last[kind, owner] = self._rows.last_ms(kind, owner, LATEST_MS) or 0
        return self._last[kind, owner]

    def note_row(self, kind: int, owner: int, time_ms: int) -> None:
        """Notice a row that was added."""
        if (kind, owner) in self._last:
            self._last[kind, owner] = max(self._last[kind, owner], time_ms)
        self.note(time_ms)

    def note(self, time_ms: int) -> None:
        """Notice that something of this time was added."""
        if self._newest_ms is not None:
            self._newest_ms = max(self._newest_ms, time_ms)

    def check(self, time_ms: int, last_ms: int, what: str, numbers: int) -> None:
        """Raise UntimelyError for a time later than now, or before the last: the clock was set since it was stamped."""
        latest_ms = self.until(LATEST_MS)
        if last_ms <= checked_time(time_ms) <= latest_ms:
            return
        why = (
            f"before what is stored, until {format_instant(last_ms)}"
            if time_ms < last_ms
            else f"later than now, {format_instant(latest_ms - AHEAD_MS)}"
        )
        raise UntimelyError(f"store {self._path}: {what} of {format_instant(time_ms)} is refused: it is {why}", numbers)
