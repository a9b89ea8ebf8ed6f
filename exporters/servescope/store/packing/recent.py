"""Rows as they came, which wait to be packed."""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np

from servescope.store.packing.layouts import SeriesLayouts
from servescope.store.packing.packing import PACK_ROWS, Keys, Row
from servescope.store.packing.segments import KeySelection, Segment
from servescope.store.records import StoreError
from servescope.store.schema import LATEST_MS, RECENT, TIME_BITS, checked_time, clamped_time

_logger = logging.getLogger(__name__)

# The keys of all layouts that are packed at once, at most; what is beyond waits for the next time.
_KEYS_PACKED = 50_000


class RecentRows:
    """The rows of all owners that are not packed yet. Not thread safe."""

    def __init__(self, connection: sqlite3.Connection, path: Path, layouts: SeriesLayouts) -> None:
        self._connection, self._path, self._layouts = connection, path, layouts
        # By kind and owner, about: what counts is whether there are enough of them for a pack.
        self._counts: Counter[tuple[int, int]] | None = None

    # --- Writing ------------------------------------------------------------------------------------------------------

    def append(self, kind: int, owner: int, time_ms: int, layout: int | None, body: bytes | None) -> None:
        """Add a row; one of the same time is replaced."""
        self._connection.execute(
            f"INSERT OR REPLACE INTO {RECENT[kind]} VALUES (?, ?, ?)",  # noqa: S608  constants
            (owner << TIME_BITS | checked_time(time_ms), layout, body),
        )
        if self._counts is not None:
            self._counts[kind, owner] += 1

    def delete(self, kind: int, owner: int, before_ms: int, rows: int) -> int:
        """Delete the oldest rows of an owner, at most so many, that are before an instant; returns how many went."""
        first = owner << TIME_BITS
        table = RECENT[kind]
        gone = self._connection.execute(
            f"DELETE FROM {table} WHERE id IN "  # noqa: S608  constants
            f"(SELECT id FROM {table} WHERE id >= ? AND id < ? ORDER BY id LIMIT ?)",
            (first, first + clamped_time(before_ms), max(rows, 0)),
        ).rowcount
        if gone and self._counts is not None:
            self._counts[kind, owner] -= gone
        return gone

    def delete_after(self, kind: int, owner: int, time_ms: int) -> int:
        """Delete the rows of an owner that are later than an instant; returns how many went."""
        first = owner << TIME_BITS
        gone = self._connection.execute(
            f"DELETE FROM {RECENT[kind]} WHERE id > ? AND id <= ?",  # noqa: S608  constants
            (first + clamped_time(time_ms), first + LATEST_MS),
        ).rowcount
        if gone and self._counts is not None:
            self._counts[kind, owner] -= gone
        return gone

    def delete_oldest(self, kinds: Collection[int]) -> int:
        """Delete the oldest tenth of the time that the rows of these kinds cover; returns how many went."""
        owners = [owner for owner in self.counts() if owner[0] in kinds]
        spans = [span for span in (self.span(*owner) for owner in owners) if span is not None]
        if not spans:
            return 0
        first, last = min(start for start, _ in spans), max(end for _, end in spans)
        return sum(self.delete(*owner, first + (last - first) // 10 + 1, 1 << 40) for owner in owners)

    # --- How many there are -------------------------------------------------------------------------------------------

    def counts(self) -> Counter[tuple[int, int]]:
        """About how many rows each owner has, by kind and owner; counted once, and kept from then on."""
        if self._counts is None:
            self._counts = Counter()
            for kind, table in RECENT.items():
                counted = f"SELECT id >> {TIME_BITS}, count(*) FROM {table} GROUP BY 1"  # noqa: S608  constants
                for owner, count in self._connection.execute(counted).fetchall():
                    self._counts[kind, owner] = count
        return self._counts

    def count_after(self, kind: int, owner: int, time_ms: int) -> int:
        """How many rows of an owner are later than an instant."""
        first = owner << TIME_BITS
        (count,) = self._connection.execute(
            f"SELECT count(*) FROM {RECENT[kind]} WHERE id > ? AND id <= ?",  # noqa: S608  constants
            (first + clamped_time(time_ms), first + LATEST_MS),
        ).fetchone()
        return int(count)

    def recount(self, kind: int, owner: int) -> None:
        """Count the rows of one owner anew."""
        counted = self._connection.execute(
            f"SELECT count(*) FROM {RECENT[kind]} WHERE id BETWEEN ? AND ?",  # noqa: S608  constants
            (owner << TIME_BITS, owner << TIME_BITS | LATEST_MS),
        ).fetchone()[0]
        self.counts()[kind, owner] = counted

    def forget_empty(self) -> None:
        """Count those no more that have no rows, such as targets that left."""
        self._counts = Counter({owner: count for owner, count in self.counts().items() if count > 0})

    # --- Reading ------------------------------------------------------------------------------------------------------

    def span(self, kind: int, owner: int) -> tuple[int, int] | None:
        """When the first and the last row of an owner are from; None when it has none."""
        first = owner << TIME_BITS
        ends = [
            self._connection.execute(
                f"SELECT {end}(id) FROM {RECENT[kind]} WHERE id BETWEEN ? AND ?",  # noqa: S608  constants
                (first, first + LATEST_MS),
            ).fetchone()[0]
            for end in ("min", "max")
        ]
        return None if ends[0] is None else (ends[0] - first, ends[1] - first)

    def last_ms(self, kind: int, owner: int, until_ms: int) -> int | None:
        """When the last row of an owner is from that is not after an instant; None when there is none."""
        first = owner << TIME_BITS
        (last,) = self._connection.execute(
            f"SELECT max(id) FROM {RECENT[kind]} WHERE id BETWEEN ? AND ?",  # noqa: S608  constants
            (first, first + clamped_time(until_ms)),
        ).fetchone()
        return None if last is None else int(last) - first

    def first_ms_after(self, kind: int, owner: int, time_ms: int) -> int | None:
        """When the first row of an owner is from that is later than an instant; None when there is none."""
        first = owner << TIME_BITS
        (found,) = self._connection.execute(
            f"SELECT min(id) FROM {RECENT[kind]} WHERE id > ? AND id <= ?",  # noqa: S608  constants
            (first + clamped_time(time_ms), first + LATEST_MS),
        ).fetchone()
        return None if found is None else int(found) - first

    def first_ms(self) -> int | None:
        """When the oldest row of whatever owner is from; None when there is none."""
        spans = [self.span(*owner) for owner in self.counts()]
        return min((span[0] for span in spans if span is not None), default=None)

    def read_each(
        self, kind: int, owners: Sequence[int], start_ms: int, end_ms: int, selection: KeySelection
    ) -> dict[int, list[Segment]]:
        """By owner what is selected of its rows from start to end, both included."""
        found: dict[int, list[Segment]] = {owner: [] for owner in owners}
        # Owners share their layouts: what is read of these is read at once.
        for layout, group in groupby(self._stored_of(kind, owners, start_ms, end_ms), key=lambda row: row[1]):
            stretch = list(group)
            ids = np.array([key for key, _, _ in stretch], dtype=np.int64)
            times, values = ids & LATEST_MS, np.empty((0, len(stretch)))
            chosen: Keys = ()
            if layout is not None:
                keys = self._layouts.keys(layout)
                places, chosen = selection.of_layout(layout, keys)
                numbers = b"".join(self._sound(key & LATEST_MS, body, keys) for key, _, body in stretch)
                values = np.frombuffer(numbers, "<f8").reshape(len(stretch), len(keys))[:, places].T
            of_rows = ids >> TIME_BITS
            begins = [0, *(np.flatnonzero(of_rows[1:] != of_rows[:-1]) + 1).tolist(), len(stretch)]
            for first, end in pairwise(begins):
                found[int(of_rows[first])].append(Segment(times[first:end], chosen, values[:, first:end]))
        return found

    def rows(self, kind: int, owner: int, start_ms: int, end_ms: int) -> Iterator[Row]:
        """The rows of an owner, ascending; those of one layout share their keys."""
        layouts: dict[int, Keys] = {}
        for key, layout, body in self._stored(kind, owner, start_ms, end_ms):
            yield self._row(key - (owner << TIME_BITS), layout, body, layouts)

    def rows_to_pack(self, kind: int, owner: int) -> list[Row]:
        """The oldest rows, at most as many as make a pack, and fewer where each shows other series.

        Damaged ones would keep the others from ever being packed, and are dropped.
        """
        rows: list[Row] = []
        layouts: dict[int, Keys] = {}
        damaged: list[tuple[int]] = []
        for key, layout, body in self._stored(kind, owner, 0, LATEST_MS, PACK_ROWS):
            if rows and layout not in layouts and sum(map(len, layouts.values())) > _KEYS_PACKED:
                break
            try:
                rows.append(self._row(key - (owner << TIME_BITS), layout, body, layouts))
            except StoreError as error:
                if not damaged:
                    _logger.error("%s; it is dropped, and others that are damaged as well", error)  # noqa: TRY400
                damaged.append((key,))
        self._connection.executemany(f"DELETE FROM {RECENT[kind]} WHERE id = ?", damaged)  # noqa: S608  constants
        return rows

    def _row(self, time_ms: int, layout: int | None, body: bytes, layouts: dict[int, Keys]) -> Row:
        if layout is None:
            return Row(time_ms, None, None)
        if layout not in layouts:
            layouts[layout] = self._layouts.keys(layout)
        return Row(time_ms, layouts[layout], np.frombuffer(self._sound(time_ms, body, layouts[layout]), "<f8"))

    def _sound(self, time_ms: int, body: bytes | None, keys: Keys) -> bytes:
        if body is None or len(body) != 8 * len(keys):
            raise StoreError(
                f"store {self._path}: the row of time {time_ms} is damaged: it has not {len(keys)} numbers"
            )
        return body

    def _stored_of(
        self, kind: int, owners: Sequence[int], start_ms: int, end_ms: int
    ) -> list[tuple[int, int | None, bytes]]:
        if end_ms < 0 or start_ms > LATEST_MS:
            return []
        return self._connection.execute(
            f"WITH owners (first) AS (VALUES {', '.join(['(?)'] * len(owners))}) "  # noqa: S608  constants
            f"SELECT id, layout, body FROM owners CROSS JOIN {RECENT[kind]} "
            "WHERE id BETWEEN first + ? AND first + ? ORDER BY id",
            (*(owner << TIME_BITS for owner in owners), clamped_time(start_ms), clamped_time(end_ms)),
        ).fetchall()

    def _stored(
        self, kind: int, owner: int, start_ms: int, end_ms: int, most: int = -1
    ) -> list[tuple[int, int | None, bytes]]:
        first = owner << TIME_BITS
        if end_ms < 0 or start_ms > LATEST_MS:
            return []
        return self._connection.execute(
            f"SELECT id, layout, body FROM {RECENT[kind]} WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?",  # noqa: S608
            (first + clamped_time(start_ms), first + clamped_time(end_ms), most),
        ).fetchall()
