"""The emulated stack: deployments of replicas behind a router, sized by an autoscaler, under one stream of traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from servescope.contract.identity import Deployment
from servescope.emulator.clock import VirtualClock
from servescope.emulator.deployment.deployment import EmulatedDeployment, EmulatedTarget
from servescope.emulator.deployment.disaggregation import Disaggregation
from servescope.emulator.deployment.plan import DeploymentPlan
from servescope.emulator.engine.parameters import EngineParameters
from servescope.emulator.engine.speculation import speculate
from servescope.emulator.router.configuration import KvRouterParameters
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic, TrafficPlan
from servescope.emulator.workload.traffic import Traffic
from servescope.errors import UsageError
from servescope.migration.scaling import ConcurrencyScaling, TokenScaling

MODEL = "llama-3.3-70b"

# Drafts of the v1 engine's lookahead are n-grams of what it has written; v2's come from a trained Eagle head.
LOOKAHEAD = speculate("lookahead", acceptance=(0.66, 0.60, 0.56))
EAGLE = speculate("Eagle", acceptance=(0.93, 0.90, 0.87))

V1 = DeploymentPlan(
    identity=Deployment(MODEL, "chat-v1", "v1", environment="production"),
    engine=EngineParameters(speculation=LOOKAHEAD),
    scaling=ConcurrencyScaling(min_replica=2, initial_replicas=3, max_replica=6),
)
V2 = DeploymentPlan(
    identity=Deployment(MODEL, "chat-v2", "v2", environment="production", rollout_phase="promoting"),
    engine=EngineParameters(speculation=EAGLE),
    # Far below the sensible start of 50 000, so that a handful of requests per second already keeps three replicas.
    scaling=TokenScaling(target_in_flight_tokens=16_000, min_replica=2, initial_replicas=3, max_replica=6),
    routing=KvRouterParameters(),
)
V2_DISAGGREGATED = replace(
    V2,
    # Prompts come in bursts, and fewer workers than of an aggregated deployment take them.
    engine=replace(V2.engine, max_queue=16),
    scaling=TokenScaling(target_in_flight_tokens=10_000, min_replica=2, initial_replicas=2, max_replica=4),
    disaggregation=Disaggregation(prefill_workers_per_replica=1, decode_workers_per_replica=2),
)


class EmulatedStack:
    """Deployments under one stream of traffic: by default a v1 and a v2, `share_v2` of new conversations going to v2.

    The traffic is generated of `mix`, unless `traffic` plans another. Nothing moves but by `clock.run_until`, in one
    thread at a time. The same seed gives the same history. `epoch` is when it starts in Unix seconds, which its
    processes show; None for the time of this machine. A `quiet` stack has no traffic of its own until
    `traffic.start`; it serves only what is sent to its deployments.
    """

    def __init__(
        self,
        *,
        seed: int = 1,
        mix: Mix | None = None,
        traffic: TrafficPlan | None = None,
        share_v2: float = 0.5,
        v1: DeploymentPlan = V1,
        v2: DeploymentPlan = V2,
        epoch: float | None = None,
        quiet: bool = False,
    ) -> None:
        if not 0 <= share_v2 <= 1:
            raise UsageError(f"share of v2 is {share_v2!r}, expected a share in [0, 1]")
        self._assemble(
            [(v1, 1 - share_v2), (v2, share_v2)],
            traffic or GeneratedTraffic(mix or Mix()),
            seed,
            epoch=epoch,
            quiet=quiet,
        )

    @classmethod
    def of(
        cls,
        plans: Sequence[tuple[DeploymentPlan, float]],
        *,
        traffic: TrafficPlan,
        mixes: Mapping[str, Mix] | None = None,
        seed: int = 1,
        epoch: float | None = None,
        quiet: bool = False,
    ) -> EmulatedStack:
        """A stack of any deployments, each with its share of the traffic; together they need not be 1.

        `mixes` are of the deployments, by their id, whose conversations have a mix of their own.
        """
        stack = cls.__new__(cls)
        stack._assemble(plans, traffic, seed, mixes=mixes, epoch=epoch, quiet=quiet)
        return stack

    def _assemble(
        self,
        plans: Sequence[tuple[DeploymentPlan, float]],
        traffic: TrafficPlan,
        seed: int,
        *,
        mixes: Mapping[str, Mix] | None = None,
        epoch: float | None = None,
        quiet: bool,
    ) -> None:
        block_tokens = _check_plans([plan for plan, _ in plans])
        self.clock = VirtualClock(epoch)
        self.deployments = [EmulatedDeployment(plan, clock=self.clock, seed=seed) for plan, _ in plans]
        self.traffic = Traffic(
            traffic,
            clock=self.clock,
            seed=seed,
            block_tokens=block_tokens,
            sends={deployment.plan.identity.deployment_id: deployment.send for deployment in self.deployments},
            split={plan.identity.deployment_id: share for plan, share in plans},
            mixes=mixes,
        )
        if not quiet:
            self.traffic.start()

    @property
    def generation(self) -> int:
        """Goes up whenever the targets of a deployment change."""
        return sum(deployment.generation for deployment in self.deployments)

    def targets(self) -> list[EmulatedTarget]:
        """Every process that serves metrics now."""
        return [target for deployment in self.deployments for target in deployment.targets()]


def _check_plans(plans: Sequence[DeploymentPlan]) -> int:
    """The block size they share, in tokens; raises UsageError for plans that cannot be one stack."""
    names = [plan.identity.deployment_id for plan in plans]
    if not names:
        raise UsageError("the stack has no deployments, expected one or more")
    if len(set(names)) < len(names):
        raise UsageError(f"deployment ids are {', '.join(names)}, expected each of them once")
    sizes = [plan.engine.block_tokens for plan in plans]
    if len(set(sizes)) > 1:
        # One request's blocks are numbered for all deployments that may get it.
        listed = " and ".join(map(repr, dict.fromkeys(sizes)))
        raise UsageError(f"block sizes are {listed} tokens, expected the same for all")
    return sizes[0]
