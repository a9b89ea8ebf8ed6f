"""The paged KV cache of one engine: blocks shared by prefix, and the least recently used one evicted first.

A block's id identifies its content *and* everything before it (a chained hash, as engines compute), so that a prefix
is cached when each of its ids is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from servescope.errors import UsageError


@dataclass(slots=True)
class Lease:
    """The blocks one sequence holds.

    `shared` counts those at the front of its block ids that are in the cache for everyone; `private` those that are
    not full yet, or not computed.
    """

    block_ids: Sequence[int]
    shared: int = 0
    private: int = 0

    @property
    def blocks(self) -> int:
        """How many blocks the sequence holds."""
        return self.shared + self.private


class CacheChanges(NamedTuple):
    """Block ids that came into the cache, and that left it; no id is in both."""

    stored: tuple[int, ...]
    removed: tuple[int, ...]


class BlockCache:
    """A cache of `capacity` blocks, of `block_tokens` tokens each; for one thread at a time.

    A block is held by the sequences that use it, or idle in the order of its last use, or free. While `parents` is
    a dict, it has the block before each one that was stored since and is cached, None for the first of a sequence.
    """

    def __init__(self, *, capacity: int, block_tokens: int) -> None:
        if capacity < 1:
            raise UsageError(f"cache capacity is {capacity!r} blocks, expected 1 or more")
        if block_tokens < 1:
            raise UsageError(f"block size is {block_tokens!r} tokens, expected 1 or more")
        self.capacity = capacity
        self.block_tokens = block_tokens
        self._holders: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # the one used longest ago first
        self._private = 0
        self._leaked = 0
        self._changes: dict[int, bool] = {}  # block id -> is cached, where that changed
        self.parents: dict[int, int | None] | None = None

    @property
    def held(self) -> int:
        """Blocks that sequences hold now, and those that leaked."""
        return len(self._holders) + self._private + self._leaked

    @property
    def occupied(self) -> int:
        """Blocks that hold something, idle ones included; never above the capacity."""
        return self.held + len(self._idle)

    @property
    def usage(self) -> float:
        """Share of the capacity that is held now, 0 to 1; idle blocks can be had, so they do not count."""
        return self.held / self.capacity

    def cached_blocks(self) -> set[int]:
        """Ids of all blocks a new sequence could reuse."""
        return {*self._holders, *self._idle}

    def count_cached_prefix(self, block_ids: Iterable[int]) -> int:
        """How many blocks at the front of `block_ids` are cached."""
        holders, idle = self._holders, self._idle
        count = 0
        for block in block_ids:
            if block not in holders and block not in idle:
                break
            count += 1
        return count

    def has_room(self, block_ids: Sequence[int], *, shared: int, tokens: int) -> bool:
        """Whether a lease over the first `shared` ids, which are cached, could grow to `tokens` tokens; no effect."""
        holders = self._holders
        already_held = sum(1 for block in block_ids[:shared] if block in holders)
        return -(-tokens // self.block_tokens) - already_held <= self.capacity - self.held

    def open(self, block_ids: Sequence[int], *, reusable: int) -> Lease:
        """A lease for a sequence, holding the cached prefix among its first `reusable` block ids."""
        lease = Lease(block_ids)
        lease.shared = self.count_cached_prefix(block_ids[:reusable])
        for block in block_ids[: lease.shared]:
            self._hold(block)
        return lease

    def grow(self, lease: Lease, tokens: int) -> bool:
        """Give the lease room for `tokens` tokens in all, evicting idle blocks; False, without effect, if it cannot."""
        missing = -(-tokens // self.block_tokens) - lease.blocks
        if missing <= 0:
            return True
        if missing > self.capacity - self.held:
            return False
        self._evict(missing - (self.capacity - self.occupied))
        lease.private += missing
        self._private += missing
        return True

    def commit(self, lease: Lease, tokens: int) -> None:
        """Share the blocks that the first `tokens` tokens fill: their content is computed."""
        full = min(tokens // self.block_tokens, len(lease.block_ids))
        while lease.shared < full:
            block = lease.block_ids[lease.shared]
            if block not in self._holders and block not in self._idle:
                self._changes[block] = True
                if self.parents is not None:
                    self.parents[block] = lease.block_ids[lease.shared - 1] if lease.shared else None
            self._hold(block)
            lease.shared += 1
            lease.private -= 1
            self._private -= 1

    def close(self, lease: Lease) -> None:
        """Release all blocks; shared ones stay cached, and the end of the sequence is evicted first."""
        for block in reversed(lease.block_ids[: lease.shared]):
            users = self._holders[block] - 1
            if users:
                self._holders[block] = users
            else:
                del self._holders[block]
                self._idle[block] = None
        self._private -= lease.private
        lease.shared = lease.private = 0

    def idle_blocks(self) -> list[int]:
        """Ids of the blocks that are cached and that no sequence holds, the one used longest ago first."""
        return list(self._idle)

    def drop(self, block_ids: Iterable[int]) -> None:
        """Lose these blocks, which are idle."""
        for block in block_ids:
            del self._idle[block]
            self._forget(block)

    def take_changes(self) -> CacheChanges:
        """What changed since this was last called; a block that left and came back is among the stored."""
        changes, self._changes = self._changes, {}
        return CacheChanges(
            stored=tuple(block for block, cached in changes.items() if cached),
            removed=tuple(block for block, cached in changes.items() if not cached),
        )

    def leak(self, blocks: int) -> None:
        """Lose room for so many blocks, fewer when sequences hold what is left, evicting idle ones for it."""
        lost = min(blocks, self.capacity - self.held)
        self._evict(lost - (self.capacity - self.occupied))
        self._leaked += lost

    def _hold(self, block: int) -> None:
        self._idle.pop(block, None)
        self._holders[block] = self._holders.get(block, 0) + 1

    def _evict(self, count: int) -> None:
        for _ in range(count):
            block, _ = self._idle.popitem(last=False)
            self._forget(block)

    def _forget(self, block: int) -> None:
        self._changes[block] = False
        if self.parents is not None:
            self.parents.pop(block, None)
