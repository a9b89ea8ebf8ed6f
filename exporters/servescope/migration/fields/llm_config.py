"""The rules of `llm_config`, the Management API's block that configures speculation, routing and disaggregation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from servescope.contract.judged import IN_FLIGHT_TOKENS_PER_WORKER
from servescope.errors import UsageError
from servescope.migration.document.nodes import DocumentNode, make_tree
from servescope.migration.document.shapes import (
    ChoiceShape,
    ConfigurationFinding,
    FieldShape,
    NumberShape,
    SwitchShape,
    TableShape,
    TextShape,
    WholeShape,
    each_entry,
    wrong,
)

ENDPOINT: Final = "https://api.baseten.co/v1/llm_models"
DECODING_TYPES: Final = ("Eagle", "MTP", "NGram")
QUEUE_POLICIES: Final = ("fcfs", "wspt")
ENTERPRISE: Final = ("Eagle", "MTP")
"""The decoding types that need the Enterprise tier; KV-aware routing and disaggregation do as well."""

_COUNT: Final = WholeShape(low=1)
_WORKERS: Final = ("prefill_workers_per_replica", "decode_workers_per_replica")

SPECULATIVE: Final = TableShape(keys=MappingProxyType({
    "decoding_type": FieldShape(ChoiceShape(values=DECODING_TYPES, any_case=True), is_required=True, source="S3"),
    "speculative_model_dir": FieldShape(TextShape(pattern=r"(?s).+", what="a path"), source="S3"),
    "num_nextn_predict_layers": FieldShape(_COUNT, source="S3"),
    "max_draft_len": FieldShape(_COUNT, source="S3"),
    "eagle3_one_model": FieldShape(SwitchShape(), source="S3"),
}))  # fmt: skip

ROUTING: Final = TableShape(keys=MappingProxyType({
    "router_queue_policy": FieldShape(ChoiceShape(values=QUEUE_POLICIES), default="fcfs", source="S3"),
    "router_overlap_score_weight": FieldShape(NumberShape(low=0), default=3.5, source="S3"),
    "router_temperature": FieldShape(NumberShape(low=0), default=0.05, source="S3"),
}))  # fmt: skip

DISAGGREGATION: Final = TableShape(keys=MappingProxyType({
    name: FieldShape(_COUNT, is_required=True, source="S3") for name in _WORKERS
}))  # fmt: skip

AUTOSCALING: Final = TableShape(keys=MappingProxyType({
    "scale_down_half_life_seconds": FieldShape(NumberShape(low=0, is_above=True), default=900, source="D"),
}))  # fmt: skip

LLM_CONFIG: Final = TableShape(keys=MappingProxyType({
    "speculative_config": FieldShape(SPECULATIVE, source="S3"),
    "b10_routing_config": FieldShape(ROUTING, source="S3"),
    "is_disaggregated": FieldShape(SwitchShape(), default=False, source="S3"),
    "b10_disagg_config": FieldShape(DISAGGREGATION, source="S3"),
    "b10_autoscaling_config": FieldShape(AUTOSCALING, source="D"),
}))  # fmt: skip

AUTOSCALING_SETTINGS: Final = TableShape(keys=MappingProxyType({
    "min_replica": FieldShape(WholeShape(low=1, is_nullable=True), default=1, source="D"),
    "max_replica": FieldShape(WholeShape(low=1, is_nullable=True), source="D"),
    "autoscaling_window": FieldShape(WholeShape(low=1, is_nullable=True), default=300, source="D"),
    "scale_down_delay": FieldShape(WholeShape(low=0, is_nullable=True), default=300, source="D"),
    "target_in_flight_tokens": FieldShape(WholeShape(low=1, is_nullable=True), source="S1"),
    "concurrency_target": FieldShape(elsewhere="is rejected by v2's deployment API, expected 'target_in_flight_tokens'",
                              source="S1"),
    "target_utilization_percentage": FieldShape(
        elsewhere="is rejected by v2's deployment API, expected 'target_in_flight_tokens'", source="S1"
    ),
}))  # fmt: skip

_SENSIBLE_HALF_LIFE: Final = (600, 1800)
ROUTER_WORKERS: Final = 50
"""About how many workers one router serves (S3)."""
TOO_MANY_WORKERS: Final = (
    f"a single router is a bottleneck above about {ROUTER_WORKERS} workers, contact the vendor to add router replicas"
)
_TYPE_OF: Final = MappingProxyType({"speculative_model_dir": "Eagle", "num_nextn_predict_layers": "MTP"})
"""The decoding type that requires a field, and the only one that reads it."""


def require(check: Callable[[DocumentNode, str], Iterable[ConfigurationFinding]], value: object, path: str) -> None:
    """Raise UsageError for the first error that a check of this module, or of a shape, finds in a value.

    A field that nobody knows is one as well: what is emulated is what was written.
    """
    for finding in check(make_tree(value), path):
        if finding.severity == "error" or finding.message.startswith("is an unknown field"):
            raise UsageError(finding.sentence)


def check_speculation(node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
    """The findings of a `speculative_config`."""
    yield from SPECULATIVE.check(node, path)
    if node.kind == "mapping":
        yield from _check_speculation(node, path)


def check_disaggregation(node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
    """The findings of `is_disaggregated` and `b10_disagg_config` in an `llm_config`, whatever else it holds."""
    fields = {key.value: value for key, value in each_entry(node)}
    yield from _check_disaggregation(fields, path)
    for name in ("is_disaggregated", "b10_disagg_config"):
        if name in fields:
            yield from LLM_CONFIG.keys[name].shape.check(fields[name], f"{path}.{name}")


def check_llm_config(node: DocumentNode) -> Iterator[ConfigurationFinding]:
    """The findings of an `llm_config`: types, ranges, and what Eagle, MTP and disaggregation require."""
    yield from LLM_CONFIG.check(node, "llm_config")
    if node.kind != "mapping":
        return
    fields = {key.value: value for key, value in each_entry(node)}
    speculative = fields.get("speculative_config")
    if speculative is not None and speculative.kind == "mapping":
        yield from _check_speculation(speculative, "llm_config.speculative_config")
    yield from _check_disaggregation(fields, "llm_config")
    routing = node.find("b10_routing_config")
    if routing is not None and routing.kind == "mapping":
        yield from _check_routing(routing, "llm_config.b10_routing_config")
    half_life = node.find("b10_autoscaling_config", "scale_down_half_life_seconds")
    if half_life is not None:
        yield from _check_sensible(half_life, "llm_config.b10_autoscaling_config.scale_down_half_life_seconds",
                                   _SENSIBLE_HALF_LIFE, "seconds")  # fmt: skip


def check_autoscaling_settings(node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
    """The findings of the autoscaling settings of a v2 deployment."""
    yield from AUTOSCALING_SETTINGS.check(node, path)
    if node.kind != "mapping":
        return
    low, high = node.find("min_replica"), node.find("max_replica")
    bounds: list[Any] = [each.value if each is not None else None for each in (low, high)]
    if all(isinstance(each, int) for each in bounds) and bounds[0] > bounds[1]:
        yield wrong(low, f"{path}.min_replica", f"is {bounds[0]}, above max_replica, which is {bounds[1]}")
    target = node.find("target_in_flight_tokens")
    if target is not None:
        yield from _check_sensible(target, f"{path}.target_in_flight_tokens", IN_FLIGHT_TOKENS_PER_WORKER, "tokens")


def check_workers(config: DocumentNode | None, settings: DocumentNode | None) -> Iterator[ConfigurationFinding]:
    """A warning where there may be more workers than one router serves."""
    unit = _count_unit(config) if config is not None else 1
    most = settings.find("max_replica") if settings is not None else None
    if most is not None and isinstance(most.value, int) and most.value * unit > ROUTER_WORKERS:
        workers = f", which is {most.value * unit} workers" if unit > 1 else ""
        what = f"is {most.value}{workers}: {TOO_MANY_WORKERS}"
        yield ConfigurationFinding("warning", "autoscaling_settings.max_replica", most.line, most.column, what)
    elif unit > ROUTER_WORKERS and config is not None and (node := config.find("b10_disagg_config")):
        what = f"has {unit} workers in each replica: {TOO_MANY_WORKERS}"
        yield ConfigurationFinding("warning", "llm_config.b10_disagg_config", node.line, node.column, what)


def _count_unit(config: DocumentNode) -> int:
    """The workers of a replica: those of both phases where they are apart, else one."""
    counts = [config.value_of("b10_disagg_config", name) for name in _WORKERS]
    is_apart = config.value_of("is_disaggregated") is True and all(isinstance(each, int) for each in counts)
    return sum(counts) if is_apart else 1


def make_call(body: Mapping[str, Any]) -> str:
    """The call that sends a body to the Management API, to paste into a shell; the key is in `BASETEN_API_KEY`."""
    text = json.dumps(body, indent=2, ensure_ascii=False).replace("'", "'\\''")
    return (
        f"curl --request POST --url {ENDPOINT} \\\n"
        '  --header "Authorization: Api-Key $BASETEN_API_KEY" \\\n'
        "  --header 'Content-Type: application/json' \\\n"
        f"  --data '{text}'"
    )


def canonical_type(decoding_type: str) -> str:
    """A decoding type as documented, whatever its case was."""
    return next(each for each in DECODING_TYPES if each.lower() == decoding_type.lower())


def _check_speculation(node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
    decoding_type = node.find("decoding_type")
    if decoding_type is None or not isinstance(decoding_type.value, str):
        return
    name = next((each for each in DECODING_TYPES if each.lower() == decoding_type.value.lower()), None)
    for field, only in _TYPE_OF.items():
        value = node.find(field)
        if name == only and value is None:
            yield wrong(node, f"{path}.{field}", f"is missing: decoding_type {only} requires it")
        elif name not in (None, only) and value is not None:
            what = f"has no effect: it is for decoding_type {only}, not for {name}"
            yield ConfigurationFinding("warning", f"{path}.{field}", value.line, value.column, what)
    one_model = node.find("eagle3_one_model")
    if name not in (None, "Eagle") and one_model is not None:
        yield wrong(one_model, f"{path}.eagle3_one_model", f"is for decoding_type Eagle only, not for {name}")


def _check_routing(node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
    policy = node.find("router_queue_policy")
    if policy is not None and policy.value == "wspt":
        what = "is wspt, which may starve costly requests: expected fcfs unless the mean time to first token matters " \
               "more than its tail"  # fmt: skip
        yield ConfigurationFinding("warning", f"{path}.router_queue_policy", policy.line, policy.column, what)
    for name in ("router_overlap_score_weight", "router_temperature"):
        value, default = node.find(name), ROUTING.keys[name].default
        if value is not None and isinstance(value.value, int | float) and value.value != default:
            shown = f"is {value.value:g}, not the default of {default:g}"
            what = f"{shown}: contact the vendor before changing it in production"
            yield ConfigurationFinding("warning", f"{path}.{name}", value.line, value.column, what)


def _check_disaggregation(fields: Mapping[Any, DocumentNode], path: str) -> Iterator[ConfigurationFinding]:
    config, enabled = fields.get("b10_disagg_config"), fields.get("is_disaggregated")
    is_enabled = enabled is not None and enabled.value is True
    if config is not None and not is_enabled:
        yield wrong(config, f"{path}.b10_disagg_config", "needs is_disaggregated to be true, which is false or absent")
    if is_enabled and config is None:
        what = f"is missing: is_disaggregated is true, expected {' and '.join(_WORKERS)}"
        yield wrong(enabled, f"{path}.b10_disagg_config", what)


def _check_sensible(
    node: DocumentNode, path: str, sensible: tuple[float, float], unit: str
) -> Iterator[ConfigurationFinding]:
    value = node.value
    if isinstance(value, int | float) and not isinstance(value, bool) and not sensible[0] <= value <= sensible[1]:
        what = f"is {value:g}, outside of the documented {sensible[0]:g} to {sensible[1]:g} {unit}"
        yield ConfigurationFinding("warning", path, node.line, node.column, what)
