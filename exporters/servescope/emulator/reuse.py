"""What a cache alone makes of prompts: how many of their blocks it has when they come one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from servescope.emulator.engine.cache import BlockCache

UNLIMITED: Final = 1 << 62
"""An unlimited capacity."""


class Reuse(NamedTuple):
    """How many blocks the prompts had in all, and how many of them were at the front of a prompt and cached.

    `reused` is of a plain least-recently-used order: a block counts as used when the prompt comes to it, so that of one
    prompt the front is evicted first. `reused_by_sequence` is of prompts held as a whole and released end first, as the
    engine does; of `too_long` prompts, which do not fit as a whole, nothing is kept then.
    """

    prompts: int
    blocks: int
    reused: int
    reused_by_sequence: int
    too_long: int

    @property
    def ratio(self) -> float:
        """Share of the blocks that were reused, 0 when there were none."""
        return self.reused / self.blocks if self.blocks else 0.0

    @property
    def ratio_by_sequence(self) -> float:
        """The same with prompts held as a whole."""
        return self.reused_by_sequence / self.blocks if self.blocks else 0.0


def measure_reuse(prompts: Iterable[Sequence[int]], *, capacity: int, block_tokens: int) -> Reuse:
    """Bring prompts, as their block ids, one after the other to an empty cache of `capacity` blocks.

    Each is served in no time, so that it holds nothing when the next one comes.
    """
    plain = BlockCache(capacity=capacity, block_tokens=block_tokens)
    whole = BlockCache(capacity=capacity, block_tokens=block_tokens)
    count = blocks = reused = reused_by_sequence = too_long = 0
    for block_ids in prompts:
        count += 1
        blocks += len(block_ids)
        reused += _use_blocks(plain, block_ids)
        found, fits = _use_sequence(whole, block_ids)
        reused_by_sequence += found
        too_long += not fits
    return Reuse(count, blocks, reused, reused_by_sequence, too_long)


def _use_blocks(cache: BlockCache, block_ids: Sequence[int]) -> int:
    """Use one block after the other; how many at the front were cached when the prompt came to them."""
    found, is_front = 0, True
    for block in block_ids:
        lease = cache.open((block,), reusable=1)
        is_front = is_front and lease.shared == 1
        found += is_front
        cache.grow(lease, cache.block_tokens)
        cache.commit(lease, cache.block_tokens)
        cache.close(lease)
    cache.take_changes()
    return found


def _use_sequence(cache: BlockCache, block_ids: Sequence[int]) -> tuple[int, bool]:
    """Hold all blocks at once; how many at the front were cached, and whether all had room."""
    tokens = len(block_ids) * cache.block_tokens
    lease = cache.open(block_ids, reusable=len(block_ids))
    found = lease.shared
    fits = cache.grow(lease, tokens)
    if fits:
        cache.commit(lease, tokens)
    cache.close(lease)
    cache.take_changes()
    return found, fits
