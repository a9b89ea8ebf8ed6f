"""What is read: some series over some instants, from packs and recent rows, put together to one table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.contract.metrics import METRICS
from servescope.store.packing.codec import Matrix
from servescope.store.packing.packing import Indexes, Key, Keys, Shape
from servescope.store.records import TooLargeError

MOST_NUMBERS: Final = 32_000_000
"""What is read at once, at most: 256 MB."""


class Segment(NamedTuple):
    """Some keys over some instants, ascending; NaN where one was absent."""

    times: NDArray[np.int64]
    keys: Keys
    values: Matrix


class Picked(NamedTuple):
    """The rows of the chunks of a pack to read, and their keys."""

    chunks: tuple[tuple[int, Indexes], ...]
    order: Indexes
    places: Indexes
    keys: Keys


class KeySelection:
    """What is read of one or many owners: these names, or figure keys, all when None.

    Which rows these are is found once for each shape of packs and each layout of recent rows, so that all who share one
    share their keys as well.
    """

    def __init__(self, names: frozenset[str] | None) -> None:
        self._names = names
        self._of_shapes: dict[int, Picked] = {}
        self._of_layouts: dict[int, tuple[Indexes, Keys]] = {}

    def of_shape(self, row: int, shape: Shape) -> Picked:
        """What to read of packs of a shape."""
        if row not in self._of_shapes:
            self._of_shapes[row] = _pick(shape, self._names)
        return self._of_shapes[row]

    def of_layout(self, row: int, keys: Keys) -> tuple[Indexes, Keys]:
        """What to read of recent rows of a layout: their indexes, and their keys."""
        if row not in self._of_layouts:
            places = _find_indexes(keys, self._names)
            self._of_layouts[row] = places, tuple(keys[place] for place in places.tolist())
        return self._of_layouts[row]


def _find_indexes(keys: Keys, wanted: frozenset[str] | None) -> Indexes:
    """Indexes of the keys to read: of figures by key, of series by name; all when `wanted` is None."""
    if wanted is None:
        return np.arange(len(keys), dtype=np.intp)
    return np.array(
        [place for place, key in enumerate(keys) if (key if isinstance(key, str) else key.name) in wanted],
        dtype=np.intp,
    )


def _pick(shape: Shape, wanted: frozenset[str] | None) -> Picked:
    """The rows of the chunks that hold the wanted keys, in the order of the keys."""
    places = _find_indexes(shape.keys, wanted)
    chunks = [(number, np.flatnonzero(np.isin(chunk, places))) for number, chunk in enumerate(shape.chunks)]
    chunks = [(number, rows) for number, rows in chunks if len(rows)]
    found = [shape.chunks[number][rows] for number, rows in chunks]
    order = np.argsort(np.concatenate(found)) if found else places
    return Picked(tuple(chunks), order, places, tuple(shape.keys[place] for place in places.tolist()))


def thin(segment: Segment, width_ms: int) -> Segment:
    """The last instant of each stretch of time of a width."""
    # They are multiples of their width, so that a graph does not change shape while its range moves on.
    stretches = segment.times // width_ms
    last = np.flatnonzero(np.append(stretches[1:] != stretches[:-1], True)) if len(stretches) else slice(0)
    return Segment(segment.times[last], segment.keys, segment.values[:, last])


def assemble(segments: Iterable[Segment], *, most: int) -> Segment:
    """All keys, all instants ascending, and the values; where two segments have an instant, the later one counts.

    Raises TooLargeError when that would be more than `most` numbers, before the rest of the segments is read.
    """
    rows: dict[Key, int] = {}
    places: dict[int, Indexes] = {}
    read: list[Segment] = []
    instants = 0
    shared = True
    for segment in segments:
        read.append(segment)
        instants += len(segment.times)
        # Nearly all segments share their keys, which are long to hash.
        shared = shared and segment.keys is read[0].keys
        for keys in () if shared else (read[0].keys, segment.keys):
            if id(keys) not in places:
                places[id(keys)] = np.array([rows.setdefault(key, len(rows)) for key in keys], dtype=np.intp)
        if (len(segment.keys) if shared else len(rows)) * instants > most:
            raise TooLargeError(
                f"{len(segment.keys) if shared else len(rows)} series at {instants} instants, and maybe more, are too "
                f"many to be read at once; ask for fewer names or a shorter time"
            )
    if not read:
        return Segment(np.zeros(0, dtype=np.int64), (), np.empty((0, 0)))
    times = np.concatenate([segment.times for segment in read])
    if len(read) == 1:
        keys, values = read[0].keys, read[0].values
    elif shared:
        keys, values = read[0].keys, np.concatenate([segment.values for segment in read], axis=1)
    else:
        keys, values = tuple(rows), np.full((len(rows), len(times)), np.nan)
        at = 0
        for segment in read:
            values[places[id(segment.keys)], at : at + len(segment.times)] = segment.values
            at += len(segment.times)
    if (times[1:] <= times[:-1]).any():
        order = np.argsort(times, kind="stable")
        order = order[np.append(times[order][1:] != times[order][:-1], True)]
        times, values = times[order], values[:, order]
    return Segment(times, keys, values)


def sample_names(names: Sequence[str]) -> frozenset[str]:
    """The names of the samples of these contract metrics: a histogram has those of its buckets, sum and count."""
    wanted = set(names)
    for name in names:
        if name in METRICS and METRICS[name].kind == "histogram":
            wanted |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return frozenset(wanted)
