"""Whether time passed for the emulators as fast as it should, or the machine had too little of it for them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from servescope.emulator.server.control_client import ControlClient

_LEAST = 0.99
"""Below this share, durations that were measured are too far off."""


class Pace:
    """The time of emulators that are `times` as fast as the clock, from when it is made."""

    def __init__(self, emulators: Mapping[str, ControlClient], times: int) -> None:
        self._emulators, self._times = emulators, times
        self._began = {name: self._read(name) for name in emulators}

    def shares(self) -> dict[str, float]:
        """By emulator: the time that passed for it, of what should have."""
        return {name: self._share(name, *self._read(name)) for name in self._emulators}

    def _read(self, name: str) -> tuple[float, float]:
        return time.monotonic(), float(self._emulators[name].read()["now_seconds"])

    def _share(self, name: str, now: float, emulated: float) -> float:
        began, began_emulated = self._began[name]
        return (emulated - began_emulated) / ((now - began) * self._times)


def find_laggards(shares: Mapping[str, float]) -> list[str]:
    """A sentence for each emulator for which too little time passed."""
    return [
        f"emulator {name} fell behind: only {share:.1%} of the time passed, as the machine is too busy"
        for name, share in shares.items()
        if share < _LEAST
    ]
