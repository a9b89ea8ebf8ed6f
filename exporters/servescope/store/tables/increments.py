"""A block's increments as a row of the store, and the rows of a target as its increments.

A row is of the end of its block, which is never before 1970. Its series are the counters that gained a known amount,
the gauges, and names of our own: no metric's has a colon.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.samples import Series
from servescope.increments.blocks import BLOCK_MS, JUDGED_GAUGES, Tallies, TargetIncrements
from servescope.store.packing.packing import Indexes, Keys
from servescope.store.packing.segments import Segment, sample_names
from servescope.store.records import TargetStatus

TALLIES: Final = ("scrapes", "failed", "torn", "resets", "gaps")
_TALLY_KEYS: Final = tuple(Series(f":{name}", ()) for name in TALLIES)
_STARTED: Final = Series(":started_ms", ())
_ABOVE: Final = ":above"

ATTEMPTS: Final = frozenset((":scrapes", ":failed"))
"""The names that count how often a target was scraped in a block."""


def wanted_names(names: Sequence[str]) -> frozenset[str]:
    """The names of the series to read for these metrics."""
    levels = {name for name in names if name in JUDGED_GAUGES}
    own = (key.name for key in (*_TALLY_KEYS, _STARTED))
    return sample_names(names) | {f"{name}{_ABOVE}" for name in levels} | frozenset(own)


def block_rows(increments: TargetIncrements) -> Iterator[tuple[tuple[Series, ...], NDArray[np.float64]]]:
    """What is stored of each block, ascending as it is read best: gains, levels, and what happened.

    Blocks of the same series have the same tuple of them.
    """
    above = (Series(f"{gauge.name}{_ABOVE}", gauge.labels) for gauge in increments.gauges)
    keys = (*increments.series, *increments.gauges, *above, _STARTED, *_TALLY_KEYS)
    tallies = [getattr(increments.tallies, name) for name in TALLIES]
    table = np.vstack([increments.gains, increments.levels, increments.above, increments.started_ms, *tallies]).T
    known = ~np.isnan(table)
    found: dict[bytes, tuple[Series, ...]] = {}
    for values, is_known in zip(table, known, strict=True):
        flags = is_known.tobytes()
        if flags not in found:
            found[flags] = tuple(compress(keys, is_known))
        yield found[flags], values[is_known]


class Division:
    """Which of the rows that have these keys are gains, levels, and what happened."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        places = {key: place for place, key in enumerate(keys)}
        counters = [(place, key) for place, key in enumerate(keys) if isinstance(key, Series) and not _is_other(key)]
        self.series = tuple(series for _, series in counters)
        self.counters = _as_slice([place for place, _ in counters])
        self.gauges = tuple(key for key in keys if isinstance(key, Series) and key.name in JUDGED_GAUGES)
        # What is not among them is read from a row of NaN after the last.
        self.levels = [places[gauge] for gauge in self.gauges]
        self.above = [places.get(Series(f"{gauge.name}{_ABOVE}", gauge.labels), len(keys)) for gauge in self.gauges]
        self.own = [places.get(key, len(keys)) for key in (_STARTED, *_TALLY_KEYS)]


def make_increments(status: TargetStatus, segment: Segment, divisions: dict[int, Division]) -> TargetIncrements:
    """The increments of a target from its rows; `divisions` keeps, by the id of their keys, what these are."""
    times, keys, values = segment
    if id(keys) not in divisions:
        divisions[id(keys)] = Division(keys)
    division = divisions[id(keys)]
    padded = np.concatenate([values, np.full((1, len(times)), np.nan)])
    own = padded[division.own]
    tallies = np.where(np.isnan(own[1:]), 0.0, own[1:]).astype(np.int64)
    return TargetIncrements(
        status.target_id,
        status.identity,
        times - BLOCK_MS,
        division.series,
        padded[division.counters],
        division.gauges,
        padded[division.levels],
        padded[division.above],
        own[0],
        Tallies(*tallies),
        status.source,
        status.versions,
        status.layer,
    )


def _is_other(key: Series) -> bool:
    return ":" in key.name or key.name in JUDGED_GAUGES


def _as_slice(places: list[int]) -> slice | Indexes:
    """The same rows without a copy where they follow one another, as they nearly always do."""
    if places and places[-1] - places[0] + 1 == len(places):
        return slice(places[0], places[-1] + 1)
    return np.array(places, dtype=np.intp)
