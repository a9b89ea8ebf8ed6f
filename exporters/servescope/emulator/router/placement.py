"""Where a router places a request, and what it must be able to do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from servescope.emulator.effects import RouterEffects
from servescope.emulator.router.configuration import UNBOUNDED, WorkerCapacity
from servescope.emulator.router.events import BlockEvent, WorkerLink
from servescope.emulator.workload.requests import WorkloadRequest
from servescope.errors import UsageError
from servescope.instruments.router import Attempt, RouterInstruments


class Placement:
    """Where one request goes. Call `report` with the worker's report, if there is one, and then `end`."""

    __slots__ = ("_attempt", "_ended", "_released", "_reported", "worker")

    def __init__(self, worker: str, attempt: Attempt, released: Callable[[], None]) -> None:
        self.worker = worker
        self._attempt = attempt
        self._released = released
        self._reported = False
        self._ended = False

    def report(self, reused_tokens: int) -> None:
        """Record how many prompt tokens the worker found in its cache."""
        self._reported = True
        self._attempt.report(reused_tokens)

    def end(self) -> None:
        """Record that the request has ended, well or not; without effect when called again."""
        if self._ended:
            return
        self._ended = True
        if not self._reported:
            self._attempt.abandon()
        self._released()


Placed = Callable[[Placement | None], None]
"""Called with where a request goes; None when the router can neither place nor keep it."""


class Router(Protocol):
    """What a deployment asks of its router; workers are named.

    `instruments` are those of its first process, `processes` those of each that serves metrics, by name.
    """

    @property
    def instruments(self) -> RouterInstruments:
        """The instruments of its first process."""

    @property
    def processes(self) -> Mapping[str, RouterInstruments]:
        """The instruments of each process."""

    @property
    def queued_requests(self) -> int:
        """Requests that were submitted and not placed yet."""

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens of the requests that were submitted and not placed yet."""

    def add_worker(self, worker: str, *, capacity: WorkerCapacity = UNBOUNDED, link: WorkerLink | None = None) -> None:
        """Add a worker that is ready, with an empty cache and no event yet; `link` is asked for missed events."""

    def pause_worker(self, worker: str) -> None:
        """Place no new requests on a worker; without effect on one that is unknown."""

    def resume_worker(self, worker: str) -> None:
        """Place requests on a worker again; without effect on one that is unknown."""

    def remove_worker(self, worker: str) -> None:
        """Remove a worker and its cache; without effect on one that is unknown."""

    def apply(self, worker: str, event: BlockEvent) -> None:
        """Apply an event of a worker's cache."""

    def submit(self, request: WorkloadRequest, placed: Placed) -> Callable[[], None]:
        """Find a worker: `placed` is called with it, exactly once, at once or later, unless what this returns is called
        before, which takes the request back.
        """

    def restart(self, name: str) -> None:
        """Let the process of that name die and be back a little later. Raises UsageError when there is none."""

    def apply_effects(self, effects: RouterEffects) -> None:
        """Replace the effects of faults; those of parts that the router does not have are ignored."""


def is_hot(effects: RouterEffects, chance: random.Random) -> bool:
    """Whether the next request goes to the worker known for longest; nothing is drawn for a share of 0."""
    return effects.hot_share > 0 and chance.random() < effects.hot_share


def check_name(name: str, processes: Iterable[str]) -> None:
    """Raise UsageError when there is no router process of that name."""
    known = list(processes)
    if name not in known:
        raise UsageError(f"unknown router {name!r}, known: {', '.join(known)}")
