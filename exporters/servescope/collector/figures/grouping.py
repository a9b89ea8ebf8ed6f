"""Which series are added up to what: kept from evaluation to evaluation, and looked up anew only where series change.

A slot is one sum: of a leaf, for a group, and for buckets an edge. A deployment keeps the slots of its own targets'
rows; all deployments together are added up in one go.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.collector.figures.rates import RowReadings
from servescope.collector.scrapes.recent_scrapes import RecentScrapes, Rows
from servescope.contract.expressions import matches
from servescope.contract.figures import figure_key
from servescope.contract.samples import Labels, Series, make_labels
from servescope.increments.extrapolation import Floats, Range
from servescope.increments.program import Derived, Program, bucket_quantiles

# Slots without rows are dropped when there are this many, and again at twice as many.
_SLOTS_KEPT: Final = 4096


class Named(NamedTuple):
    """The names of a figure of one group: its key, its labels on `/metrics`, and the labels of the group."""

    key: str
    labels: Labels
    group: Labels


class _Slots(NamedTuple):
    """The slots by their number, (n,): the leaf and the group of each, and a bucket's upper edge (−inf of others)."""

    leaves: Rows
    groups: Rows
    edges: Floats


@dataclass(slots=True)
class _Member:
    """A target's rows, each beside the slot it is added to, once for every such slot."""

    version: int = -1
    series: list[Series | None] = field(default_factory=list)
    rows: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    slots: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.intp))


class Layout:
    """The slots of one deployment, and which of its targets' rows go into them.

    `version` changes with any of it. Memory is bounded by the series that its targets hold.
    """

    def __init__(self, program: Program, window: str) -> None:
        self.version = 0
        self.recents: tuple[RecentScrapes, ...] = ()
        self._program, self._window = program, window
        self._most_slots = _SLOTS_KEPT
        self._is_behind = False
        self.groups: dict[frozenset[str], dict[Labels, int]] = {leaf.by: {} for leaf in program.leaves}
        self._members: dict[RecentScrapes, _Member] = {}
        self._slots: dict[tuple[int, int, float], int] = {}
        self._table: _Slots | None = None
        self._names: dict[tuple[str, Labels], Named] = {}

    def look_up(self, recent: RecentScrapes) -> None:
        """Look up a target's new series now, so that the next `update` need not."""
        member = self._members.setdefault(recent, _Member())
        if member.version != recent.version:
            self._look_up(member, recent)
            self._is_behind = True

    def update(self, recents: Sequence[RecentScrapes]) -> None:
        """Count the rows of these targets, as they are now, and no others."""
        recents = tuple(recents)
        changed, self._is_behind = self._is_behind or recents != self.recents, False
        if changed:
            self._members = {recent: self._members.get(recent) or _Member() for recent in recents}
            self.recents = recents
        for recent, member in self._members.items():
            if member.version != recent.version:
                self._look_up(member, recent)
                changed = True
        if changed:
            self.version += 1
            self._drop_spent_slots()

    def members(self) -> list[_Member]:
        """The rows of each target, in the order of `recents`."""
        return [self._members[recent] for recent in self.recents]

    def slots(self) -> _Slots:
        """All slots, those that were filled once included."""
        if self._table is None or len(self._table.leaves) != len(self._slots):
            keys = np.array(list(self._slots), dtype=np.float64).reshape(-1, 3)
            self._table = _Slots(keys[:, 0].astype(np.intp), keys[:, 1].astype(np.intp), keys[:, 2])
        return self._table

    def name(self, figure: Derived, group: Labels) -> Named:
        """How the figure of a group is called."""
        named = self._names.get((figure.name, group))
        if named is None:
            own = {label: value for label, value in group if label in figure.by}
            labels = make_labels((*group, ("window", self._window)))
            named = self._names[figure.name, group] = Named(figure_key(figure.name, own), labels, group)
        return named

    def _look_up(self, member: _Member, recent: RecentScrapes) -> None:
        """Look up the rows that have another series than before."""
        former, current = member.series, recent.rows
        shared = min(len(former), len(current))
        is_other = np.ones(max(len(former), len(current)), dtype=np.bool_)
        is_other[:shared] = np.fromiter(map(operator.is_not, former, current), np.bool_, shared)
        found = [
            (row, slot)
            for row in np.flatnonzero(is_other).tolist()
            if row < len(current) and (series := current[row]) is not None
            for slot in self._slots_of(series)
        ]
        added = np.array(found, dtype=np.intp).reshape(-1, 2)
        stays = ~is_other[member.rows]
        member.rows = np.concatenate((member.rows[stays], added[:, 0]))
        member.slots = np.concatenate((member.slots[stays], added[:, 1]))
        member.series, member.version = list(current), recent.version

    def _slots_of(self, series: Series) -> Iterator[int]:
        for number in self._program.leaves_of.get(series.name, ()):
            leaf = self._program.leaves[number]
            if leaf.where and not matches(dict(series.labels), leaf.where):
                continue
            edge = _edge(series) if leaf.kind == "buckets" else -math.inf
            if edge is not None:
                groups = self.groups[leaf.by]
                group = groups.setdefault(tuple(pair for pair in series.labels if pair[0] in leaf.by), len(groups))
                yield self._slots.setdefault((number, group, edge), len(self._slots))

    def _drop_spent_slots(self) -> None:
        """Number the slots anew when most are those of series that are gone, as of a label that always has new values.

        Nothing is looked up again: that would take long for a target with many series.
        """
        if len(self._slots) <= self._most_slots:
            return
        is_filled = np.zeros(len(self._slots), dtype=np.bool_)
        for member in self._members.values():
            is_filled[member.slots] = True
        if is_filled.sum() < len(self._slots) // 2:
            self._keep_slots(is_filled)
        self._most_slots = max(_SLOTS_KEPT, 2 * len(self._slots))

    def _keep_slots(self, is_kept: NDArray[np.bool_]) -> None:
        kept = [slot for slot, is_one in zip(self._slots, is_kept.tolist(), strict=True) if is_one]
        by = [leaf.by for leaf in self._program.leaves]
        used: dict[frozenset[str], set[int]] = {labels: set() for labels in self.groups}
        for leaf, group, _ in kept:
            used[by[leaf]].add(group)
        numbers = {labels: {old: new for new, old in enumerate(sorted(groups))} for labels, groups in used.items()}
        self.groups = {
            labels: {group: numbers[labels][old] for group, old in groups.items() if old in numbers[labels]}
            for labels, groups in self.groups.items()
        }
        self._slots = {(leaf, numbers[by[leaf]][group], edge): new for new, (leaf, group, edge) in enumerate(kept)}
        moved = np.cumsum(is_kept) - 1
        for member in self._members.values():
            member.slots = moved[member.slots]
        self._table, self._names = None, {}


def _edge(series: Series) -> float | None:
    """The upper edge of a bucket; None where there is none, or no number, as Prometheus leaves it out."""
    try:
        edge = float(dict(series.labels)["le"])
    except (KeyError, ValueError):
        return None
    return edge if edge == edge else None


class _Entries(NamedTuple):
    """Rows, and the slot that each is added to; `counts` is how many rows each slot has, (slots,)."""

    rows: Rows
    slots: Rows
    counts: NDArray[np.intp]


class _Table(NamedTuple):
    """The groups (k,) whose histograms have the same edges (n,), and the slots (k, n) of these."""

    groups: Rows
    edges: Floats
    slots: Rows


class Assembly:
    """The layouts of several deployments as they are now, put together to be added up at once."""

    def __init__(self, program: Program, layouts: Sequence[Layout]) -> None:
        self.recents = [recent for layout in layouts for recent in layout.recents]
        self._program = program
        slots = self._number_slots(layouts)
        kinds = np.array([leaf.kind for leaf in program.leaves])[slots.leaves]
        self._rates, self._increases, self._levels = self._enter(layouts, kinds)
        self._averaged, self._highest = np.flatnonzero(kinds == "avg"), np.flatnonzero(kinds == "max")
        is_bucket = kinds == "buckets"
        self._index = self._index_values(slots, ~is_bucket)
        self._tables = _index_buckets(slots, np.flatnonzero(is_bucket))
        self.names = [
            self._named(figure, by, layouts) for figure, by in zip(program.figures, program.grouped_by, strict=True)
        ]
        self._leaves = slots.leaves

    def add_up(self, readings: RowReadings, within: Range) -> AddedUp:
        """The sums of what was read of the targets."""
        sums, counts = _add(self._rates, readings.changes.rates(within))
        if self._increases.rows.size:
            increases, increased = _add(self._increases, readings.changes.increases())
            sums, counts = sums + increases, counts + increased
        levels, shown = _add(self._levels, readings.levels)
        sums, counts = sums + levels, counts + shown
        with np.errstate(invalid="ignore", divide="ignore"):
            sums[self._averaged] /= counts[self._averaged]
        if self._highest.size:
            sums[self._highest] = -np.inf
            values = readings.levels[self._levels.rows]
            highest = np.isin(self._levels.slots, self._highest) & ~np.isnan(values)
            np.maximum.at(sums, self._levels.slots[highest], values[highest])
        sums[counts == 0] = np.nan
        return AddedUp(sums, self._index, self._tables)

    def reported(self, added_up: AddedUp, leaves: Sequence[int]) -> NDArray[np.bool_]:
        """Which layouts have data for any of these leaves, (layouts,)."""
        filled = np.isin(self._leaves, leaves) & ~np.isnan(added_up.sums[: len(self._leaves)])
        return np.bincount(self._owners[filled], minlength=self._count) > 0

    def _number_slots(self, layouts: Sequence[Layout]) -> _Slots:
        """The slots of all layouts one after the other, the groups numbered over all layouts."""
        self._count = len(layouts)
        tables = [layout.slots() for layout in layouts]
        lengths = [len(table.leaves) for table in tables]
        self._slot_offsets = np.cumsum([0, *lengths])
        self._owners = np.repeat(np.arange(len(layouts)), lengths)
        leaves = np.concatenate([np.zeros(0, dtype=np.intp), *(table.leaves for table in tables)])
        groups = np.concatenate([np.zeros(0, dtype=np.intp), *(table.groups for table in tables)])
        edges = np.concatenate([np.zeros(0), *(table.edges for table in tables)])
        # By leaf and layout: how many groups the layouts before have for the leaf's labels.
        before = np.array(
            [np.cumsum([0, *(len(layout.groups[leaf.by]) for layout in layouts)]) for leaf in self._program.leaves]
        )
        self._most_groups = int(before[:, -1].max())
        return _Slots(leaves, groups + before[leaves, self._owners], edges)

    def _enter(self, layouts: Sequence[Layout], kinds: NDArray[np.str_]) -> tuple[_Entries, _Entries, _Entries]:
        members = [(member, number) for number, layout in enumerate(layouts) for member in layout.members()]
        offsets = np.cumsum([0, *(len(member.series) for member, _ in members)])
        nothing = np.zeros(0, dtype=np.intp)
        rows = np.concatenate(
            [nothing, *(each.rows + offset for (each, _), offset in zip(members, offsets, strict=False))]
        )
        slots = np.concatenate([nothing, *(each.slots + self._slot_offsets[number] for each, number in members)])
        is_increase = (kinds == "increase")[slots]
        is_rate = ((kinds == "rate") | (kinds == "buckets"))[slots]

        def enter(chosen: NDArray[np.bool_]) -> _Entries:
            return _Entries(rows[chosen], slots[chosen], np.bincount(slots[chosen], minlength=len(kinds) + 1))

        return enter(is_rate), enter(is_increase), enter(~is_rate & ~is_increase)

    def _index_values(self, slots: _Slots, chosen: NDArray[np.bool_]) -> Rows:
        """The slot of every leaf and group, (leaves, groups); behind the last where there is none."""
        index = np.full((len(self._program.leaves), self._most_groups), len(slots.leaves), dtype=np.intp)
        index[slots.leaves[chosen], slots.groups[chosen]] = np.flatnonzero(chosen)
        return index

    def _named(self, figure: Derived, by: frozenset[str], layouts: Sequence[Layout]) -> list[tuple[int, Named]]:
        return [
            (number, layout.name(figure, group)) for number, layout in enumerate(layouts) for group in layout.groups[by]
        ]


def _add(entries: _Entries, values: Floats) -> tuple[Floats, NDArray[np.intp]]:
    """The sum and the number of the values of each slot, absent ones left out."""
    rows, slots, counts = entries
    weights = values[rows]
    absent = np.isnan(weights)
    if absent.any():
        weights[absent] = 0.0
        counts = np.bincount(slots[~absent], minlength=len(counts))
    return np.asarray(np.bincount(slots, weights, minlength=len(counts)), dtype=np.float64), counts


def _index_buckets(slots: _Slots, chosen: Rows) -> dict[int, list[_Table]]:
    """By leaf, its histograms by their edges."""
    order = chosen[np.lexsort((slots.edges[chosen], slots.groups[chosen], slots.leaves[chosen]))]
    leaves, groups, edges = slots.leaves[order], slots.groups[order], slots.edges[order]
    is_other = (np.diff(leaves) != 0) | (np.diff(groups) != 0)
    bounds = [0, *(np.flatnonzero(is_other) + 1).tolist(), len(order)]
    alike: dict[tuple[int, bytes], list[tuple[int, int]]] = {}
    for start, end in pairwise(bounds if len(order) else ()):
        alike.setdefault((int(leaves[start]), edges[start:end].tobytes()), []).append((start, end))
    tables: dict[int, list[_Table]] = {}
    for (leaf, _), spans in alike.items():
        start, end = spans[0]
        found = np.array([order[start:end] for start, end in spans])
        tables.setdefault(leaf, []).append(_Table(groups[[start for start, _ in spans]], edges[start:end], found))
    return tables


class AddedUp:
    """The sums of all slots at an instant; NaN where nothing was added."""

    def __init__(self, sums: Floats, index: Rows, tables: dict[int, list[_Table]]) -> None:
        self.sums = sums
        self._values: Floats = sums[index]
        self._tables = tables

    def values(self, leaf: int) -> Floats:
        """The sums of a leaf, (groups,)."""
        values: Floats = self._values[leaf]
        return values

    def quantiles(self, leaf: int, quantile: float) -> Floats:
        """The quantile of each group's buckets, (groups,)."""
        found = np.full(self._values.shape[1], np.nan)
        for groups, edges, slots in self._tables.get(leaf, ()):
            counts = self.sums[slots]
            partly = np.isnan(counts).any(axis=1)
            if partly.any():
                found[groups[~partly]] = bucket_quantiles(quantile, edges, counts[~partly])
                found[groups[partly]] = np.concatenate(
                    [_quantile_of_some(quantile, edges, each) for each in counts[partly]]
                )
            else:
                found[groups] = bucket_quantiles(quantile, edges, counts)
        return found

    def buckets(self, leaf: int, edge: float) -> Floats:
        """The sums of the buckets of one edge, (groups,)."""
        found = np.full(self._values.shape[1], np.nan)
        for groups, edges, slots in self._tables.get(leaf, ()):
            (at,) = np.nonzero(edges == edge)
            if at.size:
                found[groups] = self.sums[slots[:, at[0]]]
        return found


def _quantile_of_some(quantile: float, edges: Floats, counts: Floats) -> Floats:
    """The quantile, (1,), where a histogram lacks some of the edges it had."""
    present = ~np.isnan(counts)
    return bucket_quantiles(quantile, edges[present], counts[None, present])
