"""What all instruments have in common: an identity, buffers that are folded, readings, and refusals."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol, TypeVar

from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, REPLICA_START_TIME
from servescope.contract.samples import Sample, Series
from servescope.contract.types import Metric
from servescope.errors import UsageError
from servescope.instruments.exponential import ExponentialState
from servescope.instruments.ledger import Exemplars, Ledger, Scalar
from servescope.instruments.record_buffer import DROP_BEYOND, RESOLUTION, Mark, RecordBuffer
from servescope.instruments.values import REFUSALS, Refused, shown

_logger = logging.getLogger("servescope")

INSTRUMENT_ERRORS = Metric(
    "servescope_instrument_errors_total",
    "counter",
    "events",
    "engine",
    "Calls and values that an instrument refused, by kind; the first of each kind is logged.",
    labels=("kind",),
)

Record = TypeVar("Record")


class Exposed:
    """The series of one or several identities, read family by family: what a page is made of."""

    def identities(self) -> tuple[Identity, ...]:
        """The identities of the series; no two on one page are the same."""
        raise NotImplementedError

    def samples(self) -> list[Sample]:
        """Every sample now; an absent series has none."""
        raise NotImplementedError

    def families(self) -> list[tuple[Metric, list[Sample]]]:
        """The samples by metric; an empty list where a metric is absent."""
        raise NotImplementedError

    def text(self) -> list[tuple[Metric, list[bytes]]]:
        """The lines of the exposition by metric, without HELP and TYPE; absent metrics are left out."""
        raise NotImplementedError

    def openmetrics(self) -> list[tuple[Metric, list[bytes]]]:
        """The same with the exemplars, as OpenMetrics has them."""
        raise NotImplementedError

    def exemplified(self) -> list[tuple[Metric, list[Sample], Exemplars]]:
        """The samples by metric, as `families` gives them, with the exemplars of buckets that have one."""
        raise NotImplementedError


class Instruments(Exposed):
    """Base of the instruments one embeds.

    Recording never raises and never waits for a reader: what is invalid is counted in
    `servescope_instrument_errors_total{kind}` and logged once per kind. Any thread may record and any thread may
    read.

    A forked child has the same objects, which start empty there: what the parent recorded, and the requests it has in
    flight, remain the parent's. The child's `replica` gets its process id as a suffix, which separates the two, unless
    a ProcessGroup adds them up.
    """

    roles: tuple[str, ...] = ()

    def __init__(self, identity: Identity, *, clock: Callable[[], float]) -> None:
        if not isinstance(identity, Identity):
            raise UsageError(f"identity is {identity!r}, expected a servescope.contract.identity.Identity")
        if identity.role not in self.roles:
            raise UsageError(
                f"{type(self).__name__} got an identity with role {identity.role!r}, supported: {', '.join(self.roles)}"
            )
        if not callable(clock):
            raise UsageError(f"clock is {clock!r}, expected a function that returns seconds")
        self.identity = identity
        self._given_identity = identity
        self._added_up = False  # by a ProcessGroup
        self.created_at = time.time()
        self._clock = clock
        # A request with another epoch was started by the process this one was forked from.
        self._epoch = object()
        self._lock = threading.Lock()
        self._ledger = Ledger(identity.labels())
        self._begun = self._ledger.scalar(METRICS[REPLICA_START_TIME], self.created_at)
        self._buffers: list[_Foldable] = []
        self._logged: dict[str, object] = {}
        self._to_log: list[tuple[str, str]] = []
        self._refusals = RecordBuffer(self._book_refusals, lock=self._lock, on_drop=_ignore)
        self._refused: dict[str, Scalar] = {}
        self._ratio_parts: dict[str, tuple[float, float]] = {}
        _living.add(self)

    def begin_at(self, seconds: float) -> None:
        """Show another start time than that of this object, in Unix seconds; for an emulated process."""
        self.created_at = self._begun.value = seconds

    def identities(self) -> tuple[Identity, ...]:
        """The identity of this process."""
        return (self.identity,)

    def samples(self) -> list[Sample]:
        """Every sample now, with everything that threads have recorded before; an absent series has none."""
        with self._reading() as ledger:
            return ledger.samples()

    def families(self) -> list[tuple[Metric, list[Sample]]]:
        """The samples by metric, in the order of the catalog; an empty list where a metric is absent."""
        with self._reading() as ledger:
            return list(ledger.families())

    def text(self) -> list[tuple[Metric, list[bytes]]]:
        """The lines of the exposition by metric, without HELP and TYPE; absent metrics are left out."""
        with self._reading() as ledger:
            return ledger.text()

    def openmetrics(self) -> list[tuple[Metric, list[bytes]]]:
        """The same with the exemplars, as OpenMetrics has them."""
        with self._reading() as ledger:
            return ledger.openmetrics()

    def exemplified(self) -> list[tuple[Metric, list[Sample], Exemplars]]:
        """The samples by metric, as `families` gives them, with the exemplars of buckets that have one."""
        with self._reading() as ledger:
            return list(ledger.exemplified())

    def keep_exponential(self) -> None:
        """From now on, count the histograms' values in exponential buckets too; what came before is not in them."""
        with self._lock:
            self._fold_buffers()
            self._ledger.keep_exponential()

    def exponentials(self) -> dict[Series, ExponentialState]:
        """The exponential buckets by the histogram's name and labels; empty when they are not kept."""
        with self._reading() as ledger:
            return ledger.exponentials()

    def fold(self) -> None:
        """Book what was recorded so far, at a moment of your choice; a reading does it too."""
        with self._lock:
            self._fold_buffers()
        self._log_refusals()

    def _start_over(self, identity: Identity) -> None:
        """Reset to a new state under this identity; called in a forked child, where only one thread runs."""
        raise NotImplementedError

    def _renew_in_child(self) -> None:
        """Start over after a fork: the lock may be held by a thread that is not here, the state is the parent's."""
        given, added_up = self._given_identity, self._added_up
        replica = given.replica if added_up else f"{given.replica}-{os.getpid()}".lstrip("-")
        try:
            self._start_over(replace(given, replica=replica))
        except Exception as error:
            _logger.warning("%s cannot start over in a forked process: %r", type(self).__name__, error)
        self._given_identity, self._added_up = given, added_up

    def _before_reading(self) -> None:
        """Set the series that are computed when they are read; called under the lock."""

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Ledger]:
        with self._lock:
            self._fold_buffers()
            self._before_reading()
            yield self._ledger
        self._log_refusals()

    def _fold_buffers(self) -> None:
        for buffer in (*self._buffers, self._refusals):
            buffer.fold()

    def _buffer(
        self,
        book: Callable[[list[Record], list[Mark]], None],
        *,
        window_seconds: float | None = None,
        droppable: bool = True,
    ) -> RecordBuffer[Record]:
        """A new buffer, with marks of the time when a trailing window needs them; folded in the order of making."""
        buffer = RecordBuffer(
            self._guard(book),
            lock=self._lock,
            clock=None if window_seconds is None else self._now,
            mark_seconds=(window_seconds or 0.0) * RESOLUTION,
            on_drop=self._drop if droppable else None,
            released=self._log_refusals,
        )
        self._buffers.append(buffer)
        return buffer

    def _guard(self, book: Callable[[list[Record], list[Mark]], None]) -> Callable[[list[Record], list[Mark]], None]:
        epoch = self._epoch

        def guarded(records: list[Record], marks: list[Mark]) -> None:
            if epoch is not self._epoch:
                return  # a signal handler forked within a fold, which goes on in the child
            try:
                book(records, marks)
            except Exception as error:
                self._count_refused("internal", len(records), f"{len(records)} records could not be booked: {error!r}")

        return guarded

    def _show_refusals(self) -> None:
        """Make the series of refusals; called last, so that they are at the end of a page."""
        self._refused = {kind: self._ledger.scalar(INSTRUMENT_ERRORS, 0, kind=kind) for kind in REFUSALS}

    def _now(self) -> float:
        """The time by the instrument's clock, in seconds; NaN when the clock fails."""
        try:
            return float(self._clock())
        except Exception as error:
            self._refuse("internal", f"the clock raised {error!r}")
            return math.nan

    def _refuse(self, kind: str, reason: str) -> None:
        """Count a refusal and log it when it is the first of its kind; any thread, not under the lock."""
        self._refusals.write(kind)
        self._log_once(kind, reason)

    def _refuse_error(self, error: Exception) -> None:
        if isinstance(error, Refused):
            self._refuse(error.kind, str(error))
        else:
            self._refuse("wrong_type", f"{type(error).__name__}: {shown(error)}")

    def _count_refused(self, kind: str, count: int, reason: str) -> None:
        """Count refusals while folding, under the lock; they are logged after it."""
        if count:
            self._refused[kind].add(count)
            self._to_log.append((kind, reason))

    def _book_refusals(self, kinds: list[str], _: list[Mark]) -> None:
        for kind, count in Counter(kinds).items():
            self._refused[kind].add(count)

    def _drop(self) -> None:
        self._refuse("dropped", f"more than {DROP_BEYOND} records wait to be folded; the newest are dropped")

    def _log_refusals(self) -> None:
        while self._to_log:
            with contextlib.suppress(IndexError):  # another thread may log it first
                self._log_once(*self._to_log.pop())

    def _log_once(self, kind: str, reason: str) -> None:
        token = object()
        if self._logged.setdefault(kind, token) is not token:
            return
        with contextlib.suppress(Exception):
            _logger.warning(
                "%s refused: %s (counted in %s{kind=%r}; further ones of this kind are not logged)",
                type(self).__name__, reason, INSTRUMENT_ERRORS.name, kind,
            )  # fmt: skip


class _Foldable(Protocol):
    def fold(self) -> None: ...


_living: weakref.WeakSet[Instruments] = weakref.WeakSet()


def _renew_in_child() -> None:
    for one in list(_living):
        one._renew_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_in_child)


def _ignore() -> None:
    """Drop a refusal beyond the bound."""
