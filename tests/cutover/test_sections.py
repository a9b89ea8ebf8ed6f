"""A stage that lasts for months is judged in sections: what it takes is bounded, and what was proven stays known."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from servescope.cutover.evidence.evidence import Decision, Evidence
from servescope.cutover.evidence.stages import course_of, section_part
from servescope.cutover.judgement import Judgement
from servescope.cutover.plan.plan import FrozenPlan
from servescope.cutover.verdict.judge import judge
from servescope.increments.blocks import BLOCK_MS
from tests.support.cutover_evidence import Side, Story, evidence_of, frozen_of, plan_of

DAY_MS, HOUR_MS = 86_400_000, 3_600_000
STORY = Story(past_hours=26, hours=12, v1=Side(replicas=6), v2=Side(replicas=2))
HARMED = replace(STORY, v2=Side(replicas=2, slower=1.3))


@cache
def _frozen(story: Story) -> tuple[Evidence, FrozenPlan]:
    evidence = evidence_of(story)
    return evidence, frozen_of(story)


def judged(story: Story, hours: float, *decisions: Decision) -> Judgement:
    """The judgement of a story so long after its start."""
    evidence, frozen = _frozen(story)
    start = Decision("start", story.started_ms, stage=0)
    return judge(frozen, evidence, (start, *decisions), story.started_ms + round(hours * HOUR_MS))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sections of five hours with four of those before: weeks take long."""
    monkeypatch.setattr("servescope.cutover.evidence.stages.SECTION_MS", 5 * HOUR_MS)
    monkeypatch.setattr("servescope.cutover.evidence.stages.OVERLAP_MS", 4 * HOUR_MS)
    monkeypatch.setattr("servescope.cutover.evidence.windows.LEAD_MS", 2 * HOUR_MS)


def test_a_stage_of_months_has_sections_of_four_weeks() -> None:
    """Each later one with a week of those before as evidence; the next stage has sections of its own."""
    decisions = (Decision("start", 0, stage=0), Decision("advance", 60 * DAY_MS, "ada", "go on", stage=1))
    spans = course_of(plan_of(0.25, 0.5), 0, decisions, 70 * DAY_MS).stages

    assert [(each.index, each.since_ms // DAY_MS, each.until_ms // DAY_MS) for each in spans] == [
        (0, 0, 28), (0, 28, 56), (0, 56, 60), (1, 60, 70),
    ]  # fmt: skip
    assert [each.evidence_ms // DAY_MS for each in spans] == [0, 21, 49, 60]
    assert [each.begun_ms // DAY_MS for each in spans] == [0, 0, 0, 60]


def test_four_weeks_are_one_section() -> None:
    """As is a stage that has only begun."""
    for hours in (0, 1, 28 * 24):
        (span,) = course_of(plan_of(0.25), 0, (), hours * HOUR_MS).stages
        assert (span.since_ms, span.until_ms, span.section) == (0, hours * HOUR_MS, 0)


def test_all_sections_that_may_ever_come_share_one_probability_of_error() -> None:
    """The first has nearly all of it, and no later one nothing."""
    parts = [section_part(section) for section in range(1000)]
    assert 0.999 < sum(parts) < 1.0
    assert parts[0] == 0.99
    assert parts == sorted(parts, reverse=True)


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_what_is_healthy_stays_so_when_a_section_ends() -> None:
    """The stage began when it did, and its figures are of the evidence of the latest section."""
    judgement = judged(STORY, 12)

    assert [each.verdict for each in judgement.changes] == ["INCONCLUSIVE", "HEALTHY"]
    assert judgement.stage.since_ms == STORY.started_ms
    assert any("judged by what was observed since" in note for note in judgement.notes)
    compared = judgement.metrics[0].compared
    assert compared is not None
    assert compared.since_ms >= STORY.started_ms + 6 * HOUR_MS


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_harm_of_an_earlier_section_is_known_until_it_is_acknowledged() -> None:
    """Once: what goes on in the next section is no new harm."""
    judgement = judged(HARMED, 9)
    assert judgement.latched_since_ms is not None
    assert judgement.latched_since_ms < STORY.started_ms + 4 * HOUR_MS
    assert [each.verdict for each in judgement.changes].count("DEGRADED") == 1

    late = Decision("acknowledge", STORY.started_ms + 5 * HOUR_MS, "ada", "known")
    assert judged(HARMED, 9, late).latched_since_ms is None


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_the_overall_ratio_has_each_block_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several sections as of one, though a section's evidence overlaps that of the one before."""
    several = {each.name: each.overall for each in judged(HARMED, 11).metrics}
    monkeypatch.setattr("servescope.cutover.evidence.stages.SECTION_MS", DAY_MS)
    for metric in judged(HARMED, 11).metrics:
        found = several[metric.name]
        assert (found is None) == (metric.overall is None)
        if found is not None and metric.overall is not None:
            assert (found.ratio, found.low) == pytest.approx((metric.overall.ratio, metric.overall.low), rel=0.01)


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_a_section_is_judged_the_same_whenever_it_is() -> None:
    """What a judge that watched wrote down is what is found at the end."""
    whole = judged(HARMED, 11).changes
    for blocks in (59, 60, 61, 119, 121):
        so_far = judged(HARMED, blocks / 12).changes
        assert so_far == tuple(each for each in whole if each.at_ms <= STORY.started_ms + blocks * BLOCK_MS)
