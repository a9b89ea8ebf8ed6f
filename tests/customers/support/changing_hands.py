"""Two customers whose deployments change hands while the export runs, and what each may have received."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from servescope.contract.identity import Identity
from servescope.contract.samples import Sample, Snapshot
from servescope.customers.lanes.cursors import CursorFile, Gap, LaneId
from servescope.customers.lanes.program import CustomersProgram
from servescope.customers.policy.policy import Policy, Push, Resolution, Temporality
from servescope.errors import ServescopeError
from servescope.settings.clock import ProgramClock
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus
from tests.customers.support.customer_points import push_to
from tests.customers.support.otlp_backends import HttpBackend, http_backend, refusing
from tests.customers.support.otlp_rules import Ledger

DELTA: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
MINUTE: Final = 60_000
T0: Final = 1_790_000_040_000
SCRAPED_MS: Final = 15_000
CUSTOMERS: Final = ("acme", "globex")
RATES: Final = {"chat": 3, "search": 5}
"""The tokens a second of each deployment."""
# An interval, the time in which it settles, and a scrape before and after.
EDGES_MS: Final = MINUTE + 5_000 + 2 * SCRAPED_MS

Action = tuple[Any, ...]
"""What happens, and its values: see `act`."""


class VirtualClock(ProgramClock):
    """It shows `ahead_ms` more than the time that has passed."""

    def __init__(self, now_ms: int, on_time: Callable[[int], None]) -> None:
        super().__init__()
        self.true_ms, self.ahead_ms = now_ms, 0
        self._on_time = on_time
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def speed(self) -> float:
        return 1.0

    def now_ms(self) -> int:
        return self.true_ms + self.ahead_ms

    async def sleep(self, seconds: float) -> None:
        waking = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.true_ms + max(round(seconds * 1000), 1), waking))
        await waking

    def sleeping(self) -> int:
        """How many tasks sleep."""
        self._sleepers = [each for each in self._sleepers if not each[1].done()]
        return len(self._sleepers)

    async def pass_ms(self, length_ms: int, tasks: Callable[[], int]) -> None:
        """Have so much time pass; `tasks` says how many there are that sleep when they have nothing to do."""
        until_ms = self.true_ms + length_ms
        while True:
            while self.sleeping() < tasks():  # noqa: ASYNC110 - of what tasks do, no event is known
                await asyncio.sleep(0.0005)
            next_ms = min((wake_ms for wake_ms, _ in self._sleepers), default=until_ms + 1)
            self.true_ms = min(next_ms, until_ms)
            self._on_time(self.true_ms)
            if next_ms > until_ms:
                return
            for wake_ms, waking in self._sleepers:
                if wake_ms <= self.true_ms:
                    waking.set_result(None)


@dataclass(frozen=True)
class Gained:
    """What a scrape shows that an engine counted since the one before, or since it began when that is later."""

    from_ms: int
    to_ms: int
    stamped_ms: int
    tokens: float


@dataclass
class World:
    """A store that fills, customers with a backend each, and what happens to them."""

    folder: Path
    resolution: Resolution
    store: Store
    pushes: Mapping[str, Push]
    clock: VirtualClock = field(init=False)
    configured: dict[str, str] = field(default_factory=dict)
    """Whose each deployment is by the configuration."""
    backfill_ms: int = 0
    since_ms: int | None = None
    """From when deployments are their owners', where the configuration says that."""
    applied: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Whose each is by the configuration that was applied, and since when."""
    owned: list[tuple[str, str, int, int]] = field(default_factory=list)
    """Customer, deployment, and from when to when it was the customer's."""
    gained: dict[str, list[Gained]] = field(default_factory=lambda: {name: [] for name in RATES})
    began_ms: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RATES, T0 - 1_000_000))

    def __post_init__(self) -> None:
        self._scraped_ms, self._collector_ahead_ms = T0 - 10 * MINUTE, 0
        self.clock = VirtualClock(T0, self.fill)
        self.store.now_ms = lambda: self.clock.true_ms + self._collector_ahead_ms
        for name in RATES:
            identity = identity_of(name)
            self.store.set_target(TargetStatus(identity.target_id, "http://127.0.0.1/metrics", identity, healthy=True))
        self.fill(T0)

    def fill(self, until_ms: int) -> None:
        """A scrape of each engine every fifteen seconds; its counts begin with its process."""
        while self._scraped_ms + SCRAPED_MS <= until_ms:
            before_ms, self._scraped_ms = self._scraped_ms, self._scraped_ms + SCRAPED_MS
            for name, rate in RATES.items():
                labels, began_ms = identity_of(name).labels(), self.began_ms[name]
                from_ms = max(before_ms, began_ms)
                tokens = [float(rate * (at_ms - began_ms) // 1000) for at_ms in (from_ms, self._scraped_ms)]
                stamped_ms = self._scraped_ms + self._collector_ahead_ms
                self.gained[name].append(Gained(from_ms, self._scraped_ms, stamped_ms, tokens[1] - tokens[0]))
                samples = [
                    Sample("output_tokens_total", labels, tokens[1]),
                    Sample("replica_start_time_seconds", labels, began_ms / 1000),
                ]
                self.store.append_scrape(identity_of(name).target_id, stamped_ms, Snapshot.of(samples))

    def set_clock(self, ahead_ms: int) -> None:
        """Have all programs' clock be ahead by so much; the collector drops what is later than it shows."""
        self.clock.ahead_ms = self._collector_ahead_ms = ahead_ms
        self.store.drop_future(believed=True)

    def policies(self) -> list[Policy]:
        """Those of the customers that have a deployment."""
        return [
            Policy(
                customer,
                frozenset(
                    identity_of(name).deployment() for name in self.configured if self.configured[name] == customer
                ),
                ("output_tokens_total",),
                labels=("deployment_id", *(["replica"] if self.resolution == "replica" else [])),
                replicas="plain",
                resolution=self.resolution,
                push=(replace(push, backfill_ms=self.backfill_ms),),
                most_age_ms=30 * MINUTE,
                since_ms={identity_of(name).deployment().group: self.since_ms for name in RATES}
                if self.since_ms
                else {},
            )
            for customer, push in self.pushes.items()
            if customer in self.configured.values()
        ]

    async def apply(self, program: CustomersProgram) -> None:
        """Apply what is configured; what cannot be applied changes nothing."""
        now_ms = self.clock.true_ms
        with suppress(ServescopeError):
            await program.apply(self.policies())
            for name in RATES:
                owner = self.configured.get(name)
                customer, since_ms = self.applied.get(name, (None, 0))
                if customer == owner:
                    continue
                if customer is not None:
                    self.owned.append((customer, name, since_ms, now_ms))
                    del self.applied[name]
                if owner is not None:
                    self.applied[name] = (owner, now_ms)

    def spans(self, customer: str, name: str) -> list[tuple[int, int]]:
        """From when to when a deployment was the customer's, up to now."""
        still = [(self.applied[name][1], self.clock.true_ms)] if self.applied.get(name, ("",))[0] == customer else []
        return [(start, end) for of, which, start, end in self.owned if (of, which) == (customer, name)] + still


def identity_of(name: str) -> Identity:
    return Identity("llama", name, "v2", replica="engine-0")


class FullDisk:
    """A connection to a database for which there is no room."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.is_full = False

    def execute(self, statement: str, *arguments: Any) -> Any:
        """What SQLite does, which commits nothing while the disk is full."""
        if self.is_full and statement == "COMMIT":
            raise sqlite3.OperationalError("database or disk is full")
        return self._connection.execute(statement, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@dataclass
class Export:
    """The program that delivers, which may be stopped and started again, to backends that may refuse."""

    world: World
    backends: Mapping[str, HttpBackend] = field(default_factory=dict)
    program: CustomersProgram | None = None
    cursors: CursorFile | None = None
    disk: FullDisk | None = None
    following: asyncio.Task[None] | None = None

    def tasks(self) -> int:
        """How many lanes there are, and what follows the clock."""
        running = self.program._running.values() if self.program else ()
        return sum(not each.task.done() for each in running) + (self.program is not None)

    async def start(self) -> None:
        """Start it unless it runs."""
        if self.program is None:
            self.cursors = CursorFile(self.world.folder / "cursors.db", deliver=True)
            self.disk = FullDisk(self.cursors._connection)
            self.cursors._connection = self.disk  # type: ignore[assignment]
            self.program = CustomersProgram(self.world.store, self.cursors, self.world.clock)
            self.following = asyncio.create_task(self.program.follow_clock())
            await self.world.apply(self.program)

    async def stop(self) -> None:
        """Stop it where it runs; what it did not write is lost."""
        if self.program is not None and self.cursors is not None and self.following is not None:
            self.following.cancel()
            await asyncio.gather(self.following, return_exceptions=True)
            await self.program.close()
            self.cursors.close()
            self.program = None


async def act(export: Export, kind: str, *values: Any) -> None:
    """Have one thing happen."""
    world = export.world
    match kind:
        case "pass":
            await world.clock.pass_ms(values[0], export.tasks)
        case "own":
            name, customer, world.backfill_ms = values
            world.configured = {each: owner for each, owner in world.configured.items() if each != name}
            world.configured |= {name: customer} if customer else {}
        case "reload" if export.program is not None:
            await world.apply(export.program)
        case "outage":
            export.backends[values[0]].faults.extend([refusing(503)] * 1000)
        case "restart":
            await export.stop()
            await export.start()
        case "stop":
            await export.stop()
        case "engine":
            world.began_ms[values[0]] = world.clock.true_ms
        case "full" if export.disk is not None:
            export.disk.is_full = True
        case "clock":
            world.set_clock(values[0])
        case "export's clock":
            world.clock.ahead_ms = values[0]
        case "heal":
            world.set_clock(0)
            for backend in export.backends.values():
                backend.faults.clear()
            if export.disk is not None:
                export.disk.is_full = False
            await export.start()


async def play(
    folder: Path, temporality: Temporality, resolution: Resolution, actions: Sequence[Action]
) -> dict[str, Ledger]:
    """Have the actions happen, then everything work for a while, and check what was received; returns all of that."""
    async with AsyncExitStack() as ends:
        store = ends.enter_context(Store(folder / "past.db"))
        backends = {name: await ends.enter_async_context(http_backend()) for name in CUSTOMERS}
        pushes = {name: push_to(backend.url, temporality=temporality) for name, backend in backends.items()}
        export = Export(World(folder, resolution, store, pushes), backends)
        gaps = await run(export, actions)
        for customer, name in product(CUSTOMERS, RATES):
            check(export.world, customer, name, total(backends[customer].ledger, name), gaps[customer])
        return {name: backend.ledger for name, backend in backends.items()}


async def run(export: Export, actions: Sequence[Action]) -> dict[str, list[Gap]]:
    """Have the actions happen, then everything work for a while; returns the gaps of each customer."""
    for action in [*actions, ("heal",), ("reload",), ("pass", 10 * MINUTE)]:
        await act(export, *action)
    assert export.cursors is not None
    gaps = {customer: export.cursors.gaps(LaneId(customer, "push")) for customer in CUSTOMERS}
    await export.stop()
    return gaps


def check(world: World, customer: str, name: str, received: float, gaps: Sequence[Gap]) -> None:
    """Nothing of another's time, nothing twice, and nothing lost but at the ends of its own time and within gaps."""
    spans = world.spans(customer, name)
    own = [each for each in world.gained[name] for start, end in spans if each.from_ms >= start and each.to_ms <= end]
    due = [
        each
        for each in own
        if any(start + EDGES_MS < each.to_ms <= end - EDGES_MS for start, end in spans)
        # Where the collector's clock was ahead, and what it stored has come to be of now, a gap is of that time.
        and not any(
            gap.start_ms - SCRAPED_MS < at_ms <= gap.end_ms + SCRAPED_MS
            for gap in gaps
            for at_ms in (each.to_ms, each.stamped_ms)
        )
    ]
    most, least = (sum(each.tokens for each in some) for some in (own, due))
    assert least <= received <= most, (customer, name, spans, gaps)


def total(ledger: Ledger, name: str) -> float:
    """The tokens of a deployment that a customer received; a delta that came again is counted once."""
    found = 0.0
    for key, points in ledger.named("output_tokens_total").items():
        if ("deployment_id", name) not in key.resource:
            continue
        if ledger.declared[key.resource, key.name][2] == DELTA:
            runs = [(point, len(list(same))) for point, same in groupby(points)]
            assert max(times for _, times in runs) <= 2
            found += sum(point.value for point, _ in runs if isinstance(point.value, float | int))
        else:
            found += ledger.total(key)
    return found
