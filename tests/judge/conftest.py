"""What tests of a judge that watches begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from servescope.judge.case import freeze_plan
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import start_run
from tests.support.cutover_evidence import plan_of
from tests.support.cutover_past import MadePast


@pytest.fixture
def journal(past: MadePast, tmp_path: Path) -> Iterator[CutoverJournal]:
    """A journal with a run of two stages that begins at the time of the past."""
    with CutoverJournal(tmp_path / "cutover.journal.db") as journal:
        start_run(journal, freeze_plan(past, plan_of(0.25, 0.5), past.now_ms))
        yield journal
