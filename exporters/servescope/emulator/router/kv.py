"""v2's router, which weighs what each worker has cached against what it is busy with."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from servescope.contract.identity import Identity
from servescope.emulator.clock import VirtualClock
from servescope.emulator.effects import RouterEffects
from servescope.emulator.router.configuration import (
    UNBOUNDED,
    KvRouterParameters,
    Recovery,
    RouterRuntime,
    WorkerCapacity,
)
from servescope.emulator.router.events import BlockEvent, WorkerLink
from servescope.emulator.router.following import IndexFollower
from servescope.emulator.router.index import BlockIndex
from servescope.emulator.router.loads import InFlight, Prompt, WorkerLoad
from servescope.emulator.router.placement import Placed, Placement, check_name, is_hot
from servescope.emulator.router.snapshots import SnapshotFile
from servescope.emulator.router.waiting import SaturationQueue, Waiting
from servescope.emulator.workload.requests import WorkloadRequest
from servescope.instruments.router import RouterInstruments


class KvRouter:
    """Weighs what each worker has cached of a prompt against what it is busy with.

    A worker's cost is prompt blocks − weight × overlap + active blocks; the choice is a softmax over the negative
    costs, normalised to 0 … 1 and divided by the temperature, and the least costly worker when that is 0.

    Decisions are made one at a time and each takes its time. Requests queue only while every worker is saturated.
    `share` is called whenever the load it has placed on a worker has changed.
    """

    def __init__(
        self,
        parameters: KvRouterParameters,
        *,
        clock: VirtualClock,
        block_tokens: int,
        instruments: RouterInstruments,
        seed: str,
        runtime: RouterRuntime | None = None,
        share: Callable[[str, InFlight], None] = lambda worker, in_flight: None,
    ) -> None:
        self.instruments = instruments
        self._runtime = runtime or RouterRuntime()
        self._parameters = parameters
        self._clock = clock
        self._block_tokens = block_tokens
        self._random = random.Random(seed)
        self._hot_random = random.Random(f"hot-{seed}")
        self._effects = RouterEffects()
        self._share = share
        recovery = self._runtime.recovery
        self._follower = IndexFollower(
            recovery,
            clock=clock,
            instruments=instruments,
            seed=seed,
            snapshots=_place_snapshots(recovery, instruments.identity, block_tokens),
        )
        self._workers: dict[str, WorkerLoad] = {}
        self._submitted = 0
        self._arrivals: deque[Waiting] = deque()
        self._queue = self._make_queue()
        self._unplaced: dict[int, Waiting] = {}
        self._deciding = False
        self._life = 1
        self._up = True

    @property
    def index(self) -> BlockIndex:
        """What the workers have cached, as far as the router knows."""
        return self._follower.index

    @property
    def processes(self) -> Mapping[str, RouterInstruments]:
        """Its only process."""
        return {self.instruments.identity.replica: self.instruments}

    @property
    def is_up(self) -> bool:
        """Whether the process runs; false for a little while after it died."""
        return self._up

    @property
    def queued_requests(self) -> int:
        """Requests that were submitted and not placed yet."""
        return len(self._unplaced)

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens of the requests that were submitted and not placed yet."""
        return sum(waiting.request.input_tokens for waiting in self._unplaced.values())

    def add_worker(self, worker: str, *, capacity: WorkerCapacity = UNBOUNDED, link: WorkerLink | None = None) -> None:
        """Add a worker that is ready, with an empty cache and no event yet."""
        self._follower.add_worker(worker, link)
        self._workers[worker] = WorkerLoad(capacity)
        self._share(worker, InFlight(0, 0))
        self._go_on()

    def pause_worker(self, worker: str) -> None:
        """Place no new requests on a worker; the index still follows it."""
        if worker in self._workers:
            self._workers[worker].paused = True

    def resume_worker(self, worker: str) -> None:
        """Place requests on a worker again."""
        if worker in self._workers:
            self._workers[worker].paused = False
            self._go_on()

    def remove_worker(self, worker: str) -> None:
        """Remove a worker and its cache."""
        self._follower.remove_worker(worker)
        self._workers.pop(worker, None)

    def apply(self, worker: str, event: BlockEvent) -> None:
        """Apply an event of a worker's cache."""
        self._follower.receive(worker, event)

    def apply_effects(self, effects: RouterEffects) -> None:
        """Replace the effects of faults on the router."""
        self._effects = effects
        self._follower.apply_effects(effects)

    def note_peer(self, peer: str, worker: str, in_flight: InFlight) -> None:
        """Record what another router has in flight on a worker."""
        known = self._workers.get(worker)
        if known is not None:
            known.note_peer(peer, in_flight)
            if self._unplaced:
                self._go_on()

    def cost(self, prompt_blocks: int, overlap_blocks: int, active_blocks: int) -> float:
        """What a request costs on a worker that has so much of its prompt cached and is busy with so many blocks."""
        replaced = self._effects.overlap_score_weight
        weight = self._parameters.router_overlap_score_weight if replaced is None else replaced
        return prompt_blocks - weight * overlap_blocks + active_blocks

    def share_all(self) -> None:
        """Share what it has in flight on each worker, with a peer that has just started."""
        for name, worker in self._workers.items():
            self._share(name, worker.in_flight)

    def restart(self, name: str) -> None:
        """Let the process die and be back a little later.

        Its index and what it has in flight are lost, its counters begin at zero; waiting requests are submitted again.
        Raises UsageError when `name` is not its name.
        """
        check_name(name, self.processes)
        self.instruments = self._clock.date(RouterInstruments(self.instruments.identity, clock=self._clock.read))
        self._follower.restart(self.instruments)
        self._life += 1
        self._up = self._deciding = False
        for worker, known in self._workers.items():
            fresh = self._workers[worker] = WorkerLoad(known.capacity)
            fresh.paused = known.paused
            self._share(worker, InFlight(0, 0))
        self._arrivals = deque(self._unplaced.values())
        self._queue = self._make_queue()
        self._show_queue()
        self._clock.schedule(self._runtime.recovery.restart_seconds, partial(self._come_back, self._life))

    def _come_back(self, life: int) -> None:
        if life == self._life:
            self._up = True
            self._follower.recover()
            self._go_on()

    def submit(self, request: WorkloadRequest, placed: Placed) -> Callable[[], None]:
        """Find a worker; the result cancels the request, without effect once it is placed."""
        self._submitted += 1
        waiting = Waiting(request, placed, number=self._submitted, arrived=self._clock.now)
        self._unplaced[waiting.number] = waiting
        self._arrivals.append(waiting)
        self._go_on()
        self._show_queue()
        return partial(self._take_back, waiting)

    def _take_back(self, waiting: Waiting) -> None:
        if self._unplaced.pop(waiting.number, None) is not None:
            waiting.taken_back = True
            self._show_queue()

    def _make_queue(self) -> SaturationQueue:
        return SaturationQueue(self._parameters.router_queue_policy, bump_seconds=self._runtime.priority_bump_seconds)

    def _show_queue(self) -> None:
        self.instruments.set_queued_requests(len(self._unplaced))

    def _go_on(self) -> None:
        """Begin decisions while requests wait for one."""
        while self._up and not self._deciding:
            waiting = self._next()
            if waiting is None:
                return
            self._decide(waiting)

    def _next(self) -> Waiting | None:
        """The request to decide about now; None when there is none, or no worker has room for it."""
        room = self._has_room()
        while self._arrivals and (len(self._queue) or not room):
            self._queue_arrival(self._arrivals.popleft())
        if len(self._queue):
            overflows = len(self._queue) > self._runtime.max_queued and self._candidates()
            if not room and not overflows:
                return None
            waiting = self._queue.pop()
            waiting.saturated_seconds += self._clock.now - waiting.saturated_since
            return waiting
        while self._arrivals:
            arrival = self._arrivals.popleft()
            if not arrival.taken_back:
                return arrival
        return None

    def _queue_arrival(self, waiting: Waiting) -> None:
        if waiting.taken_back:
            return
        if len(self._queue) >= self._runtime.max_queued and not self._candidates():
            del self._unplaced[waiting.number]
            waiting.placed(None)
            return
        waiting.saturated_since = self._clock.now
        self._queue.push(waiting, tokens_to_compute=self._count_missing(waiting.request))

    def _decide(self, waiting: Waiting) -> None:
        """Take the time a decision takes, then place the request."""
        blocks = -(-waiting.request.input_tokens // self._block_tokens)
        seconds = self._runtime.decision.seconds(workers=len(self._workers), blocks=blocks)
        if seconds == 0:
            self._place(waiting, 0.0)
            return
        self._deciding = True
        self._clock.schedule(seconds, partial(self._finish_decision, waiting, seconds, self._life))

    def _finish_decision(self, waiting: Waiting, seconds: float, life: int) -> None:
        # A process that died in the middle of it has decided nothing.
        if life == self._life:
            self._deciding = False
            self._place(waiting, seconds)
            self._go_on()

    def _place(self, waiting: Waiting, busy_seconds: float) -> None:
        self.instruments.record_decision(
            max(self._clock.now - waiting.arrived - waiting.saturated_seconds, busy_seconds), busy_seconds=busy_seconds
        )
        if waiting.taken_back:
            return
        candidates = self._candidates()
        if not candidates:
            # The last worker went while the router was deciding.
            self._queue_arrival(waiting)
            return
        del self._unplaced[waiting.number]
        self._show_queue()
        waiting.placed(self._choose_worker(waiting, candidates))

    def _choose_worker(self, waiting: Waiting, candidates: Sequence[str]) -> Placement:
        request = waiting.request
        prompt_blocks = -(-request.input_tokens // self._block_tokens)
        prompt = Prompt(request.block_ids[: request.input_tokens // self._block_tokens], prompt_blocks)
        overlaps = self.index.count_overlaps(self._reusable_blocks(request), candidates)
        chosen = self._choose(
            [
                self.cost(prompt_blocks, overlap, self._workers[worker].count_others(prompt.block_ids))
                for worker, overlap in zip(candidates, overlaps, strict=True)
            ]
        )
        if is_hot(self._effects, self._hot_random):
            chosen = 0
        attempt = self.instruments.route(
            eligible_tokens=request.input_tokens,
            predicted_tokens=overlaps[chosen] * self._block_tokens,
            best_tokens=max(overlaps) * self._block_tokens,
            candidates=len(candidates),
            queue_wait_seconds=waiting.saturated_seconds,
            fallback_reason="index recovering" if self._follower.is_empty_for_now else None,
        )
        name = candidates[chosen]
        worker = self._workers[name]
        worker.begin(prompt)
        self._share_worker(name, worker)
        return Placement(name, attempt, partial(self._release, name, worker, prompt))

    def _release(self, name: str, worker: WorkerLoad, prompt: Prompt) -> None:
        worker.end(prompt)
        self._share_worker(name, worker)
        if self._unplaced:
            # Not at once: the engine is in the middle of the step that ended the request.
            self._clock.schedule(0.0, self._go_on)

    def _share_worker(self, name: str, worker: WorkerLoad) -> None:
        # The load of a worker that is gone, or whose process died, interests no peer.
        if self._workers.get(name) is worker:
            self._share(name, worker.in_flight)

    def _candidates(self) -> list[str]:
        return [name for name, worker in self._workers.items() if not worker.paused]

    def _has_room(self) -> bool:
        """Whether some worker is not saturated."""
        ratio = self._runtime.saturation_ratio
        return any(not worker.paused and not worker.is_saturated(ratio) for worker in self._workers.values())

    def _reusable_blocks(self, request: WorkloadRequest) -> Sequence[int]:
        # At least one token is computed, so a prompt that is cached to its end is never reused whole.
        return request.block_ids[: (request.input_tokens - 1) // self._block_tokens]

    def _count_missing(self, request: WorkloadRequest) -> int:
        """Prompt tokens that no worker has cached."""
        overlaps = self.index.count_overlaps(self._reusable_blocks(request), list(self._workers))
        return request.input_tokens - max(overlaps, default=0) * self._block_tokens

    @property
    def _temperature(self) -> float:
        replaced = self._effects.temperature
        return self._parameters.router_temperature if replaced is None else replaced

    def _choose(self, costs: list[float]) -> int:
        lowest, highest = min(costs), max(costs)
        temperature = self._temperature
        if temperature == 0:
            return costs.index(lowest)
        scale = (highest - lowest) * temperature or 1.0
        weights = [math.exp((lowest - cost) / scale) for cost in costs]
        return self._random.choices(range(len(costs)), weights)[0]


def _place_snapshots(recovery: Recovery, identity: Identity, block_tokens: int) -> SnapshotFile | None:
    if recovery.snapshot_directory is None:
        return None
    router = f"{identity.deployment_id}-{identity.replica}"
    return SnapshotFile(recovery.snapshot_directory / f"{router}.json", router=router, block_tokens=block_tokens)
