"""The collector's wall clock, and how much of a sudden jump forward retention takes into account."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

_logger = logging.getLogger(__name__)

# After a jump of this size between two evaluations retention waits this long before it applies the new time: what it
# deletes cannot be restored, and the clock may be corrected in the meantime.
_LEAP_MS = 600_000
_LEAP_BELIEVED_AFTER_MS = 3_600_000


class Clock:
    """The wall clock, `seconds()`, and sleeping by it."""

    def __init__(self, seconds: Callable[[], float], sleep: Callable[[float], Awaitable[None]]) -> None:
        self.seconds, self.sleep = seconds, sleep

    @property
    def now_ms(self) -> int:
        """The time in milliseconds."""
        return round(self.seconds() * 1000)

    async def sleep_until(self, due_ms: int) -> None:
        """Sleep until an instant; return at once when it has passed."""
        await self.sleep(max(0, due_ms - self.seconds() * 1000) / 1000)


class Leaps:
    """How far the clock jumped forward within the last hour: `unbelieved_ms`, which retention subtracts."""

    def __init__(self) -> None:
        self.unbelieved_ms = 0
        self._last_ms: int | None = None
        self._leapt_ms = 0

    def note(self, now_ms: int, interval_ms: int) -> None:
        """Compare the clock with that of the last call, which was an interval ago."""
        leap = 0 if self._last_ms is None else now_ms - self._last_ms
        self._last_ms = now_ms
        if leap > _LEAP_MS + 2 * interval_ms:
            self.unbelieved_ms, self._leapt_ms = self.unbelieved_ms + leap, now_ms
            _logger.warning(
                "the clock leapt %.0f s forward; it is believed, for what is deleted by age, in an hour", leap / 1000
            )
        elif not 0 <= now_ms - self._leapt_ms < _LEAP_BELIEVED_AFTER_MS:
            self.unbelieved_ms = 0
