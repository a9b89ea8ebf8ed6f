"""How rows become a pack, and back: what its numbers are (`Shape`), and which of them are in one chunk.

Rows of one target need not show the same series: a pack has the series of all its rows, and each instant says which
layout it had. Where a series was absent its chunk repeats the former value, which needs no bytes and is never read.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from sys import intern
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.contract.metrics import SAMPLE_FAMILIES
from servescope.contract.samples import Series
from servescope.store.packing.codec import Matrix, encode_block, encode_stamps
from servescope.store.schema import FIGURES, INCREMENTS, SCRAPES

PACK_ROWS: Final = 240
"""Rows of a pack, at most: an hour at 15 s."""
FAILED: Final = 65_535
"""The layout of an instant whose scrape failed."""
# A figure or a family of series is read by itself; of a block's increments most is read together.
_CHUNK_KEYS = {SCRAPES: 64, FIGURES: 16, INCREMENTS: 512}
# Rows further apart than this are not packed into one pack: it would be kept for as long as its youngest.
_RUN_GAP_MS = 6 * 3_600_000
# The numbers of a pack, at most, while it is packed: 48 MB, whatever targets show.
_RUN_NUMBERS = 6_000_000

Key = Series | str
Keys = tuple[Key, ...]
Indexes = NDArray[np.intp]


class Row(NamedTuple):
    """One instant: `keys` are what its values are, None when the scrape failed."""

    time_ms: int
    keys: Keys | None
    values: NDArray[np.float64] | None


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What a pack's numbers are: its keys, the indexes of those in each chunk, in order, and of those
    in each layout.
    """

    keys: Keys
    chunks: tuple[Indexes, ...]
    layouts: tuple[Indexes, ...]

    def layout_keys(self, layout: int) -> Keys:
        """The keys of a layout, in its order."""
        places = self.layouts[layout]
        return self.keys if self._is_whole(places) else tuple(self.keys[place] for place in places.tolist())

    def absent(self, layout: int) -> NDArray[np.bool_] | None:
        """The keys that a layout lacks; None when it has all."""
        places = self.layouts[layout]
        if len(places) == len(self.keys):
            return None
        absent = np.ones(len(self.keys), dtype=bool)
        absent[places] = False
        return absent

    def text(self) -> str:
        """The shape as it is stored."""
        return json.dumps(
            {
                "keys": self.keys,
                "chunks": [chunk.tolist() for chunk in self.chunks],
                "layouts": [None if self._is_whole(places) else places.tolist() for places in self.layouts],
            },
            separators=(",", ":"),
            ensure_ascii=False,
        )

    @classmethod
    def parse(cls, stored: Any) -> Shape:
        """The shape of `text`, read as JSON."""
        keys = parse_keys(stored["keys"])
        every = np.arange(len(keys), dtype=np.intp)
        return cls(
            keys,
            tuple(np.array(chunk, dtype=np.intp) for chunk in stored["chunks"]),
            tuple(every if places is None else np.array(places, dtype=np.intp) for places in stored["layouts"]),
        )

    def _is_whole(self, places: Indexes) -> bool:
        return len(places) == len(self.keys) and bool((places == np.arange(len(places))).all())


def parse_keys(stored: Iterable[Any]) -> Keys:
    """The keys as they were before they became JSON: a figure's is a text.

    Fleets have thousands of series with the same names and labels: each text is held once, and each pair of a label
    and its value once for all of the keys.
    """
    pairs: dict[tuple[str, str], tuple[str, str]] = {}

    def parse(key: Any) -> Key:
        if isinstance(key, str):
            return key
        name, labels = key
        return Series(intern(name), tuple([held(label, value) for label, value in labels]))

    def held(label: str, value: str) -> tuple[str, str]:
        pair = (label, value)
        return pairs.get(pair) or pairs.setdefault(pair, (intern(label), intern(value)))

    return tuple(map(parse, stored))


class Packed(NamedTuple):
    """A pack as it is stored."""

    stamps: bytes
    chunks: list[bytes]


def make_shape(kind: int, layouts: Sequence[Keys]) -> Shape:
    """The shape of a pack of a kind with these layouts, which differ."""
    places: dict[Key, int] = {}
    per_layout = [np.array([places.setdefault(key, len(places)) for key in keys], dtype=np.intp) for keys in layouts]
    keys = tuple(places)
    return Shape(keys, _divide(kind, keys), tuple(per_layout))


def pack_rows(shape: Shape, rows: Sequence[Row], layouts: Sequence[Keys]) -> Packed:
    """The pack of 1 … `PACK_ROWS` rows, ascending in time, whose keys are among the `layouts` of the shape."""
    numbers = {id(keys): number for number, keys in enumerate(layouts)}
    per_row = [FAILED if row.keys is None else numbers[id(row.keys)] for row in rows]
    times = np.array([row.time_ms for row in rows], dtype=np.int64)
    values = _fill(shape, rows, per_row)
    return Packed(
        encode_stamps(times, np.array(per_row, dtype=np.uint16)),
        [encode_block(values[places], _chained(shape.keys, places)) for places in shape.chunks],
    )


def rows_until_gap(rows: Sequence[Row], before_ms: int) -> list[Row]:
    """The first rows that may be one pack: none at `before_ms` or later, none after a gap."""
    found: list[Row] = []
    for row in rows:
        if row.time_ms >= before_ms or (found and row.time_ms - found[-1].time_ms > _RUN_GAP_MS):
            break
        found.append(row)
    return found


def divide_rows(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """The rows cut into as few packs as they fit into, those of too many of about the same length."""
    length = -(-len(rows) // -(-len(rows) // PACK_ROWS))
    known: dict[Keys, Keys] = {}
    same: dict[int, Keys] = {}
    part: list[Row] = []
    distinct: set[Key] = set()
    layouts: set[int] = set()
    for row in rows:
        keys = None
        if row.keys is not None:
            if id(row.keys) not in same:
                same[id(row.keys)] = known.setdefault(row.keys, row.keys)
            keys = same[id(row.keys)]
        grown = distinct if keys is None or id(keys) in layouts else distinct | set(keys)
        if part and (len(part) == length or not _fits_run(len(part) + 1, len(grown))):
            yield part
            part, layouts, grown = [], set(), set(keys or ())
        part.append(Row(row.time_ms, keys, row.values))
        distinct = grown
        layouts.add(id(keys))
    yield part


def _fits_run(rows: int, distinct_keys: int) -> bool:
    """Whether a pack may have so many rows and keys."""
    return rows <= 1 or (rows <= PACK_ROWS and rows * distinct_keys <= _RUN_NUMBERS)


def _divide(kind: int, keys: Keys) -> tuple[Indexes, ...]:
    """Which keys lie in one chunk: those that are read together, histograms in the order of their buckets."""
    if kind != SCRAPES:
        # The series of increments are in the order of their buckets already.
        return _cut(np.arange(len(keys), dtype=np.intp), _CHUNK_KEYS[kind])
    families: dict[str, dict[Hashable, list[int]]] = {}
    for place, key in enumerate(keys):
        family = SAMPLE_FAMILIES.get(key[0], key[0])
        families.setdefault(family, {}).setdefault(_histogram(key), []).append(place)
    chunks: list[Indexes] = []
    for histograms in families.values():
        places = [place for members in histograms.values() for place in sorted(members, key=lambda p: _rank(keys[p]))]
        chunks += _cut(np.array(places, dtype=np.intp), _CHUNK_KEYS[SCRAPES])
    return tuple(chunks)


def _cut(places: Indexes, size: int) -> tuple[Indexes, ...]:
    return tuple(places[start : start + size] for start in range(0, len(places), size))


def _chained(keys: Keys, places: Indexes) -> NDArray[np.bool_]:
    """Which keys continue the one before them: a bucket the bucket below it, a count the last bucket."""
    picked = [keys[place] for place in places.tolist()]
    links = [
        _rank(former) == 0 and _rank(key) <= 1 and _histogram(former) == _histogram(key) is not None
        for former, key in pairwise(picked)
    ]
    return np.array([False, *links], dtype=bool)


def _histogram(key: Key) -> Hashable:
    """What the buckets, the count and the sum of one histogram have in common; None for another series."""
    if isinstance(key, str):
        return None
    stem, _, ending = key.name.rpartition("_")
    if ending not in _RANKS:
        return None
    return stem, tuple(label for label in key.labels if label[0] != "le")


_RANKS: Final = {"bucket": 0, "count": 1, "sum": 2}


def _rank(key: Key) -> int:
    return 3 if isinstance(key, str) else _RANKS.get(key.name.rpartition("_")[2], 3)


def _fill(shape: Shape, rows: Sequence[Row], per_row: Sequence[int]) -> Matrix:
    """The values of all rows, (keys, rows); where one is absent the value before it, or after it at the start."""
    values = np.zeros((len(shape.keys), len(rows)))
    if len(shape.layouts) == 1 and FAILED not in per_row:
        stacked = np.stack([row.values for row in rows if row.values is not None], axis=1)
        values[shape.layouts[0]] = stacked
        return values
    column = np.zeros(len(shape.keys))
    for row, layout in reversed(list(zip(rows, per_row, strict=True))):
        if row.values is not None:
            column[shape.layouts[layout]] = row.values
    for number, (row, layout) in enumerate(zip(rows, per_row, strict=True)):
        if row.values is not None:
            column[shape.layouts[layout]] = row.values
        values[:, number] = column
    return values
