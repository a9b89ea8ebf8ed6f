"""A collector that scrapes nothing: it gathers what shards scraped, and derives and keeps it as if it had done so."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace
from typing import Unpack

from servescope.collector.collector import Collector, Options
from servescope.collector.config import Configuration
from servescope.collector.deployments import ScrapeSettings
from servescope.collector.exposition import Gauges
from servescope.collector.membership import MemberClient, Membership, check_part
from servescope.collector.relay import MOST_LAYOUTS, Page, Relayed, RelayError, read_layouts, read_page
from servescope.collector.scrape import Fetch, ScrapeError
from servescope.collector.store import AHEAD_MS, Store, StoreError, TargetStatus
from servescope.collector.targets import Target
from servescope.collector.telemetry import watch_event_loop
from servescope.collector.watched import Watched
from servescope.errors import ConfigurationError
from servescope.samples import Series, Snapshot

_logger = logging.getLogger(__name__)

# One gathering asks each shard for at most so many pages; what is left waits for the next.
_MOST_PAGES = 4
# Shards that tell of their past are kept this close together, so that a target's scrapes come in order.
_ABREAST_MS = 300_000
_SKEW_TOLD_MS = 5_000
_MOST_BACKLOG = 5_000
_LAYOUTS_PER_TARGET = 8


@dataclass(slots=True, eq=False)
class _Upstream:
    """One shard as it is followed, times by its own clock.

    `cursor` is None until it is followed. While `past_ms` is set, its past is known up to there and asked for until
    `past_until_ms`; `seen_ms` is when it last had nothing more to tell. `listed` is None until it said what it scrapes.
    What was pulled waits in `statuses` and `scrapes` to be taken up.
    """

    member: str
    since_ms: int
    cursor: str | None = None
    past_ms: int | None = None
    past_until_ms: int = 0
    seen_ms: int | None = None
    complete: bool = False
    listed: frozenset[str] | None = None
    targets: dict[str, Target] = field(default_factory=dict)
    statuses: dict[str, TargetStatus] = field(default_factory=dict)
    scrapes: list[Relayed] = field(default_factory=list)
    error: str | None = None
    silent_since_ms: int | None = None
    skew_ms: int = 0
    pulling: asyncio.Task[None] | None = None


class Parent(Collector):
    """Gathers the scrapes of all shards into one collector: its figures are those of one that scrapes every target.

    A scrape that is not after the target's last one is left out, so that a target two shards scrape counts once. A
    shard that does not answer leaves its targets unknown; what it scraped meanwhile is fetched when it is back, as one
    that was away itself does from all, up to `catch_up` back.
    """

    def __init__(
        self,
        configuration: Configuration,
        store: Store,
        history: Store,
        fetch: Fetch,
        **options: Unpack[Options],
    ) -> None:
        shards = configuration.shards
        if shards is None:
            raise ConfigurationError(f"{configuration.origin}: no [shards], expected those to gather from")
        check_part(configuration)
        self._membership = Membership(shards)
        super().__init__(configuration, store, history, fetch, **options)
        self._catch_up_ms = shards.catch_up_ms
        self._shards = MemberClient(fetch, shards, self.settings.scrape_timeout_ms / 1000)
        self._patience_seconds = min(self.settings.discovery_interval_ms, self.settings.evaluation_interval_ms) / 3000
        self._upstreams: dict[str, _Upstream] = {}
        self._layouts: dict[str, dict[str, tuple[Series, ...]]] = {}
        self._stored: dict[str, TargetStatus] | None = None
        self._scraped_by: dict[str, str] = {}
        self._first_since_ms = 0
        self._gathering = asyncio.Lock()

    @property
    def problems(self) -> list[str]:
        """What is wrong with the shards now, and which figures lack targets."""
        return [*self._membership.problems, *(text for each in self._upstreams.values() for text in self._told(each))]

    def own_gauges(self) -> list[Gauges]:
        """What `/metrics` shows of the shards, beside what every collector shows."""
        shards = [((("shard", each.member),), each) for each in self._upstreams.values()]
        return [
            *super().own_gauges(),
            Gauges(
                "servescope_shard_up",
                [(labels, float(each.error is None)) for labels, each in shards],
            ),
            Gauges(
                "servescope_shard_targets",
                [(labels, float(len(each.listed or ()))) for labels, each in shards],
            ),
            Gauges(
                "servescope_shard_clock_skew_seconds",
                [(labels, each.skew_ms / 1000) for labels, each in shards],
            ),
        ]

    async def run(self) -> None:
        """Gather and evaluate, each at its interval, until cancelled."""
        try:
            await self._recall_alerts()
            await self.gather()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(watch_event_loop(self.telemetry))
                tasks.create_task(self._gather_regularly())
                tasks.create_task(self._evaluate_regularly())
        finally:
            pulls = [each.pulling for each in self._upstreams.values() if each.pulling is not None]
            for pull in pulls:
                pull.cancel()
            await asyncio.gather(*pulls, return_exceptions=True)
            await self.alerts.close()

    async def discover(self) -> None:
        """Gather once, waiting for every shard."""
        await self.gather()

    # --- Gathering ----------------------------------------------------------------------------------------------------

    async def gather(self, *, patience_seconds: float | None = None) -> None:
        """Fetch from every shard what it scraped, and take it up; one slower than the patience is waited for next time.

        Never raises for what a shard does.
        """
        async with self._gathering:
            started = time.perf_counter()
            await self._recall()
            self._follow_members()
            pulls = [self._pull_soon(upstream) for upstream in self._abreast()]
            if pulls:
                await asyncio.wait(pulls, timeout=patience_seconds)
            await self._take_up_pulled()
            self.telemetry.discovery_seconds.observe(time.perf_counter() - started)

    async def _gather_regularly(self) -> None:
        while True:
            await self._sleep(self.settings.discovery_interval_ms / 1000)
            await self._gather_safely()
            while any(each.error is None and not each.complete for each in self._upstreams.values()):
                # Much is to be caught up with; the store sets the pace.
                while self._writer.backlog() > _MOST_BACKLOG:
                    await self._sleep(0.05)
                await self._gather_safely()

    async def _prepare_evaluation(self) -> None:
        # What the shards scraped until now counts; one that hangs must not hold up the figures of the others.
        await self._gather_safely()

    async def _gather_safely(self) -> None:
        try:
            await self.gather(patience_seconds=self._patience_seconds)
        except Exception:
            # A mistake of ours on what one shard says must not end the figures of all.
            self._on_fault("gather", "what the shards scraped could not be taken up")

    async def _recall(self) -> None:
        """The targets as they were before this collector was started: they are known, if only by name."""
        if self._stored is not None:
            return
        try:
            stored = await asyncio.to_thread(self.history.targets)
        except StoreError as error:
            self._on_store_error(error)
            stored = []
        self._stored = {status.target_id: status for status in stored}
        last = [status.last_scrape_ms for status in stored if status.last_scrape_ms is not None]
        self._first_since_ms = min(last, default=0)

    def _follow_members(self) -> None:
        """Follow every member, and one that left until it has no target any more, or was silent for a window."""
        self._membership.refresh()
        members = self._membership.members
        for member in members:
            if member not in self._upstreams:
                self._upstreams[member] = _Upstream(member, self._first_since_ms)
        for upstream in [each for name, each in self._upstreams.items() if name not in members]:
            since = upstream.silent_since_ms
            if since is not None and self.now_ms - since > self.settings.window_ms:
                self._drop(upstream, "it left and does not answer")
            elif upstream.error is None and upstream.complete and not upstream.listed:
                self._drop(upstream, "it left and has no target any more")

    def _drop(self, upstream: _Upstream, why: str) -> None:
        if upstream.pulling is not None:
            upstream.pulling.cancel()
        del self._upstreams[upstream.member]
        _logger.info("shard %s is no longer followed: %s", upstream.member, why)

    def _abreast(self) -> list[_Upstream]:
        """The shards to ask now: those that tell of their past not far ahead of one another."""
        behind = [each.past_ms for each in self._upstreams.values() if each.past_ms is not None and each.error is None]
        furthest = min(behind, default=0) + _ABREAST_MS
        return [each for each in self._upstreams.values() if each.past_ms is None or each.past_ms <= furthest]

    # --- Pulling ------------------------------------------------------------------------------------------------------

    def _pull_soon(self, upstream: _Upstream) -> asyncio.Task[None]:
        if upstream.pulling is None or upstream.pulling.done():
            upstream.pulling = asyncio.create_task(self._pull(upstream))
        return upstream.pulling

    async def _pull(self, upstream: _Upstream) -> None:
        try:
            for _ in range(_MOST_PAGES):
                await self._pull_page(upstream)
                if upstream.complete:
                    break
        except (ScrapeError, RelayError) as error:
            self._note_silence(upstream, str(error))
        except Exception as error:
            self._on_fault("gather", f"shard {upstream.member}: its answer could not be read")
            self._note_silence(upstream, f"{type(error).__name__}: {error}")
        else:
            if upstream.error is not None:
                _logger.info("shard %s answers again", upstream.member)
            upstream.error = upstream.silent_since_ms = None

    def _note_silence(self, upstream: _Upstream, error: str) -> None:
        if upstream.error is None:
            _logger.warning("shard %s: %s", upstream.member, error)
            upstream.silent_since_ms = self.now_ms
        upstream.error = error

    async def _pull_page(self, upstream: _Upstream) -> None:
        """One step: begin to follow, then the past, then what came since; what is pulled waits to be taken up."""
        if upstream.cursor is None:
            await self._begin(upstream)
        elif upstream.past_ms is not None:
            await self._pull_past(upstream, upstream.past_ms)
        else:
            await self._pull_news(upstream, upstream.cursor)

    async def _begin(self, upstream: _Upstream) -> None:
        page = await self._ask(upstream, "")
        since_ms = upstream.since_ms if upstream.seen_ms is None else upstream.seen_ms
        # What began before that may have ended after it.
        upstream.past_ms = max(0, since_ms - self.settings.scrape_timeout_ms, page.now_ms - self._catch_up_ms)
        upstream.past_until_ms = page.now_ms
        upstream.cursor = page.cursor

    async def _pull_past(self, upstream: _Upstream, past_ms: int) -> None:
        page = await self._ask(upstream, f"?since_ms={past_ms}&until_ms={upstream.past_until_ms}")
        if page.until_ms is None or page.until_ms <= past_ms < upstream.past_until_ms:
            raise RelayError(f"its past does not go on from {past_ms} ms")
        upstream.scrapes += await self._put_together(upstream, page)
        upstream.past_ms = None if page.until_ms >= upstream.past_until_ms else page.until_ms

    async def _pull_news(self, upstream: _Upstream, cursor: str) -> None:
        page = await self._ask(upstream, f"?after={cursor}")
        if page.gap:
            # It was started anew, or went on for too long without us: again from where we were.
            upstream.cursor, upstream.complete = None, False
            return
        upstream.scrapes += await self._put_together(upstream, page)
        upstream.cursor, upstream.complete = page.cursor, page.complete
        if page.complete:
            upstream.listed, upstream.seen_ms = page.listed, page.now_ms
            kept = page.listed | page.targets.keys()
            upstream.targets = {name: target for name, target in upstream.targets.items() if name in kept}

    async def _ask(self, upstream: _Upstream, query: str) -> Page:
        body = await self._shards.ask(upstream.member, f"/api/v1/scrapes{query}")
        page = await asyncio.to_thread(read_page, body)
        upstream.skew_ms = page.now_ms - self.now_ms
        for name, told in page.targets.items():
            scraping = ScrapeSettings(told.scrape_interval_ms, told.scrape_timeout_ms)
            upstream.statuses[name] = told.status
            upstream.targets[name] = Target(told.status.url, told.status.identity, scraping=scraping)
        return page

    async def _put_together(self, upstream: _Upstream, page: Page) -> list[Relayed]:
        """The scrapes of a page, with their layouts: those that are new are asked for."""
        await self._learn_layouts(upstream, page)
        scrapes: list[Relayed] = []
        for target_id, time_ms, digest, values in page.scrapes:
            if digest is None:
                scrapes.append(Relayed(target_id, time_ms, None))
                continue
            series = self._layouts.get(target_id, {}).get(digest)
            if series is None:
                self.telemetry.relayed_scrapes.labels("unreadable").inc()
            elif len(series) != len(values):
                raise RelayError(f"a scrape of {target_id} has {len(values)} values for {len(series)} series")
            else:
                scrapes.append(Relayed(target_id, time_ms, Snapshot(series, values)))
        return scrapes

    async def _learn_layouts(self, upstream: _Upstream, page: Page) -> None:
        missing = {
            digest: target_id
            for target_id, _, digest, _ in page.scrapes
            if digest is not None and digest not in self._layouts.get(target_id, {})
        }
        wanted = list(missing)
        for first in range(0, len(wanted), MOST_LAYOUTS):
            digests = ",".join(wanted[first : first + MOST_LAYOUTS])
            body = await self._shards.ask(upstream.member, f"/api/v1/layouts?digest={digests}")
            for digest, series in (await asyncio.to_thread(read_layouts, body)).items():
                if digest in missing:
                    self._layouts.setdefault(missing[digest], {})[digest] = series

    def _forget_untold(self) -> None:
        """Keep the last layouts of the targets some shard has told of, and who scraped them last."""
        told: set[str] = set().union(*(upstream.targets for upstream in self._upstreams.values()))
        self._layouts = {name: known for name, known in self._layouts.items() if name in told}
        for known in self._layouts.values():
            for digest in list(known)[:-_LAYOUTS_PER_TARGET]:
                del known[digest]
        self._scraped_by = {name: member for name, member in self._scraped_by.items() if name in told}

    # --- Taking up ----------------------------------------------------------------------------------------------------

    async def _take_up_pulled(self) -> None:
        """Take up what the shards brought: the scrapes of all of them in the order of time."""
        scrapes, statuses = self._collect_pulled()
        # First those of targets that leave now: their series end after their last scrapes, not before.
        waiting = [each for each in scrapes if not self._take(*each)]
        async with self._discovering:
            await self._go_by_lists()
        for each in waiting:
            if not self._take(*each):
                self.telemetry.relayed_scrapes.labels("unlisted").inc()
        for watched in self._watched.values():
            status = statuses.get(watched.target.target_id)
            if status is not None and _is_newer(status, watched.status):
                watched.status = status
        self._mark_unknown()
        if not any(
            upstream.pulling is not None and not upstream.pulling.done() for upstream in self._upstreams.values()
        ):
            self._forget_untold()

    def _collect_pulled(self) -> tuple[list[tuple[str, Relayed]], dict[str, TargetStatus]]:
        """The scrapes, with the shards that made them, in the order of time, and the latest statuses."""
        scrapes: list[tuple[str, Relayed]] = []
        statuses = dict(self._stored or {})
        latest_ms = self.now_ms + AHEAD_MS
        for upstream in self._upstreams.values():
            scrapes += [(upstream.member, scrape) for scrape in upstream.scrapes]
            for name, status in upstream.statuses.items():
                if (status.last_scrape_ms or 0) <= latest_ms and _is_newer(status, statuses.get(name)):
                    statuses[name] = status
            upstream.scrapes, upstream.statuses = [], {}
        scrapes.sort(key=lambda each: each[1].time_ms)
        return scrapes, statuses

    def _take(self, member: str, scrape: Relayed) -> bool:
        """Keep a shard's scrape when it is after the target's last one; False when there is no such target."""
        watched = self._watched.get(scrape.target_id) or self._leaving.get(scrape.target_id)
        if watched is None:
            return False
        result = self._judge(watched, member, scrape)
        if result == "kept":
            self._append(watched, scrape.time_ms, scrape.snapshot)
            self._scraped_by[scrape.target_id] = member
        self.telemetry.relayed_scrapes.labels(result).inc()
        return True

    def _judge(self, watched: Watched, member: str, scrape: Relayed) -> str:
        """What becomes of a scrape: one of `RELAYED`."""
        latest_ms = self.now_ms + AHEAD_MS
        if watched.ring.last_ms is not None and watched.ring.last_ms > latest_ms:
            # Our clock was ahead when these came; they would shut out what comes now.
            watched.ring = self._ring(watched.target)
        if scrape.time_ms > latest_ms:
            return "future"
        last_ms = watched.ring.last_ms
        if last_ms is None or scrape.time_ms >= last_ms + _apart_ms(watched.target):
            return "kept"
        if scrape.time_ms <= last_ms:
            return "known"
        # Two shards may be under way at once, and the target answer the later one first: a counter would seem to have
        # been reset. In one interval only the shard that is heard already counts.
        return "kept" if self._scraped_by.get(scrape.target_id) == member else "overlapping"

    def _listed(self) -> tuple[Target, ...]:
        """What the shards list; while one has not said yet, also what was known before."""
        targets: dict[str, Target] = {}
        if any(upstream.listed is None for upstream in self._upstreams.values()):
            for status in (self._stored or {}).values():
                targets[status.target_id] = Target(status.url, status.identity, scraping=self.settings.scraping())
            targets |= {name: watched.target for name, watched in self._watched.items()}
        else:
            self._stored = {}
        for upstream in self._upstreams.values():
            for name in upstream.listed or ():
                if name in upstream.targets:
                    targets[name] = upstream.targets[name]
        found = tuple(targets[name] for name in sorted(targets))
        return self._gone_by if self._gone_by == found else found

    def _mark_unknown(self) -> None:
        """Have the targets of shards that do not answer say so."""
        silent = {
            name: upstream for upstream in self._upstreams.values() if upstream.error for name in upstream.listed or ()
        }
        for target_id, upstream in silent.items():
            watched = self._watched.get(target_id)
            if watched is not None and self.health(watched) == "unknown":
                error = f"unknown: shard {upstream.member} does not answer: {upstream.error}"
                watched.status = replace(watched.status, healthy=False, error=error)

    def _told(self, upstream: _Upstream) -> list[str]:
        told = []
        if upstream.error is not None:
            lacking = [self._watched[name] for name in upstream.listed or () if name in self._watched]
            unknown = [watched for watched in lacking if self.health(watched) == "unknown"]
            deployments = ", ".join(sorted({repr(watched.deployment.deployment_id) for watched in unknown}))
            partial = f"; {len(unknown)} targets are unknown, and figures of {deployments} lack them" if unknown else ""
            told.append(f"shard {upstream.member!r} does not answer: {upstream.error}{partial}")
        elif abs(upstream.skew_ms) > _SKEW_TOLD_MS:
            side = "ahead of" if upstream.skew_ms > 0 else "behind"
            seconds = abs(upstream.skew_ms) / 1000
            told.append(f"the clock of shard {upstream.member!r} is {seconds:.0f} s {side} this collector's")
        return told


def _apart_ms(target: Target) -> int:
    """How long after one shard's scrape that of another surely is the later one, and still comes in the next interval.

    A shard's next scrape begins an interval after the former's began, and a little before or after that.
    """
    interval_ms = target.scraping.interval_ms
    return max(interval_ms // 2, min(target.scraping.timeout_ms, interval_ms * 3 // 4))


def _is_newer(status: TargetStatus, former: TargetStatus | None) -> bool:
    return former is None or (status.last_scrape_ms or 0) > (former.last_scrape_ms or 0)
