"""Translate native series into contract samples by a source map.

Pure: from an exposition, a source and an identity to samples and coverage. Everything but the values depends only on
which series there are; so a translation is a plan, made once while a target exposes the same series, and applied to
the values of every scrape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import ATTACHED_LABELS, Identity
from servescope.contract.metrics import METRICS, SEGMENT
from servescope.contract.samples import Labels, Sample, Series, format_edge, make_labels
from servescope.contract.types import Metric
from servescope.sources.maps import SUPPLIED, Alternative, MetricMap, Source, Status, Term
from servescope.sources.parse import Exposition, canonical_name
from servescope.sources.parts import WHOLE_PAGE, PagePart, agree
from servescope.sources.segments import SegmentNames
from servescope.sources.zeros import FactPlace, Facts, find_facts, read_facts

_HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True)
class Coverage:
    """Whether a source supplies a metric, from which native series, and with which reservation.

    `native` is None when no native series feeds it; `reason` explains zeros that are added before the first use.
    `no_sum` says why a histogram has no sum, and so no mean; None where it has one.
    """

    status: Status
    native: str | None = None
    reason: str | None = None
    no_sum: str | None = None

    def explain(self) -> str | None:
        """The reservation, and why there is no mean."""
        return "; ".join(filter(None, (self.reason, self.no_sum))) or None


_PROCESS_RATIO = Coverage("derived", None, "derived from counters; no gauge of a single process is read")


@dataclass(frozen=True, slots=True)
class Translation:
    """The contract samples of one exposition, the coverage of every metric of the contract, and how the engine is set
    up, as far as the exposition shows it."""

    samples: list[Sample]
    coverage: dict[str, Coverage]
    facts: Facts


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How the n native values of an exposition become the m of the contract.

    The value of native sample `natives[i]` times `scales[i]` is added to that of `series[into[i]]`, in this order;
    all three are (k,). A series that nothing is added to is 0, until its first use. `fact_places` are the native
    samples that show how the engine is set up.
    """

    series: tuple[Series, ...]
    natives: NDArray[np.intp]
    into: NDArray[np.intp]
    scales: NDArray[np.float64]
    coverage: dict[str, Coverage]
    fact_places: tuple[FactPlace, ...] = ()

    def apply(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The (m,) contract values of (n,) native ones; what overflows is infinite, or NaN."""
        # In the order of the pairs and from 0.0, so that the last bit is that of a plain sum.
        with np.errstate(over="ignore"):
            weights = values[self.natives] * self.scales
        return np.bincount(self.into, weights, minlength=len(self.series)).astype(np.float64, copy=False)

    def keep(self, places: NDArray[np.intp]) -> Plan:
        """The plan for the series at these places alone, in their order."""
        new = np.full(len(self.series), -1, dtype=np.intp)
        new[places] = np.arange(len(places))
        kept = new[self.into] >= 0
        series = tuple(self.series[place] for place in places.tolist())
        return Plan(series, self.natives[kept], new[self.into[kept]], self.scales[kept], self.coverage)

    def show_as(self, series: tuple[Series, ...]) -> Plan:
        """The plan with an equal tuple of series in place of its own."""
        return replace(self, series=series)


def translate(
    exposition: Exposition,
    source: Source,
    identity: Identity,
    segments: SegmentNames | None = None,
    part: PagePart = WHOLE_PAGE,
) -> Translation:
    """The contract samples of an exposition.

    There is one sample per native series: native labels are kept beside the identity's, one of the same name as
    `exported_<label>`. Only labels that the map drops are removed; values whose series become equal are added.
    """
    plan = plan_translation(exposition, source, identity.labels(), segments, part)
    native = np.array([sample.value for sample in exposition.samples], dtype=np.float64)
    values = plan.apply(native)
    samples = [Sample(*series, value) for series, value in zip(plan.series, values.tolist(), strict=True)]
    return Translation(samples, plan.coverage, read_facts(plan.fact_places, native))


def plan_translation(
    exposition: Exposition,
    source: Source,
    identity: Labels,
    segments: SegmentNames | None = None,
    part: PagePart = WHOLE_PAGE,
) -> Plan:
    """The plan for expositions of the same series; the values of this one are not used.

    `identity` are the labels that every series is given; none where a scraper adds them. `segments` name the segments
    of metrics that can have them; without, a native label `segment` is kept as it is. Only series of the `part` are
    used. Which names a release exposes is known from the whole page, and so is what describes its process.
    """
    planner = _Planner()
    coverage: dict[str, Coverage] = {}
    labelling = _Labelling(identity, segments)
    for name, metric_map in source.metrics.items():
        own = WHOLE_PAGE if metric_map.metric.component == "process" else part
        coverage[name] = _plan_metric(planner, exposition, source, metric_map, labelling, own)
    _settle_components(source, coverage)
    plan = planner.plan({name: coverage.get(name, _PROCESS_RATIO) for name in METRICS})
    return replace(plan, fact_places=find_facts(exposition, source.setup))


MOST_FIRST_USES: Final = 256
"""Of a page with more models and engines than this no series begin at 0: each would have a hundred of them."""


class _Planner:
    """Collects the series of a plan and what is added to each."""

    def __init__(self) -> None:
        self._series: list[Series] = []
        self._natives: list[int] = []
        self._into: list[int] = []
        self._scales: list[float] = []

    def begin_series(self, name: str, labels: Labels) -> int:
        """A series of the contract; its place."""
        self._series.append(Series(name, labels))
        return len(self._series) - 1

    def add(self, native: int, into: int, scale: float) -> None:
        self._natives.append(native)
        self._into.append(into)
        self._scales.append(scale)

    def plan(self, coverage: dict[str, Coverage]) -> Plan:
        return Plan(
            tuple(self._series),
            np.array(self._natives, dtype=np.intp),
            np.array(self._into, dtype=np.intp),
            np.array(self._scales, dtype=np.float64),
            coverage,
        )


def _plan_metric(
    planner: _Planner,
    exposition: Exposition,
    source: Source,
    metric_map: MetricMap,
    labelling: _Labelling,
    part: PagePart,
) -> Coverage:
    alternative = _choose(exposition, metric_map.alternatives)
    found: dict[tuple[str, Labels], int] = {}
    for term in alternative.terms if alternative else ():
        for each in _read_term(exposition, metric_map, term, labelling, part):
            into = found.get(each.series)
            if into is None:
                into = found[each.series] = planner.begin_series(*each.series)
            planner.add(each.native, into, each.scale)
    # What is exposed without the labels that split the page stays without them, so its zeros would never end.
    is_of_nobody = (
        bool(part.select) and alternative is not None and not found and not _is_split(exposition, alternative, part)
    )
    zeros = [] if is_of_nobody else _zeros(exposition, source, metric_map, alternative, labelling, part)
    if not metric_map.metric.labels:
        zeros = _like(found, zeros)
    # A histogram's own buckets may have other edges than the map's, so either all are its own or all are zeros.
    unused = [part for parts in zeros if not any(part in found for part in parts) for part in parts]
    for series in unused:
        planner.begin_series(*series)
    if alternative is None and metric_map.absent == "unset" and source.signs.explain_mismatch(exposition) is None:
        return Coverage("present", None, f"not exposed: {metric_map.reason}")
    if alternative is not None and part.select and not found and not zeros:
        return Coverage("impossible", None, f"exposed without {part.describe()}: {_natives(exposition, alternative)}")
    return _cover(exposition, metric_map, alternative, zeros=bool(zeros))


def _choose(exposition: Exposition, alternatives: Iterable[Alternative]) -> Alternative | None:
    # The first that is exposed, never a sum: a renamed series may be exposed under both its names.
    return next((each for each in alternatives if _is_there(exposition, each)), None)


def _is_there(exposition: Exposition, alternative: Alternative) -> bool:
    needed = [term.native for term in alternative.terms if not term.optional]
    return all(map(exposition.has, (*needed, *alternative.requires))) and not any(
        map(exposition.has, alternative.unless)
    )


def _is_split(exposition: Exposition, alternative: Alternative, part: PagePart) -> bool:
    """Whether the series of an alternative have the labels by which a part of the page is selected."""
    natives = [term.native + suffix for term in alternative.terms for suffix in ("", "_count")]
    samples = (each for native in natives for each in exposition.by_name.get(canonical_name(native), ()))
    shown = [{label for label, _ in each.labels} for each in samples]
    return any(labels.issuperset(label for label, _ in select) for select in part.select for labels in shown)


class _Part(NamedTuple):
    """The index of a native sample, the series it is added to, and its factor."""

    native: int
    series: tuple[str, Labels]
    scale: float


def _read_term(
    exposition: Exposition, metric_map: MetricMap, term: Term, labelling: _Labelling, part: PagePart
) -> Iterator[_Part]:
    """Every sample that a term selects, each native series once."""
    metric = metric_map.metric
    for suffix in _suffixes(metric_map):
        scale = 1.0 if suffix in ("_bucket", "_count") else term.scale
        places = exposition.places.get(canonical_name(term.native) + suffix, ())
        for own, native in _select(exposition, places, term, part).items():
            labels = labelling.relabel(_scale_edge(own, term.scale), term, metric)
            yield _Part(native, (metric.name + suffix, labels), scale)


def _suffixes(metric_map: MetricMap) -> tuple[str, ...]:
    if metric_map.metric.kind != "histogram":
        return ("",)
    return tuple(part for part in _HISTOGRAM_PARTS if part != "_sum" or metric_map.no_sum is None)


def _select(exposition: Exposition, places: Iterable[int], term: Term, part: PagePart) -> dict[Labels, int]:
    """The places of the series that a term selects, by their labels; of a repeated series, the first place."""
    selected: dict[Labels, int] = {}
    for place in places:
        own = exposition.samples[place].labels
        if own not in selected and _is_selected(own, term) and part.has(own):
            selected[own] = place
    return _keep_lowest(selected, term.same_across) if term.same_across else selected


def _keep_lowest(selected: Mapping[Labels, int], same_across: Collection[str]) -> dict[Labels, int]:
    """Of series that differ in these labels alone, the one with their lowest values."""
    lowest: dict[Labels, Labels] = {}
    for own in selected:
        rest = tuple(pair for pair in own if pair[0] not in same_across)
        lowest[rest] = min(lowest.get(rest, own), own, key=lambda labels: _order(labels, same_across))
    return {own: selected[own] for own in lowest.values()}


def _order(labels: Labels, compared: Collection[str]) -> list[tuple[int, str]]:
    # Ranks are whole numbers as text, so that the shorter one is the lower one.
    return [(len(value), value) for label, value in labels if label in compared]


def _is_selected(labels: Labels, term: Term) -> bool:
    if not term.select and not term.exclude:
        return True
    values = dict(labels)
    return agree(values, term.select) and not (term.exclude and agree(values, term.exclude))


def _scale_edge(labels: Labels, scale: float) -> Labels:
    if scale == 1.0:
        return labels
    return tuple((label, format_edge(float(value) * scale) if label == "le" else value) for label, value in labels)


class _Labelling:
    """Adds an identity's labels to series; a native label of the same name gets another name."""

    def __init__(self, identity: Labels, segments: SegmentNames | None) -> None:
        self._identity = dict(identity)
        self._segments = segments
        # A thousand targets have a million pairs, and few different ones each.
        self._pairs: dict[tuple[str, str], tuple[str, str]] = {}

    def relabel(self, native: Labels, term: Term, metric: Metric) -> Labels:
        """The contract labels of a native series."""
        own = dict(native)
        given = {
            label: next((rule.value for rule in rules if agree(own, rule.when)), "") for label, rules in term.labels
        }
        segments = self._segments if SEGMENT in metric.optional else None
        if segments is not None:
            native, dropped = segments.rename(native), term.drop - {SEGMENT}
        else:
            dropped = term.drop
        return self.add(((label, value) for label, value in native if label not in dropped), given)

    def add(self, native: Iterable[tuple[str, str]], given: Mapping[str, str]) -> Labels:
        """Native labels with the contract's `given` ones and the identity's, which win."""
        labels = {**given, **self._identity}
        result = dict(labels)
        for label, value in native:
            # A native label does not fill an identity label that the operator left empty: it would split a deployment.
            # Nor does it say where it was scraped.
            if label not in ATTACHED_LABELS and label not in given:
                result[label] = value
            elif labels.get(label) != value:
                result[f"exported_{label}"] = value
        return self.share(make_labels(result))

    def share(self, labels: Labels) -> Labels:
        """Equal labels, made of pairs that are kept once."""
        return tuple([self._pairs.setdefault(pair, pair) for pair in labels])


def _zeros(
    exposition: Exposition,
    source: Source,
    metric_map: MetricMap,
    chosen: Alternative | None,
    labelling: _Labelling,
    part: PagePart,
) -> list[list[tuple[str, Labels]]]:
    """The series that are 0 until their first use; a histogram's parts together."""
    if metric_map.absent != "zero" or not all(map(exposition.has, source.first_use.when)):
        return []
    present = _present_labels(exposition, source, part)
    terms = (chosen or metric_map.alternatives[0]).terms if metric_map.alternatives else ()
    if any(term.zeros for term in terms):
        labels = [each for term in terms for each in _zeros_of(exposition, metric_map, term, present, labelling)]
    elif all(map(exposition.has, metric_map.zero_when)):
        labels = [labelling.add(own, dict(closed)) for own in present for closed in metric_map.zeros]
    else:
        labels = []
    metric = metric_map.metric.name
    return [
        [(metric + suffix, labelling.share(make_labels((*each, *edge)))) for suffix, edge in _parts(metric_map)]
        for each in dict.fromkeys(labels)
    ]


def _like(found: Iterable[tuple[str, Labels]], zeros: list[list[tuple[str, Labels]]]) -> list[list[tuple[str, Labels]]]:
    """The zeros that have the labels of what is found; what has others beside them becomes no series of the zeros."""
    named = {_names(labels) for _, labels in found}
    return [parts for parts in zeros if not named or _names(parts[0][1]) in named]


def _names(labels: Labels) -> frozenset[str]:
    return frozenset(label for label, _ in labels if label != "le")


def _zeros_of(
    exposition: Exposition, metric_map: MetricMap, term: Term, present: Iterable[Labels], labelling: _Labelling
) -> list[Labels]:
    """The labels of a term's zeros: of the series that it would select, as those are relabelled."""
    if not all(map(exposition.has, term.zero_when)):
        return []
    natives = (make_labels((*own, *native)) for own in present for native in term.zeros)
    return [labelling.relabel(each, term, metric_map.metric) for each in natives]


def _present_labels(exposition: Exposition, source: Source, part: PagePart) -> list[Labels]:
    like, wanted = source.first_use.like, source.first_use.labels
    if like is None:
        return [()]
    samples = exposition.by_name.get(canonical_name(like), ())
    kept = (tuple(pair for pair in sample.labels if pair[0] in wanted) for sample in samples if part.has(sample.labels))
    present = list(dict.fromkeys(kept))
    return present if len(present) <= MOST_FIRST_USES else []


def _parts(metric_map: MetricMap) -> list[tuple[str, Labels]]:
    edges = (*metric_map.edges, float("inf")) if metric_map.edges else ()
    parts: list[tuple[str, Labels]] = [(suffix, ()) for suffix in _suffixes(metric_map) if suffix != "_bucket"]
    return parts + [("_bucket", (("le", format_edge(edge)),)) for edge in edges]


def _cover(exposition: Exposition, metric_map: MetricMap, chosen: Alternative | None, *, zeros: bool) -> Coverage:
    no_sum = metric_map.no_sum
    if chosen:
        return Coverage(chosen.status, _natives(exposition, chosen), chosen.reason, no_sum)
    if metric_map.status:
        return Coverage(metric_map.status, None, metric_map.reason)
    if zeros:
        return Coverage("present", None, "not exposed before its first use, so 0", no_sum)
    if metric_map.absent == "off":
        return Coverage("impossible", None, metric_map.reason)
    return Coverage("impossible", None, _explain_absence(exposition, metric_map))


def _natives(exposition: Exposition, alternative: Alternative) -> str:
    return " + ".join(dict.fromkeys(term.native for term in alternative.terms if exposition.has(term.native)))


def _settle_components(source: Source, coverage: dict[str, Coverage]) -> None:
    """Of a component that a process exposes, what is missing is impossible, not elsewhere."""
    exposed = {METRICS[name].component for name, each in coverage.items() if each.status in SUPPLIED}
    for name, metric_map in source.metrics.items():
        metric = metric_map.metric
        if metric_map.alternatives and coverage[name].status == "elsewhere" and metric.component in exposed:
            coverage[name] = Coverage("impossible", None, metric.absent)


def _explain_absence(exposition: Exposition, metric_map: MetricMap) -> str:
    wanted = (name for each in metric_map.alternatives for name in _missing(exposition, each))
    text = f"not exposed: {', '.join(repr(name) for name in dict.fromkeys(wanted))}"
    return f"{text}; {metric_map.reason}" if metric_map.reason else text


def _missing(exposition: Exposition, alternative: Alternative) -> list[str]:
    """The series of an alternative that are not exposed; where all are, those that it is used beside."""
    native = [term.native for term in alternative.terms if not term.optional]
    own = [name for name in native if not exposition.has(name)]
    return own or [name for name in alternative.requires if not exposition.has(name)]
