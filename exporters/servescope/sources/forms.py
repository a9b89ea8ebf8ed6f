"""Forms of a source map: the engine's own series under other names, as a program around it publishes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from servescope.sources.maps import Alternative, Evidence, FamilyGroup, FirstUse, MetricMap, Signs, Source, Term


@dataclass(frozen=True, slots=True)
class Form:
    """One form of a source map, with the engine's own names in it, which are published with a `prefix`.

    `drop` are labels of every series that say nothing of it. `no_sum` says why sums of histograms are not read, None
    where they are; `unset` says when gauges are dropped from a page though nothing is wrong, None where they are not.
    Without `first_use` nothing is 0 before it is exposed. `metrics` replace those of the map.
    """

    name: str
    title: str
    covers: str
    evidence: Evidence
    prefix: str
    signs: Signs
    first_use: FirstUse | None
    drop: frozenset[str]
    no_sum: str | None
    unset: str | None
    metrics: Mapping[str, MetricMap]


def apply_form(source: Source, form: Form) -> Source:
    """The source map of a form: the metrics of `source`, as far as they come from names of the engine's own."""
    return _Forming(source, form).source()


class _Forming:
    def __init__(self, source: Source, form: Form) -> None:
        self._of, self._form = source, form

    def source(self) -> Source:
        form, of = self._form, self._of
        metrics = {name: self._metric(form.metrics.get(name, each)) for name, each in of.metrics.items()}
        signs, first = form.signs, form.first_use or FirstUse()
        return replace(
            of,
            name=form.name,
            title=form.title,
            covers=form.covers,
            evidence=form.evidence,
            prefixes=self._published(of.prefixes),
            signs=replace(
                signs, all=self._published(signs.all), any=self._published(signs.any), none=self._published(signs.none)
            ),
            versions=tuple(
                replace(each, present=self._published(each.present), evidence=form.evidence) for each in of.versions
            ),
            first_use=replace(first, when=self._published(first.when), like=first.like and self._publish(first.like)),
            metrics=MappingProxyType(metrics),
            ignored=(*map(self._group, of.ignored), FamilyGroup((f"{form.prefix}*",), self._others)),
            # How the engine is started, and what our plugin adds, is said of its own map.
            flags=(),
            plugin="",
            without_plugin="",
            setup=tuple(replace(each, native=self._publish(each.native)) for each in of.setup),
            # Some of these names are not in the form.
            gated=(),
        )

    @property
    def _others(self) -> str:
        return f"what {self._form.title} publishes beside the engine's series, or of a release newer than the map"

    def _group(self, given: FamilyGroup) -> FamilyGroup:
        return replace(given, names=self._published(filter(self._is_own, given.names)))

    def _metric(self, given: MetricMap) -> MetricMap:
        if not given.alternatives:
            return given
        taken = [each for each in given.alternatives if not self._reads_sum(given, each)]
        alternatives = tuple(self._alternative(each) for each in taken if self._is_published(each))
        if not alternatives:
            lost = self._form.no_sum if len(taken) < len(given.alternatives) else None
            reason = lost or f"not among the series of {self._form.title}"
            return MetricMap(given.metric, status="impossible", reason=reason)
        return replace(
            self._absence(given),
            alternatives=alternatives,
            zero_when=self._published(given.zero_when),
            no_sum=self._form.no_sum if given.metric.kind == "histogram" else None,
        )

    def _absence(self, given: MetricMap) -> MetricMap:
        if given.metric.kind == "gauge" and self._form.unset is not None:
            return replace(given, absent="unset", reason=self._form.unset)
        is_lost = given.absent == "zero" and self._form.first_use is None
        return replace(given, absent="unknown") if is_lost else given

    def _reads_sum(self, given: MetricMap, alternative: Alternative) -> bool:
        is_counter = given.metric.kind != "histogram" and self._form.no_sum is not None
        return is_counter and any(term.native.endswith("_sum") for term in alternative.terms)

    def _is_published(self, alternative: Alternative) -> bool:
        needed = [term.native for term in alternative.terms if not term.optional]
        return all(map(self._is_own, (*needed, *alternative.requires)))

    def _alternative(self, given: Alternative) -> Alternative:
        return replace(
            given,
            terms=tuple(self._term(each) for each in given.terms if self._is_own(each.native)),
            requires=self._published(given.requires),
            unless=self._published(filter(self._is_own, given.unless)),
        )

    def _term(self, given: Term) -> Term:
        return replace(
            given,
            native=self._publish(given.native),
            drop=given.drop | self._form.drop,
            zero_when=self._published(given.zero_when),
        )

    def _is_own(self, name: str) -> bool:
        return name.startswith(self._of.prefixes)

    def _publish(self, name: str) -> str:
        return self._form.prefix + name

    def _published(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(map(self._publish, names))
