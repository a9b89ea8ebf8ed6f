"""The running collector: discover, scrape, derive, store, each in its own rhythm.

All of it runs on one event loop; only the store is written, and read, in other threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from servescope.collector.config import CollectorSettings, Configuration
from servescope.collector.deployments import HttpDiscoverySettings, slowest_interval_ms
from servescope.collector.derive import Derivation, Deriver, Members, count_targets
from servescope.collector.exposition import TARGET_GAUGES, Gauges
from servescope.collector.pacing import Pacer, believe_hold, hold_ms, next_due_ms, scrape_offset_ms, tell_instant
from servescope.collector.paging.manager import AlertManager
from servescope.collector.paging.notifier import Post
from servescope.collector.recent_scrapes import RecentScrapes
from servescope.collector.scrape import Fetch, Scrape, ScrapeError, scrape_target
from servescope.collector.target import Target
from servescope.collector.targets import Discovery, ListKey, check_targets
from servescope.collector.telemetry import Telemetry, watch_event_loop
from servescope.collector.watched import Watched
from servescope.contract.expressions import Vector
from servescope.contract.identity import Deployment
from servescope.contract.samples import Labels, Sample, Snapshot, make_labels
from servescope.errors import ConfigurationError, ServescopeError
from servescope.settings.values import format_duration
from servescope.sources.cache import SeriesCache
from servescope.sources.layers import Supply
from servescope.sources.reader import Reader
from servescope.store.embedded import Store
from servescope.store.records import RecordedSettings, StoreError
from servescope.store.writer import Round, StoreWriter

_logger = logging.getLogger(__name__)

_PRUNE_EVERY_MS = 60_000
# A clock that leaps so far from one evaluation to the next is believed only so much later: what retention deletes is
# gone, and somebody may set the clock right until then.
_LEAP_MS = 600_000
_LEAP_BELIEVED_AFTER_MS = 3_600_000
_PROBLEM_TOLD_EVERY_SECONDS = 60.0
# The first scrapes come at once rather than within an interval, but not all in one instant.
_FIRST_SCRAPES_APART_MS = 10
# What a reload can change; the rest is made once, when the collector starts.
_CHANGEABLE = (
    "scrape_interval_ms", "scrape_timeout_ms", "evaluation_interval_ms", "discovery_interval_ms", "retention_ms",
    "retention_bytes", "max_body_bytes", "max_series", "max_labels", "max_label_bytes", "max_line_bytes",
)  # fmt: skip
SCRAPE_AGE = "servescope_target_scrape_age_seconds"
CONFIGURED_SHARE = "servescope_configured_share"
_REPLICA_ROLES = ("aggregated", "prefill", "decode")

Health = Literal["up", "down", "unknown"]


@dataclass(frozen=True, slots=True)
class Loading:
    """How the configuration was read last: when it was last taken up, in milliseconds, and why not since then.

    `needs_restart` names the settings that the file has otherwise than the running collector.
    """

    loaded_ms: int
    error: str | None = None
    needs_restart: tuple[str, ...] = ()


ReadConfiguration = Callable[[], Configuration]
FetchList = Callable[[HttpDiscoverySettings], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All figures at one instant, in milliseconds."""

    at_ms: int = 0
    deployments: dict[Deployment, Derivation] = field(default_factory=dict)


class Collector:
    """Scrapes the targets of a configuration and keeps figures; `run` does it until cancelled.

    `discover`, `scrape` and `evaluate` are its single steps, for callers who set the pace themselves. `store` is
    written in a thread of its own from here on and closed by `close`; `history` is another, read-only, view of the same
    file. `fetch_list` asks the URLs of `http_sd`, `reread` reads the configuration anew for `reload`, `post` tells
    receivers of alerts. `clock` is the wall clock in seconds. Not thread safe: all methods belong to one event loop.
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
        self.settings, self._api = configuration.collector, configuration.api
        self._shares = configuration.shares
        self._slowest_ms = slowest_interval_ms(configuration.deployments, self.settings.scrape_interval_ms)
        self.discovery = Discovery(configuration)
        self._fetch_list, self._reread = fetch_list, reread
        self._pacer = Pacer()
        # What was last gone by; a list of targets that is the same object has nothing new.
        self._gone_by: tuple[Target, ...] | None = None
        self._discovering = asyncio.Lock()
        self._reloading = asyncio.Lock()
        self._tasks: asyncio.TaskGroup | None = None
        self._asking: dict[ListKey, asyncio.Task[None]] = {}
        self.history = history
        self.telemetry = Telemetry()
        self.evaluation: Evaluation | None = None
        self._fetch, self._clock, self._sleep = fetch, clock, sleep
        self.loading = Loading(self.now_ms)
        self.telemetry.set_loading(success=True, loaded_seconds=self.loading.loaded_ms / 1000)
        self._watched: dict[str, Watched] = {}
        # Targets that are no longer listed count until their last samples have left the window.
        self._leaving: dict[str, Watched] = {}
        self._supplies: dict[Deployment, Supply] = {}
        self._cache = SeriesCache()
        self.alerts = AlertManager(
            configuration.alerting,
            window_ms=self.settings.window_ms,
            bounds=self.settings.window_bounds,
            telemetry=self.telemetry,
            post=post,
            submit=lambda round_: self._writer.submit(round_),
            on_fault=lambda message: self._on_fault("alert", message),
        )
        needs = self.alerts.view.requirements
        self._deriver = Deriver(self.settings.window_ms, self.settings.window_bounds, needs.asked)
        # The targets that the store has been told of, without which it takes no scrape.
        self._introduced: set[str] = set()
        self._pruned_ms = 0
        # When figures were stored last, how far the clock leapt since it was last believed, and when.
        self._stored_ms: int | None = None
        self._leap_ms, self._leapt_ms = 0, 0
        self._recorded_settings: RecordedSettings | None = None
        self.store_problem: str | None = None
        self._store_problem_told = self._drop_told = -_PROBLEM_TOLD_EVERY_SECONDS
        self._writer = StoreWriter(
            store,
            on_written=self._on_written,
            on_error=self._on_store_error,
            on_dropped=self._on_dropped_round,
            on_pruned=self.telemetry.store_pruned.inc,
        )

    @property
    def now_ms(self) -> int:
        """The wall clock in milliseconds."""
        return round(self._clock() * 1000)

    @property
    def watched(self) -> list[Watched]:
        """Every target of the configuration as it stands, by target id."""
        return [self._watched[target_id] for target_id in sorted(self._watched)]

    def health(self, watched: Watched) -> Health:
        """How the target's last scrape ended; unknown when that is longer ago than two scrapes may take."""
        status, target = watched.status, watched.target
        oldest = self.now_ms - 2 * self._pacer.interval_ms(target) - target.scraping.timeout_ms
        if status.last_scrape_ms is None or status.last_scrape_ms < oldest:
            return "unknown"
        return "up" if status.healthy else "down"

    def own_gauges(self) -> list[Gauges]:
        """What `/metrics` shows of the collector's state now, beside its telemetry."""
        counts: dict[tuple[Deployment, Health], int] = {}
        for watched in self._watched.values():
            key = (watched.deployment, self.health(watched))
            counts[key] = counts.get(key, 0) + 1
        values = [
            (make_labels((*deployment.labels(), ("health", health))), float(count))
            for (deployment, health), count in sorted(counts.items())
        ]
        return [
            Gauges("servescope_targets", values),
            Gauges(
                SCRAPE_AGE,
                list(self._scrape_ages()),
            ),
            Gauges(
                CONFIGURED_SHARE,
                [(share.labels(), share.share) for share in self._shares],
            ),
            Gauges(
                "servescope_alerts",
                self.alerts.counts(),
            ),
            Gauges("servescope_tasks", [((), float(len(asyncio.all_tasks())))]),
        ]

    def _scrape_ages(self) -> Iterator[tuple[Labels, float]]:
        now_ms = self.now_ms
        for watched in self.watched:
            if watched.status.last_success_ms is not None:
                yield watched.labels, max(0.0, (now_ms - watched.status.last_success_ms) / 1000)

    def _read_own(self, names: Collection[str]) -> dict[str, Vector]:
        """Series of `/metrics` that are the collector's own, those of these names, by their labels."""
        found = self.telemetry.read(names)
        scraped = [
            each
            for each in self._watched.values()
            if each.status.last_scrape_ms is not None and self.health(each) != "unknown"
        ]
        for name, value in TARGET_GAUGES.items():
            if name in names:
                found[name] = {each.labels: value(each.status) for each in scraped}
        found[SCRAPE_AGE] = dict(self._scrape_ages())
        found[CONFIGURED_SHARE] = {share.labels(): share.share for share in self._shares}
        return found

    @property
    def problems(self) -> list[str]:
        """What is wrong with the lists of targets now, or with how many there are of one host."""
        return [*self.discovery.problems, *self._pacer.find_problems(self.settings.window_ms)]

    async def run(self) -> None:
        """Discover, scrape and evaluate, each at its interval, until cancelled."""
        await self._recall_alerts()
        await self.discover()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._start_scraping()
                tasks.create_task(watch_event_loop(self.telemetry))
                tasks.create_task(self._discover_regularly())
                tasks.create_task(self._evaluate_regularly())
        finally:
            self._tasks = None
            await self.alerts.close()

    def close(self) -> None:
        """Write what still waits and close the store; `run` must have ended."""
        # The writer's connection closes last: it takes the write-ahead log along, a reader's cannot.
        self.history.close()
        self._writer.submit(Round(targets=[watched.status for watched in self.watched]))
        if not self._writer.close():
            _logger.error("the store is still being written; the last scrapes may be lost")

    # --- Discovery ----------------------------------------------------------------------------------------------------

    async def discover(self) -> None:
        """Read the lists of targets that changed, take up the new targets and let go of those no longer listed."""
        async with self._discovering:
            started = time.perf_counter()
            self.discovery.refresh()
            await self._go_by_lists()
            self.telemetry.discovery_seconds.observe(time.perf_counter() - started)

    async def _go_by_lists(self) -> None:
        targets = self.discovery.targets
        if targets is self._gone_by:
            leaving = len(self._leaving)
            self._forget_spent()
            if len(self._leaving) != leaving:
                self._settle_supplies()
            return
        listed = {target.target_id: target for target in targets}
        self._pacer.set_targets(listed.values())
        for target_id in [target_id for target_id in self._watched if target_id not in listed]:
            self._let_go(target_id)
        for target_id, target in listed.items():
            known = self._watched.get(target_id)
            if known is None:
                self._watched[target_id] = await self._take_up(target)
            elif known.target != target:
                self._change(known, target)
        self._forget_spent()
        self._settle_supplies()
        lists = self.discovery.lists()
        self.telemetry.set_discovered(
            kept=sum(each.targets for each in lists), dropped=sum(each.dropped for each in lists)
        )
        self._start_scraping()
        self._gone_by = targets

    async def _take_up(self, target: Target) -> Watched:
        returning = self._leaving.pop(target.target_id, None)
        if returning is not None:
            if returning.target != target:
                self._change(returning, target)
            return returning
        recent = self._recent(target)
        await self._recall_alerts()
        await self._refill(recent, target)
        self._deriver.take_up(target.identity.deployment(), recent)
        return Watched(target, self._reader(target), recent)

    def _recent(self, target: Target) -> RecentScrapes:
        settings = self.settings
        return RecentScrapes(settings.window_ms, 2 * target.scraping.interval_ms, max_series=settings.max_held_series)

    def _reader(self, target: Target) -> Reader:
        supply = self._supplies.setdefault(target.identity.deployment(), Supply())
        return Reader(target.identity, target.source, supply=supply, cache=self._cache)

    def _settle_supplies(self) -> None:
        """Let no metric be taken from a target that is no longer listed."""
        listed = _by_deployment(self._watched.values())
        for deployment, supply in self._supplies.items():
            supply.retain({watched.target.target_id for watched in listed.get(deployment, ())})
        # A target that left may return, with the reader it had.
        held = {watched.deployment for watched in (*self._watched.values(), *self._leaving.values())}
        self._supplies = {name: supply for name, supply in self._supplies.items() if name in held}

    async def _refill(self, recent: RecentScrapes, target: Target) -> None:
        """Take the scrapes that are still in the window from the store, as after a restart."""
        now, target_id = self.now_ms, target.target_id
        oldest = now - recent.hold_ms
        # What was counted last before an outage is what the first scrape after it is compared with.
        first = min(oldest, self.alerts.known_until_ms - recent.hold_ms) if self.alerts.known_until_ms else oldest
        try:
            scrapes = await asyncio.to_thread(self.history.read_scrapes, target_id, first, now)
        except StoreError as error:
            self._on_store_error(error)
            return
        except Exception:
            # A damaged row of one target's past must not keep the collector from starting.
            self._on_fault("refill", f"the past of {target_id} could not be read from the store; it starts anew")
            return
        deployment = target.identity.deployment()
        for time_ms, snapshot in scrapes:
            if time_ms >= oldest:
                if snapshot is not None:
                    await self._make_room(recent, deployment, time_ms, snapshot)
                recent.append(time_ms, snapshot)
            if snapshot is not None:
                self.alerts.count(target_id, deployment, time_ms, snapshot)

    async def _recall_alerts(self) -> None:
        """Take up how alerts stood before a restart, once."""
        settle_ms = 2 * (self._slowest_ms + self.settings.evaluation_interval_ms)
        try:
            await self.alerts.begin(self.history, self.now_ms, settle_ms)
        except StoreError as error:
            self._on_store_error(error)
        except Exception:
            # A damaged past of alerts must not keep the collector from starting.
            self._on_fault("refill", "what is stored of alerts could not be read; they start anew")

    def _change(self, watched: Watched, target: Target) -> None:
        """The same target at another address, or read in another way."""
        if target.source != watched.target.source:
            watched.reader = self._reader(target)
        watched.change(target)

    def _let_go(self, target_id: str) -> None:
        watched = self._leaving[target_id] = self._watched.pop(target_id)
        watched.stop()
        # Its series end here, as behind the stale markers of Prometheus.
        self._append(watched, self.now_ms, None)
        _logger.info("%s is no longer listed", target_id)

    def _forget_spent(self) -> None:
        now = self.now_ms
        self._leaving = {name: watched for name, watched in self._leaving.items() if not watched.recent.is_spent(now)}

    async def _discover_regularly(self) -> None:
        while True:
            await self._sleep(self.settings.discovery_interval_ms / 1000)
            await self._discover_safely()

    async def _discover_safely(self) -> None:
        try:
            await self.discover()
        except Exception:
            # A mistake of ours on a list must not end the scraping of those already known.
            self._on_fault("discover", "the lists of targets could not be taken up; the former targets stay")

    async def ask(self, key: ListKey) -> float:
        """Ask one http_sd for its list now and keep what it says for the next `discover`.

        The seconds it wants to be left alone for, 0 when it does not.
        """
        settings = key.settings
        if self._fetch_list is None or not isinstance(settings, HttpDiscoverySettings):
            self.discovery.note_failure(key, "this collector was made without a way to ask it")
            return 0.0
        try:
            body = await self._fetch_list(settings)
        except ScrapeError as error:
            self.discovery.note_failure(key, str(error))
            return error.retry_after_seconds or 0.0
        # A long list takes its time to be read, which scrapes need not wait for.
        self.discovery.take(key, await asyncio.to_thread(self.discovery.read_answer, key, body))
        return 0.0

    async def _ask_regularly(self, key: ListKey, interval_ms: int) -> None:
        while True:
            wait_seconds = interval_ms / 1000
            try:
                wait_seconds = max(wait_seconds, await self.ask(key))
            except Exception:
                # A mistake of ours on one list must not end the looking at it.
                self._on_fault("discover", f"the list of {key.place} could not be read; its former targets stay")
            await self._discover_safely()
            await self._sleep(wait_seconds)

    # --- Reload -------------------------------------------------------------------------------------------------------

    async def reload(self) -> Loading:
        """Read the configuration anew and go by it; what stays in it loses nothing.

        Raises ServescopeError when it is wrong, and then everything goes on as before.
        """
        async with self._reloading:
            try:
                if self._reread is None:
                    raise ConfigurationError("started without a configuration file; there is none to read anew")
                await self._apply(await asyncio.to_thread(self._reread))
            except ServescopeError as error:
                self.loading = replace(self.loading, error=str(error))
                self.telemetry.set_loading(success=False, loaded_seconds=self.loading.loaded_ms / 1000)
                # The operator's mistake, not ours: its text says all, a traceback nothing.
                _logger.error("the configuration is not taken up, the former one stays: %s", error)  # noqa: TRY400
                raise
            except Exception as error:
                # A mistake of ours on a configuration must not end what runs under the former one.
                self._on_fault("reload", "the configuration could not be taken up")
                self.loading = replace(self.loading, error=f"a fault in the collector: {type(error).__name__}: {error}")
                self.telemetry.set_loading(success=False, loaded_seconds=self.loading.loaded_ms / 1000)
                raise ServescopeError(self.loading.error) from error
            self.telemetry.set_loading(success=True, loaded_seconds=self.loading.loaded_ms / 1000)
            _logger.info("the configuration is taken up anew")
            for name in self.loading.needs_restart:
                _logger.warning("setting %r of the configuration has changed; it takes a restart to go by it", name)
            return self.loading

    async def _apply(self, configuration: Configuration) -> None:
        settings, needs_restart = _merge(self.settings, configuration.collector)
        if configuration.api != self._api:
            needs_restart = (*needs_restart, "api")
        configuration = replace(configuration, collector=settings)
        check_targets(configuration)
        _check_window(configuration)
        async with self._discovering:
            self.discovery = Discovery(configuration, self.discovery)
            self.settings, self._shares, self._gone_by = settings, configuration.shares, None
            self.alerts.apply(configuration.alerting)
            await self._go_by_lists()
        self.loading = Loading(self.now_ms, None, needs_restart)

    # --- Scraping -----------------------------------------------------------------------------------------------------

    async def scrape(self, watched: Watched) -> Scrape:
        """Scrape one target now and book what came of it."""
        scrape = await scrape_target(watched.target, watched.reader, self._fetch, watched.limits, clock=self._clock)
        if scrape.snapshot is not None:
            await self._make_room(watched.recent, watched.deployment, scrape.time_ms, scrape.snapshot)
        if not self._append(watched, scrape.time_ms, scrape.snapshot):
            message = f"{watched.target.url}: the clock stands before the last scrape; this one is left out"
            scrape = Scrape(scrape.time_ms, scrape.duration_seconds, "clock", error=message)
        elif scrape.snapshot is not None and watched.recent.left_out:
            scrape = replace(scrape, dropped={**scrape.dropped, "series_limit": watched.recent.left_out})
        if scrape.outcome == "rate_limited":
            scrape = self._hold(watched, scrape)
        else:
            watched.refusals = 0
        self.telemetry.count_scrape(scrape)
        watched.take_note(scrape)
        return scrape

    def _hold(self, watched: Watched, scrape: Scrape) -> Scrape:
        """Leave a target alone that asks for it, and all of its host where that is limited."""
        watched.refusals += 1
        watched.held_until_ms = self.now_ms + hold_ms(scrape.retry_after_seconds, watched.refusals)
        host = self._pacer.host(watched.target)
        if host is not None:
            host.hold(watched.held_until_ms)
        return replace(scrape, error=f"{scrape.error}; tried again from {tell_instant(watched.held_until_ms)} on")

    async def _make_room(self, recent: RecentScrapes, deployment: Deployment, time_ms: int, snapshot: Snapshot) -> None:
        """Look up the new series of a scrape part by part: thousands at once would delay the scrapes of others."""
        for _ in recent.reserve(time_ms, snapshot.series):
            self._deriver.take_up(deployment, recent)
            await asyncio.sleep(0)

    def _append(self, watched: Watched, time_ms: int, snapshot: Snapshot | None) -> bool:
        """Keep a scrape in memory and for the store; False when it is not after the last one."""
        last_ms = watched.recent.last_ms
        if last_ms is not None and time_ms < last_ms - watched.recent.hold_ms:
            # The clock was set back by more than all that is held: what is held is of no use any more.
            watched.recent = self._recent(watched.target)
        elif last_ms is not None and time_ms <= last_ms:
            return False
        kept = watched.recent.append(time_ms, snapshot)
        self._store_scrape(watched, time_ms, kept)
        self._deriver.take_up(watched.deployment, watched.recent)
        if kept is not None:
            self.alerts.count(watched.target.target_id, watched.deployment, time_ms, kept)
        return True

    def _start_scraping(self) -> None:
        """Have tasks for the targets and lists that have none yet, once the collector runs."""
        if self._tasks is None:
            return
        spread_ms = _FIRST_SCRAPES_APART_MS * len(self._watched)
        for watched in self._watched.values():
            if watched.task is None:
                watched.task = self._tasks.create_task(self._scrape_regularly(watched, spread_ms))
        lists = {key: key.settings for key in self.discovery.http_lists()}
        for key in [key for key in self._asking if key not in lists]:
            self._asking.pop(key).cancel()
        for key, settings in lists.items():
            if key not in self._asking and isinstance(settings, HttpDiscoverySettings):
                asking = self._ask_regularly(key, settings.refresh_interval_ms)
                self._asking[key] = self._tasks.create_task(asking)

    async def _scrape_regularly(self, watched: Watched, spread_ms: int) -> None:
        interval = watched.target.scraping.interval_ms
        offset = scrape_offset_ms(watched.target.target_id, interval)
        first_ms = 0
        if watched.status.last_scrape_ms is None:
            first_ms = self.now_ms + offset * min(spread_ms, interval) // interval
        else:
            # It was scraped before, at another pace.
            first_ms = next_due_ms(self.now_ms, interval, offset, after_ms=0)
        await self._rest_until(watched, max(first_ms, self._held_until_ms(watched)))
        due = 0
        while True:
            await self._await_turn(watched)
            try:
                await self.scrape(watched)
            except Exception:
                # A mistake of ours on what one target shows must not end the scraping of all.
                self._on_fault("scrape", f"{watched.target.target_id}: what a scrape brought could not be booked")
            interval = watched.target.scraping.interval_ms
            offset = scrape_offset_ms(watched.target.target_id, interval)
            held_ms = self._held_until_ms(watched)
            former, due = due, next_due_ms(max(self.now_ms, held_ms), interval, offset, after_ms=due)
            if former and held_ms <= self.now_ms and self._pacer.host(watched.target) is None:
                self.telemetry.missed_scrapes.inc(max(0, (due - former) // interval - 1))
            await self._rest_until(watched, due)
            self.telemetry.scrape_lateness.observe(max(0, self.now_ms - due) / 1000)

    def _held_until_ms(self, watched: Watched) -> int:
        watched.held_until_ms = believe_hold(watched.held_until_ms, self.now_ms)
        return watched.held_until_ms

    async def _await_turn(self, watched: Watched) -> None:
        """Wait for a turn of the target's host, where that is limited."""
        while (host := self._pacer.host(watched.target)) is not None:
            turn = host.reserve(self.now_ms)
            await self._rest_until(watched, turn)
            if turn >= host.held_until_ms:
                return

    async def _rest_until(self, watched: Watched, due_ms: int) -> None:
        watched.next_scrape_ms, watched.resting = due_ms, True
        try:
            await self._sleep_until(due_ms)
        finally:
            watched.resting = False

    async def _sleep_until(self, due_ms: int) -> None:
        await self._sleep(max(0, due_ms - self._clock() * 1000) / 1000)

    # --- Figures ------------------------------------------------------------------------------------------------------

    def evaluate(self, at_ms: int) -> Evaluation:
        """Derive the figures of every deployment at an instant, show them and hand them to the store."""
        started = time.perf_counter()
        by_deployment = _by_deployment((*self._watched.values(), *self._leaving.values()))
        members = {
            deployment: Members([watched.recent for watched in watches], self._count(deployment, watches))
            for deployment, watches in by_deployment.items()
        }
        derived: dict[Deployment, Derivation] = {}
        failed: list[Deployment] = []
        for deployment, found in self._deriver.derive(members, at_ms).items():
            if isinstance(found, Exception):
                # A mistake of ours on one deployment's samples does not blind the others.
                self._on_fault("evaluate", f"{deployment.deployment_id}: no figures for this evaluation", found)
                failed.append(deployment)
            else:
                derived[deployment] = found
        evaluation = Evaluation(at_ms, derived)
        self.evaluation = evaluation
        self.telemetry.evaluation_seconds.observe(time.perf_counter() - started)
        series = sum(len(watched.recent) for watches in by_deployment.values() for watched in watches)
        self.telemetry.set_state(series=series, problems=len(self.problems))
        self._cache.resize(series)
        self._store_figures(evaluation)
        self._evaluate_alerts(evaluation, failed)
        return evaluation

    def _evaluate_alerts(self, evaluation: Evaluation, failed: Collection[Deployment]) -> None:
        try:
            needs = self.alerts.view.requirements
            self.alerts.evaluate(
                evaluation.at_ms,
                evaluation.deployments,
                self._read_own({*needs.own, *needs.counters}),
                interval_ms=self.settings.evaluation_interval_ms,
                targets={*self._watched, *self._leaving},
                unknown=failed,
            )
        except Exception:
            # A mistake of ours in alerting must not end the figures.
            self._on_fault("alert", "no alert was evaluated")

    def _count(self, deployment: Deployment, members: Iterable[Watched]) -> list[Sample]:
        """The replicas by status as the collector sees its own targets; none where it has scraped no replica."""
        healthy = [
            watched.status.healthy
            for watched in members
            if watched.target.target_id in self._watched
            and watched.target.identity.role in _REPLICA_ROLES
            and self.health(watched) != "unknown"
        ]
        return count_targets(deployment, healthy) if healthy else []

    async def _evaluate_regularly(self) -> None:
        due = 0
        while True:
            due = next_due_ms(self.now_ms, self.settings.evaluation_interval_ms, 0, after_ms=due)
            await self._sleep_until(due)
            try:
                self.evaluate(due)
            except Exception:
                # A mistake of ours in one evaluation must not end the scraping, nor the next one.
                self._on_fault("evaluate", "no figures of any deployment for this evaluation")

    # --- Store --------------------------------------------------------------------------------------------------------

    def _store_scrape(self, watched: Watched, time_ms: int, snapshot: Snapshot | None) -> None:
        """Have a scrape written at once: a process that is killed loses none but the one under way."""
        target_id = watched.target.target_id
        new = target_id not in self._introduced
        self._introduced.add(target_id)
        self._writer.submit(Round(scrapes=[(target_id, time_ms, snapshot)], targets=[watched.status] if new else ()))

    def _store_figures(self, evaluation: Evaluation) -> None:
        """Have an evaluation written, with the state of all targets and, now and then, what is to be kept."""
        round_ = Round(
            figures=[(name, evaluation.at_ms, each.figures) for name, each in evaluation.deployments.items()],
            targets=[watched.status for watched in self.watched],
            listed=frozenset(self._watched),
        )
        now = self.now_ms
        settings = self._derivation_settings()
        if settings != self._recorded_settings:
            self._recorded_settings = settings
            round_.settings = evaluation.at_ms, settings
        self._note_leap(now)
        # Either way round: a clock that was ahead for a while must not put it off for as long.
        if abs(now - self._pruned_ms) >= _PRUNE_EVERY_MS:
            self._pruned_ms = now
            round_.keep_from_ms = now - self._leap_ms - self.settings.retention_ms
            round_.keep_bytes = self.settings.retention_bytes
        self._introduced = {*self._watched, *self._leaving}
        self._writer.submit(round_)
        self.telemetry.set_store(
            backlog=self._writer.backlog(),
            age_seconds=self._writer.age_seconds(),
            size_bytes=self.history.size_bytes(),
        )

    def _note_leap(self, now: int) -> None:
        """Notice a clock that leapt forward, until it is believed."""
        leap = 0 if self._stored_ms is None else now - self._stored_ms
        self._stored_ms = now
        if leap > _LEAP_MS + 2 * self.settings.evaluation_interval_ms:
            self._leap_ms, self._leapt_ms = self._leap_ms + leap, now
            _logger.warning(
                "the clock leapt %.0f s forward; it is believed, for what is deleted by age, in an hour", leap / 1000
            )
        elif not 0 <= now - self._leapt_ms < _LEAP_BELIEVED_AFTER_MS:
            self._leap_ms = 0

    def _derivation_settings(self) -> RecordedSettings:
        settings = self.settings
        return RecordedSettings(
            settings.window_ms, settings.evaluation_interval_ms, settings.scrape_interval_ms, settings.window_bounds
        )

    def _on_written(self, seconds: float) -> None:
        self.telemetry.store_seconds.observe(seconds)
        if self.store_problem is not None:
            self.store_problem = None
            _logger.info("the store is written again")

    def _on_fault(self, stage: str, message: str, error: BaseException | None = None) -> None:
        """Count and log a mistake of ours: the error, or else the one that is being handled."""
        self.telemetry.failures.labels(stage).inc()
        _logger.error("%s", message, exc_info=error or True)

    def _on_store_error(self, error: StoreError) -> None:
        self.telemetry.store_errors.inc()
        now, problem = time.monotonic(), str(error)
        # Every try fails alike while a disk is full; the log gets it once, and again every minute.
        if problem != self.store_problem or now - self._store_problem_told >= _PROBLEM_TOLD_EVERY_SECONDS:
            self._store_problem_told = now
            _logger.error("%s; what was scraped waits to be written", error)
        self.store_problem = problem

    def _on_dropped_round(self, round_: Round) -> None:
        lost = sum(len(snapshot.series) for _, _, snapshot in round_.scrapes if snapshot is not None)
        self.telemetry.count_dropped({"store": lost})
        now = time.monotonic()
        if now - self._drop_told >= _PROBLEM_TOLD_EVERY_SECONDS:
            self._drop_told = now
            _logger.error("the store has failed for too long; the oldest samples that wait for it are given up")


def _by_deployment(targets: Iterable[Watched]) -> dict[Deployment, list[Watched]]:
    members: dict[Deployment, list[Watched]] = {}
    for watched in targets:
        members.setdefault(watched.deployment, []).append(watched)
    return members


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
