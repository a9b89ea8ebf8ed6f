"""What waits in front of the router: for its decision, or because every worker is saturated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.emulator.clock import VirtualClock
from servescope.emulator.router.configuration import DecisionCost, RouterRuntime, WorkerCapacity
from servescope.emulator.router.kv import KvRouter
from servescope.emulator.router.loads import InFlight
from servescope.emulator.router.placement import Placed, Placement
from servescope.emulator.workload.requests import WorkloadRequest
from servescope.errors import UsageError
from tests.emulator.support.routers import AT_ONCE, BLOCK, kv_router, place, prompt, read, stored
from tests.support.drawing import examples

ONE = WorkerCapacity(requests=1, blocks=1000)


def submit(router: KvRouter, *requests: WorkloadRequest) -> list[int]:
    """Hand requests to the router; the numbers of those that were placed, as they are."""
    placed: list[int] = []

    def note(number: int) -> Placed:
        return lambda placement: placed.append(number if placement is not None else -number)

    for request in requests:
        router.submit(request, note(request.number))
    return placed


def fill(router: KvRouter, *workers: str) -> list[Placement]:
    """Give each of these workers a request that shares nothing."""
    return [place(router, prompt(900 + number), [worker]) for number, worker in enumerate(workers)]


def drain(router: KvRouter, clock: VirtualClock, busy: Placement) -> None:
    """End a request, and let what waited be placed."""
    busy.end()
    clock.run_until(clock.now)


def test_nothing_queues_while_one_worker_has_room() -> None:
    """Of two workers one is full: the next request is placed at once, and has not waited."""
    router = kv_router("a", "b", capacity=ONE)
    fill(router, "a")
    assert submit(router, prompt(1)) == [1]
    assert read(router)["router_queue_wait_seconds_sum"] == 0


def test_requests_queue_when_every_worker_is_saturated() -> None:
    """They count as queued until a worker has room again, and how long that took is seen."""
    clock = VirtualClock()
    router = kv_router("a", "b", clock=clock, capacity=ONE)
    first, _ = fill(router, "a", "b")
    placed = submit(router, prompt(1, 2, number=1), prompt(3, number=2))
    assert placed == []
    assert (router.queued_requests, router.queued_tokens) == (2, 33 + 17)
    assert read(router)["router_queued_requests"] == 2
    clock.run_until(3.0)
    drain(router, clock, first)
    assert placed == [1]
    shown = read(router)
    assert (router.queued_requests, router.queued_tokens) == (1, 17)
    assert shown["router_queued_requests"] == 1
    assert shown["router_queue_wait_seconds_sum"] == pytest.approx(3.0)


def test_blocks_saturate_a_worker_too() -> None:
    """A few long prompts fill a cache long before the batch is full."""
    clock = VirtualClock()
    router = kv_router("a", clock=clock, capacity=WorkerCapacity(requests=100, blocks=10))
    busy = place(router, prompt(*range(12)), ["a"])
    placed = submit(router, prompt(1))
    assert placed == []
    drain(router, clock, busy)
    assert placed == [1]


@pytest.mark.parametrize(("ratio", "expected"), [(0.5, 2), (1.0, 4), (1.5, 6)])
def test_saturation_ratio_says_when_a_worker_is_full(ratio: float, expected: int) -> None:
    """Below 1 the router keeps requests back early, above it lets engines queue some themselves."""
    capacity = WorkerCapacity(requests=4, blocks=1000)
    router = kv_router("a", runtime=replace(AT_ONCE, saturation_ratio=ratio), capacity=capacity)
    assert len(submit(router, *(prompt(number, number=number) for number in range(1, 9)))) == expected


def test_queue_has_an_end() -> None:
    """Beyond it a request goes to a worker all the same, whose engine queues or refuses it."""
    router = kv_router("a", runtime=replace(AT_ONCE, max_queued=2), capacity=ONE)
    fill(router, "a")
    placed = submit(router, *(prompt(number, number=number) for number in (1, 2, 3)))
    assert placed == [1]
    assert router.queued_requests == 2


def test_without_a_worker_requests_wait_and_the_last_are_refused() -> None:
    """No worker at all: some wait for one to come, the rest is refused."""
    router = kv_router(runtime=replace(AT_ONCE, max_queued=2))
    placed = submit(router, *(prompt(number, number=number) for number in (1, 2, 3)))
    assert placed == [-3]
    router.add_worker("a")
    assert placed == [-3, 1, 2]


def test_request_that_is_taken_back_is_not_placed() -> None:
    """A client that hangs up while its request queues frees its place; taking back later does nothing."""
    clock = VirtualClock()
    router = kv_router("a", clock=clock, capacity=ONE)
    (busy,) = fill(router, "a")
    placed: list[Placement | None] = []
    take_back = router.submit(prompt(1), placed.append)
    others = submit(router, prompt(2, number=2))
    take_back()
    assert router.queued_requests == 1
    drain(router, clock, busy)
    assert (placed, others) == ([], [2])
    take_back()
    assert router.queued_requests == 0


def order(policy: str, *requests: tuple[float, WorkloadRequest], cached: tuple[int, ...] = ()) -> list[int]:
    """In which order requests that come at these times are placed, one worker having room for one at a time."""
    clock = VirtualClock()
    router = kv_router("a", policy=policy, clock=clock, capacity=ONE)
    router.apply("a", stored(1, *cached))
    (busy,) = fill(router, "a")
    order: list[int] = []
    busy_now = [busy]

    def note(number: int) -> Callable[[Placement | None], None]:
        def placed(placement: Placement | None) -> None:
            assert placement is not None
            order.append(number)
            busy_now.append(placement)

        return placed

    for time, request in requests:
        clock.run_until(time)
        router.submit(request, note(request.number))
    for _ in requests:
        drain(router, clock, busy_now[-1])
    return order


def test_priority_bumps_a_request_ahead_by_seconds() -> None:
    """Each step of priority is worth a second of earlier arrival: it passes some, never all who came before."""
    assert order(
        "fcfs",
        (0.0, prompt(1, number=1)),
        (9.0, prompt(2, number=2)),
        (10.0, prompt(3, number=3, priority=3)),
        (10.5, prompt(4, number=4, priority=-1)),
        (10.8, prompt(5, number=5)),
    ) == [1, 3, 2, 5, 4]


def test_wspt_takes_what_is_cheap_first() -> None:
    """Short prompts and cached ones pass long ones, which may starve: the documented risk."""
    requests = [
        (0.0, prompt(*range(100, 130), number=1)),
        (1.0, prompt(*range(200, 210), number=2)),
        (2.0, prompt(*range(300, 320), number=3)),
    ]
    assert order("wspt", *requests) == [2, 3, 1]
    assert order("wspt", *requests, cached=tuple(range(100, 130))) == [1, 2, 3]


def test_wspt_weighs_priority() -> None:
    """A request of priority 3 counts four times, one of −1 half."""
    long, short = tuple(range(100, 130)), tuple(range(200, 210))
    assert order("wspt", (0.0, prompt(*long, number=1, priority=3)), (1.0, prompt(*short, number=2))) == [1, 2]
    assert order("wspt", (0.0, prompt(*short, number=1, priority=-3)), (1.0, prompt(*long, number=2))) == [2, 1]


def loaded(workers: int, requests_per_second: float, *, blocks: int = 100, seconds: float = 20.0) -> dict[str, float]:
    """What a router shows that had so many requests of so many blocks, at even intervals."""
    clock = VirtualClock()
    router = kv_router(*(f"engine-{number}" for number in range(workers)), runtime=RouterRuntime(), clock=clock)

    def send() -> None:
        router.submit(
            WorkloadRequest(1, blocks * BLOCK, 1, ()), lambda placement: placement.end() if placement else None
        )

    for number in range(int(requests_per_second * seconds)):
        clock.schedule(number / requests_per_second, send)
    clock.run_until(seconds)
    return read(router)


def test_decision_takes_time_that_grows_with_workers_and_blocks() -> None:
    """What it costs is in the router's figures: one decision alone takes just that."""
    cost = DecisionCost()
    for workers, blocks in ((4, 10), (64, 10), (64, 1000)):
        shown = loaded(workers, 1.0, blocks=blocks)
        count = shown["router_decision_seconds_count"]
        expected = cost.seconds(workers=workers, blocks=blocks)
        assert shown["router_decision_seconds_sum"] / count == pytest.approx(expected)
        assert shown["router_decision_busy_seconds_total"] / count == pytest.approx(expected)


@pytest.mark.slow
def test_one_router_is_a_bottleneck_above_fifty_workers() -> None:
    """At 8 requests per second and worker it keeps up with 40, and with 64 its decisions queue, all the time busy."""
    fine, late = loaded(40, 40 * 8.0), loaded(64, 64 * 8.0)
    assert fine["router_decision_busy_seconds_total"] / 20.0 < 0.75
    assert fine["router_decision_seconds_sum"] / fine["router_decision_seconds_count"] < 0.01
    assert fine["router_queued_requests"] <= 1
    assert late["router_decision_busy_seconds_total"] / 20.0 > 0.99
    assert late["router_decision_seconds_sum"] / late["router_decision_seconds_count"] > 1.0
    assert late["router_queued_requests"] > 1000
    # It is the router that is late, not the workers: nothing waited for one of those.
    assert late["router_queue_wait_seconds_sum"] == 0


def test_waiting_for_a_decision_and_for_a_worker_are_told_apart() -> None:
    """A request waits its turn for a second, then two for the only worker, and is decided about in another second."""
    clock = VirtualClock()
    runtime = RouterRuntime(decision=DecisionCost(base=1.0, per_worker=0.0, per_block=0.0))
    router = kv_router("a", runtime=runtime, clock=clock, capacity=ONE)
    first: list[Placement | None] = []
    router.submit(prompt(1), first.append)
    second = submit(router, prompt(2, number=2))
    clock.run_until(3.0)
    (busy,) = first
    assert busy is not None
    busy.end()
    clock.run_until(3.9)
    assert second == []
    clock.run_until(4.0)
    assert second == [2]
    shown = read(router)
    assert shown["router_queue_wait_seconds_sum"] == pytest.approx(2.0)
    assert shown["router_decision_seconds_sum"] == pytest.approx(1.0 + 2.0)
    assert shown["router_decision_busy_seconds_total"] == pytest.approx(2.0)


def test_worker_that_goes_while_the_router_decides_is_not_chosen() -> None:
    """The decision is between the workers that are there at its end; without one the request waits."""
    clock = VirtualClock()
    router = kv_router("a", "b", runtime=RouterRuntime(), clock=clock)
    router.apply("b", stored(1, 1, 2, 3))
    placed: list[Placement | None] = []
    router.submit(prompt(1, 2, 3), placed.append)
    router.remove_worker("b")
    clock.run_until(1.0)
    assert [placement.worker for placement in placed if placement] == ["a"]
    router.submit(prompt(1, 2, 3), placed.append)
    router.remove_worker("a")
    clock.run_until(2.0)
    assert (len(placed), router.queued_requests) == (1, 1)
    router.add_worker("c")
    clock.run_until(3.0)
    assert [placement.worker for placement in placed if placement] == ["a", "c"]


def test_requests_wait_for_a_router_that_restarts() -> None:
    """Whatever waits for its decision, or was being decided, is placed once the process is back, in its order."""
    clock = VirtualClock()
    router = kv_router("a", "b", runtime=RouterRuntime(), clock=clock)
    placed = submit(router, *(prompt(number, number=number) for number in (1, 2, 3)))
    router.restart("router-0")
    clock.run_until(1.9)
    assert (placed, router.queued_requests) == ([], 3)
    clock.run_until(2.1)
    assert placed == [1, 2, 3]


happenings = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 40), st.integers(-2, 3)),
        st.tuples(st.sampled_from(["end", "take back", "pause", "resume", "remove", "add", "wait"]), st.integers(0, 5)),
        st.tuples(st.just("restart")),
    ),
    max_size=60,
)


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(happenings=happenings, policy=st.sampled_from(["fcfs", "wspt"]), max_queued=st.integers(0, 4))
def test_every_request_is_placed_refused_or_taken_back_once(
    happenings: list[tuple[object, ...]], policy: str, max_queued: int
) -> None:
    """Whatever happens to workers and router, submitted = placed + refused + taken back + queued, each exactly once."""
    clock = VirtualClock()
    capacity = WorkerCapacity(requests=2, blocks=60)
    runtime = RouterRuntime(max_queued=max_queued)
    router = kv_router("w0", "w1", policy=policy, runtime=runtime, clock=clock, capacity=capacity)
    fates: Counter[int] = Counter()
    flying: list[Placement] = []
    waiting: dict[int, Callable[[], None]] = {}
    submitted = 0

    def note(number: int) -> Placed:
        def placed(placement: Placement | None) -> None:
            fates[number] += 1
            waiting.pop(number, None)
            if placement is not None:
                flying.append(placement)

        return placed

    for happening in happenings:
        what, *values = happening
        if what == "submit":
            submitted += 1
            blocks, priority = values
            request = prompt(*range(int(str(blocks))), number=submitted, priority=int(str(priority)))
            take_back = router.submit(request, note(submitted))
            if fates[submitted] == 0:
                waiting[submitted] = take_back
        elif what == "restart":
            router.restart("router-0")
        elif what == "wait":
            clock.run_until(clock.now + int(str(values[0])))
        elif what == "end" and flying:
            flying.pop(int(str(values[0])) % len(flying)).end()
        elif what == "take back" and waiting:
            number = sorted(waiting)[int(str(values[0])) % len(waiting)]
            waiting.pop(number)()
            fates[number] += 1
        elif what in ("pause", "resume", "remove"):
            getattr(router, f"{what}_worker")(f"w{values[0]}")
        elif what == "add":
            router.add_worker(f"w{values[0]}", capacity=capacity)
    assert set(fates.values()) <= {0, 1}
    assert submitted == sum(fates.values()) + router.queued_requests
    for placement in flying:
        placement.end()
    router.add_worker("last")
    router.resume_worker("last")
    clock.run_until(clock.now + 60.0)
    assert router.queued_requests == 0
    assert submitted == sum(fates.values())
    for placement in flying:
        placement.end()
    assert {worker.in_flight for worker in router._workers.values()} == {InFlight(0, 0)}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"saturation_ratio": 0.0}, "saturation_ratio is 0.0, expected a number above 0"),
        ({"max_queued": -1}, "max_queued is -1, expected 0 or more"),
        ({"priority_bump_seconds": float("inf")}, "priority_bump_seconds is inf, expected a number of 0 or more"),
        ({"replicas": 0}, "replicas of the router are 0, expected 1 to 64"),
        ({"replicas": 1.5}, "replicas of the router are 1.5, expected 1 to 64, whole"),
        ({"sync_seconds": -0.1}, "sync_seconds is -0.1, expected a number of 0 or more"),
    ],
)
def test_impossible_runtimes_are_refused(change: dict[str, float], expected: str) -> None:
    """Each value that no router could run with is refused by its name."""
    with pytest.raises(UsageError, match=expected):
        RouterRuntime(**change)  # type: ignore[arg-type] # numbers all
    with pytest.raises(UsageError, match=r"decision cost per_worker is -1\.0, expected a number of 0 or more"):
        DecisionCost(per_worker=-1.0)
