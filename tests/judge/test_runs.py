"""Runs of plans: begun once, moved by decisions that say who and why, and never the run of another plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.plan.plan import PlanChangedError
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import (
    RunError,
    check_unchanged,
    current_run,
    list_runs,
    next_stage,
    start_run,
    summarise,
    write_changes,
    write_decision,
)
from tests.support.cutover_plans import cutover_plan, frozen_plan
from tests.support.judgements import AT_MS, START_MS, judgement


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[CutoverJournal]:
    """A journal with no entry."""
    with CutoverJournal(tmp_path / "journal.db") as journal:
        yield journal


def decision(kind: Any, minutes: int = 10, **more: Any) -> Decision:
    """A decision some minutes after the start."""
    return Decision(kind, START_MS + minutes * 60_000, **{"by": "ada", "reason": "as planned", **more})


def test_a_run_has_its_frozen_plan_and_its_decisions(journal: CutoverJournal) -> None:
    """As another process reads them from the file."""
    run = start_run(journal, frozen_plan(), by="ada", reason="first try")
    write_decision(journal, run, decision("advance", stage=1), summarise(judgement()))

    with CutoverJournal(journal.path) as other:
        read = current_run(other, "chat")
    assert read is not None
    assert read.frozen == frozen_plan()
    assert [(each.kind, each.stage, each.by) for each in read.decisions] == [
        ("start", 0, "ada"), ("advance", 1, "ada"),
    ]  # fmt: skip
    assert read.stage == 1
    assert read.entries[1].body["judgement"]["verdict"] == "HEALTHY"


def test_a_plan_that_was_never_started_has_no_run(journal: CutoverJournal) -> None:
    """Whatever other plans the journal has."""
    start_run(journal, frozen_plan())

    assert current_run(journal, "other") is None


def test_a_rollback_ends_a_run_and_a_second_attempt_is_another(journal: CutoverJournal) -> None:
    """The first stays in the history, as it ended."""
    first = start_run(journal, frozen_plan())
    with pytest.raises(RunError, match="run 1 of plan 'chat' is under way since 2026-11-18"):
        start_run(journal, frozen_plan())
    write_decision(journal, first, decision("rollback"))
    second = start_run(journal, frozen_plan(started_ms=AT_MS))

    assert [(run.number, run.ended) for run in list_runs(journal)] == [(1, "rolled back"), (2, "")]
    assert second.number == 2
    with pytest.raises(RunError, match="run 1 of plan 'chat' has ended"):
        write_decision(journal, first, decision("hold"))


def test_a_run_may_be_replaced(journal: CutoverJournal) -> None:
    """By an edited plan, when that is asked for."""
    start_run(journal, frozen_plan())
    start_run(journal, frozen_plan(cutover_plan(margin=0.2)), replace=True)

    assert [run.ended for run in list_runs(journal, "chat")] == ["replaced", ""]


def test_runs_of_several_plans_do_not_mix(journal: CutoverJournal) -> None:
    """One may be under way of each."""
    start_run(journal, frozen_plan())
    other = start_run(journal, frozen_plan(replace(cutover_plan(), name="other")))

    assert other.number == 2
    assert [run.plan for run in list_runs(journal)] == ["chat", "other"]
    assert [run.ended for run in list_runs(journal)] == ["", ""]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (decision("hold", by=" "), "needs who decided"),
        (decision("hold", reason=""), "a decision to hold needs who decided"),
        (decision("rollback", reason=""), "a decision to roll back needs who decided"),
        (decision("hold", -1), "cannot follow the start of"),
        (decision("advance", stage=2), "stage 1 advances to 2, not to 3"),
        (decision("start"), "was started already"),
        (decision("exclude"), "--from"),
        (decision("exclude", start_ms=AT_MS, end_ms=AT_MS), "not after it begins"),
    ],
)
def test_a_decision_that_does_not_fit_is_refused(journal: CutoverJournal, wrong: Decision, reason: str) -> None:
    """And leaves the journal as it was."""
    run = start_run(journal, frozen_plan())
    with pytest.raises(RunError, match=reason):
        write_decision(journal, run, wrong)

    assert len(journal.entries()) == 1


def test_the_last_stage_advances_to_none(journal: CutoverJournal) -> None:
    """There is nothing after it."""
    run = start_run(journal, frozen_plan(cutover_plan(shares=(0.1, 0.9))))
    run = write_decision(journal, run, decision("advance", stage=next_stage(run)))

    with pytest.raises(RunError, match="at its last stage, 2 of 2"):
        next_stage(run)


def test_changes_of_the_judgement_are_written_once(journal: CutoverJournal) -> None:
    """However many judges watch, and however often."""
    run = start_run(journal, frozen_plan())
    for _ in range(2):
        run = write_changes(journal, run, judgement("DEGRADED"))

    assert [entry.body["verdict"] for entry in run.changes] == ["INCONCLUSIVE", "DEGRADED"]
    assert [entry.at_ms for entry in run.changes] == [START_MS, AT_MS - 900_000]
    assert run.changes[-1].body["judgement"]["metrics"][0]["ratio"] == 1.31


def test_a_plan_edited_after_freezing_is_refused_by_name(journal: CutoverJournal) -> None:
    """With each value that differs; the plan as it was is accepted."""
    run = start_run(journal, frozen_plan())
    check_unchanged(cutover_plan(), run, "cutover.toml")

    with pytest.raises(PlanChangedError) as error:
        check_unchanged(cutover_plan(margin=0.2, shares=(0.05, 0.25, 0.5)), run, "cutover.toml")
    assert "cutover.toml: plan 'chat' was edited after run 1 froze it at 2026-11-18T11:10:00Z" in str(error.value)
    assert "metrics[0].margin is 0.2, frozen 0.1" in str(error.value)
    assert "stages[3] is absent, frozen a table" in str(error.value)
