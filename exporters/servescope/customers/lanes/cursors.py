"""What every lane has delivered: a small SQLite file with their acknowledged states, gaps and deliveries.

It also has whose each deployment is, and since when.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

from servescope.contract.identity import GROUP_LABELS
from servescope.customers.points.reading import FleetState
from servescope.customers.points.state_codec import dump_state, load_state
from servescope.customers.policy.ownership import NOBODY, NOT_YET_MS, Ownership, Ownerships, pass_on
from servescope.customers.policy.policy import Policy, Pull, Push
from servescope.errors import ServescopeError
from servescope.settings.clock import AHEAD_MS, BELIEVED_AFTER_MS
from servescope.settings.closing import Closing
from servescope.store.tables.file import is_locked_for_writing, lock_for_writing, read_identity, resolve_links

HOUR_MS: Final = 3_600_000
KEPT_MS: Final = 400 * 24 * HOUR_MS
"""How long deliveries and gaps are remembered, for statements."""

_APPLICATION: Final = 0x53564C4E  # "SVLN"
_VERSION: Final = 2
_OF_A_LANE: Final = ("lanes", "deliveries", "gaps", "problems")
_TABLES: Final = """
CREATE TABLE lanes (
    customer TEXT NOT NULL, destination TEXT NOT NULL, begun_ms INTEGER NOT NULL, resumed_ms INTEGER NOT NULL,
    edge_ms INTEGER, state BLOB, totals TEXT, PRIMARY KEY (customer, destination)
) STRICT, WITHOUT ROWID;
CREATE TABLE owners (
    model_name TEXT NOT NULL, deployment_id TEXT NOT NULL, inference_stack TEXT NOT NULL, environment TEXT NOT NULL,
    customer TEXT NOT NULL, since_ms INTEGER NOT NULL, free_ms INTEGER NOT NULL,
    PRIMARY KEY (model_name, deployment_id, inference_stack, environment)
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


class NoCursorsError(CursorError):
    """There is no file of cursors yet, or an empty one, as a full disk leaves it."""


class RemovedError(CursorError):
    """The customer was removed meanwhile: nothing is sent to it any more."""


def _file_at(path: Path) -> tuple[int, int] | None:
    """Which file a path leads to; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


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
    """Where a lane is: the state that was acknowledged, and its deployment streams' `totals`."""

    state: FleetState
    totals: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """What was delivered of the boundaries in (`first_ms`, `last_ms`]: points, of which some were rejected, and
    requests.
    """

    first_ms: int
    last_ms: int
    boundaries: int
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


@dataclass(frozen=True, slots=True, eq=False)
class Acknowledgement:
    """What a destination accepted of a boundary: where its lane is now, what was delivered, and what of
    it is missing.
    """

    cursor: Cursor
    delivery: Delivery | None = None
    gaps: tuple[Gap, ...] = ()


class CursorFile(Closing):
    """The cursors of all lanes. Raises CursorError.

    Every acknowledgement is one transaction: after `kill -9` the file has the last one or the one before it. One that
    cannot be written, as on a full disk, is kept, and nothing is read of its lane before it is. Lanes run in the one
    process that opened it to `deliver`; others read it, or remove a customer. Thread safe.
    """

    def __init__(self, path: Path, *, deliver: bool = False) -> None:
        self.path = path = resolve_links(path, what="cursors")
        self._lock: int | None = None
        # Lanes acknowledge from several threads, and a connection has one transaction at a time.
        self._using = threading.RLock()
        self._held: dict[LaneId, list[Acknowledgement]] = {}
        if not deliver and not path.exists():
            raise NoCursorsError(f"cursors {path}: there is no such file; `servescope customers run` makes it")
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
        application, version, tables = read_identity(self._connection)
        if not tables and make:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.executescript(
                f"BEGIN; {_TABLES} PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {_VERSION}; COMMIT;"
            )
        elif not (tables or application or version):
            raise NoCursorsError(f"cursors {self.path}: the file is empty; `servescope customers run` fills it")
        elif application != _APPLICATION:
            raise CursorError(f"cursors {self.path}: the file belongs to another program")
        elif version != _VERSION:
            raise CursorError(f"cursors {self.path}: version {version}, expected {_VERSION}")
        # What is deleted of a customer is overwritten.
        self._connection.execute("PRAGMA secure_delete = ON")
        self._file = _file_at(self.path)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- Lanes ---

    def begin(self, lane: LaneId, now_ms: int) -> int:
        """Note that a lane begins, or goes on; returns when it began first, now at the latest. Raises RemovedError.

        What is sent later can be acknowledged then: the file can be written.
        """
        with self._writing():
            self._check_not_removed(lane)
            (begun_ms,) = self._connection.execute(
                "INSERT INTO lanes (customer, destination, begun_ms, resumed_ms) VALUES (?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET resumed_ms = excluded.resumed_ms, "
                "begun_ms = min(begun_ms, excluded.begun_ms) RETURNING begun_ms",
                (lane.customer, lane.destination, now_ms, now_ms),
            ).fetchone()
        return int(begun_ms)

    def lanes(self) -> list[LaneId]:
        """Every lane that has begun."""
        with self._reading():
            rows = self._connection.execute("SELECT customer, destination FROM lanes ORDER BY 1, 2").fetchall()
        return [LaneId(*row) for row in rows]

    def begun_ms(self, lane: LaneId) -> int | None:
        """When a lane began; None for one that has not."""
        return self._time_of(lane, "begun_ms")

    def boundary_ms(self, lane: LaneId) -> int | None:
        """The last boundary that a lane's destination acknowledged; None before the first."""
        return self._time_of(lane, "edge_ms")

    def _time_of(self, lane: LaneId, column: str) -> int | None:
        with self._reading():
            row = self._connection.execute(
                f"SELECT {column} FROM lanes WHERE customer = ? AND destination = ?",  # noqa: S608 our own names
                (lane.customer, lane.destination),
            ).fetchone()
        return None if row is None else row[0]

    def cursor(self, lane: LaneId) -> Cursor | None:
        """Where a lane is, once that is written; None before the first acknowledgement."""
        self.write_held(lane)
        with self._reading():
            row = self._connection.execute(
                "SELECT state, totals FROM lanes WHERE customer = ? AND destination = ? AND edge_ms IS NOT NULL",
                (lane.customer, lane.destination),
            ).fetchone()
        if row is None:
            return None
        try:
            return Cursor(load_state(row[0]), row[1])
        except ValueError as error:
            raise CursorError(f"cursors {self.path}: the cursor of {lane.customer} {error}") from error

    def hold(self, lane: LaneId, acknowledgement: Acknowledgement) -> None:
        """Keep what was acknowledged until `write_held` has written it; returns at once."""
        self._held.setdefault(lane, []).append(acknowledgement)

    def write_held(self, lane: LaneId) -> None:
        """Write what is kept of a lane, if anything, each in one transaction; raises RemovedError."""
        with self._using:
            held = self._held.get(lane, [])
            while held:
                self._write(lane, held[0])
                del held[0]

    def _write(self, lane: LaneId, held: Acknowledgement) -> None:
        of, state, delivery = (lane.customer, lane.destination), held.cursor.state, held.delivery
        with self._writing():
            self._check_not_removed(lane)
            self._connection.execute(
                "UPDATE lanes SET edge_ms = ?, state = ?, totals = ? WHERE customer = ? AND destination = ?",
                (state.boundary_ms, dump_state(state), held.cursor.totals, *of),
            )
            for gap in held.gaps:
                self._add_gap(lane, gap)
            if delivery is not None:
                hour_ms = delivery.last_ms // HOUR_MS * HOUR_MS
                self._connection.execute(
                    "INSERT INTO deliveries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                    "first_ms = min(first_ms, excluded.first_ms), last_ms = max(last_ms, excluded.last_ms), "
                    "edges = edges + excluded.edges, points = points + excluded.points, "
                    "rejected = rejected + excluded.rejected, requests = requests + excluded.requests",
                    (
                        *of, hour_ms, delivery.first_ms, delivery.last_ms, delivery.boundaries, delivery.points,
                        delivery.rejected, delivery.requests,
                    ),
                )  # fmt: skip

    def add_gap(self, lane: LaneId, gap: Gap) -> None:
        """Remember a gap; the same one twice is one."""
        with self._writing():
            self._check_not_removed(lane)
            self._add_gap(lane, gap)

    def _add_gap(self, lane: LaneId, gap: Gap) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO gaps VALUES (?, ?, ?, ?, ?, ?)",
            (lane.customer, lane.destination, *astuple(gap)),
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

    # --- Whose deployments are ---

    def ownerships(self) -> Ownerships:
        """Whose each deployment is, of those that were ever a customer's."""
        with self._reading():
            rows = self._connection.execute("SELECT * FROM owners").fetchall()
        named = len(GROUP_LABELS)
        return {tuple(row[:named]): Ownership(*row[named:]) for row in rows}

    def latest_ms(self) -> int:
        """The latest time that is noted of any lane or owner, which a clock has shown; 0 where there is none."""
        with self._reading():
            (latest_ms,) = self._connection.execute(
                "SELECT max(at_ms) FROM (SELECT max(resumed_ms, coalesce(edge_ms, 0)) AS at_ms FROM lanes "
                "UNION ALL SELECT free_ms FROM owners WHERE free_ms < ?)",
                (NOT_YET_MS,),
            ).fetchone()
        return int(latest_ms or 0)

    def pass_on(
        self,
        policies: Sequence[Policy],
        waiting: Collection[str],
        now_ms: int,
        latest_ms: int = 0,
        dropped: Callable[[], Sequence[Gap]] = tuple,
    ) -> Ownerships:
        """Note whose each deployment is from now on, as `ownership.pass_on` has it; the clock has shown `latest_ms`.

        What its former owner was not delivered until then is a gap of its lanes, and so is what its owner is not
        delivered while it may still be the former one's by another clock. What the store has `dropped`, which is asked
        when a deployment changes hands, is one of the former owner's lanes too: they may run no more to see it.
        """
        with self._writing():
            known = self.ownerships()
            passed = pass_on(known, policies, waiting, now_ms, is_behind=latest_ms > now_ms + AHEAD_MS)
            for group, ownership in passed.items():
                self._connection.execute(
                    "INSERT OR REPLACE INTO owners VALUES (?, ?, ?, ?, ?, ?, ?)", (*group, *ownership)
                )
            former = {known[each].customer for each in known if known[each].customer != passed[each].customer}
            for lane in self.lanes():
                if lane.customer in former and lane.destination != Pull.name:
                    for gap in dropped():
                        self._add_gap(lane, gap)
                    reached_ms = self.boundary_ms(lane) or self.begun_ms(lane) or now_ms
                    if reached_ms < (moved_ms := max(now_ms, latest_ms)):
                        self._add_gap(lane, Gap(reached_ms, moved_ms, "moved"))
            for policy in policies:
                free_ms = max((passed[each.group].free_ms for each in policy.deployments), default=0)
                if free_ms > now_ms + AHEAD_MS:
                    self._note_waiting(policy, now_ms, min(free_ms, now_ms + BELIEVED_AFTER_MS))
        return passed

    def _note_waiting(self, policy: Policy, now_ms: int, until_ms: int) -> None:
        for lane, to in lanes_of(policy).items():
            known = self.gaps(lane, now_ms, now_ms + 1)
            if isinstance(to, Push) and all(gap.reason != "clock" for gap in known):
                self._add_gap(lane, Gap(now_ms - policy.interval_ms, until_ms, "clock"))

    # --- Statements and offboarding ---

    def deliveries(self, lane: LaneId, start_ms: int, end_ms: int) -> list[Delivery]:
        """What was delivered, hour by hour, of boundaries in a span."""
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
            self._connection.execute(
                "UPDATE owners SET customer = ?, since_ms = ?, free_ms = ? WHERE customer = ?",
                (NOBODY, at_ms, at_ms, customer),
            )
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
        self._held = {lane: held for lane, held in self._held.items() if lane.customer != customer}
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
            if _file_at(self.path) != self._file:
                raise CursorError(
                    f"cursors {self.path}: the file was removed or replaced while it was in use; nothing is "
                    "sent, as it could not be acknowledged: move it back, or start again"
                )
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                # A full disk ends some transactions by itself, and leaves others open.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._using:
            try:
                yield
            except sqlite3.Error as error:
                raise self._failed(error) from error

    def _failed(self, error: sqlite3.Error) -> CursorError:
        return CursorError(f"cursors {self.path}: {error}")
