"""The console judges a run from what is kept of it, as every command does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.cutovers import cutovers
from servescope.increments.blocks import BLOCK_MS
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import current_run
from tests.support.commands import run
from tests.support.cutover_evidence import Side, Story
from tests.support.cutover_past import given, made_past
from tests.support.cutover_plans import LEAST_PLAN

HOUR_MS = 3_600_000
STORY = Story(past_hours=26, hours=6, v1=Side(replicas=6), v2=Side(replicas=2))


@pytest.mark.slow
def test_the_console_knows_of_a_run_what_commands_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the samples of its beginning are not held any more."""
    monkeypatch.setattr("servescope.judge.case._READ_MS", HOUR_MS + 3 * BLOCK_MS)
    monkeypatch.setattr("servescope.judge.case.FINAL_MS", HOUR_MS)
    plan = tmp_path / "cutover.toml"
    plan.write_text(LEAST_PLAN, encoding="utf-8")
    journal = tmp_path / "cutover.journal.db"
    with given(made_past(STORY)) as past:
        past.now_ms = STORY.started_ms
        assert run("judge", "start", "--plan", str(plan)).returncode == 0
        past.now_ms = STORY.started_ms + 5 * HOUR_MS
        run("judge", "run", "--plan", str(plan))
        held_ms = STORY.started_ms + 2 * HOUR_MS
        targets = past.evidence.targets
        past.evidence = replace(past.evidence, targets=tuple(each.at(each.blocks >= held_ms) for each in targets))

        monkeypatch.setattr(cutovers, "_shared_judge", cutovers.SharedJudge)
        monkeypatch.setattr("app.cutovers.cutovers.selection.now_ms", lambda: past.now_ms)
        monkeypatch.setattr(cutovers, "journal_path", lambda: journal)
        with CutoverJournal(journal) as opened:
            begun = current_run(opened, "cutover")
        assert begun is not None
        assert cutovers.read_view(past, begun).judgement.missed == ()

        journal.with_name("cutover.journal.folds.db").unlink()
        monkeypatch.setattr(cutovers, "journal_path", lambda: None)
        (missed,) = cutovers.read_view(past, begun).judgement.missed
        assert missed == (STORY.started_ms, held_ms, "v1 was not scraped")
