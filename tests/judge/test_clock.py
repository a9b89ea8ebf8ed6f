"""A judge by a clock that was ahead for a while: it judges nothing of later than now, and says what it refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.judgement import Judgement
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import RunError, current_run, start_run, write_changes, write_decision
from servescope.judge.report.text import moment
from servescope.judge.watching import Watcher, describe_resumption
from tests.support.commands import run
from tests.support.cutover_evidence import Side, Story
from tests.support.cutover_past import MadePast, given, made_past, watcher_of
from tests.support.cutover_plans import LEAST_PLAN, frozen_plan
from tests.support.judgements import AT_MS, judgement

STORY = Story(past_hours=26, hours=3, v2=Side(replicas=1))
MINUTE = 60_000


@pytest.fixture(scope="module")
def made() -> MadePast:
    """A cutover between equal engines, which is healthy after an hour or two."""
    return made_past(STORY)


@pytest.fixture
def past(made: MadePast) -> MadePast:
    """The same, at its start."""
    made.now_ms, made.fails = STORY.started_ms, ""
    return made


def judge_at(watcher: Watcher, past: MadePast, minute: float) -> Judgement:
    """What it says at a minute of the run."""
    past.now_ms = STORY.started_ms + round(minute * MINUTE)
    asyncio.run(watcher.judge())
    return watcher.latest.judgement(past.now_ms)


def decide(journal: CutoverJournal, past: MadePast, kind: str, **rest: int) -> None:
    """Write a decision of now."""
    watched = current_run(journal, "chat")
    assert watched is not None
    write_decision(journal, watched, Decision(kind, past.now_ms, "ada", "a reason", **rest))  # type: ignore[arg-type]


@pytest.mark.slow
def test_what_was_seen_while_the_clock_was_ahead_is_not_judged(past: MadePast, journal: CutoverJournal) -> None:
    """Health that was proven by blocks of later than now is none; a judge whose clock was always right agrees."""
    ahead, right = watcher_of(past, journal), watcher_of(past, journal)
    for begun in (10, 20):
        judge_at(ahead, past, begun)
    assert judge_at(ahead, past, 150).verdict == "HEALTHY"
    for minute in (20.5, 25, 31):
        found = judge_at(ahead, past, minute)
        assert found == judge_at(right, past, minute)
        assert found.verdict == "INCONCLUSIVE"


def test_a_judgement_of_later_than_now_opens_no_gate(past: MadePast, journal: CutoverJournal) -> None:
    """Until it is judged again, or for as long as that fails; its age does not begin at nothing."""
    watcher = watcher_of(past, journal)
    assert judge_at(watcher, past, 150).verdict == "HEALTHY"
    now_ms = STORY.started_ms + 146 * MINUTE
    found = watcher.latest.judgement(now_ms)
    assert (found.verdict, found.advice) == ("NO DATA", "hold")
    assert found.reason == "The last judgement is of 4 min later than now, as the clock was set back."
    assert watcher.latest.age_seconds(now_ms) == 240.0
    past.fails = "no answer"
    assert judge_at(watcher, past, 146).reason.endswith("as the clock was set back: no answer.")
    # Seconds between two clocks are no matter.
    assert watcher.latest.judgement(STORY.started_ms + 150 * MINUTE - 4_000).verdict == "HEALTHY"


@pytest.mark.slow
def test_a_decision_of_later_than_now_is_refused_by_name(past: MadePast, journal: CutoverJournal) -> None:
    """What it began is not known: nothing is judged until then; one can go back at once, and begin anew."""
    watcher = watcher_of(past, journal)
    judge_at(watcher, past, 20)
    past.now_ms += 10 * MINUTE
    decide(journal, past, "advance", stage=1)
    found = judge_at(watcher, past, 27)
    assert found.verdict == "NO DATA"
    refused = (
        "the advance of 2027-01-16T10:30:00Z by ada is later than now, 2027-01-16T10:27:00Z: a clock was ahead, and "
        "nothing is judged until then."
    )
    assert refused in found.reason
    assert judge_at(watcher, past, 31).stage.index == 1

    past.now_ms = STORY.started_ms + 27 * MINUTE
    with pytest.raises(RunError, match=r"a decision of .*10:27:00Z cannot follow the advance of .*10:30:00Z"):
        decide(journal, past, "hold")
    decide(journal, past, "rollback")
    ended = current_run(journal, "chat")
    assert ended is not None
    assert ended.ended == "rolled back"
    judge_at(watcher, past, 28)
    assert watcher.latest._problem == ""
    assert watcher.latest.judgement(past.now_ms).stage.index == 0


def test_changes_of_later_than_now_keep_no_change_from_the_journal(tmp_path: Path) -> None:
    """What was judged by a clock that was ahead stays in it, and is neither what is known nor resumed from."""
    with CutoverJournal(tmp_path / "journal.db") as journal:
        begun = start_run(journal, frozen_plan())
        journal.append("judgement", at_ms=AT_MS + 600_000, plan=begun.plan, run=1, body={"verdict": "HEALTHY"})
        found = judgement("DEGRADED")
        for _ in range(2):
            begun = write_changes(journal, begun, found)
    assert [entry.body["verdict"] for entry in begun.changes] == ["HEALTHY", "INCONCLUSIVE", "DEGRADED"]
    assert describe_resumption(begun, found).startswith(
        f"run 1 of plan {begun.plan!r} is resumed; the journal's last judgement is of {moment(AT_MS - 900_000)}: "
    )


def test_the_command_refuses_what_is_later_than_now(tmp_path: Path) -> None:
    """A time that is asked for, and a decision in the journal."""
    plan = tmp_path / "cutover.toml"
    plan.write_text(f"{LEAST_PLAN}\n[[stages]]\nshare = 1.0\n", encoding="utf-8")
    with given(made_past(STORY)) as past:
        past.now_ms = STORY.started_ms + 30 * MINUTE
        assert run("judge", "start", "--plan", str(plan), "--by", "ada", "--reason", "go").returncode == 0
        past.now_ms -= 10 * MINUTE
        for verb in ("run", "explain"):
            done = run("judge", verb, "--plan", str(plan))
            assert done.returncode == 1
            assert "the start of 2027-01-16T10:30:00Z by ada is later than now, 2027-01-16T10:20:00Z" in done.stderr
        done = run("judge", "run", "--plan", str(plan), "--at", "2027-01-16T10:25:00Z")
        assert done.returncode == 2
        assert "--at '2027-01-16T10:25:00Z' is later than now, 2027-01-16T10:20:00Z" in done.stderr
        again = ("start", "--plan", str(plan), "--by", "ada", "--reason", "the clock was ahead", "--replace")
        assert run("judge", *again).returncode == 0
        past.now_ms += MINUTE
        assert run("judge", "run", "--plan", str(plan)).returncode == 11
