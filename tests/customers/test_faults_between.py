"""Lanes to real senders and receivers with faults between them: nothing is lost, and only lost answers repeat."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from servescope.customers.lanes.cursors import CursorFile, LaneId
from servescope.customers.lanes.lanes import Lane, Route, Workers
from servescope.customers.lanes.telemetry import CustomersTelemetry
from servescope.customers.policy.policy import Policy, Push, Temporality
from servescope.customers.transports.senders import make_sender
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus
from tests.customers.support.customer_points import push_to
from tests.customers.support.filling_clock import ENGINE, START, FillingClock
from tests.customers.support.otlp_backends import (
    aborting,
    grpc_backend,
    half_a_response,
    hang,
    http_backend,
    refusing,
    reset,
)
from tests.customers.support.otlp_rules import Ledger

MINUTE = 60_000
MINUTES = 40
LANE = LaneId("acme", "push")
POLICY = Policy("acme", frozenset({ENGINE.deployment()}), ("output_tokens_total",), labels=("model_name",))
TEMPORALITIES = pytest.mark.parametrize("temporality", ["cumulative", "delta"])
Code = grpc.StatusCode


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "past.db") as store:
        store.set_target(TargetStatus(ENGINE.target_id, "http://127.0.0.1/metrics", ENGINE, healthy=True))
        yield store


@pytest.fixture
def cursors(tmp_path: Path) -> Iterator[CursorFile]:
    with CursorFile(tmp_path / "customers.db", deliver=True) as cursors:
        yield cursors


async def deliver(store: Store, cursors: CursorFile, clock: FillingClock, push: Push, minutes: int) -> None:
    """Run a lane to a destination for so many minutes of its clock."""
    clock.ends_ms = clock.now_ms() + minutes * MINUTE
    with ThreadPoolExecutor(1) as threads:
        sender = make_sender(push, threads)
        lane = Lane(
            POLICY, Route(push.temporality), LANE, history=store, cursors=cursors, sender=sender, clock=clock,
            telemetry=CustomersTelemetry(clock).lane(LANE), workers=Workers(threads, asyncio.Semaphore(1)),
        )  # fmt: skip
        with suppress(asyncio.CancelledError):
            await lane.run()
        await sender.close()


def require_complete(ledger: Ledger, cursors: CursorFile) -> None:
    """A point for each edge, in order, by every rule, which add up to a token a second."""
    assert not ledger.broken
    ((key, points),) = ledger.streams.items()
    times = [point.time_ms for point in points]
    assert times == list(range(times[0], times[-1] + 1, MINUTE))
    assert times[-1] >= START + (MINUTES - 3) * MINUTE
    first_ms = min(point.start_ns for point in points) / 1e6
    assert ledger.total(key) == (times[-1] - first_ms) / 1000
    assert cursors.gaps(LANE) == []


@pytest.mark.slow
@TEMPORALITIES
@pytest.mark.parametrize("seed", range(2))
async def test_faults_of_http_lose_and_repeat_nothing(
    store: Store, cursors: CursorFile, temporality: Temporality, seed: int
) -> None:
    """Refusals for a time, throttling, resets, half an answer and none, in any order."""
    drawn = random.Random(seed).choices(
        [refusing(503), refusing(503, Retry_After="90"), refusing(500), refusing(429, Retry_After="7"),
         refusing(401), reset, half_a_response],
        k=30,
    )  # fmt: skip
    async with http_backend() as backend:
        backend.faults += [*drawn, hang]
        push = push_to(backend.url, temporality=temporality, timeout_seconds=1.0)
        await deliver(store, cursors, FillingClock(store), push, MINUTES)
        assert not backend.faults
        require_complete(backend.ledger, cursors)


@TEMPORALITIES
async def test_faults_of_grpc_lose_and_repeat_nothing(
    store: Store, cursors: CursorFile, temporality: Temporality
) -> None:
    """Statuses that are a matter of time."""
    codes = [Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.ABORTED, Code.INTERNAL, Code.PERMISSION_DENIED]
    async with grpc_backend() as backend:
        backend.faults += [aborting(code, "not now", retry_seconds=5) for code in codes * 4]
        push = push_to(backend.url, protocol="otlp-grpc", temporality=temporality)
        await deliver(store, cursors, FillingClock(store), push, MINUTES)
        assert not backend.faults
        require_complete(backend.ledger, cursors)


@TEMPORALITIES
async def test_an_outage_between_two_processes_loses_nothing(
    store: Store, cursors: CursorFile, temporality: Temporality
) -> None:
    """Nobody listens for half the time; the next process delivers what was owed, with the starts it would have had."""
    clock = FillingClock(store)
    async with http_backend() as backend:
        await deliver(store, cursors, clock, push_to(backend.url, temporality=temporality), 5)
        gone = push_to("http://127.0.0.1:1/v1/metrics", temporality=temporality)
        await deliver(store, cursors, clock, gone, MINUTES - 15)
        await deliver(store, cursors, clock, push_to(backend.url, temporality=temporality), 10)
        require_complete(backend.ledger, cursors)


@TEMPORALITIES
async def test_what_is_repeated_is_what_was_in_flight(
    store: Store, cursors: CursorFile, temporality: Temporality
) -> None:
    """A request whose answer is lost arrives again as it was; all others once."""
    async with http_backend() as backend:
        backend.losing_answers = 3
        push = push_to(backend.url, temporality=temporality)
        await deliver(store, cursors, FillingClock(store), push, 10)
        ((_, points),) = backend.ledger.streams.items()
        assert points[:4] == [points[0]] * 4
        times = [point.time_ms for point in points[3:]]
        assert times == list(range(times[0], times[-1] + 1, MINUTE))
