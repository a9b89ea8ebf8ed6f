"""What is read: stretches of some series over some instants, from runs and recent rows, put together to one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.catalog import METRICS
from servescope.collector.store.codec import Matrix
from servescope.collector.store.packing import Key, Keys, Places, Shape


class Segment(NamedTuple):
    """Some keys over some instants, ascending; NaN where one was absent."""

    times: NDArray[np.int64]
    keys: Keys
    values: Matrix


class Picked(NamedTuple):
    """Which rows of which chunks of a run are wanted, and what they are."""

    chunks: tuple[tuple[int, Places], ...]
    order: Places
    places: Places
    keys: Keys


def wanted_places(keys: Keys, wanted: frozenset[str] | None) -> Places:
    """Where the keys are whose name, or which themselves, are wanted; all of them when `wanted` is None."""
    if wanted is None:
        return np.arange(len(keys), dtype=np.intp)
    return np.array(
        [place for place, key in enumerate(keys) if (key if isinstance(key, str) else key.name) in wanted],
        dtype=np.intp,
    )


def pick(shape: Shape, wanted: frozenset[str] | None) -> Picked:
    """Which rows of which chunks hold what is wanted, in the order of the keys."""
    places = wanted_places(shape.keys, wanted)
    chunks = [(number, np.flatnonzero(np.isin(chunk, places))) for number, chunk in enumerate(shape.chunks)]
    chunks = [(number, rows) for number, rows in chunks if len(rows)]
    found = [shape.chunks[number][rows] for number, rows in chunks]
    order = np.argsort(np.concatenate(found)) if found else places
    return Picked(tuple(chunks), order, places, tuple(shape.keys[place] for place in places.tolist()))


def assemble(segments: Sequence[Segment]) -> tuple[Keys, NDArray[np.int64], Matrix]:
    """All keys, all instants ascending, and the values; where two segments have an instant, the later one counts."""
    rows: dict[Key, int] = {}
    # Nearly all segments share their keys, which are long to hash.
    by_keys = {id(segment.keys): segment.keys for segment in segments}
    known = {
        number: np.array([rows.setdefault(key, len(rows)) for key in keys], dtype=np.intp)
        for number, keys in by_keys.items()
    }
    placed = [known[id(segment.keys)] for segment in segments]
    times = np.concatenate([np.zeros(0, dtype=np.int64), *(segment.times for segment in segments)])
    values = np.full((len(rows), len(times)), np.nan)
    at = 0
    for segment, places in zip(segments, placed, strict=True):
        values[places, at : at + len(segment.times)] = segment.values
        at += len(segment.times)
    if (times[1:] <= times[:-1]).any():
        order = np.argsort(times, kind="stable")
        order = order[np.append(times[order][1:] != times[order][:-1], True)]
        times, values = times[order], values[:, order]
    return tuple(rows), times, values


def sample_names(names: Sequence[str]) -> frozenset[str]:
    """The names of the samples of these contract metrics: a histogram has those of its buckets, sum and count."""
    wanted = set(names)
    for name in names:
        if name in METRICS and METRICS[name].kind == "histogram":
            wanted |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return frozenset(wanted)
