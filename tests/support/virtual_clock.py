"""A clock for tasks that sleep by it: its time passes only when all of them sleep, to the next one that wakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from servescope.settings.clock import ProgramClock


class VirtualClock(ProgramClock):
    """It shows `ahead_ms` more than the time that has passed."""

    def __init__(self, now_ms: int, on_time: Callable[[int], None]) -> None:
        super().__init__()
        self.true_ms, self.ahead_ms = now_ms, 0
        self._on_time = on_time
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def speed(self) -> float:
        return 1.0

    def now_ms(self) -> int:
        return self.true_ms + self.ahead_ms

    async def sleep(self, seconds: float) -> None:
        waking = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.true_ms + max(round(seconds * 1000), 1), waking))
        await waking

    def sleeping(self) -> int:
        """How many tasks sleep."""
        self._sleepers = [each for each in self._sleepers if not each[1].done()]
        return len(self._sleepers)

    async def pass_ms(self, length_ms: int, tasks: Callable[[], int]) -> None:
        """Have so much time pass; `tasks` says how many there are that sleep when they have nothing to do."""
        until_ms = self.true_ms + length_ms
        while True:
            while self.sleeping() < tasks():  # noqa: ASYNC110 - of what tasks do, no event is known
                await asyncio.sleep(0.0005)
            next_ms = min((wake_ms for wake_ms, _ in self._sleepers), default=until_ms + 1)
            self.true_ms = min(next_ms, until_ms)
            self._on_time(self.true_ms)
            if next_ms > until_ms:
                return
            for wake_ms, waking in self._sleepers:
                if wake_ms <= self.true_ms:
                    waking.set_result(None)
