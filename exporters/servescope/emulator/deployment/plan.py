"""What a deployment is made of, and its parts built by that plan: engines, router, autoscaler."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from servescope.contract.identity import Deployment, Identity
from servescope.emulator.clock import VirtualClock
from servescope.emulator.deployment.autoscaler import Autoscaler, ConcurrencyAutoscaler, TokenAutoscaler
from servescope.emulator.deployment.disaggregation import Disaggregation, WorkerRole
from servescope.emulator.deployment.replica import BackOff, ColdStart, HealthCheck
from servescope.emulator.engine.cache import CacheChanges
from servescope.emulator.engine.costs import TransferCost
from servescope.emulator.engine.engine import Engine
from servescope.emulator.engine.gpu import EmulatedGpu
from servescope.emulator.engine.parameters import EngineParameters
from servescope.emulator.router.configuration import KvRouterParameters, RouterRuntime
from servescope.emulator.router.kv import KvRouter
from servescope.emulator.router.least_load import LeastLoadRouter
from servescope.emulator.router.placement import Router
from servescope.emulator.router.replicas import RouterReplicas
from servescope.errors import UsageError
from servescope.instruments.autoscaler import AutoscalerInstruments
from servescope.instruments.engine import EngineInstruments
from servescope.instruments.router import RouterInstruments
from servescope.migration.scaling import ConcurrencyScaling, TokenScaling

ROUTER = "router-0"
AUTOSCALER = "autoscaler-0"


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """What one deployment is made of.

    The kind of `scaling` decides the autoscaler; `routing` is None for a least-load router, `router` says how the
    processes of a KV-aware one run. A cache event takes `event_seconds` to reach them. A draining replica that has not
    served its requests after `drain_seconds` is ended with them. It is there from `opens_seconds` on, from that long
    before the start if that is negative; its first replicas then serve at once, later they start like any other.

    With `disaggregation` a replica is a unit of prefill and decode workers, between which `kv_transfer` says how KV
    goes; every worker is built as `engine` says, but that prefill workers draft nothing.
    """

    identity: Deployment
    engine: EngineParameters
    scaling: TokenScaling | ConcurrencyScaling
    routing: KvRouterParameters | None = None
    router: RouterRuntime = field(default_factory=RouterRuntime)
    cold_start: ColdStart = field(default_factory=ColdStart)
    health_check: HealthCheck = field(default_factory=HealthCheck)
    back_off: BackOff = field(default_factory=BackOff)
    event_seconds: float = 0.02
    drain_seconds: float = 600.0
    opens_seconds: float = 0.0
    disaggregation: Disaggregation | None = None
    kv_transfer: TransferCost = field(default_factory=TransferCost)

    def __post_init__(self) -> None:
        if not math.isfinite(self.opens_seconds):
            raise UsageError(f"opens_seconds is {self.opens_seconds!r}, expected a number of seconds")
        for name in ("event_seconds", "drain_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} is {getattr(self, name)!r}, expected a number of seconds, 0 or more")
        if self.disaggregation is not None and not isinstance(self.scaling, TokenScaling):
            raise UsageError("a disaggregated deployment scales on its tokens in flight, expected TokenScaling")

    @property
    def roles(self) -> tuple[WorkerRole, ...]:
        """The role of each worker of one replica."""
        return ("aggregated",) if self.disaggregation is None else self.disaggregation.roles

    def age_seconds(self, clock: VirtualClock) -> float:
        """How old a process is that the emulation creates now: those of its start began before it."""
        return max(-self.opens_seconds, 0.0) if clock.now == 0 else 0.0

    def identify(self, name: str, role: str) -> Identity:
        """The identity of one process of the deployment."""
        return Identity(**dict(self.identity.labels()), replica=name, role=role)


def build_engine(
    plan: DeploymentPlan,
    identity: Identity,
    *,
    clock: VirtualClock,
    seed: str,
    pace_seed: str,
    publish: Callable[[Engine, CacheChanges], None],
) -> Engine:
    """The engine of one worker; `publish` gets it with the changes of its cache.

    `pace_seed` is the same for all processes on one machine, `seed` another for each.
    """
    role = next(role for role in plan.roles if role == identity.role)
    # Prefill workers decode nothing, so that they have nothing to draft.
    parameters = replace(plan.engine, speculation=None) if role == "prefill" else plan.engine
    gpu = EmulatedGpu(clock=clock, memory_bytes=parameters.gpu_memory_bytes)
    instruments = EngineInstruments(
        identity,
        clock=clock.read,
        draft_length=parameters.draft_length or 1,
        resources=gpu,
    )
    clock.date(instruments, age_seconds=plan.age_seconds(clock))
    engine: Engine = Engine(
        parameters,
        clock=clock,
        instruments=instruments,
        gpu=gpu,
        seed=seed,
        publish=lambda changes: publish(engine, changes),
        role=role,
        pace=math.exp(random.Random(f"pace-{pace_seed}").gauss(0.0, parameters.pace_spread)),
    )
    return engine


def build_router(plan: DeploymentPlan, *, clock: VirtualClock, seed: str) -> Router:
    """The router that the plan names: KV-aware in one process or several, or by least load."""
    block_tokens = plan.engine.block_tokens
    if plan.routing is not None and plan.router.replicas > 1:
        return RouterReplicas(
            plan.routing,
            clock=clock,
            block_tokens=block_tokens,
            identify=lambda name: plan.identify(name, "router"),
            seed=seed,
            runtime=plan.router,
        )
    instruments = clock.date(
        RouterInstruments(plan.identify(ROUTER, "router"), clock=clock.read), age_seconds=plan.age_seconds(clock)
    )
    if plan.routing is None:
        return LeastLoadRouter(clock=clock, instruments=instruments, seed=seed)
    return KvRouter(
        plan.routing,
        clock=clock,
        block_tokens=block_tokens,
        instruments=instruments,
        seed=seed,
        runtime=plan.router,
    )


def build_autoscaler(plan: DeploymentPlan, *, clock: VirtualClock) -> Autoscaler:
    """The autoscaler of the plan's kind of scaling."""
    instruments = clock.date(
        AutoscalerInstruments(plan.identify(AUTOSCALER, "autoscaler"), clock=clock.read),
        age_seconds=plan.age_seconds(clock),
    )
    if isinstance(plan.scaling, TokenScaling):
        return TokenAutoscaler(plan.scaling, instruments=instruments, disaggregation=plan.disaggregation)
    return ConcurrencyAutoscaler(plan.scaling, instruments=instruments)
