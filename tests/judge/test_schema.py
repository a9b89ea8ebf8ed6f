"""A judgement as JSON follows the published schema."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import jsonschema
import pytest

from servescope.cutover.judgement import VERDICTS, Verdict
from servescope.judge.report.schema import judgement_schema
from tests.support.judgements import judgement

VALIDATOR = jsonschema.Draft202012Validator(
    judgement_schema(), format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
)


def test_the_schema_is_one() -> None:
    """It is a JSON Schema of the draft it names."""
    jsonschema.Draft202012Validator.check_schema(judgement_schema())


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_verdict_follows_the_schema(verdict: Verdict) -> None:
    """As a program reads it: written as JSON and read again."""
    VALIDATOR.validate(json.loads(json.dumps(judgement(verdict).to_json(), allow_nan=False)))


def test_the_top_has_what_programs_read() -> None:
    """Verdict, reason, time, plan, stage, and of each metric its figures; times are RFC 3339."""
    shown = judgement("INCONCLUSIVE").to_json()
    first = shown["metrics"][0]

    assert shown["verdict"] == "INCONCLUSIVE"
    assert shown["at"] == "2026-11-18T13:10:00Z"
    assert shown["plan"] == "chat"
    assert shown["stage"]["since"] == "2026-11-18T11:10:00Z"
    assert {"name", "verdict", "reason", "ratio", "low", "high", "margin", "information", "eta_seconds"} <= set(first)
    assert first["eta_seconds"] == 2400.0


def test_a_band_has_no_margin_and_what_is_not_a_number_is_null() -> None:
    """JSON has neither NaN nor infinity."""
    shown = judgement()
    endless = replace(shown, metrics=(replace(shown.metrics[0], high=math.inf, ratio=math.nan), shown.metrics[2]))
    written = endless.to_json()

    assert written["metrics"][0]["high"] is None
    assert written["metrics"][0]["ratio"] is None
    assert written["metrics"][1]["margin"] is None
    VALIDATOR.validate(written)


def test_an_unknown_verdict_is_refused() -> None:
    """The schema would notice a verdict that is spelled otherwise, and a field that it does not have."""
    shown = judgement().to_json()

    assert not VALIDATOR.is_valid({**shown, "verdict": "Healthy"})
    assert not VALIDATOR.is_valid({**shown, "score": 97})
