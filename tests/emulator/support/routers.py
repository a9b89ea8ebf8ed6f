"""Routers to try, the events and requests they get, and what they expose."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from servescope.contract.identity import Identity
from servescope.emulator.clock import VirtualClock
from servescope.emulator.engine.cache import CacheChanges
from servescope.emulator.router.configuration import (
    UNBOUNDED,
    DecisionCost,
    KvRouterParameters,
    RouterRuntime,
    WorkerCapacity,
)
from servescope.emulator.router.events import BlockEvent, EventPublisher, Inventory
from servescope.emulator.router.kv import KvRouter
from servescope.emulator.router.least_load import LeastLoadRouter
from servescope.emulator.router.placement import Placement, Router
from servescope.emulator.workload.requests import WorkloadRequest
from servescope.instruments.router import RouterInstruments

BLOCK = 16
AT_ONCE = RouterRuntime(decision=DecisionCost(base=0.0, per_worker=0.0, per_block=0.0))
"""Decisions that take no time."""

_ALL = ("a", "b", "c", "d")


def identity(name: str = "router-0") -> Identity:
    """The identity of a router."""
    return Identity("m", "d", "v2", replica=name, role="router")


def kv_router(
    *workers: str,
    weight: float = 3.5,
    temperature: float = 0.0,
    policy: str = "fcfs",
    runtime: RouterRuntime = AT_ONCE,
    clock: VirtualClock | None = None,
    capacity: WorkerCapacity = UNBOUNDED,
) -> KvRouter:
    """A router over workers with empty caches."""
    clock = clock or VirtualClock()
    router = KvRouter(
        KvRouterParameters(weight, temperature, policy),
        clock=clock,
        block_tokens=BLOCK,
        instruments=RouterInstruments(identity(), clock=clock.read),
        seed="r",
        runtime=runtime,
    )
    for worker in workers:
        router.add_worker(worker, capacity=capacity)
    return router


def least_load_router(*workers: str) -> LeastLoadRouter:
    """A least-load router over idle workers."""
    router = LeastLoadRouter(clock=VirtualClock(), instruments=RouterInstruments(identity()), seed="r")
    for worker in workers:
        router.add_worker(worker)
    return router


def place(router: Router, request: WorkloadRequest, workers: Collection[str] = _ALL) -> Placement:
    """Where a request goes when all workers but these take none."""
    others = set(_ALL) - set(workers)
    for worker in others:
        router.pause_worker(worker)
    placed: list[Placement | None] = []
    router.submit(request, placed.append)
    for worker in others:
        router.resume_worker(worker)
    (placement,) = placed
    assert placement is not None
    return placement


def prompt(*blocks: int, number: int = 1, priority: int = 0) -> WorkloadRequest:
    """A request whose prompt is these blocks and one token more."""
    return WorkloadRequest(number, len(blocks) * BLOCK + 1, 10, blocks, priority=priority)


def stored(sequence: int, *blocks: int) -> BlockEvent:
    """An event of blocks that came into a cache."""
    return BlockEvent(sequence, CacheChanges(blocks, ()))


def removed(sequence: int, *blocks: int) -> BlockEvent:
    """An event of blocks that left a cache."""
    return BlockEvent(sequence, CacheChanges((), blocks))


def read(router: Router) -> dict[str, float]:
    """The router's samples, by name and by the state, reason or source they carry."""
    shown = {}
    for sample in router.instruments.samples():
        extra = [value for name, value in sample.labels if name in ("state", "reason", "le", "source")]
        shown["/".join([sample.name, *extra])] = sample.value
    return shown


def state(router: Router) -> str:
    """The state the router says its index is in."""
    prefix = "router_index_state/"
    (found,) = [name for name, value in read(router).items() if name.startswith(prefix) and value == 1]
    return found.removeprefix(prefix)


def with_snapshots(directory: Path, *, every_seconds: float = 60.0) -> RouterRuntime:
    """A router that writes its index there."""
    recovery = replace(AT_ONCE.recovery, snapshot_directory=directory, snapshot_seconds=every_seconds)
    return replace(AT_ONCE, recovery=recovery)


def followed(*, runtime: RouterRuntime = AT_ONCE, kept: int = 1000) -> tuple[VirtualClock, KvRouter, Worker]:
    """A clock, a router on it, and the worker `a` whose events it gets."""
    clock = VirtualClock()
    router = kv_router(clock=clock, runtime=runtime)
    return clock, router, Worker(router, "a", kept=kept)


class Worker:
    """A worker's cache as a plain set, whose events reach a router at once unless they are `lost`."""

    def __init__(self, router: Router, name: str, *, stream: str = "1", kept: int = 1000) -> None:
        self.name = name
        self.cached: set[int] = set()
        self.lost = False
        self._router = router
        self.events = EventPublisher(f"{name}/{stream}", lambda: self.cached, kept=kept)
        self.asked_after: list[int] = []
        router.add_worker(name, link=self)

    @property
    def stream(self) -> str:
        """The process it is."""
        return self.events.stream

    def events_after(self, sequence: int) -> list[BlockEvent] | None:
        """What it sends again, and that it was asked."""
        self.asked_after.append(sequence)
        return self.events.events_after(sequence)

    def inventory(self) -> Inventory:
        """What it has cached."""
        return self.events.inventory()

    def change(self, *, stored: tuple[int, ...] = (), removed: tuple[int, ...] = ()) -> None:
        """Blocks come and go."""
        self.cached = (self.cached | set(stored)) - set(removed)
        event = self.events.publish(CacheChanges(stored, removed))
        if not self.lost:
            self._router.apply(self.name, event)

    def miss(self, *, stored: tuple[int, ...] = (), removed: tuple[int, ...] = ()) -> None:
        """Blocks come and go, and the router does not hear of it."""
        self.lost = True
        self.change(stored=stored, removed=removed)
        self.lost = False
