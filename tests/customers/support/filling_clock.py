"""A clock for lanes that moves only while somebody sleeps, and a store that fills as it does."""

from __future__ import annotations

import asyncio
from typing import Final

from servescope.contract.identity import Identity
from servescope.contract.samples import Sample, Snapshot, make_labels
from servescope.settings.clock import ProgramClock
from servescope.store.embedded import Store

START: Final = 20_000 * 60_000
ENGINE: Final = Identity("llama", "chat-v1", "v1", replica="engine-0")


class FillingClock(ProgramClock):
    """A clock that moves only while somebody sleeps, and fills the store as it does."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._now_ms = START
        self._scraped_ms = START - 180_000
        self.ends_ms = START
        self._fill()

    @property
    def speed(self) -> float:
        return 1.0

    def now_ms(self) -> int:
        return self._now_ms

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass without anybody waiting for it."""
        self._now_ms += round(seconds * 1000) or 1
        self._fill()

    async def sleep(self, seconds: float) -> None:
        self.pass_seconds(seconds)
        if self._now_ms >= self.ends_ms:
            raise asyncio.CancelledError
        await asyncio.sleep(0)

    def _fill(self) -> None:
        """A scrape each 15 seconds, of an engine that produces a token a second."""
        while self._scraped_ms + 15_000 <= self._now_ms:
            self._scraped_ms += 15_000
            tokens = (self._scraped_ms - START) // 1000 + 1000
            sample = Sample("output_tokens_total", make_labels(ENGINE.labels()), tokens)
            self._store.append_scrape(ENGINE.target_id, self._scraped_ms, Snapshot.of([sample]))
