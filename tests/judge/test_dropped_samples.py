"""A run that is older than the samples that are held: what is not known any more is said, and harm is not forgotten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from servescope.increments.blocks import TargetIncrements
from tests.support.commands import run
from tests.support.cutover_evidence import Side, Story, evidence_of
from tests.support.cutover_past import MadePast, given, made_past
from tests.support.cutover_plans import LEAST_PLAN

HOUR_MS = 3_600_000
STORY = Story(past_hours=26, hours=8, v1=Side(replicas=6), v2=Side(replicas=2, slower=1.4))
MENDED_MS = STORY.started_ms + 2 * HOUR_MS


@pytest.fixture
def past() -> Iterator[MadePast]:
    """A v2 that is slower for two hours and then is not."""
    past = made_past(STORY)
    later = {each.target_id: each for each in evidence_of(replace(STORY, v2=Side(replicas=2))).targets}
    targets = tuple(_mended(each, later[each.target_id]) for each in past.evidence.targets)
    past.evidence = replace(past.evidence, targets=targets)
    with given(past):
        yield past


def _mended(before: TargetIncrements, after: TargetIncrements) -> TargetIncrements:
    gains = before.gains.copy()
    gains[:, after.blocks >= MENDED_MS] = after.gains[:, after.blocks >= MENDED_MS]
    return replace(before, gains=gains)


@pytest.fixture
def words(past: MadePast, tmp_path: Path) -> tuple[str, ...]:
    """The plan of a run whose harm is in the journal, and whose first four hours are not held any more."""
    plan = tmp_path / "cutover.toml"
    plan.write_text(LEAST_PLAN, encoding="utf-8")
    past.now_ms = STORY.started_ms
    assert run("judge", "start", "--plan", str(plan)).returncode == 0
    past.now_ms = STORY.started_ms + 3 * HOUR_MS
    assert run("judge", "run", "--plan", str(plan)).returncode == 10
    past.now_ms = STORY.end_ms
    targets = past.evidence.targets
    kept_ms = STORY.started_ms + 4 * HOUR_MS
    past.evidence = replace(past.evidence, targets=tuple(each.at(each.blocks >= kept_ms) for each in targets))
    return "--plan", str(plan)


def _judged(words: tuple[str, ...]) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(run("judge", "run", *words, "--format", "json").stdout)
    return shown


@pytest.mark.slow
def test_harm_of_which_the_samples_are_gone_is_known_until_it_is_acknowledged(words: tuple[str, ...]) -> None:
    """At every judgement, whatever the samples that are held say; then the verdict is theirs."""
    for _ in range(2):
        judgement = _judged(words)
        assert (judgement["verdict"], judgement["live"], judgement["advice"]) == ("DEGRADED", "HEALTHY", "hold")
        assert "nobody has acknowledged it" in judgement["reason"]
        assert "the samples of it are not held any more, now it would be HEALTHY" in judgement["reason"]
        assert [each["verdict"] for each in judgement["changes"]][-1] == "DEGRADED"

    done = run("judge", "decide", "acknowledge", *words, "--by", "ada", "--reason", "it was mended")
    assert done.returncode == 0, done.stderr
    assert "on DEGRADED: harm was proven" in done.stdout
    assert _judged(words)["verdict"] == "HEALTHY"


@pytest.mark.slow
def test_what_is_not_held_of_a_run_is_said(words: tuple[str, ...]) -> None:
    """From its start to the first of the samples that are."""
    missed = _judged(words)["missed"]

    assert [each["reason"] for each in missed] == ["v1 was not scraped"]
    assert "v1 was not scraped" in run("judge", "explain", *words).stdout
