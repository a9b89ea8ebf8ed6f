"""Routers: v2's, which knows what every worker has cached, and v1's, which knows only how busy each one is."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from servescope.emulator.cache import CacheChanges
from servescope.emulator.workload import Request
from servescope.errors import UsageError
from servescope.router import Attempt, RouterInstruments


class BlockEvent(NamedTuple):
    """What changed in one worker's cache; `sequence` counts that worker's events from 1, without gaps."""

    sequence: int
    changes: CacheChanges


class BlockIndex:
    """Which worker has which block cached, as far as their events tell.

    A block's id stands for all that is before it, so the radix tree over prompts needs no edges: walking it is looking
    up one id after the other. Workers are bits of a number, so that each look-up asks for all of them at once.
    """

    def __init__(self) -> None:
        self._bits: dict[str, int] = {}
        self._sequences: dict[str, int] = {}
        self._holders: dict[int, int] = {}

    def add_worker(self, worker: str) -> None:
        """Know a worker, whose cache is empty and whose next event is its first."""
        taken, bit = set(self._bits.values()), 1
        while bit in taken:
            bit <<= 1
        self._bits[worker] = bit
        self._sequences[worker] = 0

    def remove_worker(self, worker: str) -> None:
        """Forget a worker and all it had cached."""
        bit = self._bits.pop(worker)
        del self._sequences[worker]
        for block in [block for block, holders in self._holders.items() if holders & bit]:
            self._forget(block, bit)

    def apply(self, worker: str, event: BlockEvent) -> int:
        """Follow one event; how many events are missing before it. One of a worker that is gone changes nothing."""
        bit = self._bits.get(worker)
        if bit is None:
            return 0
        missing = event.sequence - self._sequences[worker] - 1
        self._sequences[worker] = event.sequence
        holders = self._holders
        for block in event.changes.removed:
            self._forget(block, bit)
        for block in event.changes.stored:
            holders[block] = holders.get(block, 0) | bit
        return missing

    def count_overlaps(self, block_ids: Iterable[int], workers: Sequence[str]) -> list[int]:
        """For each worker, how many blocks at the front of `block_ids` it has cached."""
        left = {self._bits[worker]: position for position, worker in enumerate(workers)}
        together = sum(left)
        overlaps = [0] * len(workers)
        depth = 0
        for block in block_ids:
            still = self._holders.get(block, 0) & together
            if still != together:
                for bit in [bit for bit in left if not bit & still]:
                    overlaps[left.pop(bit)] = depth
                together = still
                if not together:
                    return overlaps
            depth += 1
        for position in left.values():
            overlaps[position] = depth
        return overlaps

    def cached_blocks(self, worker: str) -> set[int]:
        """Ids of all blocks the worker has cached, as far as the index knows."""
        bit = self._bits[worker]
        return {block for block, holders in self._holders.items() if holders & bit}

    def _forget(self, block: int, bit: int) -> None:
        holders = self._holders.get(block, 0) & ~bit
        if holders:
            self._holders[block] = holders
        else:
            self._holders.pop(block, None)


class Placement:
    """Where one request goes. Tell it of the worker's report, if there is one, and then of the request's end."""

    __slots__ = ("_attempt", "_blocks", "_in_flight", "_reported", "worker")

    def __init__(self, worker: str, attempt: Attempt, in_flight: dict[str, int], blocks: int) -> None:
        self.worker = worker
        self._attempt = attempt
        self._in_flight = in_flight
        self._blocks = blocks
        self._reported = False
        in_flight[worker] += blocks

    def report(self, reused_tokens: int) -> None:
        """The worker says how many prompt tokens it found in its cache."""
        self._reported = True
        self._attempt.report(reused_tokens)

    def end(self) -> None:
        """The request has ended, well or not."""
        if not self._reported:
            self._attempt.abandon()
        if self.worker in self._in_flight:
            self._in_flight[self.worker] -= self._blocks


class Router(Protocol):
    """What a deployment asks of its router; workers are named."""

    instruments: RouterInstruments

    def add_worker(self, worker: str) -> None:
        """A worker is ready."""

    def remove_worker(self, worker: str) -> None:
        """A worker is gone, and its cache with it."""

    def apply(self, worker: str, event: BlockEvent) -> None:
        """A worker's cache has changed."""

    def place(self, request: Request, workers: Sequence[str]) -> Placement:
        """Choose one of `workers`, of which there is at least one."""


@dataclass(frozen=True, slots=True)
class KvRouterParameters:
    """How the KV-aware router weighs: the documented names and defaults."""

    router_overlap_score_weight: float = 3.5
    router_temperature: float = 0.05

    def __post_init__(self) -> None:
        for name in ("router_overlap_score_weight", "router_temperature"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} is {getattr(self, name)!r}, expected a number of 0 or more")


class KvRouter:
    """Weighs what each worker has cached of a prompt against what it is busy with.

    A worker's cost is prompt blocks − weight × overlap + active blocks; the choice is a softmax over the negative
    costs, normalised to 0 … 1 and divided by the temperature, and the least costly worker when that is 0.
    """

    def __init__(
        self, parameters: KvRouterParameters, *, block_tokens: int, instruments: RouterInstruments, seed: str
    ) -> None:
        self.instruments = instruments
        self.index = BlockIndex()
        self._parameters = parameters
        self._block_tokens = block_tokens
        self._random = random.Random(seed)
        self._active_blocks: dict[str, int] = {}
        instruments.set_index_state("exact")
        instruments.count_event_gaps(0)

    def add_worker(self, worker: str) -> None:
        """A worker is ready, its cache empty."""
        self.index.add_worker(worker)
        self._active_blocks[worker] = 0

    def remove_worker(self, worker: str) -> None:
        """A worker is gone, and its cache with it."""
        self.index.remove_worker(worker)
        del self._active_blocks[worker]

    def apply(self, worker: str, event: BlockEvent) -> None:
        """Follow a change in a worker's cache; when events are missing the index is no longer exact."""
        missing = self.index.apply(worker, event)
        if missing > 0:
            self.instruments.count_event_gaps(missing)
            self.instruments.set_index_state("degraded")

    def place(self, request: Request, workers: Sequence[str]) -> Placement:
        """Choose one of `workers`."""
        prompt_blocks = -(-request.input_tokens // self._block_tokens)
        reusable = (request.input_tokens - 1) // self._block_tokens
        overlaps = self.index.count_overlaps(request.block_ids[:reusable], workers)
        weight = self._parameters.router_overlap_score_weight
        costs = [
            prompt_blocks - weight * overlap + self._active_blocks[worker]
            for worker, overlap in zip(workers, overlaps, strict=True)
        ]
        chosen = self._choose(costs)
        attempt = self.instruments.route(
            eligible_tokens=request.input_tokens,
            predicted_tokens=overlaps[chosen] * self._block_tokens,
            best_tokens=max(overlaps) * self._block_tokens,
            candidates=len(workers),
        )
        return Placement(workers[chosen], attempt, self._active_blocks, prompt_blocks)

    def _choose(self, costs: list[float]) -> int:
        """Position of the worker to take."""
        lowest, highest = min(costs), max(costs)
        temperature = self._parameters.router_temperature
        if temperature == 0:
            return costs.index(lowest)
        scale = (highest - lowest) * temperature or 1.0
        weights = [math.exp((lowest - cost) / scale) for cost in costs]
        return self._random.choices(range(len(costs)), weights)[0]


class LeastLoadRouter:
    """Takes the worker with the fewest requests in flight, any of those when there are several; it keeps no index."""

    def __init__(self, *, instruments: RouterInstruments, seed: str) -> None:
        self.instruments = instruments
        self._random = random.Random(seed)
        self._requests: dict[str, int] = {}

    def add_worker(self, worker: str) -> None:
        """A worker is ready."""
        self._requests[worker] = 0

    def remove_worker(self, worker: str) -> None:
        """A worker is gone."""
        del self._requests[worker]

    def apply(self, worker: str, event: BlockEvent) -> None:
        """Nothing: it does not look at caches."""

    def place(self, request: Request, workers: Sequence[str]) -> Placement:
        """Choose one of `workers`."""
        fewest = min(self._requests[worker] for worker in workers)
        worker = self._random.choice([worker for worker in workers if self._requests[worker] == fewest])
        attempt = self.instruments.route(
            eligible_tokens=request.input_tokens,
            predicted_tokens=None,
            best_tokens=None,
            candidates=len(workers),
        )
        return Placement(worker, attempt, self._requests, 1)
