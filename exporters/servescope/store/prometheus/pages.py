"""One target as one page exposes it: its increments, from the values at the edges of blocks and from its scrapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

from servescope.contract.samples import Labels, Series, Window
from servescope.increments.accumulation import GAP_INTERVALS, compute_increments, memory_ms
from servescope.increments.blocks import BLOCK_MS, Tallies, TargetIncrements
from servescope.store.prometheus.blocks import Blocks, Flags, Floats
from servescope.store.prometheus.client import Track
from servescope.store.prometheus.scrapes import own_series_of, place_samples
from servescope.store.prometheus.targets import TARGET_UP, ScrapedTarget

BlockRange = tuple[int, int]
"""Blocks that are read scrape by scrape: the number of the first, and of the one after the last."""

# Ranges of blocks to be read scrape by scrape that lie so close are read at once, and many at once with all between.
_NEAR_BLOCKS, _MOST_RANGES = 3, 12
_USUAL_INTERVAL_MS = 15_000
_SUCCEEDED = Series(TARGET_UP, ())


class PageBlocks:
    """One target as one page exposes it: its scrapes, and the values of its series at the edges of the blocks.

    `clock` is when it was scraped, and whether that succeeded.
    """

    def __init__(self, target: ScrapedTarget, clock: Mapping[int, bool], blocks: Blocks) -> None:
        self.target, self._clock, self._blocks = target, clock, blocks
        self._own_series = own_series_of(target)
        self._rows: dict[Series, int] = {}
        self._row_of: dict[Labels, int] = {}
        self._known: list[tuple[int, NDArray[np.intp], Floats]] = []
        distances = [later - earlier for earlier, later in pairwise(clock)]
        self.interval_ms = round(median(distances)) if distances else _USUAL_INTERVAL_MS
        times, succeeded = np.array(list(clock), dtype=np.int64), np.array(list(clock.values()), dtype=bool)
        self._scrapes, self._failed = (self._per_block(times[flags]) for flags in (succeeded, ~succeeded))
        self._raw: Flags = self._after_gaps(times[succeeded])

    def _per_block(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        numbers = (times - 1 - self._blocks.first_ms) // BLOCK_MS
        inside = (numbers >= 0) & (numbers < self._blocks.count - 1)
        return np.bincount(numbers[inside], minlength=self._blocks.count - 1)

    def _after_gaps(self, times: NDArray[np.int64]) -> Flags:
        """The blocks that begin with a gap, or with the target."""
        late = np.diff(times, prepend=-(1 << 60)) > GAP_INTERVALS * self.interval_ms
        return self._per_block(times[late]) > 0

    def add(self, labels: Labels, edges: NDArray[np.intp], values: Floats) -> None:
        """Keep the values of one of its series at some edges."""
        row = self._row_of.get(labels)
        if row is None:
            row = self._row_of[labels] = self._rows.setdefault(self._own_series(labels), len(self._rows))
        self._known.append((row, edges, values))

    def mark(self, unclear: Flags | None, fewest: Floats | None) -> None:
        """Mark the blocks that end at these edges, or in which a series has other samples than there were scrapes."""
        if unclear is not None:
            self._raw |= unclear[1:]
        if fewest is not None:
            self._raw |= np.isfinite(fewest[1:]) & (fewest[1:] != self._scrapes)

    def compute(self) -> None:
        """Compute the increments from the values at the edges, as if each were a scrape, once all are there."""
        values = np.full((len(self._rows), self._blocks.count), np.nan)
        for row, edges, known in self._known:
            values[row, edges] = known
        self._window = Window(tuple(self._rows), self._blocks.edges, values)
        self._computed = self._increments_of(self._window, self._blocks.first_ms, self._blocks.last_ms, BLOCK_MS)
        there = ~np.isnan(values)
        # Samples of scrapes that nothing says of are no scrapes that succeeded: whoever was not to be scraped has none.
        unsaid = there[:, 1:].any(axis=0) & (self._scrapes + self._failed == 0)
        self._failed = np.where(unsaid, max(1, BLOCK_MS // self.interval_ms), self._failed)
        self._raw |= (there[:, 1:] != there[:, :-1]).any(axis=0)
        tallies = self._computed.tallies
        for unclear in (tallies.torn, tallies.resets, tallies.gaps):
            self._raw |= unclear > 0
        nothing = np.zeros((3, self._blocks.count - 1), dtype=np.int64)
        self._computed = replace(self._computed, tallies=Tallies(self._scrapes, self._failed, *nothing))

    def ranges(self) -> list[BlockRange]:
        """What has to be read scrape by scrape."""
        wanted = np.flatnonzero(self._raw & (self._scrapes > 0)).tolist()
        ranges: list[BlockRange] = []
        for block in wanted:
            if ranges and block - ranges[-1][1] <= _NEAR_BLOCKS:
                ranges[-1] = ranges[-1][0], block + 1
            else:
                ranges.append((block, block + 1))
        return ranges if len(ranges) <= _MOST_RANGES else [(ranges[0][0], ranges[-1][1])]

    def span_of(self, block_range: BlockRange) -> tuple[int, int]:
        """From when to when scrapes have to do with a range, both included."""
        start_ms, end_ms = (self._blocks.first_ms + block * BLOCK_MS for block in block_range)
        return start_ms - memory_ms(self.interval_ms), end_ms

    def replace(self, block_range: BlockRange, tracks: Sequence[Track]) -> None:
        """Take the increments of a range from the samples of its span in place of those at the edges."""
        before_ms, end_ms = self.span_of(block_range)
        clock = {time_ms: succeeded for time_ms, succeeded in self._clock.items() if before_ms <= time_ms <= end_ms}
        read = place_samples(self.target, tracks, clock).window
        rows = self._window.series
        placed = {series: row for row, series in enumerate(rows)}
        values = np.full((len(rows) + 1, len(read.times)), np.nan)
        for series, row in zip(read.series, read.values, strict=True):
            if series in placed:
                values[placed[series]] = row
        # A scrape that has none of these series is one that succeeded all the same.
        values[-1] = np.where(list(clock.values()), 1.0, np.nan)
        window = Window((*rows, _SUCCEEDED), read.times, values)
        computed = self._increments_of(
            window, self._blocks.first_ms + block_range[0] * BLOCK_MS, end_ms, self.interval_ms
        )
        at, whole = (computed.blocks - self._blocks.first_ms) // BLOCK_MS, self._computed
        whole.gains[:, at], whole.started_ms[at] = computed.gains, computed.started_ms
        for name in ("torn", "resets", "gaps"):
            getattr(whole.tallies, name)[at] = getattr(computed.tallies, name)

    def increments(self, levelled: Sequence[Track]) -> TargetIncrements:
        """Those of the blocks that it was scraped in; `levelled` are the samples of gauges that have a level."""
        clock = {time_ms: succeeded for time_ms, succeeded in self._clock.items() if time_ms > self._blocks.first_ms}
        window = place_samples(self.target, levelled, clock).window
        computed = self._increments_of(window, self._blocks.first_ms, self._blocks.last_ms, self.interval_ms)
        levels, above = (np.full((len(computed.gauges), self._blocks.count - 1), np.nan) for _ in range(2))
        at, whole = (computed.blocks - self._blocks.first_ms) // BLOCK_MS, self._computed
        levels[:, at], above[:, at] = computed.levels, computed.above
        return replace(
            whole,
            gauges=(*whole.gauges, *computed.gauges),
            levels=np.concatenate((whole.levels, levels)),
            above=np.concatenate((whole.above, above)),
        ).at(np.flatnonzero(self._scrapes + self._failed))

    def _increments_of(self, window: Window, start_ms: int, end_ms: int, interval_ms: int) -> TargetIncrements:
        process = self.target.process
        return compute_increments(
            process.target_id, process, window, start_ms=start_ms, end_ms=end_ms, interval_ms=interval_ms
        )
