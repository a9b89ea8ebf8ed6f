"""The loop that discovers: reads lists of targets, and has the fleet follow them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from servescope.collector.clock import Clock
from servescope.collector.config import Configuration
from servescope.collector.discovery.targets import Discovery, ListKey
from servescope.collector.fleet import TargetRegistry
from servescope.collector.refill import Refill
from servescope.collector.scrapes.target_state import TargetState
from servescope.collector.scraping import ScrapeLoop
from servescope.collector.targets.deployments import HttpDiscoverySettings
from servescope.collector.targets.target import Target
from servescope.collector.telemetry import Telemetry
from servescope.web.connections import FetchError

_logger = logging.getLogger(__name__)

FetchList = Callable[[HttpDiscoverySettings], Awaitable[bytes]]


class DiscoveryLoop:
    """Reads the lists of targets, starts to watch new targets and retires those no longer listed.

    `fetch_list` asks the URLs of `http_sd`.
    """

    def __init__(
        self,
        configuration: Configuration,
        fleet: TargetRegistry,
        refill: Refill,
        scraping: ScrapeLoop,
        clock: Clock,
        telemetry: Telemetry,
        fetch_list: FetchList | None,
    ) -> None:
        self.discovery = Discovery(configuration)
        self._fleet, self._refill, self._scraping = fleet, refill, scraping
        self._clock, self._telemetry = clock, telemetry
        self._fetch_list = fetch_list
        # The targets that the fleet follows; the same object has nothing new.
        self._followed: tuple[Target, ...] | None = None
        self._running = asyncio.Lock()
        self._tasks: asyncio.TaskGroup | None = None
        self._asking: dict[ListKey, asyncio.Task[None]] = {}

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start to scrape, to ask http_sd, and to read the lists again and again."""
        self._tasks = tasks
        self._start_tasks()
        tasks.create_task(self._discover_regularly())

    def stop(self) -> None:
        """Start no task any more; the task group has ended."""
        self._tasks = None

    async def discover(self) -> None:
        """Read the lists of targets that changed, and have the fleet follow them."""
        async with self._running:
            started = time.perf_counter()
            # A long file takes its time to be read, which scrapes need not wait for.
            self.discovery.apply(await asyncio.to_thread(self.discovery.read_files))
            await self._follow()
            self._telemetry.discovery_seconds.observe(time.perf_counter() - started)

    async def apply(self, configuration: Configuration, then: Callable[[], None]) -> None:
        """Follow the lists of another configuration; `then` is called before the first target changes."""
        async with self._running:
            self.discovery = Discovery(configuration, self.discovery)
            self._followed = None
            then()
            await self._follow()

    async def ask(self, key: ListKey) -> float:
        """Ask one http_sd for its list now and keep the answer for the next `discover`.

        Returns the seconds it wants to be left alone for, 0 when it does not.
        """
        settings = key.settings
        if self._fetch_list is None or not isinstance(settings, HttpDiscoverySettings):
            self.discovery.note_failure(key, "this collector was made without a way to ask it")
            return 0.0
        try:
            body = await self._fetch_list(settings)
        except FetchError as error:
            self.discovery.note_failure(key, str(error))
            return error.retry_after_seconds or 0.0
        # A long list takes its time to be read, which scrapes need not wait for.
        self.discovery.commit(key, await asyncio.to_thread(self.discovery.read_answer, key, body))
        return 0.0

    # --- Following ----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        fleet, targets = self._fleet, self.discovery.targets
        if targets is self._followed:
            if fleet.forget_spent():
                fleet.settle_supplies()
            return
        listed = {target.target_id: target for target in targets}
        fleet.pacer.set_targets(listed.values())
        watching = {watched.listed.target_id: watched for watched in fleet.listed.values()}
        for gone in watching.keys() - listed.keys():
            fleet.retire(watching[gone].target.target_id)
            _logger.info("%s is no longer listed", watching[gone].target.target_id)
        for target_id, target in listed.items():
            known = watching.get(target_id)
            if known is None:
                known = await self._watch(target)
                fleet.listed[known.target.target_id] = known
            elif known.listed != target:
                fleet.change(known, target)
        fleet.forget_spent()
        fleet.settle_supplies()
        self._count_lists()
        self._start_tasks()
        self._followed = targets

    async def _watch(self, target: Target) -> TargetState:
        returning = self._fleet.take_back(target)
        if returning is not None:
            if returning.listed != target:
                self._fleet.change(returning, target)
            return returning
        watched = self._fleet.watch(target, await self._refill.model_of(target) if target.takes_model else None)
        await self._refill.target(watched)
        return watched

    def _count_lists(self) -> None:
        lists = self.discovery.lists()
        self._telemetry.set_discovered(
            kept=sum(each.targets for each in lists), dropped=sum(each.dropped for each in lists)
        )

    # --- Tasks --------------------------------------------------------------------------------------------------------

    def _start_tasks(self) -> None:
        """Have tasks for the targets and lists that have none yet, once the collector runs."""
        if self._tasks is None:
            return
        self._scraping.start(self._tasks)
        lists = {key: key.settings for key in self.discovery.http_lists()}
        for key in [key for key in self._asking if key not in lists]:
            self._asking.pop(key).cancel()
        for key, settings in lists.items():
            if key not in self._asking and isinstance(settings, HttpDiscoverySettings):
                asking = self._ask_regularly(key, settings.refresh_interval_ms)
                self._asking[key] = self._tasks.create_task(asking)

    async def _discover_regularly(self) -> None:
        while True:
            await self._clock.sleep(self._fleet.settings.discovery_interval_ms / 1000)
            await self._discover_safely()

    async def _discover_safely(self) -> None:
        self._scraping.findings.log_rest()
        try:
            await self.discover()
        except Exception:
            # An error of ours with a list must not end the scraping of the targets already known.
            message = "the lists of targets could not be applied; the former targets stay"
            self._telemetry.report_fault("discover", message)

    async def _ask_regularly(self, key: ListKey, interval_ms: int) -> None:
        while True:
            wait_seconds = interval_ms / 1000
            try:
                wait_seconds = max(wait_seconds, await self.ask(key))
            except Exception:
                # An error of ours with one list must not end the reading of it.
                message = f"the list of {key.place} could not be read; its former targets stay"
                self._telemetry.report_fault("discover", message)
            await self._discover_safely()
            await self._clock.sleep(wait_seconds)
