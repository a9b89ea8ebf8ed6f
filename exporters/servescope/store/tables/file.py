"""The store's file: whether it is ours, which process may write it, and what happens to a damaged one."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import sqlite3
import stat
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from servescope.store.records import StoreError, StorePathError
from servescope.store.schema import APPLICATION_ID, SCHEMA_VERSION, TABLES

BUSY_SECONDS: Final = 5.0

_PAGE_BYTES = 16384
# The log is truncated to this after a long reader held it up.
_LOG_BYTES = 64 * 1024 * 1024
# SQLite needs this much room beside the file before it can read a store: the index of the write-ahead log.
_LOG_INDEX_BYTES = 32 * 1024
# On a full or failing disk the next try may succeed.
_DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_DISK_CODES = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})


def resolve_links(path: str | os.PathLike[str], *, what: str = "store") -> Path:
    """The file that a path leads to now, through symbolic links; the path itself where it has none.

    SQLite keeps the write-ahead log beside that file, and so must be the lock. Raises StorePathError for links in a
    circle, and for a file of several names (hard links): by each it would have another log and another lock
    (https://www.sqlite.org/howtocorrupt.html, section 2.5).
    """
    real = os.path.realpath(path)
    try:
        found = os.stat(real)  # noqa: PTH116  of a path as it is
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise StorePathError(f"{what} {str(path)!r} is a symbolic link that leads in a circle") from error
    else:
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            raise StorePathError(
                f"{what} {str(path)!r} has {found.st_nlink} names (hard links), by each of which it would have another "
                f"log and another lock: remove the others, or give a copy (`cp`)"
            )
    return Path(path) if real == os.path.abspath(path) else Path(real)  # noqa: PTH100  not resolved


def lock_for_writing(path: Path, *, what: str = "store", writer: str = "collector") -> int:
    """The descriptor of the locked lock file of a store, or `what` it is. Raises StoreError when another has the lock.

    The kernel releases the lock when the process ends, however it ends. The database itself must not be locked so:
    closing any descriptor of it would drop SQLite's own locks (https://www.sqlite.org/howtocorrupt.html, section 2.2).
    """
    try:
        lock = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise _cannot_be_written(path, error, what) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise StoreError(
            f"{what} {path}: another {writer} (process {holder}) is writing it; one {what} has one writer"
        ) from None
    except OSError as error:
        os.close(lock)
        raise _cannot_be_written(path, error, what) from error
    # The process number only serves the message above; a full disk without room for it must not prevent the lock.
    with suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def is_locked_for_writing(path: Path) -> bool:
    """Whether a process has the lock of `lock_for_writing`; raises StoreError."""
    try:
        lock = os.open(f"{path}-lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _cannot_be_written(path, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def check_file(path: Path) -> None:
    """Raise StoreError when the file at the path, if any, is not a store of ours or has another schema version.

    Raises StorePathError for a directory and anything else that is not a regular file. Neither a lock nor a log is
    created beside the file.
    """
    try:
        found = path.stat()
        # SQLite reports a directory like a failing disk, and waits for who writes a FIFO.
        if not stat.S_ISREG(found.st_mode):
            kind = "a directory" if stat.S_ISDIR(found.st_mode) else "not a regular file"
            raise StorePathError(f"store {str(path)!r} is {kind}, expected a collector's file")
        if not found.st_size:
            return
        with closing(_connect(path, "mode=ro&immutable=1")) as connection:
            _check_application(connection, path)
    except OSError:
        return  # opening it says what is wrong
    except sqlite3.Error as error:
        if not is_damage(error, of_ours=True):
            raise describe(path, error, opening=True) from error


def open_file(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """A connection to the store; the tables of a new file are created.

    Raises StoreError for a missing file that shall be read only, a foreign file and one of another schema version.
    """
    if read_only and not path.exists():
        raise StorePathError(f"no store at {str(path)!r}; a running `servescope collect` makes one")
    try:
        connection = _connect(path, "mode=ro" if read_only else "mode=rwc")
    except sqlite3.Error as error:
        raise StoreError(f"store {path}: cannot be opened: {error}") from error
    try:
        _prepare(connection, path, read_only=read_only)
    except sqlite3.Error as error:
        connection.close()
        raise describe(path, error, opening=True) from error
    except StoreError:
        connection.close()
        raise
    return connection


def set_aside(path: Path) -> Path:
    """Rename a damaged store, with its log, to a name with the time; returns the name. Raises StoreError."""
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


def remove_file(path: Path) -> None:
    """Remove a file of a store, if it is there. Raises StoreError."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_be_written(path, error) from error


def replace_by_copy(connection: sqlite3.Connection, path: Path) -> None:
    """Write all that a connection reads to a new file and move it to the path. Raises StoreError, sqlite3.Error."""
    copy = Path(f"{path}-copy")
    try:
        copy.unlink(missing_ok=True)
        with closing(sqlite3.connect(copy)) as target:
            connection.backup(target)
        # What is left of the former log belongs to the former file.
        for ending in ("-wal", "-shm"):
            Path(f"{path}{ending}").unlink(missing_ok=True)
        copy.replace(path)
    except OSError as error:
        raise _cannot_be_written(path, error) from error
    finally:
        with suppress(OSError):
            copy.unlink(missing_ok=True)


def describe(path: Path, error: sqlite3.Error, *, opening: bool = False) -> StoreError:
    """SQLite's error as a StoreError; `opening` when it occurred before the file was known to be a store."""
    reason = str(error)
    if _primary_code(error) == sqlite3.SQLITE_IOERR and not _has_room(path):
        reason = f"{reason}: {os.strerror(errno.ENOSPC)}"
    if opening:
        reason = f"cannot be used as a store: {reason}"
    # A file that is no database at all may be anything of anyone's; one that is, and is ours, is a damaged store.
    kind = StorePathError if opening and _primary_code(error) == sqlite3.SQLITE_NOTADB else StoreError
    return kind(
        f"store {path}: {reason}",
        damaged=is_damage(error, of_ours=opening),
        retryable=_primary_code(error) in _DISK_CODES,
    )


def is_damage(error: sqlite3.Error, *, of_ours: bool = False) -> bool:
    """Whether SQLite met a file that is not as it was written; with `of_ours`, one whose head is still readable."""
    code = _primary_code(error)
    return code == sqlite3.SQLITE_CORRUPT or (code == sqlite3.SQLITE_NOTADB and not of_ours)


def file_identity(path: str | Path) -> tuple[int, int] | None:
    """What distinguishes the file at a path from others there before and after it; None when there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116  of a path with an ending
    except OSError:
        return None
    return found.st_dev, found.st_ino


def file_size(path: str | Path) -> int:
    """The size in bytes; 0 when there is no file."""
    try:
        return os.stat(path).st_size  # noqa: PTH116  of a path with an ending
    except OSError:
        return 0


def _connect(path: Path, parameters: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{parameters}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_SECONDS,
    )


def _prepare(connection: sqlite3.Connection, path: Path, *, read_only: bool) -> None:
    """Check that the file is ours and of this schema version; create the tables of a new one."""
    application = _check_application(connection, path)
    if application != APPLICATION_ID and read_only:
        raise StoreError(f"store {path}: the file is empty; a running `servescope collect` fills it")
    if application != APPLICATION_ID:
        _make_tables(connection)
    if read_only:
        return
    # A copy of a store is not in this mode yet.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
    # The last commits may be lost when power fails, never the file; a commit then costs no wait for the disk.
    connection.execute("PRAGMA synchronous = NORMAL")


def _check_application(connection: sqlite3.Connection, path: Path) -> int:
    """The application id, 0 of an empty file; raises StoreError when the file is not ours or of another version."""
    application, version, tables = read_identity(connection)
    if application != APPLICATION_ID and (tables or application or version):
        raise StorePathError(f"store {path}: the file belongs to another program (application id {application})")
    if application and version != SCHEMA_VERSION:
        raise StoreError(
            f"store {path}: has schema version {version}, this servescope expects {SCHEMA_VERSION}; "
            "open it with the servescope that wrote it, or give another path for a new store"
        )
    return application


def read_identity(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """The application id, the version and the number of tables of a file; zeros while it is new.

    They are read by one statement, as another process may make the tables between two.
    """
    application, version, tables = connection.execute(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema) "
        "FROM pragma_application_id, pragma_user_version"
    ).fetchone()
    return application, version, tables


def _make_tables(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    # So that the file can shrink when retention is lowered; must be set before there is any table.
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(
        f"BEGIN; {'; '.join(TABLES)}; "
        f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
    )


def _cannot_be_written(path: Path, error: OSError, what: str = "store") -> StoreError:
    return StoreError(f"{what} {path}: cannot be written: {error.strerror}", retryable=error.errno in _DISK_ERRNOS)


def _primary_code(error: sqlite3.Error) -> int:
    # Extended codes have the primary one in their lowest byte: https://www.sqlite.org/rescode.html
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _has_room(path: Path) -> bool:
    """Whether the file system of a path has room for SQLite to work; true where it cannot say."""
    try:
        found = os.statvfs(path.absolute().parent)
    except OSError:
        return True
    return found.f_bavail * found.f_frsize > _LOG_INDEX_BYTES
