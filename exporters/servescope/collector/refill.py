"""What a collector reads back from its store when it starts: alerts as they were, recent scrapes of targets."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from servescope.collector.clock import Clock
from servescope.collector.fleet import TargetRegistry
from servescope.collector.paging.manager import AlertManager
from servescope.collector.recording.recorder import Recorder
from servescope.collector.scrapes.target_state import TargetState
from servescope.collector.targets.target import Target
from servescope.collector.telemetry import Telemetry
from servescope.contract.identity import UNKNOWN_MODEL, Identity
from servescope.contract.samples import Snapshot
from servescope.settings.clock import AHEAD_MS
from servescope.store.records import StoreError


class Refill:
    """Reads back what the store has; what cannot be read starts anew and is reported.

    Alerts that were firing have `settle_ms` to be confirmed by scrapes.
    """

    def __init__(
        self,
        fleet: TargetRegistry,
        alerts: AlertManager,
        recorder: Recorder,
        clock: Clock,
        telemetry: Telemetry,
        settle_ms: int,
    ) -> None:
        self._fleet, self._alerts, self._recorder = fleet, alerts, recorder
        self._clock, self._telemetry, self._settle_ms = clock, telemetry, settle_ms
        # The targets of before the start, by their identity without the model.
        self._former: dict[Identity, Identity] | None = None

    async def alerts(self) -> None:
        """Restore the alerts as they were before a restart, once."""
        try:
            await self._alerts.begin(self._recorder.history, self._clock.now_ms, self._settle_ms)
        except StoreError as error:
            self._recorder.report_error(error)
        except Exception:
            # A damaged past of alerts must not keep the collector from starting.
            self._telemetry.report_fault("refill", "the stored alerts could not be read; they start anew")

    async def model_of(self, target: Target) -> str | None:
        """The model that a target's pages named before a restart; None where the store does not know it."""
        if self._former is None:
            try:
                statuses = await asyncio.to_thread(self._recorder.history.targets)
            except StoreError as error:
                self._recorder.report_error(error)
                statuses = []
            self._former = {replace(each.identity, model_name=UNKNOWN_MODEL): each.identity for each in statuses}
        found = self._former.get(target.identity)
        return None if found is None or found.model_name == UNKNOWN_MODEL else found.model_name

    async def target(self, watched: TargetState) -> None:
        """Restore the scrapes of a new target that are still in the window, and the alerts before them."""
        await self.alerts()
        try:
            await self._scrapes(watched)
        except StoreError as error:
            self._recorder.report_error(error)
        except Exception:
            # A damaged row of one target's past must not keep the collector from starting.
            message = f"the past of {watched.target.target_id} could not be read from the store; it starts anew"
            self._telemetry.report_fault("refill", message)

    async def _scrapes(self, watched: TargetState) -> None:
        target_id, now_ms, hold_ms = watched.target.target_id, self._clock.now_ms, watched.recent.hold_ms
        oldest_ms = now_ms - hold_ms
        # The first scrape after an outage is compared with what was counted before it.
        known_ms = self._alerts.known_until_ms
        first_ms = min(oldest_ms, known_ms - hold_ms) if known_ms else oldest_ms
        # Those that are a small correction of the clock ahead, too: the next ones must not come before them.
        scrapes = await self._read(target_id, first_ms, now_ms + AHEAD_MS)
        for time_ms, snapshot in scrapes:
            if snapshot is not None:
                self._alerts.count(target_id, watched.deployment, snapshot, is_known=time_ms <= known_ms)
        held = [scrape for scrape in scrapes if scrape[0] >= oldest_ms]
        last_ms = await asyncio.to_thread(self._recorder.history.last_scrape_ms, target_id, oldest_ms - 1)
        if last_ms is not None and (not held or last_ms < held[0][0] - hold_ms):
            # The clock may be ahead: once it is set right, the window is that of before.
            await self._fleet.recall(watched, await self._read(target_id, last_ms - hold_ms, last_ms))
        await self._fleet.recall(watched, held)

    async def _read(self, target_id: str, start_ms: int, end_ms: int) -> list[tuple[int, Snapshot | None]]:
        return await asyncio.to_thread(self._recorder.history.read_scrapes, target_id, start_ms, end_ms)
