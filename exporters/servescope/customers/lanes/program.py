"""The lanes of all customers: one for each destination, begun and ended as the configuration changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from servescope.contract.identity import Deployment, describe_group
from servescope.customers.lanes.cursors import KEPT_MS, CursorFile, Gap, LaneId, lanes_of
from servescope.customers.lanes.lanes import Lane, Route, Workers
from servescope.customers.lanes.listener import PullAccess
from servescope.customers.lanes.telemetry import CustomersTelemetry
from servescope.customers.policy.ownership import NOBODY, NOT_YET_MS, Ownerships, since_of
from servescope.customers.policy.policy import LEFT_OUT, Policy, Pull, Push
from servescope.customers.transports.page import CustomerPage
from servescope.customers.transports.senders import Sender, make_sender
from servescope.errors import ServescopeError
from servescope.settings.clock import AHEAD_MS, BELIEVED_AFTER_MS, ProgramClock
from servescope.settings.values import format_instant
from servescope.store.history import History

_THREADS: Final = 4
_READING_AT_ONCE: Final = 2
_INTERVALS_SHOWN: Final = 3
_FORGOTTEN_EVERY_SECONDS: Final = 3_600.0
_REMOVED_EVERY_SECONDS: Final = 1.0
_CLOCK_EVERY_SECONDS: Final = 10.0
_DROPPED_WITHIN_MS: Final = 86_400_000
_PAUSE_SECONDS: Final = 60.0

_logger = logging.getLogger(__name__)


class _MadeOf(NamedTuple):
    """What a lane is made of: its customer's policy, since when deployments are that customer's, and where it goes."""

    policy: Policy
    since_ms: Mapping[Deployment, int]
    to: Push | Pull


@dataclass(slots=True)
class _Running:
    """A lane that runs: what it was made of, and its task."""

    made_of: _MadeOf
    sender: Sender
    task: asyncio.Task[None]


class CustomersProgram:
    """The lanes of all policies; `apply` new ones at any time: lanes that did not change go on."""

    def __init__(self, history: History, cursors: CursorFile, clock: ProgramClock) -> None:
        self._history, self._cursors, self._clock = history, cursors, clock
        self.telemetry = CustomersTelemetry(clock)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="customers")
        self._workers = Workers(self._threads, asyncio.Semaphore(_READING_AT_ONCE))
        self._running: dict[LaneId, _Running] = {}
        self._left_out: list[LaneId] = []
        self._changing = asyncio.Lock()
        self._ownerships: Ownerships = {}
        self._latest_ms = cursors.latest_ms()
        """The latest time that the clock has shown, of those that are believed."""
        self._behind_from_ms: int | None = None
        self._applied: tuple[tuple[Policy, ...], tuple[str, ...]] = ((), ())
        self.pulls: dict[str, PullAccess] = {}
        """The page of each customer that scrapes one, by its name."""

    async def apply(self, policies: Sequence[Policy], left_out: Sequence[str] = ()) -> None:
        """Run the lanes of these policies, and no others; of customers that were removed, none.

        Customers that are left out, as their tables cannot be used, fall behind from now on, which alerts.
        """
        async with self._changing:
            removed = self._cursors.removed()
            admitted = [policy for policy in policies if policy.name not in removed]
            self._pass_on(admitted, left_out)
            self._applied = (tuple(policies), tuple(left_out))
            for lane in self._left_out:
                self.telemetry.retire(lane)
            self._left_out = [LaneId(name, LEFT_OUT) for name in left_out if name not in removed]
            for lane in self._left_out:
                self.telemetry.lane(lane)
            wanted = {
                lane: _MadeOf(policy, since_of(policy, self._ownerships), to)
                for policy in admitted
                for lane, to in lanes_of(policy).items()
            }
            for lane, running in list(self._running.items()):
                if wanted.get(lane) != running.made_of or running.task.done():
                    await self._end(lane)
            for lane, made_of in wanted.items():
                if lane not in self._running:
                    self._begin(lane, made_of)

    def _pass_on(self, policies: Sequence[Policy], waiting: Sequence[str]) -> None:
        """Note since when deployments belong to the customers that have them now."""
        former = self._ownerships
        now_ms = self._look_at_clock()
        self._ownerships = self._cursors.pass_on(
            policies, waiting, now_ms, self._latest_ms, partial(self._find_dropped, now_ms)
        )
        for group, ownership in sorted(self._ownerships.items()):
            if ownership.customer == NOBODY or former.get(group) == ownership:
                continue
            if ownership.since_ms == NOT_YET_MS:
                _logger.warning(
                    "customer %s: receives nothing of deployment %s, which was another's, until the clock has come "
                    "to %s, which it has shown already, or has shown earlier times for an hour",
                    ownership.customer, describe_group(group), format_instant(self._latest_ms),
                )  # fmt: skip
            else:
                _logger.info(
                    "customer %s: receives what is from %s on of deployment %s",
                    ownership.customer, format_instant(ownership.since_ms), describe_group(group),
                )  # fmt: skip

    def _begin(self, lane: LaneId, made_of: _MadeOf) -> None:
        policy, since_ms, to = made_of
        sender: Sender
        if isinstance(to, Push):
            sender, route = make_sender(to, self._threads), Route(to.temporality, to.backfill_ms)
            self._warn_of_short_backfill(lane, made_of, to.backfill_ms)
        else:
            # A boundary is that much older than now when it is read.
            most_age_ms = _INTERVALS_SHOWN * policy.interval_ms + self._history.settle_ms
            page = CustomerPage(most_age_ms, self._threads, self._clock.now_ms)
            sender, route = page, Route(only_latest=True)
            self.pulls[policy.name] = PullAccess.of(page, to)
        running = Lane(
            policy, route, lane, history=self._history, cursors=self._cursors, sender=sender, clock=self._clock,
            telemetry=self.telemetry.lane(lane), workers=self._workers, since_ms=since_ms,
        )  # fmt: skip
        task = asyncio.create_task(running.run(), name=f"{lane.customer} {lane.destination}")
        self._running[lane] = _Running(made_of, sender, task)
        _logger.info("customer %s: delivering to %s", lane.customer, lane.destination)

    def _warn_of_short_backfill(self, lane: LaneId, made_of: _MadeOf, backfill_ms: int) -> None:
        """Log what of the past that a new lane is to begin with is not known to be its customer's."""
        from_ms = self._clock.now_ms() - backfill_ms
        later = sorted(each.deployment_id for each, since_ms in made_of.since_ms.items() if since_ms > from_ms)
        if backfill_ms and later and self._cursors.begun_ms(lane) is None:
            _logger.warning(
                "customer %s: %s: backfill leaves out what is from before deployments were known to be the customer's: "
                "%s; `since` under [[customers.deployments]] is for those that were before",
                lane.customer, lane.destination, ", ".join(dict.fromkeys(later)),
            )  # fmt: skip

    async def _end(self, lane: LaneId) -> None:
        running = self._running.pop(lane)
        if isinstance(running.made_of.to, Pull):
            self.pulls.pop(lane.customer).close()
        running.task.cancel()
        await asyncio.gather(running.task, return_exceptions=True)
        await running.sender.close()
        self.telemetry.retire(lane)
        _logger.info("customer %s: no longer delivering to %s", lane.customer, lane.destination)

    async def follow_clock(self) -> None:
        """Apply the policies again whenever the clock was set back behind a time at which they applied."""
        while True:
            await self._clock.sleep(_CLOCK_EVERY_SECONDS)
            now_ms = self._look_at_clock()
            policies, left_out = self._applied
            chosen = {since_ms for policy in policies for since_ms in policy.since_ms.values()}
            noted = {each.since_ms for each in self._ownerships.values()} - chosen
            if max(noted, default=0) > now_ms + AHEAD_MS:
                try:
                    await self.apply(policies, left_out)
                except ServescopeError as error:
                    _logger.error("%s", error)  # noqa: TRY400 the text says all

    def _find_dropped(self, now_ms: int) -> list[Gap]:
        """Whose scrapes of the last day the collector dropped, as its clock was set back: nobody received them."""
        try:
            events = self._history.read_events(now_ms - _DROPPED_WITHIN_MS, now_ms)
        except ServescopeError as error:
            _logger.error("%s; gaps of a clock that was set back may be missing", error)  # noqa: TRY400 the text says all
            return []
        spans = [dict(event.detail) for event in events if event.kind == "clock_set_back"]
        return [Gap(int(span["missing_from_ms"]), int(span["to_ms"]), "clock") for span in spans]

    def _look_at_clock(self) -> int:
        """The time now; one that is earlier than the latest is believed once the clock has shown it for an hour."""
        now_ms = self._clock.now_ms()
        if now_ms + AHEAD_MS < self._latest_ms:
            self._behind_from_ms = min(self._behind_from_ms or now_ms, now_ms)
            if now_ms - self._behind_from_ms < BELIEVED_AFTER_MS:
                return now_ms
        self._latest_ms, self._behind_from_ms = now_ms, None
        return now_ms

    async def end_removed(self) -> None:
        """End the lanes of customers that are removed meanwhile, and confirm it, again and again."""
        while True:
            pause = _REMOVED_EVERY_SECONDS
            try:
                for customer in self._cursors.unended():
                    await self._end_customer(customer)
            except ServescopeError as error:
                _logger.error("%s", error)  # noqa: TRY400 the text says all
                pause = _PAUSE_SECONDS
            await self._clock.sleep(pause)

    async def _end_customer(self, customer: str) -> None:
        async with self._changing:
            for lane in [lane for lane in self._running if lane.customer == customer]:
                await self._end(lane)
            for lane in [lane for lane in self._left_out if lane.customer == customer]:
                self.telemetry.retire(lane)
            self._cursors.set_ended(customer)
        _logger.warning("customer %s was removed: nothing is sent to it any more", customer)

    async def tidy(self) -> None:
        """Forget old deliveries and gaps, again and again."""
        while True:
            try:
                self._cursors.forget_before(self._clock.now_ms() - KEPT_MS)
            except ServescopeError as error:
                _logger.error("%s", error)  # noqa: TRY400 the text says all
            await self._clock.sleep(_FORGOTTEN_EVERY_SECONDS)

    async def close(self) -> None:
        """End all lanes; what was in flight is sent again by the next process."""
        for lane in list(self._running):
            await self._end(lane)
        self._threads.shutdown(cancel_futures=True)
