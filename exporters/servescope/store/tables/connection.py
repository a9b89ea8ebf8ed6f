"""One open store: the connection to its file, its transactions, and what happens when the file is replaced."""

from __future__ import annotations

import functools
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

from servescope.settings.closing import Closing
from servescope.store.records import StoreError
from servescope.store.schema import latest_ms
from servescope.store.tables import file

_logger = logging.getLogger(__name__)

_LOG_ENDINGS = ("-wal", "-shm")
# No file has this identity: whatever is at the path is another one.
_NO_FILE = (-1, -1)

S = TypeVar("S", bound="StoreConnection")
P = ParamSpec("P")
R = TypeVar("R")


def guarded(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Run a method of a store in one thread at a time, and raise SQLite's errors as StoreError."""

    @functools.wraps(method)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            try:
                return method(self, *args, **kwargs)
            except sqlite3.Error as error:
                raise file.describe(self.path, error) from error

    return run


class StoreConnection(Closing):
    """The connection of a `Store` to its file; see there.

    `now_ms` is the clock, in milliseconds. `was_open` says whether it ever had a file. `_forget` is called whenever
    another file, or another state of it, may be read from then on.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        opened: bool = True,
        now_ms: Callable[[], int] = latest_ms,
    ) -> None:
        self.path = file.resolve_links(path)
        self.read_only = read_only
        self.now_ms = now_ms
        self._lock = threading.RLock()
        self._writer_lock: int | None = None
        self._closed = False
        self.was_open = False
        # Until there is a file: a connection that is closed.
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._file: tuple[int, int] | None
        self._log: list[tuple[int, int] | None]
        self._log_bytes = 0
        self._disconnect()
        if opened:
            self._open()

    @classmethod
    def begin(cls, path: str | os.PathLike[str]) -> Self:
        """The store at a path for a StoreWriter: it always starts, unless the path itself is wrong.

        A damaged file is set aside and a new one begun. On a full or failing disk the store is returned unopened; the
        writer opens it as soon as that succeeds.
        """
        store = cls(path, opened=False)
        try:
            store._open()
        except StoreError as error:
            if error.damaged:
                _logger.error("%s; it is now %s, and a new store is begun", error, file.set_aside(store.path))  # noqa: TRY400
                store._open()
            elif error.retryable:
                _logger.error("%s; what is scraped waits to be stored", error)  # noqa: TRY400
            else:
                raise
        return store

    def close(self) -> None:
        """Close the file; the store is of no use afterwards. May be called twice."""
        with self._lock:
            self._closed = True
            self._connection.close()
            self._release_writer_lock()

    # --- Opening and replacing the file -------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether it has a file open, were it another one than that at the path now."""
        return self._file is not _NO_FILE

    def is_replaced(self) -> bool:
        """Whether the file at the path is not the one that was opened: removed, emptied, or another in its place.

        So is a symbolic link: the log of the file it leads to lies elsewhere.
        """
        # SQLite meets an emptied file only when it next reads a page that it does not hold, which may be never.
        return not file.file_size(self.path) or file.file_identity(self.path) != self._file or self.path.is_symlink()

    def lacks_log(self) -> bool:
        """Whether the write-ahead log was removed or replaced, so that other processes no longer share it."""
        log = self._log_files()
        return log != self._log or None in log

    def has_shorter_log(self) -> bool:
        """Whether the write-ahead log is shorter than when this was last asked; it may have been truncated in use."""
        former, self._log_bytes = self._log_bytes, file.file_size(f"{self.path}-wal")
        return self._log_bytes < former

    @guarded
    def verify(self, *, whole: bool) -> None:
        """Raise StoreError when the head of the file, or any page with `whole`, is damaged.

        The next statements read their pages anew: SQLite holds pages that it read, while other processes would read the
        damaged ones.
        """
        self._connection.execute("PRAGMA shrink_memory")
        self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if whole:
            (found,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise StoreError(f"store {self.path}: {found}", damaged=True)

    @guarded
    def reopen(self) -> None:
        """Open the file that is at the path now, a new one when there is none. Raises StoreError."""
        if self._closed:
            return
        is_same = file.file_identity(self.path) == self._file and not self.path.is_symlink()
        is_emptied = is_same and not file.file_size(self.path)
        if not self.read_only and self.is_open and not is_same:
            self._remove_log()
        self._disconnect()
        if not self.read_only:
            # The lock file may have gone with its directory, and then keeps nobody out any more.
            self._release_writer_lock()
            if is_emptied:
                # Whoever still has the emptied file open would keep a new store from being begun in it.
                file.set_aside(self.path)
        self._open()

    @guarded
    def restore_log(self) -> None:
        """Replace the file by a copy of all that was written, whose log other processes see. Raises StoreError."""
        file.replace_by_copy(self._connection, self.path)
        self.reopen()

    @guarded
    def set_aside(self) -> Path:
        """Close a damaged file and rename it; returns the new name. `reopen` creates a new one."""
        self._disconnect()
        return file.set_aside(self.path)

    def _open(self) -> None:
        # Also where a link has taken the file's place since.
        self.path = file.resolve_links(self.path)
        file.check_file(self.path)
        if not self.read_only:
            self._writer_lock = file.lock_for_writing(self.path)
        try:
            self._connect()
        except BaseException:
            self._release_writer_lock()
            raise

    def _connect(self) -> None:
        self._connection = file.open_file(self.path, read_only=self.read_only)
        self._file = file.file_identity(self.path)
        self._log = self._log_files()
        self.was_open = True
        self._forget()

    def _disconnect(self) -> None:
        """Close the connection; the file counts as replaced until it is opened again, were it the same one."""
        self._connection.close()
        self._file = _NO_FILE
        self._log, self._log_bytes = [], 0

    def _remove_log(self) -> None:
        """Remove the log of a file that is no longer at the path, once all it has is in that file.

        SQLite would apply it to the file that is there now, and mix the two: https://www.sqlite.org/howtocorrupt.html,
        section 1.4.
        """
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        for ending, former in zip(_LOG_ENDINGS, self._log, strict=True):
            log = Path(f"{self.path}{ending}")
            if former is not None and file.file_identity(log) == former:
                file.remove_file(log)

    def _log_files(self) -> list[tuple[int, int] | None]:
        return [file.file_identity(f"{self.path}{ending}") for ending in _LOG_ENDINGS]

    def _release_writer_lock(self) -> None:
        if self._writer_lock is not None:
            os.close(self._writer_lock)
            self._writer_lock = None

    def _forget(self) -> None:
        raise NotImplementedError

    def _settle(self) -> None:
        """Write what follows from what a transaction wrote, before it ends."""
        raise NotImplementedError

    # --- Transactions -------------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Several appends that become visible, and durable, together; none of them does when one raises."""
        with self._lock:
            self._execute("BEGIN IMMEDIATE")
            try:
                yield
                self._settle()
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
            # SQLite rolls back by itself when the file fails; the error that led here is the one to raise.
            self._disconnect()
            self._connect()

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Several reads that see the same state of the file at the path now."""
        if self.read_only and not self._closed and (self.is_replaced() or self._log_files() != self._log):
            self.reopen()
        if self._connection.in_transaction:
            yield
            return
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._end_reading()

    def _end_reading(self) -> None:
        # When reading failed, SQLite may have ended the transaction.
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")

    @guarded
    def _execute(self, statement: str) -> None:
        self._connection.execute(statement)
