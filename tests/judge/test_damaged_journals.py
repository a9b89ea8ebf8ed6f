"""Damaged journals: every command says by name what is wrong with one, and none is accepted that is not what it was."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC
from pathlib import Path
from typing import Final

import pytest

from app.cutovers.journals import draw_decisions, draw_runs, export_runs, list_decisions
from app.cutovers.journals import list_runs as table_of_runs
from servescope.cutover.evidence.evidence import Decision, DecisionKind
from servescope.errors import ServescopeError
from servescope.judge.journal.journal import CutoverJournal, JournalEntry
from servescope.judge.journal.runs import CutoverRun, list_runs, start_run, summarise, write_changes, write_decision
from tests.support.commands import run
from tests.support.cutover_plans import LEAST_PLAN, frozen_plan
from tests.support.judgements import START_MS, judgement

_COLUMNS: Final = (
    "number", "recorded_ms", "at_ms", "plan", "run", "kind", "by", "reason", "body", "previous", "hash",
)  # fmt: skip
_VALUES: Final = (
    None, "", "x", "nan", "0", 0, -1, 2**62, -(2**63), 1e300, float("inf"), 3.5, b"", b"\xff\xfe\x00", "\x00",
    "{}", "[]", "null", "[" * 5_000, '{"a":' * 3_000, '{"stage":1e999}', "9" * 5_000, '{"frozen":{"plan":[]}}',
)  # fmt: skip


def damage(path: Path, seed: int) -> str:
    """Damage the journal in a file; what was done to it, in words."""
    random_ = random.Random(seed)
    ways: Sequence[Callable[[Path, random.Random], str]] = (
        _flip, _flip, _flip_text, _cut, _zero, _change, _change, _remove, _repeat, _reshape, _misspell,
    )  # fmt: skip
    return ways[seed % len(ways)](path, random_)


def _flip(path: Path, random_: random.Random) -> str:
    stored = bytearray(path.read_bytes())
    places = [random_.randrange(len(stored)) for _ in range(random_.choice((1, 1, 1, 4, 64)))]
    for place in places:
        stored[place] ^= random_.randrange(1, 256)
    path.write_bytes(stored)
    return f"flipped bytes {places[:4]}"


def _flip_text(path: Path, random_: random.Random) -> str:
    """A byte of the schema, of a name or of a column's text becomes one that no text has."""
    stored = bytearray(path.read_bytes())
    word = random_.choice((b"CREATE TABLE", b"CREATE TRIGGER", b"entries", b"at_ms", b"BEFORE", b"start", b"ada", b'"'))
    places = [place for place in range(len(stored)) if stored.startswith(word, place)]
    place = random_.choice(places) + random_.randrange(len(word))
    stored[place] = random_.choice((0xFF, 0x80, 0x00, 0x27, stored[place] ^ 0x20))
    path.write_bytes(stored)
    return f"byte {place} of {word!r} is {stored[place]}"


def _cut(path: Path, random_: random.Random) -> str:
    stored = path.read_bytes()
    size = random_.choice((0, 1, 100, 511, 4096, random_.randrange(len(stored))))
    path.write_bytes(stored[:size])
    return f"cut to {size} bytes"


def _zero(path: Path, random_: random.Random) -> str:
    stored = bytearray(path.read_bytes())
    first = random_.randrange(len(stored))
    stored[first : first + 512] = bytes(min(512, len(stored) - first))
    path.write_bytes(stored)
    return f"zeros from byte {first} on"


def _change(path: Path, random_: random.Random) -> str:
    column, value = random_.choice(_COLUMNS), random_.choice(_VALUES)
    number = random_.randrange(1, 6)
    _write(path, [(f"UPDATE entries SET {column} = ? WHERE number = ?", (value, number))], random_)
    return f"{column} of entry {number} is {value!r:.40}"


def _remove(path: Path, random_: random.Random) -> str:
    number = random_.randrange(1, 6)
    _write(path, [("DELETE FROM entries WHERE number = ?", (number,))], random_)
    return f"entry {number} is removed"


def _repeat(path: Path, random_: random.Random) -> str:
    number, to = random_.randrange(1, 6), random_.choice((0, -1, 6, 7, 2**62))
    rest = ", ".join(_COLUMNS[1:])
    _write(
        path,
        [(f"INSERT OR REPLACE INTO entries SELECT ?, {rest} FROM entries WHERE number = ?", (to, number))],
        random_,
    )
    return f"entry {number} is there as {to}, too"


def _reshape(path: Path, random_: random.Random) -> str:
    statement = random_.choice(
        (
            "ALTER TABLE entries RENAME TO entrys", "ALTER TABLE entries RENAME COLUMN at_ms TO time_ms",
            "ALTER TABLE entries ADD COLUMN more TEXT", "DROP TABLE entries",
            "CREATE TABLE entrys (number)", "CREATE VIEW other AS SELECT * FROM entries", "PRAGMA user_version = 99",
            "PRAGMA user_version = -1", "PRAGMA application_id = 7", "PRAGMA journal_mode = WAL",
            "CREATE TRIGGER more AFTER INSERT ON entries BEGIN DELETE FROM entries; END",
        )
    )  # fmt: skip
    _write(path, [(statement, ())], random_)
    return statement


def _misspell(path: Path, random_: random.Random) -> str:
    """The schema itself is edited, as SQLite allows to."""
    replaced = random_.choice(
        (("at_ms INTEGER", "at_ms TEXT"), ("ABORT", "IGNORE"), ("NOT NULL", ""), ("TABLE", "TABEL"))
    )
    statement = "UPDATE sqlite_master SET sql = replace(sql, ?, ?)"
    _write(path, [("PRAGMA writable_schema = ON", ()), (statement, replaced)], random_)
    return f"{replaced[0]} of the schema is {replaced[1]!r}"


def _write(path: Path, statements: Sequence[tuple[str, Sequence[object]]], random_: random.Random) -> None:
    """What somebody with SQLite does to the file, who may put the triggers back."""
    connection = sqlite3.connect(path, isolation_level=None)
    triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    for statement, values in statements:
        try:
            connection.execute(statement, values)
        except sqlite3.Error:
            continue
    if random_.random() < 0.7:
        for _, text in triggers:
            try:
                connection.execute(text)
            except sqlite3.Error:
                break
    connection.close()


IN_EACH_RUN = 66
IN_PROOFS = 10_000
_VERBS = (["run"], ["explain"], ["watch"], ["report", "--out", "none.html"],
          ["decide", "hold", "--by", "ada", "--reason", "why"])  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal with a decision of each kind that keeps its run under way, and a judgement."""
    path = tmp_path_factory.mktemp("journals") / "whole.db"
    with CutoverJournal(path) as journal:
        begun = start_run(journal, frozen_plan(), by="ada", reason="first try")
        write_decision(journal, begun, _decision("advance", 10, stage=1), summarise(judgement()))
        write_changes(journal, begun, judgement("DEGRADED"))
        write_decision(journal, begun, _decision("acknowledge", 200), {"problem": "the store did not answer"})
        write_decision(
            journal,
            begun,
            _decision("exclude", 210, start_ms=START_MS, end_ms=START_MS + 600_000),
            summarise(judgement()),
            force=True,
        )
    return path


@pytest.mark.slow
def test_a_damaged_journal_is_refused_by_name(whole: Path, tmp_path: Path) -> None:
    """By `verify`, by every command that reads runs and by the console, without a traceback."""
    _check_all(whole, tmp_path, range(IN_EACH_RUN))


@pytest.mark.proof
@pytest.mark.parametrize("first", range(IN_EACH_RUN, IN_EACH_RUN + IN_PROOFS, 500))
def test_ten_thousand_damaged_journals(whole: Path, tmp_path: Path, first: int) -> None:
    """The same of many more."""
    _check_all(whole, tmp_path, range(first, first + 500))


def test_the_whole_one_is_accepted(whole: Path) -> None:
    """Otherwise a refusal would prove nothing."""
    done = run("judge", "verify", "--journal", str(whole))

    assert done.returncode == 0, done.stdout
    assert "is whole: 6 entries" in done.stdout


def test_an_entry_says_what_is_wrong_with_it(whole: Path, tmp_path: Path) -> None:
    """Its number, its column and the value there."""
    path = tmp_path / "damaged.db"
    shutil.copy(whole, path)
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER entries_are_not_changed")
    connection.execute("UPDATE entries SET at_ms = 'soon' WHERE number = 2")
    connection.commit()
    connection.close()

    done = run("judge", "verify", "--journal", str(path))
    assert done.returncode == 1
    assert f"{path}: entry 2 cannot be read: at_ms is 'soon', expected a whole number" in done.stdout


def _decision(kind: DecisionKind, minutes: int, **more: int) -> Decision:
    return Decision(kind, START_MS + minutes * 60_000, by="ada", reason="as planned", **more)


def _check_all(whole: Path, folder: Path, seeds: range) -> None:
    with CutoverJournal(whole) as journal:
        entries = journal.entries()
    plan = folder / "chat.toml"
    plan.write_text(f'name = "chat"\n{LEAST_PLAN}', encoding="utf-8")
    path = folder / "damaged.db"
    for seed in seeds:
        shutil.copy(whole, path)
        done_to_it = damage(path, seed)
        _check(path, plan, entries, f"seed {seed}: {done_to_it}")
        for left in folder.glob("damaged.db*"):
            left.unlink()


def _check(path: Path, plan: Path, entries: tuple[JournalEntry, ...], case: str) -> None:
    done = run("judge", "verify", "--journal", str(path))
    is_accepted = done.returncode == 0
    assert done.returncode in {0, 1}, case
    assert str(path) in done.stdout + done.stderr, case
    runs, refusal = _read(path, entries, case)
    # SQLite may find pages damaged beside the entries, whose hashes are right.
    assert not (refusal and is_accepted), (case, refusal)
    assert not refusal or str(path) in refusal, (case, refusal)
    verb = _VERBS[len(case) % len(_VERBS)]
    refused = run("judge", *verb, "--plan", str(plan), "--journal", str(path), "--store", str(path.parent / "none"))
    assert refused.returncode in {1, 2}, (case, refused)
    assert "servescope: " in refused.stderr, (case, refused)
    draw_runs(runs, UTC, None)
    rows = [(each, entry) for each in runs for entry in each.entries if entry.kind != "judgement"]
    draw_decisions(rows, UTC)
    table_of_runs(runs)
    list_decisions(rows)
    export_runs(runs)


def _read(path: Path, entries: tuple[JournalEntry, ...], case: str) -> tuple[list[CutoverRun], str]:
    """The runs of a journal, and why it is refused; what is read is what was written, or the first entries of it."""
    try:
        with CutoverJournal(path) as journal:
            read, runs = journal.entries(), list_runs(journal)
    except ServescopeError as error:
        return [], str(error)
    assert read == entries[: len(read)], case
    if not read:
        return [], "" if run("judge", "verify", "--journal", str(path)).returncode == 0 else str(path)
    if read != entries:
        # What is cut off at the end, whole entries, is found by a hash that was written down elsewhere.
        assert run("judge", "verify", "--journal", str(path), "--head", entries[-1].hash).returncode == 1, case
    return runs, ""
