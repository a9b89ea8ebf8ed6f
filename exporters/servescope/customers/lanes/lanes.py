"""A lane: the boundaries of one customer, delivered to one destination in their order, each until
it is acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final, TypeVar

from servescope.contract.identity import Deployment
from servescope.customers.lanes.cursors import (
    Acknowledgement,
    Cursor,
    CursorError,
    CursorFile,
    Delivery,
    Gap,
    LaneId,
    RemovedError,
)
from servescope.customers.lanes.telemetry import LaneTelemetry
from servescope.customers.points.edges import IntervalSnapshot
from servescope.customers.points.points import StreamPoint
from servescope.customers.points.projection import Projection, Projector
from servescope.customers.points.reading import READ_MS, FleetState, IntervalReader
from servescope.customers.points.totals import Totals, dump_totals, load_totals
from servescope.customers.policy.policy import Policy, Quotas, Temporality
from servescope.customers.transports.senders import Sender
from servescope.errors import ServescopeError
from servescope.settings.clock import AHEAD_MS, BELIEVED_AFTER_MS, ProgramClock
from servescope.store.history import History
from servescope.web.posting import SendError

_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 60.0
_REPORTED_EVERY_MS: Final = 60_000
_SPAN: Final = ("first_ms", "from_ms", "to_ms")

T = TypeVar("T")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Workers:
    """What all lanes share: the `threads` that read and encode, and how many lanes may catch up `at_once`."""

    threads: Executor
    at_once: asyncio.Semaphore


@dataclass(frozen=True, slots=True)
class Route:
    """How a lane goes: its temporality, and how much of the past it begins with.

    With `only_latest` what could not be delivered is of no interest later, as to a page that shows the present.
    """

    temporality: Temporality = "cumulative"
    backfill_ms: int = 0
    only_latest: bool = False


class Lane:
    """Delivers one customer's points to one destination; `run` it in the event loop.

    What it owes is read from `history`, an hour of boundaries at a time, and of each deployment from `since_ms` on. A
    boundary that was delivered is acknowledged in `cursors` before anything else is sent, so that nothing is lost, and
    nothing repeated but what was in flight when the process ended.
    """

    def __init__(
        self,
        policy: Policy,
        route: Route,
        lane: LaneId,
        *,
        history: History,
        cursors: CursorFile,
        sender: Sender,
        clock: ProgramClock,
        telemetry: LaneTelemetry,
        workers: Workers,
        since_ms: Mapping[Deployment, int] = MappingProxyType({}),
    ) -> None:
        self.id = lane
        self._policy, self._route = policy, route
        self._history, self._cursors, self._sender = history, cursors, sender
        self._clock, self._telemetry, self._workers = clock, telemetry, workers
        self._since_ms = since_ms
        self._reader = IntervalReader(history, policy.deployments, policy.metrics, policy.figures, since_ms)
        self._projector = Projector(policy)
        self._state: FleetState | None = None
        self._totals = Totals()
        self._begun_ms = 0
        self._events_read_ms = 0
        self._behind_from_ms: int | None = None
        self._pace = _Pace(policy.quotas, clock)
        self._reported_ms = 0

    async def run(self) -> None:
        """Deliver until cancelled, or until the customer is removed; whatever fails is reported, and tried again."""
        pauses = 0
        while True:
            try:
                await self._in_thread(self._resume)
                while True:
                    await self._deliver_owed()
                    pauses = 0
                    await self._sleep_to_next_boundary()
            except RemovedError:
                return
            except ServescopeError as error:
                self._report(str(error))
            except Exception as error:  # a mistake of ours in one lane must not end the others, nor this one for good
                _logger.exception("lane %s of %s failed", self.id.destination, self.id.customer)
                self._report(f"internal error: {error!r}")
            self._telemetry.count_internal_error()
            pauses += 1
            await self._clock.sleep(_pause_seconds(pauses))

    # --- What is owed -----------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        self._begun_ms = self._cursors.begin(self.id, self._clock.now_ms())
        cursor = self._cursors.cursor(self.id)
        if cursor is None:
            self._state, self._totals = None, Totals()
        else:
            self._state, self._totals = cursor.state, load_totals(cursor.totals)
        self._events_read_ms = self._clock.now_ms() if self._state is None else self._state.boundary_ms
        self._telemetry.set_boundary(self._begun_ms if self._state is None else self._state.boundary_ms)

    def _owed(self) -> list[int]:
        """The boundaries that are owed and may be read, ascending, of at most an hour; gaps are recorded."""
        interval, now_ms = self._policy.interval_ms, self._clock.now_ms()
        newest = (now_ms - self._history.settle_ms) // interval * interval
        self._note_events(now_ms)
        if self._state is None or self._state.boundary_ms <= now_ms + AHEAD_MS:
            self._behind_from_ms = None
        else:
            self._behind_from_ms = min(self._behind_from_ms or now_ms, now_ms)
            self._state = self._set_back(self._state, now_ms, now_ms - self._behind_from_ms >= BELIEVED_AFTER_MS)
        if self._route.only_latest:
            reached = self._owned_boundary() - interval if self._state is None else self._state.boundary_ms
            return [newest] if newest > reached else []
        held = self._history.time_range()
        if self._state is None:
            first = max(min(self._first_boundary(held), newest), self._owned_boundary())
        else:
            first = self._state.boundary_ms + interval - self._state.boundary_ms % interval
        oldest_ms = now_ms - self._policy.most_age_ms
        if self._state is not None or self._begun_ms < oldest_ms:
            first = self._skip(first, oldest_ms, newest, "age")
        if held is not None:
            first = self._skip(first, held[0], newest, "retention")
        return list(range(first, min(newest, first + READ_MS) + 1, interval))

    def _owned_boundary(self) -> int:
        """The first boundary at which any deployment is the customer's: its first interval is then a whole one."""
        interval = self._policy.interval_ms
        return -(-min(self._since_ms.values(), default=0) // interval) * interval

    def _first_boundary(self, held: tuple[int, int] | None) -> int:
        """The first boundary of the lane: when it began, or as far before as it is to be filled and the
        past goes back.
        """
        interval = self._policy.interval_ms
        begun = self._begun_ms // interval * interval
        first = max(self._begun_ms - self._route.backfill_ms, 0) // interval * interval
        return first if held is None else max(first, min(-(-held[0] // interval) * interval, begun))

    def _set_back(self, state: FleetState, now_ms: int, is_believed: bool) -> FleetState:
        """The state to go on from at present when the cursor is from the future: the clock was ahead, or is behind.

        Raises ServescopeError while nothing can be sent; `is_believed` is whether the clock has shown this for an hour.
        """
        ahead_ms = state.boundary_ms - now_ms
        ahead = f"the cursor is from the future, {ahead_ms / 1000:.0f} s ahead of the clock"
        must_rise = self._route.temporality == "cumulative" and not self._route.only_latest
        sent_ms = self._first_sent_ahead(now_ms)
        if must_rise and ahead_ms <= self._policy.most_age_ms:
            why = "times of cumulative points have to rise"
        elif sent_ms is None and not is_believed:
            why = "what is read may have samples of that time, which would be counted again"
        else:
            self._report(f"{ahead}: it goes on from now")
            start_ms = max(sent_ms or now_ms, now_ms)
            if not self._route.only_latest and start_ms < state.boundary_ms:
                # Points of these times will replace those that were sent, or be refused.
                self._add_gap(Gap(start_ms, state.boundary_ms, "clock"))
            self._totals = self._totals.set_back(now_ms)
            return state.set_back(now_ms)
        known = self._cursors.gaps(self.id, now_ms, state.boundary_ms + 1)
        if not any((gap.end_ms, gap.reason) == (state.boundary_ms, "clock") for gap in known):
            self._add_gap(Gap(now_ms, state.boundary_ms, "clock"))
        raise ServescopeError(f"{ahead}: nothing is sent until then, as {why}")

    def _first_sent_ahead(self, now_ms: int) -> int | None:
        """From which time on the future was sent; None where the collector has not dropped what it stored of it."""
        for event in self._history.read_events(now_ms - self._policy.most_age_ms, now_ms):
            if event.kind == "clock_set_back":
                first_ms, from_ms, to_ms = (int(dict(event.detail)[name]) for name in _SPAN)
                if to_ms <= now_ms < from_ms:
                    return first_ms
        return None

    def _skip(self, first: int, oldest_ms: int, newest: int, reason: str) -> int:
        """The first boundary that is not older; what is left out is a gap. What was counted meanwhile is carried on."""
        interval = self._policy.interval_ms
        kept = -(-oldest_ms // interval) * interval
        if first >= kept or first > newest:
            return first
        self._add_gap(Gap(first - interval, min(kept, newest) - interval, reason))
        return min(kept, newest)

    def _note_events(self, now_ms: int) -> None:
        """Record as gaps what was imported behind the boundary, or dropped, since the events were read last."""
        if self._route.only_latest:
            return
        if self._events_read_ms > now_ms:
            # The clock was set back, and what happened since then is of an earlier time.
            self._events_read_ms = now_ms - self._policy.most_age_ms
        deployments = {deployment.labels() for deployment in self._policy.deployments}
        reached_ms = 0 if self._state is None else self._state.boundary_ms
        for event in self._history.read_events(self._events_read_ms, now_ms):
            detail = dict(event.detail)
            if event.kind == "import" and event.labels in deployments:
                start_ms, end_ms = int(detail["from_ms"]), min(int(detail["to_ms"]), event.time_ms)
                reason, before_ms = "imported", min(end_ms, reached_ms)
            elif event.kind == "clock_set_back":
                start_ms, end_ms = int(detail["missing_from_ms"]), int(detail["to_ms"])
                reason, before_ms = "clock", end_ms
            else:
                continue
            start_ms = max(start_ms, self._begun_ms)
            if start_ms < before_ms:
                self._add_gap(Gap(start_ms, end_ms, reason))
        self._events_read_ms = now_ms

    # --- Delivering -------------------------------------------------------------------------------------------------

    async def _deliver_owed(self) -> None:
        while True:
            async with self._workers.at_once:
                read = await self._in_thread(self._read)
            if not read:
                return
            while read:  # what was delivered is not held while the rest waits
                snapshot, state = read.popleft()
                projection = await self._in_thread(
                    partial(self._projector.project, snapshot, self._route.temporality, self._totals)
                )
                await self._deliver(snapshot, state, projection)

    def _read(self) -> deque[tuple[IntervalSnapshot, FleetState]]:
        """The next of the boundaries that are owed."""
        boundaries = self._owed()
        return deque(self._reader.read_some(self._state, boundaries) if boundaries else ())

    async def _deliver(self, snapshot: IntervalSnapshot, state: FleetState, projection: Projection) -> None:
        """Send the points of a boundary until they are accepted, refused for good, or too old; then acknowledge it."""
        self._telemetry.set_exported(len(projection.points), projection.withheld)
        before_ms = snapshot.time_ms - self._policy.interval_ms if snapshot.before_ms is None else snapshot.before_ms
        sent = await self._send(snapshot.time_ms, projection.points)
        gaps = tuple(Gap(before_ms, snapshot.time_ms, reason, points) for reason, points in sent.dropped.items())
        delivery = Delivery(before_ms, snapshot.time_ms, 1, len(projection.points), sent.dropped.total(), sent.requests)
        cursor = Cursor(state, dump_totals(projection.totals))
        # At once: when the lane ends here, the one after it must not send this again.
        self._cursors.hold(self.id, Acknowledgement(cursor, delivery, gaps))
        for gap in gaps:
            self._telemetry.count_dropped(gap.reason, gap.points)
            self._telemetry.count_gap(gap.reason, gap.end_ms - gap.start_ms)
        await self._in_thread(partial(self._cursors.write_held, self.id))
        self._state, self._totals = state, projection.totals
        self._telemetry.set_boundary(snapshot.time_ms)

    async def _send(self, boundary_ms: int, points: Sequence[StreamPoint]) -> _Sent:
        """Send points in as many requests as they need, in their order, each until it is settled."""
        sent = _Sent()
        waiting = deque(self._sender.split(points))
        pauses = 0
        while waiting:
            batch = waiting[0]
            await self._pace.wait(len(batch))
            started = time.perf_counter()
            try:
                accepted = await self._sender.send(batch)
            except SendError as error:
                self._telemetry.count_failure(error.reason, time.perf_counter() - started, len(batch))
                self._report(str(error))
                if not error.retryable:
                    sent.dropped[error.reason] += len(waiting.popleft())
                elif error.reason == "too_large":
                    waiting = deque(self._sender.split([point for each in waiting for point in each]))
                elif self._clock.now_ms() - boundary_ms > self._policy.most_age_ms:
                    sent.dropped["age"] += sum(map(len, waiting))
                    break
                else:
                    pauses += 1
                    left_ms = max(boundary_ms + self._policy.most_age_ms - self._clock.now_ms(), 0)
                    pause = max(error.after_seconds or 0.0, _pause_seconds(pauses))
                    await self._clock.sleep(min(pause, left_ms / 1000 + _FIRST_PAUSE_SECONDS))
                continue
            self._telemetry.count_request(time.perf_counter() - started, len(batch), accepted)
            self._pace.spend_bytes(accepted.sent_bytes)
            waiting.popleft()
            pauses = 0
            sent.requests += 1
            if accepted.rejected:
                sent.dropped["refused"] += accepted.rejected
                self._report(f"{accepted.rejected} of {len(batch)} points were rejected: {accepted.message}")
        return sent

    async def _sleep_to_next_boundary(self) -> None:
        now_ms, interval = self._clock.now_ms(), self._policy.interval_ms
        settle_ms = self._history.settle_ms
        next_ms = (now_ms - settle_ms) // interval * interval + interval + settle_ms
        await self._clock.sleep((next_ms - now_ms) / 1000)

    # --- Reporting --------------------------------------------------------------------------------------------------

    def _add_gap(self, gap: Gap) -> None:
        self._cursors.add_gap(self.id, gap)
        self._telemetry.count_gap(gap.reason, gap.end_ms - gap.start_ms)

    def _report(self, problem: str) -> None:
        """Log a problem and keep it for `status`, at most once a minute."""
        now_ms = self._clock.now_ms()
        if abs(now_ms - self._reported_ms) >= _REPORTED_EVERY_MS:
            self._reported_ms = now_ms
            _logger.error("customer %s, %s: %s", self.id.customer, self.id.destination, problem)
            with contextlib.suppress(CursorError):  # which is reported where it stops the lane
                self._cursors.set_problem(self.id, now_ms, problem)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._workers.threads, work)


@dataclass(slots=True)
class _Sent:
    """What became of the points of a boundary: those that were `dropped`, by reason, and the `requests` answered."""

    dropped: Counter[str] = field(default_factory=Counter)
    requests: int = 0


class _Pace:
    """Keeps a lane that catches up within a customer's quotas of points and bytes a minute."""

    def __init__(self, quotas: Quotas, clock: ProgramClock) -> None:
        self._points = _Budget(quotas.samples_per_minute)
        self._bytes = _Budget(quotas.bytes_per_minute)
        self._clock = clock

    async def wait(self, points: int) -> None:
        """Wait until so many points may be sent, and as many bytes as were sent before were within the quota."""
        now_ms = self._clock.now_ms()
        free_ms = max(self._points.spend(points, now_ms), self._bytes.spend(0, now_ms))
        if free_ms > now_ms:
            await self._clock.sleep((free_ms - now_ms) / 1000)

    def spend_bytes(self, count: int) -> None:
        """Book the bytes of a request, which are known once it is encoded."""
        self._bytes.spend(count, self._clock.now_ms())


class _Budget:
    """So much a minute, 0 is no limit; what was not used of the last minute may be used at once."""

    def __init__(self, per_minute: int) -> None:
        self._per_ms = per_minute / 60_000
        self._spent_ms = 0
        self._free_ms = 0.0

    def spend(self, amount: int, now_ms: int) -> float:
        """Use an amount; returns from when on it is within the budget, by a clock that may have been set back."""
        if self._per_ms:
            self._free_ms -= max(self._spent_ms - now_ms, 0)
            self._free_ms = max(self._free_ms, now_ms - 60_000.0) + amount / self._per_ms
            self._spent_ms = now_ms
        return self._free_ms


def _pause_seconds(pauses: int) -> float:
    """A pause before trying again: longer each time, and never the same for two lanes."""
    longest = min(_FIRST_PAUSE_SECONDS * 2.0 ** (pauses - 1), _LONGEST_PAUSE_SECONDS)
    return random.uniform(longest / 2, longest)
