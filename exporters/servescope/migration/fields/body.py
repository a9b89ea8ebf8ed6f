"""The body for the Management API beside a translated configuration: read, completed by what was decided, checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from servescope.migration.document.document import Document
from servescope.migration.document.json_document import read_json
from servescope.migration.document.shapes import ConfigurationFinding, FieldShape, TableShape, wrong
from servescope.migration.fields.llm_config import (
    AUTOSCALING_SETTINGS,
    ENTERPRISE,
    LLM_CONFIG,
    canonical_type,
    check_autoscaling_settings,
    check_llm_config,
    check_workers,
    make_call,
)

_WRAPPED: Final = ("llm_config", "autoscaling_settings")
_BESIDE: Final = "belongs into llm_config"
BODY: Final = TableShape(keys=MappingProxyType({
    "llm_config": FieldShape(is_required=True, source="S3"),
    "autoscaling_settings": FieldShape(source="D"),
    **{name: FieldShape(source="D") for name in ("name", "resources", "region", "llm_version", "model_metadata")},
    **{name: FieldShape(elsewhere=_BESIDE) for name in LLM_CONFIG.keys},
    **{name: FieldShape(elsewhere="belongs into autoscaling_settings") for name in AUTOSCALING_SETTINGS.keys},
}))  # fmt: skip
"""The fields of a body; only those of the two blocks that migration is about are checked further."""


@dataclass(frozen=True, slots=True)
class ManagementBody:
    """A body of `POST /v1/llm_models` and the call that sends it, empty where the body holds nothing or is wrong.

    `findings` are those of the file it was read from, which is `origin`, and of what was decided, whose lines are 0;
    `enterprise` names what in it needs the Enterprise tier.
    """

    body: dict[str, Any]
    call: str
    findings: tuple[ConfigurationFinding, ...] = ()
    enterprise: tuple[str, ...] = ()
    origin: str = ""


def is_management_body(document: Document) -> bool:
    """Whether a document is a body of the Management API, or its `llm_config` alone."""
    value = document.value
    return isinstance(value, dict) and "trt_llm" not in value and bool(value.keys() & {*_WRAPPED, *LLM_CONFIG.keys})


def check_body(document: Document, *, strict: bool = False) -> tuple[ConfigurationFinding, ...]:
    """The findings of a body, or of an `llm_config` alone, in the order of the text."""
    root = document.root
    if root is None or root.kind != "mapping":
        return (wrong(root, "llm_config", "is missing, expected a mapping"),)
    found: list[ConfigurationFinding] = []
    if root.value.keys() & set(_WRAPPED):
        found += BODY.check(root, "")
        config, settings = root.find("llm_config"), root.find("autoscaling_settings")
        if config is not None and config.value is not None:
            found += check_llm_config(config)
        if settings is not None and settings.value is not None:
            found += check_autoscaling_settings(settings, "autoscaling_settings")
        found += check_workers(config, settings)
    else:
        found += [*check_llm_config(root), *check_workers(root, None)]
    found.sort(key=lambda each: (each.line, each.column))
    return tuple(replace(each, severity="error") if strict else each for each in found)


def make_body(
    given: Document | None, *, n_gram: bool = False, target_in_flight_tokens: int | None = None, strict: bool = False
) -> ManagementBody:
    """The body of a file that was given, or an empty one, with what was decided added to it.

    `n_gram` adds speculation by n-grams where none is configured. What is decided is checked as a file is.
    """
    findings = check_body(given, strict=strict) if given is not None else ()
    value = given.value if given is not None and isinstance(given.value, dict) else {}
    body = dict(value) if "llm_config" in value or "autoscaling_settings" in value else {"llm_config": dict(value)}
    config = dict(body.get("llm_config") or {})
    if n_gram:
        config.setdefault("speculative_config", {"decoding_type": "NGram"})
    body["llm_config"] = config
    if target_in_flight_tokens is not None:
        body["autoscaling_settings"] = {
            **(body.get("autoscaling_settings") or {}), "target_in_flight_tokens": target_in_flight_tokens,
        }  # fmt: skip
        findings += _check_decided(body, "autoscaling_settings.target_in_flight_tokens", strict=strict)
    is_usable = not any(each.severity == "error" for each in findings)
    is_filled = bool(config) or len(body) > 1
    call = make_call(body) if is_usable and is_filled else ""
    enterprise = tuple(_enterprise(config)) if is_usable else ()
    return ManagementBody(body, call, findings, enterprise, given.origin if given is not None else "")


def _check_decided(body: Mapping[str, Any], path: str, *, strict: bool = False) -> tuple[ConfigurationFinding, ...]:
    """The findings of one field of a body, or of those below it, that was decided and is in no file."""
    found = check_body(read_json(json.dumps(body), "options"), strict=strict)
    return tuple(replace(each, line=0, column=0) for each in found if each.path.startswith(path))


def with_speculation(body: ManagementBody, speculative_config: Mapping[str, Any]) -> ManagementBody:
    """A body with a speculation in its `llm_config`."""
    config = {**body.body["llm_config"], "speculative_config": dict(speculative_config)}
    whole = {**body.body, "llm_config": config}
    made = make_body(read_json(json.dumps(whole), "options"))
    decided = _check_decided(whole, "llm_config.speculative_config")
    return replace(made, findings=(*body.findings, *decided), origin=body.origin)


def _enterprise(config: dict[str, Any]) -> list[str]:
    found = []
    speculative = config.get("speculative_config")
    if speculative and canonical_type(speculative["decoding_type"]) in ENTERPRISE:
        found.append(f"speculation by {canonical_type(speculative['decoding_type'])}")
    if "b10_routing_config" in config:
        found.append("KV-aware routing")
    if config.get("is_disaggregated"):
        found.append("disaggregated serving")
    return found
