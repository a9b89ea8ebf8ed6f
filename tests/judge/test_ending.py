"""SIGTERM ends a judge within five seconds, whatever it is at."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import list_runs, start_run
from tests.support.cutover_plans import frozen_plan
from tests.support.waiting import deadline_seconds

WATCHING = """
import sys, time, logging
from pathlib import Path
from servescope.web.settings import ApiSettings
from servescope.judge.case import WatchedCase
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import current_run
from servescope.judge.watching import Watcher, watch_until_signalled
from servescope.settings.clock import program_clock

def judge(self, *_):
    print("judging", flush=True)
    {what}

logging.basicConfig(level=logging.INFO)
WatchedCase.judge = judge
with CutoverJournal(Path(sys.argv[1])) as journal:
    watcher = Watcher(None, journal, current_run(journal, "chat"), program_clock())
    watch_until_signalled(watcher, "127.0.0.1", 0, ApiSettings())
"""
"""A watched run whose judgement does not end."""

WAITING = """
import argparse, sys
from pathlib import Path
from servescope.cli import main
from servescope.judge import verbs
from servescope.judge.journal.journal import CutoverJournal

def run(arguments):
    journal = CutoverJournal(Path(sys.argv[1]))
    print("waiting", flush=True)
    journal.append("hold", at_ms=1, plan="chat", run=1, by="ada", reason="why")

verbs.VERBS = {"run": run}
sys.exit(main(["judge", "run", "--plan", "none.toml"]))
"""
"""A command that waits for the journal, which another process has locked."""


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal with a run."""
    path = tmp_path / "journal.db"
    with CutoverJournal(path) as made:
        start_run(made, frozen_plan())
    return path


@pytest.mark.slow
@pytest.mark.parametrize("what", ["time.sleep(600)", "while True: pass"], ids=["reading", "folding"])
def test_a_watched_run_ends_in_the_middle_of_a_judgement(journal: Path, what: str) -> None:
    """Whether it waits for a store or computes; the journal is whole, and the exit code is that of every other end."""
    with _begun(WATCHING.replace("{what}", what), journal, until="judging") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(deadline_seconds(5.0)) == 0

    with CutoverJournal(journal) as left:
        assert left.verify() == []
        assert len(list_runs(left)) == 1


@pytest.mark.slow
def test_a_command_ends_though_the_journal_is_locked(journal: Path) -> None:
    """SQLite waits ten seconds for a lock, without a look at signals."""
    other = sqlite3.connect(journal, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with _begun(WAITING, journal, until="waiting") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(deadline_seconds(5.0)) == 130
    other.close()


@contextmanager
def _begun(program: str, journal: Path, *, until: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has come so far."""
    command = [sys.executable, "-c", program, str(journal)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            assert line.strip() == until, process.stderr.read()
            yield process
        finally:
            process.kill()
