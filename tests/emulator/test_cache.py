"""The paged KV cache."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from servescope.emulator.engine.cache import BlockCache, Lease
from servescope.errors import UsageError
from tests.support.drawing import examples


def compute(cache: BlockCache, *block_ids: int) -> None:
    """Let one sequence compute full blocks and end."""
    lease = cache.open(block_ids, reusable=len(block_ids))
    assert cache.grow(lease, len(block_ids) * cache.block_tokens)
    cache.commit(lease, len(block_ids) * cache.block_tokens)
    cache.close(lease)


def test_prefix_is_reused_after_its_sequence_ended() -> None:
    """What one sequence computed, the next finds; up to the first block that differs."""
    cache = BlockCache(capacity=10, block_tokens=4)
    compute(cache, 1, 2, 3)
    assert cache.count_cached_prefix([1, 2, 3, 4]) == 3
    assert cache.count_cached_prefix([1, 9, 3]) == 1
    assert cache.count_cached_prefix([9, 2, 3]) == 0


def test_blocks_in_use_are_not_evicted() -> None:
    """A lease cannot grow into what another holds, and nothing changes when it tries."""
    cache = BlockCache(capacity=4, block_tokens=4)
    held = cache.open([1, 2, 3], reusable=0)
    assert cache.grow(held, 12)
    other = cache.open([7, 8], reusable=0)
    assert not cache.grow(other, 8)
    assert (cache.held, cache.occupied, other.blocks) == (3, 3, 0)
    assert cache.grow(other, 4)


def test_least_recently_used_is_evicted_first_and_prefixes_last() -> None:
    """Eviction takes the sequence unused for longest, and of one sequence its end before its beginning."""
    cache = BlockCache(capacity=4, block_tokens=4)
    compute(cache, 1, 2)
    compute(cache, 3, 4)
    compute(cache, 1, 2)
    compute(cache, 5)
    assert cache.cached_blocks() == {1, 2, 3, 5}
    compute(cache, 6)
    assert cache.cached_blocks() == {1, 2, 5, 6}
    compute(cache, 7)
    assert cache.cached_blocks() == {1, 5, 6, 7}


def test_shared_blocks_count_once() -> None:
    """Two sequences over the same prefix hold its blocks once."""
    cache = BlockCache(capacity=10, block_tokens=4)
    compute(cache, 1, 2)
    first, second = cache.open([1, 2], reusable=2), cache.open([1, 2], reusable=2)
    assert cache.held == 2
    cache.close(first)
    assert cache.held == 2
    cache.close(second)
    assert (cache.held, cache.occupied) == (0, 2)


def test_changes_list_what_came_and_went() -> None:
    """Changes list blocks in the order they were computed; of one that came and went, the last holds."""
    cache = BlockCache(capacity=2, block_tokens=4)
    compute(cache, 1, 2)
    assert cache.take_changes() == ((1, 2), ())
    compute(cache, 3)
    compute(cache, 1, 2)
    assert cache.take_changes() == ((2,), (3,))
    assert cache.take_changes() == ((), ())


@pytest.mark.parametrize(("capacity", "block_tokens"), [(0, 16), (10, 0)])
def test_sizes_must_be_positive(capacity: int, block_tokens: int) -> None:
    """A cache without blocks, or with empty ones, is refused."""
    with pytest.raises(UsageError, match="expected 1 or more"):
        BlockCache(capacity=capacity, block_tokens=block_tokens)


class CacheLife(RuleBasedStateMachine):
    """Whatever sequences do, blocks are neither lost nor made up."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = BlockCache(capacity=12, block_tokens=4)
        self.leases: list[tuple[Lease, int]] = []  # lease and the tokens it has room for
        self.follower: set[int] = set()  # what somebody knows who only hears of changes

    @rule(stem=st.integers(0, 3), branch=st.integers(0, 2), length=st.integers(1, 10))
    def open(self, stem: int, branch: int, length: int) -> None:
        shared = [stem * 100 + index for index in range(min(length, 3))]
        own = [stem * 100 + branch * 10 + 10 + index for index in range(3, length)]
        lease = self.cache.open(tuple(shared + own), reusable=length - 1)
        self.leases.append((lease, lease.shared * 4))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), tokens=st.integers(1, 20))
    def grow_and_commit(self, data: st.DataObject, tokens: int) -> None:
        position = data.draw(st.integers(0, len(self.leases) - 1))
        lease, room = self.leases[position]
        if self.cache.grow(lease, room + tokens):
            self.leases[position] = (lease, room + tokens)
            self.cache.commit(lease, room + tokens)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        lease, _ = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        self.cache.close(lease)

    @rule()
    def follow_changes(self) -> None:
        changes = self.cache.take_changes()
        self.follower = (self.follower - set(changes.removed)) | set(changes.stored)
        assert self.follower == self.cache.cached_blocks()

    @invariant()
    def never_above_capacity(self) -> None:
        assert 0 <= self.cache.held <= self.cache.occupied <= self.cache.capacity
        assert 0.0 <= self.cache.usage <= 1.0

    @invariant()
    def held_is_what_leases_hold(self) -> None:
        shared = {block for lease, _ in self.leases for block in lease.block_ids[: lease.shared]}
        assert self.cache.held == len(shared) + sum(lease.private for lease, _ in self.leases)
        assert shared <= self.cache.cached_blocks()


TestCacheLife = CacheLife.TestCase
TestCacheLife.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
