"""The embedded store: figures, translated scrapes and the health of targets, in one SQLite file (`schema`).

One process writes, any number read meanwhile (WAL). Every stored number is finite; what was absent is not stored. Rows
come one by one, so that none is ever lost, and are packed by the run once there are enough of them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import sqlite3
import threading
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import IO, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from servescope.collector.store.codec import Matrix, decode_block, decode_stamps
from servescope.collector.store.packing import (
    FAILED,
    RUN_ROWS,
    Keys,
    Row,
    Shape,
    divide_rows,
    make_shape,
    pack,
    parse_key,
    rows_until_gap,
)
from servescope.collector.store.records import FigureTable, RecordedSettings, RefusedError, StoreError, TargetStatus
from servescope.collector.store.schema import (
    CHUNK_BITS,
    FIGURES,
    LAST_OWNER,
    LATEST_MS,
    RECENT,
    SCHEMA_VERSION,
    SCRAPES,
    TIME_BITS,
    is_damage,
    lock_for_writing,
    open_file,
    set_aside,
)
from servescope.collector.store.segments import Picked, Segment, assemble, pick, sample_names, wanted_places
from servescope.collector.store.upgrade import upgrade
from servescope.identity import DEPLOYMENT_LABELS, IDENTITY_LABELS, Deployment, Identity
from servescope.samples import Series, Snapshot, Window

_logger = logging.getLogger(__name__)

# A layout in use is marked so once an hour, which is what its retention is counted from.
_LAYOUT_MARK_MS = 3_600_000
_PRUNE_ROWS = 2_000
# What is known of layouts and shapes, at most, and their keys: a key with its labels takes up to a kilobyte.
_LAYOUTS_HELD = 256
_KEYS_HELD = 100_000
# The keys of all layouts that are packed at once, at most; what is beyond waits for the next time.
_KEYS_PACKED = 50_000
# Free pages are given back to the system above this share of the file, so many at a time.
_FREE_SHARE = 0.25
_FREE_PAGES = 256
_FEWEST_FREE_PAGES = 1024
# What no file is: whatever is at the path is another one.
_NO_FILE = (-1, -1)

_DELETE_UNUSED_TARGETS = f"""
DELETE FROM targets WHERE NOT listed
AND NOT EXISTS (SELECT 1 FROM runs WHERE kind = {SCRAPES} AND owner = targets.id)
AND NOT EXISTS (
    SELECT 1 FROM recent_scrapes
    WHERE recent_scrapes.id BETWEEN targets.id << {TIME_BITS} AND ((targets.id + 1) << {TIME_BITS}) - 1
)
"""  # noqa: S608  constants
_DELETE_UNUSED_DEPLOYMENTS = f"""
DELETE FROM deployments WHERE NOT EXISTS (SELECT 1 FROM targets WHERE deployment = deployments.id)
AND NOT EXISTS (SELECT 1 FROM runs WHERE kind = {FIGURES} AND owner = deployments.id)
AND NOT EXISTS (
    SELECT 1 FROM recent_figures
    WHERE recent_figures.id BETWEEN deployments.id << {TIME_BITS} AND ((deployments.id + 1) << {TIME_BITS}) - 1
)
"""  # noqa: S608  constants
_DELETE_UNUSED = (
    _DELETE_UNUSED_TARGETS,
    "DELETE FROM statuses WHERE target NOT IN (SELECT id FROM targets)",
    "DELETE FROM coverages WHERE id NOT IN (SELECT coverage FROM statuses)",
    _DELETE_UNUSED_DEPLOYMENTS,
)

P = ParamSpec("P")
R = TypeVar("R")
K = TypeVar("K", Keys, Shape)


class _Run(NamedTuple):
    id: int
    start_ms: int
    end_ms: int
    shape: int
    stamps: bytes


def _guarded(method: Callable[Concatenate[Store, P], R]) -> Callable[Concatenate[Store, P], R]:
    """One thread at a time, and SQLite's errors as StoreError."""

    @functools.wraps(method)
    def guarded(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            try:
                return method(self, *args, **kwargs)
            except sqlite3.Error as error:
                raise StoreError(f"store {self.path}: {error}", damaged=is_damage(error)) from error

    return guarded


class Store:
    """The figures, scrapes and targets in one file; safe to use from several threads, one at a time.

    With `read_only` the file must exist; any number of processes may read while one writes, and when another file takes
    its place, that one is read. Otherwise it is made when missing, upgraded when an older servescope wrote it, and a
    second writer is refused. Raises StoreError, also for a file that is not a store of ours or was written by a newer
    servescope.
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.path = Path(path)
        self.read_only = read_only
        self._lock = threading.RLock()
        self._writer_lock: IO[bytes] | None = None
        self._closed = False
        self._forget()
        if not read_only:
            self._writer_lock = lock_for_writing(self.path)
        try:
            self._connect()
        except BaseException:
            self._release_writer_lock()
            raise

    @classmethod
    def begin(cls, path: str | os.PathLike[str]) -> Store:
        """The store at a path for writing; when the file there is damaged, it is set aside and a new one begun."""
        try:
            return cls(path)
        except StoreError as error:
            if not error.damaged:
                raise
            _logger.error("%s; it is now %s, and a new store is begun", error, set_aside(Path(path)))  # noqa: TRY400
            return cls(path)

    def close(self) -> None:
        """Close the file; the store is of no use afterwards. May be called twice."""
        with self._lock:
            self._closed = True
            self._connection.close()
            self._release_writer_lock()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_replaced(self) -> bool:
        """Whether the file at the path is not the one that was opened: removed, emptied, or another in its place."""
        return _file_identity(self.path) != self._file

    @_guarded
    def reopen(self) -> None:
        """Open the file that is at the path now, a new one when there is none. Raises StoreError."""
        if self._closed:
            return
        self._disconnect()
        self._forget()
        if not self.read_only:
            # The lock file may have gone with its directory, and then keeps nobody out any more.
            self._release_writer_lock()
            self._writer_lock = lock_for_writing(self.path)
            if self.path.exists() and not _file_size(self.path):
                # Whoever still has an emptied file open would keep a new store from being begun in it.
                set_aside(self.path)
        self._connect()

    @_guarded
    def set_aside(self) -> Path:
        """Close a damaged file and give it another name, which is returned; `reopen` makes a new one."""
        self._disconnect()
        return set_aside(self.path)

    def _connect(self) -> None:
        self._connection, version = open_file(self.path, read_only=self.read_only)
        self._file: tuple[int, int] | None = _file_identity(self.path)
        if version == SCHEMA_VERSION:
            return
        try:
            if self.read_only:
                raise StoreError(
                    f"store {self.path}: written by an older servescope (schema {version}, this one reads "
                    f"{SCHEMA_VERSION}); start `servescope collect` on it once, which upgrades it"
                )
            upgrade(self._connection, self.path, self._write_runs)
        except sqlite3.Error as error:
            self._disconnect()
            raise StoreError(
                f"store {self.path}: cannot be upgraded: {error}; it is as it was", damaged=is_damage(error)
            ) from error
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        """Close the connection; the file counts as replaced until it is opened again, were it the same one."""
        self._connection.close()
        self._file = _NO_FILE

    def _forget(self) -> None:
        """Forget all that was known of the file."""
        self._forget_names()
        self._layout_of_target: dict[str, tuple[tuple[Series, ...], bytes]] = {}
        self._shapes: OrderedDict[int, Shape] = OrderedDict()
        self._layouts: OrderedDict[int, Keys] = OrderedDict()
        # Recent rows by kind and owner, about: what counts is whether there are enough of them for a run.
        self._recent: Counter[tuple[int, int]] | None = None
        self._rows_due: dict[tuple[int, int], int] = {}
        self._due: set[tuple[int, int]] = set()

    def _forget_names(self) -> None:
        """Forget which rows those are that others refer to."""
        self._deployments: dict[Deployment, int] = {}
        self._targets: dict[str, int] = {}
        self._coverage: dict[str, Mapping[str, Mapping[str, str | None]]] = {}
        self._layout_ids: dict[bytes, tuple[int, int]] = {}

    def _release_writer_lock(self) -> None:
        if self._writer_lock is not None:
            self._writer_lock.close()
            self._writer_lock = None

    # --- Writing ------------------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Several appends that become visible, and durable, together; none of them does when one raises."""
        with self._lock:
            self._execute("BEGIN IMMEDIATE")
            try:
                yield
                self._execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        self._forget()
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            # SQLite rolls back by itself when the file fails; what led here is what must be told.
            self._disconnect()
            self._connect()

    @_guarded
    def append_scrape(self, target_id: str, time_ms: int, snapshot: Snapshot | None) -> None:
        """Add one scrape's contract samples, None for a scrape that failed; the same time again replaces it.

        Scrapes may come in any order, those of the past as well. The target must have been given to `set_target`
        before. Raises RefusedError when a value is not finite, or the time is not within 1970 … 2109.
        """
        target = self._target_row(target_id)
        layout, body = None, None
        if snapshot is not None:
            _check_finite(snapshot.values, target_id)
            layout = self._layout_of_series(target_id, snapshot.series, time_ms)
            body = snapshot.values.astype("<f8", copy=False).tobytes()
        self._append(SCRAPES, target, time_ms, layout, body)

    @_guarded
    def append_figures(self, deployment: Deployment, time_ms: int, values: Mapping[str, float]) -> None:
        """Add a deployment's figures at one instant; the same time again replaces them. Values must be finite."""
        keys = sorted(values)
        body = np.array([values[key] for key in keys], dtype="<f8")
        _check_finite(body, deployment.deployment_id)
        row = self._deployment_row(deployment)
        self._append(FIGURES, row, time_ms, self._layout(_text(keys), time_ms), body.tobytes())

    def _append(self, kind: int, owner: int, time_ms: int, layout: int | None, body: bytes | None) -> None:
        self._connection.execute(
            f"INSERT OR REPLACE INTO {RECENT[kind]} VALUES (?, ?, ?)",  # noqa: S608  constants
            (owner << TIME_BITS | _checked_time(time_ms), layout, body),
        )
        if self._recent is not None:
            self._recent[kind, owner] += 1
            self._note_due(kind, owner)

    @_guarded
    def set_target(self, status: TargetStatus) -> None:
        """Keep the latest status of a target, in place of its former one."""
        deployment = self._deployment_row(status.identity.deployment())
        (target,) = self._connection.execute(
            "INSERT INTO targets (target_id, deployment, listed) VALUES (?, ?, 1) "
            "ON CONFLICT (target_id) DO UPDATE SET deployment = excluded.deployment, listed = 1 RETURNING id",
            (status.target_id, deployment),
        ).fetchone()
        self._check_owner(target)
        self._connection.execute(
            "INSERT INTO statuses VALUES (?, ?, 0) ON CONFLICT (target) DO UPDATE SET status = excluded.status",
            (target, _status_fields(status)),
        )
        if self._coverage.get(status.target_id) != status.coverage:
            coverage = self._coverage_row(_text(status.coverage))
            self._connection.execute("UPDATE statuses SET coverage = ? WHERE target = ?", (coverage, target))
            self._coverage[status.target_id] = status.coverage

    def _coverage_row(self, text: str) -> int:
        digest = _digest(text)
        self._connection.execute("INSERT OR IGNORE INTO coverages (digest, text) VALUES (?, ?)", (digest, text))
        (row,) = self._connection.execute("SELECT id FROM coverages WHERE digest = ?", (digest,)).fetchone()
        return int(row)

    @_guarded
    def unlist_targets(self, keep: Iterable[str]) -> None:
        """Have `targets()` show only those of `keep`; the scrapes of the others stay for their retention."""
        kept = set(keep)
        gone = [
            name
            for (name,) in self._connection.execute("SELECT target_id FROM targets WHERE listed")
            if name not in kept
        ]
        self._connection.executemany("UPDATE targets SET listed = 0 WHERE target_id = ?", [(name,) for name in gone])
        for name in gone:
            self._layout_of_target.pop(name, None)

    @_guarded
    def record_settings(self, time_ms: int, settings: RecordedSettings) -> None:
        """Keep how figures are derived from this time on; nothing is written while it stays the same."""
        if self._settings_at(time_ms) != settings:
            self._connection.execute(
                "INSERT OR REPLACE INTO settings VALUES (?, ?)", (_checked_time(time_ms), _text(asdict(settings)))
            )

    # --- Retention ----------------------------------------------------------------------------------------------------

    @_guarded
    def prune(self, before_ms: int, *, rows: int = _PRUNE_ROWS) -> int:
        """Delete what is older than `before_ms`, at most about `rows` figures and scrapes; returns how many went.

        A run goes as a whole once all of it is older. Call it again while it returns `rows` or more.
        """
        gone = 0
        for kind, table in ((FIGURES, "deployments"), (SCRAPES, "targets")):
            for (owner,) in self._connection.execute(f"SELECT id FROM {table}").fetchall():  # noqa: S608  constants
                gone += self._delete_recent(kind, owner, before_ms, rows - gone)
        gone += self._delete_runs("WHERE end_ms < ?", (before_ms,), rows - gone)
        if gone < rows:
            self._delete_unused(before_ms)
            self._delete_spent_keys()
            self._give_back_pages()
        return gone

    @_guarded
    def prune_to_size(self, limit_bytes: int, *, rows: int = _PRUNE_ROWS) -> int:
        """Delete the oldest until the rest fits into `limit_bytes`, at most about `rows`; returns how many went.

        What counts are the pages in use; those set free are used again, so that the file does not outgrow the limit.
        """
        gone = 0
        while gone < rows and self._used_bytes() > limit_bytes:
            former = gone
            gone += self._delete_runs("", (), 1) or self._delete_oldest_recent()
            if gone == former:
                break
            # A target that always shows other series may need more room for their names than for their numbers.
            self._delete_spent_keys()
        return gone

    def size_bytes(self) -> int:
        """The size of the file and of its write-ahead log."""
        return sum(_file_size(Path(f"{self.path}{ending}")) for ending in ("", "-wal"))

    def _used_bytes(self) -> int:
        return (self._pragma("page_count") - self._pragma("freelist_count")) * self._pragma("page_size")

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    def _delete_recent(self, kind: int, owner: int, before_ms: int, rows: int) -> int:
        first = owner << TIME_BITS
        table = RECENT[kind]
        gone = self._connection.execute(
            f"DELETE FROM {table} WHERE id IN "  # noqa: S608  constants
            f"(SELECT id FROM {table} WHERE id >= ? AND id < ? ORDER BY id LIMIT ?)",
            (first, first + min(max(before_ms, 0), LATEST_MS), max(rows, 0)),
        ).rowcount
        if gone and self._recent is not None:
            self._recent[kind, owner] -= gone
        return gone

    def _delete_oldest_recent(self) -> int:
        """Delete the oldest tenth of the time that recent rows cover, when there is nothing else to delete."""
        owners = list(self._count_recent())
        spans = [span for span in (self._recent_span(*owner) for owner in owners) if span is not None]
        if not spans:
            return 0
        first, last = min(start for start, _ in spans), max(end for _, end in spans)
        return sum(self._delete_recent(*owner, first + (last - first) // 10 + 1, 1 << 40) for owner in owners)

    def _recent_span(self, kind: int, owner: int) -> tuple[int, int] | None:
        first = owner << TIME_BITS
        ends = [
            self._connection.execute(
                f"SELECT {end}(id) FROM {RECENT[kind]} WHERE id BETWEEN ? AND ?",  # noqa: S608  constants
                (first, first + LATEST_MS),
            ).fetchone()[0]
            for end in ("min", "max")
        ]
        return None if ends[0] is None else (ends[0] - first, ends[1] - first)

    def _delete_runs(self, where: str, values: tuple[int, ...], rows: int) -> int:
        """Delete the runs that end first, until `rows` are gone; at least one when there are any."""
        if rows <= 0:
            return 0
        gone: int = 0
        oldest = f"SELECT id, count FROM runs {where} ORDER BY end_ms LIMIT 100"  # noqa: S608  constants
        for run, count in self._connection.execute(oldest, values).fetchall():
            self._delete_run(run)
            gone += int(count)
            if gone >= rows:
                break
        return gone

    def _delete_run(self, run: int) -> None:
        first = run << CHUNK_BITS
        self._connection.execute("DELETE FROM chunks WHERE id BETWEEN ? AND ?", (first, first + (1 << CHUNK_BITS) - 1))
        self._connection.execute("DELETE FROM runs WHERE id = ?", (run,))

    def _delete_unused(self, before_ms: int) -> None:
        """Delete the targets, deployments and settings that nothing refers to any more."""
        gone = sum(self._connection.execute(statement).rowcount for statement in _DELETE_UNUSED)
        # The settings that hold at the start of what is kept began before it.
        self._connection.execute(
            "DELETE FROM settings WHERE time_ms < (SELECT max(time_ms) FROM settings WHERE time_ms <= ?)", (before_ms,)
        )
        if gone:
            self._forget_names()
        # Targets that left are not counted any more.
        counted = self._count_recent()
        self._recent = Counter({owner: count for owner, count in counted.items() if count > 0})
        self._rows_due = {owner: rows for owner, rows in self._rows_due.items() if owner in self._recent}

    def _delete_spent_keys(self) -> None:
        """Delete the layouts that were last used before the oldest recent row, the shapes before the oldest run."""
        spans = [self._recent_span(*owner) for owner in self._count_recent()]
        oldest_row = min((span[0] for span in spans if span is not None), default=LATEST_MS)
        (oldest_run,) = self._connection.execute("SELECT min(end_ms) FROM runs").fetchone()
        # No run ends after the last use of its shape; a row may be of up to a mark after that of its layout.
        self._connection.execute("DELETE FROM shapes WHERE used_ms < ?", (oldest_run or LATEST_MS,))
        before_ms = oldest_row - _LAYOUT_MARK_MS
        if self._connection.execute("DELETE FROM layouts WHERE used_ms < ?", (before_ms,)).rowcount:
            self._layout_ids = {digest: known for digest, known in self._layout_ids.items() if known[1] >= before_ms}

    def _give_back_pages(self) -> None:
        free = self._pragma("freelist_count")
        if free > max(_FEWEST_FREE_PAGES, _FREE_SHARE * self._pragma("page_count")):
            for _ in range(_FREE_PAGES):
                # Of the pages that this pragma is asked for it frees one a step, and a cursor takes one step only.
                self._connection.execute("PRAGMA incremental_vacuum(1)")

    # --- Packing ------------------------------------------------------------------------------------------------------

    @_guarded
    def pack_due(self) -> bool:
        """Pack the rows of one target, or deployment, that has enough of them for a run; False when none has."""
        self._count_recent()
        if not self._due:
            return False
        kind, owner = self._due.pop()
        with self.transaction():
            self._pack_oldest(kind, owner)
        return True

    @_guarded
    def pack_idle(self, before_ms: int) -> bool:
        """Pack the rows of one target, or deployment, that got none since `before_ms`; False when none has any."""
        for (kind, owner), count in self._count_recent().items():
            span = self._recent_span(kind, owner) if count else None
            if span is not None and span[1] < before_ms:
                with self.transaction():
                    self._pack_oldest(kind, owner)
                return True
        return False

    def _count_recent(self) -> Counter[tuple[int, int]]:
        if self._recent is None:
            self._recent = Counter()
            for kind, table in RECENT.items():
                counted = f"SELECT id >> {TIME_BITS}, count(*) FROM {table} GROUP BY 1"  # noqa: S608  constants
                for owner, count in self._connection.execute(counted).fetchall():
                    self._recent[kind, owner] = count
                    self._note_due(kind, owner)
        return self._recent

    def _note_due(self, kind: int, owner: int) -> None:
        """Remember whether the rows of an owner are enough for a run; each one's first run has its own length, lest all
        come at once.
        """
        count = self._recent[kind, owner] if self._recent is not None else 0
        if count < RUN_ROWS // 2:
            return
        if (kind, owner) not in self._rows_due:
            any_run = "SELECT 1 FROM runs WHERE kind = ? AND owner = ? LIMIT 1"
            has_run = self._connection.execute(any_run, (kind, owner)).fetchone()
            self._rows_due[kind, owner] = RUN_ROWS if has_run else RUN_ROWS // 2 + owner * 37 % (RUN_ROWS // 2)
        if count >= self._rows_due[kind, owner]:
            self._due.add((kind, owner))

    def _pack_oldest(self, kind: int, owner: int) -> None:
        """Turn the oldest recent rows into runs: those before the next run, or those within one and it together."""
        rows = self._rows_to_pack(kind, owner)
        if rows:
            first = rows[0].time_ms
            around = self._runs(kind, owner, first, first)
            if around:
                taken = self._merge(kind, owner, rows, around[0])
            else:
                taken = rows_until_gap(rows, self._next_run_start(kind, owner, first))
                self._write_runs(kind, owner, taken)
            self._delete_recent(kind, owner, taken[-1].time_ms + 1, len(taken))
        if self._recent is not None:
            counted = self._connection.execute(
                f"SELECT count(*) FROM {RECENT[kind]} WHERE id BETWEEN ? AND ?",  # noqa: S608  constants
                (owner << TIME_BITS, owner << TIME_BITS | LATEST_MS),
            ).fetchone()[0]
            self._recent[kind, owner] = counted
        self._rows_due[kind, owner] = RUN_ROWS
        self._note_due(kind, owner)

    def _rows_to_pack(self, kind: int, owner: int) -> list[Row]:
        """The oldest recent rows, at most as many as make a run, and fewer where each shows other series.

        Damaged ones would keep the others from ever being packed, and are given up.
        """
        rows: list[Row] = []
        layouts: dict[int, Keys] = {}
        damaged: list[tuple[int]] = []
        for key, layout, body in self._recent_rows(kind, owner, 0, LATEST_MS, RUN_ROWS):
            if rows and layout not in layouts and sum(map(len, layouts.values())) > _KEYS_PACKED:
                break
            try:
                rows.append(self._row(key - (owner << TIME_BITS), layout, body, layouts))
            except StoreError as error:
                if not damaged:
                    _logger.error("%s; it is given up, and others that are damaged as well", error)  # noqa: TRY400
                damaged.append((key,))
        self._connection.executemany(f"DELETE FROM {RECENT[kind]} WHERE id = ?", damaged)  # noqa: S608  constants
        return rows

    def _merge(self, kind: int, owner: int, rows: Sequence[Row], run: _Run) -> list[Row]:
        """Write a run anew with the rows that lie within it; where both have an instant, the later word counts."""
        taken = [row for row in rows if row.time_ms <= run.end_ms]
        try:
            former = self._unpack(run)
        except StoreError as error:
            if error.damaged:
                raise
            # Nobody can read it as it is; left there it would keep these rows from ever being packed.
            _logger.error("%s; it is given up, and what came for its time takes its place", error)  # noqa: TRY400
            former = []
        merged = {row.time_ms: row for row in (*former, *taken)}
        self._delete_run(run.id)
        self._write_runs(kind, owner, [merged[time_ms] for time_ms in sorted(merged)])
        return taken

    def _next_run_start(self, kind: int, owner: int, after_ms: int) -> int:
        (start,) = self._connection.execute(
            "SELECT min(start_ms) FROM runs WHERE kind = ? AND owner = ? AND start_ms > ?", (kind, owner, after_ms)
        ).fetchone()
        return LATEST_MS + 1 if start is None else int(start)

    def _write_runs(self, kind: int, owner: int, rows: Sequence[Row]) -> None:
        for part in divide_rows(rows):
            self._write_run(kind, owner, part)

    def _write_run(self, kind: int, owner: int, rows: Sequence[Row]) -> None:
        layouts = list({id(row.keys): row.keys for row in rows if row.keys is not None}.values())
        shape = make_shape(layouts)
        packed = pack(shape, rows, layouts)
        start_ms, end_ms = rows[0].time_ms, rows[-1].time_ms
        (run,) = self._connection.execute(
            "INSERT INTO runs (kind, owner, start_ms, end_ms, count, shape, stamps) VALUES (?, ?, ?, ?, ?, ?, ?) "
            "RETURNING id",
            (kind, owner, start_ms, end_ms, len(rows), self._keys_row("shapes", shape.text(), end_ms), packed.stamps),
        ).fetchone()
        self._connection.executemany(
            "INSERT INTO chunks VALUES (?, ?)",
            ((run << CHUNK_BITS | number, body) for number, body in enumerate(packed.chunks)),
        )

    def _unpack(self, run: _Run) -> list[Row]:
        """The rows of a run, as they were appended."""
        shape = self._shape(run.shape)
        times, layouts = self._stamps(run)
        values = np.empty((len(shape.keys), len(times)))
        for number, places in enumerate(shape.chunks):
            values[places] = self._chunk(run, number, (len(places), len(times)))
        keys = {layout: shape.layout_keys(layout) for layout in set(layouts.tolist()) if layout != FAILED}
        return [
            Row(time_ms, None, None)
            if layout == FAILED
            else Row(time_ms, keys[layout], values[shape.layouts[layout], column])
            for column, (time_ms, layout) in enumerate(zip(times.tolist(), layouts.tolist(), strict=True))
        ]

    # --- Rows that others refer to ------------------------------------------------------------------------------------

    def _deployment_row(self, deployment: Deployment) -> int:
        if deployment not in self._deployments:
            labels = _labels_text(deployment)
            self._connection.execute("INSERT OR IGNORE INTO deployments (labels) VALUES (?)", (labels,))
            (row,) = self._connection.execute("SELECT id FROM deployments WHERE labels = ?", (labels,)).fetchone()
            self._check_owner(row)
            self._deployments[deployment] = row
        return self._deployments[deployment]

    def _check_owner(self, row: int) -> None:
        if row > LAST_OWNER:
            raise RefusedError(f"store {self.path}: it holds {row} targets or deployments, of at most {LAST_OWNER}")

    def _target_row(self, target_id: str) -> int:
        if target_id not in self._targets:
            found = self._connection.execute("SELECT id FROM targets WHERE target_id = ?", (target_id,)).fetchone()
            if found is None:
                raise RefusedError(f"store {self.path}: unknown target {target_id!r}; set_target comes first")
            self._targets[target_id] = found[0]
        return self._targets[target_id]

    def _layout_of_series(self, target_id: str, series: tuple[Series, ...], time_ms: int) -> int:
        former = self._layout_of_target.get(target_id)
        if former is None or former[0] is not series:
            text = _text(series)
            self._layout_of_target[target_id] = (series, _digest(text))
            return self._layout(text, time_ms)
        known = self._layout_ids.get(former[1])
        if known is not None and time_ms - known[1] < _LAYOUT_MARK_MS:
            return known[0]
        return self._layout(_text(series), time_ms)

    def _layout(self, keys: str, time_ms: int) -> int:
        digest = _digest(keys)
        known = self._layout_ids.get(digest)
        if known is None or time_ms - known[1] >= _LAYOUT_MARK_MS:
            known = (self._keys_row("layouts", keys, _checked_time(time_ms)), time_ms)
            self._layout_ids[digest] = known
        return known[0]

    def _keys_row(self, table: str, keys: str, used_ms: int) -> int:
        digest = _digest(keys)
        row = self._connection.execute(
            f"UPDATE {table} SET used_ms = max(used_ms, ?) WHERE digest = ? RETURNING id",  # noqa: S608  constants
            (used_ms, digest),
        ).fetchone()
        if row is None:
            row = self._connection.execute(
                f"INSERT INTO {table} (digest, used_ms, keys) VALUES (?, ?, ?) RETURNING id",  # noqa: S608  constants
                (digest, used_ms, zlib.compress(keys.encode(), 6)),
            ).fetchone()
        return int(row[0])

    # --- Reading ------------------------------------------------------------------------------------------------------

    @_guarded
    def deployments(self) -> list[Deployment]:
        """Every deployment seen within retention, sorted."""
        with self._snapshot():
            rows = self._connection.execute("SELECT labels FROM deployments").fetchall()
        return sorted(_deployment(labels) for (labels,) in rows)

    @_guarded
    def latest_figures(self) -> dict[Deployment, tuple[int, dict[str, float]]]:
        """Each deployment's last instant, in milliseconds, and its figures then."""
        latest = {}
        with self._snapshot():
            for owner, labels in self._connection.execute("SELECT id, labels FROM deployments").fetchall():
                row = self._latest_row(FIGURES, owner)
                if row is not None and row.values is not None:
                    keys = map(str, row.keys or ())
                    latest[_deployment(labels)] = (row.time_ms, dict(zip(keys, row.values.tolist(), strict=True)))
        return latest

    def _latest_row(self, kind: int, owner: int) -> Row | None:
        span = self._recent_span(kind, owner)
        # Runs of one owner do not overlap: the last to begin is the last to end.
        found = self._connection.execute(
            "SELECT end_ms FROM runs WHERE kind = ? AND owner = ? ORDER BY start_ms DESC LIMIT 1", (kind, owner)
        ).fetchone()
        last = None if found is None else int(found[0])
        if span is not None and (last is None or span[1] >= last):
            return next(self._rows(kind, owner, span[1], span[1]))
        return None if last is None else self._unpack(self._runs(kind, owner, last, last)[-1])[-1]

    @_guarded
    def read_figures(
        self,
        deployment: Deployment,
        start_ms: int,
        end_ms: int,
        *,
        names: Sequence[str] | None = None,
        max_points: int | None = None,
    ) -> FigureTable:
        """A deployment's figures from start to end, both included; empty when nothing was stored.

        `names` are figure keys, all when None. With `max_points` the time is cut into at most so many equal buckets, of
        each of which the last instant is taken: a ratio is never averaged.
        """
        width = None if max_points is None else _bucket_width(end_ms - start_ms, max_points)
        wanted = None if names is None else frozenset(names)
        with self._snapshot():
            owner = self._find_deployment(deployment)
            segments = [] if owner is None else self._segments(FIGURES, owner, start_ms, end_ms, wanted, {})
        keys, times, values = assemble(segments)
        if width is not None and len(times):
            # Buckets are multiples of their width, so that a picture does not change shape while its range moves on.
            buckets = times // width
            last = np.flatnonzero(np.append(buckets[1:] != buckets[:-1], True))
            times, values = times[last], values[:, last]
        rows = {str(key): row for key, row in zip(keys, values, strict=True)}
        if names is None:
            # A key that is absent at every instant taken is not shown: it belongs to the others.
            return FigureTable(times, {key: rows[key] for key in sorted(rows) if not np.isnan(rows[key]).all()})
        return FigureTable(times, {name: rows.get(name, np.full(len(times), np.nan)) for name in names})

    @_guarded
    def targets(self) -> list[TargetStatus]:
        """The latest status of every target of the running configuration, by target id."""
        with self._snapshot():
            rows = self._connection.execute(
                "SELECT target_id, status, text FROM targets JOIN statuses ON target = targets.id "
                "LEFT JOIN coverages ON coverages.id = coverage WHERE listed ORDER BY target_id"
            ).fetchall()
        return [_status(target_id, status, coverage or "{}") for target_id, status, coverage in rows]

    @_guarded
    def read_samples(self, deployment: Deployment, names: Sequence[str], start_ms: int, end_ms: int) -> list[Window]:
        """The stored scrapes of a deployment from start to end, both included: one window per target that has any.

        `names` are contract metrics; a histogram's stands for its buckets, sum and count. Series stay native, before
        any sum; failed scrapes are columns of NaN.
        """
        wanted = sample_names(names)
        picked: dict[int, Picked] = {}
        windows = []
        with self._snapshot():
            owner = self._find_deployment(deployment)
            targets = self._connection.execute(
                "SELECT id FROM targets WHERE deployment = ? ORDER BY target_id", (owner,)
            )
            for (target,) in targets.fetchall():
                segments = self._segments(SCRAPES, target, start_ms, end_ms, wanted, picked)
                keys, times, values = assemble(segments)
                windows.append(Window(tuple(key for key in keys if isinstance(key, Series)), times, values))
        return [window for window in windows if len(window.times)]

    @_guarded
    def read_scrapes(self, target_id: str, start_ms: int, end_ms: int) -> list[tuple[int, Snapshot | None]]:
        """A target's scrapes from start to end, both included, as they were appended; none for an unknown target."""
        known: dict[Keys, tuple[Series, ...]] = {}
        scrapes: dict[int, Snapshot | None] = {}
        with self._snapshot():
            found = self._connection.execute("SELECT id FROM targets WHERE target_id = ?", (target_id,)).fetchone()
            rows: list[Row] = []
            if found:
                for run in self._runs(SCRAPES, found[0], start_ms, end_ms):
                    rows += (row for row in self._unpack(run) if start_ms <= row.time_ms <= end_ms)
                rows += self._rows(SCRAPES, found[0], start_ms, end_ms)
        latest: tuple[Keys, tuple[Series, ...]] = ((), ())
        for row in rows:
            if row.keys is None or row.values is None:
                scrapes[row.time_ms] = None
                continue
            if row.keys is not latest[0]:
                series = tuple(key for key in row.keys if isinstance(key, Series))
                latest = (row.keys, known.setdefault(row.keys, series))
            scrapes[row.time_ms] = Snapshot(latest[1], row.values)
        return sorted(scrapes.items())

    @_guarded
    def time_range(self) -> tuple[int, int] | None:
        """When the first and the last figures are from, in milliseconds; None when there are none."""
        with self._snapshot():
            ends = self._ends(FIGURES)
        return (min(ends), max(ends)) if ends else None

    @_guarded
    def held_range(self) -> tuple[int, int] | None:
        """When the first and the last of all that it holds are from: figures, and scrapes, which a shard has alone."""
        with self._snapshot():
            ends = [*self._ends(FIGURES), *self._ends(SCRAPES)]
        return (min(ends), max(ends)) if ends else None

    def _ends(self, kind: int) -> list[int]:
        """Instants among which are the first and the last of a kind."""
        ends: list[int] = []
        owners = "deployments" if kind == FIGURES else "targets"
        for (owner,) in self._connection.execute(f"SELECT id FROM {owners}").fetchall():  # noqa: S608  constants
            ends += self._recent_span(kind, owner) or ()
        packed = self._connection.execute("SELECT min(start_ms), max(end_ms) FROM runs WHERE kind = ?", (kind,))
        return [*ends, *(end for end in packed.fetchone() if end is not None)]

    @_guarded
    def settings_at(self, time_ms: int) -> RecordedSettings | None:
        """How the figures of a time were derived; the first known when it is older, None when nothing is known."""
        with self._snapshot():
            return self._settings_at(time_ms) or self._first_settings()

    def _settings_at(self, time_ms: int) -> RecordedSettings | None:
        found = self._connection.execute(
            "SELECT settings FROM settings WHERE time_ms <= ? ORDER BY time_ms DESC LIMIT 1", (time_ms,)
        ).fetchone()
        return RecordedSettings(**json.loads(found[0])) if found else None

    def _first_settings(self) -> RecordedSettings | None:
        found = self._connection.execute("SELECT settings FROM settings ORDER BY time_ms LIMIT 1").fetchone()
        return RecordedSettings(**json.loads(found[0])) if found else None

    def _segments(
        self,
        kind: int,
        owner: int,
        start_ms: int,
        end_ms: int,
        wanted: frozenset[str] | None,
        picked: dict[int, Picked],
    ) -> list[Segment]:
        """What is stored of an owner from start to end: its runs, then its recent rows, which win.

        `wanted` are the names, or figure keys, to read, all when None; `picked` keeps by shape which those are.
        """
        segments = [
            self._read_run(run, start_ms, end_ms, wanted, picked) for run in self._runs(kind, owner, start_ms, end_ms)
        ]
        return segments + self._read_recent(kind, owner, start_ms, end_ms, wanted)

    def _runs(self, kind: int, owner: int, start_ms: int, end_ms: int) -> list[_Run]:
        rows = self._connection.execute(
            "SELECT id, start_ms, end_ms, shape, stamps FROM runs "
            "WHERE kind = ? AND owner = ? AND start_ms <= ? AND end_ms >= ? ORDER BY start_ms",
            (kind, owner, _clamped(end_ms), _clamped(start_ms)),
        )
        return [_Run(*row) for row in rows]

    def _read_run(
        self, run: _Run, start_ms: int, end_ms: int, wanted: frozenset[str] | None, picked: dict[int, Picked]
    ) -> Segment:
        shape = self._shape(run.shape)
        if run.shape not in picked:
            picked[run.shape] = pick(shape, wanted)
        of_shape = picked[run.shape]
        times, layouts = self._stamps(run)
        blocks = [
            self._chunk(run, number, (len(shape.chunks[number]), len(times)))[rows] for number, rows in of_shape.chunks
        ]
        values = np.concatenate(blocks)[of_shape.order] if blocks else np.empty((0, len(times)))
        for layout in np.unique(layouts).tolist():
            if layout == FAILED:
                values[:, layouts == FAILED] = np.nan
            elif (absent := shape.absent(layout)) is not None:
                values[np.ix_(absent[of_shape.places], layouts == layout)] = np.nan
        if run.start_ms < start_ms or run.end_ms > end_ms:
            inside = (times >= start_ms) & (times <= end_ms)
            times, values = times[inside], values[:, inside]
        return Segment(times, of_shape.keys, values)

    def _read_recent(
        self, kind: int, owner: int, start_ms: int, end_ms: int, wanted: frozenset[str] | None
    ) -> list[Segment]:
        first = owner << TIME_BITS
        rows = self._recent_rows(kind, owner, start_ms, end_ms)
        segments = []
        for layout, group in groupby(rows, key=lambda row: row[1]):
            stretch = list(group)
            times = np.array([key - first for key, _, _ in stretch], dtype=np.int64)
            if layout is None:
                segments.append(Segment(times, (), np.empty((0, len(stretch)))))
                continue
            keys = self._layout_keys(layout)
            places = wanted_places(keys, wanted)
            stacked = np.stack([self._numbers(key - first, body, keys) for key, _, body in stretch])
            segments.append(Segment(times, tuple(keys[place] for place in places.tolist()), stacked[:, places].T))
        return segments

    def _rows(self, kind: int, owner: int, start_ms: int, end_ms: int, most: int = -1) -> Iterator[Row]:
        """The recent rows of an owner, ascending; those of one layout share their keys."""
        layouts: dict[int, Keys] = {}
        for key, layout, body in self._recent_rows(kind, owner, start_ms, end_ms, most):
            yield self._row(key - (owner << TIME_BITS), layout, body, layouts)

    def _row(self, time_ms: int, layout: int | None, body: bytes, layouts: dict[int, Keys]) -> Row:
        if layout is None:
            return Row(time_ms, None, None)
        if layout not in layouts:
            layouts[layout] = self._layout_keys(layout)
        return Row(time_ms, layouts[layout], self._numbers(time_ms, body, layouts[layout]))

    def _numbers(self, time_ms: int, body: bytes | None, keys: Keys) -> NDArray[np.float64]:
        if body is None or len(body) != 8 * len(keys):
            raise StoreError(f"store {self.path}: the row of time {time_ms} is damaged: it has not {len(keys)} numbers")
        return np.frombuffer(body, "<f8")

    def _recent_rows(
        self, kind: int, owner: int, start_ms: int, end_ms: int, most: int = -1
    ) -> list[tuple[int, int | None, bytes]]:
        first = owner << TIME_BITS
        if end_ms < 0 or start_ms > LATEST_MS:
            return []
        return self._connection.execute(
            f"SELECT id, layout, body FROM {RECENT[kind]} WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?",  # noqa: S608
            (first + _clamped(start_ms), first + _clamped(end_ms), most),
        ).fetchall()

    def _find_deployment(self, deployment: Deployment) -> int | None:
        found = self._connection.execute(
            "SELECT id FROM deployments WHERE labels = ?", (_labels_text(deployment),)
        ).fetchone()
        return None if found is None else int(found[0])

    def _layout_keys(self, row: int) -> Keys:
        return _held(self._layouts, row, lambda: tuple(map(parse_key, json.loads(self._keys_text("layouts", row)))))

    def _shape(self, row: int) -> Shape:
        return _held(self._shapes, row, lambda: Shape.parse(self._keys_text("shapes", row)))

    def _keys_text(self, table: str, row: int) -> str:
        found = self._connection.execute(f"SELECT keys FROM {table} WHERE id = ?", (row,)).fetchone()  # noqa: S608
        try:
            return zlib.decompress(found[0]).decode()
        except (TypeError, ValueError, zlib.error) as error:
            raise StoreError(f"store {self.path}: row {row} of {table} is damaged: {error}") from error

    def _stamps(self, run: _Run) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
        try:
            return decode_stamps(run.stamps)
        except StoreError as error:
            raise StoreError(f"store {self.path}: run {run.id}: {error}") from error

    def _chunk(self, run: _Run, number: int, shape: tuple[int, int]) -> Matrix:
        found = self._connection.execute(
            "SELECT body FROM chunks WHERE id = ?", (run.id << CHUNK_BITS | number,)
        ).fetchone()
        try:
            values = decode_block(found[0] if found else b"")
        except StoreError as error:
            raise StoreError(f"store {self.path}: run {run.id}, chunk {number}: {error}") from error
        if values.shape != shape:
            raise StoreError(f"store {self.path}: run {run.id}, chunk {number} holds {values.shape}, expected {shape}")
        return values

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Several reads that see the same state of the file, the one at the path now."""
        if self.read_only and not self._connection_is_current():
            self.reopen()
        if self._connection.in_transaction:
            yield
            return
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            # Ends a transaction that only read; when reading failed, SQLite may have ended it.
            self._end_reading()

    def _end_reading(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")

    def _connection_is_current(self) -> bool:
        return self._closed or not self.is_replaced()

    @_guarded
    def _execute(self, statement: str) -> None:
        self._connection.execute(statement)


def _file_identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    # SQLite meets an emptied file only when it next reads a page that it does not hold, which may be never.
    return (found.st_dev, found.st_ino) if found.st_size else None


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _held(held: OrderedDict[int, K], row: int, read: Callable[[], K]) -> K:
    """What is held for a row, read when it is not there; rows are never numbered twice, and the oldest give way."""
    if row not in held:
        held[row] = read()
        while len(held) > 1 and (len(held) > _LAYOUTS_HELD or sum(map(_count_keys, held.values())) > _KEYS_HELD):
            held.popitem(last=False)
    return held[row]


def _count_keys(known: Keys | Shape) -> int:
    return len(known.keys if isinstance(known, Shape) else known)


def _clamped(time_ms: int) -> int:
    return min(max(time_ms, 0), LATEST_MS)


def _checked_time(time_ms: int) -> int:
    if not 0 <= time_ms <= LATEST_MS:
        raise RefusedError(f"the time {time_ms!r} ms cannot be stored, expected 0 … {LATEST_MS}")
    return time_ms


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _check_finite(values: NDArray[np.float64], whose: str) -> None:
    if not np.isfinite(values).all():
        raise RefusedError(f"a value of {whose!r} is not finite; absent values are left out instead")


def _bucket_width(span_ms: int, max_points: int) -> int:
    """The width of a bucket in milliseconds; a range that starts inside one touches one more than fit into it."""
    if max_points < 1:
        raise StoreError(f"max_points {max_points!r} is below 1")
    return max(span_ms, 0) // max(max_points - 1, 1) + 1 if max_points > 1 else 1 << TIME_BITS


def _labels_text(deployment: Deployment) -> str:
    return _text({name: getattr(deployment, name) for name in DEPLOYMENT_LABELS})


def _deployment(labels: str) -> Deployment:
    return Deployment(**json.loads(labels))


def _status_fields(status: TargetStatus) -> str:
    return _text(
        {
            "url": status.url,
            "identity": {name: getattr(status.identity, name) for name in IDENTITY_LABELS},
            "source": status.source,
            "versions": status.versions,
            "healthy": status.healthy,
            "last_scrape_ms": status.last_scrape_ms,
            "last_success_ms": status.last_success_ms,
            "duration_seconds": status.duration_seconds,
            "samples": status.samples,
            "error": status.error,
            "warnings": status.warnings,
            "missing_metrics": status.missing_metrics,
        }
    )


def _status(target_id: str, status: str, coverage: str) -> TargetStatus:
    fields: dict[str, Any] = json.loads(status)
    identity = Identity(**fields.pop("identity"))
    return TargetStatus(target_id=target_id, identity=identity, coverage=json.loads(coverage), **fields)
