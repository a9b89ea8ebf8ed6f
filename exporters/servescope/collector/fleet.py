"""All targets: those that are listed, and those no longer listed whose samples still count."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
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
from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import Labels, Snapshot
from servescope.settings.clock import AHEAD_MS, BELIEVED_AFTER_MS
from servescope.sources.cache import SeriesCache
from servescope.sources.layers import Supply
from servescope.sources.reader import ModelNames, Reader
from servescope.store.records import Health

_logger = logging.getLogger(__name__)

CheckIdentity = Callable[[Target, Identity], str | None]
"""What is wrong with an identity that a page gives to a target, None where nothing is."""


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
        # By the deployments as they are configured, whatever model their pages name.
        self._supplies: dict[Deployment, Supply] = {}
        self._models: dict[Deployment, ModelNames] = {}
        self._refused: set[Identity] = set()
        self.check_identity: CheckIdentity = lambda _listed, _identity: None
        self._cache = SeriesCache()

    # --- The targets --------------------------------------------------------------------------------------------------

    @property
    def watched(self) -> list[TargetState]:
        """Every listed target, by target id."""
        return [self.listed[target_id] for target_id in sorted(self.listed)]

    def by_deployment(self) -> dict[Deployment, list[TargetState]]:
        """All targets that count, by deployment."""
        found = (*self.listed.values(), *self.leaving.values())
        return _by_deployment(watched for watched in found if not watched.unnamed)

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

    def sharing_page(self, watched: TargetState) -> list[TargetState]:
        """The other listed targets that are parts of the same page, by target id."""
        if not watched.target.part.select:
            return []
        return [each for each in self.watched if each is not watched and each.target.shares_page(watched.target)]

    @property
    def pages(self) -> list[TargetState]:
        """One listed target of each page, by target id: with it the others are scraped that are parts of it."""
        first: list[TargetState] = []
        for watched in self.watched:
            is_part = bool(watched.target.part.select)
            if not is_part or not any(each.target.shares_page(watched.target) for each in first):
                first.append(watched)
        return first

    @property
    def shown(self) -> list[TargetState]:
        """The listed targets without those whose model is still looked for."""
        return [watched for watched in self.watched if not watched.is_hidden]

    # --- Adding and retiring ------------------------------------------------------------------------------------------

    def watch(self, listed: Target, model_name: str | None = None) -> TargetState:
        """A new target to scrape, of which nothing is known yet but the model that its pages named before a restart."""
        target = listed
        if listed.takes_model and model_name is not None:
            identity = replace(listed.identity, model_name=model_name)
            target = replace(listed, identity=identity) if self._may_be(listed, identity) else listed
        return TargetState(
            target, self._reader(listed, target.identity), self._recent_scrapes(target), listed, target.takes_model
        )

    async def recall(self, watched: TargetState, scrapes: Iterable[tuple[int, Snapshot | None]]) -> None:
        """Keep in memory what was scraped of a new target before."""
        for time_ms, snapshot in scrapes:
            await self._look_up(watched, time_ms, snapshot)
            watched.recent.append(time_ms, snapshot)
        self._deriver.look_up(watched.deployment, watched.recent)

    def change(self, watched: TargetState, listed: Target) -> None:
        """Scrape the same target at another address, or read it in another way."""
        former = watched.target
        if (listed.source, listed.segment_label, listed.part) != (former.source, former.segment_label, former.part):
            watched.reader = self._reader(listed, watched.target.identity)
        watched.change(listed)

    def follow_model(self, watched: TargetState) -> None:
        """Have a target bear the model that its page has just named.

        What was scraped under another name stays as that of a target that is no longer listed.
        """
        identity, former = watched.reader.identity, watched.target
        if identity == former.identity:
            return
        del self.listed[former.target_id]
        if watched.recent.last_ms is not None:
            left = TargetState(former, watched.reader, watched.recent, former)
            left.status = watched.status
            self.leaving[former.target_id] = left
            self.book(left, self._clock.now_ms, None)
        watched.rename(identity, self._recent_scrapes(former))
        watched.unnamed = False
        self.leaving.pop(identity.target_id, None)
        self.listed[identity.target_id] = watched

    def _may_be(self, listed: Target, identity: Identity) -> bool:
        """Whether a target may have an identity that follows from its page; logs once why not."""
        wrong = self.check_identity(listed, identity)
        if identity.target_id in self.listed and self.listed[identity.target_id].listed != listed:
            wrong = "another target has it"
        if wrong is not None and identity not in self._refused:
            self._refused.add(identity)
            _logger.warning("%s: its page names the model %r: %s", listed.target_id, identity.model_name, wrong)
        return wrong is None

    def retire(self, target_id: str) -> None:
        """Stop scraping a target that is no longer listed."""
        watched = self.leaving[target_id] = self.listed.pop(target_id)
        watched.stop()
        # Its series end here, as behind the stale markers of Prometheus.
        self.book(watched, self._clock.now_ms, None)

    def take_back(self, listed: Target) -> TargetState | None:
        """A target that was retired and is listed again, under whatever model its pages named; None for another."""
        names = self.leaving if listed.takes_model else [listed.target_id]
        found = (each for each in names if each in self.leaving)
        name = next((each for each in found if self.leaving[each].listed.target_id == listed.target_id), None)
        return self.leaving.pop(name) if name is not None else None

    def forget_spent(self) -> bool:
        """Drop the retired targets whose samples have left the window; True when there was one."""
        now_ms, former = self._clock.now_ms, len(self.leaving)
        self.leaving = {name: watched for name, watched in self.leaving.items() if not watched.recent.is_spent(now_ms)}
        return len(self.leaving) != former

    def settle_supplies(self) -> None:
        """Let targets that are still listed supply the metrics that a retired one supplied."""
        listed: dict[Deployment, set[str]] = {}
        for watched in self.listed.values():
            listed.setdefault(watched.listed.identity.deployment(), set()).add(watched.target.target_id)
        for deployment, supply in self._supplies.items():
            supply.retain(listed.get(deployment, ()))
        # A retired target may be listed again, and then has the reader it had.
        held = {*listed, *(watched.listed.identity.deployment() for watched in self.leaving.values())}
        self._supplies = {name: supply for name, supply in self._supplies.items() if name in held}
        self._models = {name: models for name, models in self._models.items() if name in held}

    def _recent_scrapes(self, target: Target) -> RecentScrapes:
        return RecentScrapes(
            self.settings.window_ms, 2 * target.scraping.interval_ms, max_series=self.settings.max_held_series
        )

    def _reader(self, listed: Target, identity: Identity) -> Reader:
        deployment = listed.identity.deployment()
        return Reader(
            identity,
            listed.source,
            supply=self._supplies.setdefault(deployment, Supply()),
            cache=self._cache,
            segment_label=listed.segment_label,
            part=listed.part,
            models=self._models.setdefault(deployment, ModelNames()) if listed.takes_model else None,
            may_be=lambda found: self._may_be(listed, found),
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
