"""Deletes what is too old, or more than the file may hold, and what nothing refers to any more."""

from __future__ import annotations

import sqlite3

from servescope.store.layouts import SeriesLayouts
from servescope.store.owners import Owners
from servescope.store.packer import Packer
from servescope.store.recent import RecentRows
from servescope.store.runs import Runs
from servescope.store.schema import FIGURES, LATEST_MS, SCRAPES
from servescope.store.settings import SettingsTable

# Free pages are returned to the file system above this share of the file, so many at a time.
_FREE_SHARE = 0.25
_FREE_PAGES = 256
_FEWEST_FREE_PAGES = 1024


class Retention:
    """Deletes a little at a time from all tables. Not thread safe."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        owners: Owners,
        settings: SettingsTable,
        layouts: SeriesLayouts,
        runs: Runs,
        recent: RecentRows,
        packer: Packer,
    ) -> None:
        self._connection, self._owners, self._settings = connection, owners, settings
        self._layouts, self._runs, self._recent, self._packer = layouts, runs, recent, packer

    def prune(self, before_ms: int, rows: int) -> int:
        """Delete what is older than an instant, at most about `rows` rows; returns how many."""
        gone = 0
        for kind in (FIGURES, SCRAPES):
            for owner in self._owners.rows(kind):
                gone += self._recent.delete(kind, owner, before_ms, rows - gone)
        gone += self._runs.delete_oldest(rows - gone, before_ms=before_ms)
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
            gone += self._runs.delete_oldest(1) or self._recent.delete_oldest()
            if gone == former:
                break
            # A target that always shows other series may need more room for their names than for their numbers.
            self._delete_spent_keys()
        return gone

    def used_bytes(self) -> int:
        """The size of the pages in use."""
        return (self._pragma("page_count") - self._pragma("freelist_count")) * self._pragma("page_size")

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    def _delete_spent_keys(self) -> None:
        """Delete the layouts and shapes that no row or run has any more."""
        oldest_row, oldest_run = self._recent.first_ms(), self._runs.first_end()
        self._layouts.delete_spent(LATEST_MS if oldest_row is None else oldest_row, oldest_run or LATEST_MS)

    def _return_free_pages(self) -> None:
        free = self._pragma("freelist_count")
        if free > max(_FEWEST_FREE_PAGES, _FREE_SHARE * self._pragma("page_count")):
            for _ in range(_FREE_PAGES):
                # This pragma frees one page a step, and a cursor takes one step only.
                self._connection.execute("PRAGMA incremental_vacuum(1)")
