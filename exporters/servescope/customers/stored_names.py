"""What a customer's metrics and labels are called where a destination stores them: the names that PromQL needs there.

On the page and by remote write they are those of the policy. What OTLP sends has its unit and its kind in fields, and
each backend makes names of its own of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Final, Literal

from servescope.contract.expressions import Matchers
from servescope.contract.identity import DEPLOYMENT_LABELS, GROUP_LABELS, Deployment
from servescope.contract.metrics import SAMPLE_FAMILIES
from servescope.contract.samples import format_edge
from servescope.customers.points import naming
from servescope.customers.points.points import Descriptor
from servescope.customers.points.prometheus_series import safe_name
from servescope.customers.policy.policy import OtlpBackend, Policy, Pull, Push

JOB: Final = "job"
"""The label that Prometheus makes of `service.name`."""
INSTANCE: Final = "instance"
"""The label that Prometheus makes of `service.instance.id`."""

_UNIT_WORDS: Final[Mapping[str, str]] = MappingProxyType({"s": "seconds", "By": "bytes", "1": ""})


@dataclass(frozen=True, slots=True)
class NameTranslation:
    """How a backend names what OTLP sends.

    `suffixes` adds unit and kind to names, as Prometheus' and VictoriaMetrics' code does, which differ; `escapes` makes
    underscores of dots; `keeps_resource` has attributes of the resource as labels of series, else only `job` and
    `instance` are.
    """

    title: str
    suffixes: Literal["", "prometheus", "victoriametrics"]
    escapes: bool
    keeps_resource: bool


TRANSLATIONS: Final[Mapping[OtlpBackend, NameTranslation]] = MappingProxyType(
    {
        "prometheus": NameTranslation(
            "Prometheus, as `UnderscoreEscapingWithSuffixes`, its default", "prometheus", True, False
        ),
        "mimir": NameTranslation("Mimir, as `UnderscoreEscapingWithoutSuffixes`, its default", "", True, False),
        "victoriametrics": NameTranslation("VictoriaMetrics by default", "", False, True),
        "victoriametrics-prometheus": NameTranslation(
            "VictoriaMetrics with `-opentelemetry.usePrometheusNaming`", "victoriametrics", True, True
        ),
    }
)
"""The backends that answer PromQL, by their name in the configuration."""


@dataclass(frozen=True, slots=True)
class StoredNames:
    """The names of a customer at a destination; `translation` is None where they are stored as the policy has them."""

    policy: Policy
    translation: NameTranslation | None = None

    def series(self, name: str) -> str:
        """The name of a series of the contract, or of a histogram."""
        family = SAMPLE_FAMILIES[name]
        return self.stored(naming.describe_metric(self.policy, family)) + name.removeprefix(family)

    def figure(self, name: str) -> str:
        """The name of a derived figure."""
        return self.stored(naming.describe_figure(self.policy, name))

    def stored(self, metric: Descriptor) -> str:
        """The name of a metric that is sent with this header."""
        if self.translation is None:
            return metric.family
        if self.translation.suffixes:
            return "_".join(_words(metric, self.translation.suffixes))
        return safe_name(metric.name) if self.translation.escapes else metric.name

    def label(self, label: str) -> str:
        """The name of an exported label, where `has` it."""
        name = naming.label_name(self.policy, label)
        return safe_name(name) if self.translation is None or self.translation.escapes else name

    def has(self, label: str) -> bool:
        """Whether series have an exported label, as they have not all of those that describe a resource."""
        return not self.has_jobs or label not in naming.RESOURCE_LABELS

    def deployment_labels(self) -> list[str]:
        """The labels by which series of deployments differ."""
        labels = [label for label in naming.exported_labels(self.policy) if label in DEPLOYMENT_LABELS]
        return [JOB] if self.has_jobs else [self.label(label) for label in labels]

    def of_deployment(self, deployment: Deployment) -> Matchers:
        """The labels of all series of a deployment, in whatever phase of a rollout it is."""
        labels = dict(deployment.labels())
        if self.has_jobs:
            return ((JOB, (naming.service_name(self.policy, labels),)),)
        exported = [label for label in GROUP_LABELS if label in self.policy.labels]
        return tuple((self.label(label), (labels.get(label, ""),)) for label in exported)

    @property
    def has_jobs(self) -> bool:
        """Whether series have `job` and `instance` in place of all that describes a resource."""
        return self.translation is not None and not self.translation.keeps_resource

    def edge(self, edge: float) -> str:
        """The text of `le` for an edge of a histogram."""
        return format_edge(edge) if self.translation is None else f"{Decimal(repr(edge)):f}".removesuffix(".0")


def names_at(policy: Policy, destination: Push | Pull) -> StoredNames | None:
    """The names at a destination; None where PromQL does not apply: see `why_no_promql`."""
    return None if why_no_promql(destination) else StoredNames(policy, translation_at(destination))


def translation_at(destination: Push | Pull) -> NameTranslation | None:
    """What a destination makes of names; None where these are stored as they are sent, or not known here."""
    if isinstance(destination, Pull) or destination.protocol == "remote-write":
        return None
    return TRANSLATIONS.get(destination.stores_names_as)


def why_no_promql(destination: Push | Pull) -> str:
    """Why a destination gets no queries of PromQL; empty where it does."""
    if isinstance(destination, Pull) or destination.protocol == "remote-write":
        return ""
    if destination.stores_names_as not in TRANSLATIONS:
        return "it has names and queries of its own"
    return (
        "a rate of PromQL is of cumulative points, and it is sent deltas" if destination.temporality == "delta" else ""
    )


def _words(metric: Descriptor, by: Literal["prometheus", "victoriametrics"]) -> list[str]:
    """The words of a name with its unit and its kind, as prometheus/otlptranslator or VictoriaMetrics joins them."""
    words = re.findall(r"[a-zA-Z0-9]+", metric.name)
    unit, _, per = metric.unit.partition("/")
    main = "" if unit.startswith("{") else _UNIT_WORDS[unit]
    if main and main not in words:
        words.append(main)
    if per and (by == "prometheus" or "second" not in words):
        words += ["per", "second"]
    last = "total" if metric.kind == "counter" else "ratio" if (metric.kind, metric.unit) == ("gauge", "1") else ""
    if not last:
        return words
    if by == "prometheus":
        return [*(word for word in words if word != last), last]
    if last in words:
        words.remove(last)
    return [*words, last]
