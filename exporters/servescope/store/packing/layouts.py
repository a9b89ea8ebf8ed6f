"""What the numbers of a row, or of a pack, are: lists of series or figure keys, each stored once."""

from __future__ import annotations

import sqlite3
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from servescope.contract.samples import Series
from servescope.store.packing.packing import Keys, Shape, parse_keys
from servescope.store.records import StoreError
from servescope.store.schema import checked_time, decode, digest, write_text

# A layout in use is marked so once an hour, which is what its retention is counted from.
_MARK_MS = 3_600_000
# Layouts and shapes cached at most, and their keys: a key with its labels needs up to a kilobyte.
_LAYOUTS_HELD = 256
_KEYS_HELD = 100_000

K = TypeVar("K", Keys, Shape)
_Written = tuple[tuple[Series, ...], bytes]
"""Series whose text was written, and its digest."""


class SeriesLayouts:
    """The layouts of rows and the shapes of packs, by their rows in the file. Not thread safe."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path
        self._of_target: dict[str, _Written] = {}
        self._of_block: _Written | None = None
        # By digest: the row, and when it was last marked.
        self._marked: dict[bytes, tuple[int, int]] = {}
        self._keys: OrderedDict[int, Keys] = OrderedDict()
        self._shapes: OrderedDict[int, Shape] = OrderedDict()

    def keys(self, row: int) -> Keys:
        """The keys of a layout."""
        return _held(self._keys, row, lambda: self._read("layouts", row, parse_keys))

    def shape(self, row: int) -> Shape:
        """A shape."""
        return _held(self._shapes, row, lambda: self._read("shapes", row, Shape.parse))

    def row_of_series(self, target_id: str, series: tuple[Series, ...], time_ms: int) -> int:
        """The row of the layout of a target's scrape, made when it is new."""
        self._of_target[target_id], row = self._row_after(self._of_target.get(target_id), series, time_ms)
        return row

    def row_of_block(self, series: tuple[Series, ...], end_ms: int) -> int:
        """The row of the layout of a block's increments, made when it is new."""
        self._of_block, row = self._row_after(self._of_block, series, end_ms)
        return row

    def row_of_figures(self, keys: list[str], time_ms: int) -> int:
        """The row of the layout of a deployment's figures, made when it is new."""
        return self._row_of_text(write_text(keys), time_ms)

    def row_of_shape(self, shape: Shape, end_ms: int) -> int:
        """The row of the shape of a pack that ends then, made when it is new."""
        return self._row("shapes", shape.text(), end_ms)

    def forget(self, target_ids: Iterable[str]) -> None:
        """Forget the layouts of targets that are no longer listed."""
        for target_id in target_ids:
            self._of_target.pop(target_id, None)

    def forget_after(self, time_ms: int) -> None:
        """Have none be last used later than an instant."""
        for table in ("layouts", "shapes"):
            self._connection.execute(f"UPDATE {table} SET used_ms = ? WHERE used_ms > ?", (time_ms, time_ms))  # noqa: S608  constants

    def delete_spent(self, oldest_row_ms: int, oldest_run_end_ms: int) -> None:
        """Delete the layouts that were last used before the oldest recent row, the shapes before the oldest pack."""
        # No pack ends after the last use of its shape; a row may be of up to a mark after that of its layout.
        self._connection.execute("DELETE FROM shapes WHERE used_ms < ?", (oldest_run_end_ms,))
        before_ms = oldest_row_ms - _MARK_MS
        if self._connection.execute("DELETE FROM layouts WHERE used_ms < ?", (before_ms,)).rowcount:
            self._marked = {name: known for name, known in self._marked.items() if known[1] >= before_ms}

    def _row_after(self, former: _Written | None, series: tuple[Series, ...], time_ms: int) -> tuple[_Written, int]:
        """The row of series, whose text is not written anew where they are those of before."""
        if former is None or former[0] is not series:
            text = write_text(series)
            return (series, digest(text)), self._row_of_text(text, time_ms)
        known = self._marked.get(former[1])
        if known is not None and time_ms - known[1] < _MARK_MS:
            return former, known[0]
        return former, self._row_of_text(write_text(series), time_ms)

    def _row_of_text(self, keys: str, time_ms: int) -> int:
        name = digest(keys)
        known = self._marked.get(name)
        if known is None or time_ms - known[1] >= _MARK_MS:
            known = self._marked[name] = (self._row("layouts", keys, checked_time(time_ms)), time_ms)
        return known[0]

    def _row(self, table: str, keys: str, used_ms: int) -> int:
        name = digest(keys)
        row = self._connection.execute(
            f"UPDATE {table} SET used_ms = max(used_ms, ?) WHERE digest = ? RETURNING id",  # noqa: S608  constants
            (used_ms, name),
        ).fetchone()
        if row is None:
            row = self._connection.execute(
                f"INSERT INTO {table} (digest, used_ms, keys) VALUES (?, ?, ?) RETURNING id",  # noqa: S608  constants
                (name, used_ms, zlib.compress(keys.encode(), 6)),
            ).fetchone()
        return int(row[0])

    def _read(self, table: str, row: int, make: Callable[[Any], K]) -> K:
        found = self._connection.execute(f"SELECT keys FROM {table} WHERE id = ?", (row,)).fetchone()  # noqa: S608  constants
        what = f"row {row} of {table}"
        try:
            text = zlib.decompress(found[0]).decode()
        except (TypeError, ValueError, zlib.error) as error:
            raise StoreError(f"store {self._path}: {what} is damaged: {error}") from error
        return decode(text, make, self._path, what)


def _held(held: OrderedDict[int, K], row: int, read: Callable[[], K]) -> K:
    """What is cached for a row, else read; row numbers are never used twice, and the oldest are evicted."""
    if row not in held:
        held[row] = read()
        while len(held) > 1 and (len(held) > _LAYOUTS_HELD or sum(map(_count_keys, held.values())) > _KEYS_HELD):
            held.popitem(last=False)
    return held[row]


def _count_keys(known: Keys | Shape) -> int:
    return len(known.keys if isinstance(known, Shape) else known)
