"""Which blocks of which targets are to be computed: those that a target's scrapes have left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from servescope.increments.accumulation import block_of
from servescope.increments.blocks import BLOCK_MS
from servescope.store.schema import LATEST_MS


class OpenBlocks:
    """The block each target is in, and those that are due. Not thread safe.

    A block closes with the first scrape of its target in another one: scrapes may come in any order. `last_before` is
    the time of a target's last stored scrape before an instant, with which a store that was opened again goes on.
    """

    def __init__(self, last_before: Callable[[int, int], int | None]) -> None:
        self._last_before = last_before
        self._current: dict[int, int] = {}
        self._latest: dict[int, int] = {}
        # Those whose current block was closed without another scrape.
        self._idle: set[int] = set()
        self._due: dict[tuple[int, int], None] = {}

    def note(self, target: int, time_ms: int) -> None:
        """Notice that a target is about to get a scrape."""
        block = block_of(time_ms)
        former = self._find_current(target, LATEST_MS)
        if former is not None and former != block and target not in self._idle:
            self._due[target, former] = None
        latest = self._latest.get(target, block if former is None else former)
        self._latest[target] = max(latest, block)
        if block < latest:
            # A store that is opened again goes on from the latest block, and would leave this one open.
            self._due[target, block] = None
        self._idle.discard(target)
        self._current[target] = block

    def note_idle(self, targets: Iterable[int], before_ms: int) -> None:
        """Notice that the blocks of these targets that end before an instant get no more scrapes."""
        for target in targets:
            current = None if target in self._idle else self._find_current(target, before_ms)
            if current is not None and current + BLOCK_MS < before_ms:
                self._current[target] = current
                self._idle.add(target)
                self._due[target, current] = None

    def _find_current(self, target: int, before_ms: int) -> int | None:
        """The block a target is in, by its last scrape before an instant where none was noticed yet."""
        if target in self._current:
            return self._current[target]
        last_ms = self._last_before(target, before_ms)
        return None if last_ms is None else block_of(last_ms)

    def take_due(self) -> tuple[int, int] | None:
        """A target and a block of it to compute, the one due for longest; None when there is none."""
        if not self._due:
            return None
        found = next(iter(self._due))
        del self._due[found]
        return found
