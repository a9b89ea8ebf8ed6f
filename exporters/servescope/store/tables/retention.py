"""Deletes what is too old, or more than the file may hold, and what nothing refers to any more."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from servescope.store.packing.layouts import SeriesLayouts
from servescope.store.packing.packer import Packer
from servescope.store.packing.recent import RecentRows
from servescope.store.packing.runs import Packs
from servescope.store.schema import FIGURES, INCREMENTS, LATEST_MS, SCRAPES
from servescope.store.tables.events import EventTable
from servescope.store.tables.owners import Owners
from servescope.store.tables.settings import SettingsTable

# Free pages are returned to the file system above this share of the file, so many at a time.
_FREE_SHARE = 0.25
_FREE_PAGES = 256
_FEWEST_FREE_PAGES = 1024


_SAMPLES: Final = (FIGURES, SCRAPES)
_INCREMENTS: Final = (INCREMENTS,)
# The console shows scrapes and figures, a judge reads increments: neither takes all the room of the other.
_KEPT_LONGEST_MS: Final = 86_400_000


class Retention:
    """Deletes a little at a time from all tables. Not thread safe."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        owners: Owners,
        settings: SettingsTable,
        events: EventTable,
        layouts: SeriesLayouts,
        packs: Packs,
        recent: RecentRows,
        packer: Packer,
    ) -> None:
        self._connection, self._owners, self._settings, self._events = connection, owners, settings, events
        self._layouts, self._packs, self._recent, self._packer = layouts, packs, recent, packer

    def prune(self, before_ms: int, increments_before_ms: int, rows: int) -> int:
        """Delete what is older than an instant, increments and events than one of their own, at most about `rows` rows.

        Returns how many went.
        """
        gone = 0
        for kinds, oldest_ms in ((_SAMPLES, before_ms), (_INCREMENTS, increments_before_ms)):
            for kind in kinds:
                for owner in self._owners.rows(kind):
                    gone += self._recent.delete(kind, owner, oldest_ms, rows - gone)
            gone += self._packs.delete_oldest(kinds, rows - gone, before_ms=oldest_ms)
        gone += self._events.delete_before(increments_before_ms, rows - gone)
        if gone < rows:
            self._owners.delete_unused()
            self._settings.delete_before(before_ms)
            self._recent.forget_empty()
            self._packer.forget_others(self._recent.counts())
            self._delete_spent_keys()
            self._return_free_pages()
        return gone

    def prune_to_size(self, limit_bytes: int, rows: int) -> int:
        """Delete the oldest until the pages in use fit into a limit, at most about `rows` rows; returns how many."""
        gone = 0
        while gone < rows and self.used_bytes() > limit_bytes:
            former = gone
            for kinds in self._most_dispensable():
                gone += self._packs.delete_oldest(kinds, 1) or self._recent.delete_oldest(kinds)
                if gone != former:
                    break
            if gone == former:
                break
            # A target that always shows other series may need more room for their names than for their numbers.
            self._delete_spent_keys()
        return gone

    def _most_dispensable(self) -> Sequence[Sequence[int]]:
        """What goes first: scrapes and figures down to their last day, then increments down to theirs."""
        for kinds in (_SAMPLES, _INCREMENTS):
            spans = [span for span in map(self._span, kinds) if span is not None]
            if spans and max(end for _, end in spans) - min(start for start, _ in spans) > _KEPT_LONGEST_MS:
                return (kinds,)
        return _SAMPLES, _INCREMENTS

    def _span(self, kind: int) -> tuple[int, int] | None:
        """When the first and the last row of a kind are from, packed ones included; None when there are none."""
        spans = [span for owner in self._owners.rows(kind) if (span := self._recent.span(kind, owner)) is not None]
        ends = [*self._packs.ends(kind), *(end for span in spans for end in span)]
        return (min(ends), max(ends)) if ends else None

    def used_bytes(self) -> int:
        """The size of the pages in use."""
        return (self._pragma("page_count") - self._pragma("freelist_count")) * self._pragma("page_size")

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    def _delete_spent_keys(self) -> None:
        """Delete the layouts and shapes that no row or pack has any more."""
        oldest_row, oldest_run = self._recent.first_ms(), self._packs.first_end()
        self._layouts.delete_spent(LATEST_MS if oldest_row is None else oldest_row, oldest_run or LATEST_MS)

    def _return_free_pages(self) -> None:
        free = self._pragma("freelist_count")
        if free > max(_FEWEST_FREE_PAGES, _FREE_SHARE * self._pragma("page_count")):
            for _ in range(_FREE_PAGES):
                # This pragma frees one page a step, and a cursor takes one step only.
                self._connection.execute("PRAGMA incremental_vacuum(1)")
