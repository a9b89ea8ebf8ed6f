"""What comparing two deployments over a range says: the judge's reading, ratios of sums, and the worst span."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC
from pathlib import Path

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

from app.cutovers import comparison, cutovers
from app.cutovers.comparison import Compared
from app.data.queries import Shown
from app.elements.colors import V1, V2
from app.selection import TimeRange
from servescope.cutover.judgement import MetricJudgement
from servescope.errors import ServescopeError
from servescope.increments.blocks import BLOCK_MS
from servescope.judge.case import freeze_plan
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import start_run
from tests.app.support.canned_cutover import make_judgement
from tests.support.cutover_evidence import HOUR, Side, Story, evidence_of, plan_of
from tests.support.cutover_past import MadePast, made_past

ERRORS = "request_error_share"
FROZEN_ENGINE = Side(rejected=0.08, first_token=1.6)
"""What a v2 does whose engine stands still: the requests that come through are slower, and many are refused."""


def compare(story: Story, *, last_blocks: int = 0) -> tuple[Compared, dict[str, MetricJudgement]]:
    """The comparison of a story's hours with v2, but for its last blocks, from its whole past."""
    past = made_past(story)
    left, right = past.deployments()
    span = TimeRange(story.started_ms, story.end_ms - last_blocks * BLOCK_MS, live=False)
    compared = comparison.compare(past, left, right, span)
    return compared, {each.name: each for each in compared.judgement.metrics}


def test_a_frozen_engine_is_not_called_better() -> None:
    """Rejections of 8 % beside none are proven harm, and so is what became slower; nothing reads as the same."""
    compared, metrics = compare(Story(past_hours=26, hours=3, share=0.5, v2=FROZEN_ENGINE))

    assert compared.judgement.verdict == "DEGRADED"
    assert metrics["request_rejected_share"].verdict == "DEGRADED"
    assert metrics["time_to_first_token_seconds"].verdict == "DEGRADED"
    v2 = metrics["request_rejected_share"].v2
    assert v2 is not None
    assert v2.value == pytest.approx(0.08, abs=0.01)


@pytest.mark.parametrize("share", [0.25, 0.75])
def test_a_range_is_judged_at_the_share_that_is_there(share: float) -> None:
    """No plan says another one: what is faster at that share is proven better, and nothing asks to move traffic."""
    v1, v2 = Side(replicas=round(8 * (1 - share))), Side(replicas=round(8 * share), slower=0.5)
    compared, metrics = compare(Story(past_hours=26, hours=3, share=share, v1=v1, v2=v2), last_blocks=1)

    assert metrics["time_to_first_token_seconds"].verdict == "HEALTHY"
    assert "the plan says" not in compared.judgement.reason
    assert compared.judgement.stage.share == pytest.approx(share, abs=0.02)


@pytest.mark.slow
def test_equal_deployments_are_not_called_better_by_noise() -> None:
    """Two alike deployments have intervals around 1, and none of their metrics is harm."""
    _, metrics = compare(Story(hours=6, share=0.5))
    first_token = metrics["time_to_first_token_seconds"]

    assert first_token.low is not None
    assert first_token.high is not None
    assert first_token.low < 1.0 < first_token.high
    assert not [name for name, each in metrics.items() if each.required and each.verdict == "DEGRADED"]


@pytest.mark.slow
def test_the_margins_are_those_of_the_plan_of_this_cutover() -> None:
    """The same metric reads the same on both pages; of any other pair the documented margins hold."""
    story = Story(hours=3, share=0.5)
    past = made_past(story)
    left, right = past.deployments()
    span = TimeRange(story.started_ms, story.end_ms, live=False)
    documented = comparison.make_plan(left, right)
    metrics = tuple(replace(each, margin=4.0) if each.name == ERRORS else each for each in documented.metrics)
    plan = replace(documented, name="chat", metrics=metrics)

    def margin(judged: Compared) -> float | None:
        (found,) = (each.margin for each in judged.judgement.metrics if each.name == ERRORS)
        return found

    planned = comparison.compare(past, left, right, span, plan)
    assert (planned.planned, margin(planned)) == ("chat", 4.0)
    back = comparison.compare(past, right, left, span, plan)
    (usual,) = (each.margin for each in documented.metrics if each.name == ERRORS)
    assert (back.planned, margin(back)) == (None, usual)


def test_a_verdict_over_a_range_names_what_decides_the_cutover() -> None:
    """Of the pair of the plan: the cutover page may say another one, of the whole stage."""
    judgement = make_judgement("INCONCLUSIVE")

    assert "what decides the cutover is the cutover page" in comparison.explain_verdict(Compared(judgement, {}, "chat"))
    assert "cutover page" not in comparison.explain_verdict(Compared(judgement, {}, None))


@pytest.mark.parametrize("minute", range(5))
def test_a_range_of_an_hour_up_to_now_has_an_hour_of_blocks(minute: int) -> None:
    """Levels are judged over an hour: at no minute is the range a block too short for them."""
    now_ms = 1_800_000_000_000 // BLOCK_MS * BLOCK_MS + minute * 60_000 + 1_000
    judged = comparison.whole_blocks(TimeRange(now_ms - HOUR * BLOCK_MS, now_ms, live=True), now_ms)

    assert judged.end_ms - judged.start_ms == HOUR * BLOCK_MS
    assert 0 <= now_ms - comparison.SETTLED_MS - judged.end_ms < BLOCK_MS


def test_a_range_of_the_past_is_judged_whole() -> None:
    """Its last block has settled long ago; what ended a moment ago is not judged yet."""
    begun = 1_800_000_000_000 // BLOCK_MS * BLOCK_MS
    past = TimeRange(begun, begun + 12 * BLOCK_MS, live=False)
    short = TimeRange(begun + 1_000, begun + BLOCK_MS, live=True)

    assert comparison.whole_blocks(past, begun + 40 * BLOCK_MS) == past
    assert comparison.whole_blocks(short, begun + BLOCK_MS).end_ms <= begun + 1_000


@pytest.mark.slow
def test_the_worst_span_is_named() -> None:
    """Half an hour in which v2 was slow is found, however good it was before and after, with what both did in it."""
    story = Story(hours=4, share=0.5)
    calm, slow = evidence_of(story), evidence_of(replace(story, v2=Side(first_token=3.0)))
    wrong_ms = story.started_ms + 2 * HOUR * BLOCK_MS
    targets = []
    for usual, bad in zip(calm.targets, slow.targets, strict=True):
        within = (usual.blocks >= wrong_ms) & (usual.blocks < wrong_ms + 6 * BLOCK_MS)
        gains = usual.gains.copy()
        if usual.identity.inference_stack == "v2":
            gains[:, within] = bad.gains[:, within]
        targets.append(replace(usual, gains=gains))
    past = MadePast(replace(calm, targets=tuple(targets), last_scrape_ms={}), story.end_ms)
    left, right = past.deployments()
    compared = comparison.compare(past, left, right, TimeRange(story.started_ms, story.end_ms, live=False))
    worst = compared.worst["time_to_first_token_seconds"]

    assert wrong_ms <= worst.start_ms < wrong_ms + 6 * BLOCK_MS
    assert worst.right / worst.left == pytest.approx(3.0, rel=0.15)


def test_the_table_shows_interval_reading_and_worst_span() -> None:
    """A row has both values over the range, the ratio with its interval, the verdict, and when it was worst."""
    compared, _ = compare(Story(past_hours=26, hours=3, share=0.5, v2=FROZEN_ENGINE))
    one, other = made_past(Story(hours=1)).deployments()
    text = comparison.draw_table(
        compared, compared.judgement.metrics, Shown(one, "a", 0, V1), Shown(other, "b", 1, V2), ("", ""), UTC
    )

    assert "✕" in text
    assert "DEGRADED" in text
    assert "Rejections" in text
    assert re.search(r"\d+ Jan \d\d:\d\d – \d\d:\d\d", text), text
    assert "ms · " in text


def test_what_cannot_be_read_is_an_error() -> None:
    """A past that does not answer gives its error, and no reading."""
    story = Story(hours=1)
    past = made_past(story)
    left, right = past.deployments()
    past.fails = "the past is away"

    with pytest.raises(ServescopeError, match="the past is away"):
        comparison.compare(past, left, right, TimeRange(story.started_ms, story.end_ms, live=False))


def test_sessions_share_one_judgement(tmp_path: Path) -> None:
    """Two looks at the same moment judge once; time that passes has only new blocks read."""
    story = Story(hours=3)
    past = made_past(story)
    frozen = freeze_plan(past, plan_of(0.25), story.started_ms)
    with CutoverJournal(tmp_path / "journal.db") as journal:
        run = start_run(journal, frozen, by="anna", reason="go")
    judge = cutovers.SharedJudge(past)
    before_ms = story.end_ms - 2 * BLOCK_MS
    first = judge.view(run, before_ms)
    reads = len(past.reads)

    assert judge.view(run, before_ms + 1) is first
    assert len(past.reads) == reads
    assert first.judgement.stage.observed_share == pytest.approx(0.25, abs=0.02)
    assert {each.metric for each in first.distributions} >= {"time_to_first_token_seconds"}
    assert judge.view(run, story.end_ms) is not first
    assert len(past.reads) > reads
    assert past.reads[-1][1] > story.end_ms - HOUR * BLOCK_MS
