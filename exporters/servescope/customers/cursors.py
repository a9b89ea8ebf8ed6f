"""What every lane has delivered: a small SQLite file with their acknowledged states, gaps and deliveries."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from servescope.customers.policy import Policy, Pull, Push
from servescope.customers.reading import FleetState
from servescope.customers.state_codec import dump_state, load_state
from servescope.errors import ServescopeError
from servescope.store.file import is_locked_for_writing, lock_for_writing, resolve_links

HOUR_MS: Final = 3_600_000
KEPT_MS: Final = 400 * 24 * HOUR_MS
"""How long deliveries and gaps are remembered, for statements."""

_APPLICATION: Final = 0x53564C4E  # "SVLN"
_VERSION: Final = 1
_OF_A_LANE: Final = ("lanes", "deliveries", "gaps", "problems")
_TABLES: Final = """
CREATE TABLE lanes (
    customer TEXT NOT NULL, destination TEXT NOT NULL, edge_ms INTEGER NOT NULL, state BLOB NOT NULL,
    totals TEXT NOT NULL, begun_ms INTEGER NOT NULL, PRIMARY KEY (customer, destination)
) STRICT, WITHOUT ROWID;
CREATE TABLE deliveries (
    customer TEXT NOT NULL, destination TEXT NOT NULL, hour_ms INTEGER NOT NULL, first_ms INTEGER NOT NULL,
    last_ms INTEGER NOT NULL, edges INTEGER NOT NULL, points INTEGER NOT NULL, rejected INTEGER NOT NULL,
    requests INTEGER NOT NULL, PRIMARY KEY (customer, destination, hour_ms)
) STRICT, WITHOUT ROWID;
CREATE TABLE gaps (
    customer TEXT NOT NULL, destination TEXT NOT NULL, start_ms INTEGER NOT NULL, end_ms INTEGER NOT NULL,
    reason TEXT NOT NULL, points INTEGER NOT NULL, PRIMARY KEY (customer, destination, start_ms, end_ms, reason)
) STRICT, WITHOUT ROWID;
CREATE TABLE problems (
    customer TEXT NOT NULL, destination TEXT NOT NULL, at_ms INTEGER NOT NULL, problem TEXT NOT NULL,
    PRIMARY KEY (customer, destination)
) STRICT, WITHOUT ROWID;
CREATE TABLE removed (
    customer TEXT NOT NULL PRIMARY KEY, at_ms INTEGER NOT NULL, ended INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
"""


def find_cursors(config: Path) -> Path:
    """The file of cursors where none is named: beside the configuration of the customers."""
    return config.with_suffix(".cursors.db")


class CursorError(ServescopeError):
    """The file of cursors cannot be opened, read or written; the text names it."""


class RemovedError(CursorError):
    """The customer was removed meanwhile: nothing is sent to it any more."""


@dataclass(frozen=True, slots=True)
class LaneId:
    """One destination of one customer; `destination` is its name within the customer."""

    customer: str
    destination: str


def lanes_of(policy: Policy) -> dict[LaneId, Push | Pull]:
    """The lanes of a customer, by their names."""
    lanes: dict[LaneId, Push | Pull] = {LaneId(policy.name, push.name): push for push in policy.push}
    if policy.pull is not None:
        lanes[LaneId(policy.name, policy.pull.name)] = policy.pull
    return lanes


@dataclass(frozen=True, slots=True, eq=False)
class Cursor:
    """Where a lane is: the state that was acknowledged, its deployment streams' `totals`, and when the lane began."""

    state: FleetState
    totals: str
    begun_ms: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """What was delivered of the edges in (`first_ms`, `last_ms`]: points, of which some were rejected, and requests."""

    first_ms: int
    last_ms: int
    edges: int
    points: int
    rejected: int
    requests: int


@dataclass(frozen=True, slots=True)
class Gap:
    """A time (`start_ms`, `end_ms`] of which points are missing at the destination; `points` is 0 where not known."""

    start_ms: int
    end_ms: int
    reason: str
    points: int = 0


class CursorFile:
    """The cursors of all lanes. Raises CursorError.

    Every acknowledgement is one transaction: after `kill -9` the file has the last one or the one before it. Lanes run
    in the one process that opened it to `deliver`; others read it, or remove a customer. Thread safe.
    """

    def __init__(self, path: Path, *, deliver: bool = False) -> None:
        self.path = path = resolve_links(path, what="cursors")
        self._lock: int | None = None
        # Lanes acknowledge from several threads, and a connection has one transaction at a time.
        self._using = threading.RLock()
        if not deliver and not path.exists():
            raise CursorError(f"cursors {path}: there is no such file; `servescope customers run` makes it")
        if deliver:
            self._lock = lock_for_writing(path, what="cursors", writer="`servescope customers run`")
        try:
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=5.0)
            self._prepare(make=deliver)
        except sqlite3.Error as error:
            self._unlock()
            raise self._failed(error) from error
        except CursorError:
            self._connection.close()
            self._unlock()
            raise

    def _prepare(self, *, make: bool) -> None:
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables and make:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.executescript(
                f"BEGIN; {_TABLES} PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {_VERSION}; COMMIT;"
            )
        elif application != _APPLICATION:
            raise CursorError(f"cursors {self.path}: the file belongs to another program")
        elif version != _VERSION:
            raise CursorError(f"cursors {self.path}: version {version}, expected {_VERSION}")
        # What is deleted of a customer is overwritten.
        self._connection.execute("PRAGMA secure_delete = ON")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- Lanes ---

    def lanes(self) -> list[LaneId]:
        """Every lane that has a cursor."""
        with self._reading():
            rows = self._connection.execute("SELECT customer, destination FROM lanes ORDER BY 1, 2").fetchall()
        return [LaneId(*row) for row in rows]

    def edge_ms(self, lane: LaneId) -> int | None:
        """The last edge that a lane's destination acknowledged; None for one that has not begun."""
        with self._reading():
            row = self._connection.execute(
                "SELECT edge_ms FROM lanes WHERE customer = ? AND destination = ?", (lane.customer, lane.destination)
            ).fetchone()
        return None if row is None else int(row[0])

    def cursor(self, lane: LaneId) -> Cursor | None:
        """Where a lane is; None for one that has not begun."""
        with self._reading():
            row = self._connection.execute(
                "SELECT state, totals, begun_ms FROM lanes WHERE customer = ? AND destination = ?",
                (lane.customer, lane.destination),
            ).fetchone()
        if row is None:
            return None
        try:
            return Cursor(load_state(row[0]), row[1], row[2])
        except ValueError as error:
            raise CursorError(f"cursors {self.path}: the cursor of {lane.customer} {error}") from error

    def acknowledge(self, lane: LaneId, cursor: Cursor, delivery: Delivery | None) -> None:
        """Keep what was acknowledged, and what of that was delivered, in one transaction; raises RemovedError."""
        of = (lane.customer, lane.destination)
        with self._writing():
            self._check_not_removed(lane)
            self._connection.execute(
                "INSERT OR REPLACE INTO lanes VALUES (?, ?, ?, ?, ?, ?)",
                (*of, cursor.state.edge_ms, dump_state(cursor.state), cursor.totals, cursor.begun_ms),
            )
            if delivery is not None:
                hour_ms = delivery.last_ms // HOUR_MS * HOUR_MS
                self._connection.execute(
                    "INSERT INTO deliveries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                    "first_ms = min(first_ms, excluded.first_ms), last_ms = max(last_ms, excluded.last_ms), "
                    "edges = edges + excluded.edges, points = points + excluded.points, "
                    "rejected = rejected + excluded.rejected, requests = requests + excluded.requests",
                    (
                        *of, hour_ms, delivery.first_ms, delivery.last_ms, delivery.edges, delivery.points,
                        delivery.rejected, delivery.requests,
                    ),
                )  # fmt: skip

    def add_gap(self, lane: LaneId, gap: Gap) -> None:
        """Remember a gap; the same one twice is one."""
        with self._writing():
            self._check_not_removed(lane)
            self._connection.execute(
                "INSERT OR REPLACE INTO gaps VALUES (?, ?, ?, ?, ?, ?)",
                (lane.customer, lane.destination, gap.start_ms, gap.end_ms, gap.reason, gap.points),
            )

    def set_problem(self, lane: LaneId, at_ms: int, problem: str) -> None:
        """Keep the last problem of a lane, for those who ask how it is."""
        with self._writing():
            self._check_not_removed(lane)
            self._connection.execute(
                "INSERT OR REPLACE INTO problems VALUES (?, ?, ?, ?)", (lane.customer, lane.destination, at_ms, problem)
            )

    def problem(self, lane: LaneId) -> tuple[int, str] | None:
        """The last problem of a lane and when it was; None when there was none."""
        with self._reading():
            found = self._connection.execute(
                "SELECT at_ms, problem FROM problems WHERE customer = ? AND destination = ?",
                (lane.customer, lane.destination),
            ).fetchone()
        return None if found is None else (found[0], found[1])

    def _check_not_removed(self, lane: LaneId) -> None:
        removed = self._connection.execute("SELECT 1 FROM removed WHERE customer = ?", (lane.customer,)).fetchone()
        if removed is not None:
            raise RemovedError(f"customer {lane.customer!r} was removed")

    def forget_before(self, time_ms: int) -> None:
        """Delete deliveries and gaps that ended before a time."""
        with self._writing():
            self._connection.execute("DELETE FROM deliveries WHERE last_ms < ?", (time_ms,))
            self._connection.execute("DELETE FROM gaps WHERE end_ms < ?", (time_ms,))

    # --- Statements and offboarding ---

    def deliveries(self, lane: LaneId, start_ms: int, end_ms: int) -> list[Delivery]:
        """What was delivered, hour by hour, of edges in a span."""
        with self._reading():
            rows = self._connection.execute(
                "SELECT first_ms, last_ms, edges, points, rejected, requests FROM deliveries "
                "WHERE customer = ? AND destination = ? AND last_ms >= ? AND first_ms < ? ORDER BY hour_ms",
                (lane.customer, lane.destination, start_ms, end_ms),
            ).fetchall()
        return [Delivery(*row) for row in rows]

    def gaps(self, lane: LaneId, start_ms: int = 0, end_ms: int = 2**62) -> list[Gap]:
        """The gaps that touch a span, in the order of time."""
        with self._reading():
            rows = self._connection.execute(
                "SELECT start_ms, end_ms, reason, points FROM gaps "
                "WHERE customer = ? AND destination = ? AND end_ms >= ? AND start_ms < ? ORDER BY start_ms, end_ms",
                (lane.customer, lane.destination, start_ms, end_ms),
            ).fetchall()
        return [Gap(*row) for row in rows]

    def remove(self, customer: str, at_ms: int) -> int:
        """Delete all of a customer but that it was removed; returns how many rows there were."""
        deleted = 0
        with self._writing():
            for table in _OF_A_LANE:
                deleted += self._connection.execute(f"DELETE FROM {table} WHERE customer = ?", (customer,)).rowcount  # noqa: S608 our own names
            self._connection.execute("INSERT OR REPLACE INTO removed VALUES (?, ?, 0)", (customer, at_ms))
        # The log has pages from before the deletion until it is truncated.
        with self._reading():
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return deleted

    def removed(self) -> dict[str, int]:
        """The customers that were removed, and when."""
        with self._reading():
            return dict(self._connection.execute("SELECT customer, at_ms FROM removed ORDER BY customer").fetchall())

    def unended(self) -> list[str]:
        """The customers that were removed, and whose lanes the process that delivers has not ended yet."""
        with self._reading():
            rows = self._connection.execute("SELECT customer FROM removed WHERE NOT ended ORDER BY 1").fetchall()
        return [row[0] for row in rows]

    def set_ended(self, customer: str) -> None:
        """Confirm that a customer that was removed is sent nothing more."""
        with self._writing():
            self._connection.execute("UPDATE removed SET ended = 1 WHERE customer = ?", (customer,))

    def is_delivering(self) -> bool:
        """Whether a process delivers, which confirms removals within a second or two."""
        return is_locked_for_writing(self.path)

    def rows_of(self, customer: str) -> int:
        """How many rows a customer has, apart from that of its removal."""
        with self._reading():
            return sum(
                self._connection.execute(f"SELECT count(*) FROM {table} WHERE customer = ?", (customer,)).fetchone()[0]  # noqa: S608 our own names
                for table in _OF_A_LANE
            )

    def readmit(self, customer: str) -> None:
        """Forget that a customer was removed."""
        with self._writing():
            self._connection.execute("DELETE FROM removed WHERE customer = ?", (customer,))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._reading():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._using:
            try:
                yield
            except sqlite3.Error as error:
                raise self._failed(error) from error

    def _failed(self, error: sqlite3.Error) -> CursorError:
        return CursorError(f"cursors {self.path}: {error}")
