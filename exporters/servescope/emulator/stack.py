"""The emulated stack: deployments of replicas behind a router, sized by an autoscaler, under one stream of traffic."""

from __future__ import annotations

from servescope.emulator.autoscaler import ConcurrencyScaling, TokenScaling
from servescope.emulator.clock import VirtualClock
from servescope.emulator.deployment import Deployment, DeploymentPlan, Target
from servescope.emulator.engine import EngineParameters
from servescope.emulator.router import KvRouterParameters
from servescope.emulator.speculation import Speculation
from servescope.emulator.workload import ChatMix, ChatWorkload
from servescope.errors import UsageError
from servescope.identity import Deployment as DeploymentIdentity

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


class EmulatedStack:
    """A v1 and a v2 deployment under one stream of conversations, `share_v2` of which go to v2.

    Nothing moves but by `clock.run_until`, in one thread at a time. The same seed gives the same history.
    """

    def __init__(
        self,
        *,
        seed: int = 1,
        mix: ChatMix | None = None,
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
        self.workload = ChatWorkload(
            mix or ChatMix(),
            clock=self.clock,
            seed=seed,
            block_tokens=v2.engine.block_tokens,
            sends=[(1 - share_v2, self.deployments[0].send), (share_v2, self.deployments[1].send)],
        )
        self.workload.start()

    @property
    def generation(self) -> int:
        """Goes up whenever the targets of a deployment change."""
        return sum(deployment.generation for deployment in self.deployments)

    def targets(self) -> list[Target]:
        """Every process that serves metrics now."""
        return [target for deployment in self.deployments for target in deployment.targets()]
