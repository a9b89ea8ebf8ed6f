"""The file beside a journal that keeps what was folded of its runs, part by part, each with the hash of those before.

It is never needed: without it, or where it is damaged, all is read from the samples again. A part belongs to the start
of a run and to the code that folded it. `servescope judge verify` folds the samples again and compares.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from servescope.cutover.evidence.folding import ArmArrays
from servescope.errors import ServescopeError
from servescope.judge.checkpoints.fold_codec import decode, encode, folding_rules

_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS parts (run TEXT NOT NULL, number INTEGER NOT NULL, interval_ms INTEGER NOT NULL, "
    "body BLOB NOT NULL, hash TEXT NOT NULL, PRIMARY KEY (run, number))"
)
_LEVEL: Final = 3
_BUSY_SECONDS: Final = 2.0
_MOST_BYTES: Final = 1 << 30
"""Of one part: more is not unpacked."""
_PAUSE_SECONDS: Final = 60.0
"""How long nothing is written after a failure, so that a file that is locked does not hold up a judgement."""
_MOST_PENDING: Final = 60
"""Parts that wait to be written, two months of them: with more, none is written any more."""

_logger = logging.getLogger(__name__)


class CheckpointError(ServescopeError):
    """The file is not what was written, or does not answer; the text names it, and the part."""

    @property
    def code(self) -> int | None:
        """SQLite's error code without its extension, None where SQLite has nothing to do with it."""
        found = getattr(self.__cause__, "sqlite_errorcode", None)
        return None if found is None else found & 0xFF

    @property
    def is_away(self) -> bool:
        """Whether nothing is known of the file: it cannot be opened, read or locked."""
        return self.code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM}


@dataclass(frozen=True, slots=True)
class KeptPart:
    """A part of a run with the scrape interval it was read with, and the hash of it and all before it."""

    folded: ArmArrays
    interval_ms: int
    hash: str


class Checkpoint:
    """What is kept of one run, which the hash of its first entry in the journal names."""

    def __init__(self, journal: Path, start_hash: str) -> None:
        self.path = journal.with_name(f"{journal.stem}.folds.db")
        self._run = sha256(f"{start_hash} {folding_rules()}".encode()).hexdigest()
        self.after = ""
        """The hash of the part that the next one follows, "" before the first."""
        self._pending: list[tuple[ArmArrays, int]] = []
        self._tried = -math.inf

    def read(self, begin_ms: int | None = None) -> Iterator[KeptPart]:
        """The parts in their order, from a time on where one is given.

        Raises CheckpointError at the first that is not what was written.
        """
        if not self.path.exists():
            return
        previous, end_ms = self._run, begin_ms
        query = "SELECT number, interval_ms, body, hash FROM parts WHERE run = ? ORDER BY number"
        # A statement that is not ended keeps its lock, though its connection is closed.
        with (
            self._guarded(),
            closing(self._connect()) as connection,
            closing(connection.execute(query, (self._run,))) as rows,
        ):
            for expected, (number, interval_ms, body, kept) in enumerate(rows):
                previous = _hash(previous, interval_ms, body)
                if number != expected or kept != previous:
                    raise CheckpointError(f"{self.path}: part {expected} is not what was written")
                part = KeptPart(_unpacked(body), interval_ms, kept)
                if end_ms not in {None, *part.folded.blocks[:1].tolist()}:
                    raise CheckpointError(f"{self.path}: part {expected} does not follow what is before it")
                end_ms = part.folded.v1.end_ms()
                yield part

    def sound(self, begin_ms: int) -> Iterator[KeptPart]:
        """The parts from a time on up to the first that is damaged, which is said and, with all after it, dropped.

        Of a file that does not answer none is dropped.
        """
        number = 0
        try:
            for part in self.read(begin_ms):
                number += 1
                yield part
        except CheckpointError as error:
            _logger.warning("%s; from there on the samples are read again", error)
            if not error.is_away:
                self._drop(number)

    def append(self, parts: Sequence[ArmArrays], interval_ms: int) -> None:
        """Keep the parts that follow; what cannot be written is said, and is written with a later one.

        What is not written when the process ends is read from the samples again.
        """
        if len(self._pending) > _MOST_PENDING:
            return
        self._pending += [(each, interval_ms) for each in parts if each.blocks.size]
        if time.monotonic() < self._tried + _PAUSE_SECONDS:
            return
        try:
            self._write()
        except CheckpointError as error:
            self._tried = time.monotonic()
            _logger.warning("what was folded is not kept: %s", error)

    def _write(self) -> None:
        previous = self.after or self._run
        with self._guarded(), closing(self._connect()) as connection:
            connection.execute(_TABLE)
            connection.execute("BEGIN IMMEDIATE")
            (number, last) = connection.execute(
                "SELECT coalesce(max(number), -1) + 1, coalesce((SELECT hash FROM parts WHERE run = ?1 "
                "ORDER BY number DESC LIMIT 1), ?1) FROM parts WHERE run = ?1",
                (self._run,),
            ).fetchone()
            for part, interval_ms in self._pending:
                body = zlib.compress(encode(part), _LEVEL)
                # Another judge may have kept it already.
                follows, previous = last == previous, _hash(previous, interval_ms, body)
                if follows:
                    row = (self._run, number, interval_ms, body, previous)
                    connection.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?)", row)
                    number, last = number + 1, previous
            connection.execute("COMMIT")
        self.after = previous
        self._pending.clear()

    def _drop(self, first: int) -> None:
        try:
            with self._guarded(), closing(self._connect()) as connection:
                connection.execute("DELETE FROM parts WHERE run = ? AND number >= ?", (self._run, first))
        except CheckpointError as error:
            if error.code in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
                self.path.unlink(missing_ok=True)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning, zlib.error, ValueError, TypeError, OverflowError, MemoryError) as error:
            raise CheckpointError(f"{self.path}: {error}") from error


def _hash(previous: str, interval_ms: object, body: object) -> str:
    held = body if isinstance(body, bytes) else repr(body).encode()
    return sha256(b" ".join((previous.encode(), str(interval_ms).encode(), held))).hexdigest()


def _unpacked(body: bytes) -> ArmArrays:
    unpacker = zlib.decompressobj()
    unpacked = unpacker.decompress(body, _MOST_BYTES)
    if unpacker.unconsumed_tail:
        raise ValueError(f"a part has more than {_MOST_BYTES} bytes")
    return decode(unpacked)
