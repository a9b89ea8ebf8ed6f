"""The rows of an owner wherever they are: packed into packs, or recent ones, which win."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from servescope.store.packing.packing import Row
from servescope.store.packing.recent import RecentRows
from servescope.store.packing.runs import Packs
from servescope.store.packing.segments import KeySelection, Segment
from servescope.store.records import StoreError
from servescope.store.schema import LATEST_MS

_logger = logging.getLogger(__name__)

_AT_ONCE: Final = 64
"""Owners that are looked up together: their recent rows are all in memory then."""


class OwnedRows:
    """Packs and recent rows together. Not thread safe."""

    def __init__(self, packs: Packs, recent: RecentRows) -> None:
        self._packs, self._recent = packs, recent

    def segments(self, kind: int, owner: int, start_ms: int, end_ms: int, selection: KeySelection) -> Iterator[Segment]:
        """What is stored of an owner from start to end, both included: later ones win."""
        for _, segments in self.segments_of(kind, (owner,), start_ms, end_ms, selection):
            yield from segments

    def segments_of(
        self, kind: int, owners: Sequence[int], start_ms: int, end_ms: int, selection: KeySelection
    ) -> Iterator[tuple[int, Iterator[Segment]]]:
        """`segments` of owners in their order, some of which are looked up together."""
        for first in range(0, len(owners), _AT_ONCE):
            some = owners[first : first + _AT_ONCE]
            packs = self._packs.between_each(kind, some, start_ms, end_ms)
            recent = self._recent.read_each(kind, some, start_ms, end_ms, selection)
            for owner in some:
                packed = (self._packs.read(pack, start_ms, end_ms, selection) for pack in packs[owner])
                yield owner, chain(packed, recent[owner])

    def between(self, kind: int, owner: int, start_ms: int, end_ms: int) -> list[Row]:
        """The rows of an owner from start to end, both included: later ones win."""
        packs = self._packs.between(kind, owner, start_ms, end_ms)
        packed = [row for pack in packs for row in self._packs.unpack(pack) if start_ms <= row.time_ms <= end_ms]
        return [*packed, *self._recent.rows(kind, owner, start_ms, end_ms)]

    def last(self, kind: int, owner: int, until_ms: int) -> Row | None:
        """The last row of an owner that is not after an instant; None when there is none."""
        last_ms = self.last_ms(kind, owner, until_ms)
        return None if last_ms is None else self.between(kind, owner, last_ms, last_ms)[-1]

    def last_ms(self, kind: int, owner: int, until_ms: int) -> int | None:
        """When the last row of an owner is from that is not after an instant; None when there is none."""
        lasts = (self._recent.last_ms(kind, owner, until_ms), self._packs.last_ms(kind, owner, until_ms))
        return max((last for last in lasts if last is not None), default=None)

    def ends(self, kind: int, owners: Iterable[int], until_ms: int = LATEST_MS) -> list[int]:
        """Instants among which are the first and the last of a kind, of those not after an instant."""
        ends, owned = self._packs.ends(kind), list(owners)
        for owner in owned:
            ends += self._recent.span(kind, owner) or ()
        if max(ends, default=0) > until_ms:
            lasts = [self.last_ms(kind, owner, until_ms) for owner in owned]
            ends = [*(end for end in ends if end <= until_ms), *(last for last in lasts if last is not None)]
        return ends

    def first_ms_after(self, kind: int, owner: int, time_ms: int) -> int | None:
        """When the first row of an owner is from that is later than an instant; None when there is none."""
        firsts = (part.first_ms_after(kind, owner, time_ms) for part in (self._recent, self._packs))
        return min((first for first in firsts if first is not None), default=None)

    def count_after(self, kind: int, owner: int, time_ms: int) -> int:
        """How many rows of an owner are later than an instant."""
        return self._recent.count_after(kind, owner, time_ms) + self._packs.count_after(kind, owner, time_ms)

    def delete_after(self, kind: int, owner: int, time_ms: int) -> int:
        """Delete the rows of an owner that are later than an instant, also from packs; returns how many went."""
        gone = self._recent.delete_after(kind, owner, time_ms)
        for pack in self._packs.between(kind, owner, time_ms + 1, LATEST_MS):
            try:
                rows = self._packs.unpack(pack)
            except StoreError as error:
                if error.damaged:
                    raise
                # It cannot be divided, and would be read as soon as its time has come.
                _logger.error("%s; it is dropped, as it has rows later than now", error)  # noqa: TRY400
                rows = []
            kept = [row for row in rows if row.time_ms <= time_ms]
            self._packs.delete(pack.id)
            if kept:
                self._packs.write(kind, owner, kept)
            gone += len(rows) - len(kept)
        return gone
