"""Handing scrapes and figures to the store's writer, and reporting a store that fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence

from servescope.collector.clock import Clock, ClockStep
from servescope.collector.config import CollectorSettings
from servescope.collector.figures.derive import Derivation
from servescope.collector.recording.event_log import EventLog
from servescope.collector.scrapes.target_state import TargetState
from servescope.collector.targets.traffic_split import ConfiguredTraffic
from servescope.collector.telemetry import Telemetry
from servescope.contract.events import Event
from servescope.contract.identity import Deployment
from servescope.contract.samples import Snapshot
from servescope.settings.clock import BELIEVED_AFTER_MS
from servescope.settings.values import format_instant
from servescope.store.embedded import Store
from servescope.store.records import RecordedSettings, StoreError, TargetStatus, UntimelyError
from servescope.store.writer import RetentionLimits, StoreWriter, WriteBatch

_logger = logging.getLogger(__name__)

_PRUNE_EVERY_MS = 60_000
_PROBLEM_LOGGED_EVERY_SECONDS = 60.0


class Recorder:
    """Has scrapes and figures written in a thread of its own; `history` reads the same store.

    `problem` is why the store cannot be written, None while it can.
    """

    def __init__(self, store: Store, history: Store, telemetry: Telemetry, clock: Clock) -> None:
        # Both follow the collector's clock.
        store.now_ms = history.now_ms = lambda: clock.now_ms
        self.history = history
        self.problem: str | None = None
        self._telemetry, self._clock = telemetry, clock
        # The targets whose status was submitted: the store accepts no scrape of any other.
        self._introduced: set[str] = set()
        self._pruned_ms = 0
        self._set_back: Event | None = None
        self._settings: RecordedSettings | None = None
        self._events = EventLog()
        self._problem_logged = self._drop_logged = self._refusal_logged = -_PROBLEM_LOGGED_EVERY_SECONDS
        self._writer = StoreWriter(
            store,
            on_written=self._on_written,
            on_error=self.report_error,
            on_dropped=self._on_dropped,
            on_pruned=telemetry.store_pruned.inc,
            on_set_back=self._on_set_back,
            on_refused=self._on_refused,
        )

    def recall(self) -> None:
        """Read which targets and configured shares were known before a restart, so that only changes are events."""
        try:
            self._set_back = self._events.recall(self.history, self._clock.now_ms)
        except StoreError as error:
            _logger.warning("%s; all targets count as new in the event log", error)

    def submit(self, round_: WriteBatch) -> None:
        """Queue a round for the writer's thread."""
        self._writer.submit(round_)

    def backlog(self) -> int:
        """How many rounds wait to be written."""
        return self._writer.backlog()

    def close(self, targets: Sequence[TargetStatus]) -> None:
        """Write the queue and close the store."""
        # The writer's connection closes last: it takes the write-ahead log along, a reader's cannot.
        self.history.close()
        self._writer.submit(WriteBatch(targets=targets))
        if not self._writer.close():
            _logger.error("the store is still being written; the last scrapes may be lost")

    def record_scrape(self, watched: TargetState, time_ms: int, snapshot: Snapshot | None) -> None:
        """Queue a scrape as soon as it is booked: a killed process loses at most the one being written."""
        target_id = watched.target.target_id
        new = target_id not in self._introduced
        self._introduced.add(target_id)
        self.submit(WriteBatch(scrapes=[(target_id, time_ms, snapshot)], targets=[watched.status] if new else ()))

    def record_figures(
        self,
        at_ms: int,
        derived: Mapping[Deployment, Derivation],
        targets: Sequence[TargetState],
        leaving: Collection[str],
        settings: CollectorSettings,
        traffic_split: Sequence[ConfiguredTraffic],
    ) -> None:
        """Queue an evaluation with the status of all targets, what changed, and once a minute the retention."""
        listed = frozenset(watched.target.target_id for watched in targets)
        statuses = [watched.status for watched in targets]
        round_ = WriteBatch(
            figures=[(deployment, at_ms, each.stored) for deployment, each in derived.items()],
            targets=statuses,
            listed=listed,
            # Whose name will not last is in no event.
            events=self._events.note(at_ms, [each.status for each in targets if not each.unnamed], traffic_split),
        )
        self._record_settings(round_, at_ms, settings)
        self._keep(round_, settings)
        self._introduced = {*listed, *leaving}
        self.submit(round_)
        self._telemetry.set_store(
            backlog=self._writer.backlog(),
            age_seconds=self._writer.age_seconds(),
            size_bytes=self.history.size_bytes(),
        )

    def _record_settings(self, round_: WriteBatch, at_ms: int, settings: CollectorSettings) -> None:
        recorded = RecordedSettings(
            settings.window_ms, settings.evaluation_interval_ms, settings.scrape_interval_ms, settings.window_bounds
        )
        if recorded != self._settings:
            self._settings = recorded
            round_.settings = at_ms, recorded

    def _keep(self, round_: WriteBatch, settings: CollectorSettings) -> None:
        now_ms = self._clock.now_ms
        # By the absolute difference: a clock that was ahead must not delay retention for that long.
        if abs(now_ms - self._pruned_ms) >= _PRUNE_EVERY_MS:
            self._pruned_ms = now_ms
            round_.keep = RetentionLimits(
                now_ms - settings.retention_ms,
                now_ms - settings.increments_retention_ms,
                settings.retention_bytes,
                now_ms,
            )

    # --- A clock that was set -----------------------------------------------------------------------------------------

    @property
    def held(self) -> str | None:
        """Why nothing is stored although it could be, None otherwise."""
        return self._writer.held

    @property
    def clock_problem(self) -> str | None:
        """What a clock that was set back within the last hour costs, or why nothing is stored now; None without."""
        if self.held is not None:
            return self.held
        event = self._set_back
        if event is None or self._clock.now_ms - event.time_ms >= BELIEVED_AFTER_MS:
            return None
        return f"{format_instant(event.time_ms)}: {event.text}"

    def report_step(self, step: ClockStep) -> None:
        """Count and log that the clock was set."""
        self._telemetry.count_step(is_back=step.back_ms > 0)
        shown = f"from {format_instant(step.from_ms)} to {format_instant(step.to_ms)}"
        if step.back_ms > 0:
            _logger.warning("the clock was set back %s; what is of a later time is forgotten", shown)
        else:
            _logger.warning("the clock was set forward %s; history is deleted by it in an hour at the earliest", shown)

    def _on_set_back(self, event: Event) -> None:
        self._set_back = event
        detail = dict(event.detail)
        self._telemetry.future_rows.inc(sum(int(detail[name]) for name in ("scrapes", "figures", "increments")))
        _logger.warning("%s", event.text)

    def _on_refused(self, errors: Sequence[UntimelyError]) -> None:
        self._telemetry.count_dropped({"clock": sum(error.numbers for error in errors)})
        now = time.monotonic()
        if now - self._refusal_logged >= _PROBLEM_LOGGED_EVERY_SECONDS:
            self._refusal_logged = now
            _logger.error("%s%s", errors[0], f"; and {len(errors) - 1} more" if errors[1:] else "")

    # --- When the store fails -----------------------------------------------------------------------------------------

    def report_error(self, error: StoreError) -> None:
        """Count an error of the store, and log it unless it was logged within a minute."""
        self._telemetry.store_errors.inc()
        now, problem = time.monotonic(), str(error)
        if problem != self.problem or now - self._problem_logged >= _PROBLEM_LOGGED_EVERY_SECONDS:
            self._problem_logged = now
            _logger.error("%s; what was scraped waits to be written", error)
        self.problem = problem

    def _on_written(self, seconds: float) -> None:
        self._telemetry.store_seconds.observe(seconds)
        if self.problem is not None:
            self.problem = None
            _logger.info("the store is written again")

    def _on_dropped(self, round_: WriteBatch) -> None:
        lost = sum(len(snapshot.series) for _, _, snapshot in round_.scrapes if snapshot is not None)
        self._telemetry.count_dropped({"store": lost})
        now = time.monotonic()
        if now - self._drop_logged >= _PROBLEM_LOGGED_EVERY_SECONDS:
            self._drop_logged = now
            _logger.error("the store has failed for too long; the oldest waiting samples are dropped")
