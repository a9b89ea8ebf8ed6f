"""What a ratio is of: an interval has its estimate, a change of the effect is said, and figures divide to the ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from servescope.cutover.comparison.spans import Span, harmful_spans
from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.judgement import EffectSpan, Judgement, MetricJudgement, OverallRatio
from servescope.cutover.statistics.counts import (
    BETTER_RATIOS,
    WORSE_RATIOS,
    EventCounts,
    latest_limit,
    most_likely,
    ratio_interval,
)
from servescope.increments.blocks import BLOCK_MS
from tests.cutover.support.cutover_worlds import Phase, World, make_world
from tests.support.cutover_evidence import Side, metric_of

FAST = Side(replicas=2, slower=0.4, first_token=0.8)
SLOW = Side(replicas=2, slower=1.6)
EQUAL = Side(replicas=2)


@dataclass(frozen=True)
class Compared:
    """A comparison whose effect is not proven to have changed."""

    all: Span
    divided: tuple[Span, Span]

    def whole(self, end: int) -> Span:
        """All of it."""
        assert end == self.all.end
        return self.all

    def parts(self, end: int) -> tuple[Span, ...]:
        """None."""
        assert end == self.all.end
        return ()

    def worst(self, end: int) -> tuple[Span, Span]:
        """Where the lower limit is highest."""
        assert end == self.all.end
        return self.divided


@cache
def random_world(case: int) -> World:
    """Two to four phases of v2: faster and slower, failing, idle or queueing, and what was before comes back."""
    random = np.random.default_rng(case)
    phases = []
    for _ in range(random.integers(2, 5)):
        replicas = int(random.choice([1, 2, 4]))
        side = Side(
            replicas=replicas, slower=float(random.choice([0.3, 1.0, 1.0, 1.1, 1.5, 4.0])),
            first_token=float(random.choice([0.5, 1.0, 1.0, 2.0])), errors=float(random.choice([0.0, 0.002, 0.02])),
        )  # fmt: skip
        phases.append(Phase(side, int(random.integers(1, 4)), queues=bool(random.random() < 0.35)))
    return make_world(*phases, seed=case)


def check_intervals(judgement: Judgement) -> None:
    """No interval is empty or reversed, each has its estimate, and v2's figure ÷ v1's is the ratio."""
    for metric in judgement.metrics:
        shown: list[MetricJudgement | EffectSpan | OverallRatio] = [metric, *metric.spans]
        for each in (*shown, *([metric.overall] if metric.overall else [])):
            low, high = each.low or 0.0, math.inf if each.high is None else each.high
            assert low < high, f"{metric.name}: {low} to {high}"
            if each.ratio is not None:
                assert low <= each.ratio <= high, f"{metric.name}: {each.ratio} is not within {low} to {high}"
        if metric.ratio is not None:
            assert metric.v1 is not None and metric.v2 is not None  # noqa: PT018 - both or neither
            assert metric.v2.value == pytest.approx(metric.ratio * (metric.v1.value or math.nan)), metric.name
        worse = metric.ratio is not None and (metric.ratio > 1.0) == (metric.better == "lower")
        if metric.verdict == "DEGRADED" and metric.cause in ("probable", "beyond margin") and metric.ratio is not None:
            assert worse or "more slow requests" in metric.reason, metric.reason
        assert not ("better" in metric.reason and "harm is proven" in metric.reason), metric.reason


def check_claims(judgement: Judgement) -> None:
    """What is claimed of a metric is what its interval shows, and the headline is that of the severity."""
    for metric in judgement.metrics:
        if metric.ratio is None or metric.margin is None or metric.floor is None:
            continue
        ratio, low, high = _costs(metric)
        margin, floor, said = 1.0 + metric.margin, 1.0 + metric.floor, f"{metric.cause}: {metric.reason}"
        match metric.cause:
            case "beyond margin":
                assert ratio > margin, said
            case "probable" | "proven cost":
                assert low <= margin, said
                assert ratio > floor or "more slow requests" in said or "since" in said, said
                # Of an effect that has changed, the ratio is that of all, and the reason says what is proven since.
                named = ("more slow requests", "limits are stricter", "since")
                assert low > 1.0 or any(each in said for each in named), said
            case "not worse" | "better":
                assert high <= margin * (1.0 + 1e-9) or "proven rarer" in said, said
            case "needs data" | "pods too few":
                assert low <= floor, said
                assert high >= margin, said
    if judgement.severity == "beyond margin":
        assert "though not beyond" not in judgement.reason, judgement.reason
    if judgement.severity == "probable":
        # Harm of a guard has no part in how severe it is.
        sentences = [each for each in judgement.reason.split("; ") if ": a guard," not in each]
        severe = [each for each in sentences if "beyond the margin" in each.replace("not beyond the margin", "")]
        assert not severe, sentences


def _costs(metric: MetricJudgement) -> tuple[float, float, float]:
    """The ratio with its interval as v2's cost, above 1 where v2 is worse."""
    low, high = metric.low or 0.0, math.inf if metric.high is None else metric.high
    assert metric.ratio is not None
    if metric.better == "higher":
        return 1.0 / metric.ratio, 0.0 if math.isinf(high) else 1.0 / high, 1.0 / low if low else math.inf
    return metric.ratio, low, high


def check_world(case: int) -> None:
    """The judgement after each of some blocks of a random world."""
    world = random_world(case)
    random = np.random.default_rng(case)
    blocks = int((world.story.end_ms - world.story.started_ms) / BLOCK_MS)
    for block in sorted({blocks, *random.integers(1, blocks, 2).tolist()}):
        judgement = world.judge(world.story.started_ms + block * BLOCK_MS)
        check_intervals(judgement)
        check_claims(judgement)


# Worlds and blocks: harm that ended, health that was proven before errors began, and limits of a span alone.
@pytest.mark.slow
@pytest.mark.parametrize(("case", "block"), [(2, 75), (3, 75), (0, 15), (0, 18), (2, 38), (7, 40), (4, 61)])
def test_nothing_is_claimed_that_its_interval_contradicts(case: int, block: int) -> None:
    """Harm beyond the margin shows a span that is, probable harm and open questions an interval that allows for less,
    and health ends with the interval that showed it."""
    world = random_world(case)
    judgement = world.judge(world.story.started_ms + block * BLOCK_MS)
    check_intervals(judgement)
    check_claims(judgement)


def test_an_interval_that_does_not_show_the_harm_says_so() -> None:
    """Errors have most of the level of harm, and limits are of all metrics alike."""
    world = make_world(Phase(Side(replicas=4, errors=0.0035), 4), seed=2)
    errors = metric_of(world.judge(world.story.started_ms + 25 * BLOCK_MS), "request_error_share")
    assert (errors.verdict, errors.cause) == ("DEGRADED", "probable")
    assert errors.low is not None
    assert errors.low < 1.0
    assert errors.reason.endswith("not beyond the margin of 2 ×; its limits are stricter, and do not show it")


def test_what_proves_nothing_is_not_divided_where_no_change_is_proven() -> None:
    """As of a flood, which proves harm that no limit shows: all of it is shown, and no time since when it is so."""
    whole, before, since = (
        Span(first, end, cost, low, 3.0, 0.002, (100.0, 100.0), None, 10)
        for first, end, cost, low in ((0, 20, 2.4, -0.4), (0, 10, 2.5, -0.5), (10, 20, 2.3, -0.2))
    )
    assert harmful_spans(Compared(whole, (before, since)), 20, (0.7, 0.0)) == (whole, ())
    proving = replace(since, low=0.1)
    assert harmful_spans(Compared(whole, (before, proving)), 20, (0.7, 0.0)) == (whole, ())
    assert harmful_spans(Compared(whole, (before, proving)), 20, (0.0,)) == (proving, (before, proving))


@pytest.mark.slow
def test_the_headline_is_of_the_harm_that_is_beyond_the_margin() -> None:
    """Where there is more evidence of a smaller harm of another metric, the severity and the reason are of one."""
    world = make_world(Phase(Side(replicas=4, first_token=1.1, errors=0.008), 8))
    judgements = [world.judge(world.story.started_ms + block * BLOCK_MS) for block in (36, 48, 60, 72, 84, 96)]
    assert any(each.severity == "beyond margin" for each in judgements)
    assert any("and 1 more" in each.reason for each in judgements)
    for judgement in judgements:
        check_claims(judgement)


@pytest.mark.slow
def test_harm_beyond_the_margin_is_rolled_back_from_until_somebody_acknowledges_it() -> None:
    """What v2 does afterwards that nobody can see takes nothing from it: neither its severity nor the advice."""
    world = random_world(4)
    judgement = world.judge(world.story.started_ms + 61 * BLOCK_MS)

    assert judgement.live == "NO DATA"
    assert (judgement.verdict, judgement.severity, judgement.advice) == ("DEGRADED", "beyond margin", "roll back")
    assert "beyond the margin" in judgement.reason


@pytest.mark.slow
@pytest.mark.parametrize("case", range(2))
def test_every_interval_has_its_estimate(case: int) -> None:
    """In worlds that change: with steps, recoveries, queues, and one replica."""
    check_world(case)


@pytest.mark.proof
def test_every_interval_of_hundreds_of_worlds_has_its_estimate() -> None:
    """The same of many more."""
    for case in range(2, 400):
        check_world(case)


@pytest.mark.slow
def test_a_change_of_the_effect_is_said() -> None:
    """v2 was faster for four hours and is slower since: both ratios, each with its interval, and when it changed."""
    world = make_world(Phase(FAST, 4), Phase(SLOW, 2))
    judgement = world.judge()
    speed = metric_of(judgement, "tps_per_request")
    former, latest = speed.spans

    assert former.ratio == pytest.approx(1 / 0.4, rel=0.02)
    assert latest.ratio == pytest.approx(1 / 1.6, rel=0.02)
    assert abs(latest.since_ms - world.story.started_ms - 4 * 3_600_000) <= BLOCK_MS
    assert (speed.verdict, speed.ratio) == ("DEGRADED", latest.ratio)
    assert "lower than on v1" in speed.reason
    assert "UTC, 150 % higher until then" in speed.reason or "UTC, 15" in speed.reason
    assert judgement.reason.startswith(speed.title) or "became worse" in judgement.reason


@pytest.mark.slow
def test_a_recovery_is_said() -> None:
    """v2 was slower for an hour and is equal since: DEGRADED says when it was, and what it is now."""
    judgement = make_world(Phase(EQUAL, 2), Phase(SLOW, 1), Phase(EQUAL, 1)).judge()
    duration = metric_of(judgement, "request_duration_seconds")

    assert duration.verdict == "DEGRADED"
    assert duration.ratio == pytest.approx(1.6, rel=0.1)
    assert duration.spans[-1].ratio == pytest.approx(1.0, abs=0.1)
    assert "was worse" in duration.reason
    assert "since" in duration.reason


def test_a_metric_that_was_never_compared_has_no_spans() -> None:
    """After the first block of a v2 that has too few requests in it to compare."""
    world = make_world(Phase(EQUAL, 1, share=0.05), requests_per_minute=60.0)
    judgement = world.judge(world.story.started_ms + BLOCK_MS)
    assert all(not each.spans for each in judgement.metrics)
    check_intervals(judgement)


@pytest.mark.slow
def test_an_effect_that_stays_is_one_span() -> None:
    """An equal v2, and one that is slower from the start, did not change."""
    for side in (EQUAL, SLOW):
        assert all(not each.spans for each in make_world(Phase(side, 6), seed=3).judge().metrics)


@pytest.mark.slow
def test_errors_that_began_late_are_said_since_when() -> None:
    """Over the stage v2 has as many as v1, and in the last hour ten times as many."""
    judgement = make_world(Phase(Side(replicas=2, errors=0.0005), 7), Phase(Side(replicas=2, errors=0.02), 1)).judge()
    errors = metric_of(judgement, "request_error_share")
    assert errors.ratio is not None
    assert errors.ratio > 4.0
    assert len(errors.spans) == 2
    assert "since" in errors.reason or errors.cause == "objective"


@pytest.mark.slow
def test_figures_are_of_the_blocks_that_are_compared() -> None:
    """While v2 queues nothing is compared for health; the plain figures of everything are beside the compared ones."""
    judgement = make_world(Phase(EQUAL, 3), Phase(Side(replicas=2, slower=0.5), 3, queues=True)).judge()
    duration = metric_of(judgement, "request_duration_seconds")
    assert duration.v2 is not None
    assert duration.v2.everything is not None
    assert duration.compared is not None
    assert duration.compared.blocks < duration.compared.of_blocks == 72
    assert duration.v2.count < (duration.v2.everything_count or 0.0)


def test_the_most_likely_ratio_is_within_its_limits_and_that_of_the_rates() -> None:
    """Where v2's share stays it is the ratio of the rates; where it changes with the rate of both it is not misled."""
    same = EventCounts(np.full(6, 9.0), np.full(6, 900.0), np.full(6, 6.0), np.full(6, 300.0))
    cost, (low, high) = most_likely(same), _latest_limits(same)
    limits = ratio_interval(same, 0.05, 0.05)
    assert math.exp(cost) == pytest.approx(2.0, rel=1e-3)
    assert (math.exp(low), math.exp(high)) == pytest.approx((limits[0][-1], limits[1][-1]))
    # Equal arms in each block: v2 has more requests when both fail more often.
    moved = EventCounts(
        np.array([9.0, 90.0]), np.array([900.0, 300.0]), np.array([1.0, 270.0]), np.array([100.0, 900.0])
    )
    cost, (low, high) = most_likely(moved), _latest_limits(moved)
    assert math.exp(cost) == pytest.approx(1.0, abs=1e-2)
    assert low < cost < high


def _latest_limits(counts: EventCounts) -> tuple[float, float]:
    return latest_limit(counts, WORSE_RATIOS, 0.05), latest_limit(counts, BETTER_RATIOS, 0.05)


def test_events_of_one_arm_alone_have_no_ratio() -> None:
    """Infinite where v1 has none, and not known where neither has."""
    requests = np.full(3, 100.0)
    assert most_likely(EventCounts(np.zeros(3), requests, np.ones(3), requests)) == math.inf
    assert math.isnan(most_likely(EventCounts(np.zeros(3), requests, np.zeros(3), requests)))


@pytest.mark.slow
def test_a_regression_that_saturates_v2_is_harm() -> None:
    """v2 gets a little more per replica than v1, as before, and queues since its steps take longer: DEGRADED at like
    arrivals, within 40 minutes; without the queue it had been HEALTHY."""
    busier = Side(replicas=2)
    world = make_world(
        Phase(busier, 4, share=0.3), Phase(Side(replicas=2, slower=1.5), 2, share=0.3, queues=True), v1=Side(replicas=6)
    )
    began_ms = world.story.started_ms + 4 * 3_600_000
    assert world.judge(began_ms).verdict != "DEGRADED"
    judgement = world.judge()
    degraded = [each for each in judgement.changes if each.verdict == "DEGRADED"]

    assert judgement.verdict == "DEGRADED"
    assert degraded[0].at_ms - began_ms <= 40 * 60_000
    assert judgement.advice == "roll back"


@pytest.mark.slow
def test_equal_stacks_of_which_v2_queues_are_no_harm() -> None:
    """Queues alone are not slower requests: nothing is proven, in either direction."""
    world = make_world(Phase(EQUAL, 4, share=0.3), Phase(EQUAL, 2, share=0.3, queues=True), v1=Side(replicas=6), seed=5)
    assert world.judge().verdict == "INCONCLUSIVE"


@pytest.mark.slow
def test_less_harm_than_was_proven_changes_neither_severity_nor_advice() -> None:
    """v2 harmed beyond the margin and is equal since: until somebody acknowledges it, the advice is to roll back."""
    world = make_world(Phase(Side(replicas=2, first_token=1.3), 2), Phase(EQUAL, 3))
    judgement = world.judge(world.story.started_ms + 50 * BLOCK_MS)
    acknowledged = Decision("acknowledge", judgement.at_ms - 1, by="ann", reason="seen")

    assert (judgement.live, metric_of(judgement, "time_to_first_token_seconds").cause) == ("DEGRADED", "probable")
    assert (judgement.severity, judgement.advice) == ("beyond margin", "roll back")
    check_claims(judgement)
    now = world.judge(judgement.at_ms, acknowledged)
    assert (now.verdict, now.severity, now.advice) == ("DEGRADED", "probable", "hold")
