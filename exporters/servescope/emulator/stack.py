"""The emulated stack: deployments of replicas behind a router, sized by an autoscaler, under one stream of traffic."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from servescope.autoscaler import AutoscalerInstruments
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
from servescope.emulator.engine import Engine, EngineParameters
from servescope.emulator.gpu import EmulatedGpu
from servescope.emulator.router import BlockEvent, KvRouter, KvRouterParameters, LeastLoadRouter, Router
from servescope.emulator.speculation import Speculation
from servescope.emulator.workload import Finished, GeneratedTraffic, Mix, Request, Traffic
from servescope.engine import EngineInstruments
from servescope.errors import UsageError
from servescope.identity import Deployment as DeploymentIdentity
from servescope.identity import Identity
from servescope.instruments import Instruments
from servescope.router import RouterInstruments

Status = Literal["starting", "active", "draining"]

_EVALUATION_SECONDS = 5.0
_ROUTER = "router-0"
_AUTOSCALER = "autoscaler-0"


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """What one deployment is made of.

    The kind of `scaling` decides the autoscaler; `routing` is None for a least-load router. A new replica takes
    `cold_start_seconds` until it serves; a cache event takes `event_seconds` to reach the router.
    """

    identity: DeploymentIdentity
    engine: EngineParameters
    scaling: TokenScaling | ConcurrencyScaling
    routing: KvRouterParameters | None = None
    cold_start_seconds: float = 45.0
    event_seconds: float = 0.02


MODEL = "llama-3.3-70b"

# Drafts of the v1 engine's lookahead are n-grams of what it has written; v2's come from a trained Eagle head.
LOOKAHEAD = Speculation(acceptance=(0.66, 0.60, 0.56))
EAGLE = Speculation(acceptance=(0.93, 0.90, 0.87))

V1 = DeploymentPlan(
    identity=DeploymentIdentity(MODEL, "chat-v1", "v1", environment="production"),
    engine=EngineParameters(speculation=LOOKAHEAD),
    scaling=ConcurrencyScaling(min_replica=2, initial_replicas=3, max_replica=6),
)
V2 = DeploymentPlan(
    identity=DeploymentIdentity(MODEL, "chat-v2", "v2", environment="production", rollout_phase="promoting"),
    engine=EngineParameters(speculation=EAGLE),
    # Far below the sensible start of 50 000, so that a handful of requests per second already keeps three replicas.
    scaling=TokenScaling(target_in_flight_tokens=16_000, min_replica=2, initial_replicas=3, max_replica=6),
    routing=KvRouterParameters(),
)


class Target(NamedTuple):
    """One process of a deployment that a scraper can read: its identity and its instruments."""

    identity: Identity
    instruments: Instruments

    @property
    def path(self) -> str:
        """Where its exposition is served."""
        return f"/{self.identity.deployment_id}/{self.identity.replica}/metrics"


class Replica:
    """One engine and where it stands in its life: `starting`, then `active`, then `draining`, then gone."""

    __slots__ = ("engine", "events", "identity", "status")

    def __init__(self, identity: Identity, engine: Engine) -> None:
        self.identity = identity
        self.engine = engine
        self.status: Status = "starting"
        self.events = 0

    @property
    def name(self) -> str:
        """What the router calls it."""
        return self.identity.replica


class Deployment:
    """Replicas behind one router, their number kept by an autoscaler.

    `replicas` are those that exist, by name, oldest first; at least one of them is active at all times.
    `generation` goes up whenever the targets change.
    """

    def __init__(self, plan: DeploymentPlan, *, clock: VirtualClock, seed: int) -> None:
        self.plan = plan
        self.replicas: dict[str, Replica] = {}
        self.generation = 0
        self._clock = clock
        self._seed = f"{plan.identity.deployment_id}-{seed}"
        self._born = 0
        self.router = self._build_router()
        self.autoscaler = self._build_autoscaler()
        for _ in range(self.autoscaler.initial_replicas):
            self._activate(self._create_replica())
        self._evaluate()
        clock.every(_EVALUATION_SECONDS, self._evaluate)

    def send(self, request: Request, finished: Finished) -> None:
        """Serve one request; `finished` is told how it ended."""
        active = [name for name, replica in self.replicas.items() if replica.status == "active"]
        placement = self.router.place(request, active)
        replica = self.replicas[placement.worker]

        def end(outcome: str) -> None:
            placement.end()
            finished(outcome)
            # Not at once: the engine is in the middle of the step that ended the request.
            if replica.status == "draining":
                self._clock.schedule(0.0, lambda: self._remove_if_drained(replica))

        serving = replica.engine.submit(request, first_token=placement.report, finished=end)
        if request.patience_seconds is not None:
            self._clock.schedule(request.patience_seconds, lambda: replica.engine.abort(serving))

    def targets(self) -> list[Target]:
        """Every process that serves metrics now; a replica does from when it is active until it is gone."""
        engines = [
            Target(replica.identity, replica.engine.instruments)
            for replica in self.replicas.values()
            if replica.status != "starting"
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
        counts = {"starting": 0, "active": 0, "draining": 0}
        for replica in self.replicas.values():
            counts[replica.status] += 1
        return counts

    def _identify(self, name: str, role: str) -> Identity:
        labels = dict(self.plan.identity.labels())
        return Identity(**labels, replica=name, role=role)

    def _build_router(self) -> Router:
        instruments = RouterInstruments(self._identify(_ROUTER, "router"), clock=self._clock.read)
        seed = f"router-{self._seed}"
        if self.plan.routing is None:
            return LeastLoadRouter(instruments=instruments, seed=seed)
        block_tokens = self.plan.engine.block_tokens
        return KvRouter(
            self.plan.routing, clock=self._clock, block_tokens=block_tokens, instruments=instruments, seed=seed
        )

    def _build_autoscaler(self) -> Autoscaler:
        instruments = AutoscalerInstruments(self._identify(_AUTOSCALER, "autoscaler"), clock=self._clock.read)
        if isinstance(self.plan.scaling, TokenScaling):
            return TokenAutoscaler(self.plan.scaling, instruments=instruments)
        return ConcurrencyAutoscaler(self.plan.scaling, instruments=instruments)

    def _create_replica(self) -> Replica:
        identity = self._identify(f"engine-{self._born}", "aggregated")
        self._born += 1
        parameters = self.plan.engine
        gpu = EmulatedGpu(clock=self._clock, memory_bytes=parameters.gpu_memory_bytes)
        instruments = EngineInstruments(
            identity,
            clock=self._clock.read,
            draft_length=parameters.speculation.draft_length if parameters.speculation else 1,
            resources=gpu,
        )
        engine = Engine(
            parameters,
            clock=self._clock,
            instruments=instruments,
            gpu=gpu,
            seed=f"{identity.replica}-{self._seed}",
            publish=lambda changes: self._publish(replica, changes),
        )
        replica = Replica(identity, engine)
        self.replicas[replica.name] = replica
        return replica

    def _publish(self, replica: Replica, changes: CacheChanges) -> None:
        replica.events += 1
        event = BlockEvent(replica.events, changes)
        self._clock.schedule(self.plan.event_seconds, lambda: self.router.apply(replica.name, event))

    def _activate(self, replica: Replica) -> None:
        # One that was given up while it started stays given up.
        if self.replicas.get(replica.name) is replica:
            replica.status = "active"
            self.router.add_worker(replica.name)
            self._show_replicas()

    def _evaluate(self) -> None:
        counts = self.count_replicas()
        engines = [replica.engine for replica in self.replicas.values()]
        load = Load(
            in_flight_tokens=sum(engine.in_flight_tokens for engine in engines),
            requests=sum(engine.in_flight for engine in engines),
            workers=counts["active"],
        )
        wanted = self.autoscaler.evaluate(self._clock.now, load)
        self._scale(wanted - counts["starting"] - counts["active"])

    def _scale(self, change: int) -> None:
        for _ in range(change):
            replica = self._create_replica()
            self._clock.schedule(self.plan.cold_start_seconds, partial(self._activate, replica))
        for _ in range(-change):
            self._give_up_one()
        self._show_replicas()

    def _give_up_one(self) -> None:
        """Let go of a replica that still starts, else of the youngest active one when it has served its requests."""
        youngest_first = [*reversed(self.replicas.values())]
        starting = [replica for replica in youngest_first if replica.status == "starting"]
        if starting:
            del self.replicas[starting[0].name]
            return
        replica = next(replica for replica in youngest_first if replica.status == "active")
        replica.status = "draining"
        self._remove_if_drained(replica)

    def _remove_if_drained(self, replica: Replica) -> None:
        if replica.engine.in_flight == 0 and self.replicas.pop(replica.name, None) is not None:
            self.router.remove_worker(replica.name)
            self._show_replicas()

    def _show_replicas(self) -> None:
        self.generation += 1
        self.autoscaler.instruments.set_replicas(self.count_replicas())


class EmulatedStack:
    """A v1 and a v2 deployment under one stream of conversations, `share_v2` of which go to v2.

    Nothing moves but by `clock.run_until`, in one thread at a time. The same seed gives the same history.
    """

    def __init__(
        self,
        *,
        seed: int = 1,
        mix: Mix | None = None,
        share_v2: float = 0.5,
        v1: DeploymentPlan = V1,
        v2: DeploymentPlan = V2,
    ) -> None:
        if not 0 <= share_v2 <= 1:
            raise UsageError(f"share of v2 is {share_v2!r}, expected a share in [0, 1]")
        if v1.engine.block_tokens != v2.engine.block_tokens:
            raise UsageError(
                f"block sizes are {v1.engine.block_tokens!r} and {v2.engine.block_tokens!r} tokens, "
                "expected the same for both"
            )
        self.clock = VirtualClock()
        self.deployments = [Deployment(plan, clock=self.clock, seed=seed) for plan in (v1, v2)]
        self.traffic = Traffic(
            GeneratedTraffic(mix or Mix()),
            clock=self.clock,
            seed=seed,
            block_tokens=v2.engine.block_tokens,
            sends={deployment.plan.identity.deployment_id: deployment.send for deployment in self.deployments},
            shares={v1.identity.deployment_id: 1 - share_v2, v2.identity.deployment_id: share_v2},
        )
        self.traffic.start()

    @property
    def generation(self) -> int:
        """Goes up whenever the targets of a deployment change."""
        return sum(deployment.generation for deployment in self.deployments)

    def targets(self) -> list[Target]:
        """Every process that serves metrics now."""
        return [target for deployment in self.deployments for target in deployment.targets()]
