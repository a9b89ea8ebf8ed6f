"""The journal: entries are appended, by several writers, and what was done to the file otherwise is named."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from servescope.judge.journal.journal import FIRST_PREVIOUS, CutoverJournal, JournalDamagedError, JournalError

AT_MS = 1_795_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of four entries."""
    path = tmp_path / "journal.db"
    with CutoverJournal(path) as journal:
        journal.append("start", at_ms=AT_MS, plan="chat", run=1, body={"frozen": {"margin": 0.1}})
        for number, kind in enumerate(("advance", "hold", "rollback"), 1):
            journal.append(kind, at_ms=AT_MS + number, plan="chat", run=1, by="ada", reason="because")  # type: ignore[arg-type]
    return path


def test_what_is_appended_is_read_in_order(path: Path) -> None:
    """With its number, its text and the hash of the entry before it."""
    entries = CutoverJournal(path).entries()

    assert [entry.number for entry in entries] == [1, 2, 3, 4]
    assert [entry.kind for entry in entries] == ["start", "advance", "hold", "rollback"]
    assert entries[0].body == {"frozen": {"margin": 0.1}}
    assert entries[0].previous == FIRST_PREVIOUS
    assert [entry.previous for entry in entries[1:]] == [entry.hash for entry in entries[:-1]]


def test_without_a_file_there_are_no_entries_and_none_is_made(tmp_path: Path) -> None:
    """Only an entry creates it."""
    path = tmp_path / "journal.db"

    assert CutoverJournal(path).entries() == ()
    assert not path.exists()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET reason = 'other' WHERE number = 2",
        "DELETE FROM entries WHERE number = 4",
        "INSERT OR REPLACE INTO entries SELECT number, recorded_ms, at_ms, plan, run, kind, by, 'other', body, "
        "previous, hash FROM entries WHERE number = 2",
    ],
)
def test_an_entry_is_neither_changed_nor_deleted(path: Path, statement: str) -> None:
    """Whoever writes to the file with SQLite is refused."""
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(statement)
    connection.close()

    assert CutoverJournal(path).verify() == []


@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        (
            ["UPDATE entries SET reason = 'other' WHERE number = 2"],
            "entry 2 (advance, 2026-11-18T11:06:40Z) was changed",
        ),
        (["UPDATE entries SET body = '{' WHERE number = 1"], "entry 1 cannot be read"),
        (["DELETE FROM entries WHERE number = 3"], "entry 3 is missing"),
        (["DELETE FROM entries WHERE number < 3"], "entries 1 to 2 are missing"),
        (["UPDATE entries SET kind = 'promote' WHERE number = 3"], "entry 3 cannot be read"),
    ],
)
def test_a_damaged_chain_is_reported_by_entry(path: Path, statements: list[str], problem: str) -> None:
    """Once the triggers are gone, which is reported too; nobody appends to it, or reads it, any more."""
    connection = sqlite3.connect(path)
    for name in ("entries_are_not_changed", "entries_are_not_deleted"):
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()

    found = CutoverJournal(path).verify()
    assert problem in found
    assert any("entries_are_not_changed" in each for each in found)
    with pytest.raises(JournalDamagedError, match="is damaged"):
        CutoverJournal(path).entries()
    with pytest.raises(JournalDamagedError):
        CutoverJournal(path).append("hold", at_ms=AT_MS, plan="chat", run=1, by="ada", reason="because")


def test_an_entry_whose_hash_was_made_anew_does_not_continue_the_chain(path: Path) -> None:
    """Rewriting one entry would need rewriting all that follow it."""
    entry = CutoverJournal(path).entries()[1]
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER entries_are_not_changed")
    object.__setattr__(entry, "reason", "other")
    connection.execute("UPDATE entries SET reason = 'other', hash = ? WHERE number = 2", (entry.compute_hash(),))
    connection.commit()
    connection.close()

    assert "entry 3 (hold) does not continue the one before it" in CutoverJournal(path).verify()


def test_several_writers_append_at_once(tmp_path: Path) -> None:
    """Each entry gets a number of its own, and the chain stays whole."""
    path = tmp_path / "journal.db"

    def write(name: str) -> None:
        with CutoverJournal(path) as journal:
            for number in range(10):
                journal.append("hold", at_ms=AT_MS + number, plan="chat", run=1, by=name, reason="because")

    writers = [threading.Thread(target=write, args=(f"writer-{number}",)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert [entry.number for entry in CutoverJournal(path).entries()] == list(range(1, 41))
    assert CutoverJournal(path).verify() == []


def test_a_reader_sees_what_another_appended_since(path: Path) -> None:
    """Without opening the file anew."""
    reader = CutoverJournal(path)
    assert len(reader.entries()) == 4
    CutoverJournal(path).append("start", at_ms=AT_MS + 9, plan="chat", run=2)

    assert [entry.run for entry in reader.entries()] == [1, 1, 1, 1, 2]


def test_what_fails_in_a_transaction_leaves_nothing(path: Path) -> None:
    """Neither in the file nor in what is remembered of it."""
    journal = CutoverJournal(path)

    def append_and_fail() -> None:
        with journal.appending() as appender:
            appender.append("hold", at_ms=AT_MS, plan="chat", run=1, by="ada", reason="because")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        append_and_fail()

    assert len(journal.entries()) == 4


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    """Another database, a text, a directory, a folder that is not there."""
    other, text = tmp_path / "other.db", tmp_path / "plan.toml"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE things (name TEXT)")
    connection.commit()
    connection.close()
    text.write_text("[arms]\n" * 100)

    for path, reason in (
        (other, "not a journal, but another SQLite database"),
        (text, "not a journal"),
        (tmp_path, "not a file"),
    ):
        with pytest.raises(JournalError, match=reason):
            CutoverJournal(path)
    with pytest.raises(JournalError, match="no directory"):
        CutoverJournal(tmp_path / "none" / "journal.db").append("hold", at_ms=AT_MS, plan="chat", run=1)


def test_a_journal_of_another_format_is_refused(path: Path) -> None:
    """Neither is read that a later release wrote."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 2")
    connection.close()

    with pytest.raises(JournalError, match="has format 2, this release reads format 1"):
        CutoverJournal(path)


def test_a_text_that_is_too_long_is_refused(path: Path) -> None:
    """A reason is a sentence or two."""
    with pytest.raises(JournalError, match="reason has 5000 characters, expected at most 4000"):
        CutoverJournal(path).append("hold", at_ms=AT_MS, plan="chat", run=1, by="ada", reason="x" * 5000)
