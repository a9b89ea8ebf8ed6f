"""What all workers have cached, as far as their events report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from servescope.emulator.router.events import BlockEvent


class BlockIndex:
    """Which worker has which block cached, as far as their events report.

    A block's id covers all that is before it, so the radix tree over prompts needs no edges: walking it is looking
    up one id after the other. Workers are bits of a number, so that each look-up asks for all of them at once.
    """

    def __init__(self) -> None:
        self._bits: dict[str, int] = {}
        self._sequences: dict[str, int] = {}
        self._holders: dict[int, int] = {}

    def add_worker(self, worker: str) -> None:
        """Add a worker with an empty cache and no event yet."""
        taken, bit = set(self._bits.values()), 1
        while bit in taken:
            bit <<= 1
        self._bits[worker] = bit
        self._sequences[worker] = 0

    def remove_worker(self, worker: str) -> None:
        """Forget a worker and all it had cached."""
        bit = self._bits.pop(worker)
        del self._sequences[worker]
        for block in [block for block, holders in self._holders.items() if holders & bit]:
            self._forget(block, bit)

    def apply(self, worker: str, event: BlockEvent) -> int:
        """Follow one event; how many events are missing before it.

        One of a worker that is gone changes nothing, nor does one that is known already.
        """
        known = self._sequences.get(worker)
        if known is None or event.sequence <= known:
            return 0
        self.apply_again(worker, event)
        return event.sequence - known - 1

    def apply_again(self, worker: str, event: BlockEvent) -> None:
        """Apply an event that a worker sends again, known or not; all events after it must be applied too."""
        bit = self._bits[worker]
        self._sequences[worker] = event.sequence
        holders = self._holders
        for block in event.changes.removed:
            self._forget(block, bit)
        for block in event.changes.stored:
            holders[block] = holders.get(block, 0) | bit

    def replace(self, worker: str, block_ids: Iterable[int], *, sequence: int) -> None:
        """Replace what the worker has cached, as of the event of that number."""
        bit = self._bits[worker]
        for block in self.cached_blocks(worker):
            self._forget(block, bit)
        for block in block_ids:
            self._holders[block] = self._holders.get(block, 0) | bit
        self._sequences[worker] = sequence

    def sequence(self, worker: str) -> int:
        """Number of the last event of the worker that is known, 0 before the first."""
        return self._sequences[worker]

    @property
    def is_empty(self) -> bool:
        """Whether no worker has anything cached, as far as the index knows."""
        return not self._holders

    def count_overlaps(self, block_ids: Iterable[int], workers: Sequence[str]) -> list[int]:
        """For each worker, how many blocks at the front of `block_ids` it has cached."""
        left = {self._bits[worker]: position for position, worker in enumerate(workers)}
        together = sum(left)
        overlaps = [0] * len(workers)
        depth = 0
        for block in block_ids:
            still = self._holders.get(block, 0) & together
            if still != together:
                for bit in [bit for bit in left if not bit & still]:
                    overlaps[left.pop(bit)] = depth
                together = still
                if not together:
                    return overlaps
            depth += 1
        for position in left.values():
            overlaps[position] = depth
        return overlaps

    def cached_blocks(self, worker: str) -> set[int]:
        """Ids of all blocks the worker has cached, as far as the index knows."""
        bit = self._bits[worker]
        return {block for block, holders in self._holders.items() if holders & bit}

    def cached_by_worker(self) -> dict[str, list[int]]:
        """Ids of all blocks that each worker has cached, in one pass."""
        names = {bit: worker for worker, bit in self._bits.items()}
        cached: dict[str, list[int]] = {worker: [] for worker in self._bits}
        for block, holders in self._holders.items():
            while holders:
                bit = holders & -holders
                cached[names[bit]].append(block)
                holders ^= bit
        return cached

    def _forget(self, block: int, bit: int) -> None:
        holders = self._holders.get(block, 0) & ~bit
        if holders:
            self._holders[block] = holders
        else:
            self._holders.pop(block, None)
