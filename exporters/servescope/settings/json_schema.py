"""JSON Schemas of documents that this package writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def closed_object(properties: Mapping[str, Any]) -> dict[str, Any]:
    """An object that has these properties, all of them, and no other."""
    return {
        "type": "object", "properties": dict(properties), "required": list(properties), "additionalProperties": False,
    }  # fmt: skip
