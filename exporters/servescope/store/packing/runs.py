"""Packed rows: packs, each some hundred rows of one target or deployment, in chunks of a few series."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.store.packing.codec import Matrix, decode_block, decode_stamps
from servescope.store.packing.layouts import SeriesLayouts
from servescope.store.packing.packing import FAILED, Row, divide_rows, make_shape, pack_rows
from servescope.store.packing.segments import KeySelection, Segment
from servescope.store.records import StoreError
from servescope.store.schema import CHUNK_BITS, LATEST_MS, RECENT, clamped_time


class PackedChunk(NamedTuple):
    """One pack, its chunks not read yet."""

    id: int
    start_ms: int
    end_ms: int
    shape: int
    stamps: bytes


class Packs:
    """The packs of all owners; those of one do not overlap. Not thread safe."""

    def __init__(self, connection: sqlite3.Connection, path: Path, layouts: SeriesLayouts) -> None:
        self._connection, self._path, self._layouts = connection, path, layouts

    # --- Reading ------------------------------------------------------------------------------------------------------

    def between(self, kind: int, owner: int, start_ms: int, end_ms: int) -> list[PackedChunk]:
        """The packs of an owner that have to do with the time from start to end, both included; ascending."""
        return self.between_each(kind, (owner,), start_ms, end_ms)[owner]

    def between_each(
        self, kind: int, owners: Sequence[int], start_ms: int, end_ms: int
    ) -> dict[int, list[PackedChunk]]:
        """By owner its packs that have to do with the time from start to end, both included; ascending."""
        rows = self._connection.execute(
            "SELECT owner, id, start_ms, end_ms, shape, stamps FROM runs "  # noqa: S608  placeholders
            f"WHERE kind = ? AND owner IN ({', '.join('?' * len(owners))}) AND start_ms <= ? AND end_ms >= ? "
            "ORDER BY owner, start_ms",
            (kind, *owners, clamped_time(end_ms), clamped_time(start_ms)),
        )
        found: dict[int, list[PackedChunk]] = {owner: [] for owner in owners}
        for owner, *pack in rows:
            found[owner].append(PackedChunk(*pack))
        return found

    def has_any(self, kind: int, owner: int) -> bool:
        """Whether an owner has a pack."""
        any_pack = "SELECT 1 FROM runs WHERE kind = ? AND owner = ? LIMIT 1"
        return self._connection.execute(any_pack, (kind, owner)).fetchone() is not None

    def last(self, kind: int, owner: int, until_ms: int) -> PackedChunk | None:
        """The last pack of an owner that does not begin after an instant; None when there is none."""
        # Packs of one owner do not overlap: the last to begin is the last to end.
        found = self._connection.execute(
            "SELECT id, start_ms, end_ms, shape, stamps FROM runs "
            "WHERE kind = ? AND owner = ? AND start_ms <= ? ORDER BY start_ms DESC LIMIT 1",
            (kind, owner, clamped_time(until_ms)),
        ).fetchone()
        return None if found is None else PackedChunk(*found)

    def last_ms(self, kind: int, owner: int, until_ms: int) -> int | None:
        """When the last row of an owner is from that is packed and not after an instant; None when there is none."""
        pack = self.last(kind, owner, until_ms)
        if pack is None or pack.end_ms <= until_ms:
            return None if pack is None else pack.end_ms
        times, _ = self._stamps(pack)
        return int(times[times <= until_ms][-1])

    def first_ms_after(self, kind: int, owner: int, time_ms: int) -> int | None:
        """When the first row of an owner is from that is packed and later than an instant; None when there is none."""
        times = (time for pack in self.between(kind, owner, time_ms + 1, LATEST_MS) for time in self._stamps(pack)[0])
        return next((int(time) for time in times if time > time_ms), None)

    def count_after(self, kind: int, owner: int, time_ms: int) -> int:
        """How many packed rows of an owner are later than an instant."""
        packs = self.between(kind, owner, time_ms + 1, LATEST_MS)
        return sum(int((self._stamps(pack)[0] > time_ms).sum()) for pack in packs)

    def next_start(self, kind: int, owner: int, after_ms: int) -> int:
        """When the first pack of an owner begins that begins later; beyond all time when there is none."""
        (start,) = self._connection.execute(
            "SELECT min(start_ms) FROM runs WHERE kind = ? AND owner = ? AND start_ms > ?", (kind, owner, after_ms)
        ).fetchone()
        return LATEST_MS + 1 if start is None else int(start)

    def ends(self, kind: int) -> list[int]:
        """The first and the last instant of all packs of a kind; nothing when there are none."""
        packed = self._connection.execute("SELECT min(start_ms), max(end_ms) FROM runs WHERE kind = ?", (kind,))
        return [end for end in packed.fetchone() if end is not None]

    def first_end(self) -> int | None:
        """When the pack of whatever owner ends that ends first; None when there is none."""
        return min((end for kind in RECENT if (end := self._first_end(kind)) is not None), default=None)

    def _first_end(self, kind: int) -> int | None:
        (end,) = self._connection.execute("SELECT min(end_ms) FROM runs WHERE kind = ?", (kind,)).fetchone()
        return None if end is None else int(end)

    def read(self, pack: PackedChunk, start_ms: int, end_ms: int, selection: KeySelection) -> Segment:
        """What is selected of a pack from start to end."""
        shape = self._layouts.shape(pack.shape)
        of_shape = selection.of_shape(pack.shape, shape)
        times, layouts = self._stamps(pack)
        blocks = [
            self._chunk(pack, number, (len(shape.chunks[number]), len(times)))[rows] for number, rows in of_shape.chunks
        ]
        values = np.concatenate(blocks)[of_shape.order] if blocks else np.empty((0, len(times)))
        for layout in np.unique(layouts).tolist():
            if layout == FAILED:
                values[:, layouts == FAILED] = np.nan
            elif (absent := shape.absent(layout)) is not None:
                values[np.ix_(absent[of_shape.places], layouts == layout)] = np.nan
        if pack.start_ms < start_ms or pack.end_ms > end_ms:
            inside = (times >= start_ms) & (times <= end_ms)
            times, values = times[inside], values[:, inside]
        return Segment(times, of_shape.keys, values)

    def unpack(self, pack: PackedChunk) -> list[Row]:
        """The rows of a pack, as they were appended."""
        shape = self._layouts.shape(pack.shape)
        times, layouts = self._stamps(pack)
        values = np.empty((len(shape.keys), len(times)))
        for number, places in enumerate(shape.chunks):
            values[places] = self._chunk(pack, number, (len(places), len(times)))
        keys = {layout: shape.layout_keys(layout) for layout in set(layouts.tolist()) if layout != FAILED}
        return [
            Row(time_ms, None, None)
            if layout == FAILED
            else Row(time_ms, keys[layout], values[shape.layouts[layout], column])
            for column, (time_ms, layout) in enumerate(zip(times.tolist(), layouts.tolist(), strict=True))
        ]

    def _stamps(self, pack: PackedChunk) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
        try:
            return decode_stamps(pack.stamps)
        except StoreError as error:
            raise StoreError(f"store {self._path}: pack {pack.id}: {error}") from error

    def _chunk(self, pack: PackedChunk, number: int, shape: tuple[int, int]) -> Matrix:
        found = self._connection.execute(
            "SELECT body FROM chunks WHERE id = ?", (pack.id << CHUNK_BITS | number,)
        ).fetchone()
        try:
            values = decode_block(found[0] if found else b"")
        except StoreError as error:
            raise StoreError(f"store {self._path}: pack {pack.id}, chunk {number}: {error}") from error
        if values.shape != shape:
            raise StoreError(
                f"store {self._path}: pack {pack.id}, chunk {number} holds {values.shape}, expected {shape}"
            )
        return values

    # --- Writing ------------------------------------------------------------------------------------------------------

    def write(self, kind: int, owner: int, rows: Sequence[Row]) -> None:
        """Write ascending rows of an owner as packs."""
        for part in divide_rows(rows):
            self._write(kind, owner, part)

    def _write(self, kind: int, owner: int, rows: Sequence[Row]) -> None:
        layouts = list({id(row.keys): row.keys for row in rows if row.keys is not None}.values())
        shape = make_shape(kind, layouts)
        packed = pack_rows(shape, rows, layouts)
        start_ms, end_ms = rows[0].time_ms, rows[-1].time_ms
        (pack_id,) = self._connection.execute(
            "INSERT INTO runs (kind, owner, start_ms, end_ms, count, shape, stamps) VALUES (?, ?, ?, ?, ?, ?, ?) "
            "RETURNING id",
            (kind, owner, start_ms, end_ms, len(rows), self._layouts.row_of_shape(shape, end_ms), packed.stamps),
        ).fetchone()
        self._connection.executemany(
            "INSERT INTO chunks VALUES (?, ?)",
            ((pack_id << CHUNK_BITS | number, body) for number, body in enumerate(packed.chunks)),
        )

    def delete_oldest(self, kinds: Sequence[int], rows: int, *, before_ms: int = LATEST_MS + 1) -> int:
        """Delete the packs of these kinds that end first, and before an instant, until `rows` are gone.

        At least one goes when there are any. Returns how many rows went.
        """
        if rows <= 0:
            return 0
        gone: int = 0
        query = "SELECT end_ms, id, count FROM runs WHERE kind = ? AND end_ms < ? ORDER BY end_ms LIMIT 100"
        oldest = [row for kind in kinds for row in self._connection.execute(query, (kind, before_ms)).fetchall()]
        for _, pack, count in sorted(oldest)[:100]:
            self.delete(pack)
            gone += int(count)
            if gone >= rows:
                break
        return gone

    def delete(self, pack: int) -> None:
        """Delete a pack."""
        first = pack << CHUNK_BITS
        self._connection.execute("DELETE FROM chunks WHERE id BETWEEN ? AND ?", (first, first + (1 << CHUNK_BITS) - 1))
        self._connection.execute("DELETE FROM runs WHERE id = ?", (pack,))
