"""Windows that are not whole yet: how much of the one that figures are over is there, and how that is called.

A deployment's window is whole once its scrapes reach back to its start, as Prometheus' `rate` sees it: from then on an
increase is extrapolated over all of it. Before, after the first scrape and after a gap, the figures are what Prometheus
records too, but rates are too low by the part that is missing.
"""

from __future__ import annotations

import math
from typing import assert_never

from servescope.contract.expressions import (
    Difference,
    Expression,
    FractionAbove,
    Increase,
    Level,
    Quantile,
    Rate,
    Ratio,
)

DEFAULT_WINDOW_MS = 300_000
"""`DEFAULT_WINDOW` in milliseconds."""


def is_over_window(expression: Expression) -> bool:
    """Whether the value is over a window, and not of the last scrape alone."""
    match expression:
        case Level():
            return False
        case Rate() | Increase() | Quantile() | FractionAbove():
            return True
        case Ratio(left, right) | Difference(left, right):
            return is_over_window(left) or is_over_window(right)
        case _:
            assert_never(expression)


def is_filling(filled: float) -> bool:
    """Whether a window of which this part (0 to 1) is there is not whole; NaN is of one of which nothing lacks."""
    return filled < 1.0


def describe_filling(filled: float, window_ms: int) -> str:
    """How much of a window that is not whole is there: `filling, 1 of 5 min`."""
    unit_ms, unit = (60_000, "min") if window_ms >= 120_000 and window_ms % 60_000 == 0 else (1000, "s")
    # A part of a minute does not count; what a ratio lost by its division does.
    return f"filling, {math.floor(filled * window_ms / unit_ms + 1e-6)} of {window_ms / unit_ms:g} {unit}"
