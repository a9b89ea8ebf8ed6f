"""The records that callers append on the hot path, and how they reach the ledger.

A buffer is a list that any thread appends records to and one thread at a time folds. Appending is the caller's only
cost; folding happens in the thread that reads, or in the caller's once every `FOLD_EVERY` records, so that memory stays
bounded however long nobody reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FOLD_EVERY = 1024
"""Records that pile up before a caller folds them: enough to spread numpy's fixed costs, few enough to fold fast."""

WAIT_BEYOND = 16 * FOLD_EVERY
DROP_BEYOND = 64 * FOLD_EVERY
FOLD_AT_MOST = 8 * FOLD_EVERY
WAIT_SECONDS = 0.05

MARKED_EACH = 8
"""So many records are marked with the time one by one; then the time is marked each time there are twice as many."""

RESOLUTION = 1 / 300
"""Share of a trailing window below which two times count as the same."""

Record = TypeVar("Record")

Mark = tuple[int, float]
"""A number of records, and the time by the buffer's clock when there were that many."""


class RecordBuffer(Generic[Record]):
    """Records that callers append and that `book` is called with, in order, in batches.

    Where nanoseconds count, a caller does what `write` does:

        buffer.append(record)
        if len(buffer.records) >= buffer.stop_at:
            buffer.stop()

    `book(records, marks)` runs under `lock`, which all buffers of one instrument share; it may not raise. With a
    `clock` the buffer marks when records came: each one while there are few, ever fewer when there are many, and
    not more often than every `mark_seconds`.
    `on_drop` is called for each dropped record; without it, none is dropped. `released` is called after each fold,
    without the lock.
    """

    __slots__ = (
        "_book",
        "_clock",
        "_lock",
        "_mark_seconds",
        "_marked_at",
        "_marks",
        "_on_drop",
        "_released",
        "append",
        "records",
        "stop_at",
    )

    def __init__(
        self,
        book: Callable[[list[Record], list[Mark]], None],
        *,
        lock: threading.Lock,
        clock: Callable[[], float] | None = None,
        mark_seconds: float = 0.0,
        on_drop: Callable[[], None] | None = None,
        released: Callable[[], None] | None = None,
    ) -> None:
        self.records: list[Record] = []
        self.append = self.records.append
        self.stop_at = FOLD_EVERY if clock is None else 1
        self._book = book
        self._lock = lock
        self._clock = clock
        self._on_drop = on_drop
        self._released = released
        self._mark_seconds = mark_seconds
        self._marks: list[Mark] = []
        self._marked_at = 0.0

    def write(self, record: Record) -> bool:
        """Append a record; False when it was dropped."""
        self.append(record)
        return len(self.records) < self.stop_at or self.stop()

    def stop(self) -> bool:
        """Mark the time, and fold when enough records have come; False when the newest record was dropped.

        Called by the thread that appended, without the lock. It does not wait for another thread's fold, except
        briefly when a large backlog shows that the folding thread does not run: numpy releases the interpreter's
        lock within a fold, and callers that never pause would starve it.
        """
        if not self._acquire():
            return self._keep_or_drop()
        try:
            if len(self.records) >= FOLD_EVERY:
                self.fold()
            else:
                self._mark()
        finally:
            self._lock.release()
        if self._released is not None:
            self._released()
        return True

    def fold(self) -> None:
        """Book every record that was there when this was called; the caller holds the lock."""
        remaining = len(self.records)
        # A thread that drops may have removed one from the end since: then there are fewer.
        while remaining > 0 and self.records:
            # `append` goes on meanwhile: what was copied is deleted from the front, the list itself is never
            # replaced. A stretch stays below DROP_BEYOND, where a dropping thread takes from the end.
            stretch = self.records[: min(remaining, FOLD_AT_MOST)]
            del self.records[: len(stretch)]
            remaining -= len(stretch)
            self._book(stretch, self._take_marks(len(stretch)))
        self.stop_at = FOLD_EVERY if self._clock is None else 1

    def _acquire(self) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        return len(self.records) >= WAIT_BEYOND and self._lock.acquire(timeout=WAIT_SECONDS)

    def _keep_or_drop(self) -> bool:
        if self._on_drop is None or len(self.records) <= DROP_BEYOND:
            return True
        self.records.pop()
        self._on_drop()
        return False

    def _mark(self) -> None:
        if self._clock is None:
            return
        count, now = len(self.records), self._clock()
        if self._marks and now - self._marked_at < self._mark_seconds:
            self._marks[-1] = count, now
        else:
            self._marks.append((count, now))
            self._marked_at = now
        self.stop_at = count + 1 if count < MARKED_EACH else 2 * count

    def _take_marks(self, count: int) -> list[Mark]:
        """The marks among the first `count` records, closed by one at `count`; none without a clock."""
        if self._clock is None:
            return []
        taken = [mark for mark in self._marks if mark[0] <= count]
        self._marks = [(position - count, time) for position, time in self._marks if position > count]
        if not taken or taken[-1][0] < count:
            # Records after the last mark came later, by an unknown time; they are few.
            taken.append((count, taken[-1][1] if taken else self._clock()))
        return taken


def decode(records: list[bytes], *, doubles: int) -> NDArray[np.float64]:
    """Packed records of that many doubles and an even number of counts, as one row of floats per column."""
    import numpy as np

    raw = b"".join(records)
    words = len(raw) // 8 // len(records)
    times = np.frombuffer(raw, np.float64).reshape(-1, words)[:, :doubles]
    counts = np.frombuffer(raw, np.uint32).reshape(-1, 2 * words)[:, 2 * doubles :]
    columns = np.empty((doubles + counts.shape[1], len(records)))
    columns[:doubles] = times.T
    columns[doubles:] = counts.T
    return columns
