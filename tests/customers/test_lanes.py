"""Lanes over a store that fills while they run: every point once, in order, whatever the destination does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from servescope.contract.events import Event
from servescope.contract.identity import Identity
from servescope.customers.documents.statements import (
    describe_statement,
    describe_statuses,
    read_statement,
    read_statuses,
)
from servescope.customers.lanes.cursors import CursorFile, Gap, LaneId
from servescope.customers.lanes.lanes import Lane, Route, Workers
from servescope.customers.lanes.telemetry import CustomersTelemetry
from servescope.customers.points.points import Accepted, StreamPoint
from servescope.customers.policy.policy import Policy
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus
from servescope.web.posting import SendError
from tests.support.filling_clock import ENGINE, START, FillingClock

MINUTE = 60_000
BEGUN = START - MINUTE
"""The first edge of a lane that begins at `START`: the last one that can be read then."""
LANE = LaneId("acme", "otlp-http-1")
ROUTE = Route("delta")


class Destination:
    """A destination that answers as `answer` does, and keeps what it accepted."""

    def __init__(self) -> None:
        self.points: list[StreamPoint] = []
        self.requests = 0
        self.most_points = 1000
        self.answer: Callable[[Sequence[StreamPoint]], Accepted] = lambda points: Accepted(len(points))

    def split(self, points: Sequence[StreamPoint]) -> list[Sequence[StreamPoint]]:
        return [points[at : at + self.most_points] for at in range(0, len(points), self.most_points)]

    async def send(self, batch: Sequence[StreamPoint]) -> Accepted:
        self.requests += 1
        accepted = self.answer(batch)
        self.points += batch
        return accepted

    async def close(self) -> None:
        """Nothing to close."""

    def counted(self) -> float:
        """All that the deltas add up to."""
        return sum(point.value for point in self.points if isinstance(point.value, float))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "past.db") as store:
        store.set_target(TargetStatus(ENGINE.target_id, "http://127.0.0.1/metrics", ENGINE, healthy=True))
        yield store


@pytest.fixture
def clock(store: Store) -> FillingClock:
    return FillingClock(store)


@pytest.fixture
def cursors(tmp_path: Path) -> Iterator[CursorFile]:
    with CursorFile(tmp_path / "customers.db", deliver=True) as cursors:
        yield cursors


def make_policy(**changes: object) -> Policy:
    return Policy(
        "acme",
        frozenset({ENGINE.deployment()}),
        ("output_tokens_total",),
        labels=("model_name",),
        **changes,  # type: ignore[arg-type]
    )


def deliver(
    store: Store, cursors: CursorFile, clock: FillingClock, destination: Destination, minutes: float,
    *, policy: Policy | None = None, route: Route = ROUTE,
) -> str:  # fmt: skip
    """Run a lane for so many minutes of its clock; returns its series as text."""
    telemetry = CustomersTelemetry(clock)

    async def run() -> None:
        with ThreadPoolExecutor(1) as threads:
            lane = Lane(
                policy or make_policy(), route, LANE, history=store, cursors=cursors, sender=destination, clock=clock,
                telemetry=telemetry.lane(LANE), workers=Workers(threads, asyncio.Semaphore(1)),
            )  # fmt: skip
            with suppress(asyncio.CancelledError):
                await lane.run()

    clock.ends_ms = clock.now_ms() + round(minutes * MINUTE)
    asyncio.run(run())
    return "\n".join(
        f"{sample.name}{dict(sorted(sample.labels.items()))} {sample.value}"
        for family in telemetry.collect()
        for sample in family.samples
    )


def fail(reason: str, *, retryable: bool = True) -> Callable[[Sequence[StreamPoint]], Accepted]:
    def answer(_: Sequence[StreamPoint]) -> Accepted:
        raise SendError(f"the answer was {reason}", reason=reason, retryable=retryable)

    return answer


def test_every_interval_is_delivered_once(store: Store, cursors: CursorFile, clock: FillingClock) -> None:
    """A minute has sixty tokens; the lane is one interval and a few seconds behind at most."""
    destination = Destination()
    series = deliver(store, cursors, clock, destination, 10.2)

    assert [point.time_ms for point in destination.points] == [BEGUN + minute * MINUTE for minute in range(1, 12)]
    assert [point.value for point in destination.points] == [60.0] * 11
    assert all(point.start_ms == point.time_ms - MINUTE for point in destination.points)
    assert cursors.boundary_ms(LANE) == START + 10 * MINUTE
    assert cursors.gaps(LANE) == []
    assert (
        "servescope_customer_acknowledged_points_total{'customer': 'acme', 'destination': 'otlp-http-1'} 11.0" in series
    )


def test_an_outage_loses_nothing(store: Store, cursors: CursorFile, clock: FillingClock) -> None:
    """What could not be sent is sent later, in order; the lane says that it is behind, and why."""
    destination = Destination()
    deliver(store, cursors, clock, destination, 5.2)
    works, destination.answer = destination.answer, fail("unavailable")
    series = deliver(store, cursors, clock, destination, 60)
    assert destination.counted() == 6 * 60
    assert "'outcome': 'unavailable'} " in series
    assert cursors.problem(LANE) is not None

    destination.answer = works
    deliver(store, cursors, clock, destination, 10)
    times = [point.time_ms for point in destination.points]
    assert times == list(range(BEGUN + MINUTE, times[-1] + 1, MINUTE))
    assert times[-1] >= START + 74 * MINUTE
    assert destination.counted() == (times[-1] - BEGUN) / 1000
    assert cursors.gaps(LANE) == []


def test_a_lane_that_begins_again_goes_on_where_it_was(store: Store, cursors: CursorFile, clock: FillingClock) -> None:
    """However often, and with the process away for a while."""
    destination = Destination()
    for minutes in (1.5, 0.3, 4, 2.7):
        deliver(store, cursors, clock, destination, minutes)
        clock.pass_seconds(100)
    deliver(store, cursors, clock, destination, 1)

    times = [point.time_ms for point in destination.points]
    assert times == sorted(set(times))
    assert destination.counted() == (times[-1] - BEGUN) / 1000


def test_a_lane_that_nobody_has_answered_yet_keeps_its_start(
    store: Store, cursors: CursorFile, clock: FillingClock
) -> None:
    """A reload or a restart loses nothing of what is owed; a statement says what that is."""
    destination = Destination()
    works, destination.answer = destination.answer, fail("unreachable")
    for minutes in (3.3, 2, 4):
        deliver(store, cursors, clock, destination, minutes, route=Route())
        clock.pass_seconds(50)
    statement = read_statement(cursors, LANE, START, clock.now_ms())
    assert (statement.waiting_from_ms, statement.gaps) == (START, ())
    assert "not delivered yet: 1970-01-14T21:20:00Z to" in describe_statement(statement)
    (status,) = read_statuses(cursors, [LANE], clock.now_ms())
    assert describe_statuses([status]).startswith(f"acme  otlp-http-1  nothing delivered yet, {status.lag_seconds:.0f}")

    destination.answer = works
    deliver(store, cursors, clock, destination, 3, route=Route())
    times = [point.time_ms for point in destination.points]
    assert times == list(range(START, times[-1] + 1, MINUTE))
    assert times[-1] >= START + 12 * MINUTE
    assert destination.points[-1].value == (times[-1] - START) / 1000
    assert cursors.gaps(LANE) == []


def test_what_nobody_answered_for_too_long_is_a_gap(store: Store, cursors: CursorFile, clock: FillingClock) -> None:
    """From the start of the lane on, also of one that was never answered, over restarts."""
    destination, policy = Destination(), make_policy(most_age_ms=10 * MINUTE)
    works, destination.answer = destination.answer, fail("unreachable")
    for _ in range(3):
        deliver(store, cursors, clock, destination, 1, policy=policy, route=Route())
        clock.pass_seconds(600)
    destination.answer = works
    deliver(store, cursors, clock, destination, 2, policy=policy, route=Route())

    gaps = cursors.gaps(LANE)
    assert {gap.reason for gap in gaps} == {"age"}
    assert gaps[0].start_ms <= START
    assert gaps[-1].end_ms >= START + 20 * MINUTE


def test_what_was_accepted_is_acknowledged_though_its_lane_ends_at_once(
    store: Store, cursors: CursorFile, clock: FillingClock
) -> None:
    """A reload between the answer and its record does not send it again."""
    destination = Destination()
    for _ in range(4):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(CursorFile, "write_held", _cancel)
            deliver(store, cursors, clock, destination, 0.4)
        deliver(store, cursors, clock, destination, 1)

    times = [point.time_ms for point in destination.points]
    assert times == sorted(set(times))
    assert destination.counted() == (times[-1] - BEGUN) / 1000


def _cancel(cursors: CursorFile, lane: LaneId) -> None:
    if cursors._held.get(lane):
        raise asyncio.CancelledError


def test_a_new_destination_receives_the_past_that_it_chose(
    store: Store, cursors: CursorFile, clock: FillingClock
) -> None:
    """The last minutes, as far as the store has them."""
    destination = Destination()
    clock.pass_seconds(30 * 60)
    deliver(store, cursors, clock, destination, 2.2, route=Route("delta", 60 * MINUTE))

    assert destination.points[0].time_ms <= START - MINUTE
    assert destination.points[-1].time_ms == START + 32 * MINUTE


def test_what_is_refused_for_good_is_a_gap_and_the_lane_goes_on(
    store: Store, cursors: CursorFile, clock: FillingClock
) -> None:
    """It is named in the statement, and counted."""
    destination = Destination()
    deliver(store, cursors, clock, destination, 2.2)
    works, destination.answer = destination.answer, fail("refused", retryable=False)
    series = deliver(store, cursors, clock, destination, 1)
    destination.answer = works
    deliver(store, cursors, clock, destination, 2)

    refused = Gap(START + 2 * MINUTE, START + 3 * MINUTE, "refused", 1)
    assert cursors.gaps(LANE) == [refused]
    assert "servescope_customer_dropped_points_total" in series
    assert destination.points[-1].time_ms == START + 5 * MINUTE


def test_what_a_destination_rejects_of_a_request_is_a_gap(
    store: Store, cursors: CursorFile, clock: FillingClock
) -> None:
    """Partial success: the request is not repeated."""
    destination = Destination()
    destination.answer = lambda points: Accepted(len(points) - 1, 1, "too old")
    deliver(store, cursors, clock, destination, 2.2)

    assert cursors.gaps(LANE) == [
        Gap(BEGUN, START, "refused", 1),
        Gap(START, START + MINUTE, "refused", 1),
        Gap(START + MINUTE, START + 2 * MINUTE, "refused", 1),
    ]
    assert destination.requests == 3


def test_what_is_too_old_is_given_up_as_one_gap(store: Store, cursors: CursorFile, clock: FillingClock) -> None:
    """After `most_age`; what was counted meanwhile is in the first point after the gap."""
    destination = Destination()
    policy = make_policy(most_age_ms=10 * MINUTE)
    deliver(store, cursors, clock, destination, 2.2, policy=policy)
    works, destination.answer = destination.answer, fail("unreachable")
    deliver(store, cursors, clock, destination, 60, policy=policy)
    destination.answer = works
    deliver(store, cursors, clock, destination, 3, policy=policy)

    gaps = cursors.gaps(LANE)
    assert {gap.reason for gap in gaps} == {"age"}
    assert gaps[0].start_ms == START + 2 * MINUTE
    assert destination.counted() == (destination.points[-1].time_ms - BEGUN) / 1000 - sum(
        gap.points * 60 for gap in gaps
    )


def test_a_request_that_is_too_large_is_divided(store: Store, cursors: CursorFile, clock: FillingClock) -> None:
    """As small as the destination takes."""
    destination = Destination()
    policy = Policy("acme", frozenset({ENGINE.deployment()}), ("output_tokens_total",), labels=("model_name",))

    def answer(points: Sequence[StreamPoint]) -> Accepted:
        if destination.most_points > 1:
            destination.most_points = 1
            raise SendError("413", reason="too_large")
        return Accepted(len(points))

    destination.answer = answer
    deliver(store, cursors, clock, destination, 2.2, policy=policy)
    assert destination.counted() == 3 * 60


def test_a_past_that_is_imported_behind_a_lane_is_a_gap(store: Store, cursors: CursorFile, clock: FillingClock) -> None:
    """It is not sent, as destinations want points in order; the statement names it."""
    destination = Destination()
    deliver(store, cursors, clock, destination, 10.2)
    span = (("from_ms", str(START - 50 * MINUTE)), ("to_ms", str(START + 5 * MINUTE)))
    for of in (ENGINE, Identity("other", "other", "v1")):
        store.append_events([Event(clock.now_ms(), "import", of.deployment().labels(), "imported", span)])
    points = len(destination.points)
    deliver(store, cursors, clock, destination, 2)

    assert cursors.gaps(LANE) == [Gap(START, START + 5 * MINUTE, "imported")]
    assert destination.points[points].time_ms == START + 11 * MINUTE


def test_a_cursor_from_the_future_waits_an_hour_where_no_collector_drops_it(
    store: Store, cursors: CursorFile, clock: FillingClock
) -> None:
    """As with a Prometheus. Until then the clock may be set right again; for good it would be waiting for nothing."""
    destination = Destination()
    deliver(store, cursors, clock, destination, 5)
    ahead_ms = clock.now_ms()
    clock.pass_seconds(-86_400)
    for minutes, waits in ((55, True), (70, False)):
        deliver(store, cursors, clock, destination, minutes)
        (status,) = read_statuses(cursors, [LANE], clock.now_ms())
        assert ((status.boundary_ms or 0) >= ahead_ms - 2 * MINUTE) == waits
        assert {gap.reason for gap in cursors.gaps(LANE)} >= {"clock"}


def test_a_removed_customer_gets_nothing_more(store: Store, cursors: CursorFile, clock: FillingClock) -> None:
    """Its lane ends by itself."""
    destination = Destination()
    deliver(store, cursors, clock, destination, 2.2)
    cursors.remove("acme", clock.now_ms())
    requests = destination.requests
    deliver(store, cursors, clock, destination, 5)

    assert destination.requests <= requests + 1
    assert cursors.rows_of("acme") == 0


def test_lag_is_since_the_last_acknowledged_edge(store: Store, cursors: CursorFile, clock: FillingClock) -> None:
    """While the destination fails it grows, and `failing_seconds` with it."""
    destination = Destination()
    deliver(store, cursors, clock, destination, 2.2)
    destination.answer = fail("timeout")
    series = dict(line.rsplit(" ", 1) for line in deliver(store, cursors, clock, destination, 20).splitlines())

    of = "{'customer': 'acme', 'destination': 'otlp-http-1'}"
    assert float(series[f"servescope_customer_lag_seconds{of}"]) == pytest.approx(20.2 * 60, abs=181)
    assert float(series[f"servescope_customer_failing_seconds{of}"]) == pytest.approx(19 * 60, abs=181)
    assert store.settle_ms < MINUTE
