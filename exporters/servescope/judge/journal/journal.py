"""The journal of cutovers: an SQLite file to which entries are only appended, each with the hash of the one before it.

Several plans may share a file. A run begins with a `start`, which holds the frozen plan, and ends with a `rollback`, or
with the next `start` of its plan. Triggers refuse to change or delete an entry; whoever removes them breaks the chain
of hashes, which every reader checks. What is cut off at the end is found by comparing the last hash with one that was
written down elsewhere, as in a report.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from servescope.cutover.evidence.evidence import DECISION_KINDS, DecisionKind
from servescope.errors import ServescopeError
from servescope.settings.closing import Closing
from servescope.settings.values import format_instant
from servescope.store.tables.file import read_identity, resolve_links

EntryKind = Literal[DecisionKind, "judgement"]
"""What is written down: decisions, and each change of the judgement."""

APPLICATION_ID: Final = 0x5356_4A4C  # "SVJL"
FORMAT_VERSION: Final = 1
FIRST_PREVIOUS: Final = "0" * 64
"""What the first entry has for the hash of the one before it."""

_KINDS: Final = (*DECISION_KINDS, "judgement")
_BUSY_SECONDS: Final = 10.0
_MOST_TEXT: Final = 4_000
_TABLES: Final = (
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, recorded_ms INTEGER NOT NULL, at_ms INTEGER NOT NULL, "
    "plan TEXT NOT NULL, run INTEGER NOT NULL, kind TEXT NOT NULL, by TEXT NOT NULL, reason TEXT NOT NULL, "
    "body TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TRIGGER entries_are_not_changed BEFORE UPDATE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END",
    "CREATE TRIGGER entries_are_not_deleted BEFORE DELETE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END",
    # INSERT OR REPLACE deletes without a trigger for that.
    "CREATE TRIGGER entries_are_not_replaced BEFORE INSERT ON entries "
    "WHEN EXISTS (SELECT 1 FROM entries WHERE number >= NEW.number) "
    "BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END",
)
_SCHEMA: Final = {
    "entries": ("table", _TABLES[0]),
    "entries_are_not_changed": ("trigger", _TABLES[1]),
    "entries_are_not_deleted": ("trigger", _TABLES[2]),
    "entries_are_not_replaced": ("trigger", _TABLES[3]),
}
"""By name the kind of each part of the file, and the statement that made it."""
_COLUMN_TYPES: Final[Mapping[str, type]] = {
    "number": int, "recorded_ms": int, "at_ms": int, "plan": str, "run": int, "kind": str, "by": str, "reason": str,
    "body": str, "previous": str, "hash": str,
}  # fmt: skip
_COLUMNS: Final = ", ".join(_COLUMN_TYPES)
_EXPECTED: Final = {int: "a whole number", str: "text"}
_TIMES: Final = range(253_402_300_800_000)
"""Milliseconds up to the year 9999."""
_MOST_SHOWN: Final = 60
_MOST_DAMAGES: Final = 10
# SQLite's own messages quote bytes of the file, which may be no text, and lengths of it, which may be any.
_DAMAGES: Final = (sqlite3.Error, sqlite3.Warning, UnicodeError, OverflowError, MemoryError)


class JournalError(ServescopeError):
    """The journal cannot be opened, read or written; the text names the file."""


class JournalDamagedError(JournalError):
    """Entries were changed, removed or put in; `problems` has a line for each that is wrong."""

    def __init__(self, path: Path, problems: Sequence[str]) -> None:
        super().__init__(f"journal {path} is damaged: {'; '.join(problems)}")
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One entry. `at_ms` is when it takes effect, on the clock of the samples, `recorded_ms` when it was written.

    `by` and `reason` are empty of a judgement. `body` holds the frozen plan of a `start`, the stage of an `advance`,
    the span of an `exclude`, and the judgement that a decision was made on.
    """

    number: int
    recorded_ms: int
    at_ms: int
    plan: str
    run: int
    kind: EntryKind
    by: str
    reason: str
    body: Mapping[str, Any] = field(default_factory=dict)
    previous: str = FIRST_PREVIOUS
    hash: str = ""

    def compute_hash(self) -> str:
        """The hash of all of the entry but its hash, 64 hexadecimal digits."""
        values = [
            self.number, self.recorded_ms, self.at_ms, self.plan, self.run, self.kind, self.by, self.reason,
            self.body, self.previous,
        ]  # fmt: skip
        return hashlib.sha256(_write(values).encode()).hexdigest()


class CutoverJournal(Closing):
    """The journal in a file. One thread at a time; other processes may append meanwhile.

    A file that does not exist is created by the first entry; until then there are no entries.
    """

    def __init__(self, path: Path) -> None:
        self.path = path = resolve_links(path, what="journal")
        self._connection: sqlite3.Connection | None = None
        self._entries: list[JournalEntry] = []
        if not self._is_new():
            self._connect()

    def close(self) -> None:
        """Close the file; it is opened again when it is needed."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return self.path.exists()

    def entries(self) -> tuple[JournalEntry, ...]:
        """All entries in their order; raises JournalDamagedError when the chain of hashes is broken."""
        if self._connection is None and self._is_new():
            return ()
        with self._guarded():
            self._read_new(self._connect())
        return tuple(self._entries)

    def append(
        self, kind: EntryKind, *, at_ms: int, plan: str, run: int, by: str = "", reason: str = "",
        body: Mapping[str, Any] | None = None,
    ) -> JournalEntry:  # fmt: skip
        """Write one entry; returns it with its number and hash. Raises JournalError, and leaves the file as it was."""
        with self.appending() as appender:
            return appender.append(kind, at_ms=at_ms, plan=plan, run=run, by=by, reason=reason, body=body)

    @contextmanager
    def appending(self) -> Iterator[Appender]:
        """A transaction in which nobody else appends: what is appended may depend on what is there."""
        connection = self._connect()
        with self._guarded():
            connection.execute("BEGIN IMMEDIATE")
            known = len(self._entries)
            try:
                self._read_new(connection)
                known = len(self._entries)
                yield Appender(connection, self._entries)
                connection.execute("COMMIT")
            except BaseException:
                del self._entries[known:]
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def verify(self) -> list[str]:
        """What is wrong with the chain, a line for each entry, by reading all of it anew; empty when it is whole."""
        self._entries = []
        if self._is_new():
            return ["there is no file, or an empty one"]
        with self._guarded():
            connection = self._connect()
            return [
                *_find_damage(connection), *_find_changes(connection),
                *_find_breaks(_rows(connection, 0), FIRST_PREVIOUS, 0),
            ]  # fmt: skip

    # --- The file -----------------------------------------------------------------------------------------------------

    def _is_new(self) -> bool:
        """Whether nothing was written to the file yet."""
        return not self.path.exists() or (self.path.is_file() and not self.path.stat().st_size)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except _DAMAGES as error:
            raise self._describe(error) from error

    def _read_new(self, connection: sqlite3.Connection) -> None:
        """Read what was appended since, and check that it continues what is known."""
        last = self._entries[-1].hash if self._entries else FIRST_PREVIOUS
        count = len(self._entries)
        (present,) = connection.execute("SELECT count(*) FROM entries").fetchone()
        problems = [] if present >= count else [f"entries {present + 1} to {count} were removed since they were read"]
        rows = list(_rows(connection, count))
        problems += [*_find_changes(connection), *_find_breaks(rows, last, count)]
        if problems:
            raise JournalDamagedError(self.path, problems)
        self._entries += [_entry(row) for row in rows]

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            with self._guarded():
                self._connection = _open(self.path)
        return self._connection

    def _describe(self, error: Exception) -> JournalError:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
            return JournalError(f"journal {self.path}: the file is not a journal")
        return JournalError(f"journal {self.path}: {error}")


class Appender:
    """Appends within a transaction; `entries` are those before, and those it appended."""

    def __init__(self, connection: sqlite3.Connection, entries: list[JournalEntry]) -> None:
        self._connection, self.entries = connection, entries

    def append(
        self, kind: EntryKind, *, at_ms: int, plan: str, run: int, by: str = "", reason: str = "",
        body: Mapping[str, Any] | None = None,
    ) -> JournalEntry:  # fmt: skip
        """Write one entry; returns it with its number and hash. Raises JournalError for text that is too long."""
        for what, text in (("by", by), ("reason", reason)):
            if len(text) > _MOST_TEXT:
                raise JournalError(f"{what} has {len(text)} characters, expected at most {_MOST_TEXT}")
        previous = self.entries[-1].hash if self.entries else FIRST_PREVIOUS
        # Read back as JSON: what is hashed is what a reader will see.
        values = json.loads(_write(dict(body or {})))
        fields: dict[str, Any] = {
            "number": len(self.entries) + 1, "recorded_ms": time.time_ns() // 1_000_000, "at_ms": at_ms, "plan": plan,
            "run": run, "kind": kind, "by": by, "reason": reason, "body": values, "previous": previous,
        }  # fmt: skip
        entry = JournalEntry(**fields, hash=JournalEntry(**fields).compute_hash())
        self._connection.execute(
            f"INSERT INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - our own names
            (*list(fields.values())[:8], _write(values), previous, entry.hash),
        )
        self.entries.append(entry)
        return entry


# --- The chain --------------------------------------------------------------------------------------------------------


def _rows(connection: sqlite3.Connection, after: int) -> Iterator[tuple[Any, ...]]:
    query = f"SELECT {_COLUMNS} FROM entries WHERE number > ? ORDER BY number"  # noqa: S608 - our own names
    return connection.execute(query, (after,))


def _find_damage(connection: sqlite3.Connection) -> list[str]:
    """What SQLite finds wrong with the file's pages."""
    found = [str(line) for (line,) in connection.execute(f"PRAGMA integrity_check({_MOST_DAMAGES})")]
    return [] if found == ["ok"] else [f"the file is damaged: {line}" for line in found]


def _find_changes(connection: sqlite3.Connection) -> list[str]:
    """What of the table and the triggers is not what they were made as."""
    stored = {name: (kind, sql) for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_schema")}
    made = {name: each for name, each in stored.items() if not str(name).startswith("sqlite_")}
    missing = [
        f"the {kind} {name!r} that keeps it append-only was {'changed' if name in made else 'removed'}"
        for name, (kind, sql) in _SCHEMA.items()
        if made.get(name) != (kind, sql)
    ]
    return missing + [f"there is {kind} {name!r}, which no journal has" for name, (kind, _) in made.items()
                      if name not in _SCHEMA]  # fmt: skip


def _find_breaks(rows: Iterator[tuple[Any, ...]] | Sequence[tuple[Any, ...]], previous: str, count: int) -> list[str]:
    """A line for each entry that is missing or is not what it was; `previous` and `count` are of what is before."""
    problems, expected = [], count + 1
    for row in rows:
        number, stored = row[0], row[-1]
        if type(number) is not int or number < expected:
            problems.append(f"the entry after {expected - 1} has the number {_show(number)}")
            continue
        if number > expected:
            lost = f"entry {expected} is" if number == expected + 1 else f"entries {expected} to {number - 1} are"
            problems.append(f"{lost} missing")
        try:
            entry = _entry(row)
            is_whole = entry.compute_hash() == stored
        except _FieldError as error:
            problems.append(f"entry {number} cannot be read: {error}")
        except (TypeError, ValueError, RecursionError):
            problems.append(f"entry {number} cannot be read")
        else:
            if not is_whole:
                problems.append(f"entry {number} ({entry.kind}, {format_instant(entry.at_ms)}) was changed")
            elif number == expected and entry.previous != previous:
                problems.append(f"entry {number} ({entry.kind}) does not continue the one before it")
        previous, expected = stored, number + 1
    return problems


def _entry(row: tuple[Any, ...]) -> JournalEntry:
    """The entry of a row; raises ValueError or RecursionError for what is no entry."""
    for (name, expected), value in zip(_COLUMN_TYPES.items(), row, strict=True):
        if type(value) is not expected:
            raise _FieldError(f"{name} is {_show(value)}, expected {_EXPECTED[expected]}")
    number, recorded_ms, at_ms, plan, run, kind, by, reason, text, previous, digest = row
    if kind not in _KINDS:
        raise ValueError(f"unknown kind {kind!r}")
    for name, time_ms in (("recorded_ms", recorded_ms), ("at_ms", at_ms)):
        if time_ms not in _TIMES:
            raise _FieldError(f"{name} is {_show(time_ms)}, which is no time")
    body = json.loads(text)
    if not isinstance(body, dict):
        raise _FieldError(f"body is {_show(body)}, expected a table")
    return JournalEntry(number, recorded_ms, at_ms, plan, run, kind, by, reason, body, previous, digest)


class _FieldError(ValueError):
    """What is wrong with one column of an entry."""


def _show(value: object) -> str:
    """A value in few characters, whatever it is."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def _write(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _open(path: Path) -> sqlite3.Connection:
    """A connection to the file, whose tables are created when it is new; raises JournalError, sqlite3.Error."""
    if path.exists() and not path.is_file():
        raise JournalError(f"journal {str(path)!r} is not a file")
    if not path.parent.is_dir():
        raise JournalError(f"journal {str(path)!r}: there is no directory {str(path.parent)!r}")
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    # What is no text is found where its entry is read.
    connection.text_factory = lambda stored: stored.decode(errors="surrogateescape")
    try:
        # Each entry is on the disk before the command that made it ends.
        connection.execute("PRAGMA synchronous = FULL")
        if not _check_format(connection, path):
            connection.execute("BEGIN IMMEDIATE")
            if not _check_format(connection, path):  # another process may have been quicker
                for statement in _TABLES:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
            connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_format(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file has a journal's tables, False where it is new; raises JournalError for any other file."""
    application, version, tables = read_identity(connection)
    if not tables and not application:
        return False
    if application != APPLICATION_ID:
        raise JournalError(f"journal {path}: the file is not a journal, but another SQLite database")
    if version != FORMAT_VERSION:
        raise JournalError(f"journal {path}: has format {version}, this release reads format {FORMAT_VERSION}")
    return True
