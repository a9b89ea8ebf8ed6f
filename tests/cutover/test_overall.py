"""The ratio over all stages of a run, and where events happened: reported beside each metric, and never gating."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from servescope.cutover.comparison.freezing import freeze
from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.judgement import Judgement
from servescope.cutover.plan.plan import Stage
from servescope.cutover.verdict.judge import judge
from servescope.increments.blocks import TargetIncrements
from tests.support.cutover_evidence import Side, Story, evidence_of, metric_of, plan_of

STORY = Story(past_hours=26, hours=4, v1=Side(replicas=6), v2=Side(replicas=2))
HALF_MS = STORY.started_ms + 2 * 3_600_000
HARMED = replace(STORY, v2=Side(replicas=2, first_token=1.3, errors=0.02))


def judged(first: Story, then: Story, *, stages: int) -> Judgement:
    """The judgement of two hours of one story followed by two of another, each a stage or both together."""
    parts = [evidence_of(each).targets for each in (first, then)]
    targets = tuple(_spliced(one, other) for one, other in zip(*parts, strict=True))
    evidence = replace(evidence_of(first), targets=targets)
    frozen = freeze(replace(plan_of(0.25), stages=(Stage(0.25), Stage(0.26))), evidence, STORY.started_ms)
    journal = [Decision("start", STORY.started_ms, stage=0), Decision("advance", HALF_MS, "ada", "why not", stage=1)]
    return judge(frozen, evidence, journal[:stages], STORY.end_ms)


def _spliced(before: TargetIncrements, after: TargetIncrements) -> TargetIncrements:
    gains = before.gains.copy()
    gains[:, after.blocks >= HALF_MS] = after.gains[:, after.blocks >= HALF_MS]
    return replace(before, gains=gains)


@cache
def recovered() -> Judgement:
    """A first stage with harm, and a second one without."""
    return judged(HARMED, STORY, stages=2)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "first"), [("time_to_first_token_seconds", 1.3), ("request_error_share", 10.0)])
def test_every_stage_counts_in_the_overall_ratio(name: str, first: float) -> None:
    """It lies between those of the two stages, with an interval that excludes both."""
    metric = metric_of(recovered(), name)

    assert metric.overall is not None
    assert metric.ratio == pytest.approx(1.0, abs=0.25)
    assert metric.overall.high is not None
    assert 1.0 < metric.overall.low < metric.overall.ratio < metric.overall.high < first


@pytest.mark.slow
def test_the_overall_ratio_decides_nothing() -> None:
    """The second stage is healthy by its own blocks."""
    metric = metric_of(recovered(), "time_to_first_token_seconds")

    assert (recovered().live, metric.verdict) == ("HEALTHY", "HEALTHY")


def test_of_one_stage_the_overall_ratio_is_the_stages_own() -> None:
    """Its interval is narrower, as it shares its level with no other stage and metric."""
    judgement = judged(STORY, STORY, stages=1)
    compared = [each for each in judgement.metrics if each.band is None and each.required]

    assert len(compared) == 6
    for each in compared:
        if each.ratio:
            assert each.overall is not None, each.name
            assert each.overall.ratio == pytest.approx(each.ratio, rel=0.01), each.name
            assert (each.low or 0.0) <= each.overall.low < each.overall.ratio, each.name
    assert all(each.overall is None for each in judgement.metrics if each.band is not None)


@pytest.mark.slow
def test_errors_of_one_replica_are_seen_to_be_its_own() -> None:
    """All of v1's replicas fail now and then; of v2's one does all the time, and the others never."""
    clean, failing = (evidence_of(replace(STORY, v2=Side(replicas=2, errors=errors))) for errors in (0.0, 0.05))
    bad = next(each for each in failing.targets if each.identity.inference_stack == "v2")
    evidence = replace(clean, targets=tuple(bad if each.target_id == bad.target_id else each for each in clean.targets))
    frozen = freeze(plan_of(0.25), evidence, STORY.started_ms)
    judgement = judge(frozen, evidence, (Decision("start", STORY.started_ms, stage=0),), STORY.end_ms)
    errors = metric_of(judgement, "request_error_share")

    assert errors.v1 is not None
    assert errors.v1.incidents is not None
    assert (errors.v1.incidents.replicas, errors.v1.incidents.of_replicas) == (6, 6)
    assert errors.v2 is not None
    assert errors.v2.incidents is not None
    assert (errors.v2.incidents.replicas, errors.v2.incidents.of_replicas) == (1, 2)
    assert errors.v2.incidents.blocks == errors.v2.incidents.of_blocks / 2 == 4 * 12
