"""What a router knows to be in flight on one worker: its own requests, and those its peers have shared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from servescope.emulator.router.configuration import WorkerCapacity


class InFlight(NamedTuple):
    """What a router has in flight on one worker: requests, and the blocks of their prompts."""

    requests: int
    blocks: int


class Prompt(NamedTuple):
    """The blocks of one prompt: the ids of the full ones, as far as they are known, and how many there are in all."""

    block_ids: Sequence[int]
    blocks: int


class WorkerLoad:
    """The load of one worker. A block that several prompts share counts once, as it is in its cache once."""

    __slots__ = ("_peers", "_peers_blocks", "_peers_requests", "_private", "_requests", "_shared", "capacity", "paused")

    def __init__(self, capacity: WorkerCapacity) -> None:
        self.capacity = capacity
        self.paused = False
        self._requests = 0
        self._private = 0
        self._shared: dict[int, int] = {}  # block id -> prompts in flight that have it
        self._peers: dict[str, InFlight] = {}
        self._peers_requests = 0
        self._peers_blocks = 0

    def begin(self, prompt: Prompt) -> None:
        """Add a request that was placed there."""
        self._requests += 1
        self._private += prompt.blocks - len(prompt.block_ids)
        shared = self._shared
        for block in prompt.block_ids:
            shared[block] = shared.get(block, 0) + 1

    def end(self, prompt: Prompt) -> None:
        """Remove a request that has ended."""
        self._requests -= 1
        self._private -= prompt.blocks - len(prompt.block_ids)
        shared = self._shared
        for block in prompt.block_ids:
            users = shared[block] - 1
            if users:
                shared[block] = users
            else:
                del shared[block]

    def note_peer(self, peer: str, in_flight: InFlight) -> None:
        """Record what a peer has there; it does not name the blocks, so they count as others than the router's."""
        self._peers[peer] = in_flight
        self._peers_requests = sum(each.requests for each in self._peers.values())
        self._peers_blocks = sum(each.blocks for each in self._peers.values())

    @property
    def in_flight(self) -> InFlight:
        """What the router itself has there."""
        return InFlight(self._requests, len(self._shared) + self._private)

    @property
    def active_blocks(self) -> int:
        """Prompt blocks of all requests there."""
        return len(self._shared) + self._private + self._peers_blocks

    def count_others(self, block_ids: Iterable[int]) -> int:
        """Active blocks that are not those of a prompt: what it shares with what is there makes it no busier."""
        shared = self._shared
        own = 0
        # An id covers all before it: what two prompts share is at their front.
        for block in block_ids:
            if block not in shared:
                break
            own += 1
        return self.active_blocks - own

    def is_saturated(self, ratio: float) -> bool:
        """Whether its requests or blocks have reached `ratio` of what it can run at once."""
        return (
            self._requests + self._peers_requests >= ratio * self.capacity.requests
            or self.active_blocks >= ratio * self.capacity.blocks
        )
