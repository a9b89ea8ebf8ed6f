"""The published schema of a judgement as JSON: made from the types of `cutover.judgement`, so that it cannot differ.

`docs/judgement.schema.json` is this, written by `python -m docs.generate`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from servescope.cutover.judgement import Judgement
from servescope.settings.json_schema import closed_object

SCHEMA_ID: Final = "urn:servescope:judgement:1"
"""What the schema is called; the number changes when a program that reads judgements has to."""

_TEXTS: Final[Mapping[tuple[str, str], str]] = MappingProxyType({
    ("Judgement", "verdict"): (
        "Of all required metrics but those of a source that was never run: any DEGRADED, else any NO DATA, else any "
        "INCONCLUSIVE, else HEALTHY; and INCONCLUSIVE instead of HEALTHY while a guard is DEGRADED."
    ),
    ("Judgement", "reason"): "One sentence.",
    ("Judgement", "at"): "When it was judged, RFC 3339.",
    ("Judgement", "plan"): "Name of the plan.",
    ("Judgement", "plan_hash"): "Hash of the frozen plan.",
    ("Judgement", "severity"): (
        "Of DEGRADED: `beyond margin` is proven worse than the margin, `probable` than the floor."
    ),
    ("Judgement", "live"): "What the verdict would be if it were not latched; null where it is not.",
    ("Judgement", "latched_since"): "When harm was proven that nobody has acknowledged; null without.",
    ("Judgement", "missed"): "Spans that were not observed, with why.",
    ("Judgement", "incomparable"): "What either stack cannot report or reports otherwise, or is not judged, by metric.",
    ("MetricJudgement", "guard"): "Whether its harm keeps the verdict over all metrics from being HEALTHY.",
    ("MetricJudgement", "ratio"): "v2 ÷ v1, whichever direction is good; null where there is none.",
    ("MetricJudgement", "low"): "Lower end of the interval of the ratio, valid at every look.",
    ("MetricJudgement", "high"): "Upper end of the interval of the ratio, valid at every look.",
    ("MetricJudgement", "margin"): "Relative change for the worse that is too much, a positive fraction, or null.",
    ("MetricJudgement", "limit"): "Margin or band in words: `10 % worse`, `3 ×` of events, `at least 40 %`.",
    ("MetricJudgement", "information"): "Information gathered: the inverse variance of the logarithm of the ratio.",
    ("MetricJudgement", "information_wanted"): "Information that settles the metric at the present estimate.",
    ("MetricJudgement", "eta_seconds"): "Until it is settled, at the last hour's rate; null where it is or cannot be.",
    ("MetricJudgement", "flips"): "What would change the verdict.",
    ("MetricJudgement", "overall"): "The ratio over the whole run, all stages together; null where there is none.",
    ("ArmFigures", "incidents"): "Where events happened, so that one bad replica is seen; null of other metrics.",
    ("OverallRatio", "high"): "Upper end of the interval; null where there is none.",
    ("StageState", "index"): "The stage, counted from 0.",
    ("StageState", "count"): "Stages of the plan.",
})  # fmt: skip


def judgement_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of `Judgement.to_json`."""
    described: dict[str, Any] = {}
    shown = _describe_class(Judgement, described)
    shown["properties"]["missed"] = _describe_spans()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "A judgement of a cutover by servescope",
        **shown,
        "$defs": {name: described[name] for name in sorted(described)},
    }


def _describe_class(cls: type, described: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(cls)
    properties = {}
    for each in fields(cls):
        name = each.name.removesuffix("_ms")
        shown = _describe(hints[each.name], described, is_time=name != each.name)
        text = _TEXTS.get((cls.__name__, name))
        properties[name] = {**shown, "description": text} if text else shown
    first_line = re.sub(r"\s+", " ", (cls.__doc__ or "").strip().split("\n\n")[0])
    return {"type": "object", "description": first_line, **closed_object(properties)}


def _describe_spans() -> dict[str, Any]:
    span = closed_object({"start": _TIME, "end": _TIME, "reason": {"type": "string"}})
    return {"type": "array", "items": span, "description": _TEXTS["Judgement", "missed"]}


_TIME: Final = {"type": "string", "format": "date-time"}
_PLAIN: Final[Mapping[type, str]] = MappingProxyType({str: "string", float: "number", int: "integer", bool: "boolean"})


def _describe(hint: Any, described: dict[str, Any], *, is_time: bool = False) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _allow_null(
            _describe(next(each for each in arguments if each is not NoneType), described, is_time=is_time)
        )
    if is_time:
        return dict(_TIME)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": _describe(arguments[0], described)}
    if origin is tuple:
        return {
            "type": "array",
            "prefixItems": [_describe(each, described) for each in arguments],
            "items": False,
            "minItems": len(arguments),
        }
    if origin is dict:
        return {"type": "object", "additionalProperties": _describe(arguments[1], described)}
    if isinstance(hint, type) and is_dataclass(hint):
        if hint.__name__ not in described:
            described[hint.__name__] = None  # its place, for types that name each other
            described[hint.__name__] = _describe_class(hint, described)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {"type": _PLAIN[hint]}


def _allow_null(shown: dict[str, Any]) -> dict[str, Any]:
    if "enum" in shown:
        return {"enum": [*shown["enum"], None]}
    if "$ref" in shown:
        return {"anyOf": [shown, {"type": "null"}]}
    return {**shown, "type": [shown["type"], "null"]}
