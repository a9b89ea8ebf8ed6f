"""All targets: those that are listed, and those no longer listed whose samples still count."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace

from servescope.collector.clock import Clock
from servescope.collector.config import CollectorSettings
from servescope.collector.figures.derive import Deriver
from servescope.collector.paging.manager import AlertManager
from servescope.collector.recording.recorder import Recorder
from servescope.collector.scrapes.pacing import Pacer
from servescope.collector.scrapes.recent_scrapes import RecentScrapes
from servescope.collector.scrapes.target_state import TargetState
from servescope.collector.targets.target import Target
from servescope.contract.identity import Deployment
from servescope.contract.samples import Labels, Snapshot
from servescope.settings.clock import AHEAD_MS, BELIEVED_AFTER_MS
from servescope.sources.cache import SeriesCache
from servescope.sources.layers import Supply
from servescope.sources.reader import Reader
from servescope.store.records import Health


class TargetRegistry:
    """The targets by target id, and the booking of their scrapes. Not thread safe.

    `listed` are scraped. `leaving` are no longer listed, and count until their last samples have left the window.
    """

    def __init__(
        self, settings: CollectorSettings, clock: Clock, deriver: Deriver, alerts: AlertManager, recorder: Recorder
    ) -> None:
        self.settings = settings
        self.listed: dict[str, TargetState] = {}
        self.leaving: dict[str, TargetState] = {}
        self.pacer = Pacer()
        self._deriver, self._alerts, self._recorder = deriver, alerts, recorder
        self._clock = clock
        self._supplies: dict[Deployment, Supply] = {}
        self._cache = SeriesCache()

    # --- The targets --------------------------------------------------------------------------------------------------

    @property
    def watched(self) -> list[TargetState]:
        """Every listed target, by target id."""
        return [self.listed[target_id] for target_id in sorted(self.listed)]

    def by_deployment(self) -> dict[Deployment, list[TargetState]]:
        """All targets that count, by deployment."""
        return _by_deployment((*self.listed.values(), *self.leaving.values()))

    def health(self, watched: TargetState) -> Health:
        """How the target's last scrape ended; unknown when it was more than two intervals and a timeout ago."""
        status, target = watched.status, watched.target
        oldest = self._clock.now_ms - 2 * self.pacer.interval_ms(target) - target.scraping.timeout_ms
        if status.last_scrape_ms is None or status.last_scrape_ms < oldest:
            return "unknown"
        return status.state

    def scrape_ages(self) -> Iterator[tuple[Labels, float]]:
        """The labels of each target that answered a scrape with metrics, and the seconds since then."""
        now_ms = self._clock.now_ms
        for watched in self.watched:
            if (answer_ms := watched.status.last_answer_ms) is not None:
                yield watched.labels, max(0.0, (now_ms - answer_ms) / 1000)

    # --- Adding and retiring ------------------------------------------------------------------------------------------

    def watch(self, target: Target) -> TargetState:
        """A new target to scrape, of which nothing is known yet."""
        return TargetState(target, self._reader(target), self._recent_scrapes(target))

    async def recall(self, watched: TargetState, scrapes: Iterable[tuple[int, Snapshot | None]]) -> None:
        """Keep in memory what was scraped of a new target before."""
        for time_ms, snapshot in scrapes:
            await self._look_up(watched, time_ms, snapshot)
            watched.recent.append(time_ms, snapshot)
        self._deriver.look_up(watched.deployment, watched.recent)

    def change(self, watched: TargetState, target: Target) -> None:
        """Scrape the same target at another address, or read it in another way."""
        if (target.source, target.segment_label) != (watched.target.source, watched.target.segment_label):
            watched.reader = self._reader(target)
        watched.change(target)

    def retire(self, target_id: str) -> None:
        """Stop scraping a target that is no longer listed."""
        watched = self.leaving[target_id] = self.listed.pop(target_id)
        watched.stop()
        # Its series end here, as behind the stale markers of Prometheus.
        self.book(watched, self._clock.now_ms, None)

    def forget_spent(self) -> bool:
        """Drop the retired targets whose samples have left the window; True when there was one."""
        now_ms, former = self._clock.now_ms, len(self.leaving)
        self.leaving = {name: watched for name, watched in self.leaving.items() if not watched.recent.is_spent(now_ms)}
        return len(self.leaving) != former

    def settle_supplies(self) -> None:
        """Let targets that are still listed supply the metrics that a retired one supplied."""
        listed = _by_deployment(self.listed.values())
        for deployment, supply in self._supplies.items():
            supply.retain({watched.target.target_id for watched in listed.get(deployment, ())})
        # A retired target may be listed again, and then has the reader it had.
        held = self.by_deployment()
        self._supplies = {name: supply for name, supply in self._supplies.items() if name in held}

    def _recent_scrapes(self, target: Target) -> RecentScrapes:
        return RecentScrapes(
            self.settings.window_ms, 2 * target.scraping.interval_ms, max_series=self.settings.max_held_series
        )

    def _reader(self, target: Target) -> Reader:
        supply = self._supplies.setdefault(target.identity.deployment(), Supply())
        return Reader(
            target.identity, target.source, supply=supply, cache=self._cache, segment_label=target.segment_label
        )

    def resize_cache(self, series: int) -> None:
        """Keep as many parsed lines as there are series in memory."""
        self._cache.resize(series)

    # --- A clock that was set -----------------------------------------------------------------------------------------

    def follow_clock(self) -> None:
        """Look at the clock; when it was set back, forget all that is of a later time than it shows now."""
        step = self._clock.look(self.settings.evaluation_interval_ms)
        if step is None:
            return
        self._recorder.report_step(step)
        if step.back_ms > 0:
            for watched in (*self.listed.values(), *self.leaving.values()):
                watched.forget_after(step.to_ms, step.back_ms)
                self._deriver.look_up(watched.deployment, watched.recent)
            self.pacer.set_back(step.back_ms)
            self._alerts.forget_after(step.to_ms, step.back_ms)

    # --- Booking ------------------------------------------------------------------------------------------------------

    async def make_room(self, watched: TargetState, time_ms: int, snapshot: Snapshot | None) -> None:
        """Prepare for a scrape, whose new series take a while to look up."""
        self.follow_clock()
        if self._clock.is_ahead(time_ms):
            return
        # The clock may have been set back while its past was read.
        watched.recent.forget_after(self._clock.now_ms + AHEAD_MS)
        await self._look_up(watched, time_ms, snapshot)

    async def _look_up(self, watched: TargetState, time_ms: int, snapshot: Snapshot | None) -> None:
        """Look up the new series of a scrape in parts: thousands at once would delay the scrapes of other targets."""
        if watched.recent.last_ms is not None and watched.recent.is_spent(time_ms):
            watched.set_aside(self._recent_scrapes(watched.target), time_ms)
        elif watched.former is not None and time_ms - watched.former[0] >= BELIEVED_AFTER_MS:
            watched.former = None
        recent = watched.recent
        for _ in recent.reserve(time_ms, snapshot.series) if snapshot is not None else ():
            self._deriver.look_up(watched.deployment, recent)
            await asyncio.sleep(0)

    def book(self, watched: TargetState, time_ms: int, snapshot: Snapshot | None) -> bool:
        """Keep a scrape in memory and for the store; False when it is later than now, or not after the last one."""
        self.follow_clock()
        last_ms = watched.recent.last_ms
        if self._clock.is_ahead(time_ms) or (last_ms is not None and time_ms <= last_ms):
            return False
        interval_ms = self.pacer.interval_ms(watched.target)
        if watched.status.scrape_interval_ms != interval_ms:
            watched.status = replace(watched.status, scrape_interval_ms=interval_ms)
        kept = watched.recent.append(time_ms, snapshot)
        self._recorder.record_scrape(watched, time_ms, kept)
        self._deriver.look_up(watched.deployment, watched.recent)
        if kept is not None:
            self._alerts.count(watched.target.target_id, watched.deployment, kept)
        return True


def _by_deployment(targets: Iterable[TargetState]) -> dict[Deployment, list[TargetState]]:
    members: dict[Deployment, list[TargetState]] = {}
    for watched in targets:
        members.setdefault(watched.deployment, []).append(watched)
    return members
