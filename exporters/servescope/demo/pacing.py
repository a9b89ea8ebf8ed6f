"""How fast time passes in the demo: sixty times as fast as the wall clock, or as fast as this machine can follow."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from servescope.settings.clock import EmulatedTime
from servescope.store.embedded import Store

FULL_SPEED: Final = 60.0
"""A minute of the demo is an hour of the emulation."""
NEVER: Final = 4_102_444_800.0
"""A time of the machine's clock that does not come, in the year 2100."""

_LEAST_SPEED: Final = 4.0
_SLOWER, _FASTER = 0.6, 1.15
# Scrape intervals since the oldest of the last scrapes that the store shows: up to two are usual, as they are written
# with an evaluation; with three a judge has no data.
_LATE, _IN_TIME = 2.4, 2.0
_ADJUST_SECONDS: Final = 2.0


class Pace:
    """The time of all programs of the demo, in the file at `path`; it stands still at `opens_at` until `start`.

    When scrapes come late for the time that passes, as on a machine with much else to do, it passes slower.
    """

    def __init__(self, path: Path, store: Path, opens_at: float, interval_seconds: float) -> None:
        self._path = path
        self._store = store
        self._interval_seconds = interval_seconds
        self._time = EmulatedTime(NEVER, opens_at, FULL_SPEED)
        self._adjusted = 0.0

    def now(self) -> float:
        """The time of the emulation, in Unix seconds."""
        return self._time.now()

    def start(self) -> None:
        """Have time pass."""
        self._pass(FULL_SPEED)

    def adjust(self) -> None:
        """Have it pass slower when scrapes are late, and faster again when they are not; now and then."""
        if time.monotonic() - self._adjusted < _ADJUST_SECONDS:
            return
        late = self._measure_lateness()
        if late > _LATE:
            self._pass(max(self._time.speed * _SLOWER, _LEAST_SPEED))
        elif late < _IN_TIME and self._time.speed < FULL_SPEED:
            self._pass(min(self._time.speed * _FASTER, FULL_SPEED))
        self._adjusted = time.monotonic()

    def _pass(self, speed: float) -> None:
        self._time = EmulatedTime(time.time(), self._time.now(), speed)
        self._time.write(self._path)

    def _measure_lateness(self) -> float:
        """Scrape intervals since the oldest of the targets' last scrapes."""
        with Store(self._store, read_only=True) as store:
            last = [status.last_scrape_ms for status in store.targets() if status.last_scrape_ms is not None]
        return (self.now() - min(last, default=0) / 1000) / self._interval_seconds if last else 0.0
