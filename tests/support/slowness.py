"""How slow this machine is, by one fixed loop: every deadline and every "usual speed" is scaled by this factor."""

from __future__ import annotations

import os
import time

VARIABLE = "SERVESCOPE_SLOWNESS"
"""Measured once per run: pytest's workers and the processes that tests start inherit the variable."""

_STEPS = 2_000_000
# Best of five on an idle machine at usual speed, CPython 3.11.
_REFERENCE_SECONDS = 0.0375


def slowness() -> float:
    """Seconds of the fixed loop here over its seconds at usual speed; never below 1."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = f"{max(1.0, min(_loop_seconds() for _ in range(5)) / _REFERENCE_SECONDS):.2f}"
    return float(os.environ[VARIABLE])


def _loop_seconds() -> float:
    started = time.perf_counter()
    total = 0
    for step in range(_STEPS):
        total += step
    return time.perf_counter() - started


if __name__ == "__main__":
    print(slowness())
