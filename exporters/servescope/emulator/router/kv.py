"""v2's router, which weighs what each worker has cached against what it is busy with."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from servescope.emulator.clock import VirtualClock
from servescope.emulator.effects import RouterEffects
from servescope.emulator.router.configuration import UNBOUNDED, KvRouterParameters, RouterRuntime, WorkerCapacity
from servescope.emulator.router.events import BlockEvent, WorkerLink
from servescope.emulator.router.following import IndexFollower
from servescope.emulator.router.index import BlockIndex
from servescope.emulator.router.placement import Placed, Placement
from servescope.emulator.router.waiting import SaturationQueue, Waiting
from servescope.emulator.workload import Request
from servescope.router import RouterInstruments


class _Worker:
    """What the router knows to be on one worker: requests, and the blocks of their prompts."""

    __slots__ = ("blocks", "capacity", "paused", "requests")

    def __init__(self, capacity: WorkerCapacity) -> None:
        self.capacity = capacity
        self.paused = False
        self.requests = 0
        self.blocks = 0


class KvRouter:
    """Weighs what each worker has cached of a prompt against what it is busy with.

    A worker's cost is prompt blocks − weight × overlap + active blocks; the choice is a softmax over the negative
    costs, normalised to 0 … 1 and divided by the temperature, and the least costly worker when that is 0.

    Decisions are made one at a time and each takes its time. Requests queue only while every worker is saturated.
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
    ) -> None:
        self.instruments = instruments
        self._runtime = runtime or RouterRuntime()
        self._parameters = parameters
        self._clock = clock
        self._block_tokens = block_tokens
        self._random = random.Random(seed)
        self._effects = RouterEffects()
        self._follower = IndexFollower(clock=clock, instruments=instruments, seed=seed)
        self._workers: dict[str, _Worker] = {}
        self._submitted = 0
        self._arrivals: deque[Waiting] = deque()
        self._queue = SaturationQueue(parameters.router_queue_policy, bump_seconds=self._runtime.priority_bump_seconds)
        self._unplaced: dict[int, Waiting] = {}
        self._deciding = False

    @property
    def index(self) -> BlockIndex:
        """What the workers have cached, as far as the router knows."""
        return self._follower.index

    @property
    def processes(self) -> Mapping[str, RouterInstruments]:
        """Its only process."""
        return {self.instruments.identity.replica: self.instruments}

    @property
    def queued_requests(self) -> int:
        """Requests that were submitted and not placed yet."""
        return len(self._unplaced)

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens of the requests that were submitted and not placed yet."""
        return sum(waiting.request.input_tokens for waiting in self._unplaced.values())

    def add_worker(self, worker: str, *, capacity: WorkerCapacity = UNBOUNDED, link: WorkerLink | None = None) -> None:
        """A worker is ready, its cache empty and its next event its first."""
        self._follower.add_worker(worker, link)
        self._workers[worker] = _Worker(capacity)
        self._go_on()

    def pause_worker(self, worker: str) -> None:
        """A worker takes no new requests; the index goes on following it."""
        if worker in self._workers:
            self._workers[worker].paused = True

    def resume_worker(self, worker: str) -> None:
        """A worker takes requests again."""
        if worker in self._workers:
            self._workers[worker].paused = False
            self._go_on()

    def remove_worker(self, worker: str) -> None:
        """A worker is gone, and its cache with it."""
        if worker in self._workers:
            self._follower.remove_worker(worker)
            del self._workers[worker]

    def apply(self, worker: str, event: BlockEvent) -> None:
        """Follow a change in a worker's cache."""
        self._follower.receive(worker, event)

    def apply_effects(self, effects: RouterEffects) -> None:
        """What is wrong with the router from now on."""
        self._effects = effects
        self._follower.apply_effects(effects)

    def submit(self, request: Request, placed: Placed) -> Callable[[], None]:
        """Find a worker; what it returns takes the request back, without effect once it is placed."""
        self._submitted += 1
        waiting = Waiting(request, placed, number=self._submitted, arrived=self._clock.now)
        self._unplaced[waiting.number] = waiting
        self._arrivals.append(waiting)
        self._go_on()
        return partial(self._take_back, waiting)

    def place(self, request: Request, workers: Sequence[str]) -> Placement:
        """Choose one of `workers` at once, whatever waits."""
        return self._choose_worker(Waiting(request, lambda _: None, number=0, arrived=self._clock.now), workers)

    def _take_back(self, waiting: Waiting) -> None:
        if self._unplaced.pop(waiting.number, None) is not None:
            waiting.taken_back = True

    def _go_on(self) -> None:
        """Begin decisions as long as there is one to make."""
        while not self._deciding:
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
            self._place(waiting)
            return
        self._deciding = True
        self._clock.schedule(seconds, partial(self._finish_decision, waiting))

    def _finish_decision(self, waiting: Waiting) -> None:
        self._deciding = False
        self._place(waiting)
        self._go_on()

    def _place(self, waiting: Waiting) -> None:
        if waiting.taken_back:
            return
        candidates = self._candidates()
        if not candidates:
            # The last worker went while the router was deciding.
            self._queue_arrival(waiting)
            return
        del self._unplaced[waiting.number]
        waiting.placed(self._choose_worker(waiting, candidates))

    def _choose_worker(self, waiting: Waiting, candidates: Sequence[str]) -> Placement:
        request = waiting.request
        prompt_blocks = -(-request.input_tokens // self._block_tokens)
        overlaps = self.index.count_overlaps(self._reusable_blocks(request), candidates)
        weight = self._weight
        chosen = self._choose(
            [
                prompt_blocks - weight * overlap + self._workers[worker].blocks
                for worker, overlap in zip(candidates, overlaps, strict=True)
            ]
        )
        attempt = self.instruments.route(
            eligible_tokens=request.input_tokens,
            predicted_tokens=overlaps[chosen] * self._block_tokens,
            best_tokens=max(overlaps) * self._block_tokens,
            candidates=len(candidates),
            queue_wait_seconds=waiting.saturated_seconds,
        )
        worker = self._workers[candidates[chosen]]
        worker.requests += 1
        worker.blocks += prompt_blocks
        return Placement(candidates[chosen], attempt, partial(self._release, worker, prompt_blocks))

    def _release(self, worker: _Worker, blocks: int) -> None:
        worker.requests -= 1
        worker.blocks -= blocks
        if self._unplaced:
            # Not at once: the engine is in the middle of the step that ended the request.
            self._clock.schedule(0.0, self._go_on)

    def _candidates(self) -> list[str]:
        return [name for name, worker in self._workers.items() if not worker.paused]

    def _has_room(self) -> bool:
        """Whether some worker would not have to queue one request more."""
        ratio = self._runtime.saturation_ratio
        return any(
            worker.requests < ratio * worker.capacity.requests and worker.blocks < ratio * worker.capacity.blocks
            for worker in self._workers.values()
            if not worker.paused
        )

    def _reusable_blocks(self, request: Request) -> Sequence[int]:
        # At least one token is computed, so a prompt that is cached to its end is never reused whole.
        return request.block_ids[: (request.input_tokens - 1) // self._block_tokens]

    def _count_missing(self, request: Request) -> int:
        """Prompt tokens that no worker has cached."""
        overlaps = self.index.count_overlaps(self._reusable_blocks(request), list(self._workers))
        return request.input_tokens - max(overlaps, default=0) * self._block_tokens

    @property
    def _weight(self) -> float:
        replaced = self._effects.overlap_score_weight
        return self._parameters.router_overlap_score_weight if replaced is None else replaced

    @property
    def _temperature(self) -> float:
        replaced = self._effects.temperature
        return self._parameters.router_temperature if replaced is None else replaced

    def _choose(self, costs: list[float]) -> int:
        """Position of the worker to take."""
        lowest, highest = min(costs), max(costs)
        temperature = self._temperature
        if temperature == 0:
            return costs.index(lowest)
        scale = (highest - lowest) * temperature or 1.0
        weights = [math.exp((lowest - cost) / scale) for cost in costs]
        return self._random.choices(range(len(costs)), weights)[0]
