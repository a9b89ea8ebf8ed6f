"""The running collector: discovers, scrapes, derives and stores, each in a loop of its own.

All of it runs on one event loop; only the store is written, and read, in other threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace

from servescope.collector.clock import Clock
from servescope.collector.config import CollectorSettings, Configuration
from servescope.collector.discovery.loop import DiscoveryLoop, FetchList
from servescope.collector.discovery.targets import check_targets
from servescope.collector.evaluation import EvaluationLoop
from servescope.collector.figures.derive import Deriver
from servescope.collector.fleet import TargetRegistry
from servescope.collector.own_series import OwnSeries
from servescope.collector.paging.manager import AlertManager
from servescope.collector.paging.notifier import Post
from servescope.collector.recording.recorder import Recorder
from servescope.collector.refill import Refill
from servescope.collector.scrapes.scrape import Fetch
from servescope.collector.scraping import ScrapeLoop
from servescope.collector.targets.deployments import slowest_interval_ms
from servescope.collector.telemetry import Telemetry, watch_event_loop
from servescope.errors import ConfigurationError, ServescopeError
from servescope.settings.values import format_duration
from servescope.sources.page import DEFAULT_LIMITS
from servescope.store.embedded import Store

_logger = logging.getLogger(__name__)

# What a reload can change; the rest is made once, when the collector starts.
_CHANGEABLE = (
    "scrape_interval_ms", "scrape_timeout_ms", "evaluation_interval_ms", "discovery_interval_ms", "retention_ms",
    "increments_retention_ms", "retention_bytes", "max_body_bytes", *DEFAULT_LIMITS.by_name(),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Loading:
    """How the configuration was read last: when it was last applied, in milliseconds, and why not since then.

    `needs_restart` names the settings that the file has otherwise than the running collector.
    """

    loaded_ms: int
    error: str | None = None
    needs_restart: tuple[str, ...] = ()


ReadConfiguration = Callable[[], Configuration]


class Collector:
    """Scrapes the targets of a configuration and keeps figures; `run` does it until cancelled.

    `discovering`, `scraping` and `evaluating` have its single steps, for callers who set the pace themselves.
    `store` is written in a thread of its own from here on and closed by `close`; `history` is another, read-only, view
    of the same file. `fetch_list` asks the URLs of `http_sd`, `reread` reads the configuration again for `reload`,
    `post` notifies receivers of alerts. `clock` is the wall clock in seconds. Not thread safe: all methods belong to
    one event loop.
    """

    def __init__(
        self,
        configuration: Configuration,
        store: Store,
        history: Store,
        fetch: Fetch,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        fetch_list: FetchList | None = None,
        reread: ReadConfiguration | None = None,
        post: Post | None = None,
    ) -> None:
        settings = configuration.collector
        self._api, self._reread = configuration.api, reread
        self._reloading = asyncio.Lock()
        self.clock, self.telemetry = Clock(clock, sleep), Telemetry()
        self.telemetry.clock.set_function(clock)
        self.recorder = Recorder(store, history, self.telemetry, self.clock)
        self.alerts = AlertManager(
            configuration.alerting,
            window_ms=settings.window_ms,
            bounds=settings.window_bounds,
            telemetry=self.telemetry,
            post=post,
            submit=self.recorder.submit,
            on_fault=lambda message: self.telemetry.report_fault("alert", message),
        )
        deriver = Deriver(settings.window_ms, settings.window_bounds, self.alerts.view.requirements.asked)
        self.fleet = TargetRegistry(settings, self.clock, deriver, self.alerts, self.recorder)
        self.own = OwnSeries(self.fleet, self.alerts, self.telemetry, configuration.traffic_split)
        slowest_ms = slowest_interval_ms(configuration.deployments, settings.scrape_interval_ms)
        settle_ms = 2 * (slowest_ms + settings.evaluation_interval_ms)
        self._refill = Refill(self.fleet, self.alerts, self.recorder, self.clock, self.telemetry, settle_ms)
        self.scraping = ScrapeLoop(self.fleet, fetch, self.clock, self.telemetry)
        self.discovering = DiscoveryLoop(
            configuration, self.fleet, self._refill, self.scraping, self.clock, self.telemetry, fetch_list
        )
        self.fleet.check_identity = lambda listed, identity: self.discovering.discovery.rights.refuse(listed, identity)
        self.evaluating = EvaluationLoop(
            # Of the lists alone: a host with too many targets is reported by the age of their scrapes.
            self.fleet, deriver, self.alerts, self.recorder, self.own, self.clock, self.telemetry,
            lambda: self.discovering.discovery.problems,
        )  # fmt: skip
        self.loading = Loading(self.clock.now_ms)
        self.telemetry.set_loading(success=True, loaded_seconds=self.loading.loaded_ms / 1000)

    # --- What it holds ------------------------------------------------------------------------------------------------

    @property
    def store_problem(self) -> str | None:
        """Why the store cannot be written, or is not, None while it is."""
        return self.recorder.problem or self.recorder.held

    @property
    def problems(self) -> list[str]:
        """What is wrong with the lists of targets now, or with how many there are of one host."""
        return [*self.discovering.discovery.problems, *self.fleet.pacer.find_problems(self.fleet.settings.window_ms)]

    # --- Running ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Discover, scrape and evaluate, each at its interval, until cancelled."""
        await self._refill.alerts()
        await asyncio.to_thread(self.recorder.recall)
        await self.discovering.discover()
        try:
            async with asyncio.TaskGroup() as tasks:
                self.discovering.start(tasks)
                tasks.create_task(watch_event_loop(self.telemetry))
                tasks.create_task(self.evaluating.run())
        finally:
            self.discovering.stop()
            await self.alerts.close()

    def close(self) -> None:
        """Write what still waits and close the store; `run` must have ended."""
        self.recorder.close([watched.status for watched in self.fleet.shown])

    # --- Reload -------------------------------------------------------------------------------------------------------

    async def reload(self) -> Loading:
        """Read the configuration again and apply it; what stays in it loses nothing.

        Raises ServescopeError when it is wrong; the running configuration then stays in place.
        """
        async with self._reloading:
            try:
                if self._reread is None:
                    raise ConfigurationError("started without a configuration file; there is none to read again")
                await self._apply(await asyncio.to_thread(self._reread))
            except ServescopeError as error:
                self._note_failure(str(error))
                # A mistake in the file, not a bug: the text is enough, a traceback would not help.
                _logger.error("the configuration is not applied, the former one stays: %s", error)  # noqa: TRY400
                raise
            except Exception as error:
                # An error of ours with a configuration must not end what runs under the former one.
                self.telemetry.report_fault("reload", "the configuration could not be applied")
                self._note_failure(f"a fault in the collector: {type(error).__name__}: {error}")
                raise ServescopeError(self.loading.error) from error
            self.telemetry.set_loading(success=True, loaded_seconds=self.loading.loaded_ms / 1000)
            _logger.info("the configuration is applied")
            for name in self.loading.needs_restart:
                _logger.warning("setting %r of the configuration has changed; the change needs a restart", name)
            return self.loading

    def _note_failure(self, error: str) -> None:
        self.loading = replace(self.loading, error=error)
        self.telemetry.set_loading(success=False, loaded_seconds=self.loading.loaded_ms / 1000)

    async def _apply(self, configuration: Configuration) -> None:
        settings, needs_restart = _merge(self.fleet.settings, configuration.collector)
        if configuration.api != self._api:
            needs_restart = (*needs_restart, "api")
        if configuration.alerting.choices != self.alerts.choices:
            needs_restart = (*needs_restart, "alerting.options")
        configuration = replace(configuration, collector=settings)
        check_targets(configuration)
        _check_window(configuration)

        def switch() -> None:
            self.fleet.settings, self.own.traffic_split = settings, configuration.traffic_split
            self.alerts.apply(configuration.alerting)

        await self.discovering.apply(configuration, switch)
        self.loading = Loading(self.clock.now_ms, None, needs_restart)


def _merge(running: CollectorSettings, read: CollectorSettings) -> tuple[CollectorSettings, tuple[str, ...]]:
    """The settings to go on with, and those that a running collector cannot change."""
    fixed = {each.name: getattr(running, each.name) for each in fields(running) if each.name not in _CHANGEABLE}
    differ = tuple(name.removesuffix("_ms") for name, value in fixed.items() if value != getattr(read, name))
    return replace(read, **fixed), differ


def _check_window(configuration: Configuration) -> None:
    """Raise ConfigurationError when the window, which stays, does not suit the intervals that a file brings."""
    settings = configuration.collector
    window = format_duration(settings.window_ms)
    slowest = slowest_interval_ms(configuration.deployments, settings.scrape_interval_ms)
    if 2 * slowest > settings.window_ms:
        wrong = (
            f"a scrape_interval of {format_duration(slowest)}, expected at most half of the running window ({window})"
        )
    elif settings.retention_ms < settings.window_ms:
        wrong = (
            f"a retention of {format_duration(settings.retention_ms)}, expected at least the running window ({window})"
        )
    else:
        return
    raise ConfigurationError(f"{configuration.origin}: {wrong}; another window takes a restart")
