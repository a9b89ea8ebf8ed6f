"""From what an engine exposes to the contract: native series become contract samples through a source map.

Pure: an exposition, a source and an identity in, samples and coverage out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from servescope.catalog import METRICS, Metric
from servescope.collector.parse import Exposition, canonical_name
from servescope.identity import IDENTITY_LABELS, Identity
from servescope.samples import Labels, Sample, format_edge, make_labels
from servescope.sources import SUPPLIED, Alternative, MetricMap, Source, Status, Term, Values

_HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True)
class Coverage:
    """Whether a source supplies a metric, from which native series, and what is to be known about it.

    `native` is None when nothing native feeds it; a zero given before its first use has the reason for that.
    """

    status: Status
    native: str | None = None
    reason: str | None = None


_PROCESS_RATIO = Coverage("derived", None, "derived from counters; no gauge of a single process is read")


@dataclass(frozen=True, slots=True)
class Translation:
    """The contract samples of one exposition, and the coverage of every metric of the contract."""

    samples: list[Sample]
    coverage: dict[str, Coverage]


def translate(exposition: Exposition, source: Source, identity: Identity) -> Translation:
    """The exposition in the words of the contract.

    There is one sample per native series: native labels stay, beside the identity's, and one that is in their way is
    kept as `exported_<label>`. Only labels that the map drops are gone; values that become one series thereby are
    added.
    """
    samples: list[Sample] = []
    coverage: dict[str, Coverage] = {}
    identified = _Labelling(identity)
    for name, metric_map in source.metrics.items():
        found, coverage[name] = _translate_metric(exposition, source, metric_map, identified)
        samples.extend(found)
    _settle_components(source, coverage)
    return Translation(samples, {name: coverage.get(name, _PROCESS_RATIO) for name in METRICS})


def _translate_metric(
    exposition: Exposition, source: Source, metric_map: MetricMap, labelling: _Labelling
) -> tuple[list[Sample], Coverage]:
    alternative = _choose(exposition, metric_map.alternatives)
    values: dict[tuple[str, Labels], float] = {}
    if alternative:
        for term in alternative.terms:
            for name, labels, value in _read_term(exposition, metric_map.metric, term, labelling):
                values[name, labels] = values.get((name, labels), 0.0) + value
    zeros = _zeros(exposition, source, metric_map, labelling)
    # A histogram's own buckets may have other edges than the map supposes, so it is all its own or all zeros.
    unused = [part for parts in zeros if not any(part in values for part in parts) for part in parts]
    values.update((part, 0.0) for part in unused)
    samples = [Sample(name, labels, value) for (name, labels), value in values.items()]
    return samples, _cover(exposition, metric_map, alternative, zeros=bool(zeros))


def _choose(exposition: Exposition, alternatives: Iterable[Alternative]) -> Alternative | None:
    # The first that is there, never a sum: a renamed series may be exposed under both its names.
    return next((each for each in alternatives if _is_there(exposition, each)), None)


def _is_there(exposition: Exposition, alternative: Alternative) -> bool:
    needed = [term.native for term in alternative.terms if not term.optional]
    return all(map(exposition.has, (*needed, *alternative.requires))) and not any(
        map(exposition.has, alternative.unless)
    )


def _read_term(
    exposition: Exposition, metric: Metric, term: Term, labelling: _Labelling
) -> Iterator[tuple[str, Labels, float]]:
    """Name, labels and value of every sample a term gives, each native series once."""
    suffixes = _HISTOGRAM_PARTS if metric.kind == "histogram" else ("",)
    for suffix in suffixes:
        scale = 1.0 if suffix in ("_bucket", "_count") else term.scale
        seen = set()
        for sample in exposition.by_name.get(canonical_name(term.native) + suffix, ()):
            if sample.labels in seen or not _is_selected(sample.labels, term):
                continue
            seen.add(sample.labels)
            labels = labelling.relabel(_scale_edge(sample.labels, term.scale), term)
            yield metric.name + suffix, labels, sample.value * scale


def _is_selected(labels: Labels, term: Term) -> bool:
    if not term.select and not term.exclude:
        return True
    values = dict(labels)
    return _agree(values, term.select) and not (term.exclude and _agree(values, term.exclude))


def _agree(labels: Mapping[str, str], wanted: Values) -> bool:
    return all(labels.get(label, "") in values for label, values in wanted)


def _scale_edge(labels: Labels, scale: float) -> Labels:
    if scale == 1.0:
        return labels
    return tuple((label, format_edge(float(value) * scale) if label == "le" else value) for label, value in labels)


class _Labelling:
    """Puts an identity's labels on series; what is in their way is kept under another name."""

    def __init__(self, identity: Identity) -> None:
        self._identity = dict(identity.labels())

    def relabel(self, native: Labels, term: Term) -> Labels:
        """The contract labels of a native series."""
        own = dict(native)
        given = {
            label: next((rule.value for rule in rules if _agree(own, rule.when)), "") for label, rules in term.labels
        }
        kept = ((label, value) for label, value in native if label not in term.drop)
        return self.add(kept, given)

    def add(self, native: Iterable[tuple[str, str]], given: Mapping[str, str]) -> Labels:
        """Native labels with the contract's `given` ones and the identity's, which win."""
        labels = {**given, **self._identity}
        result = dict(labels)
        for label, value in native:
            # An identity label that the operator left empty is not the target's to fill: it would split a deployment.
            if label not in IDENTITY_LABELS and label not in given:
                result[label] = value
            elif labels.get(label) != value:
                result[f"exported_{label}"] = value
        return make_labels(result)


def _zeros(
    exposition: Exposition, source: Source, metric_map: MetricMap, labelling: _Labelling
) -> list[list[tuple[str, Labels]]]:
    """The series that stand at 0 until their first use; a histogram's parts together."""
    if metric_map.absent != "zero" or not all(map(exposition.has, (*source.first_use.when, *metric_map.zero_when))):
        return []
    return [
        [
            (metric_map.metric.name + suffix, labelling.add((*present, *edge), dict(closed)))
            for suffix, edge in _parts(metric_map)
        ]
        for present in _present_labels(exposition, source)
        for closed in metric_map.zeros
    ]


def _present_labels(exposition: Exposition, source: Source) -> list[Labels]:
    like, wanted = source.first_use.like, source.first_use.labels
    if like is None:
        return [()]
    samples = exposition.by_name.get(canonical_name(like), ())
    kept = (tuple(pair for pair in sample.labels if pair[0] in wanted) for sample in samples)
    return list(dict.fromkeys(kept))


def _parts(metric_map: MetricMap) -> list[tuple[str, Labels]]:
    if metric_map.metric.kind != "histogram":
        return [("", ())]
    edges = (*metric_map.zero_edges, float("inf")) if metric_map.zero_edges else ()
    return [("_sum", ()), ("_count", ()), *(("_bucket", (("le", format_edge(edge)),)) for edge in edges)]


def _cover(exposition: Exposition, metric_map: MetricMap, chosen: Alternative | None, *, zeros: bool) -> Coverage:
    if chosen:
        natives = [term.native for term in chosen.terms if exposition.has(term.native)]
        return Coverage(chosen.status, " + ".join(natives), chosen.reason)
    if metric_map.status:
        return Coverage(metric_map.status, None, metric_map.reason)
    if zeros:
        return Coverage("present", None, "not exposed before its first use, so 0")
    if metric_map.absent == "off":
        return Coverage("impossible", None, metric_map.reason)
    return Coverage("impossible", None, _explain_absence(metric_map))


def _settle_components(source: Source, coverage: dict[str, Coverage]) -> None:
    """What a process lacks of a component it shows is missing for good, not elsewhere."""
    shown = {METRICS[name].component for name, each in coverage.items() if each.status in SUPPLIED}
    for name, metric_map in source.metrics.items():
        metric = metric_map.metric
        if metric_map.alternatives and coverage[name].status == "elsewhere" and metric.component in shown:
            coverage[name] = Coverage("impossible", None, metric.absent)


def _explain_absence(metric_map: MetricMap) -> str:
    wanted = (term.native for each in metric_map.alternatives for term in each.terms if not term.optional)
    told = f"not exposed: {', '.join(repr(name) for name in dict.fromkeys(wanted))}"
    return f"{told}; {metric_map.reason}" if metric_map.reason else told
