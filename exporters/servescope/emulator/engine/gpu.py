"""The GPU of an emulated engine: how busy it is, and the memory that weights and cache take."""

from __future__ import annotations

from collections.abc import Callable

from servescope.emulator.clock import VirtualClock
from servescope.instruments.resources import LEAST_SECONDS, Gpu, Resources


class EmulatedGpu:
    """One device, read as a real one is; the host is not emulated, so CPU and memory are unknown.

    `memory_bytes` are taken from the start, as engines reserve their cache, and stay so. `count` are read in its place,
    all alike.
    """

    def __init__(self, *, clock: VirtualClock, memory_bytes: int) -> None:
        self._clock = clock
        self._memory_bytes = memory_bytes
        self._worked = 0.0
        self._works_until = 0.0
        self._read_at = clock.now
        self._worked_at_read = 0.0
        self._busy_ratio = 0.0
        self._before_reading: Callable[[], object] = lambda: None
        self.is_lost = False
        self.count = 1

    def watch_reading(self, before: Callable[[], object]) -> None:
        """Have `before` called before each reading, so that the engine can record its work so far."""
        self._before_reading = before

    def work(self, seconds: float, *, before: float = 0.0) -> None:
        """Record work of `seconds` from now, and that of `before`; it does one thing at a time."""
        self._worked += before + seconds
        self._works_until = self._clock.now + seconds

    def read(self) -> Resources:
        """Share of the time since the last reading in which it was busy; a reading just taken is given again.

        Of a GPU that is lost nothing is read.
        """
        self._before_reading()
        if self.is_lost:
            return Resources()
        now = self._clock.now
        if now - self._read_at >= LEAST_SECONDS:
            worked = self._worked - max(self._works_until - now, 0.0)
            # Floating point may find a nanosecond more work than time, or less than none.
            self._busy_ratio = min(max((worked - self._worked_at_read) / (now - self._read_at), 0.0), 1.0)
            self._read_at, self._worked_at_read = now, worked
        return Resources(
            gpus=tuple(Gpu(str(index), self._busy_ratio, self._memory_bytes) for index in range(self.count))
        )
