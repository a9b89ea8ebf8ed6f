"""A deployment: replicas behind one router, their number kept by an autoscaler, their health by an orchestrator."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from servescope.autoscaler import AutoscalerInstruments
from servescope.catalog import REPLICA_STATUSES
from servescope.emulator.autoscaler import (
    Autoscaler,
    ConcurrencyAutoscaler,
    ConcurrencyScaling,
    Load,
    TokenAutoscaler,
    TokenScaling,
)
from servescope.emulator.cache import CacheChanges
from servescope.emulator.clock import VirtualClock
from servescope.emulator.effects import DeploymentEffects
from servescope.emulator.engine import Engine, EngineParameters, Serving
from servescope.emulator.gpu import EmulatedGpu
from servescope.emulator.replica import BackOff, ColdStart, HealthCheck, Replica, Start
from servescope.emulator.router import BlockEvent, KvRouter, KvRouterParameters, LeastLoadRouter, Placement, Router
from servescope.emulator.workload import Cancel, Finished, Request
from servescope.engine import EngineInstruments
from servescope.errors import UsageError
from servescope.identity import Deployment as DeploymentIdentity
from servescope.identity import Identity
from servescope.instruments import Instruments
from servescope.router import RouterInstruments

_EVALUATION_SECONDS = 5.0
_ROUTER = "router-0"
_AUTOSCALER = "autoscaler-0"


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """What one deployment is made of.

    The kind of `scaling` decides the autoscaler; `routing` is None for a least-load router. A cache event takes
    `event_seconds` to reach the router. A draining replica that has not served its requests after `drain_seconds` is
    ended with them.
    """

    identity: DeploymentIdentity
    engine: EngineParameters
    scaling: TokenScaling | ConcurrencyScaling
    routing: KvRouterParameters | None = None
    cold_start: ColdStart = field(default_factory=ColdStart)
    health_check: HealthCheck = field(default_factory=HealthCheck)
    back_off: BackOff = field(default_factory=BackOff)
    event_seconds: float = 0.02
    drain_seconds: float = 600.0

    def __post_init__(self) -> None:
        for name in ("event_seconds", "drain_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} is {getattr(self, name)!r}, expected a number of seconds, 0 or more")


class Target(NamedTuple):
    """One process of a deployment that a scraper can read: its identity and its instruments."""

    identity: Identity
    instruments: Instruments

    @property
    def path(self) -> str:
        """Where its exposition is served."""
        return f"/{self.identity.deployment_id}/{self.identity.replica}/metrics"


class Flight:
    """One request on its way through a deployment, until it has ended in one outcome."""

    __slots__ = ("finished", "placement", "replica", "request", "serving")

    def __init__(self, request: Request, finished: Finished) -> None:
        self.request = request
        self.finished: Finished | None = finished
        self.placement: Placement | None = None
        self.replica: Replica | None = None
        self.serving: Serving | None = None


class Deployment:
    """Replicas behind one router, their number kept by an autoscaler.

    `replicas` are those that exist, by name, oldest first. `generation` goes up whenever the targets change.
    `requests_started` and `outcomes` are the truth over all processes there ever were, whoever saw it: the requests
    that were sent, and how those ended that have.
    """

    def __init__(self, plan: DeploymentPlan, *, clock: VirtualClock, seed: int) -> None:
        self.plan = plan
        self.replicas: dict[str, Replica] = {}
        self.generation = 0
        self.effects = DeploymentEffects()
        self.requests_started = 0
        self.outcomes: Counter[str] = Counter()
        self._clock = clock
        self._seed = f"{plan.identity.deployment_id}-{seed}"
        self._born = 0
        self._flights: dict[Flight, None] = {}
        self._watchers: list[Callable[[Replica], None]] = []
        self.router = self._build_router()
        self.autoscaler = self._build_autoscaler()
        for _ in range(self.autoscaler.initial_replicas):
            self._activate(self._create_replica())
        self._evaluate()
        clock.every(_EVALUATION_SECONDS, self._evaluate)
        clock.every(plan.health_check.period_seconds, self._check_health)

    # --- requests -----------------------------------------------------------------------------------------------------

    def send(self, request: Request, finished: Finished) -> Cancel:
        """Serve one request; `finished` is told how it ended. What is returned hangs up.

        While no replica is active it is rejected at once, which only the router's figures show.
        """
        self.requests_started += 1
        flight = Flight(request, finished)
        self._flights[flight] = None
        active = [name for name, replica in self.replicas.items() if replica.status == "active"]
        if active:
            self._serve(flight, self.router.place(request, active))
        else:
            self._turn_away(flight)
        if request.patience_seconds is not None:
            self._clock.schedule(request.patience_seconds, lambda: self._cancel(flight))
        return lambda: self._cancel(flight)

    @property
    def in_flight(self) -> int:
        """Requests that were sent and have not ended."""
        return len(self._flights)

    def _serve(self, flight: Flight, placement: Placement) -> None:
        replica = self.replicas[placement.worker]
        flight.placement = placement
        flight.replica = replica
        flight.serving = replica.engine.submit(
            flight.request, first_token=placement.report, finished=lambda outcome: self._end(flight, outcome)
        )

    def _turn_away(self, flight: Flight) -> None:
        attempt = self.router.instruments.route(
            eligible_tokens=flight.request.input_tokens,
            predicted_tokens=None,
            best_tokens=None,
            candidates=0,
            fallback_reason="no_worker",
        )
        attempt.abandon()
        self._end(flight, "rejected")

    def _cancel(self, flight: Flight, outcome: str = "client_abort") -> None:
        if flight.finished is not None and flight.replica is not None and flight.serving is not None:
            flight.replica.engine.abort(flight.serving, outcome)

    def _end(self, flight: Flight, outcome: str) -> None:
        finished, flight.finished = flight.finished, None
        if finished is None:
            return
        del self._flights[flight]
        self.outcomes[outcome] += 1
        if flight.placement is not None:
            flight.placement.end()
        finished(outcome)
        replica = flight.replica
        # Not at once: the engine is in the middle of the step that ended the request.
        if replica is not None and replica.status == "draining":
            self._clock.schedule(0.0, lambda: self._remove_if_drained(replica))

    # --- what there is ------------------------------------------------------------------------------------------------

    def targets(self) -> list[Target]:
        """Every process that serves metrics now: of a replica from when it is active until it has failed or is gone."""
        engines = [
            Target(replica.identity, replica.engine.instruments)
            for replica in self.replicas.values()
            if replica.serves_metrics
        ]
        return [
            *engines,
            Target(self._identify(_ROUTER, "router"), self.router.instruments),
            Target(self._identify(_AUTOSCALER, "autoscaler"), self.autoscaler.instruments),
        ]

    def is_gone(self, path: str) -> bool:
        """Whether the path was that of a replica that is no more."""
        found = re.fullmatch(rf"/{re.escape(self.plan.identity.deployment_id)}/engine-(\d{{1,9}})/metrics", path)
        return found is not None and int(found[1]) < self._born and f"engine-{found[1]}" not in self.replicas

    def count_replicas(self) -> dict[str, int]:
        """How many replicas there are in each status."""
        counts = dict.fromkeys(REPLICA_STATUSES, 0)
        for replica in self.replicas.values():
            counts[replica.status] += 1
        return counts

    def watch_engines(self, watch: Callable[[Replica], None]) -> None:
        """Have `watch` called with each replica from now on whose engine is a new one, before it serves."""
        self._watchers.append(watch)

    # --- what can be wrong --------------------------------------------------------------------------------------------

    def apply_effects(self, effects: DeploymentEffects) -> None:
        """Let this be wrong with the replicas from now on, and nothing else."""
        _check_effects(effects)
        self.effects = effects
        self.autoscaler.most_replicas = effects.max_replica
        for replica in self.replicas.values():
            if replica.start is not None:
                replica.start.set_factor(effects.cold_start_factor)
        self._doom_crashing()

    def restart(self, name: str) -> None:
        """The process of a replica dies and a new one serves at once.

        Its requests end as `error`, its cache is empty, its counters begin at zero and its events at 1. Without effect
        on a replica that has no process. Raises UsageError for one that does not exist.
        """
        replica = self.replicas.get(name)
        if replica is None:
            raise UsageError(f"unknown replica {name!r}, there are: {', '.join(self.replicas)}")
        if replica.serves_metrics:
            was = replica.status
            self._kill(replica)
            self._start_process(replica)
            if was == "draining":
                replica.status = was
                self._remove_if_drained(replica)
            else:
                self._activate(replica)

    def fail(self, name: str) -> None:
        """The process of a replica dies; after its back-off it is started again. Raises UsageError as `restart`."""
        replica = self.replicas.get(name)
        if replica is None:
            raise UsageError(f"unknown replica {name!r}, there are: {', '.join(self.replicas)}")
        if replica.serves_metrics:
            self._fail(replica)

    # --- replicas' lives ----------------------------------------------------------------------------------------------

    def _create_replica(self) -> Replica:
        identity = self._identify(f"engine-{self._born}", "aggregated")
        replica = Replica(identity, self._build_engine(identity, 1), unit=self._born)
        self._born += 1
        self.replicas[replica.name] = replica
        self._connect(replica)
        return replica

    def _build_engine(self, identity: Identity, process: int) -> Engine:
        parameters = self.plan.engine
        gpu = EmulatedGpu(clock=self._clock, memory_bytes=parameters.gpu_memory_bytes)
        instruments = EngineInstruments(
            identity,
            clock=self._clock.read,
            draft_length=parameters.speculation.draft_length if parameters.speculation else 1,
            resources=gpu,
        )
        life = "" if process == 1 else f"-{process}"
        engine: Engine = Engine(
            parameters,
            clock=self._clock,
            instruments=instruments,
            gpu=gpu,
            seed=f"{identity.replica}{life}-{self._seed}",
            publish=lambda changes: self._publish(identity.replica, engine, changes),
        )
        return engine

    def _connect(self, replica: Replica) -> None:
        for watch in self._watchers:
            watch(replica)

    def _publish(self, name: str, engine: Engine, changes: CacheChanges) -> None:
        replica = self.replicas.get(name)
        # A process that died may have a step behind it that nobody hears of.
        if replica is not None and replica.engine is engine:
            replica.events += 1
            event = BlockEvent(replica.events, changes)
            self._clock.schedule(self.plan.event_seconds, lambda: self._deliver(replica, engine, event))

    def _deliver(self, replica: Replica, engine: Engine, event: BlockEvent) -> None:
        # What was on its way when the process died is of a stream that the router no longer follows.
        if replica.engine is engine and replica.status in ("active", "draining"):
            self.router.apply(replica.name, event)

    def _begin_start(self, replica: Replica, *, image_present: bool) -> None:
        replica.status = "starting"
        replica.start = Start(
            self.plan.cold_start.phases(image_present=image_present),
            clock=self._clock,
            factor=self.effects.cold_start_factor,
            ready=lambda: self._activate(replica),
        )

    def _start_process(self, replica: Replica) -> None:
        replica.processes += 1
        replica.events = 0
        replica.engine = self._build_engine(replica.identity, replica.processes)
        self._connect(replica)

    def _activate(self, replica: Replica) -> None:
        replica.status = "active"
        replica.start = None
        replica.bad_checks = 0
        replica.active_since = replica.progressed_at = self._clock.now
        self.router.add_worker(replica.name)
        self._doom_crashing()
        self._show_replicas()

    def _kill(self, replica: Replica) -> None:
        """End the process: its requests have failed, and the router forgets it."""
        for flight in [flight for flight in self._flights if flight.replica is replica]:
            self._cancel(flight, "error")
        if replica.status in ("active", "draining"):
            self.router.remove_worker(replica.name)

    def _fail(self, replica: Replica) -> None:
        if self._clock.now - replica.active_since >= self.plan.back_off.forgiven_after_seconds:
            replica.failures = 0
        replica.failures += 1
        draining = replica.status == "draining"
        self._kill(replica)
        replica.status = "failed"
        if draining:
            self._discard(replica)
            return
        self._clock.schedule(self.plan.back_off.seconds(replica.failures), lambda: self._start_again(replica))
        self._show_replicas()

    def _start_again(self, replica: Replica) -> None:
        if self.replicas.get(replica.name) is replica:
            self._start_process(replica)
            self._begin_start(replica, image_present=True)
            self._show_replicas()

    def _discard(self, replica: Replica) -> None:
        del self.replicas[replica.name]
        if replica.start is not None:
            replica.start.cancel()
        self._show_replicas()

    def _doom_crashing(self) -> None:
        """Set the hour of every replica that is to crash."""
        for replica in [*self.replicas.values()][: self.effects.crashing_replicas]:
            if replica.status == "active":
                due = replica.active_since + self.effects.crash_after_seconds
                self._clock.schedule(due - self._clock.now, partial(self._crash, replica, replica.active_since))

    def _crash(self, replica: Replica, active_since: float) -> None:
        crashing = [*self.replicas.values()][: self.effects.crashing_replicas]
        due = active_since + self.effects.crash_after_seconds <= self._clock.now
        if replica in crashing and due and replica.status == "active" and replica.active_since == active_since:
            self._fail(replica)

    # --- health -------------------------------------------------------------------------------------------------------

    def _check_health(self) -> None:
        for replica in [*self.replicas.values()]:
            if replica.status in ("active", "unhealthy"):
                self._check(replica)

    def _check(self, replica: Replica) -> None:
        check = self.plan.health_check
        well = check.stalled_seconds is None or not replica.is_stalled(self._clock.now, check.stalled_seconds)
        replica.bad_checks = 0 if well else replica.bad_checks + 1
        if replica.status == "active" and replica.bad_checks >= check.failures:
            replica.status = "unhealthy"
            replica.unhealthy_since = self._clock.now
            self.router.remove_worker(replica.name)
            self._show_replicas()
        elif replica.status == "unhealthy" and well:
            self._recover(replica)
        elif replica.status == "unhealthy" and self._clock.now - replica.unhealthy_since >= check.restart_after_seconds:
            self._fail(replica)

    def _recover(self, replica: Replica) -> None:
        """It is well again: the router knows it anew, by an event that tells all it has cached."""
        active_since = replica.active_since
        self._activate(replica)
        replica.active_since = active_since
        replica.events = 0
        cached = tuple(sorted(replica.engine.cache.cached_blocks()))
        if cached:
            self._publish(replica.name, replica.engine, CacheChanges(stored=cached, removed=()))

    # --- scaling ------------------------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        counts = self.count_replicas()
        engines = [replica.engine for replica in self.replicas.values() if replica.serves_metrics]
        load = Load(
            in_flight_tokens=sum(engine.in_flight_tokens for engine in engines),
            requests=sum(engine.in_flight for engine in engines),
            workers=counts["active"],
        )
        wanted = self.autoscaler.evaluate(self._clock.now, load)
        # As an orchestrator does: a replica that has failed is started again, not replaced.
        self._scale(wanted - sum(counts.values()) + counts["draining"])

    def _scale(self, change: int) -> None:
        for _ in range(change):
            self._begin_start(self._create_replica(), image_present=False)
        for _ in range(-change):
            self._give_up_one()
        self._show_replicas()

    def _give_up_one(self) -> None:
        """Let go of the youngest replica that serves least: one that failed, starts, is unhealthy, or is active."""
        youngest_first = [*reversed(self.replicas.values())]
        replica = next(
            replica
            for status in ("failed", "starting", "unhealthy", "active")
            for replica in youngest_first
            if replica.status == status
        )
        if replica.status in ("failed", "starting"):
            self._discard(replica)
            return
        if replica.status == "unhealthy":
            # The router has forgotten it already; what it still has is lost with it.
            self._kill(replica)
            self._discard(replica)
            return
        replica.status = "draining"
        self._clock.schedule(self.plan.drain_seconds, lambda: self._end_drain(replica))
        self._remove_if_drained(replica)

    def _remove_if_drained(self, replica: Replica) -> None:
        if replica.engine.in_flight == 0 and self.replicas.get(replica.name) is replica:
            self.router.remove_worker(replica.name)
            self._discard(replica)

    def _end_drain(self, replica: Replica) -> None:
        if self.replicas.get(replica.name) is replica:
            self._fail(replica)

    def _show_replicas(self) -> None:
        self.generation += 1
        self.autoscaler.instruments.set_replicas(self.count_replicas())

    # --- building -----------------------------------------------------------------------------------------------------

    def _identify(self, name: str, role: str) -> Identity:
        labels = dict(self.plan.identity.labels())
        return Identity(**labels, replica=name, role=role)

    def _build_router(self) -> Router:
        instruments = RouterInstruments(self._identify(_ROUTER, "router"), clock=self._clock.read)
        seed = f"router-{self._seed}"
        if self.plan.routing is None:
            return LeastLoadRouter(instruments=instruments, seed=seed)
        block_tokens = self.plan.engine.block_tokens
        return KvRouter(self.plan.routing, block_tokens=block_tokens, instruments=instruments, seed=seed)

    def _build_autoscaler(self) -> Autoscaler:
        instruments = AutoscalerInstruments(self._identify(_AUTOSCALER, "autoscaler"), clock=self._clock.read)
        if isinstance(self.plan.scaling, TokenScaling):
            return TokenAutoscaler(self.plan.scaling, instruments=instruments)
        return ConcurrencyAutoscaler(self.plan.scaling, instruments=instruments)


def _check_effects(effects: DeploymentEffects) -> None:
    for name in ("cold_start_factor", "transfer_factor"):
        if not 0 < getattr(effects, name) < math.inf:
            raise UsageError(f"{name} is {getattr(effects, name)!r}, expected a number above 0")
    if effects.crashing_replicas < 0:
        raise UsageError(f"crashing_replicas is {effects.crashing_replicas!r}, expected 0 or more")
    if not 0 <= effects.crash_after_seconds < math.inf:
        raise UsageError(f"crash_after_seconds is {effects.crash_after_seconds!r}, expected 0 or more")
    if effects.max_replica is not None and effects.max_replica < 1:
        raise UsageError(f"max_replica is {effects.max_replica!r}, expected 1 or more")
