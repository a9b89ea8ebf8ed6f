"""A collector whose clock is ahead of the true time, or behind it, and whose targets count in true time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np

from servescope.contract.events import Event
from servescope.increments.blocks import TargetIncrements
from servescope.store.embedded import Store
from tests.support.stepped_collector import CHAT, START, World
from tests.support.waiting import wait_for

PER_SECOND = 10.0
# Had counted when the story begins: whoever takes a counter for one that began anew, counts this.
BEFORE = 1_000_000.0
EVERY = 15.0
TOKENS = "output_tokens_total"


class Skewed(World):
    """Two targets that count `PER_SECOND` tokens a second each; the clock is `ahead` seconds of the true time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "a", "b")
        self.answers = {"a": BEFORE, "b": BEFORE}
        self.true, self.ahead = float(START), 0.0

    def set_clock(self, ahead: float) -> None:
        """Have the clock be ahead of the true time by so many seconds."""
        self.ahead = ahead
        self.seconds = self.true + ahead

    def pass_seconds(self, seconds: float) -> None:
        """Let true time pass, in which the targets count."""
        self.true += seconds
        self.set_clock(self.ahead)
        self.answers = dict.fromkeys(self.answers, BEFORE + PER_SECOND * (self.true - START))

    async def count(self, scrapes: int, every: float = EVERY) -> list[dict[str, float]]:
        """Scrape and evaluate so often; the figures of each evaluation."""
        found = []
        for _ in range(scrapes):
            self.pass_seconds(every)
            found.append(await self.step(seconds=0.0))
        return found

    async def restart(self, ahead: float | None = None) -> None:
        """End the collector, and start another on its store, by a clock that was set meanwhile where that is given."""
        await asyncio.to_thread(self.collector.close)
        self.set_clock(self.ahead if ahead is None else ahead)
        self.open()

    def settle(self) -> None:
        """Wait until the store has all that was scraped."""
        wait_for(lambda: not self.collector.recorder.backlog(), "the store")

    # --- What the store has, whatever time it is of -------------------------------------------------------------------

    def raw(self) -> Store:
        """The store, read without a clock."""
        self.settle()
        return Store(self.folder / "servescope.db", read_only=True)

    def scrapes(self) -> list[tuple[float, float]]:
        """When target a was scraped that is stored, in seconds of the clock, and what it had counted."""
        with self.raw() as store:
            (status, _) = store.targets()
            found = store.read_scrapes(status.target_id, 0, 1 << 42)
        return [
            (time_ms / 1000, dict(zip(snapshot.series, snapshot.values.tolist(), strict=True))[series])
            for time_ms, snapshot in found
            if snapshot is not None
            for series in snapshot.series
            if series.name == TOKENS
        ]

    def increments(self) -> TargetIncrements | None:
        """The increments of target a; None before a block was closed."""
        with self.raw() as store:
            return next(iter(store.read_increments(CHAT, [TOKENS], 0, 1 << 41)), None)

    def newest(self) -> float:
        """When the last of all that is stored is from, in seconds."""
        with self.raw() as store, closing(store._connection.cursor()) as cursor:
            held = store.held_range() or (0, 0)
            others = cursor.execute(
                "SELECT max(t) FROM (SELECT max(time_ms) AS t FROM sums UNION SELECT max(time_ms) FROM events "
                "UNION SELECT max(time_ms) FROM settings UNION SELECT max(used_ms) FROM layouts)"
            ).fetchone()
            return max(held[1], others[0] or 0) / 1000

    def events(self) -> list[Event]:
        """The corrections of the clock in the event log."""
        with self.raw() as store:
            return [event for event in store.read_events(0, 1 << 41) if event.kind == "clock_set_back"]


def increase(counts: Sequence[float]) -> float:
    """How much a counter grew, as Prometheus counts: one that falls began anew."""
    return sum(later if later < earlier else later - earlier for earlier, later in pairwise(counts))


def gained(increments: TargetIncrements) -> float:
    """How much the tokens grew in all blocks together."""
    rows = [row for row, series in enumerate(increments.series) if series.name == TOKENS]
    return float(np.nansum(increments.gains[rows]))
