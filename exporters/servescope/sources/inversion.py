"""The inverse of a source map: native series that it reads as given contract samples.

Of a metric's alternatives the first is written, which is the newest release's. Which native series a contract series is
the sum of is asked of the translation itself, so that what is written is read back by the rules it was written by.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple

import numpy as np

from servescope.contract.metrics import SAMPLE_FAMILIES
from servescope.contract.samples import Labels, Sample, Series, format_edge, format_series, format_value, make_labels
from servescope.contract.types import Metric
from servescope.sources.maps import SUPPLIED, Alternative, LabelRule, MetricMap, Source, Term, VersionRule
from servescope.sources.parse import expose
from servescope.sources.translate import plan_translation

_SIGN_VALUE: Final = "emulated"
"""Of the label that a source is identified by, whatever its value."""

Values = Mapping[Series, float]
"""Contract values by name and the contract's own labels, `le` included."""


class NativePage:
    """The page of one target: what contract samples say in the names of the source's newest release.

    A series whose absence means zero stays away until it is above 0, as in the engine. What identifies the source, and
    what has to be there for others to be read, is there from the start. Where the map has other bucket edges than the
    samples, counts at its edges are interpolated and not rounded, so that over no time a bucket counts more than a
    larger one. A native series that several metrics are read from has the value of the one that the map reads best.
    `model_name` is the model that the page names, where the source's pages name one.
    """

    def __init__(self, source: Source, model_name: str) -> None:
        self._source = source
        named = (source.model_label, *source.first_use.labels)
        self._labels = {label: model_name for label in named if label} | (
            {source.signs.label: _SIGN_VALUE} if source.signs.label else {}
        )
        self._taken = {
            name: (metric_map, metric_map.alternatives[0])
            for name, metric_map in source.metrics.items()
            if metric_map.alternatives
        }
        self._from_the_start = _names_from_the_start(source)
        self._layouts: dict[frozenset[Series], _Layout] = {}

    def render(self, samples: Iterable[Sample]) -> bytes:
        """The page; labels of samples that the contract does not have are ignored, and equal series added."""
        values = self._pick(samples)
        series = frozenset(values)
        if series not in self._layouts:
            self._layouts[series] = self._lay_out(values)
        return self._layouts[series].render(values)

    def _pick(self, samples: Iterable[Sample]) -> dict[Series, float]:
        """The values that the source takes, by their series without other labels."""
        values: dict[Series, float] = {}
        for name, labels, value in samples:
            taken = self._taken.get(SAMPLE_FAMILIES.get(name, ""))
            if taken is not None:
                series = Series(name, _own_labels(labels, taken[0].metric))
                values[series] = values.get(series, 0.0) + value
        return values

    def _lay_out(self, values: Values) -> _Layout:
        cells = self._cells(values)
        natives = tuple(cells)
        plan = plan_translation(expose(natives, np.zeros(len(natives))), self._source, ())
        parts: dict[Series, list[_Part]] = {}
        for native, into, scale in zip(plan.natives.tolist(), plan.into.tolist(), plan.scales.tolist(), strict=True):
            name, labels = plan.series[into]
            metric = self._taken[SAMPLE_FAMILIES[name]][0].metric
            parts.setdefault(Series(name, _own_labels(labels, metric)), []).append(_Part(native, scale))
        rows = [self._row(read, tuple(summed), values) for read, summed in parts.items()]
        return _Layout(list(cells.values()), rows)

    def _row(self, read: Series, parts: tuple[_Part, ...], values: Values) -> _Row:
        metric_map, alternative = self._taken[SAMPLE_FAMILIES[read.name]]
        is_zero = metric_map.absent == "zero" and _without_edge(read.labels) in metric_map.zeros
        return _Row(parts, SUPPLIED.index(alternative.status), is_zero, _blend(read, values))

    # --- Which native series there are --------------------------------------------------------------------------------

    def _cells(self, values: Values) -> dict[Series, _Cell]:
        """Native series that every contract series can be read from, and what the source is identified by."""
        cells: dict[Series, _Cell] = {}
        for metric_map, alternative in self._taken.values():
            for own in _wanted(metric_map, values):
                for cell in self._write(alternative, metric_map, own):
                    # A counter that is a part of a histogram on the page is shown with it.
                    if cell.series not in cells or cell.kind == "histogram":
                        cells[cell.series] = cell
        there = {name for cell in cells.values() for name in (cell.series.name, cell.family)}
        for name in sorted(self._from_the_start - there):
            series = Series(name, make_labels(self._labels))
            cells[series] = _Cell(series, name, "counter" if name.endswith("_total") else "gauge", is_first=True)
        return cells

    def _write(self, alternative: Alternative, metric_map: MetricMap, own: Labels) -> Iterator[_Cell]:
        metric = metric_map.metric
        for term in alternative.terms:
            chosen = _native_labels(term, own)
            if chosen is None:
                continue
            labels = self._labels | chosen
            for suffix, edge in _parts(metric_map, term.scale):
                series = Series(f"{term.native}{suffix}", make_labels(labels | edge))
                yield _Cell(series, term.native, metric.kind, is_first=term.native in self._from_the_start)


def newest_release(source: Source) -> VersionRule:
    """The rule of the newest release; some are of releases that are another source, the first of the others is it."""
    foreign = {*source.signs.none}
    return next(rule for rule in source.versions if not foreign & {*rule.present})


def _names_from_the_start(source: Source) -> frozenset[str]:
    """The names that a page of the newest release has whatever has happened."""
    signs, first_use = source.signs, source.first_use
    taken = [each for each in source.metrics.values() if each.alternatives]
    written = [each.alternatives[0] for each in taken]
    read = {term.native for each in written for term in each.terms}
    shown = [name for name in signs.any if name in read] or signs.any
    zero_when = (name for each in taken if each.absent == "zero" for name in each.zero_when)
    required = (name for each in written for name in each.requires)
    like = (first_use.like,) if first_use.like else ()
    newest = newest_release(source).present
    return frozenset((*signs.all, *shown[:1], *newest, *first_use.when, *like, *zero_when, *required))


def _wanted(metric_map: MetricMap, values: Values) -> Sequence[Labels]:
    """The labels of the metric's series; a histogram whose absence has no meaning is there from the start on."""
    metric = metric_map.metric
    found = {_without_edge(labels): None for name, labels in values if SAMPLE_FAMILIES[name] == metric.name}
    if not found and metric.kind == "histogram" and metric_map.absent == "unknown":
        return ((),)
    return tuple(found)


def _parts(metric_map: MetricMap, scale: float) -> Iterator[tuple[str, dict[str, str]]]:
    """The suffixes of the native series of a metric, each with its edge."""
    metric = metric_map.metric
    if metric.kind != "histogram":
        yield "", {}
        return
    for edge in (*(metric_map.edges or metric.edges or ()), math.inf):
        yield "_bucket", {"le": format_edge(edge / scale)}
    yield "_sum", {}
    yield "_count", {}


def _native_labels(term: Term, own: Labels) -> dict[str, str] | None:
    """Labels by which a term's series are read with these labels of the contract; None where no rule sets them."""
    rules = dict(term.labels)
    chosen = {label: values[0] for label, values in term.select}
    for label, value in own:
        if label not in rules:
            chosen[label] = value
            continue
        rule = next((each for each in rules[label] if each.value == value), None)
        if rule is None:
            return None
        chosen = (_labels_of_no_rule(rules[label], term) if not rule.when else _first(rule)) | chosen
    return chosen


def _first(rule: LabelRule) -> dict[str, str]:
    return {label: values[0] for label, values in rule.when}


def _labels_of_no_rule(rules: Sequence[LabelRule], term: Term) -> dict[str, str]:
    """For each label that rules ask for, a value that none of them has; among codes of HTTP one of an error."""
    named: dict[str, set[str]] = {}
    for label, values in (pair for rule in rules for pair in rule.when):
        named.setdefault(label, set()).update(values)
    for label, values in term.exclude:
        named.get(label, set()).update(values)
    return {label: _another(values) for label, values in named.items()}


def _another(values: set[str]) -> str:
    words = map(str, count(500)) if all(map(str.isdigit, values)) else (f"error{'_' * each}" for each in count())
    return next(word for word in words if word not in values)


def _own_labels(labels: Labels, metric: Metric) -> Labels:
    return tuple(pair for pair in labels if pair[0] in metric.labels or pair[0] == "le")


def _without_edge(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] != "le")


# --- Which values they have -------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """A native series by its place, and the factor with which it is added to a contract series."""

    place: int
    scale: float


@dataclass(frozen=True, slots=True)
class _Cell:
    """A native series, the family it is of and that family's kind; `is_first` when it is there from the start."""

    series: Series
    family: str
    kind: str
    is_first: bool

    @property
    def group(self) -> tuple[str, Labels]:
        """What appears together with it: the parts of a histogram."""
        return (self.family, _without_edge(self.series.labels)) if self.kind == "histogram" else self.series


class _Blend(NamedTuple):
    """A contract value: that of `upper`, or as far as `share` from that of `lower` to it."""

    lower: Series | None
    upper: Series
    share: float = 1.0

    def of(self, values: Values) -> float:
        """The value; 0 for what has none."""
        upper = values.get(self.upper, 0.0)
        if self.share == 1.0:
            return upper
        lower = values.get(self.lower, 0.0) if self.lower else 0.0
        return lower + (upper - lower) * self.share


def _blend(read: Series, values: Values) -> _Blend:
    """Where the value of a contract series is from: of a bucket, the buckets of the same histogram around its edge."""
    edge = float(dict(read.labels).get("le", math.inf))
    if math.isinf(edge) or read in values:
        return _Blend(None, read)
    own = _without_edge(read.labels)
    found = (labels for name, labels in values if name == read.name and _without_edge(labels) == own)
    by_edge = {float(dict(labels)["le"]): Series(read.name, labels) for labels in found}
    edges = sorted(each for each in by_edge if not math.isinf(each))
    place = bisect_left(edges, edge)
    if place == len(edges):  # nothing says how many are beyond the last edge
        return _Blend(None, by_edge[edges[-1]] if edges else read)
    lowest = edges[place - 1] if place else 0.0
    share = max(edge - lowest, 0.0) / (edges[place] - lowest)
    return _Blend(by_edge[lowest] if place else None, by_edge[edges[place]], share)


class _Row(NamedTuple):
    """A contract series: the native ones that it is the sum of, how well it is read (0 the best), whether it is 0
    without them, and its value."""

    parts: tuple[_Part, ...]
    rank: int
    is_zero: bool
    value: _Blend


class _Step(NamedTuple):
    """The native series `part` gets what a contract value leaves after those that are known."""

    part: _Part
    value: _Blend
    known: tuple[_Part, ...]


class _Layout:
    """The native series of a page, and the order in which their values follow from contract values."""

    def __init__(self, cells: Sequence[_Cell], rows: Sequence[_Row]) -> None:
        self._cells = cells
        self._steps = tuple(_solve(rows))
        self._lines = _lines(cells)
        self._awaited = _groups_awaited(cells, rows)

    def render(self, values: Values) -> bytes:
        """The page of contract values of the series it was laid out for."""
        solved = [0.0] * len(self._cells)
        for part, value, known in self._steps:
            rest = value.of(values) - sum(solved[place] * scale for place, scale in known)
            solved[part.place] = max(rest, 0.0) / part.scale
        unused = [place for group in self._awaited if not any(solved[each] for each in group) for place in group]
        shown = dict.fromkeys(range(len(self._cells)))
        for place in unused:
            del shown[place]
        text = []
        for head, lines in self._lines:
            found = [f"{series} {format_value(solved[place])}\n" for place, series in lines if place in shown]
            text += [head, *found] if found else []
        return "".join(text).encode()


def _solve(rows: Iterable[_Row]) -> Iterator[_Step]:
    """A queue is a part of what is in flight, so sums of few series first; of several of one series the best first."""
    known: set[int] = set()
    for row in sorted(rows, key=lambda row: (len(row.parts), row.rank)):
        free = [part for part in row.parts if part.place not in known]
        if free:
            yield _Step(free[0], row.value, tuple(part for part in row.parts if part.place in known))
            known.update(part.place for part in free)


def _lines(cells: Sequence[_Cell]) -> list[tuple[str, list[tuple[int, str]]]]:
    """By family its head, and its series with their places."""
    families: dict[str, tuple[str, list[tuple[int, str]]]] = {}
    for place, cell in enumerate(cells):
        head = f"# TYPE {cell.family} {cell.kind}\n"
        families.setdefault(cell.family, (head, []))[1].append((place, format_series(*cell.series)))
    return list(families.values())


def _groups_awaited(cells: Sequence[_Cell], rows: Sequence[_Row]) -> list[list[int]]:
    """The places of the series that appear together at their first use: all that is read from them is 0 until then."""
    lasting = {part.place for row in rows for part in row.parts if not row.is_zero}
    groups: dict[tuple[str, Labels], list[int]] = {}
    for place, cell in enumerate(cells):
        groups.setdefault(cell.group, []).append(place)
    return [
        places for places in groups.values() if not any(place in lasting or cells[place].is_first for place in places)
    ]
