"""Gross harm while replicas warm up: said within a quarter of an hour, and not of an honest cold start."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from servescope.cutover.comparison.gross import gross_harm
from servescope.cutover.evidence.evidence import Decision, Evidence
from servescope.cutover.judgement import Judgement
from servescope.cutover.statistics.effects import BlockEffects
from servescope.cutover.statistics.sequences import Floats
from servescope.cutover.verdict.judge import judge
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from tests.support.cutover_evidence import Side, Story, evidence_of, frozen_of, slowed

STORY = Story(past_hours=26, hours=2, v1=Side(replicas=6), v2=Side(replicas=2, warm=False))


def _slowed(evidence: Evidence, factors: Floats) -> Evidence:
    """Every latency of v2 so many times as long, block by block of the stage; what comes after is as it was."""
    first = STORY.started_ms

    def of(target: TargetIncrements) -> Floats:
        index = ((target.blocks - first) // BLOCK_MS).astype(int)
        inside = (index >= 0) & (index < factors.size)
        return np.where(inside, factors[np.clip(index, 0, factors.size - 1)], 1.0)

    targets = (
        slowed(each, "time_to_first_token_seconds", of(each)) if each.identity.inference_stack == "v2" else each
        for each in evidence.targets
    )
    return replace(evidence, targets=tuple(targets))


def _judged(factors: list[float], minutes: int, story: Story = STORY) -> Judgement:
    evidence = _slowed(evidence_of(story), np.array(factors))
    frozen = frozen_of(story)
    end_ms = story.started_ms + minutes * 60_000
    targets = tuple(target.at(target.blocks + BLOCK_MS <= end_ms) for target in evidence.targets)
    scraped = dict.fromkeys(evidence.last_scrape_ms, end_ms)
    seen = replace(evidence, targets=targets, observed_until_ms=end_ms, last_scrape_ms=scraped)
    return judge(frozen, seen, (Decision("start", story.started_ms, stage=0),), end_ms)


@pytest.mark.parametrize("times", [5.0, 10.0])
def test_gross_harm_is_said_within_a_quarter_of_an_hour(times: float) -> None:
    """By its name and size, with the advice to roll back, while the replicas are still warming up."""
    judgement = _judged([times] * 3, 15)

    assert (judgement.verdict, judgement.severity, judgement.advice) == ("DEGRADED", "beyond margin", "roll back")
    assert "gross harm while warming" in judgement.reason
    assert float(re.findall(r"([\d.]+) times higher than on v1", judgement.reason)[0]) == pytest.approx(times, rel=0.1)
    (found,) = (each for each in judgement.metrics if each.name == "time_to_first_token_seconds")
    assert found.cause == "gross harm while warming"


@pytest.mark.parametrize(
    "factors",
    [[1.8] * 12, [2.5] * 12, [10.0, 10.0, 1.8, 1.8], [3.5, 2.8, 2.2, 1.8], [10.0, 1.0, 10.0, 10.0, 1.0]],
    ids=["a plain start", "a slow start", "two blocks of compiling", "a decay", "not in a row"],
)
def test_an_honest_cold_start_is_no_gross_harm(factors: list[float]) -> None:
    """Neither slower throughout than a cold cache makes it, nor for a block or two by as much as one likes."""
    judgement = _judged(factors, 5 * len(factors))

    # Harm that was claimed at any block would have stayed.
    assert judgement.verdict == "INCONCLUSIVE"
    assert "warming up" in judgement.reason


@pytest.mark.parametrize(("times", "variance", "is_harm"), [(4.0, 0.01, True), (4.0, 0.2, False), (3.0, 1e-4, False)])
def test_few_requests_are_no_gross_harm(times: float, variance: float, is_harm: bool) -> None:
    """Four times v1's in three blocks proves nothing where they vary much, and three times is not more than three."""
    every = np.arange(3)
    blocks = BlockEffects(np.full(3, math.log(times)), np.full(3, variance), np.ones(3, dtype=np.int64), every)
    found = gross_harm(
        blocks, blocks.sampling, alpha=0.05, level=3e-4, wanted=440.0, starts=np.array([0]), weights=np.array([1.0]),
        size=3,
    )  # fmt: skip

    assert np.isnan(found[:2]).all()
    assert np.isfinite(found[2]) == is_harm


def test_gross_harm_stays_until_it_is_acknowledged() -> None:
    """Though v2 is as good as v1 afterwards."""
    judgement = _judged([10.0] * 3, 120)

    assert judgement.verdict == "DEGRADED"
    assert judgement.live != "DEGRADED"
    assert "gross harm while warming" in judgement.reason
