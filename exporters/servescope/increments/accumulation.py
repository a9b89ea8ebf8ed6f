"""Increments per block from the scrapes of a target: counters' gains, gauges' levels, and what happened meanwhile.

The rules, per plain counter and per histogram, whose parts are one object:

- A counter that falls, or one of a process that began anew, was reset: its gain is its new value.
- A histogram was reset when its count fell or its process began anew. One whose parts do not fit together, among
  themselves or with the scrape before, is torn: it is dropped from that scrape.
- First sight of a series is its baseline. Its gain is its value where the process began after the target's previous
  scrape, and where a sibling of another `outcome` or `segment`, or whatever label the contract gives it, was there
  without it.
- A gain over more than 2.5 scrape intervals that crosses the edge of a block is dropped, as it belongs to neither.
- What was last seen longer ago than `memory_ms` is as if it had never been seen.

It needs numpy, which `import servescope` must not load: import this module where it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, REPLICA_START_TIME, SAMPLE_FAMILIES
from servescope.contract.samples import Labels, Series, Window
from servescope.increments.blocks import BLOCK_MS, JUDGED_GAUGES, Tallies, TargetIncrements
from servescope.increments.extrapolation import step_gains

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Indexes = NDArray[np.intp]

GAP_INTERVALS: Final = 2.5
"""Scrapes that lie further apart than so many intervals have a gap between them."""
# Sources that add up the seconds of several processes add them in any order: what differs by less did not fall.
_ROUNDING: Final = 1e-12
SAME_START_MS: Final = 1_000.0
"""A start time that is computed from the time since boot differs by fractions of a second from scrape to scrape."""
_PARTS: Final = ("_bucket", "_count", "_sum")


def block_of(time_ms: int) -> int:
    """The start of the block that a scrape belongs to: its last instant is its end."""
    return (time_ms - 1) // BLOCK_MS * BLOCK_MS


def memory_ms(interval_ms: int) -> int:
    """How long before a block scrapes have to do with it: they have to be read with those of the block."""
    return max(BLOCK_MS, 3 * interval_ms)


def compute_increments(
    target_id: str,
    identity: Identity,
    window: Window,
    *,
    start_ms: int,
    end_ms: int,
    interval_ms: int,
) -> TargetIncrements:
    """The increments of a target in the blocks that lie between start and end, from its scrapes.

    The window has all series of the target from `memory_ms(interval_ms)` before the start on; `interval_ms` is the
    scrape interval. A column of NaN is a scrape that failed. Series that are no counter or histogram of the contract,
    and no gauge of `JUDGED_GAUGES`, are left out.
    """
    times = window.times
    starts = (times - 1) // BLOCK_MS * BLOCK_MS
    first, last = np.searchsorted(starts, (start_ms, end_ms - BLOCK_MS + 1))
    blocks, begins = np.unique(starts[first:last], return_index=True)
    spans = _Columns(first, begins, last)
    layout = _layout(_without(identity, window.series))
    scrapes = _scrapes(times, window.values, layout, memory_ms(interval_ms), GAP_INTERVALS * interval_ms)
    counted = _count(scrapes, window.values, layout)
    levels, above = _levels(window.values[layout.gauges], layout.saturated_above, spans)
    return TargetIncrements(
        target_id,
        identity,
        blocks.astype(np.int64),
        layout.counters,
        spans.sums(counted.gains),
        layout.levels,
        levels,
        above,
        spans.last_known(scrapes.started),
        Tallies(
            scrapes=spans.count(scrapes.succeeded),
            failed=spans.count(~scrapes.succeeded),
            torn=spans.count(counted.torn),
            resets=spans.count(counted.resets),
            gaps=spans.count(counted.gaps),
        ),
    )


@dataclass(frozen=True, slots=True, eq=False)
class ScrapeGains:
    """What the m counters of a target gained at each of its n scrapes, and what happened to the objects they are of.

    `series` are the counters, with the parts of a histogram together, at `rows` of the window, each of the object
    `owner`. `gains` is (m, n), NaN where nothing is known. Per object and scrape, (k, n): whether its values are
    `sound`, it `restarted` since the scrape before, as a histogram did of which a part fell, or was seen `first`
    where it is known to have been absent before. Per scrape, (n,): when the process `started` in milliseconds, NaN
    where it does not say, and whether it `succeeded`.
    """

    series: tuple[Series, ...]
    rows: Indexes
    owner: Indexes
    gains: Floats
    sound: Flags
    restarted: Flags
    first: Flags
    started: Floats
    succeeded: Flags


def count_gains(window: Window, *, memory_ms: int) -> ScrapeGains:
    """The gains of a target's counters from scrape to scrape, however far apart they are within memory.

    Series have no labels of the target's identity: targets with the same ones share what is computed of them.
    """
    layout = _layout(window.series)
    scrapes = _scrapes(window.times, window.values, layout, memory_ms, np.inf)
    counted = _count(scrapes, window.values, layout)
    return ScrapeGains(
        layout.counters,
        layout.rows,
        layout.owner,
        counted.gains,
        counted.sound,
        counted.restarted,
        counted.first,
        scrapes.started,
        scrapes.succeeded,
    )


def order_objects(series: tuple[Series, ...]) -> Indexes:
    """The rows of counters, the parts of a histogram together and its buckets ascending, in the order of `series`."""
    return _layout(series).rows


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a window that belong to each of its b blocks: from `first` to before `last`.

    `begins` (b,), counted from `first`, are where blocks begin; each ends where the next begins, the last at `last`.
    """

    first: np.intp
    begins: Indexes
    last: np.intp

    def added(self, values: Floats) -> Floats:
        """The sums per block, (…, b), of values (…, n), all of them known."""
        if not len(self.begins):
            return np.zeros((*values.shape[:-1], 0))
        added: Floats = np.add.reduceat(values[..., self.first : self.last], self.begins, axis=-1)
        return added

    def sums(self, values: Floats) -> Floats:
        """The sums per block, (m, b), of the known among values (m, n); NaN where none is."""
        known = ~np.isnan(values)
        found = self.added(np.where(known, values, 0.0))
        return np.where(self.added(known.astype(np.float64)) > 0, found, np.nan)

    def count(self, values: NDArray[np.int64] | Flags) -> NDArray[np.int64]:
        """The sums per block, (b,), of whole numbers (n,)."""
        return self.added(values.astype(np.float64)).astype(np.int64)

    def last_known(self, values: Floats) -> Floats:
        """The last known of the values (n,) in each block, (b,); NaN where none is."""
        ends = np.append(self.begins[1:], self.last - self.first)[: len(self.begins)] - 1 + self.first
        known = np.where(np.isnan(values), -1, np.arange(len(values)))
        latest = np.maximum.accumulate(known)[ends] if len(ends) else np.zeros(0, dtype=np.intp)
        return np.where(latest >= self.begins + self.first, values[latest], np.nan)


# --- What the series are --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """What is computed of a window's series.

    `counters` are the series that gain, `rows` where they are in the window, object after object: a plain counter, or
    the buckets of a histogram ascending, its count and its sum. `begins` are the first rows of the objects, `owner` the
    object of each row, `total` the row of each object that counts, `follows` whether a row is the bucket after the row
    before it, `equals` whether it is the count after the last bucket; `whole` whether an object has what it needs.
    `siblings` are groups of objects that differ in a label of their own. In the window, `gauges` are the rows of
    `levels`, `starts` those of start times.
    """

    counters: tuple[Series, ...]
    rows: Indexes
    begins: Indexes
    owner: Indexes
    total: Indexes
    follows: Flags
    equals: Flags
    whole: Flags
    histogram: Flags
    siblings: tuple[Indexes, ...]
    levels: tuple[Series, ...]
    gauges: Indexes
    saturated_above: Floats
    starts: Indexes


@lru_cache(maxsize=32)
def _without(identity: Identity, series: tuple[Series, ...]) -> tuple[Series, ...]:
    own = frozenset(identity.labels())
    return tuple(Series(name, tuple(pair for pair in labels if pair not in own)) for name, labels in series)


@lru_cache(maxsize=32)
def _layout(series: tuple[Series, ...]) -> _Layout:
    objects: dict[tuple[str, Labels], list[int]] = {}
    siblings: dict[tuple[str, Labels], list[tuple[str, Labels]]] = {}
    gauges: list[int] = []
    starts: list[int] = []
    for row, each in enumerate(series):
        if each.name == REPLICA_START_TIME:
            starts.append(row)
        elif each.name in JUDGED_GAUGES:
            gauges.append(row)
        metric = METRICS.get(SAMPLE_FAMILIES.get(each.name, ""))
        if metric is None or metric.kind == "gauge":
            continue
        name = (metric.name, tuple(pair for pair in each.labels if pair[0] != "le"))
        if name not in objects and metric.own_labels:
            own = tuple(pair for pair in name[1] if pair[0] not in metric.own_labels)
            siblings.setdefault((metric.name, own), []).append(name)
        objects.setdefault(name, []).append(row)
    ordered = [sorted(rows, key=lambda row: _part(series[row])) for rows in objects.values()]
    numbers = {name: number for number, name in enumerate(objects)}
    rows = [row for members in ordered for row in members]
    lengths = [len(members) for members in ordered]
    parts = [_part(series[row]) for row in rows]
    first_of = np.cumsum([0, *lengths[:-1]], dtype=np.intp) if ordered else np.zeros(0, dtype=np.intp)
    same = np.zeros(len(rows), dtype=bool)
    same[1:] = True
    same[first_of] = False
    is_bucket = np.array([kind == 0 for kind, _ in parts], dtype=bool)
    before_is_bucket = np.concatenate(([False], is_bucket[:-1])) if rows else is_bucket
    is_count = np.array([kind == 1 for kind, _ in parts], dtype=bool)
    totals = [_total(members, series) for members in ordered]
    return _Layout(
        counters=tuple(series[row] for row in rows),
        rows=np.array(rows, dtype=np.intp),
        begins=first_of,
        owner=np.repeat(np.arange(len(ordered)), lengths).astype(np.intp),
        total=first_of + np.array([total or 0 for total in totals], dtype=np.intp),
        follows=same & is_bucket & before_is_bucket,
        equals=same & is_count & before_is_bucket,
        whole=np.array([total is not None for total in totals], dtype=bool),
        histogram=np.array([_part(series[members[0]])[0] != 3 for members in ordered], dtype=bool),
        siblings=tuple(np.array([numbers[name] for name in group], dtype=np.intp) for group in siblings.values()),
        levels=tuple(series[row] for row in gauges),
        gauges=np.array(gauges, dtype=np.intp),
        saturated_above=np.array(
            [np.nan if (above := JUDGED_GAUGES[series[row].name]) is None else above for row in gauges],
            dtype=np.float64,
        ),
        starts=np.array(starts, dtype=np.intp),
    )


def _part(series: Series) -> tuple[int, float]:
    """What a series is of its histogram: 0 a bucket and its edge, 1 the count, 2 the sum; 3 of a plain counter."""
    if SAMPLE_FAMILIES[series.name] == series.name:
        return 3, 0.0
    kind = next(number for number, ending in enumerate(_PARTS) if series.name.endswith(ending))
    return kind, float(dict(series.labels).get("le", "nan")) if kind == 0 else 0.0


def _total(members: Sequence[int], series: Sequence[Series]) -> int | None:
    """Which of the ordered members counts all: a count, the last bucket or the counter itself; None without any."""
    parts = [_part(series[row]) for row in members]
    for wanted in ((1, 0.0), (0, np.inf), (3, 0.0)):
        if wanted in parts and (parts[0][0] != 0 or (0, np.inf) in parts):
            return parts.index(wanted)
    return None


# --- What the scrapes are -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Scrapes:
    """The scrapes of a window, all (n,); times in milliseconds.

    `former` is the column of the scrape before that succeeded, -1 without one within memory; `since` what was not there
    at that time came after: when it was, or the first scrape that failed since. `started` is when the process began.
    """

    times: NDArray[np.int64]
    blocks: NDArray[np.int64]
    succeeded: Flags
    former: Indexes
    since: Floats
    started: Floats
    memory_ms: int
    gap_ms: float

    def is_gap(self, from_ms: Floats) -> Flags:
        """Whether what was gained between these times (…, n) and each scrape belongs to no block."""
        far: Flags = (from_ms - 1) // BLOCK_MS * BLOCK_MS != self.blocks
        far &= self.times - from_ms > self.gap_ms
        return far


def _scrapes(times: NDArray[np.int64], values: Floats, layout: _Layout, memory: int, gap_ms: float) -> _Scrapes:
    succeeded: Flags = np.logical_or.reduce(~np.isnan(values), axis=0)
    former = _former(succeeded[None], times, memory)[0]
    # Without a scrape that succeeded, what failed within memory was there first.
    columns = np.arange(len(times))
    earliest = np.searchsorted(times, times - memory)
    since = np.where(former >= 0, times[former], np.where(earliest < columns, times[earliest], np.nan))
    return _Scrapes(
        times,
        (times - 1) // BLOCK_MS * BLOCK_MS,
        succeeded,
        former,
        since,
        _started(values[layout.starts]),
        memory,
        gap_ms,
    )


def _former(known: Flags, times: NDArray[np.int64], memory: int) -> Indexes:
    """The column before each where a row of `known` (m, n) is true, -1 where that is longer ago than memory."""
    columns = np.arange(known.shape[1])
    latest = np.maximum.accumulate(np.where(known, columns, -1), axis=1)
    former = np.concatenate((np.full((len(known), 1), -1), latest), axis=1)[:, :-1]
    return np.where((former >= 0) & (times - times[former] <= memory), former, -1)


def _started(starts: Floats) -> Floats:
    """When the process began by each scrape, (n,) in milliseconds, NaN where it does not say; the latest of several."""
    shown: Floats = np.rint(np.where(np.isnan(starts), -np.inf, starts).max(axis=0, initial=-np.inf) * 1000.0)
    return np.where(np.isfinite(shown), shown, np.nan)


# --- What the counters gained ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Counted:
    """The gains per row and scrape, (m, n); what happened per object and scrape, (k, n), and per scrape, (n,)."""

    gains: Floats
    sound: Flags
    restarted: Flags
    first: Flags
    torn: NDArray[np.int64]
    resets: Flags
    gaps: Flags


def _count(scrapes: _Scrapes, values: Floats, layout: _Layout) -> _Counted:
    """The gains between scrapes, object by object."""
    if not len(layout.rows):
        none = np.zeros(len(scrapes.times), dtype=bool)
        nothing = np.zeros((0, len(none)), dtype=bool)
        return _Counted(np.zeros((0, len(none))), nothing, nothing, nothing, none.astype(np.int64), none, none)
    shown = values[layout.rows]
    absent = np.isnan(shown)
    filled, is_there, shapes = _fit(shown, absent, layout)
    torn = is_there & _any(_misfits(filled, layout), layout)
    torn |= is_there & ~layout.whole[:, None]
    sound = is_there & ~torn

    former = _former(sound, scrapes.times, scrapes.memory_ms)
    seen = sound & (former >= 0) & (np.take_along_axis(shapes, np.maximum(former, 0), axis=1) == shapes)
    before = np.take_along_axis(filled, np.maximum(former, 0)[layout.owner], axis=1)
    fell = filled - before < -_ROUNDING * np.abs(before)
    began = scrapes.started - scrapes.started[np.maximum(former, 0)]
    restarted = seen & (fell[layout.total] | (np.abs(began) > SAME_START_MS))
    newborn = sound & ~seen & (scrapes.started > scrapes.since)
    late = sound & ~seen & ~newborn & _sibling_was_there(is_there, scrapes, layout)
    first = newborn | late
    # What fell by less than rounding did not change.
    steps = step_gains(np.minimum(before, filled), filled, (restarted | first)[layout.owner])
    odd = seen & ~restarted & (_any(fell, layout) | _any(_misfits(steps, layout), layout))
    from_ms = np.where(seen, scrapes.times[np.maximum(former, 0)], scrapes.since)
    from_ms = np.where(newborn, np.fmax(scrapes.since, scrapes.started), from_ms)
    counted = (seen & ~odd) | first
    gap = counted & scrapes.is_gap(from_ms)
    counted &= ~gap
    return _Counted(
        np.where(counted[layout.owner] & ~absent, steps, np.nan),
        sound,
        (restarted & counted) | odd,
        first & counted,
        (torn | odd)[layout.histogram].sum(axis=0),
        (restarted & counted).any(axis=0),
        gap.any(axis=0),
    )


def _fit(shown: Floats, absent: Flags, layout: _Layout) -> tuple[Floats, Flags, NDArray[np.int64]]:
    """The values with those of absent buckets filled in, where each object is there, and a number for its buckets.

    A histogram may change its buckets within a window: one that is absent is filled with the bucket below it.
    """
    there = ~absent
    is_there = np.logical_or.reduceat(there, layout.begins, axis=0)
    shapes = np.zeros(is_there.shape, dtype=np.int64)
    partial = is_there & ~np.logical_and.reduceat(there, layout.begins, axis=0)
    filled = shown
    if partial.any():
        filled = shown.copy()
        ends = [*layout.begins[1:].tolist(), len(shown)]
        for each in np.flatnonzero(partial.any(axis=1)).tolist():
            rows = range(int(layout.begins[each]), ends[each])
            kinds = np.unique(there[rows.start : rows.stop], axis=1, return_inverse=True)[1]
            shapes[each] = kinds.reshape(-1)
            for row in rows:
                if layout.equals[row] or row == layout.total[each] or not (layout.follows[row] or row == rows.start):
                    continue
                below = filled[row - 1] if layout.follows[row] else np.zeros(shown.shape[1])
                filled[row] = np.where(absent[row], below, filled[row])
    return filled, is_there, shapes


def _misfits(values: Floats, layout: _Layout) -> Flags:
    """Where a row does not fit to the one before it: a bucket below its lower one, a count that is not the last bucket.

    A value that is not there fits to nothing.
    """
    differences = np.diff(values, axis=0, prepend=np.nan)
    misfit = np.isnan(values)
    misfit |= layout.follows[:, None] & ~(differences >= 0)
    misfit |= layout.equals[:, None] & ~(differences == 0)
    return misfit


def _any(flags: Flags, layout: _Layout) -> Flags:
    found: Flags = np.logical_or.reduceat(flags, layout.begins, axis=0)
    return found


def _sibling_was_there(is_there: Flags, scrapes: _Scrapes, layout: _Layout) -> Flags:
    """Where at the scrape before a sibling of an object was there: it was absent then, and began at 0 since."""
    found = np.zeros(is_there.shape, dtype=bool)
    for group in layout.siblings:
        before = is_there[group][:, np.maximum(scrapes.former, 0)]
        # A histogram that was there with other buckets has counted before.
        found[group] = before.any(axis=0) & ~before & (scrapes.former >= 0)
    return found


# --- What the gauges were -------------------------------------------------------------------------------------------


def _levels(values: Floats, saturated_above: Floats, spans: _Columns) -> tuple[Floats, Floats]:
    """The means of gauges (g, n) per block, and the shares of scrapes above a level, NaN where there is none."""
    known = ~np.isnan(values)
    counts = spans.added(known.astype(np.float64))
    above = np.where(known, values > saturated_above[:, None], 0.0)
    with np.errstate(invalid="ignore"):
        levels = spans.added(np.where(known, values, 0.0)) / counts
        shares = spans.added(above.astype(np.float64)) / counts
    return levels, np.where(np.isnan(saturated_above)[:, None], np.nan, shares)
