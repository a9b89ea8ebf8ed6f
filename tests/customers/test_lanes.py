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
from tests.customers.support.filling_clock import ENGINE, START, FillingClock

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


def make_policy(**changes: object) -> Policy:
    return Policy(
        "acme",
        frozenset({ENGINE.deployment()}),
        ("output_tokens_total",),
        labels=("model_name",),
        **changes,  # type: ignore[arg-type]
    )


class Export:
    """A lane over a store, with its cursors and its destination."""

    def __init__(self, store: Store, cursors: CursorFile) -> None:
        self.store, self.cursors = store, cursors
        self.clock = FillingClock(store)
        self.destination = Destination()

    def deliver(self, minutes: float, *, policy: Policy | None = None, route: Route = ROUTE) -> str:
        """Run the lane for so many minutes of its clock; returns its series as text."""
        telemetry = CustomersTelemetry(self.clock)

        async def run() -> None:
            with ThreadPoolExecutor(1) as threads:
                lane = Lane(
                    policy or make_policy(), route, LANE, history=self.store, cursors=self.cursors,
                    sender=self.destination, clock=self.clock, telemetry=telemetry.lane(LANE),
                    workers=Workers(threads, asyncio.Semaphore(1)),
                )  # fmt: skip
                with suppress(asyncio.CancelledError):
                    await lane.run()

        self.clock.ends_ms = self.clock.now_ms() + round(minutes * MINUTE)
        asyncio.run(run())
        return "\n".join(
            f"{sample.name}{dict(sorted(sample.labels.items()))} {sample.value}"
            for family in telemetry.collect()
            for sample in family.samples
        )


@pytest.fixture
def export(tmp_path: Path) -> Iterator[Export]:
    with Store(tmp_path / "past.db") as store, CursorFile(tmp_path / "customers.db", deliver=True) as cursors:
        store.set_target(TargetStatus(ENGINE.target_id, "http://127.0.0.1/metrics", ENGINE, healthy=True))
        yield Export(store, cursors)


def fail(reason: str, *, retryable: bool = True) -> Callable[[Sequence[StreamPoint]], Accepted]:
    def answer(_: Sequence[StreamPoint]) -> Accepted:
        raise SendError(f"the answer was {reason}", reason=reason, retryable=retryable)

    return answer


def test_every_interval_is_delivered_once(export: Export) -> None:
    """A minute has sixty tokens; the lane is one interval and a few seconds behind at most."""
    series = export.deliver(10.2)

    times = [point.time_ms for point in export.destination.points]
    assert times == [BEGUN + minute * MINUTE for minute in range(1, 12)]
    assert [point.value for point in export.destination.points] == [60.0] * 11
    assert all(point.start_ms == point.time_ms - MINUTE for point in export.destination.points)
    assert export.cursors.boundary_ms(LANE) == START + 10 * MINUTE
    assert export.cursors.gaps(LANE) == []
    assert (
        "servescope_customer_acknowledged_points_total{'customer': 'acme', 'destination': 'otlp-http-1'} 11.0" in series
    )


def test_an_outage_loses_nothing(export: Export) -> None:
    """What could not be sent is sent later, in order; the lane says that it is behind, and why."""
    export.deliver(5.2)
    works, export.destination.answer = export.destination.answer, fail("unavailable")
    series = export.deliver(60)
    assert export.destination.counted() == 6 * 60
    assert "'outcome': 'unavailable'} " in series
    assert export.cursors.problem(LANE) is not None

    export.destination.answer = works
    export.deliver(10)
    times = [point.time_ms for point in export.destination.points]
    assert times == list(range(BEGUN + MINUTE, times[-1] + 1, MINUTE))
    assert times[-1] >= START + 74 * MINUTE
    assert export.destination.counted() == (times[-1] - BEGUN) / 1000
    assert export.cursors.gaps(LANE) == []


def test_a_lane_that_begins_again_goes_on_where_it_was(export: Export) -> None:
    """However often, and with the process away for a while."""
    for minutes in (1.5, 0.3, 4, 2.7):
        export.deliver(minutes)
        export.clock.pass_seconds(100)
    export.deliver(1)

    times = [point.time_ms for point in export.destination.points]
    assert times == sorted(set(times))
    assert export.destination.counted() == (times[-1] - BEGUN) / 1000


def test_a_lane_that_nobody_has_answered_yet_keeps_its_start(export: Export) -> None:
    """A reload or a restart loses nothing of what is owed; a statement says what that is."""
    works, export.destination.answer = export.destination.answer, fail("unreachable")
    for minutes in (3.3, 2, 4):
        export.deliver(minutes, route=Route())
        export.clock.pass_seconds(50)
    statement = read_statement(export.cursors, LANE, START, export.clock.now_ms())
    assert (statement.waiting_from_ms, statement.gaps) == (START, ())
    assert "not delivered yet: 1970-01-14T21:20:00Z to" in describe_statement(statement)
    (status,) = read_statuses(export.cursors, [LANE], export.clock.now_ms())
    assert describe_statuses([status]).startswith(f"acme  otlp-http-1  nothing delivered yet, {status.lag_seconds:.0f}")

    export.destination.answer = works
    export.deliver(3, route=Route())
    times = [point.time_ms for point in export.destination.points]
    assert times == list(range(START, times[-1] + 1, MINUTE))
    assert times[-1] >= START + 12 * MINUTE
    assert export.destination.points[-1].value == (times[-1] - START) / 1000
    assert export.cursors.gaps(LANE) == []


def test_what_nobody_answered_for_too_long_is_a_gap(export: Export) -> None:
    """From the start of the lane on, also of one that was never answered, over restarts."""
    policy = make_policy(most_age_ms=10 * MINUTE)
    works, export.destination.answer = export.destination.answer, fail("unreachable")
    for _ in range(3):
        export.deliver(1, policy=policy, route=Route())
        export.clock.pass_seconds(600)
    export.destination.answer = works
    export.deliver(2, policy=policy, route=Route())

    gaps = export.cursors.gaps(LANE)
    assert {gap.reason for gap in gaps} == {"age"}
    assert gaps[0].start_ms <= START
    assert gaps[-1].end_ms >= START + 20 * MINUTE


def test_what_was_accepted_is_acknowledged_though_its_lane_ends_at_once(export: Export) -> None:
    """A reload between the answer and its record does not send it again."""
    for _ in range(4):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(CursorFile, "write_held", _cancel)
            export.deliver(0.4)
        export.deliver(1)

    times = [point.time_ms for point in export.destination.points]
    assert times == sorted(set(times))
    assert export.destination.counted() == (times[-1] - BEGUN) / 1000


def _cancel(cursors: CursorFile, lane: LaneId) -> None:
    if cursors._held.get(lane):
        raise asyncio.CancelledError


def test_a_new_destination_receives_the_past_that_it_chose(export: Export) -> None:
    """The last minutes, as far as the store has them."""
    export.clock.pass_seconds(30 * 60)
    export.deliver(2.2, route=Route("delta", 60 * MINUTE))

    assert export.destination.points[0].time_ms <= START - MINUTE
    assert export.destination.points[-1].time_ms == START + 32 * MINUTE


def test_what_is_refused_for_good_is_a_gap_and_the_lane_goes_on(export: Export) -> None:
    """It is named in the statement, and counted."""
    export.deliver(2.2)
    works, export.destination.answer = export.destination.answer, fail("refused", retryable=False)
    series = export.deliver(1)
    export.destination.answer = works
    export.deliver(2)

    refused = Gap(START + 2 * MINUTE, START + 3 * MINUTE, "refused", 1)
    assert export.cursors.gaps(LANE) == [refused]
    assert "servescope_customer_dropped_points_total" in series
    assert export.destination.points[-1].time_ms == START + 5 * MINUTE


def test_what_a_destination_rejects_of_a_request_is_a_gap(export: Export) -> None:
    """Partial success: the request is not repeated."""
    export.destination.answer = lambda points: Accepted(len(points) - 1, 1, "too old")
    export.deliver(2.2)

    assert export.cursors.gaps(LANE) == [
        Gap(BEGUN, START, "refused", 1),
        Gap(START, START + MINUTE, "refused", 1),
        Gap(START + MINUTE, START + 2 * MINUTE, "refused", 1),
    ]
    assert export.destination.requests == 3


def test_what_is_too_old_is_given_up_as_one_gap(export: Export) -> None:
    """After `most_age`; what was counted meanwhile is in the first point after the gap."""
    policy = make_policy(most_age_ms=10 * MINUTE)
    export.deliver(2.2, policy=policy)
    works, export.destination.answer = export.destination.answer, fail("unreachable")
    export.deliver(60, policy=policy)
    export.destination.answer = works
    export.deliver(3, policy=policy)

    gaps = export.cursors.gaps(LANE)
    assert {gap.reason for gap in gaps} == {"age"}
    assert gaps[0].start_ms == START + 2 * MINUTE
    assert export.destination.counted() == (export.destination.points[-1].time_ms - BEGUN) / 1000 - sum(
        gap.points * 60 for gap in gaps
    )


def test_a_request_that_is_too_large_is_divided(export: Export) -> None:
    """As small as the destination takes."""
    policy = Policy("acme", frozenset({ENGINE.deployment()}), ("output_tokens_total",), labels=("model_name",))

    def answer(points: Sequence[StreamPoint]) -> Accepted:
        if export.destination.most_points > 1:
            export.destination.most_points = 1
            raise SendError("413", reason="too_large")
        return Accepted(len(points))

    export.destination.answer = answer
    export.deliver(2.2, policy=policy)
    assert export.destination.counted() == 3 * 60


def test_a_past_that_is_imported_behind_a_lane_is_a_gap(export: Export) -> None:
    """It is not sent, as destinations want points in order; the statement names it."""
    export.deliver(10.2)
    span = (("from_ms", str(START - 50 * MINUTE)), ("to_ms", str(START + 5 * MINUTE)))
    for of in (ENGINE, Identity("other", "other", "v1")):
        export.store.append_events([Event(export.clock.now_ms(), "import", of.deployment().labels(), "imported", span)])
    points = len(export.destination.points)
    export.deliver(2)

    assert export.cursors.gaps(LANE) == [Gap(START, START + 5 * MINUTE, "imported")]
    assert export.destination.points[points].time_ms == START + 11 * MINUTE


def test_a_cursor_from_the_future_waits_an_hour_where_no_collector_drops_it(export: Export) -> None:
    """As with a Prometheus. Until then the clock may be set right again; for good it would be waiting for nothing."""
    export.deliver(5)
    ahead_ms = export.clock.now_ms()
    export.clock.pass_seconds(-86_400)
    for minutes, waits in ((55, True), (70, False)):
        export.deliver(minutes)
        (status,) = read_statuses(export.cursors, [LANE], export.clock.now_ms())
        assert ((status.boundary_ms or 0) >= ahead_ms - 2 * MINUTE) == waits
        assert {gap.reason for gap in export.cursors.gaps(LANE)} >= {"clock"}


def test_a_removed_customer_gets_nothing_more(export: Export) -> None:
    """Its lane ends by itself."""
    export.deliver(2.2)
    export.cursors.remove("acme", export.clock.now_ms())
    requests = export.destination.requests
    export.deliver(5)

    assert export.destination.requests <= requests + 1
    assert export.cursors.rows_of("acme") == 0


def test_lag_is_since_the_last_acknowledged_edge(export: Export) -> None:
    """While the destination fails it grows, and `failing_seconds` with it."""
    export.deliver(2.2)
    export.destination.answer = fail("timeout")
    series = dict(line.rsplit(" ", 1) for line in export.deliver(20).splitlines())

    of = "{'customer': 'acme', 'destination': 'otlp-http-1'}"
    assert float(series[f"servescope_customer_lag_seconds{of}"]) == pytest.approx(20.2 * 60, abs=181)
    assert float(series[f"servescope_customer_failing_seconds{of}"]) == pytest.approx(19 * 60, abs=181)
    assert export.store.settle_ms < MINUTE
