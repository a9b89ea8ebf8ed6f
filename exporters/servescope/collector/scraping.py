"""The loop that scrapes: each target at its own interval, by its host's rate limit and its Retry-After."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from servescope.collector.clock import Clock
from servescope.collector.fleet import TargetRegistry
from servescope.collector.scrapes.findings import Findings
from servescope.collector.scrapes.pacing import believe_hold, format_instant, hold_ms, next_due_ms, scrape_offset_ms
from servescope.collector.scrapes.scrape import Fetch, Scrape, scrape_page
from servescope.collector.scrapes.target_state import TargetState
from servescope.collector.telemetry import Telemetry

# First scrapes start at once instead of spread over an interval, but not all at the same instant.
_FIRST_SCRAPES_APART_MS = 10


class ScrapeLoop:
    """Scrapes the listed targets of a fleet, each in a task of its own."""

    def __init__(self, fleet: TargetRegistry, fetch: Fetch, clock: Clock, telemetry: Telemetry) -> None:
        self._fleet, self._fetch, self._clock, self._telemetry = fleet, fetch, clock, telemetry
        self.findings = Findings()

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start a task for each page that has none yet."""
        spread_ms = _FIRST_SCRAPES_APART_MS * len(self._fleet.listed)
        for watched in self._fleet.pages:
            if watched.task is None and not self._is_scraped_by_another(watched):
                watched.task = tasks.create_task(self._scrape_regularly(watched, spread_ms))

    async def scrape(self, watched: TargetState) -> Scrape:
        """Scrape one target now, and with it all that are parts of the same page; book the results."""
        together = [watched, *self._fleet.sharing_page(watched)]
        for each in together:
            each.reader.take_model_of_others()
        parts = [(each.target, each.reader) for each in together]
        scrapes = await scrape_page(parts, self._fetch, watched.limits, clock=self._clock.seconds)
        booked = await asyncio.gather(*map(self._book, together, scrapes))
        return booked[0]

    async def _book(self, watched: TargetState, scrape: Scrape) -> Scrape:
        self._fleet.follow_model(watched)
        if watched.unnamed and not watched.may_stay_unnamed(scrape):
            # Not booked: it would leave a deployment behind whose name does not last.
            self._telemetry.count_scrape(scrape)
            watched.report(scrape)
            return scrape
        watched.unnamed = False
        await self._fleet.make_room(watched, scrape.time_ms, scrape.snapshot)
        if not self._fleet.book(watched, scrape.time_ms, scrape.snapshot):
            message = (
                f"{watched.target.url}: the clock was set; a scrape of {format_instant(scrape.time_ms)} is dropped, as "
                f"it is {format_instant(self._clock.now_ms)}, and the last scrape is of "
                f"{format_instant(watched.recent.last_ms or 0)}"
            )
            scrape = Scrape(scrape.time_ms, scrape.duration_seconds, "clock", error=message)
        elif scrape.snapshot is not None and watched.recent.left_out:
            scrape = replace(scrape, dropped={**scrape.dropped, "series_limit": watched.recent.left_out})
        if scrape.outcome == "rate_limited":
            scrape = self._hold(watched, scrape)
        else:
            watched.refusals = 0
        self._telemetry.count_scrape(scrape)
        watched.report(scrape)
        self.findings.note(watched)
        return scrape

    def _hold(self, watched: TargetState, scrape: Scrape) -> Scrape:
        """Pause a target that answered 429, and its whole host where that has a rate limit."""
        watched.refusals += 1
        watched.held_until_ms = self._clock.now_ms + hold_ms(scrape.retry_after_seconds, watched.refusals)
        host = self._fleet.pacer.host(watched.target)
        if host is not None:
            host.hold(watched.held_until_ms)
        return replace(scrape, error=f"{scrape.error}; next attempt after {format_instant(watched.held_until_ms)}")

    async def _scrape_regularly(self, watched: TargetState, spread_ms: int) -> None:
        await self._rest_until(watched, max(self._first_ms(watched, spread_ms), self._held_until_ms(watched)))
        due = 0
        while True:
            await self._await_turn(watched)
            if self._is_scraped_by_another(watched):
                # Its URL has become that of a page which is scraped already.
                watched.task = None
                return
            try:
                await self.scrape(watched)
            except Exception:
                # An error of ours with one target's samples must not end the scraping of all.
                message = f"{watched.target.target_id}: the result of a scrape could not be booked"
                self._telemetry.report_fault("scrape", message)
            former, due = due, self._next_ms(watched, due)
            self._count_missed(watched, former, due)
            await self._rest_until(watched, due)
            self._telemetry.scrape_lateness.observe(max(0, self._clock.now_ms - due) / 1000)

    def _first_ms(self, watched: TargetState, spread_ms: int) -> int:
        interval, now_ms = watched.target.scraping.interval_ms, self._clock.now_ms
        offset = scrape_offset_ms(watched.target.target_id, interval)
        if watched.status.last_scrape_ms is None:
            return now_ms + offset * min(spread_ms, interval) // interval
        # It was scraped before, at another interval.
        return next_due_ms(now_ms, interval, offset, after_ms=0)

    def _next_ms(self, watched: TargetState, due_ms: int) -> int:
        interval = watched.target.scraping.interval_ms
        offset = scrape_offset_ms(watched.target.target_id, interval)
        return next_due_ms(max(self._clock.now_ms, self._held_until_ms(watched)), interval, offset, after_ms=due_ms)

    def _count_missed(self, watched: TargetState, former_ms: int, due_ms: int) -> None:
        """Count the scrapes that were due since the last one, unless the target or its host was paused."""
        is_limited = watched.held_until_ms > self._clock.now_ms or self._fleet.pacer.host(watched.target) is not None
        if former_ms and not is_limited:
            missed = (due_ms - former_ms) // watched.target.scraping.interval_ms - 1
            self._telemetry.missed_scrapes.inc(max(0, missed))

    def _held_until_ms(self, watched: TargetState) -> int:
        watched.held_until_ms = believe_hold(watched.held_until_ms, self._clock.now_ms)
        return watched.held_until_ms

    async def _await_turn(self, watched: TargetState) -> None:
        """Wait until the rate limit of the target's host allows a scrape."""
        while (host := self._fleet.pacer.host(watched.target)) is not None:
            turn = host.reserve(self._clock.now_ms)
            await self._rest_until(watched, turn)
            if turn >= host.held_until_ms:
                return

    def _is_scraped_by_another(self, watched: TargetState) -> bool:
        return any(each.task is not None for each in self._fleet.sharing_page(watched))

    async def _rest_until(self, watched: TargetState, due_ms: int) -> None:
        for each in (watched, *self._fleet.sharing_page(watched)):
            each.next_scrape_ms = due_ms
        watched.resting = True
        try:
            await self._clock.sleep_until(due_ms)
        finally:
            watched.resting = False
