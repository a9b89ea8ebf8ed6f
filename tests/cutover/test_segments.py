"""Segments: harm in one tenant of many is found, named, and withholds HEALTHY; equal tenants are not harmed."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from app.cutovers.verdicts import draw_segments
from servescope.contract.metrics import SEGMENT
from servescope.cutover.comparison.freezing import freeze
from servescope.cutover.evidence.evidence import Decision, Evidence
from servescope.cutover.evidence.folding import fold, joined
from servescope.cutover.evidence.segments import REQUESTS
from servescope.cutover.evidence.stages import course_of
from servescope.cutover.evidence.windows import window_of
from servescope.cutover.judgement import Judgement
from servescope.cutover.statistics.discoveries import discoveries
from servescope.cutover.verdict.judge import fold_evidence, judge, judge_folded
from servescope.cutover.verdict.stage import judge_stage
from servescope.increments.blocks import BLOCK_MS
from servescope.judge.checkpoints.fold_codec import decode, encode
from servescope.judge.report.report import render_report
from servescope.judge.report.text import describe_judgement
from tests.cutover.support.segmented_evidence import Tenant, segmented, tenants_of, without_segments
from tests.support.cutover_evidence import HOUR, Side, Story, plan_of
from tests.support.drawing import trials

STORY = Story(past_hours=26, hours=4, v1=Side(replicas=6), v2=Side(replicas=2))


def judged(evidence: Evidence, story: Story = STORY, at_ms: int | None = None) -> Judgement:
    frozen = freeze(plan_of(story.share), evidence, story.started_ms)
    return judge(frozen, evidence, (Decision("start", story.started_ms, stage=0),), at_ms or story.end_ms)


@pytest.fixture(scope="module", name="slow")
def _slow() -> Evidence:
    """A tenant of 3 % of the requests that v2 serves twice as slow."""
    return segmented(STORY, tenants_of(10, slower=2.0))


def test_harm_in_one_tenant_is_named_and_withholds_healthy(slow: Evidence) -> None:
    """Nothing is rolled back for it, and no other tenant is named."""
    judgement = judged(slow)

    assert (judgement.verdict, judgement.advice, judgement.latched_since_ms) == ("INCONCLUSIVE", "hold", None)
    assert judgement.reason.startswith("harm in segment 'tenant b': ")
    assert "% of v2's requests" in judgement.reason
    assert [each.name for each in judgement.segments if each.finding == "harm"] == ["tenant b"]
    (line,) = [each for each in describe_judgement(judgement).splitlines() if each.startswith("tenant b ")]
    assert re.search(r" harm  .*  (2\.0|0\.[45])\d  ", line)


def test_the_report_and_the_console_list_every_segment(slow: Evidence) -> None:
    frozen = freeze(plan_of(STORY.share), slow, STORY.started_ms)
    judgement = judged(slow)
    report = render_report(judgement, frozen, ())
    shown = draw_segments(judgement)

    for page in (report, shown):
        text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))
        assert all(each.name in text for each in judgement.segments)
        assert re.findall(r"(tenant \w+) harm \d", text) == ["tenant b"]
    assert draw_segments(judged(without_segments(slow))) == ""


def test_what_is_found_is_how_much_slower_and_how_large_the_tenant_is(slow: Evidence) -> None:
    (tenant,) = [each for each in judged(slow).segments if each.name == "tenant b"]

    (first_token,) = [each for each in tenant.metrics if each.name == "time_to_first_token_seconds"]
    assert first_token.ratio == pytest.approx(2.0, rel=0.1)
    assert first_token.low is not None
    assert first_token.low > 1.1
    (speed,) = [each for each in tenant.metrics if each.name == "tps_per_request"]
    assert speed.ratio == pytest.approx(0.5, rel=0.1)
    assert speed.high is not None
    assert speed.high < 0.9
    assert tenant.v2_share == pytest.approx(0.03, abs=0.005)


def test_equal_tenants_are_healthy() -> None:
    judgement = judged(segmented(STORY, tenants_of(10)))

    assert judgement.verdict == "HEALTHY"
    assert {each.finding for each in judgement.segments} == {"no harm found"}


def test_errors_of_one_tenant_are_harm_in_it() -> None:
    """Half of the requests of a small tenant fail."""
    tenants = tenants_of(10) | {"tenant b": Tenant(0.01, v2_errors=0.5)}
    judgement = judged(segmented(STORY, tenants))

    (tenant,) = [each for each in judgement.segments if each.finding == "harm"]
    assert [each.name for each in tenant.metrics if each.harmful] == ["request_error_share"]


def test_it_does_not_latch() -> None:
    """HEALTHY follows once a tenant is as fast as before for long enough."""
    slow = segmented(replace(STORY, hours=2), tenants_of(4, slower=1.6))
    story = replace(STORY, hours=26)
    equal = segmented(story, tenants_of(4))
    before = {target.target_id: target for target in slow.targets}
    targets = []
    for target in equal.targets:
        size = before[target.target_id].blocks.size
        gains = np.concatenate([before[target.target_id].gains, target.gains[:, size:]], axis=1)
        targets.append(replace(target, gains=gains))
    evidence = replace(equal, targets=tuple(targets))

    assert "tenant b" in judged(evidence, story, STORY.started_ms + 2 * 3_600_000).reason
    late = judged(evidence, story)
    assert (late.verdict, late.latched_since_ms) == ("HEALTHY", None)


def test_without_segments_nothing_else_is_judged(slow: Evidence) -> None:
    """All requests together are judged alike, by whatever labels they are counted."""
    one, other = judged(slow), judged(without_segments(slow))

    assert other.segments == ()
    for whole, summed in zip(one.metrics, other.metrics, strict=True):
        assert (whole.verdict, whole.cause) == (summed.verdict, summed.cause)
        assert whole.ratio == pytest.approx(summed.ratio)
        assert whole.low == pytest.approx(summed.low)


def test_a_segment_of_one_arm_alone_is_no_data_and_blocks_nothing() -> None:
    only_v1 = tenants_of(4) | {"gone": Tenant(0.0, v1_part=0.05)}
    judgement = judged(segmented(STORY, only_v1))

    assert judgement.verdict == "HEALTHY"
    assert [each.name for each in judgement.segments if each.finding == "no data"] == ["gone"]
    assert "no data of segments that v2 had no requests of: 'gone'" in judgement.notes


def test_a_shift_of_traffic_between_segments_is_said() -> None:
    shifted = {"a": Tenant(0.5, v1_part=0.7), "b": Tenant(0.5, v1_part=0.3)}
    judgement = judged(segmented(STORY, shifted))

    assert "traffic by segment differs: 20 % of v2's requests are of other segments than v1's" in judgement.notes
    alike = judged(segmented(STORY, {"a": Tenant(0.7), "b": Tenant(0.3)}))
    assert not any("traffic by segment" in each for each in alike.notes)


def test_no_more_than_thirty_segments_are_compared() -> None:
    judgement = judged(segmented(STORY, tenants_of(34, part=0.2)))

    assert "4 segments are not compared: the 30 with the most requests are" in judgement.notes
    assert sum(each.finding == "not compared" for each in judgement.segments) == 4


def test_a_segment_that_comes_later_leaves_the_sums_known() -> None:
    """It has counted nothing before, so that what all requests together did is known as before."""
    evidence = segmented(STORY, {"a": Tenant(0.5), "b": Tenant(0.5)})
    late = np.arange(evidence.targets[0].blocks.size) >= (STORY.past_hours + 1) * HOUR
    targets = []
    for target in evidence.targets:
        gains = target.gains.copy()
        rows = [row for row, each in enumerate(target.series) if (SEGMENT, "b") in each.labels]
        there = late[-target.blocks.size :]
        gains[rows] = np.where(there, gains[rows], np.nan)
        targets.append(replace(target, gains=gains))
    folded = fold(plan_of(0.25), targets, STORY.started_ms - 25 * 3_600_000, STORY.end_ms)

    for arm in (folded.v1, folded.v2):
        counted = arm.metrics["time_to_first_token_seconds"].below[arm.present]
        assert np.isfinite(counted).all()
        ended = arm.traffic["requests"][arm.present]
        assert np.isfinite(ended).all()


def test_parts_make_the_same_fold_as_the_whole(slow: Evidence) -> None:
    """A judge that follows a run folds what is new, and keeps it in a file."""
    frozen = freeze(plan_of(STORY.share), slow, STORY.started_ms)
    decisions = (Decision("start", STORY.started_ms, stage=0),)
    whole = fold_evidence(frozen, slow, decisions, STORY.end_ms)
    middle = STORY.started_ms + 12 * BLOCK_MS
    first = fold_evidence(frozen, replace(slow, observed_until_ms=middle), decisions, STORY.end_ms)
    second = fold_evidence(frozen, slow, decisions, STORY.end_ms, former=first)

    for one, other in zip((whole.v1, whole.v2), (second.v1, second.v2), strict=True):
        assert one.segments.keys() == other.segments.keys() >= {REQUESTS, "time_to_first_token_seconds"}
        for name, by_segment in one.segments.items():
            for segment, sums in by_segment.items():
                np.testing.assert_array_equal(sums.below, other.segments[name][segment].below)
    kept = decode(encode(second))
    at = STORY.end_ms
    assert judge_folded(frozen, kept, slow, decisions, at) == judge_folded(frozen, whole, slow, decisions, at)


def test_a_segment_of_a_later_part_is_joined() -> None:
    plan, story = plan_of(0.25), replace(STORY, hours=2)
    one = segmented(story, {"a": Tenant(1.0)})
    other = segmented(story, {"a": Tenant(0.5), "b": Tenant(0.5)})
    middle = story.started_ms + 6 * BLOCK_MS
    begin = story.started_ms - 3_600_000
    first = fold(plan, one.targets, begin, middle)
    second = fold(plan, other.targets, begin, story.end_ms, former=first)
    arm = joined([first, second]).v1

    below = arm.segments[REQUESTS]["b"].below
    assert below.shape == arm.present.shape
    assert np.isnan(below[:, :18]).all()
    assert np.isfinite(below[:, 18:]).all()


def test_discoveries_are_those_of_their_rank() -> None:
    """The largest k of N, each of them at least N ÷ (alpha · k); none where all are less."""
    log_e = np.log(np.array([[51.0, 1.0], [35.0, 1.0], [1.0, 30.0], [1.0, 1.0]]))
    found = discoveries(log_e, np.full(2, 4.0), 0.08)

    assert found.tolist() == [[True, False], [True, False], [False, False], [False, False]]
    # One alone needs all of N ÷ alpha, and fewer hypotheses need less.
    assert discoveries(log_e[[0, 2]], np.array([4.0, 2.0]), 0.08).tolist() == [[True, False], [False, True]]


# --- How often, and how soon ------------------------------------------------------------------------------------------


def minutes(
    seed: int, count: int, *, share: float, hours: int, slower: float = 1.0, wander: float = 0.0
) -> tuple[float, bool]:
    """When a tenant of 3 % of the requests was found on a day of so many tenants, and whether another ever was.

    Infinite where it was not.
    """
    replicas = Side(replicas=2 if share > 0.1 else 1)
    story = replace(STORY, hours=hours, share=share, seed=seed, v2=replicas)
    evidence = segmented(story, tenants_of(count, slower=slower, wander=wander))
    frozen = freeze(plan_of(share), evidence, story.started_ms)
    decisions = (Decision("start", story.started_ms, stage=0),)
    folded = fold_evidence(frozen, evidence, decisions, story.end_ms)
    course = course_of(frozen.plan, frozen.started_ms, decisions, story.end_ms)
    stage = judge_stage(frozen, window_of(folded, course.stages[-1]), evidence, course, course.stages[-1])
    found = stage.segments
    assert found is not None
    harmed = np.any(list(found.harmful.values()), axis=0)
    names = [found.names[each] for each in found.compared]
    of_b = harmed[names.index("tenant b")]
    others = bool(np.delete(harmed, names.index("tenant b"), axis=0).any())
    return (5.0 * (int(np.argmax(of_b)) + 1) if of_b.any() else math.inf), others


@pytest.mark.slow
@trials("days", 1, 300)
@pytest.mark.parametrize(
    ("count", "wander"), [(10, 0.0), pytest.param(30, 0.0, marks=pytest.mark.proof), (30, 0.1)]
)  # fmt: skip
def test_equal_tenants_are_never_harmed_on_nearly_all_days(count: int, wander: float, days: int) -> None:
    """At no look of a day is any of them, but on one day of twenty at most; also where each is slower on either arm
    for an hour now and then."""
    found = [minutes(seed, count, share=0.25, hours=24, wander=wander) for seed in range(days)]

    assert sum(minute < math.inf or others for minute, others in found) <= 0.05 * days


@pytest.mark.slow
@trials("days", 1, 300)
@pytest.mark.parametrize(
    ("share", "slower", "within"),
    [
        (0.25, 2.0, 60), pytest.param(0.25, 3.0, 60, marks=pytest.mark.proof),
        pytest.param(0.05, 2.0, 240, marks=pytest.mark.proof), (0.05, 3.0, 240),
    ],
)  # fmt: skip
def test_a_slow_tenant_is_found_soon(share: float, slower: float, within: int, days: int) -> None:
    """One of 3 % of the requests, of thirty; half of the days within this time, and no other with it."""
    found = [minutes(seed, 30, share=share, hours=8, slower=slower) for seed in range(days)]

    assert median(minute for minute, _ in found) <= within
    assert sum(others for _, others in found) <= 0.05 * days
