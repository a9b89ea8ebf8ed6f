"""Every page of a cutover in every state of its files: what was decided, what is damaged, what is not there."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")


from servescope.console import JOURNAL_VARIABLE, PLAN_VARIABLE
from servescope.cutover.evidence.evidence import Decision
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import list_runs, write_decision
from servescope.store.embedded import Store
from tests.support.console_pages import html, open_view, stop_clock
from tests.support.console_store import write_day
from tests.support.cutover_evidence import Side
from tests.support.cutover_store import CutoverStore, Step, write_cutover

pytestmark = pytest.mark.slow

OF_A_CUTOVER = ("cutover", "plan", "decisions")
STEPS = (Step(0.08, Side(replicas=1), 2), Step(0.25, Side(replicas=4, slower=1.5), 2))
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> CutoverStore:
    """A cutover whose second stage harms."""
    return write_cutover(tmp_path_factory.mktemp("made"), steps=STEPS, past_hours=12)


def decide(*decisions: Decision) -> Callable[[CutoverStore], None]:
    """Write decisions to the journal, at times before the end."""

    def write(files: CutoverStore) -> None:
        for each in decisions:
            with CutoverJournal(files.journal) as journal:
                at_ms = files.now_ms - 60_000 + each.at_ms
                spans = [None if end is None else files.now_ms + end for end in (each.start_ms, each.end_ms)]
                made = Decision(each.kind, at_ms, "anna", "it was | *planned*", each.stage, *spans)
                write_decision(journal, list_runs(journal)[-1], made, {"problem": "not looked at"})

    return write


def empty_the_store(files: CutoverStore) -> None:
    """A new store where the old one was."""
    files.store.unlink()
    Store(files.store).close()


def take_another_store(files: CutoverStore) -> None:
    """The store of other deployments."""
    files.store.unlink()
    write_day(files.store, hours=0.1, count=2, end_ms=files.now_ms)


def damage_the_journal(files: CutoverStore) -> None:
    """Change an entry, past the triggers."""
    with sqlite3.connect(files.journal) as journal:
        for (trigger,) in journal.execute("select name from sqlite_master where type = 'trigger'").fetchall():
            journal.execute(f'drop trigger "{trigger}"')
        journal.execute("update entries set body = replace(body, 'anna', 'otto')")


def overwrite_the_journal(files: CutoverStore) -> None:
    """What is no database."""
    files.journal.write_bytes(b"not a database" * 100)


def edit_the_plan(files: CutoverStore) -> None:
    """Another margin than the run has frozen."""
    text = files.plan.read_text(encoding="utf-8")
    files.plan.write_text(text + '\n[[metrics]]\nname = "request_error_share"\nmargin = 2.0\n', encoding="utf-8")


STATES: dict[str, tuple[Callable[[CutoverStore], object], str]] = {
    "the next stage begins": (decide(Decision("advance", 0, stage=2)), "the stage has only begun"),
    "two stages at once": (
        decide(Decision("advance", 0, stage=2), Decision("advance", 1, stage=3)), "the stage has only begun"
    ),
    "rolled back": (decide(Decision("rollback", 0)), "Rolled back by anna"),
    "acknowledged": (decide(Decision("acknowledge", 0)), "was acknowledged by anna"),
    "acknowledged and rolled back": (
        decide(Decision("acknowledge", 0), Decision("rollback", 1)), "Rolled back by anna"
    ),
    "held": (decide(Decision("hold", 0)), "DEGRADED"),
    "a span is excluded": (decide(Decision("exclude", 0, start_ms=-HOUR_MS, end_ms=-HOUR_MS // 2)), "excluded"),
    "the present is excluded": (decide(Decision("exclude", 0, start_ms=-HOUR_MS, end_ms=HOUR_MS)), "excluded"),
    "all of it is excluded": (decide(Decision("exclude", 0, start_ms=-9 * HOUR_MS, end_ms=HOUR_MS)), "excluded"),
    "the store is empty": (empty_the_store, ""),
    "the store is of others": (take_another_store, ""),
    "the journal is damaged": (damage_the_journal, "append-only was removed"),
    "the journal is none": (overwrite_the_journal, "is not a journal"),
    "the journal is gone": (lambda files: files.journal.unlink(), "has not been started"),
    "the plan was edited": (edit_the_plan, "Judged as it was frozen"),
    "the plan is gone": (lambda files: files.plan.unlink(), "There is no plan at"),
    "the plan is no TOML": (lambda files: files.plan.write_text("[arms\n"), "chat.toml"),
    "the plan is no text": (lambda files: files.plan.write_bytes(b"\xff\xfe\x00"), "chat.toml"),
}  # fmt: skip


@pytest.fixture(scope="module")
def files(
    request: pytest.FixtureRequest, made: CutoverStore, tmp_path_factory: pytest.TempPathFactory
) -> tuple[CutoverStore, str]:
    """A copy of the files in a state, and what the page of the cutover says of it."""
    change, said = STATES[request.param]
    folder = tmp_path_factory.mktemp("state") / "copy"
    shutil.copytree(made.store.parent, folder)
    store, plan, journal = (folder / each.name for each in (made.store, made.plan, made.journal))
    copy = CutoverStore(store, plan, journal, made.begins_ms, made.now_ms)
    change(copy)
    return copy, said


@pytest.mark.parametrize(
    ("files", "name"),
    [
        pytest.param(state, name, marks=[] if name == "cutover" else pytest.mark.proof)
        for state in STATES
        for name in OF_A_CUTOVER
    ],
    indirect=["files"],
)
def test_a_page_of_every_state_is_whole(
    files: tuple[CutoverStore, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No page fails, and that of the cutover says what its state is."""
    copy, said = files
    monkeypatch.setenv("SERVESCOPE_STORE", str(copy.store))
    monkeypatch.setenv(PLAN_VARIABLE, str(copy.plan))
    monkeypatch.setenv(JOURNAL_VARIABLE, str(copy.journal))
    stop_clock(monkeypatch, copy.now_ms)
    page = open_view(name)
    shown = html(page)

    if name == "cutover":
        said_there = " ".join([shown, *(each.value for kind in (page.warning, page.error, page.info) for each in kind)])
        assert said.casefold() in said_there.casefold()
