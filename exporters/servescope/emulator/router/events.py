"""What workers publish of their caches: numbered events, and the answers to a router that has missed some."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from servescope.emulator.engine.cache import CacheChanges

KEPT_EVENTS = 1000
"""How many of its last events a worker can send again."""


class BlockEvent(NamedTuple):
    """What changed in one worker's cache; `sequence` counts that worker's events from 1, without gaps."""

    sequence: int
    changes: CacheChanges


class Inventory(NamedTuple):
    """All that a worker has cached, and the sequence number of the last event it has published."""

    sequence: int
    block_ids: Collection[int]


class WorkerLink(Protocol):
    """How a router asks a worker for what it missed."""

    @property
    def stream(self) -> str:
        """Names the process of the worker whose events these are: their numbers belong to it alone."""

    def events_after(self, sequence: int) -> list[BlockEvent] | None:
        """The events after that number, in order; None when the worker no longer has all of them."""

    def inventory(self) -> Inventory:
        """What the worker has cached now."""


class EventPublisher:
    """Numbers the changes of one worker's cache, and keeps the last `kept` events for a router that missed some.

    `cached_blocks` gives the ids of all blocks that are cached now. A worker's process has one of these, under a
    `stream` of its own: when it dies the next one begins with number 1 again.
    """

    def __init__(self, stream: str, cached_blocks: Callable[[], Collection[int]], *, kept: int = KEPT_EVENTS) -> None:
        self.stream = stream
        self.sequence = 0
        self._cached_blocks = cached_blocks
        self._kept: deque[BlockEvent] = deque(maxlen=kept)

    def publish(self, changes: CacheChanges) -> BlockEvent:
        """The next event, to be sent to the routers."""
        self.sequence += 1
        event = BlockEvent(self.sequence, changes)
        self._kept.append(event)
        return event

    def events_after(self, sequence: int) -> list[BlockEvent] | None:
        """The events after that number, in order; None when they are no longer kept, or never were published."""
        missing = self.sequence - sequence
        if not 0 <= missing <= len(self._kept):
            return None
        return list(self._kept)[len(self._kept) - missing :]

    def inventory(self) -> Inventory:
        """What the worker has cached now."""
        return Inventory(self.sequence, self._cached_blocks())
