"""What a metric of the contract, an identity and a GenAI metric are called in OpenTelemetry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from servescope.contract.identity import IDENTITY_LABELS, Identity
from servescope.contract.types import Kind, Metric, Unit
from servescope.instruments.gen_ai import Convention

NAMESPACE = "servescope"

SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"
"""The release of OpenTelemetry's semantic conventions that has all names here which are not our own.

It is the first with `gen_ai.provider.name`.
"""

UNITS: Mapping[Unit, str] = {
    "bytes": "By", "bytes/s": "By/s", "code": "1", "cores": "{cpu}", "decisions": "{decision}",
    "decisions/s": "{decision}/s",
    "drafts": "{draft}", "errors": "{error}", "errors/s": "{error}/s", "events": "{event}", "events/s": "{event}/s",
    "preemptions": "{preemption}", "preemptions/s": "{preemption}/s",
    "ratio": "1", "recoveries": "{recovery}", "replicas": "{replica}", "requests": "{request}",
    "requests/s": "{request}/s", "seconds": "s", "tokens": "{token}", "tokens/s": "{token}/s", "workers": "{worker}",
}  # fmt: skip
"""The catalog's units in UCUM, as OpenTelemetry wants them."""


@dataclass(frozen=True, slots=True)
class OtlpMetric:
    """The header of a metric in OTLP; `whole` says that its values are integers."""

    name: str
    description: str
    unit: str
    kind: Kind
    whole: bool = False


def name_of(metric: Metric) -> str:
    """The metric's name in OTLP: in a namespace, and without the unit or `_total`, which are fields of their own."""
    name = metric.documented.removeprefix(f"{NAMESPACE}_")
    if metric.unit == "seconds":
        name = name.removesuffix("_seconds") + ("_time" if metric.kind == "counter" else "")
    return f"{NAMESPACE}.{name}"


def describe(metric: Metric) -> OtlpMetric:
    """A metric of the contract."""
    whole = metric.kind == "counter" and metric.unit != "seconds"
    return OtlpMetric(name_of(metric), metric.help, UNITS[metric.unit], metric.kind, whole)


def describe_gen_ai(convention: Convention) -> OtlpMetric:
    """A metric of the GenAI conventions."""
    return OtlpMetric(convention.name, convention.help, "s", "histogram")


def resource_attributes(identity: Identity, instance_id: str) -> dict[str, str]:
    """The attributes of the resource that an identity is; labels that are empty have none."""
    attributes = {
        "service.name": identity.deployment_id,
        "service.instance.id": instance_id,
        "deployment.environment.name": identity.environment,
        **{f"{NAMESPACE}.{name}": getattr(identity, name) for name in IDENTITY_LABELS if name != "environment"},
    }
    return {name: value for name, value in attributes.items() if value}


def gen_ai_attributes(
    identity: Identity, *, operation_name: str, provider_name: str | None, error: str | None
) -> dict[str, str]:
    """The attributes of a GenAI series; the provider is the inference stack unless given, `error` None for success."""
    attributes = {
        "gen_ai.operation.name": operation_name,
        "gen_ai.provider.name": provider_name or identity.inference_stack,
        "gen_ai.request.model": identity.model_name,
    }
    return attributes if error is None else {**attributes, "error.type": error}
