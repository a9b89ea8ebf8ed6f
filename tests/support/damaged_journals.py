"""Journals that were damaged in every way that files are: drawn from a seed, so that each can be made again."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

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
