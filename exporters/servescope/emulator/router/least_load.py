"""v1's router, which takes the worker with the fewest requests."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from servescope.emulator.clock import VirtualClock
from servescope.emulator.effects import RouterEffects
from servescope.emulator.router.configuration import UNBOUNDED, WorkerCapacity
from servescope.emulator.router.events import BlockEvent, WorkerLink
from servescope.emulator.router.placement import Placed, Placement, check_name, is_hot
from servescope.emulator.workload.requests import WorkloadRequest
from servescope.instruments.router import RouterInstruments

MAX_WAITING = 256
"""How many requests wait for a worker while there is none; further ones are refused."""


class LeastLoadRouter:
    """Takes the worker with the fewest requests in flight, any of those when there are several; it keeps no index.

    It places at once. Only while there is no worker at all requests wait, in the order they came.
    """

    def __init__(self, *, clock: VirtualClock, instruments: RouterInstruments, seed: str) -> None:
        self.instruments = instruments
        self._clock = clock
        self._random = random.Random(seed)
        self._hot_random = random.Random(f"hot-{seed}")
        self._effects = RouterEffects()
        self._requests: dict[str, int] = {}
        self._births: dict[str, int] = {}
        self._paused: set[str] = set()
        self._waiting: dict[int, tuple[WorkloadRequest, Placed]] = {}
        self._submitted = 0

    @property
    def processes(self) -> Mapping[str, RouterInstruments]:
        """Its only process."""
        return {self.instruments.identity.replica: self.instruments}

    @property
    def queued_requests(self) -> int:
        """Requests that wait for a worker."""
        return len(self._waiting)

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens of the requests that wait for a worker."""
        return sum(request.input_tokens for request, _ in self._waiting.values())

    def add_worker(self, worker: str, *, capacity: WorkerCapacity = UNBOUNDED, link: WorkerLink | None = None) -> None:
        """A worker is ready; neither capacity nor link matter to this router."""
        self._requests[worker] = 0
        self._births[worker] = self._births.get(worker, 0) + 1
        self._paused.discard(worker)
        self._place_waiting()

    def pause_worker(self, worker: str) -> None:
        """A worker takes no new requests."""
        if worker in self._requests:
            self._paused.add(worker)

    def resume_worker(self, worker: str) -> None:
        """A worker takes requests again."""
        self._paused.discard(worker)
        self._place_waiting()

    def remove_worker(self, worker: str) -> None:
        """A worker is gone."""
        self._requests.pop(worker, None)
        self._paused.discard(worker)

    def apply(self, worker: str, event: BlockEvent) -> None:
        """Nothing: it does not look at caches."""

    def apply_effects(self, effects: RouterEffects) -> None:
        """Send requests to one worker where the effects say so; it has no index, no weight and no temperature."""
        self._effects = effects

    def submit(self, request: WorkloadRequest, placed: Placed) -> Callable[[], None]:
        """Find a worker, at once when there is one."""
        self._submitted += 1
        number = self._submitted
        if self._workers():
            placed(self._place(request))
        elif len(self._waiting) < MAX_WAITING:
            self._waiting[number] = (request, placed)
        else:
            placed(None)
        return lambda: self._take_back(number)

    def restart(self, name: str) -> None:
        """Let the process restart at once: its requests in flight are forgotten, its counters begin at zero."""
        check_name(name, self.processes)
        self.instruments = self._clock.date(RouterInstruments(self.instruments.identity, clock=self._clock.read))
        for worker in self._requests:
            self._requests[worker] = 0
            self._births[worker] += 1

    def _take_back(self, number: int) -> None:
        self._waiting.pop(number, None)

    def _workers(self) -> list[str]:
        return [worker for worker in self._requests if worker not in self._paused]

    def _place_waiting(self) -> None:
        while self._waiting and self._workers():
            request, placed = self._waiting.pop(next(iter(self._waiting)))
            placed(self._place(request))

    def _place(self, request: WorkloadRequest) -> Placement:
        workers = self._workers()
        fewest = min(self._requests[worker] for worker in workers)
        worker = self._random.choice([worker for worker in workers if self._requests[worker] == fewest])
        if is_hot(self._effects, self._hot_random):
            worker = workers[0]
        attempt = self.instruments.route(
            eligible_tokens=request.input_tokens,
            predicted_tokens=None,
            best_tokens=None,
            candidates=len(workers),
        )
        self._requests[worker] += 1
        birth = self._births[worker]
        return Placement(worker, attempt, lambda: self._release(worker, birth))

    def _release(self, worker: str, birth: int) -> None:
        # A worker that came back under its name does not have the requests of its former process.
        if worker in self._requests and self._births[worker] == birth:
            self._requests[worker] -= 1
