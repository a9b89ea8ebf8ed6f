"""What metrics, figures and labels are called at a customer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS, GROUP_LABELS, IDENTITY_LABELS
from servescope.contract.metrics import METRICS
from servescope.contract.samples import Labels, make_labels
from servescope.customers.points.points import Descriptor
from servescope.customers.policy.policy import Naming, Policy
from servescope.exposition.otlp_names import NAMESPACE, UNITS, describe

WINDOW_LABEL: Final = "window"
"""The label of a derived figure that names the time it is derived over."""
KEY_LABEL: Final = "replica_key"
"""The label beside a hashed replica: the id of the key, which changes when the key does."""

SERVICE_NAME: Final = "service.name"
SERVICE_INSTANCE: Final = "service.instance.id"

OTEL_LABELS: Mapping[str, str] = MappingProxyType(
    {
        "deployment_id": SERVICE_NAME,
        "environment": "deployment.environment.name",
        "replica": SERVICE_INSTANCE,
        **{
            name: f"{NAMESPACE}.{name}"
            for name in (*IDENTITY_LABELS, KEY_LABEL)
            if name not in ("deployment_id", "environment", "replica")
        },
    }
)

INSTANCE_LABELS: Final = ("replica", "role", "rollout_phase")
"""The labels by which resources of one deployment differ: `service.instance.id` has them."""
RESOURCE_LABELS: Final = (*IDENTITY_LABELS, KEY_LABEL)
"""The labels that describe where a stream is from; in OTLP they are of its resource."""


def metric_labels() -> tuple[str, ...]:
    """The labels of the contract beyond those of the identity, sorted."""
    return tuple(sorted({label for metric in METRICS.values() for label in metric.own_labels}))


def known_labels() -> tuple[str, ...]:
    """All labels that a policy can export."""
    return (*IDENTITY_LABELS, *metric_labels())


def label_name(policy: Policy, label: str) -> str:
    """What a label is called at the customer."""
    if label in policy.renames:
        return policy.renames[label]
    return OTEL_LABELS.get(label, label) if policy.naming is Naming.OTEL else label


def exported_labels(policy: Policy) -> tuple[str, ...]:
    """The labels that the policy exports, those of a replica only where it exports replicas."""
    if policy.resolution == "replica":
        return policy.labels
    return tuple(label for label in policy.labels if label in DEPLOYMENT_LABELS or label not in IDENTITY_LABELS)


def rename_labels(policy: Policy, pairs: Mapping[str, str]) -> Labels:
    """Labels under the customer's names, empty ones left out."""
    return make_labels((label_name(policy, label), value) for label, value in pairs.items())


def service_name(policy: Policy, labels: Mapping[str, str]) -> str:
    """`service.name` of a resource with these labels of the contract: its deployment, or what is exported of that.

    The customer's own name where nothing is: what the policy withholds is in no name.
    """
    exported = {label: labels[label] for label in GROUP_LABELS if label in policy.labels and labels.get(label)}
    return exported.get("deployment_id") or "/".join(exported.values()) or policy.name


def service_attributes(policy: Policy, labels: Mapping[str, str]) -> Labels:
    """The attributes that the resource of exported labels has in OTLP beside these, which every backend knows.

    Prometheus makes `job` and `instance` of them, and has nothing else of a resource on series by default.
    """
    instance = "/".join(labels[label] for label in INSTANCE_LABELS if labels.get(label))
    named = {label_name(policy, label) for label in labels}
    services = (SERVICE_NAME, service_name(policy, labels)), (SERVICE_INSTANCE, instance)
    return make_labels((name, value) for name, value in services if name not in named)


def describe_metric(policy: Policy, name: str) -> Descriptor:
    """The header of a metric of the contract."""
    metric = METRICS[name]
    otlp = describe(metric)
    exported = f"{policy.prefix}{name}" if policy.naming is Naming.PREFIX else name
    return Descriptor(
        otlp.name if policy.naming is Naming.OTEL else exported,
        exported,
        otlp.unit,
        metric.help,
        metric.kind,
        otlp.whole,
    )


def describe_figure(policy: Policy, name: str) -> Descriptor:
    """The header of a derived figure, a gauge."""
    figure = FIGURES[name]
    bare = figure.exposed or figure.name
    exported = f"{policy.prefix}{bare}" if policy.naming is Naming.PREFIX else bare
    otlp = f"{NAMESPACE}.{re.sub('_seconds(?=_|$)', '', bare)}"  # the unit is a field of its own
    return Descriptor(
        otlp if policy.naming is Naming.OTEL else exported, exported, UNITS[figure.unit], figure.help, "gauge"
    )
