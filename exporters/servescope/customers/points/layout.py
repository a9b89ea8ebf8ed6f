"""The series of a target as a policy sees them: plain numbers and whole histograms, with the labels that may leave."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.samples import Labels, Series
from servescope.contract.types import Kind
from servescope.customers.points.edges import Floats
from servescope.customers.points.points import HistogramValue

_MOST_COUNT: Final = 2.0**53
"""Up to it a count is a whole number wherever it is stored."""

Value = float | HistogramValue


@dataclass(frozen=True, slots=True)
class ExportedObject:
    """A counter, a gauge or a histogram of a target: its metric, and the labels of the contract that may leave.

    `native` are all labels that it has beyond those of its target.
    """

    metric: str
    kind: Kind
    labels: Labels
    native: Labels


@dataclass(slots=True)
class _Histogram:
    """The rows of a histogram's parts, by edge for its buckets."""

    buckets: dict[float, int] = field(default_factory=dict)
    sum: int | None = None
    count: int | None = None


class ExportLayout:
    """Which rows of these series are which object; targets with the same series share it.

    Native labels, which the contract does not give a metric, are never exported: objects that differ in them alone have
    equal labels. `edges` are those of each object, none of numbers. `incomplete` are histograms, by metric and labels,
    that lack their sum, their count or all buckets.
    """

    def __init__(self, series: Sequence[Series], metrics: Container[str], labels: Container[str]) -> None:
        self.objects: list[ExportedObject] = []
        rows: list[int] = []
        found: dict[tuple[str, Labels], _Histogram] = {}
        for row, (name, own) in enumerate(series):
            metric = SAMPLE_FAMILIES.get(name, "")
            if metric not in metrics:
                continue
            if METRICS[metric].kind == "histogram":
                _place(found, metric, name.removeprefix(metric), own, row)
            else:
                self.objects.append(_object(metric, own, labels))
                rows.append(row)
        self._numbers = np.array(rows, dtype=np.intp)
        whole = {key: each for key, each in found.items() if each.buckets and None not in (each.sum, each.count)}
        self.incomplete = [key for key in found if key not in whole]
        self.objects += [_object(metric, own, labels) for metric, own in whole]
        self._index_histograms(list(whole.values()))
        self.edges: list[tuple[float, ...]] = [*([()] * len(rows)), *self._edges]
        self.first_rows = np.concatenate((self._numbers, self._sums))

    def _index_histograms(self, histograms: Sequence[_Histogram]) -> None:
        self._edges = [tuple(sorted(edge for edge in each.buckets if edge < np.inf)) for each in histograms]
        rows: list[int] = []
        bounds = [0]
        for each, edges in zip(histograms, self._edges, strict=True):
            rows += [*(each.buckets[edge] for edge in edges), each.count or 0]
            bounds.append(len(rows))
        self._cumulated = np.array(rows, dtype=np.intp)
        self._firsts = np.array(bounds[:-1], dtype=np.intp)
        self._bounds = list(pairwise(bounds))
        self._sums = np.array([each.sum for each in histograms], dtype=np.intp)

    def read(self, values: Floats) -> list[Value | None]:
        """The value of each object, None where it has none."""
        numbers = values[self._numbers].tolist()
        found: list[Value | None] = [value if value == value else None for value in numbers]
        if self._edges:
            found += self._histograms(values)
        return found

    def _histograms(self, values: Floats) -> list[Value | None]:
        cumulated = values[self._cumulated]
        counts = np.diff(cumulated, prepend=0.0)
        counts[self._firsts] = cumulated[self._firsts]
        sums = values[self._sums]
        known = ~np.isnan(np.add.reduceat(cumulated, self._firsts) + sums)
        # No message has other counts, and one histogram must not hold up the rest.
        known &= np.minimum.reduceat(counts, self._firsts) > -1.0
        known &= np.maximum.reduceat(cumulated, self._firsts) <= _MOST_COUNT
        whole: NDArray[np.int64] = np.rint(np.clip(np.nan_to_num(counts, nan=0.0), 0.0, _MOST_COUNT)).astype(np.int64)
        listed = whole.tolist()
        return [
            HistogramValue(edges, tuple(listed[start:end]), total) if is_known else None
            for edges, (start, end), total, is_known in zip(
                self._edges, self._bounds, sums.tolist(), known.tolist(), strict=True
            )
        ]


def _object(metric: str, own: Labels, labels: Container[str]) -> ExportedObject:
    of_contract = METRICS[metric].own_labels
    kept = tuple(pair for pair in own if pair[0] in of_contract and pair[0] in labels)
    return ExportedObject(metric, METRICS[metric].kind, kept, own)


def _place(found: dict[tuple[str, Labels], _Histogram], metric: str, part: str, own: Labels, row: int) -> None:
    rest = tuple(pair for pair in own if pair[0] != "le") if part == "_bucket" else own
    histogram = found.setdefault((metric, rest), _Histogram())
    if part == "_sum":
        histogram.sum = row
    elif part == "_count":
        histogram.count = row
    elif part == "_bucket":
        edge = next((value for name, value in own if name == "le"), "")
        histogram.buckets[_number(edge)] = row


def _number(edge: str) -> float:
    try:
        number = float(edge)
    except ValueError:
        return np.inf
    return number if number == number else np.inf
