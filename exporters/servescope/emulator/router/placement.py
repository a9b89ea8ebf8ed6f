"""What becomes of a request that is handed to a router."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from servescope.emulator.effects import RouterEffects
from servescope.emulator.router.configuration import UNBOUNDED, WorkerCapacity
from servescope.emulator.router.events import BlockEvent, WorkerLink
from servescope.emulator.workload.requests import Request
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
        """The worker says how many prompt tokens it found in its cache."""
        self._reported = True
        self._attempt.report(reused_tokens)

    def end(self) -> None:
        """The request has ended, well or not; without effect when called again."""
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
        """A worker is ready, its cache empty and its next event its first; `link` answers when events were missed."""

    def pause_worker(self, worker: str) -> None:
        """A worker takes no new requests; without effect on one that is unknown."""

    def resume_worker(self, worker: str) -> None:
        """A worker takes requests again; without effect on one that is unknown."""

    def remove_worker(self, worker: str) -> None:
        """A worker is gone, and its cache with it; without effect on one that is unknown."""

    def apply(self, worker: str, event: BlockEvent) -> None:
        """A worker's cache has changed."""

    def submit(self, request: Request, placed: Placed) -> Callable[[], None]:
        """Find a worker: `placed` is called with it, exactly once, at once or later, unless what this returns is called
        before, which takes the request back.
        """

    def restart(self, name: str) -> None:
        """The process of that name dies and is back a little later. Raises UsageError when there is none."""

    def apply_effects(self, effects: RouterEffects) -> None:
        """What is wrong with the router from now on; what it does not have is ignored."""


def check_name(name: str, processes: Iterable[str]) -> None:
    """Raise UsageError when there is no router process of that name."""
    known = list(processes)
    if name not in known:
        raise UsageError(f"unknown router {name!r}, there are: {', '.join(known)}")
