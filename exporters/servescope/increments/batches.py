"""The series of targets that expose the same ones, read together: sums of counters, histograms, levels of gauges.

What cannot be what it says is not known: a value that is not finite, a counter's gain below zero, a histogram whose
parts do not fit together. Arrays are over the T targets of a batch and its n blocks. Needs numpy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.contract.expressions import matches
from servescope.contract.judged import Part
from servescope.contract.measured_layers import MEASURED_LAYERS
from servescope.contract.metrics import SAMPLE_FAMILIES, SEGMENT
from servescope.contract.samples import Series
from servescope.increments.blocks import BLOCK_MS, TargetIncrements

Floats = NDArray[np.float64]

_COUNT_TOLERANCE: Final = 1e-6
_MOST_ZEROS: Final = 20.0
"""As many observations do not sum to zero."""
_SUM_TOLERANCE: Final = 1e-3
"""By what part a sum may lie outside what its buckets allow: sources write edges and sums in three digits or more."""
_MOST_NUMBERS: Final = 2_000_000
"""The gains of a batch at most, which bounds its memory."""


class SeriesRows:
    """The rows of a target's series by name, and of its histograms by edge; `doubled` where a series is there twice.

    `segments` are the values of the label `segment`, sorted.
    """

    def __init__(self, series: tuple[Series, ...]) -> None:
        self.series = series
        self.by_name: dict[str, list[int]] = {}
        self._labels = [dict(each.labels) for each in series]
        self._by_segment: dict[tuple[str, str], list[int]] = {}
        for row, each in enumerate(series):
            self.by_name.setdefault(each.name, []).append(row)
            self._by_segment.setdefault((each.name, self._labels[row].get(SEGMENT, "")), []).append(row)
        self.doubled = len(set(series)) < len(series)
        self.segments = tuple(sorted({labels[SEGMENT] for labels in self._labels if SEGMENT in labels}))

    def of(self, part: Part) -> list[int]:
        """The rows of one part of a sum."""
        # Each segment is asked for, and each has its series of every name.
        segment = next((values for label, values in part.where if label == SEGMENT), ())
        if len(segment) == 1 and isinstance(segment[0], str):
            rows = self._by_segment.get((part.series, segment[0]), [])
        else:
            rows = self.by_name.get(part.series, [])
        return [row for row in rows if not part.where or matches(self._labels[row], part.where)]

    def in_segment(self, rows: Sequence[int], segment: str) -> list[int]:
        """Those of the rows that are of a segment."""
        return [row for row in rows if self._labels[row].get(SEGMENT) == segment]

    def edges(self, histogram: str) -> list[tuple[float, list[int]]]:
        """The rows of the buckets by edge, ascending, the infinite one last."""
        by_edge: dict[float, list[int]] = {}
        for row in self.by_name.get(f"{histogram}_bucket", []):
            by_edge.setdefault(_edge(self._labels[row].get("le", "")), []).append(row)
        return sorted(by_edge.items())


def _edge(text: str) -> float:
    """The edge of a bucket; not a number where it has none, which leaves its histogram unknown."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


@dataclass(frozen=True, slots=True, eq=False)
class TargetBatch:
    """T targets with the same series in the same blocks.

    `replicas` are their rows in the arm, `columns` those of the blocks; `gains` is (T, m, n), `levels` and `above` (T,
    g, n), the tallies by name and `started` (T, n).
    """

    targets: tuple[TargetIncrements, ...]
    replicas: NDArray[np.int64]
    columns: NDArray[np.int64]
    rows: SeriesRows
    gauges: SeriesRows
    gains: Floats
    levels: Floats
    above: Floats
    started: Floats
    tallies: Mapping[str, Floats]

    @property
    def cells(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The index of the batch's cells in an arm's arrays."""
        replicas, columns = np.ix_(self.replicas, self.columns)
        return replicas, columns


_TALLIES: Final = ("scrapes", "failed", "torn", "resets", "gaps")


class SeriesNumbers:
    """Numbers for the series of targets, the same for the same ones: these are long to hash, and most are shared."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Series, ...], int] = {}
        self._known: dict[int, int] = {}

    def of(self, target: TargetIncrements) -> tuple[int, int]:
        """Those of a target's counters and of its gauges; it has to live as long as this does."""
        return self._number(target.series), self._number(target.gauges)

    def _number(self, series: tuple[Series, ...]) -> int:
        number = self._known.get(id(series))
        if number is None:
            number = self._known[id(series)] = self._numbers.setdefault(series, len(self._numbers))
        return number


def batches(targets: Sequence[TargetIncrements], blocks: NDArray[np.int64]) -> Iterator[TargetBatch]:
    """The targets in batches, as far as they have any of the blocks."""
    rows: dict[tuple[Series, ...], SeriesRows] = {}
    groups: dict[tuple[object, ...], list[tuple[int, slice]]] = {}
    spans: dict[tuple[object, ...], NDArray[np.int64]] = {}
    numbers = SeriesNumbers()
    ends = np.array([blocks[0], blocks[-1] + 1]) if blocks.size else blocks
    for replica, target in enumerate(targets):
        inside = _inside(target.blocks, ends)
        chosen = target.blocks[inside]
        if chosen.size:
            key = (*numbers.of(target), target.layer, target.identity.role, chosen.tobytes())
            if key not in groups:
                groups[key], spans[key] = [], (chosen - blocks[0]) // BLOCK_MS
            groups[key].append((replica, inside))

    def read(series: tuple[Series, ...]) -> SeriesRows:
        if series not in rows:
            rows[series] = SeriesRows(series)
        return rows[series]

    for spelled, members in groups.items():
        series, gauges = targets[members[0][0]].series, targets[members[0][0]].gauges
        columns = spans[spelled]
        size = max(1, _MOST_NUMBERS // max(1, len(series) * columns.size))
        for first in range(0, len(members), size):
            yield _batch(
                [(targets[replica], replica, inside) for replica, inside in members[first : first + size]],
                columns,
                read(series),
                read(gauges),
            )


def _inside(of_target: NDArray[np.int64], ends: NDArray[np.int64]) -> slice:
    """Which of a target's blocks are from the first of the `ends` on and before the other, (2,); none where there are
    no ends."""
    if not ends.size or not of_target.size:
        return slice(0, 0)
    first, last = of_target.searchsorted(ends)
    return slice(int(first), int(last))


def _batch(
    members: Sequence[tuple[TargetIncrements, int, slice]],
    columns: NDArray[np.int64],
    rows: SeriesRows,
    gauges: SeriesRows,
) -> TargetBatch:
    return TargetBatch(
        targets=tuple(target for target, _, _ in members),
        replicas=np.array([replica for _, replica, _ in members], dtype=np.int64),
        columns=columns,
        rows=rows,
        gauges=gauges,
        gains=_of_each([target.gains[:, inside] for target, _, inside in members]),
        levels=_of_each([target.levels[:, inside] for target, _, inside in members]),
        above=_of_each([target.above[:, inside] for target, _, inside in members]),
        started=_of_each([target.started_ms[inside] for target, _, inside in members]),
        tallies={
            name: _of_each([getattr(target.tallies, name)[inside] for target, _, inside in members]).astype(float)
            for name in _TALLIES
        },
    )


def _of_each(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Arrays of the same shape as one, with one more axis before theirs: numpy's own looks at each of them twice."""
    return np.concatenate(arrays).reshape(len(arrays), *arrays[0].shape)


# --- Places -----------------------------------------------------------------------------------------------------------


class Sight(NamedTuple):
    """That targets of one kind have a metric: from which block on, at which of the layers, and by which release."""

    first_ms: int
    order: int
    source: str
    versions: str


def find_layers(targets: Sequence[TargetIncrements], metrics: Collection[str]) -> dict[str, list[Sight]]:
    """Of each of the metrics the kinds of targets that have it; without those that none has."""
    numbers = SeriesNumbers()
    kinds: dict[tuple[object, ...], tuple[int, TargetIncrements]] = {}
    for target in targets:
        if target.blocks.size:
            kind = *numbers.of(target), target.layer, target.identity.role, target.source, target.versions
            first, _ = kinds.get(kind, (int(target.blocks[0]), target))
            kinds[kind] = min(first, int(target.blocks[0])), target
    found: dict[str, list[Sight]] = {}
    for first, target in kinds.values():
        for name in {SAMPLE_FAMILIES.get(each.name, "") for each in (*target.series, *target.gauges)}:
            if name in metrics:
                found.setdefault(name, []).append(
                    Sight(first, MEASURED_LAYERS.index(target.measured_layer(name)), target.source, target.versions)
                )
    return found


# --- Counters ---------------------------------------------------------------------------------------------------------


class Processes:
    """Which process of each target each block is of, and which labelled series it has counted with.

    Of labelled series beside others that do count, those that have not begun to are 0: their first event has not
    happened. One that did count in the same process, and is not there now, is not known, nor is a sum with it.
    `former` are by target when
    its process began, at the end of what was read before, and the series that it had counted with.
    """

    def __init__(self, batch: TargetBatch, former: Mapping[str, tuple[float, frozenset[Series]]]) -> None:
        known = [former.get(target.target_id, (np.nan, frozenset())) for target in batch.targets]
        earlier = np.concatenate([np.array([[started] for started, _ in known]), batch.started[:, :-1]], axis=1)
        with np.errstate(invalid="ignore"):
            moved = (batch.started != earlier) & np.isfinite(batch.started) & np.isfinite(earlier)
        self._number = np.cumsum(moved | (batch.tallies["resets"] > 0.0), axis=1)
        self._former = [series for _, series in known]
        shown = set(batch.rows.series)
        self._vanished = [series - shown for series in self._former]
        self._batch = batch
        self._read: dict[tuple[int, ...], Floats] = {}
        self._counted: dict[int, NDArray[np.bool_]] = {}

    def begun(self, rows: Sequence[int]) -> Floats:
        """The gains of the rows, (T, r, n), with zeros where a series has not begun."""
        key = tuple(rows)
        found = self._read.get(key)
        if found is None:
            found = self._read[key] = self._begun(key)
        return found

    def _begun(self, rows: tuple[int, ...]) -> Floats:
        values = self._batch.gains[:, list(rows)]
        finite = np.isfinite(values)
        number = self._number[:, None, :]
        series = self._batch.rows.series
        before = np.array([[0 if series[row] in known else -1 for row in rows] for known in self._former])
        last = np.maximum(np.maximum.accumulate(np.where(finite, number, -1), axis=2), before[:, :, None])
        ended = last[:, :, -1] == self._number[:, None, -1]
        self._counted |= {row: ended[:, index] for index, row in enumerate(rows)}
        if finite.all():
            return values
        unborn = np.isnan(values) & (last < number) & finite.any(axis=1, keepdims=True)
        return np.where(unborn, 0.0, values)

    def complete(self, name: str) -> NDArray[np.bool_]:
        """Where no process has counted with a series of this name that is not there any more at all, (T, n)."""
        if not any(self._vanished):
            return np.ones((1, 1), dtype=np.bool_)
        vanished = np.array([any(each.name == name for each in series) for series in self._vanished])
        return np.asarray(~vanished[:, None] | (self._number > 0))

    def counting(self) -> Iterator[tuple[str, frozenset[Series]]]:
        """By target the labelled series that its process has counted with, at the end."""
        for index, target in enumerate(self._batch.targets):
            counted = {self._batch.rows.series[row] for row, each in self._counted.items() if each[index]}
            if not self._number[index, -1]:
                counted |= self._vanished[index]
            yield target.target_id, frozenset(counted)


def sum_counters(batch: TargetBatch, parts: Sequence[Part], processes: Processes) -> Floats | None:
    """The sum of the parts, (T, n), NaN where one is not known; None where the targets do not have them."""
    total = np.zeros((len(batch.targets), batch.columns.size))
    for part in parts:
        family = batch.rows.by_name.get(part.series, [])
        if not family:
            return None
        if len(family) == 1 and not part.where:
            values = batch.gains[:, family[0]]
            known = (values >= 0.0) & (values < np.inf) & processes.complete(part.series)
            total += part.factor * np.where(known, values, np.nan)
            continue
        counted = processes.begun(family)
        chosen = set(batch.rows.of(part))
        rows = [index for index, row in enumerate(family) if row in chosen]
        known = ((counted >= 0.0) & (counted < np.inf)).all(axis=1) & processes.complete(part.series)
        total += part.factor * np.where(known, counted[:, rows].sum(axis=1), np.nan)
    return total


def sum_gauges(batch: TargetBatch, parts: Sequence[Part]) -> Floats | None:
    """The sum of the parts' levels, (T, n); None where the targets do not have them."""
    found = [batch.gauges.of(part) for part in parts]
    if not all(found):
        return None
    total = np.zeros((len(batch.targets), batch.columns.size))
    for part, rows in zip(parts, found, strict=True):
        values = batch.levels[:, rows].sum(axis=1)
        total += part.factor * np.where(np.isfinite(values), values, np.nan)
    return total


# --- Histograms -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class HistogramGains:
    """What histograms gained: `count` and `total`, (T, n), NaN where not known, `torn` where their parts did not fit.

    `cumulative`, (T, E, n), are the observations up to each of the finite `edges`, 0 where not known.
    """

    edges: tuple[float, ...]
    count: Floats
    total: Floats
    cumulative: Floats
    torn: NDArray[np.bool_]

    def without(self, lost: NDArray[np.bool_]) -> HistogramGains:
        """The same where some of them, (T, n), are not known."""
        if not lost.any():
            return self
        count, total = (np.where(lost, np.nan, each) for each in (self.count, self.total))
        return replace(self, count=count, total=total, cumulative=np.where(lost[:, None], 0.0, self.cumulative))


def read_histogram(batch: TargetBatch, histogram: str, processes: Processes) -> HistogramGains | None:
    """A histogram of the batch's targets, over all its label sets; None where they do not have it.

    Of several label sets, those that have not begun to count in their process are 0.
    """
    counts, totals = (batch.rows.by_name.get(f"{histogram}{suffix}", []) for suffix in ("_count", "_sum"))
    if not counts or not totals:
        return None
    gains = batch.gains
    edges = batch.rows.edges(histogram)
    if len(counts) > 1:
        gains = _with_unborn(batch, counts, [*totals, *(row for _, rows in edges for row in rows)], processes)
    whole = not any(np.isnan(edge) for edge, _ in edges)
    count, total = gains[:, counts].sum(axis=1), gains[:, totals].sum(axis=1)
    if len(counts) > 1:
        count = np.where(processes.complete(f"{histogram}_count"), count, np.nan)
    finite = [each for each in edges if np.isfinite(each[0])]
    cumulative = _stacked(gains, finite)
    infinite = _stacked(gains, [each for each in edges if np.isinf(each[0])])
    with np.errstate(invalid="ignore"):
        tolerance = _COUNT_TOLERANCE * (1.0 + np.abs(count))
        ladder = np.concatenate([np.zeros_like(count)[:, None], cumulative, infinite, count[:, None]], axis=1)
        # Not a number is in no order, so that this is also where all are known.
        good = (ladder[:, 1:] - ladder[:, :-1] >= -tolerance[:, None]).all(axis=1) & (count < np.inf) & whole
        if infinite.shape[1]:
            good &= np.abs(infinite[:, 0] - count) <= tolerance
        good &= (total >= 0.0) & (total < np.inf)
        # No observations have no sum, and many that sum to nothing are none.
        good &= ~((count <= 0.0) & (total > 0.0)) & ~((count >= _MOST_ZEROS) & (total <= 0.0))
        good &= _sum_fits([edge for edge, _ in finite], cumulative, count, total)
    return HistogramGains(
        edges=tuple(edge for edge, _ in finite),
        count=np.where(good, count, np.nan),
        total=np.where(good, total, np.nan),
        cumulative=np.where(good[:, None], cumulative, 0.0),
        torn=(np.isfinite(count) | np.isfinite(total)) & ~good,
    )


def _with_unborn(batch: TargetBatch, counts: Sequence[int], parts: Sequence[int], processes: Processes) -> Floats:
    """The gains, (T, m, n), with zeros where a histogram has not begun, of which `counts` are the counts."""
    begun = processes.begun(counts)
    unborn = np.isnan(batch.gains[:, list(counts)]) & ~np.isnan(begun)
    if not unborn.any():
        return batch.gains
    gains = batch.gains.copy()
    gains[:, list(counts)] = begun
    place = {batch.rows.series[row].labels: index for index, row in enumerate(counts)}
    for row in parts:
        labels = tuple(pair for pair in batch.rows.series[row].labels if pair[0] != "le")
        index = place.get(labels)
        if index is not None:
            gains[:, row][unborn[:, index]] = 0.0
    return gains


def _sum_fits(edges: Sequence[float], cumulative: Floats, count: Floats, total: Floats) -> NDArray[np.bool_]:
    """Where a sum is one that its observations can have, each within its bucket: (T, n).

    Those above the last of the finite `edges`, (E,), have no upper bound; none is below zero.
    """
    if not edges:
        return np.ones(count.shape, dtype=np.bool_)
    widths = np.diff(edges, prepend=min(0.0, edges[0]))
    # The sums of lower and of upper edges over all observations, by parts.
    least = count * edges[-1] - np.einsum("e,ten->tn", widths, cumulative)
    most = cumulative[:, -1] * edges[-1] - np.einsum("e,ten->tn", widths[1:], cumulative[:, :-1])
    open_ended = count - cumulative[:, -1] > _COUNT_TOLERANCE * (1.0 + np.abs(count))
    slack = _SUM_TOLERANCE * np.abs(total) + _COUNT_TOLERANCE * edges[-1]
    return np.asarray((total >= least - slack) & (open_ended | (total <= most + slack)))


def sum_histogram(
    batch: TargetBatch, histogram: str, processes: Processes, segment: str
) -> tuple[Floats, Floats] | None:
    """What one segment's part of a histogram gained, sum and count, (T, n); None where the targets do not have it.

    It is known where its count is, and of a process that has not begun to count it 0.
    """
    families = [batch.rows.by_name.get(f"{histogram}{suffix}", []) for suffix in ("_count", "_sum")]
    counts, totals = (batch.rows.in_segment(family, segment) for family in families)
    if not counts or not totals:
        return None
    begun = processes.begun(families[0])[:, [families[0].index(row) for row in counts]].sum(axis=1)
    total = np.where(begun == 0.0, 0.0, batch.gains[:, totals].sum(axis=1))
    with np.errstate(invalid="ignore"):
        known = (begun >= 0.0) & (begun < np.inf) & (total >= 0.0) & (total < np.inf)
    return np.where(known, total, np.nan), np.where(known, begun, np.nan)


def _stacked(gains: Floats, edges: Sequence[tuple[float, list[int]]]) -> Floats:
    if all(len(rows) == 1 for _, rows in edges):
        return gains[:, [rows[0] for _, rows in edges]]
    return np.stack([gains[:, rows].sum(axis=1) for _, rows in edges], axis=1)


# --- Sums over targets ------------------------------------------------------------------------------------------------


class BlockSums:
    """What targets count, added up by name and block; histograms at the edges that all of their name share."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._found: dict[str, dict[tuple[float, ...], Floats]] = {}

    def add(self, name: str, columns: NDArray[np.int64], rows: Floats, edges: tuple[float, ...] = ()) -> None:
        """Add the rows, (E + k, n): cumulative counts up to each of a histogram's E edges, then k other numbers."""
        by_edges = self._found.setdefault(name, {})
        if edges not in by_edges:
            by_edges[edges] = np.zeros((len(rows), self._blocks))
        by_edges[edges][:, columns] += rows

    def shared(self) -> dict[str, tuple[tuple[float, ...], Floats]]:
        """By name the edges that all share, and the sums of the rows at these and of the others, (E + k, B)."""
        return {name: _at_shared_edges(by_edges) for name, by_edges in self._found.items()}


def _at_shared_edges(by_edges: Mapping[tuple[float, ...], Floats]) -> tuple[tuple[float, ...], Floats]:
    shared = tuple(sorted(set.intersection(*(set(edges) for edges in by_edges))))
    rows = [
        counts[[*(edges.index(edge) for edge in shared), *range(len(edges), len(counts))]]
        for edges, counts in by_edges.items()
    ]
    return shared, np.add.reduce(rows)
