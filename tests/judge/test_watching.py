"""A judge that watches: it follows the past and the journal, survives what fails, and misses nothing when down."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import aiohttp
import numpy as np
import pytest

from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.judgement import Judgement
from servescope.errors import ServescopeError
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from servescope.judge.case import WatchedCase, freeze_plan, judge_case
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import current_run, write_decision
from servescope.judge.watching import Watcher, describe_resumption, serve
from servescope.web.settings import ApiSettings
from tests.support.cutover_evidence import Side, Story, plan_of
from tests.support.cutover_past import MadePast, made_past, watcher_of
from tests.support.drawing import trials
from tests.support.waiting import wait_for_async

STORY = Story(past_hours=26, hours=5, v2=Side(replicas=1, slower=1.4))


@pytest.fixture(scope="module")
def made() -> MadePast:
    """A cutover to a slower engine."""
    return made_past(STORY)


@pytest.fixture
def past(made: MadePast) -> MadePast:
    """The same, at its start."""
    made.now_ms, made.fails = STORY.started_ms, ""
    made.reads.clear()
    return made


def judge_at(watcher: Watcher, past: MadePast, at_ms: int) -> Judgement:
    """What it says at a time."""
    past.now_ms = at_ms
    asyncio.run(watcher.judge())
    return watcher.latest.judgement(at_ms)


@pytest.mark.slow
def test_what_is_judged_as_it_comes_is_what_is_judged_at_once(past: MadePast, journal: CutoverJournal) -> None:
    """After every block, and between blocks; only the blocks that are new are read."""
    watcher = watcher_of(past, journal)
    run = current_run(journal, "chat")
    assert run is not None
    verdicts = []
    for minute in range(3, 130, 12):
        at_ms = STORY.started_ms + minute * 60_000
        streamed = judge_at(watcher, past, at_ms)
        assert streamed == judge_case(past, run.frozen, run.decisions, at_ms), minute
        verdicts.append(streamed.verdict)

    assert verdicts[0] == "INCONCLUSIVE"
    assert verdicts[-1] == "DEGRADED"


@pytest.mark.slow
@trials("step", 3, 1)
def test_an_eventful_run_is_judged_alike_block_by_block(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """A stage that changes, a span that is excluded afterwards, an acknowledgement, a late replica, restarts."""
    monkeypatch.setattr("servescope.judge.case._AFRESH_BLOCKS", 1000)
    story = Story(past_hours=26, hours=4, v2=Side(replicas=3, slower=1.4))
    past = made_past(story)

    def at(hours: float) -> int:
        return story.started_ms + round(hours * 3_600_000)

    targets = {target.identity.replica: target for target in past.evidence.targets}
    late = targets["v2-2"].at(targets["v2-2"].blocks >= at(1.25))
    targets["v2-2"] = replace(late, started_ms=np.full(late.blocks.size, at(1.25) - 1000.0))
    for replica, hours, is_known in (("v1-1", 2.25, True), ("v1-2", 3.0, False), ("v2-1", 2.75, True)):
        targets[replica] = _restarted(targets[replica], at(hours), is_known=is_known)
    past.evidence = replace(past.evidence, targets=tuple(targets.values()))
    frozen = freeze_plan(past, plan_of(0.25, 0.26), story.started_ms)
    decisions = (
        Decision("start", story.started_ms, stage=0),
        Decision("acknowledge", at(1.5), "ada", "a known regression"),
        Decision("advance", at(1.75), "ada", "go on", stage=1),
        Decision("exclude", at(2.6), "ada", "a deploy of v1", start_ms=at(1.9), end_ms=at(2.4)),
    )

    case = WatchedCase(past)
    seen: list[Judgement] = []
    for block in range(1, story.hours * 12, step):
        past.now_ms = story.started_ms + block * BLOCK_MS + 60_000
        made = tuple(each for each in decisions if each.at_ms <= past.now_ms)
        streamed = case.judge(frozen, made, past.now_ms)
        if step == 1 or len(seen) % 4 == 3:
            assert streamed == judge_case(past, frozen, made, past.now_ms), block
        seen.append(streamed)

    assert {(each.stage.index, each.latched_since_ms is not None) for each in seen} == {
        (0, False),
        (0, True),
        (1, False),
    }
    first, last = seen[0].v2, seen[-1].v2
    assert first is not None
    assert last is not None
    assert (first.replicas, last.replicas, last.resets) == (2, 3, 1)
    assert seen[-1].missed == ((at(1.9), at(2.4), "a deploy of v1"),)


def _restarted(target: TargetIncrements, at_ms: int, *, is_known: bool) -> TargetIncrements:
    """A process that ended at a time and began anew, whether or not its start is shown."""
    begun = np.where(target.blocks >= at_ms, at_ms + 1000.0, target.started_ms)
    resets = (target.blocks == at_ms).astype(np.int64)
    return replace(
        target, started_ms=begun if is_known else np.full(begun.size, np.nan),
        tallies=replace(target.tallies, resets=resets),
    )  # fmt: skip


@pytest.mark.slow
def test_only_new_blocks_are_read(past: MadePast, journal: CutoverJournal) -> None:
    """Once an hour all are."""
    case, frozen = WatchedCase(past), freeze_plan(past, plan_of(0.25, 0.5), STORY.started_ms)
    starts = []
    for block in range(1, 16):
        past.now_ms = STORY.started_ms + block * BLOCK_MS + 60_000
        past.reads.clear()
        case.judge(frozen, (), past.now_ms)
        starts.append(past.now_ms - past.reads[0][1])

    assert sum(each > 2 * BLOCK_MS for each in starts) == 2
    assert min(starts) <= BLOCK_MS + 60_000


def test_a_run_of_days_is_read_in_parts(
    past: MadePast, journal: CutoverJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No part is longer than a store allows, and the judgement is that of all at once."""
    run = current_run(journal, "chat")
    assert run is not None
    past.now_ms = at_ms = STORY.started_ms + 4 * 3_600_000 + 60_000
    whole = judge_case(past, run.frozen, run.decisions, at_ms)
    past.reads.clear()

    monkeypatch.setattr("servescope.judge.case._READ_MS", 3_600_000)
    assert judge_case(past, run.frozen, run.decisions, at_ms) == whole
    assert len(past.reads) >= 2 * 5
    assert max(end_ms - start_ms for _, start_ms, end_ms in past.reads) <= 3_600_000 + BLOCK_MS


@pytest.mark.slow
def test_what_is_wrong_with_a_target_is_known_after_it_ended(
    past: MadePast, journal: CutoverJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a run is read in parts or watched: two targets of one name are no evidence."""
    run = current_run(journal, "chat")
    assert run is not None
    one = past.evidence.targets[-1]
    ended = one.at(one.blocks < STORY.started_ms + 1_200_000)
    doubtful = MadePast(replace(past.evidence, targets=(*past.evidence.targets, ended)), STORY.end_ms)
    monkeypatch.setattr("servescope.judge.case._READ_MS", 1_200_000)
    at_ms = STORY.started_ms + 3_000_000
    case = WatchedCase(doubtful)
    case.judge(run.frozen, run.decisions, STORY.started_ms + 1_500_000)
    for judgement in (
        judge_case(doubtful, run.frozen, run.decisions, at_ms), case.judge(run.frozen, run.decisions, at_ms),
    ):  # fmt: skip
        assert f"target {one.target_id!r} is there twice" in judgement.notes
        assert judgement.metrics[0].cause == "query error"


@pytest.mark.parametrize("late_ms", [0, 20_000, 100_000])
def test_a_day_calibrates(past: MadePast, late_ms: int) -> None:
    """Though its last block is not closed when the plan is frozen."""
    past.now_ms = STORY.started_ms + late_ms
    frozen = freeze_plan(past, replace(plan_of(0.25), calibration_hours=24.0), past.now_ms)

    assert all(frozen.noise[metric.name].calibrated for metric in frozen.plan.metrics if metric.required)


def test_a_decision_counts_at_the_next_judgement(past: MadePast, journal: CutoverJournal) -> None:
    """The journal is read each time."""
    watcher = watcher_of(past, journal)
    assert judge_at(watcher, past, STORY.started_ms + 30 * 60_000).stage.index == 0
    run = current_run(journal, "chat")
    assert run is not None
    write_decision(journal, run, Decision("advance", past.now_ms, "ada", "go on", 1))

    assert judge_at(watcher, past, past.now_ms + 15_000).stage.index == 1


def test_changes_are_kept_in_the_journal(past: MadePast, journal: CutoverJournal) -> None:
    """With the judgement they are from; a second judge adds none."""
    for watcher in (watcher_of(past, journal), watcher_of(past, journal)):
        judge_at(watcher, past, STORY.end_ms)
    run = current_run(journal, "chat")

    assert run is not None
    verdicts = [entry.body["verdict"] for entry in run.changes]
    assert verdicts[-1] == "DEGRADED"
    assert len(verdicts) == len({entry.at_ms for entry in run.changes})
    assert run.changes[-1].body["judgement"]["metrics"]


def test_what_fails_is_counted_and_the_gate_closes_with_age(past: MadePast, journal: CutoverJournal) -> None:
    """The last judgement is kept for as long as one may believe it; then judging goes on as if nothing had been."""
    equal = made_past(replace(STORY, v2=Side(replicas=1)))
    watcher = watcher_of(equal, journal)
    assert judge_at(watcher, equal, STORY.end_ms - 900_000).verdict == "HEALTHY"

    equal.fails = "no answer within 30 s"
    assert judge_at(watcher, equal, STORY.end_ms - 840_000).verdict == "HEALTHY"
    failing = judge_at(watcher, equal, STORY.end_ms - 300_000)
    assert (failing.verdict, failing.reason) == ("NO DATA", "The last judgement is 10 min old: no answer within 30 s.")

    equal.fails = ""
    assert judge_at(watcher, equal, STORY.end_ms).verdict == "HEALTHY"
    errors = [sample.value for family in watcher.telemetry.collect() for sample in family.samples
              if sample.name == "servescope_judgement_errors_total"]  # fmt: skip
    assert errors == [2.0]


def test_a_judge_that_was_down_says_that_it_missed_nothing(past: MadePast, journal: CutoverJournal) -> None:
    """Since the journal's last entry; and what was not scraped meanwhile, if anything."""
    first = watcher_of(past, journal)
    judge_at(first, past, STORY.started_ms + 30 * 60_000)
    run = current_run(journal, "chat")
    assert run is not None
    whole = judge_at(watcher_of(past, journal), past, STORY.end_ms)

    assert describe_resumption(run, whole).endswith("everything since is judged from the samples, nothing was missed")
    gap = (STORY.end_ms - 900_000, STORY.end_ms - 600_000, "v2 was not scraped")
    assert "all since is judged from the samples but 2" in describe_resumption(run, replace(whole, missed=(gap,)))
    fresh = replace(run, entries=run.entries[:1])
    assert "is judged from its start on" in describe_resumption(fresh, whole)


async def test_the_gate_is_served_until_it_is_stopped(
    past: MadePast, journal: CutoverJournal, caplog: pytest.LogCaptureFixture
) -> None:
    """On a port of this machine, with the judgement it made."""
    past.now_ms = STORY.end_ms
    watcher = watcher_of(past, journal)
    caplog.set_level(logging.INFO)
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(watcher, "127.0.0.1", 0, ApiSettings(), stop))
    await wait_for_async(lambda: "DEGRADED in stage 1" in caplog.text, "the first judgement")
    (address,) = (each.message for each in caplog.records if each.message.startswith("serving "))
    url = address.removeprefix("serving ").replace("/judgement", "/rollback")
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        found = answer.status, (await answer.json())["verdict"]
    stop.set()
    await serving
    assert found == (200, "DEGRADED")


def test_an_address_that_is_taken_is_named(past: MadePast, journal: CutoverJournal) -> None:
    """Before anything is judged."""
    watcher = watcher_of(past, journal)

    async def act() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            await serve(watcher, "127.0.0.1", port, ApiSettings(), asyncio.Event())

    with pytest.raises(ServescopeError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use"):
        asyncio.run(act())
