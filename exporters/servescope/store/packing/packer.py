"""Turns recent rows into packs, once an owner has enough of them."""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from typing import Final

from servescope.store.packing.packing import PACK_ROWS, Row, rows_until_gap
from servescope.store.packing.recent import RecentRows
from servescope.store.packing.runs import PackedChunk, Packs
from servescope.store.records import StoreError
from servescope.store.schema import INCREMENTS, LATEST_MS

_logger = logging.getLogger(__name__)

# Increments are packed every hour: until then they need eight times the room, and slow those down who read many.
_BLOCKS_DUE: Final = 12

Owner = tuple[int, int]
"""A kind of rows, and the row of the target or deployment that has them."""


class Packer:
    """Knows which owners have rows enough for a pack, and packs them. Not thread safe."""

    def __init__(self, recent: RecentRows, packs: Packs) -> None:
        self._recent, self._packs = recent, packs
        self._is_looking = False
        self._rows_due: dict[Owner, int] = {}
        self._due: set[Owner] = set()

    def note(self, kind: int, owner: int) -> None:
        """Notice that an owner got a row."""
        if self._is_looking:
            self._note_due(kind, owner)

    def take_due(self) -> Owner | None:
        """An owner that has rows enough for a pack, which is noticed again when it has more; None when none has."""
        if not self._is_looking:
            self._is_looking = True
            for each in self._recent.counts():
                self._note_due(*each)
        return self._due.pop() if self._due else None

    def find_idle(self, before_ms: int) -> Owner | None:
        """An owner that got no row since an instant and has some; None when there is none."""
        for owner, count in self._recent.counts().items():
            span = self._recent.span(*owner) if count else None
            if span is not None and span[1] < before_ms:
                return owner
        return None

    def forget_others(self, owners: Container[Owner]) -> None:
        """Forget all but these."""
        self._rows_due = {owner: rows for owner, rows in self._rows_due.items() if owner in owners}

    def pack_oldest(self, kind: int, owner: int, *, idle: bool = False) -> None:
        """Turn the oldest recent rows into packs: those before the next pack, or those within one and it together.

        The newest block of an owner that is not `idle` stays as it is.
        """
        rows = self._recent.rows_to_pack(kind, owner)
        if kind == INCREMENTS and not idle:
            # A judge reads the newest block of every target, for which a whole pack would have to be unpacked.
            rows = rows[:-1]
        if rows:
            first = rows[0].time_ms
            around = self._packs.between(kind, owner, first, first)
            if around:
                packed = self._merge(kind, owner, rows, around[0])
            else:
                packed = rows_until_gap(rows, self._packs.next_start(kind, owner, first))
                self._packs.write(kind, owner, [*self._take_unfinished(kind, owner, packed), *packed])
            self._recent.delete(kind, owner, packed[-1].time_ms + 1, len(packed))
        self._recent.recount(kind, owner)
        self._rows_due[kind, owner] = _rows_due(kind)
        self.note(kind, owner)

    def _take_unfinished(self, kind: int, owner: int, rows: Sequence[Row]) -> list[Row]:
        """Take the rows of the pack before these out of it, where both are one pack: increments are packed early."""
        pack = self._packs.last(kind, owner, rows[0].time_ms) if kind == INCREMENTS else None
        if pack is None:
            return []
        former = self._packs.unpack(pack)
        together = [*former, *rows]
        if len(together) > PACK_ROWS or len(rows_until_gap(together, LATEST_MS + 1)) < len(together):
            return []
        self._packs.delete(pack.id)
        return former

    def _merge(self, kind: int, owner: int, rows: Sequence[Row], pack: PackedChunk) -> list[Row]:
        """Write a pack anew with the rows that lie within it; where both have an instant, the newer row counts."""
        packed = [row for row in rows if row.time_ms <= pack.end_ms]
        try:
            former = self._packs.unpack(pack)
        except StoreError as error:
            if error.damaged:
                raise
            # Nobody can read it; if it stayed, these rows would never be packed.
            _logger.error("%s; it is dropped, and newer rows of its time replace it", error)  # noqa: TRY400
            former = []
        merged = {row.time_ms: row for row in (*former, *packed)}
        self._packs.delete(pack.id)
        self._packs.write(kind, owner, [merged[time_ms] for time_ms in sorted(merged)])
        return packed

    def _note_due(self, kind: int, owner: int) -> None:
        """Remember whether the rows of an owner are enough for a pack.

        Each owner's first pack has its own length, so that not all are packed at once.
        """
        count = self._recent.counts()[kind, owner]
        due = _rows_due(kind)
        if count < due // 2:
            return
        if (kind, owner) not in self._rows_due:
            has_pack = self._packs.has_any(kind, owner)
            self._rows_due[kind, owner] = due if has_pack else due // 2 + owner * 37 % (due // 2)
        if count >= self._rows_due[kind, owner]:
            self._due.add((kind, owner))


def _rows_due(kind: int) -> int:
    return _BLOCKS_DUE if kind == INCREMENTS else PACK_ROWS
