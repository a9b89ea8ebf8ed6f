"""The increments of a block, computed from the scrapes that are stored."""

from __future__ import annotations

from collections.abc import Iterator

from servescope.contract.samples import Series, Window
from servescope.increments.accumulation import compute_increments, memory_ms
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from servescope.store.packing.rows import OwnedRows
from servescope.store.packing.segments import MOST_NUMBERS, KeySelection, Segment, assemble
from servescope.store.schema import INCREMENTS, SCRAPES
from servescope.store.tables.increments import ATTEMPTS
from servescope.store.tables.owners import Owners


class BlockIncrements:
    """Computes what counters gained in a block of a target. Not thread safe."""

    def __init__(self, owners: Owners, rows: OwnedRows) -> None:
        self._owners, self._rows = owners, rows

    def compute(self, target: int, block: int) -> Iterator[TargetIncrements]:
        """The increments of a block, and anew those of the next ones, which go on from its scrapes.

        Each is to be stored before the next is asked for. Raises TooLargeError.
        """
        status = self._owners.status(target)
        memory = memory_ms(status.scrape_interval_ms)
        later = self._attempts(target, block + BLOCK_MS + 1, block + BLOCK_MS + memory).times
        for each in (block, *(later - BLOCK_MS).tolist()):
            segments = self._rows.segments(SCRAPES, target, each + 1 - memory, each + BLOCK_MS, KeySelection(None))
            times, keys, values = assemble(segments, most=MOST_NUMBERS)
            window = Window(tuple(key for key in keys if isinstance(key, Series)), times, values)
            found = compute_increments(
                status.target_id, status.identity, window,
                start_ms=each, end_ms=each + BLOCK_MS, interval_ms=status.scrape_interval_ms,
            )  # fmt: skip
            scraped = int((found.tallies.scrapes + found.tallies.failed).sum())
            # What was computed while more scrapes were there is better than what is left of them.
            if scraped and scraped >= self._attempts(target, each + BLOCK_MS, each + BLOCK_MS).values.sum():
                yield found

    def _attempts(self, target: int, start_ms: int, end_ms: int) -> Segment:
        """How often a target was scraped in the blocks that end from start to end, as far as they are stored."""
        segments = self._rows.segments(INCREMENTS, target, start_ms, end_ms, KeySelection(ATTEMPTS))
        return assemble(segments, most=MOST_NUMBERS)
