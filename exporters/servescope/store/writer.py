"""Writing in a thread of its own: what the collector submits, what to do when the file fails, packing and pruning."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from servescope.contract.events import Event
from servescope.contract.identity import Deployment
from servescope.contract.samples import Snapshot
from servescope.settings.clock import BELIEVED_AFTER_MS
from servescope.store import records
from servescope.store.embedded import Store
from servescope.store.memory import release_freed_memory
from servescope.store.tables.alerts import Sums

_logger = logging.getLogger(__name__)

_TRANSACTION_ROUNDS = 2_000
# What may wait to be written: beyond either the oldest rounds are dropped.
_MOST_ROUNDS = 50_000
_MOST_NUMBERS = 8_000_000
_PRUNE_ROWS = 2_000
# Packing and pruning have at most this share of the thread's time, so that a burst of either spreads.
_TIDYING_SHARE = 0.1
_IDLE_MS = 1_800_000
# How long after its end a block waits for the next scrape of its target, before its increments are stored without it.
_OPEN_MS = 60_000
_VERIFY_SECONDS = 2.0
_BELIEVED_SECONDS = BELIEVED_AFTER_MS / 1000
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
# An alert needs as much memory as so many numbers while it waits to be written.
_NUMBERS_PER_ALERT = 16


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """What is kept: scrapes and figures from an instant, increments and events from another, `most_bytes` at most.

    The instants are as long ago as they should be by a clock that shows `now_ms`, None where that is beyond doubt.
    """

    from_ms: int
    increments_from_ms: int
    most_bytes: int | None = None
    now_ms: int | None = None


@dataclass(slots=True)
class WriteBatch:
    """What a scrape, or an evaluation, adds to the store.

    `listed` are all targets of the configuration, None to leave those known as they are. The last round with `keep`
    decides what is kept. `alerts` are all there
    are, None where they stay as they are; `sums` and the instants of `forgotten_sums` are those of `Store.append_sums`.
    """

    scrapes: list[tuple[str, int, Snapshot | None]] = field(default_factory=list)
    figures: list[tuple[Deployment, int, Mapping[str, float]]] = field(default_factory=list)
    targets: Sequence[records.TargetStatus] = ()
    listed: frozenset[str] | None = None
    settings: tuple[int, records.RecordedSettings] | None = None
    alerts: Sequence[records.KeptAlert] | None = None
    events: Sequence[Event] = ()
    sums: tuple[int, Sums] | None = None
    forgotten_sums: Sequence[int] = ()
    keep: RetentionLimits | None = None
    refused: list[records.UntimelyError] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """How many numbers it holds, or what needs as much memory."""
        return (
            sum(len(snapshot.series) for _, _, snapshot in self.scrapes if snapshot is not None)
            + sum(len(values) for _, _, values in self.figures)
            + (sum(map(len, self.sums[1].values())) if self.sums is not None else 0)
            + _NUMBERS_PER_ALERT * (len(self.alerts or ()) + len(self.events))
        )

    def write(self, store: Store) -> None:
        """Write all of it but what is not of now, which is `refused`; the caller opens a transaction."""
        self.refused = []

        def attempt(append: Callable[..., None], *what: Any) -> None:
            try:
                append(*what, follows=True)
            except records.UntimelyError as error:
                self.refused.append(error)

        if self.settings is not None:
            store.record_settings(*self.settings)
        for status in self.targets:
            store.set_target(status)
        if self.listed is not None:
            store.unlist_targets(self.listed)
        for target_id, time_ms, snapshot in self.scrapes:
            attempt(store.append_scrape, target_id, time_ms, snapshot)
        for deployment, time_ms, values in self.figures:
            attempt(store.append_figures, deployment, time_ms, values)
        if self.alerts is not None:
            store.write_alerts(self.alerts)
        if self.events:
            store.append_events(self.events)
        if self.sums is not None:
            attempt(store.append_sums, *self.sums)
        if self.forgotten_sums:
            store.forget_sums(self.forgotten_sums)


class StoreWriter:
    """Writes rounds in a thread of its own, at once, so that a slow disk delays no scrape and no scrape waits.

    Rounds that come while others are written go together into the next transaction. When the store fails they wait, up
    to a bound, and are tried again after a pause; beyond it the oldest are dropped, as is one that no store could hold.
    A damaged file is set aside and a new one begun; so it is when the
    file was removed, or another is in its place.

    In between, rows are packed and what is too old is deleted, a little at a time. `on_written(seconds)` is called per
    transaction, `on_error(error)`, `on_dropped(round)` and `on_pruned(rows)` whenever it happens, from any thread.

    What a clock that was ahead has left in the store is dropped before the next transaction, for which `on_set_back`
    is called with the event; where that is much, only once the clock has stayed so for an hour. `held` says why
    nothing is stored until then, None when it is. What is refused as of another time is given to `on_refused`.
    """

    def __init__(
        self,
        store: Store,
        *,
        on_written: Callable[[float], None],
        on_error: Callable[[records.StoreError], None],
        on_dropped: Callable[[WriteBatch], None],
        on_pruned: Callable[[int], None] = lambda _rows: None,
        on_set_back: Callable[[Event], None] = lambda _event: None,
        on_refused: Callable[[Sequence[records.UntimelyError]], None] = lambda _errors: None,
    ) -> None:
        self._store = store
        self._on_written, self._on_error, self._on_dropped = on_written, on_error, on_dropped
        self._on_pruned, self._on_set_back, self._on_refused = on_pruned, on_set_back, on_refused
        self.held: str | None = None
        self._held_since: float | None = None
        self._follow_at = 0.0
        self._changed = threading.Condition()
        self._waiting: deque[tuple[float, WriteBatch]] = deque()
        self._writing: list[tuple[float, WriteBatch]] = []
        self._samples = 0
        self._closing = False
        # What is written to a new file first, and whether that is still to be done.
        self._statuses: dict[str, records.TargetStatus] = {}
        self._settings: tuple[int, records.RecordedSettings] | None = None
        self._is_new = False
        self._verify_at = 0.0
        self._pause_seconds = 0.0
        self._tidy_at = 0.0
        self._untidy = True
        self._keep: RetentionLimits | None = None
        self._pack_idle_before_ms: int | None = None
        # The time of the last round, by which a target is idle.
        self._latest_ms = 0
        self._thread = threading.Thread(target=self._run, name="servescope-store", daemon=True)
        self._thread.start()

    def submit(self, round_: WriteBatch) -> None:
        """Have a round written; returns at once."""
        with self._changed:
            self._waiting.append((time.monotonic(), round_))
            self._samples += round_.samples
            dropped = self._take_excess()
            self._changed.notify()
        for lost in dropped:
            self._on_dropped(lost)

    def backlog(self) -> int:
        """The rounds that wait to be written now, those being written included."""
        with self._changed:
            return len(self._waiting) + len(self._writing)

    def age_seconds(self) -> float:
        """For how long the oldest round that is not written yet has waited; 0 when none has."""
        with self._changed:
            oldest = min((since for since, _ in (*self._writing[:1], *islice(self._waiting, 1))), default=None)
        return 0.0 if oldest is None else max(0.0, time.monotonic() - oldest)

    def close(self, timeout_seconds: float = 5.0) -> bool:
        """Write what waits, then end the thread and close the store; False when that took longer than the timeout."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self._wait():
            self._write_waiting()
            self._tidy()
        self._write_waiting()
        with self._changed:
            lost = [round_ for _, round_ in self._waiting]
            self._waiting.clear()
        for round_ in lost:
            self._on_dropped(round_)
        self._store.close()

    def _wait(self) -> bool:
        """Wait until there is something to do; False when the writer shall end."""
        with self._changed:
            if self._pause_seconds:
                self._changed.wait_for(lambda: self._closing, self._pause_seconds)
            else:
                timeout = max(0.0, self._tidy_at - time.monotonic()) if self._untidy else None
                self._changed.wait_for(lambda: self._closing or self._waiting, timeout)
            return not self._closing

    # --- Writing ------------------------------------------------------------------------------------------------------

    def _write_waiting(self) -> None:
        while batch := self._take():
            try:
                self._check_file()
                self._follow_clock()
                self._write(batch)
            except records.StoreError as error:
                self._put_back()
                self._recover(error)
                return
            self._pause_seconds = 0.0
            with self._changed:
                self._writing = []

    def _take(self) -> list[tuple[float, WriteBatch]]:
        with self._changed:
            self._writing = [self._waiting.popleft() for _ in range(min(len(self._waiting), _TRANSACTION_ROUNDS))]
            self._samples -= sum(round_.samples for _, round_ in self._writing)
            return self._writing

    def _put_back(self) -> None:
        with self._changed:
            self._waiting.extendleft(reversed(self._writing))
            self._samples += sum(round_.samples for _, round_ in self._writing)
            self._writing = []
            dropped = self._take_excess()
        for lost in dropped:
            self._on_dropped(lost)

    def _take_excess(self) -> list[WriteBatch]:
        """The oldest rounds, as many as are more than may wait."""
        excess = []
        while len(self._waiting) > _MOST_ROUNDS or (self._samples > _MOST_NUMBERS and len(self._waiting) > 1):
            lost = self._waiting.popleft()[1]
            self._samples -= lost.samples
            excess.append(lost)
        return excess

    def _write(self, batch: Sequence[tuple[float, WriteBatch]]) -> None:
        started = time.perf_counter()
        try:
            with self._store.transaction():
                for _, round_ in batch:
                    round_.write(self._store)
        except records.RefusedError:
            self._write_one_by_one(batch)
        except records.StoreError:
            raise
        except Exception:
            # Not the store's fault: which round it was shows when each is written by itself.
            self._write_one_by_one(batch)
        self._on_written(time.perf_counter() - started)
        if refused := [error for _, round_ in batch for error in round_.refused]:
            self._on_refused(refused)
        for _, round_ in batch:
            self._note(round_)

    def _write_one_by_one(self, batch: Sequence[tuple[float, WriteBatch]]) -> None:
        """Write what can be written; a round that no store could hold is reported and dropped."""
        for _, round_ in batch:
            try:
                with self._store.transaction():
                    round_.write(self._store)
            except records.RefusedError as error:
                self._on_error(error)
                self._on_dropped(round_)
            except records.StoreError:
                raise
            except Exception as error:
                # Trying again is of no use, and the rounds behind it shall be written.
                _logger.exception("a round could not be stored")
                self._report(f"{type(error).__name__}: {error}")
                self._on_dropped(round_)

    def _note(self, round_: WriteBatch) -> None:
        for status in round_.targets:
            self._statuses[status.target_id] = status
        if round_.listed is not None:
            for target_id in [target_id for target_id in self._statuses if target_id not in round_.listed]:
                del self._statuses[target_id]
        self._settings = round_.settings or self._settings
        for each in (*round_.scrapes[-1:], *round_.figures[-1:]):
            self._latest_ms = each[1]
        if round_.keep is not None:
            self._keep = round_.keep
            self._pack_idle_before_ms = self._latest_ms - _IDLE_MS
        self._untidy = True

    # --- When the file fails ------------------------------------------------------------------------------------------

    def _recover(self, error: records.StoreError) -> None:
        """Report it, and try again after a pause that grows; a damaged file is set aside."""
        self._on_error(error)
        self._pause_seconds = min(max(2 * self._pause_seconds, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
        if not error.damaged:
            return
        try:
            aside = self._store.set_aside()
            self._begin_anew(f"the damaged file is now {aside}; a new one is begun")
        except records.StoreError as failure:
            self._on_error(failure)
        else:
            self._pause_seconds = 0.001

    def _check_file(self) -> None:
        """Open the file that is at the path now, when it is not the one that was written; find damage now and then."""
        if self._store.is_replaced():
            reason = "the file was removed, replaced or out of reach; the one at its place now is written"
            self._begin_anew(reason if self._store.was_open else None)
        elif self._store.lacks_log():
            self._store.restore_log()
            self._report("its write-ahead log was removed; a copy with all that was written replaces the file")
        elif self._is_new:
            self._introduce()
        elif (is_shorter := self._store.has_shorter_log()) or time.monotonic() >= self._verify_at:
            self._verify_at = time.monotonic() + _VERIFY_SECONDS
            self._store.verify(whole=is_shorter)

    def _follow_clock(self) -> None:
        """Drop what is stored as later than now; much of it only when the clock has stayed so for an hour."""
        since = self._held_since
        if since is not None and time.monotonic() < self._follow_at:
            return
        try:
            event = self._store.drop_future(
                believed=since is not None and time.monotonic() - since >= _BELIEVED_SECONDS
            )
        except records.AheadError as error:
            self._held_since = time.monotonic() if since is None else since
            self._follow_at = time.monotonic() + _VERIFY_SECONDS
            self.held = f"{error}; nothing is stored until the clock is past that, or has stayed so for an hour"
            return
        self.held = self._held_since = None
        if event is not None:
            self._on_set_back(event)

    def _begin_anew(self, reason: str | None) -> None:
        self._store.reopen()
        self._is_new = True
        if reason is not None:
            self._report(reason)
        self._introduce()

    def _introduce(self) -> None:
        """Write to a new file what it needs before the next scrape can be appended."""
        with self._store.transaction():
            WriteBatch(targets=tuple(self._statuses.values()), settings=self._settings).write(self._store)
        self._is_new = False

    def _report(self, problem: str) -> None:
        self._on_error(records.StoreError(f"store {self._store.path}: {problem}"))

    # --- Tidying ------------------------------------------------------------------------------------------------------

    def _tidy(self) -> None:
        """One piece of packing or pruning, when it is time for one."""
        started = time.monotonic()
        if self._pause_seconds or started < self._tidy_at:
            return
        try:
            self._untidy = self._tidy_a_piece()
        except records.StoreError as error:
            self._recover(error)
        except Exception as error:
            # What is not packed or deleted today stays readable; the next rounds must be written.
            _logger.exception("the store could not be tidied")
            self._report(f"{type(error).__name__}: {error}")
            self._untidy = False
        self._tidy_at = time.monotonic() + (time.monotonic() - started) * (1 / _TIDYING_SHARE - 1)

    def _tidy_a_piece(self) -> bool:
        """Do the most urgent piece; False when nothing is left to do."""
        if not self._store.is_open:
            return False
        if self._keep is not None:
            self._store.close_blocks(self._latest_ms - _OPEN_MS)
            if not self._prune(self._keep):
                self._keep = None
                # Here, as nobody waits for this thread.
                release_freed_memory()
            return True
        if self._store.pack_due():
            return True
        if self._pack_idle_before_ms is not None:
            if not self._store.pack_idle(self._pack_idle_before_ms):
                self._pack_idle_before_ms = None
            return True
        return False

    def _prune(self, keep: RetentionLimits) -> bool:
        """Delete a little; False when there is no more to delete."""
        # A clock that was set forward may be set right: history would be gone.
        doubted_ms = 0 if keep.now_ms is None else keep.now_ms - self._store.believed_ms(keep.now_ms)
        from_ms, increments_from_ms = keep.from_ms - doubted_ms, keep.increments_from_ms - doubted_ms
        with self._store.transaction():
            gone = self._store.prune(from_ms, increments_before_ms=increments_from_ms, rows=_PRUNE_ROWS)
            if keep.most_bytes is not None and gone < _PRUNE_ROWS:
                gone += self._store.prune_to_size(keep.most_bytes, rows=_PRUNE_ROWS)
        if gone:
            self._on_pruned(gone)
        return gone >= _PRUNE_ROWS
