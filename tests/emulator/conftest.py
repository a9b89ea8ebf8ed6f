"""What the tests of the emulator share: deployments on a virtual clock, and clients of their traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from servescope.emulator.clock import VirtualClock
from servescope.emulator.deployment.deployment import EmulatedDeployment
from servescope.emulator.deployment.plan import DeploymentPlan
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import TrafficPlan
from servescope.emulator.workload.requests import Finished, WorkloadRequest
from servescope.emulator.workload.traffic import Traffic


def deploy(plan: DeploymentPlan) -> tuple[EmulatedDeployment, VirtualClock]:
    """A deployment on a clock of its own."""
    clock = VirtualClock()
    return EmulatedDeployment(plan, clock=clock, seed=1), clock


def statuses(deployment: EmulatedDeployment) -> dict[str, int]:
    """How many replicas are in each status that any is in."""
    return {status: count for status, count in deployment.count_replicas().items() if count}


def shown(deployment: EmulatedDeployment, **labels: str) -> dict[str, float]:
    """What the pages of a deployment show of the processes and series with these labels, summed."""
    sums: dict[str, float] = {}
    for target in deployment.targets():
        for name, own, value in target.instruments.samples():
            if labels.items() <= dict(own).items():
                sums[name] = sums.get(name, 0.0) + value
    return sums


def forget(outcome: str) -> None:
    """What a client does that does not care."""


class Client:
    """Answers every request after `seconds`, by outcomes that come in turn; remembers what came when."""

    def __init__(self, clock: VirtualClock, outcomes: tuple[str, ...] = ("ok",), seconds: float = 3.0) -> None:
        self.clock = clock
        self.requests: list[tuple[float, WorkloadRequest]] = []
        self._outcomes, self._seconds = outcomes, seconds

    def send(self, request: WorkloadRequest, finished: Finished) -> None:
        self.requests.append((self.clock.now, request))
        outcome = self._outcomes[len(self.requests) % len(self._outcomes)]
        self.clock.schedule(self._seconds, lambda: finished(outcome))

    def since(self, seconds: float) -> list[WorkloadRequest]:
        """The requests that came from then on."""
        return [request for moment, request in self.requests if moment >= seconds]

    @property
    def sent(self) -> list[WorkloadRequest]:
        """All requests, in the order in which they came."""
        return [request for _, request in self.requests]


def make_traffic(
    plan: TrafficPlan,
    clock: VirtualClock,
    clients: Sequence[Client],
    *,
    seed: int = 1,
    block_tokens: int = 32,
    split: Sequence[float] = (1.0,),
    mixes: Mapping[str, Mix] | None = None,
) -> Traffic:
    """Traffic over deployments "0", "1", … with that split, each of which is one of the clients."""
    return Traffic(
        plan,
        clock=clock,
        seed=seed,
        block_tokens=block_tokens,
        sends={str(number): client.send for number, client in enumerate(clients)},
        split={str(number): share for number, share in enumerate(split)},
        mixes=mixes,
    )


def prompt_blocks(request: WorkloadRequest, block_tokens: int) -> tuple[int, ...]:
    """Ids of the full blocks of a prompt."""
    return tuple(request.block_ids[: request.input_tokens // block_tokens])
