"""The collector's wall clock, which may be set while it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from servescope.settings.clock import AHEAD_MS, LEAP_MS


class ClockStep(NamedTuple):
    """The clock was set from a time to another, in milliseconds."""

    from_ms: int
    to_ms: int

    @property
    def back_ms(self) -> int:
        """By how much it was set back; below 0 where it was set forward."""
        return self.from_ms - self.to_ms


class Clock:
    """The wall clock, `seconds()`, and sleeping by it."""

    def __init__(self, seconds: Callable[[], float], sleep: Callable[[float], Awaitable[None]]) -> None:
        self.seconds, self.sleep = seconds, sleep
        # The latest time that it has shown since it was last set back.
        self._latest_ms: int | None = None

    @property
    def now_ms(self) -> int:
        """The time in milliseconds."""
        return round(self.seconds() * 1000)

    def is_ahead(self, time_ms: int) -> bool:
        """Whether an instant is later than now, by more than a small correction of the clock explains."""
        return time_ms > self.now_ms + AHEAD_MS

    def look(self, interval_ms: int) -> ClockStep | None:
        """How it was set since the last look, which was up to an interval ago; None where it was not.

        Small corrections are none. It may also be that nobody looked, while the machine slept.
        """
        now_ms, latest_ms = self.now_ms, self._latest_ms
        if latest_ms is None or not latest_ms - AHEAD_MS <= now_ms <= latest_ms + LEAP_MS + 2 * interval_ms:
            self._latest_ms = now_ms
            return None if latest_ms is None else ClockStep(latest_ms, now_ms)
        self._latest_ms = max(latest_ms, now_ms)
        return None

    async def sleep_until(self, due_ms: int) -> None:
        """Sleep until an instant; return at once when it has passed."""
        await self.sleep(max(0, due_ms - self.seconds() * 1000) / 1000)
