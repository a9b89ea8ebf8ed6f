"""The dashboards are of the form that Grafana's own types and its foundation SDK know."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from tests.support.boards import NAMES, panels, read_board

with warnings.catch_warnings():
    # It prefers the second schema, which Grafana 11 does not read.
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.models.dashboard import Dashboard


@pytest.fixture(scope="module")
def validator(grafana_schema: Path) -> jsonschema.Draft7Validator:
    """The schema, but that an annotation holds what its data source wants, as Grafana's own definition leaves open."""
    schema = json.loads(grafana_schema.read_text(encoding="utf-8"))
    for name in ("AnnotationQuery", "AnnotationTarget"):
        schema["definitions"][name]["additionalProperties"] = True
    schema["definitions"]["AnnotationTarget"]["required"] = []
    return jsonschema.Draft7Validator(schema)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_is_valid(validator: jsonschema.Draft7Validator, name: str) -> None:
    """Against the schema generated from npm's `@grafana/schema`."""
    problems = [f"{list(error.absolute_path)}: {error.message}" for error in validator.iter_errors(read_board(name))]

    assert not problems


@pytest.mark.parametrize("name", NAMES)
def test_an_independent_reader_reads_the_same(name: str) -> None:
    """What the foundation SDK decodes and encodes again has the same panels, queries, variables and links."""
    board = read_board(name)

    again = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(board)))

    assert _missing(board["panels"], again["panels"]) == []
    assert _missing(board["templating"], again["templating"]) == []
    assert _missing(board["links"], again["links"]) == []
    assert [panel["type"] for panel in panels(again)] == [panel["type"] for panel in panels(board)]


def _missing(part: Any, other: Any, path: str = "") -> list[str]:
    """Where the first says something that the other does not."""
    if isinstance(part, dict) and isinstance(other, dict):
        return [found for key in part for found in _missing(part[key], other.get(key), f"{path}.{key}")]
    if isinstance(part, list) and isinstance(other, list) and len(part) == len(other):
        return [
            found
            for number, (one, another) in enumerate(zip(part, other, strict=True))
            for found in _missing(one, another, f"{path}.{number}")
        ]
    return [] if part == other or (other is None and not part) else [f"{path}: {part!r}, again {other!r}"]
