"""Several active replicas of a KV-aware router, which share what they have in flight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from servescope.contract.identity import Identity
from servescope.emulator.clock import VirtualClock
from servescope.emulator.effects import RouterEffects
from servescope.emulator.router.configuration import UNBOUNDED, KvRouterParameters, RouterRuntime, WorkerCapacity
from servescope.emulator.router.events import BlockEvent, WorkerLink
from servescope.emulator.router.kv import KvRouter
from servescope.emulator.router.loads import InFlight
from servescope.emulator.router.placement import Placed, check_name
from servescope.emulator.workload.requests import WorkloadRequest
from servescope.instruments.router import RouterInstruments


class RouterReplicas:
    """KV-aware routers side by side: requests go to one after the other that is up, events go to all of them.

    Each decides for itself, with an index of its own; of what the others have in flight it knows what they said
    `sync_seconds` ago. `routers` are they by name, and `identify` makes the identity of one.
    """

    def __init__(
        self,
        parameters: KvRouterParameters,
        *,
        clock: VirtualClock,
        block_tokens: int,
        identify: Callable[[str], Identity],
        seed: str,
        runtime: RouterRuntime,
    ) -> None:
        self._clock = clock
        self._runtime = runtime
        self._turn = 0
        self.routers = {
            name: KvRouter(
                parameters,
                clock=clock,
                block_tokens=block_tokens,
                instruments=clock.date(RouterInstruments(identify(name), clock=clock.read)),
                seed=f"{seed}-{name}",
                runtime=replace(runtime, replicas=1),
                share=partial(self._share, name),
            )
            for name in (f"router-{number}" for number in range(runtime.replicas))
        }

    @property
    def instruments(self) -> RouterInstruments:
        """Those of the first."""
        return next(iter(self.routers.values())).instruments

    @property
    def processes(self) -> Mapping[str, RouterInstruments]:
        """The instruments of each replica."""
        return {name: router.instruments for name, router in self.routers.items()}

    @property
    def queued_requests(self) -> int:
        """Requests that no replica has placed yet."""
        return sum(router.queued_requests for router in self.routers.values())

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens of the requests that no replica has placed yet."""
        return sum(router.queued_tokens for router in self.routers.values())

    def add_worker(self, worker: str, *, capacity: WorkerCapacity = UNBOUNDED, link: WorkerLink | None = None) -> None:
        """Add a worker to every replica."""
        for router in self.routers.values():
            router.add_worker(worker, capacity=capacity, link=link)

    def pause_worker(self, worker: str) -> None:
        """Place no new requests on a worker."""
        for router in self.routers.values():
            router.pause_worker(worker)

    def resume_worker(self, worker: str) -> None:
        """Place requests on a worker again."""
        for router in self.routers.values():
            router.resume_worker(worker)

    def remove_worker(self, worker: str) -> None:
        """Remove a worker."""
        for router in self.routers.values():
            router.remove_worker(worker)

    def apply(self, worker: str, event: BlockEvent) -> None:
        """Send an event of a worker's cache to each replica, on a connection of its own."""
        for router in self.routers.values():
            router.apply(worker, event)

    def submit(self, request: WorkloadRequest, placed: Placed) -> Callable[[], None]:
        """Hand the request to the replica whose turn it is, past those that are down."""
        return self._next().submit(request, placed)

    def restart(self, name: str) -> None:
        """Let the process of one replica die, and be back a little later with what the others have in flight."""
        check_name(name, self.routers)
        self.routers[name].restart(name)
        for peer, router in self.routers.items():
            if peer != name:
                self._clock.schedule(self._runtime.recovery.restart_seconds, router.share_all)

    def apply_effects(self, effects: RouterEffects) -> None:
        """Replace the effects of faults on every replica."""
        for router in self.routers.values():
            router.apply_effects(effects)

    def _next(self) -> KvRouter:
        # With none up, the request waits in one until that is back.
        routers = [router for router in self.routers.values() if router.is_up] or list(self.routers.values())
        self._turn += 1
        return routers[(self._turn - 1) % len(routers)]

    def _share(self, name: str, worker: str, in_flight: InFlight) -> None:
        self._clock.schedule(self._runtime.sync_seconds, partial(self._share_with_peers, name, worker, in_flight))

    def _share_with_peers(self, name: str, worker: str, in_flight: InFlight) -> None:
        for peer, router in self.routers.items():
            if peer != name:
                router.note_peer(name, worker, in_flight)
