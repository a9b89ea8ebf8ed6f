"""The queue of a KV-aware router."""

from __future__ import annotations

import heapq

from servescope.emulator.router.placement import Placed
from servescope.emulator.workload.requests import WorkloadRequest


class Waiting:
    """One request that is not placed yet; times are those of the emulation's clock, in seconds.

    `saturated_seconds` of its waiting were spent because all workers were saturated, `saturated_since` is when that
    last began.
    """

    __slots__ = ("arrived", "number", "placed", "request", "saturated_seconds", "saturated_since", "taken_back")

    def __init__(self, request: WorkloadRequest, placed: Placed, *, number: int, arrived: float) -> None:
        self.request = request
        self.placed = placed
        self.number = number
        self.arrived = arrived
        self.saturated_seconds = 0.0
        self.saturated_since = arrived
        self.taken_back = False


class SaturationQueue:
    """Requests that wait because every worker is saturated, in the order of a policy.

    `fcfs`: by arrival, each step of priority being worth `bump_seconds` of earlier arrival. `wspt`: by weight for each
    token to compute, highest first; the weight of priority p is 1 + p, and 1 / (1 − p) below 0. What is to compute is
    taken when the request comes into the queue. A request that is `taken_back` stays until its turn comes, unseen.
    """

    def __init__(self, policy: str, *, bump_seconds: float) -> None:
        self._policy = policy
        self._bump_seconds = bump_seconds
        self._heap: list[tuple[float, int, Waiting]] = []

    def __len__(self) -> int:
        self._drop_taken_back()
        return len(self._heap)

    def push(self, waiting: Waiting, *, tokens_to_compute: int) -> None:
        """Queue a request whose prompt has that many tokens that no worker has cached."""
        priority = waiting.request.priority
        if self._policy == "fcfs":
            key = waiting.arrived - priority * self._bump_seconds
        else:
            weight = 1 + priority if priority >= 0 else 1 / (1 - priority)
            key = max(tokens_to_compute, 1) / weight
        heapq.heappush(self._heap, (key, waiting.number, waiting))

    def pop(self) -> Waiting:
        """The request whose turn it is; there must be one."""
        self._drop_taken_back()
        return heapq.heappop(self._heap)[2]

    def _drop_taken_back(self) -> None:
        """Drop cancelled requests from the front."""
        while self._heap and self._heap[0][2].taken_back:
            heapq.heappop(self._heap)
