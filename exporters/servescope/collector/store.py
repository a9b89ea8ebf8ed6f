"""The embedded store: figures, translated scrapes and the health of targets, in one SQLite file.

One process writes, any number read meanwhile (WAL). Every stored number is finite; what was absent is not in the row.

deployments   the labels of each deployment
targets       each target's identity, latest status and coverage; `listed` is 0 once it left the configuration
layouts       what the numbers of a row are, in order: figure keys, or series; stored once per distinct list
figures       one row per deployment and evaluation: float64, little-endian, in the order of its layout
scrapes       one row per target and scrape: the samples compressed (`_pack`), no layout when the scrape failed
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import logging
import os
import queue
import sqlite3
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import IO, Any, Concatenate, Final, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from servescope.catalog import METRICS
from servescope.errors import ServescopeError
from servescope.identity import DEPLOYMENT_LABELS, IDENTITY_LABELS, Deployment, Identity
from servescope.samples import Series, Snapshot, Window

_logger = logging.getLogger(__name__)

APPLICATION_ID: Final = 0x53565343  # "SVSC"
SCHEMA_VERSION: Final = 1
_PAGE_BYTES = 16384
_BUSY_SECONDS = 5.0
# A layout in use is marked so once an hour, which is what its retention is counted from.
_LAYOUT_MARK_MS = 3_600_000
_PRUNE_ROWS = 2_000
# A scrape's key is its target and its time in one number, so that a target's scrapes lie together on large pages.
_TIME_BITS = 44

_SCHEMA = """
CREATE TABLE deployments (id INTEGER PRIMARY KEY AUTOINCREMENT, labels TEXT NOT NULL UNIQUE);
CREATE TABLE targets (
    id INTEGER PRIMARY KEY AUTOINCREMENT, target_id TEXT NOT NULL UNIQUE, deployment INTEGER NOT NULL,
    listed INTEGER NOT NULL, status TEXT NOT NULL, coverage TEXT NOT NULL
);
CREATE TABLE layouts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE, used_ms INTEGER NOT NULL, keys BLOB NOT NULL
);
CREATE TABLE figures (
    deployment INTEGER NOT NULL, time_ms INTEGER NOT NULL, layout INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (deployment, time_ms)
) WITHOUT ROWID;
CREATE TABLE scrapes (id INTEGER PRIMARY KEY, layout INTEGER, body BLOB);
"""

_DELETE_UNUSED_TARGETS = f"""
DELETE FROM targets WHERE NOT listed AND NOT EXISTS (
    SELECT 1 FROM scrapes
    WHERE scrapes.id BETWEEN targets.id << {_TIME_BITS} AND ((targets.id + 1) << {_TIME_BITS}) - 1
)
"""  # noqa: S608  a constant
_DELETE_UNUSED_DEPLOYMENTS = """
DELETE FROM deployments WHERE NOT EXISTS (SELECT 1 FROM figures WHERE deployment = deployments.id)
AND NOT EXISTS (SELECT 1 FROM targets WHERE deployment = deployments.id)
"""

P = ParamSpec("P")
R = TypeVar("R")


class StoreError(ServescopeError):
    """The store cannot be opened, read or written; the text names the file."""


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """The latest health of one target; times in milliseconds, None before there is one.

    `source` and `versions` are "" until it is identified; `coverage` says per contract metric its `status`, `native`
    name and `reason`, None where there is none. `warnings` say what is wrong with a text that could be read;
    `missing_metrics` are those that were there before, with the native series that fed them.
    """

    target_id: str
    url: str
    identity: Identity
    source: str
    versions: str
    healthy: bool
    last_scrape_ms: int | None
    last_success_ms: int | None
    duration_seconds: float | None
    samples: int
    error: str | None
    coverage: dict[str, dict[str, str | None]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    missing_metrics: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class FigureTable:
    """Figures over time: `times` in milliseconds, ascending; one array per figure key, NaN where it was absent."""

    times: NDArray[np.int64]
    values: dict[str, NDArray[np.float64]]


def _guarded(method: Callable[Concatenate[Store, P], R]) -> Callable[Concatenate[Store, P], R]:
    """One thread at a time, and SQLite's errors as StoreError."""

    @functools.wraps(method)
    def guarded(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            try:
                return method(self, *args, **kwargs)
            except sqlite3.Error as error:
                raise StoreError(f"store {self.path}: {error}") from error

    return guarded


class Store:
    """The figures, scrapes and targets in one file; safe to use from several threads, one at a time.

    With `read_only` the file must exist; any number of processes may read while one writes. Otherwise it is made when
    missing, and a second writer is refused. Raises StoreError, also for a file that is not a store of ours or was
    written by a newer servescope.
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.path = Path(path)
        self.read_only = read_only
        self._lock = threading.RLock()
        self._writer_lock: IO[bytes] | None = None
        self._deployments: dict[Deployment, int] = {}
        self._targets: dict[str, int] = {}
        self._coverage: dict[str, Mapping[str, Mapping[str, str | None]]] = {}
        self._layout_ids: dict[bytes, tuple[int, int]] = {}
        self._layout_of_target: dict[str, tuple[tuple[Series, ...], bytes]] = {}
        if not read_only:
            self._writer_lock = _lock_for_writing(self.path)
        try:
            self._connection = _open(self.path, read_only=read_only)
        except StoreError:
            self._release_writer_lock()
            raise

    def close(self) -> None:
        """Close the file; the store is of no use afterwards. May be called twice."""
        with self._lock:
            self._connection.close()
            self._release_writer_lock()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
                if self._connection.in_transaction:
                    self._execute("ROLLBACK")
                self._forget_cached()
                raise

    @_guarded
    def append_scrape(self, target_id: str, time_ms: int, snapshot: Snapshot | None) -> None:
        """Add one scrape's contract samples, None for a scrape that failed; the same time again replaces it.

        The target must have been given to `set_target` before. Raises StoreError when a value is not finite.
        """
        target = self._target_row(target_id)
        layout, body = None, None
        if snapshot is not None:
            _check_finite(snapshot.values, target_id)
            layout = self._layout_of_series(target_id, snapshot.series, time_ms)
            body = _pack(snapshot.values.astype("<f8", copy=False))
        self._connection.execute(
            "INSERT OR REPLACE INTO scrapes VALUES (?, ?, ?)", (target << _TIME_BITS | time_ms, layout, body)
        )

    @_guarded
    def append_figures(self, deployment: Deployment, time_ms: int, values: Mapping[str, float]) -> None:
        """Add a deployment's figures at one instant; the same time again replaces them. Values must be finite."""
        keys = sorted(values)
        body = np.array([values[key] for key in keys], dtype="<f8")
        _check_finite(body, deployment.deployment_id)
        self._connection.execute(
            "INSERT OR REPLACE INTO figures VALUES (?, ?, ?, ?)",
            (self._deployment_row(deployment), time_ms, self._layout(_text(keys), time_ms), body.tobytes()),
        )

    @_guarded
    def set_target(self, status: TargetStatus) -> None:
        """Keep the latest status of a target, in place of its former one."""
        deployment = self._deployment_row(status.identity.deployment())
        fields = _status_fields(status)
        self._connection.execute(
            "INSERT INTO targets (target_id, deployment, listed, status, coverage) VALUES (?, ?, 1, ?, '{}') "
            "ON CONFLICT (target_id) "
            "DO UPDATE SET deployment = excluded.deployment, listed = 1, status = excluded.status",
            (status.target_id, deployment, fields),
        )
        if self._coverage.get(status.target_id) != status.coverage:
            self._connection.execute(
                "UPDATE targets SET coverage = ? WHERE target_id = ?", (_text(status.coverage), status.target_id)
            )
            self._coverage[status.target_id] = status.coverage

    @_guarded
    def unlist_targets(self, keep: Sequence[str]) -> None:
        """Have `targets()` show only those of `keep`; the scrapes of the others stay for their retention."""
        kept = set(keep)
        gone = [
            name
            for (name,) in self._connection.execute("SELECT target_id FROM targets WHERE listed")
            if name not in kept
        ]
        self._connection.executemany("UPDATE targets SET listed = 0 WHERE target_id = ?", [(name,) for name in gone])

    @_guarded
    def prune(self, before_ms: int, *, rows: int = _PRUNE_ROWS) -> int:
        """Delete what is older than `before_ms`, at most about `rows` figures and scrapes; returns how many went.

        Call it again while it returns `rows` or more.
        """
        gone = 0
        for (deployment,) in self._connection.execute("SELECT id FROM deployments").fetchall():
            gone += self._delete_figures(deployment, before_ms, rows - gone)
        for (target,) in self._connection.execute("SELECT id FROM targets").fetchall():
            gone += self._delete_scrapes(target, before_ms, rows - gone)
        if gone < rows:
            self._delete_unused(before_ms)
        return gone

    def _delete_figures(self, deployment: int, before_ms: int, rows: int) -> int:
        return self._connection.execute(
            "DELETE FROM figures WHERE deployment = ?1 AND time_ms IN "
            "(SELECT time_ms FROM figures WHERE deployment = ?1 AND time_ms < ?2 ORDER BY time_ms LIMIT ?3)",
            (deployment, before_ms, max(rows, 0)),
        ).rowcount

    def _delete_scrapes(self, target: int, before_ms: int, rows: int) -> int:
        first = target << _TIME_BITS
        return self._connection.execute(
            "DELETE FROM scrapes WHERE id IN (SELECT id FROM scrapes WHERE id >= ? AND id < ? ORDER BY id LIMIT ?)",
            (first, first + max(before_ms, 0), max(rows, 0)),
        ).rowcount

    def _delete_unused(self, before_ms: int) -> None:
        """Delete the targets, deployments and layouts that nothing refers to any more."""
        gone = 0
        for statement, values in (
            (_DELETE_UNUSED_TARGETS, ()),
            (_DELETE_UNUSED_DEPLOYMENTS, ()),
            ("DELETE FROM layouts WHERE used_ms < ?", (before_ms - _LAYOUT_MARK_MS,)),
        ):
            gone += self._connection.execute(statement, values).rowcount
        if gone:
            self._forget_cached()

    def _forget_cached(self) -> None:
        self._deployments.clear()
        self._targets.clear()
        self._coverage.clear()
        self._layout_ids.clear()

    def _deployment_row(self, deployment: Deployment) -> int:
        if deployment not in self._deployments:
            labels = _text({name: getattr(deployment, name) for name in DEPLOYMENT_LABELS})
            self._connection.execute("INSERT OR IGNORE INTO deployments (labels) VALUES (?)", (labels,))
            (row,) = self._connection.execute("SELECT id FROM deployments WHERE labels = ?", (labels,)).fetchone()
            self._deployments[deployment] = row
        return self._deployments[deployment]

    def _target_row(self, target_id: str) -> int:
        if target_id not in self._targets:
            found = self._connection.execute("SELECT id FROM targets WHERE target_id = ?", (target_id,)).fetchone()
            if found is None:
                raise StoreError(f"store {self.path}: unknown target {target_id!r}; set_target comes first")
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
            known = (self._mark_layout(digest, keys, time_ms), time_ms)
            self._layout_ids[digest] = known
        return known[0]

    def _mark_layout(self, digest: bytes, keys: str, time_ms: int) -> int:
        row = self._connection.execute(
            "UPDATE layouts SET used_ms = max(used_ms, ?) WHERE digest = ? RETURNING id", (time_ms, digest)
        ).fetchone()
        if row is None:
            row = self._connection.execute(
                "INSERT INTO layouts (digest, used_ms, keys) VALUES (?, ?, ?) RETURNING id",
                (digest, time_ms, zlib.compress(keys.encode(), 6)),
            ).fetchone()
        return int(row[0])

    # --- Reading ------------------------------------------------------------------------------------------------------

    @_guarded
    def deployments(self) -> list[Deployment]:
        """Every deployment seen within retention, sorted."""
        return sorted(_deployment(labels) for (labels,) in self._connection.execute("SELECT labels FROM deployments"))

    @_guarded
    def latest_figures(self) -> dict[Deployment, tuple[int, dict[str, float]]]:
        """Each deployment's last instant, in milliseconds, and its figures then."""
        latest = {}
        with self._snapshot():
            for row, labels in self._connection.execute("SELECT id, labels FROM deployments").fetchall():
                found = self._connection.execute(
                    "SELECT time_ms, layout, body FROM figures WHERE deployment = ? ORDER BY time_ms DESC LIMIT 1",
                    (row,),
                ).fetchone()
                if found is not None:
                    time_ms, layout, body = found
                    keys = self._keys(layout)
                    latest[_deployment(labels)] = (
                        time_ms,
                        dict(zip(keys, np.frombuffer(body, "<f8").tolist(), strict=True)),
                    )
        return latest

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
        with self._snapshot():
            rows = self._figure_rows(deployment, start_ms, end_ms, max_points)
            layouts = {layout: self._keys(layout) for layout in {row[1] for row in rows}}
        times = np.array([row[0] for row in rows], dtype=np.int64)
        wanted = names if names is not None else sorted({key for keys in layouts.values() for key in keys})
        values = {key: np.full(len(rows), np.nan) for key in wanted}
        for layout, first, last in _runs(rows):
            keys = layouts[layout]
            body = np.frombuffer(b"".join(row[2] for row in rows[first:last]), "<f8").reshape(last - first, len(keys))
            for column, key in enumerate(keys):
                if key in values:
                    values[key][first:last] = body[:, column]
        return FigureTable(times, values)

    def _figure_rows(
        self, deployment: Deployment, start_ms: int, end_ms: int, max_points: int | None
    ) -> list[tuple[int, int, bytes]]:
        row = self._find_deployment(deployment)
        if row is None or end_ms < start_ms:
            return []
        where = "FROM figures WHERE deployment = ? AND time_ms BETWEEN ? AND ?"
        if max_points is None:
            query = f"SELECT time_ms, layout, body {where} ORDER BY time_ms"
            return self._connection.execute(query, (row, start_ms, end_ms)).fetchall()
        # Buckets are multiples of their width, so that a picture does not change shape while its range moves on; the
        # other columns are those of the row with max(time_ms): https://www.sqlite.org/lang_select.html#bareagg
        width = _bucket_width(end_ms - start_ms, max_points)
        query = f"SELECT max(time_ms), layout, body {where} GROUP BY time_ms / ? ORDER BY time_ms / ?"
        return self._connection.execute(query, (row, start_ms, end_ms, width, width)).fetchall()

    @_guarded
    def targets(self) -> list[TargetStatus]:
        """The latest status of every target of the running configuration, by target id."""
        rows = self._connection.execute(
            "SELECT target_id, status, coverage FROM targets WHERE listed ORDER BY target_id"
        ).fetchall()
        return [_status(target_id, status, coverage) for target_id, status, coverage in rows]

    @_guarded
    def read_samples(self, deployment: Deployment, names: Sequence[str], start_ms: int, end_ms: int) -> list[Window]:
        """The stored scrapes of a deployment from start to end, both included: one window per target that has any.

        `names` are contract metrics; a histogram's stands for its buckets, sum and count. Series stay native, before
        any sum; failed scrapes are columns of NaN.
        """
        wanted = _sample_names(names)
        with self._snapshot():
            row = self._find_deployment(deployment)
            targets = self._connection.execute("SELECT id FROM targets WHERE deployment = ? ORDER BY target_id", (row,))
            windows = [self._read_window(target, wanted, start_ms, end_ms) for (target,) in targets.fetchall()]
        return [window for window in windows if len(window.times)]

    @_guarded
    def read_scrapes(self, target_id: str, start_ms: int, end_ms: int) -> list[tuple[int, Snapshot | None]]:
        """A target's scrapes from start to end, both included, as they were appended; none for an unknown target."""
        with self._snapshot():
            found = self._connection.execute("SELECT id FROM targets WHERE target_id = ?", (target_id,)).fetchone()
            rows = self._scrape_rows(found[0], start_ms, end_ms) if found else []
            layouts = {layout: tuple(self._series(layout)) for layout in {row[1] for row in rows} if layout is not None}
        return [
            (time_ms, None if layout is None else Snapshot(layouts[layout], _unpack(body)))
            for time_ms, layout, body in rows
        ]

    @_guarded
    def time_range(self) -> tuple[int, int] | None:
        """When the first and the last figures are from, in milliseconds; None when there are none."""
        ends: list[int] = []
        with self._snapshot():
            for (row,) in self._connection.execute("SELECT id FROM deployments").fetchall():
                # One end per query: each is then a single look-up in the primary key.
                for end in ("min", "max"):
                    query = f"SELECT {end}(time_ms) FROM figures WHERE deployment = ?"  # noqa: S608  a constant
                    ends += [time_ms for (time_ms,) in self._connection.execute(query, (row,)) if time_ms is not None]
        return (min(ends), max(ends)) if ends else None

    def _read_window(self, target: int, wanted: frozenset[str], start_ms: int, end_ms: int) -> Window:
        rows = self._scrape_rows(target, start_ms, end_ms)
        columns: dict[Series, int] = {}
        layouts: dict[int, tuple[NDArray[np.intp], NDArray[np.intp]]] = {}
        for layout in dict.fromkeys(row[1] for row in rows if row[1] is not None):
            picked = [(index, series) for index, series in enumerate(self._series(layout)) if series.name in wanted]
            placed = [columns.setdefault(series, len(columns)) for _, series in picked]
            layouts[layout] = np.array([i for i, _ in picked], dtype=np.intp), np.array(placed, dtype=np.intp)
        values = np.full((len(columns), len(rows)), np.nan)
        for column, (_, row_layout, body) in enumerate(rows):
            if row_layout is not None:
                picked_rows, placed_rows = layouts[row_layout]
                values[placed_rows, column] = _unpack(body)[picked_rows]
        return Window(tuple(columns), np.array([row[0] for row in rows], dtype=np.int64), values)

    def _scrape_rows(self, target: int, start_ms: int, end_ms: int) -> list[tuple[int, int | None, bytes]]:
        first = target << _TIME_BITS
        latest = min(end_ms, (1 << _TIME_BITS) - 1)
        rows = self._connection.execute(
            "SELECT id, layout, body FROM scrapes WHERE id BETWEEN ? AND ? ORDER BY id",
            (first + max(start_ms, 0), first + latest),
        )
        return [(key - first, layout, body) for key, layout, body in rows]

    def _find_deployment(self, deployment: Deployment) -> int | None:
        labels = _text({name: getattr(deployment, name) for name in DEPLOYMENT_LABELS})
        found = self._connection.execute("SELECT id FROM deployments WHERE labels = ?", (labels,)).fetchone()
        return None if found is None else int(found[0])

    def _keys(self, layout: int) -> list[str]:
        return [str(key) for key in self._read_layout(layout)]

    def _series(self, layout: int) -> list[Series]:
        return [
            Series(name, tuple((key, value) for key, value in labels)) for name, labels in self._read_layout(layout)
        ]

    def _read_layout(self, layout: int) -> list[Any]:
        (keys,) = self._connection.execute("SELECT keys FROM layouts WHERE id = ?", (layout,)).fetchone()
        decoded: list[Any] = json.loads(zlib.decompress(keys))
        return decoded

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Several reads that see the same state of the file."""
        if self._connection.in_transaction:
            yield
            return
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    @_guarded
    def _execute(self, statement: str) -> None:
        self._connection.execute(statement)


@dataclass(slots=True)
class Round:
    """What one evaluation adds to the store."""

    scrapes: list[tuple[str, int, Snapshot | None]] = field(default_factory=list)
    figures: list[tuple[Deployment, int, Mapping[str, float]]] = field(default_factory=list)
    targets: list[TargetStatus] = field(default_factory=list)
    prune_before_ms: int | None = None

    def write(self, store: Store) -> None:
        """Write all of it in one transaction, then prune a little."""
        with store.transaction():
            for status in self.targets:
                store.set_target(status)
            store.unlist_targets([status.target_id for status in self.targets])
            for target_id, time_ms, snapshot in self.scrapes:
                store.append_scrape(target_id, time_ms, snapshot)
            for deployment, time_ms, values in self.figures:
                store.append_figures(deployment, time_ms, values)
        if self.prune_before_ms is not None:
            with store.transaction():
                store.prune(self.prune_before_ms)


class StoreWriter:
    """Writes rounds in a thread of its own, so that a slow disk delays no scrape.

    A round that cannot be written waits, with at most `backlog` others, and is tried again with the next; beyond that
    the oldest is given up, as is one that no store could take. While a write hangs, at most `backlog` more are taken.
    `on_written(seconds)`, `on_error(error)` and `on_dropped(round)` may be called from any thread.
    """

    def __init__(
        self,
        store: Store,
        *,
        on_written: Callable[[float], None],
        on_error: Callable[[StoreError], None],
        on_dropped: Callable[[Round], None],
        backlog: int = 40,
    ) -> None:
        self._store = store
        self._on_written, self._on_error, self._on_dropped = on_written, on_error, on_dropped
        self._backlog = backlog
        self._arrived: queue.SimpleQueue[Round | None] = queue.SimpleQueue()
        self._waiting: deque[Round] = deque()
        self._thread = threading.Thread(target=self._run, name="servescope-store", daemon=True)
        self._thread.start()

    def submit(self, round_: Round) -> None:
        """Have a round written; returns at once."""
        if self._arrived.qsize() < self._backlog:
            self._arrived.put(round_)
        else:
            self._on_dropped(round_)

    def backlog(self) -> int:
        """The rounds that wait to be written now, about."""
        return self._arrived.qsize() + len(self._waiting)

    def close(self, timeout_seconds: float = 5.0) -> bool:
        """Write what waits, then end the thread and close the store; False when that took longer than the timeout."""
        self._arrived.put(None)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (arrived := self._arrived.get()) is not None:
            self._waiting.append(arrived)
            while len(self._waiting) > self._backlog:
                self._on_dropped(self._waiting.popleft())
            self._write_waiting()
        self._write_waiting()
        for lost in self._waiting:
            self._on_dropped(lost)
        self._store.close()

    def _write_waiting(self) -> None:
        while self._waiting:
            started = time.perf_counter()
            try:
                self._waiting[0].write(self._store)
            except StoreError as error:
                self._on_error(error)
                return
            except Exception as error:
                # Not the store's fault, so that trying again is of no use; the rounds behind it shall be written.
                _logger.exception("a round could not be stored")
                self._on_error(StoreError(f"store {self._store.path}: {type(error).__name__}: {error}"))
                self._on_dropped(self._waiting.popleft())
                continue
            self._waiting.popleft()
            self._on_written(time.perf_counter() - started)


def _lock_for_writing(path: Path) -> IO[bytes]:
    """Hold the store's lock file for this process's life; raises StoreError when another one does.

    The kernel lets go of it when the process ends, however it ends. The database itself must not be locked so: closing
    any descriptor of it would drop SQLite's own locks (https://www.sqlite.org/howtocorrupt.html, section 2.2).
    """
    try:
        lock = Path(f"{path}-lock").open("a+b")  # noqa: SIM115  held open on purpose
    except OSError as error:
        raise StoreError(f"store {path}: cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.read(32).decode(errors="replace").strip() or "unknown"
        lock.close()
        raise StoreError(
            f"store {path}: another collector (process {holder}) is writing it; one store has one writer"
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n".encode())
    lock.flush()
    return lock


def _open(path: Path, *, read_only: bool) -> sqlite3.Connection:
    if read_only and not path.exists():
        raise StoreError(f"no store at {str(path)!r}; a running `servescope collect` makes one")
    mode = "ro" if read_only else "rwc"
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=_BUSY_SECONDS,
        )
    except sqlite3.Error as error:
        raise StoreError(f"store {path}: cannot be opened: {error}") from error
    try:
        _prepare(connection, path, read_only=read_only)
    except sqlite3.Error as error:
        connection.close()
        raise StoreError(f"store {path}: cannot be used as a store: {error}") from error
    except StoreError:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, *, read_only: bool) -> None:
    """Check that the file is ours and of a version we know; make the tables of a new one."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID and (tables or application or version):
        raise StoreError(f"store {path}: the file belongs to another program (application id {application})")
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"store {path}: written by a newer servescope (schema {version}, this one knows up to {SCHEMA_VERSION})"
        )
    if application != APPLICATION_ID and read_only:
        raise StoreError(f"store {path}: the file is empty; a running `servescope collect` fills it")
    if application != APPLICATION_ID:
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(
            f"BEGIN; {_SCHEMA} "
            f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
        )
    # The last commits may be lost when power fails, never the file; a commit then costs no wait for the disk.
    connection.execute("PRAGMA synchronous = NORMAL")


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _check_finite(values: NDArray[np.float64], whose: str) -> None:
    if not np.isfinite(values).all():
        raise StoreError(f"a value of {whose!r} is not finite; absent values are left out instead")


def _pack(values: NDArray[np.float64]) -> bytes:
    """The values compressed: neighbours XORed, which zeroes repeated buckets; bytes grouped by place; deflated."""
    bits = values.view("<u8").copy()
    bits[1:] ^= values.view("<u8")[:-1]
    return zlib.compress(bits.view(np.uint8).reshape(len(values), 8).T.tobytes(), 6)


def _unpack(body: bytes) -> NDArray[np.float64]:
    planes = np.frombuffer(zlib.decompress(body), dtype=np.uint8)
    bits = np.ascontiguousarray(planes.reshape(8, len(planes) // 8).T).view("<u8").ravel()
    return np.bitwise_xor.accumulate(bits).view("<f8")


def _runs(rows: Sequence[tuple[int, int, bytes]]) -> Iterator[tuple[int, int, int]]:
    """Stretches of rows with the same layout: (layout, first, one past the last)."""
    first = 0
    for layout, run in groupby(rows, key=lambda row: row[1]):
        last = first + sum(1 for _ in run)
        yield layout, first, last
        first = last


def _bucket_width(span_ms: int, max_points: int) -> int:
    """The width of a bucket in milliseconds; a range that starts inside one touches one more than fit into it."""
    if max_points < 1:
        raise StoreError(f"max_points {max_points!r} is below 1")
    return span_ms // max(max_points - 1, 1) + 1 if max_points > 1 else 1 << _TIME_BITS


def _sample_names(names: Sequence[str]) -> frozenset[str]:
    wanted = set(names)
    for name in names:
        if name in METRICS and METRICS[name].kind == "histogram":
            wanted |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return frozenset(wanted)


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
    fields = json.loads(status)
    identity = Identity(**fields.pop("identity"))
    return TargetStatus(target_id=target_id, identity=identity, coverage=json.loads(coverage), **fields)
