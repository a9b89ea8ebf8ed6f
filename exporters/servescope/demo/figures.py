"""The figures of every block of a past, computed for all blocks at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.expressions import matches
from servescope.contract.figures import FIGURES, figure_key
from servescope.contract.samples import Series
from servescope.increments.blocks import BLOCK_MS
from servescope.increments.program import Program, bucket_quantiles

Floats = NDArray[np.float64]

_PROGRAMS: Final = {
    by: Program(figure for figure in FIGURES.values() if figure.by == by)
    for by in dict.fromkeys(figure.by for figure in FIGURES.values())
}


def derive_blocks(
    counters: Sequence[Series], gains: Floats, gauges: Sequence[Series], levels: Floats
) -> Iterator[tuple[str, Floats]]:
    """Every figure of a deployment by its key, (n,), NaN where it is absent.

    Of n blocks `gains` are what all its counters gained, (m, n), and `levels` those of its gauges, (g, n).
    """
    for by, program in _PROGRAMS.items():
        for labels in _groups(by, (*counters, *gauges)):
            sums = _BlockSums(program, _Rows(counters, gains, labels), _Rows(gauges, levels, labels))
            for figure, values in zip(program.figures, program.run(sums), strict=True):
                if values.size and not np.isnan(values).all():
                    yield figure_key(figure.name, labels), np.broadcast_to(values, gains.shape[1:])


def _groups(by: tuple[str, ...], series: Sequence[Series]) -> list[dict[str, str]]:
    """The values of these labels that some series have."""
    found = {tuple(pair for pair in each.labels if pair[0] in by): None for each in series}
    return [dict(pairs) for pairs in found if len(pairs) == len(by)]


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The values of series, (m, n), of a group: those that have its labels."""

    series: Sequence[Series]
    values: Floats
    group: Mapping[str, str]

    def find(self, name: str, wanted: Callable[[Mapping[str, str]], bool]) -> Floats:
        """The values of those of a name whose labels are wanted."""
        rows = []
        for row, each in enumerate(self.series):
            if each.name == name:
                labels = dict(each.labels)
                if self.group.items() <= labels.items() and wanted(labels):
                    rows.append(row)
        found: Floats = self.values[rows]
        return found


class _BlockSums:
    """The sums that a program's leaves need, per block."""

    def __init__(self, program: Program, counters: _Rows, gauges: _Rows) -> None:
        self._leaves = program.leaves
        self._counters = counters
        self._gauges = gauges
        self._none = np.full(counters.values.shape[1], np.nan)

    def values(self, leaf: int) -> Floats:
        """What is counted a second, or the level of a gauge."""
        kind, name, where, _ = self._leaves[leaf]
        rows = self._counters if kind in ("rate", "increase") else self._gauges
        found = rows.find(name, lambda labels: matches(labels, where))
        if not len(found):
            return self._none
        if kind in ("rate", "increase"):
            counted: Floats = found.sum(axis=0)
            return counted / (BLOCK_MS / 1000) if kind == "rate" else counted
        if kind == "sum":
            return np.asarray(np.nansum(found, axis=0))
        return np.asarray(np.nanmean(found, axis=0) if kind == "avg" else np.nanmax(found, axis=0))

    def quantiles(self, leaf: int, quantile: float) -> Floats:
        name = self._leaves[leaf].name
        edges = sorted({float(dict(each.labels)["le"]) for each in self._counters.series if each.name == name})
        if not edges:
            return self._none
        counts = np.stack([self.buckets(leaf, edge) for edge in edges], axis=1)
        return bucket_quantiles(quantile, np.array(edges), counts)

    def buckets(self, leaf: int, edge: float) -> Floats:
        found = self._counters.find(self._leaves[leaf].name, lambda labels: float(labels["le"]) == edge)
        return found.sum(axis=0) / (BLOCK_MS / 1000) if len(found) else self._none
