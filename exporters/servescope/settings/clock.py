"""The clock that programs read: the machine's, or that of an emulation which runs faster.

`SERVESCOPE_CLOCK` in the environment of a collector, a console or a judge makes it live in the time of an emulation, as
the demo does. It names a file with the text `WALL=TIME*SPEED`, three numbers: it was TIME (Unix seconds) when the
machine's clock showed WALL, and time has passed SPEED times as fast since. Before WALL the time is TIME: an emulation
that is being prepared has a WALL in the future. Without the variable a program reads the machine's clock.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from servescope.errors import UsageError

CLOCK_VARIABLE: Final = "SERVESCOPE_CLOCK"

AHEAD_MS: Final = 5_000
"""By how much a time may be later than the clock and still be of now: NTP makes smaller corrections at any time."""

LEAP_MS: Final = 600_000
"""A time that is later than the last one by more than this: the clock was set forward, or nobody looked at it."""

BELIEVED_AFTER_MS: Final = 3_600_000
"""How long a clock that was set shows its new time before history is deleted by it: it may be set right meanwhile."""

_FORM = re.compile(r"([0-9.]+)=([0-9.]+)\*([0-9.]+)")
_FASTEST = 10_000.0


def believed_ms(now_ms: int, earlier_ms: int | None) -> int:
    """The time by whose age history is deleted, where `earlier_ms` is the last that is known of over an hour ago.

    It is now, unless the clock was set forward within the last hour; also where nothing is known, None.
    """
    return now_ms if earlier_ms is None else min(now_ms, earlier_ms + LEAP_MS + BELIEVED_AFTER_MS)


def not_after(time_ms: int, instant_ms: int | None) -> int | None:
    """An instant, or another where that is earlier; None where there is none."""
    return None if instant_ms is None else min(instant_ms, time_ms)


@dataclass(frozen=True, slots=True)
class EmulatedTime:
    """The time in Unix seconds: `origin` until the machine's clock shows `wall`, and `speed` times as fast since."""

    wall: float
    origin: float
    speed: float

    def now(self) -> float:
        """The time now, in Unix seconds."""
        return self.origin + max(time.time() - self.wall, 0.0) * self.speed

    def write(self, path: Path) -> None:
        """Make it the time of all programs whose `SERVESCOPE_CLOCK` is this path."""
        unfinished = path.with_name(f".{path.name}.new")
        unfinished.write_text(f"{self.wall!r}={self.origin!r}*{self.speed!r}\n", encoding="ascii")
        unfinished.replace(path)


class ProgramClock:
    """The clock of a program: the machine's, or that of the file at `path`, which may change meanwhile."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._version: tuple[int, int] | None = None
        self._time = EmulatedTime(0.0, 0.0, 1.0)
        self._latest = 0.0
        self._read()

    @property
    def speed(self) -> float:
        """How many times as fast as the machine's clock it runs; 1 for that clock itself."""
        self._read()
        return self._time.speed

    def now(self) -> float:
        """The time now, in Unix seconds."""
        self._read()
        if self._path is None:
            return time.time()
        now = self._time.now()
        # A change of its speed is read a moment after it is written, and sets nobody's clock back.
        self._latest = now if now < self._latest - self._time.speed else max(now, self._latest)
        return self._latest

    def now_ms(self) -> int:
        """The time now, in milliseconds."""
        return round(self.now() * 1000)

    async def sleep(self, seconds: float) -> None:
        """Sleep for so many of its seconds."""
        await asyncio.sleep(seconds / self.speed)

    def _read(self) -> None:
        """Read the file again if it was replaced."""
        if self._path is None:
            return
        try:
            found = self._path.stat()
            version = found.st_mtime_ns, found.st_ino
            if version != self._version:
                self._time, self._version = _parse(self._path, self._path.read_text(encoding="ascii")), version
        except (OSError, ValueError) as error:
            if self._version is None:
                raise UsageError(f"{CLOCK_VARIABLE}: cannot read {str(self._path)!r}: {error}") from error
            # Its folder is gone, as when the emulation ends: time passes as before.


def program_clock(variables: Mapping[str, str] = os.environ) -> ProgramClock:
    """The clock of this program; raises UsageError when `SERVESCOPE_CLOCK` names no clock."""
    return _clock_of(variables.get(CLOCK_VARIABLE, ""))


@lru_cache(maxsize=8)
def _clock_of(path: str) -> ProgramClock:
    return ProgramClock(Path(path) if path else None)


def _parse(path: Path, text: str) -> EmulatedTime:
    match = _FORM.fullmatch(text.strip())
    try:
        wall, origin, speed = map(float, match.groups()) if match else (math.nan,) * 3
    except ValueError:
        wall = origin = speed = math.nan
    if not (math.isfinite(wall) and math.isfinite(origin) and 0 < speed <= _FASTEST):
        raise UsageError(
            f"{CLOCK_VARIABLE}: {str(path)!r} holds {text.strip()[:80]!r}, expected WALL=TIME*SPEED: Unix seconds of "
            f"the machine and of the emulation, and a speed above 0, at most {_FASTEST:g}"
        )
    return EmulatedTime(wall, origin, speed)
