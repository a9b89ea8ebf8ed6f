"""`servescope migrate` with traffic: whether what v2 adds pays, from what an emulated v1 served."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from servescope.emulator.deployment.stack import LOOKAHEAD
from servescope.migration.report import migration_schema
from servescope.settings.values import format_instant
from tests.support.commands import Done, run
from tests.support.served_traffic import EmulatedPast

pytestmark = pytest.mark.slow


def migrate(past: EmulatedPast, *words: str) -> Done:
    """Migrate with the recorded traffic of the past hour and ten minutes."""
    return run("migrate", *words, "--store", str(past.store), "--at", format_instant(past.end_ms), "--past", "71m")


def advice(past: EmulatedPast, *words: str) -> dict[str, Any]:
    """The advice by its topic, of a report that its schema describes."""
    found = json.loads(migrate(past, *words, "--format", "json").stdout)
    jsonschema.validate(found, migration_schema())
    return {each["topic"]: each for each in found["advice"]}


def test_advice_is_of_the_traffic_that_was_served(served_past: EmulatedPast) -> None:
    """All three topics, without a configuration, in text as in JSON."""
    found = advice(served_past)
    assert list(found) == ["routing", "disaggregation", "speculation"]
    text = migrate(served_past).stdout
    assert "\nWhether what v2 adds pays for this traffic:\n" in text
    for each in found.values():
        assert f"{each['answer']}: {each['text']}." in text
        assert all(reason in text for reason in each["reasons"])


def test_reuse_of_today_is_a_lower_bound(served_past: EmulatedPast) -> None:
    """v1 routes by load, and its caches are counted all the same."""
    found = advice(served_past)["routing"]
    assert found["answer"] == "unknown"
    assert re.match(r"at least \d+\.\d % of prompt tokens come from cache, as today", found["text"])


def test_acceptance_by_position_is_that_of_the_drafts(served_past: EmulatedPast) -> None:
    """What the emulator's drafts are right for, which is not as much as would pay for three positions."""
    found = advice(served_past)["speculation"]
    (shown,) = [each for each in found["reasons"] if each.startswith("Accepted up to each position")]
    seen = [int(each) / 100 for each in re.findall(r"(\d+) %", shown)]
    assert seen == pytest.approx(LOOKAHEAD.reach(), abs=0.02)
    # The second position is right in 39.6 % of the drafts, just below the band.
    assert found["answer"] == "may pay"
    assert found["text"].startswith("draft 1 token in place of 3 (max_draft_len: 1): 1.66 tokens a step")
    assert any("v1's lookahead, which v2 does not have" in reason for reason in found["reasons"])


def test_a_target_decides_whether_first_tokens_are_a_bottleneck(served_past: EmulatedPast) -> None:
    """One that is kept, and one that is missed."""
    kept = advice(served_past, "--first-token-target", "100")["disaggregation"]
    missed = advice(served_past, "--first-token-target", "0.001")["disaggregation"]
    assert kept["answer"] == "does not pay"
    assert missed["answer"] in ("may pay", "depends")
    assert "with a target of 0.001 s." in missed["reasons"][1]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a.yaml", "--first-token-target", "1"], "goes with --deployment, --store or --prometheus"),
        (["--store", "a", "--first-token-target", "0"], "--first-token-target is 0, expected a number of seconds"),
        (["--store", "a", "--first-token-target", "nan"], "--first-token-target is nan, expected a number of seconds"),
    ],
)  # fmt: skip
def test_a_target_that_cannot_be_is_refused(words: list[str], expected: str) -> None:
    """Exit code 2 and the reason."""
    done = run("migrate", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr
