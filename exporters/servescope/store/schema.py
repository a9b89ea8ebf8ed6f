"""The file: its tables, how it is opened, who may write it.

deployments      the labels of each deployment
targets          each target's identity; `listed` is 0 once it left the configuration
statuses         each target's latest status, and its coverage, which nearly all targets of one kind share
layouts          what the numbers of a recent row are, in order: figure keys, or series; once per distinct list
recent_scrapes   one row per target and scrape: float64, little-endian, in the order of its layout; none when it failed
recent_figures   one row per deployment and evaluation, likewise
runs             stretches of up to `RUN_ROWS` former rows of one target, or deployment, packed; no two of one overlap
shapes           what the numbers of a run are (`packing.Shape`); once per distinct one
chunks           the packed numbers of a run, a few series over all its instants each (`codec.encode_block`)
settings         how figures were derived, from when on
sums             per instant, what the counters of objectives had counted by then (`alerts.Memory`)
alerts           every alert that is pending, firing, or was resolved lately
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import sqlite3
import time
from pathlib import Path
from typing import IO, Final

from servescope.store.records import RefusedError, StoreError

APPLICATION_ID: Final = 0x53565343  # "SVSC"
SCHEMA_VERSION: Final = 3
BUSY_SECONDS: Final = 5.0
# A row's key is its target, or deployment, and its time in one number, so that those of one lie together on pages.
TIME_BITS: Final = 42
LATEST_MS: Final = (1 << TIME_BITS) - 1
"""The last time that can be stored, in the year 2109."""
LAST_OWNER: Final = (1 << (63 - TIME_BITS)) - 1
# Chunks are appended in the order they are made, so that pages are full: those of a run follow one another.
CHUNK_BITS: Final = 16
SCRAPES, FIGURES = 0, 1
"""What a run holds."""
RECENT: Final = {SCRAPES: "recent_scrapes", FIGURES: "recent_figures"}

_PAGE_BYTES = 16384
# The log is cut back to this after a long reader held it up.
_LOG_BYTES = 64 * 1024 * 1024

TABLES: Final = (
    "CREATE TABLE deployments (id INTEGER PRIMARY KEY, labels TEXT NOT NULL UNIQUE)",
    "CREATE TABLE targets (id INTEGER PRIMARY KEY, target_id TEXT NOT NULL UNIQUE, deployment INTEGER NOT NULL, "
    "listed INTEGER NOT NULL)",
    "CREATE TABLE statuses (target INTEGER PRIMARY KEY, status TEXT NOT NULL, coverage INTEGER NOT NULL)",
    "CREATE TABLE coverages (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, text TEXT NOT NULL)",
    "CREATE TABLE layouts (id INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE, "
    "used_ms INTEGER NOT NULL, keys BLOB NOT NULL)",
    "CREATE TABLE shapes (id INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE, "
    "used_ms INTEGER NOT NULL, keys BLOB NOT NULL)",
    "CREATE TABLE recent_scrapes (id INTEGER PRIMARY KEY, layout INTEGER, body BLOB)",
    "CREATE TABLE recent_figures (id INTEGER PRIMARY KEY, layout INTEGER NOT NULL, body BLOB NOT NULL)",
    "CREATE TABLE runs (id INTEGER PRIMARY KEY AUTOINCREMENT, kind INTEGER NOT NULL, owner INTEGER NOT NULL, "
    "start_ms INTEGER NOT NULL, end_ms INTEGER NOT NULL, count INTEGER NOT NULL, shape INTEGER NOT NULL, "
    "stamps BLOB NOT NULL)",
    "CREATE INDEX runs_of_owner ON runs (kind, owner, start_ms)",
    "CREATE INDEX runs_by_end ON runs (end_ms)",
    "CREATE TABLE chunks (id INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE TABLE settings (time_ms INTEGER PRIMARY KEY, settings TEXT NOT NULL)",
    "CREATE TABLE sums (time_ms INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE TABLE alerts (alert TEXT NOT NULL, labels TEXT NOT NULL, state TEXT NOT NULL)",
)


def lock_for_writing(path: Path) -> IO[bytes]:
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
    try:
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n".encode())
        lock.flush()
    except OSError as error:  # a disk that has no room for a few bytes
        lock.close()
        raise StoreError(f"store {path}: cannot be written: {error.strerror}") from error
    return lock


def open_file(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """A connection to the store, its tables made when the file is new.

    Raises StoreError for a missing file that shall be read only, a foreign file and one of another schema version.
    """
    if read_only and not path.exists():
        raise StoreError(f"no store at {str(path)!r}; a running `servescope collect` makes one")
    mode = "ro" if read_only else "rwc"
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=BUSY_SECONDS,
        )
    except sqlite3.Error as error:
        raise StoreError(f"store {path}: cannot be opened: {error}") from error
    try:
        _prepare(connection, path, read_only=read_only)
    except sqlite3.Error as error:
        connection.close()
        # A file that is no database at all may be anything of anyone's; one that is, and is ours, is a damaged store.
        raise StoreError(
            f"store {path}: cannot be used as a store: {error}", damaged=is_damage(error, of_ours=True)
        ) from error
    except StoreError:
        connection.close()
        raise
    return connection


def set_aside(path: Path) -> Path:
    """Give a damaged store, with its log, a name that tells when that was; returns the name. Raises StoreError."""
    first = Path(f"{path}.corrupt-{time.strftime('%Y%m%dT%H%M%S')}")
    names = (first if not number else Path(f"{first}-{number}") for number in itertools.count())
    aside = next(name for name in names if not name.exists())
    try:
        for ending in ("", "-wal", "-shm"):
            if Path(f"{path}{ending}").exists():
                Path(f"{path}{ending}").rename(f"{aside}{ending}")
    except OSError as error:
        raise StoreError(f"store {path}: cannot be set aside: {error.strerror}") from error
    return aside


def is_damage(error: sqlite3.Error, *, of_ours: bool = False) -> bool:
    """Whether SQLite met a file that is not as it was written; with `of_ours`, one whose head is still readable."""
    # Extended codes have the primary one in their lowest byte: https://www.sqlite.org/rescode.html
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code == sqlite3.SQLITE_CORRUPT or (code == sqlite3.SQLITE_NOTADB and not of_ours)


def checked_time(time_ms: int) -> int:
    """A time that can be stored; raises RefusedError for any other."""
    if not 0 <= time_ms <= LATEST_MS:
        raise RefusedError(f"the time {time_ms!r} ms cannot be stored, expected 0 … {LATEST_MS}")
    return time_ms


def clamped_time(time_ms: int) -> int:
    """The nearest time that can be stored, for the ends of what is read."""
    return min(max(time_ms, 0), LATEST_MS)


def write_text(value: object) -> str:
    """A value as it is stored, the same text for the same value."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(text: str) -> bytes:
    """By what a text is found again that is stored once."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _prepare(connection: sqlite3.Connection, path: Path, *, read_only: bool) -> None:
    """Check that the file is ours and of this schema version; make the tables of a new one."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID and (tables or application or version):
        raise StoreError(f"store {path}: the file belongs to another program (application id {application})")
    if application and version != SCHEMA_VERSION:
        raise StoreError(
            f"store {path}: has schema version {version}, this servescope expects {SCHEMA_VERSION}; "
            "open it with the servescope that wrote it, or give another path for a new store"
        )
    if application != APPLICATION_ID and read_only:
        raise StoreError(f"store {path}: the file is empty; a running `servescope collect` fills it")
    if application != APPLICATION_ID:
        _make_tables(connection)
    if read_only:
        return
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
    # The last commits may be lost when power fails, never the file; a commit then costs no wait for the disk.
    connection.execute("PRAGMA synchronous = NORMAL")


def _make_tables(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    # So that the file can give room back when retention is lowered; must be said before there is any table.
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(
        f"BEGIN; {'; '.join(TABLES)}; "
        f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
    )
