"""What is exported, read from the store in pieces.

No more than one metric of one deployment over a stretch of time is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from servescope.contract.identity import Deployment
from servescope.contract.samples import Window
from servescope.store.embedded import Store
from servescope.store.records import TooLargeError

ROWS: Final = 250_000
"""Rows of a Parquet row group at most, and about how many samples are in memory at once."""
LONGEST_MS: Final = 6 * 3_600_000
"""The longest stretch of time that is read at once."""
_SHORTEST_MS = 60_000


@dataclass(frozen=True, slots=True)
class Selection:
    """What is exported: deployments, metrics or figures by name, and the time from start to end, both included."""

    deployments: tuple[Deployment, ...]
    names: tuple[str, ...]
    start_ms: int
    end_ms: int


def read_windows(store: Store, deployment: Deployment, name: str, start_ms: int, end_ms: int) -> Iterator[Window]:
    """The windows of one metric that have samples, in stretches of time short enough for about `ROWS` of them."""
    first_ms, span_ms = start_ms, _SHORTEST_MS
    while first_ms <= end_ms:
        last_ms = min(first_ms + span_ms - 1, end_ms)
        try:
            windows = store.read_samples(deployment, [name], first_ms, last_ms)
        except TooLargeError:
            if first_ms == last_ms:
                raise
            span_ms = (last_ms - first_ms + 1) // 2
            continue
        size = sum(window.values.size for window in windows)
        yield from (window for window in windows if window.series)
        first_ms = last_ms + 1
        span_ms = min(LONGEST_MS, span_ms * max(1, min(8, ROWS // max(1, size)))) if size < ROWS else span_ms // 2 + 1


def stretches(start_ms: int, end_ms: int, length_ms: int) -> Iterator[tuple[int, int]]:
    """The time from start to end, both included, in stretches of a length."""
    for first_ms in range(start_ms, end_ms + 1, length_ms):
        yield first_ms, min(first_ms + length_ms - 1, end_ms)
