"""Source maps: how the native series of an engine become contract metrics. Immutable, so safe from any thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from servescope.contract.samples import Labels, Sample
from servescope.contract.types import Metric
from servescope.settings.values import format_duration
from servescope.sources.parse import Exposition, canonical_name

Status = Literal["present", "derived", "approximate", "elsewhere", "impossible"]
Absence = Literal["unknown", "zero", "off", "unset"]
Layer = Literal["frontend", "process", "engine", "around"]
"""Where a source measures, outermost first; `around` is beside the processes that serve, as a cluster's exporter is."""

Evidence = Literal["run", "driven", "read"]
"""How it is known that a source is what its map says: the program was run and compared with what a client counted, its
own metric classes were driven by a script, or its names were read and it was never run."""

SUPPLIED: tuple[Status, ...] = ("present", "derived", "approximate")
"""Statuses of a metric that has a value, or will have one once there is traffic."""

Observes = Literal["every", "some"]
"""Which of the requests that a source counts as ok its histogram has, where that is not as the contract says: every
one, or only some of them."""

Fact = Literal["block_tokens", "prefix_cache"]
"""What a page may show of how its engine is set up: how many tokens a block of its cache has, and whether it reuses
prompts at all."""

Values = tuple[tuple[str, tuple[str, ...]], ...]
"""Pairs of a label and its values; a missing label has the value ""."""


@dataclass(frozen=True, slots=True)
class LabelRule:
    """The value `value` for series whose labels have one of the values in `when`; for all series when that is empty."""

    value: str
    when: Values = ()


@dataclass(frozen=True, slots=True)
class Term:
    """Native series that feed a metric: a series by its exposed name, or a histogram by its family's.

    `select` keeps, `exclude` drops series by their labels. Of series that differ in the labels `same_across` alone, the
    one with their lowest values is used: they all report the same. `drop` are labels to remove, `labels` those of the
    contract to set, by the first rule that matches; values are multiplied by `scale`. `zeros` are the native labels of
    the series that are 0 until they are exposed, if those in `zero_when` are; beside them they have those of the
    source's first use.
    """

    native: str
    select: Values = ()
    exclude: Values = ()
    same_across: frozenset[str] = frozenset()
    drop: frozenset[str] = frozenset()
    labels: tuple[tuple[str, tuple[LabelRule, ...]], ...] = ()
    scale: float = 1.0
    optional: bool = False
    zeros: tuple[Labels, ...] = ()
    zero_when: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternative:
    """One origin of a metric: the terms, whose values are added where their labels become equal.

    Used when every term that is not optional, and every series in `requires`, is exposed, and none in `unless`.
    """

    terms: tuple[Term, ...]
    requires: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    status: Status = "present"
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Definition:
    """What a source means by a metric where that is not the contract's definition; metrics of one `kind` compare."""

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class MetricMap:
    """Where one metric of the contract comes from: the alternatives, newest first, or why there are none.

    `absent` is what it means when no alternative is exposed; `zeros` are the label sets of the zero samples added then,
    if the series in `zero_when` are exposed; where a term has zeros of its own, those alone. `edges` are the finite
    edges of a histogram, which its zeros have; `edges_before` are those of the releases of the last version rule.
    `no_sum` says why the sum of a histogram is not read, None where it is. `definition` and `observes` are None where
    the metric is what the contract says it is.
    """

    metric: Metric
    alternatives: tuple[Alternative, ...] = ()
    absent: Absence = "unknown"
    zeros: tuple[Labels, ...] = ((),)
    zero_when: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    edges_before: tuple[float, ...] = ()
    no_sum: str | None = None
    status: Status | None = None
    reason: str | None = None
    definition: Definition | None = None
    observes: Observes | None = None


@dataclass(frozen=True, slots=True)
class Signs:
    """The names that identify a source; `label` is one that a sample of `any` must have.

    `over` are the sources that it is used in place of where their names are exposed too.
    """

    all: tuple[str, ...] = ()
    any: tuple[str, ...] = ()
    none: tuple[str, ...] = ()
    label: str | None = None
    over: tuple[str, ...] = ()

    def explain_mismatch(self, exposition: Exposition) -> str | None:
        """Why the exposition is not this source, None when it is."""
        missing = [name for name in self.all if not exposition.has(name)]
        if missing:
            return f"no {_quoted(missing)}"
        foreign = [name for name in self.none if exposition.has(name)]
        if foreign:
            return f"it has {_quoted(foreign)}"
        if self.any and not any(self._shows(exposition, name) for name in self.any):
            labelled = f" with the label {self.label!r}" if self.label else ""
            return f"none of {_quoted(self.any)}{labelled}"
        return None

    def _shows(self, exposition: Exposition, name: str) -> bool:
        if self.label is None:
            return exposition.has(name)
        samples = exposition.by_name.get(canonical_name(name), ())
        return any(label == self.label for sample in samples for label, _ in sample.labels)


@dataclass(frozen=True, slots=True)
class VersionRule:
    """The versions implied when all of `present` are there, and the evidence that the map is right for them."""

    versions: str
    present: tuple[str, ...]
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class FirstUse:
    """Series that are exposed from the start; the zeros of series not yet used take their `labels`."""

    when: tuple[str, ...] = ()
    like: str | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Setup:
    """Where a page shows a fact: in a label of a series, or without one in its value; `off` are the values of a switch
    that is off."""

    fact: Fact
    native: str
    label: str | None = None
    off: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Flag:
    """How an engine is started so that its page has more, and what that adds; for the engine's page of the docs."""

    flag: str
    adds: str


@dataclass(frozen=True, slots=True)
class ScrapePace:
    """The shortest interval at which a page may be scraped, and why."""

    shortest_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class FamilyGroup:
    """Native families, by their names or, where one ends in `*`, by how they begin, and what is so of all of them.

    `gate` is what has to be so that all of them are exposed, None where they always are.
    """

    names: tuple[str, ...]
    reason: str
    gate: str | None = None

    def has(self, family: str) -> bool:
        """Whether the family is one of these, in either spelling of its name."""
        name = canonical_name(family)
        return any(
            name.startswith(canonical_name(each[:-1])) if each.endswith("*") else name == canonical_name(each)
            for each in self.names
        )


@dataclass(frozen=True, slots=True)
class Source:
    """One source map. `metrics` holds every metric of the contract but the gauges of a single process's ratios.

    `family` is the name of the engines, or of what is in front of them, that runbooks have a part for. `model_label` is
    the label of its native series that names the model, None where none does. `ignored` are native families that it
    does not read, and why; `gated` are names that it reads and that a page may lack, and what has to be so for them.
    Of the rules in `setup` for one fact the first whose series is exposed is used. `plugin` is what our plugin inside
    the engine adds, "" where there is none, and `without_plugin` why there is none, where the engine was read for it.
    `pace` is how often its page may be scraped, None where it does not matter.
    """

    name: str
    title: str
    family: str
    covers: str
    evidence: Evidence
    layer: Layer
    prefixes: tuple[str, ...]
    signs: Signs
    versions: tuple[VersionRule, ...]
    first_use: FirstUse
    metrics: Mapping[str, MetricMap] = field(repr=False)
    model_label: str | None = None
    setup: tuple[Setup, ...] = ()
    flags: tuple[Flag, ...] = ()
    plugin: str = ""
    without_plugin: str = ""
    ignored: tuple[FamilyGroup, ...] = ()
    gated: tuple[FamilyGroup, ...] = ()
    pace: ScrapePace | None = None

    def read_names(self) -> frozenset[str]:
        """The series, or histograms, that it reads, or recognises the source or its release by."""
        names = {*self.signs.all, *self.signs.any, *self.first_use.when}
        names |= {self.first_use.like} if self.first_use.like else set()
        names |= {name for rule in self.versions for name in rule.present}
        for metric_map in self.metrics.values():
            names |= set(metric_map.zero_when)
            for alternative in metric_map.alternatives:
                names |= {*alternative.requires, *alternative.unless}
                names |= {name for term in alternative.terms for name in (term.native, *term.zero_when)}
        return frozenset(names)

    def models(self, samples: Iterable[Sample]) -> tuple[str, ...]:
        """The models that samples are labelled with, sorted."""
        named = {value for each in samples for label, value in each.labels if label == self.model_label}
        return tuple(sorted(named))

    def explain_haste(self, interval_ms: int) -> str:
        """Why its page is not to be scraped at such an interval, "" where it may be."""
        if self.pace is None or interval_ms >= self.pace.shortest_ms:
            return ""
        shortest = format_duration(self.pace.shortest_ms)
        return f"{format_duration(interval_ms)} is too short for {self.title}, at least {shortest}: {self.pace.reason}"

    def implied_versions(self, exposition: Exposition) -> str:
        """The versions that the exposition's names imply, "" when they imply none."""
        for rule in self.versions:
            if all(exposition.has(name) for name in rule.present):
                return rule.versions
        return ""

    def evidence_of(self, versions: str) -> Evidence:
        """The evidence for a release by its `implied_versions`."""
        return next((rule.evidence for rule in self.versions if rule.versions == versions), self.evidence)


def _quoted(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(repr(name) for name in names)
