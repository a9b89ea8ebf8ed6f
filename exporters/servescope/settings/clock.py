"""The clock that programs read: the machine's, or that of an emulation which runs faster.

`SERVESCOPE_CLOCK` in the environment of a collector, a console or a judge makes it live in the time of an emulation, as
the demo does: `WALL=TIME*SPEED`, three numbers, means that it was TIME (Unix seconds) when the machine's clock showed
WALL, and that time has passed SPEED times as fast since. Without it a program reads the machine's clock.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from servescope.errors import UsageError

CLOCK_VARIABLE: Final = "SERVESCOPE_CLOCK"

_FORM = re.compile(r"([0-9.]+)=([0-9.]+)\*([0-9.]+)")
_FASTEST = 10_000.0


@dataclass(frozen=True, slots=True)
class ProgramClock:
    """The time in Unix seconds: `origin` when the machine's clock showed `wall`, and `speed` times as fast since."""

    wall: float = 0.0
    origin: float = 0.0
    speed: float = 1.0

    def now(self) -> float:
        """The time now, in Unix seconds."""
        return self.origin + (time.time() - self.wall) * self.speed

    def now_ms(self) -> int:
        """The time now, in milliseconds."""
        return round(self.now() * 1000)

    async def sleep(self, seconds: float) -> None:
        """Sleep for so many of its seconds."""
        await asyncio.sleep(seconds / self.speed)

    def describe(self) -> str:
        """The value of `SERVESCOPE_CLOCK` that gives another process the same clock."""
        return f"{self.wall!r}={self.origin!r}*{self.speed!r}"


def program_clock(variables: Mapping[str, str] = os.environ) -> ProgramClock:
    """The clock of this program; raises UsageError when `SERVESCOPE_CLOCK` is not understood."""
    text = variables.get(CLOCK_VARIABLE, "")
    if not text:
        return ProgramClock()
    try:
        match = _FORM.fullmatch(text)
        wall, origin, speed = map(float, match.groups()) if match else (math.nan,) * 3
    except ValueError:
        wall = origin = speed = math.nan
    if not (math.isfinite(wall) and math.isfinite(origin) and 0 < speed <= _FASTEST):
        raise UsageError(
            f"{CLOCK_VARIABLE} is {text!r}, expected WALL=TIME*SPEED: Unix seconds of the machine and of the "
            f"emulation, and a speed above 0, at most {_FASTEST:g}"
        )
    return ProgramClock(wall, origin, speed)
