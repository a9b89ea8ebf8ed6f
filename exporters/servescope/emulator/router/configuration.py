"""How a KV-aware router weighs (`b10_routing_config`, as documented) and how its processes run (ours)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from servescope.errors import UsageError
from servescope.migration.fields.llm_config import ROUTING, require

# Far above all that makes sense, and so far below what a float holds that costs can be added and compared.
_LARGEST = 1e100


def _require_number(name: str, value: object) -> None:
    # A bool is an int in Python, and never meant as one here.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise UsageError(f"{name} is {value!r}, expected a number of 0 or more")
    if value > _LARGEST:
        raise UsageError(f"{name} is above {_LARGEST:g}, expected a number of 0 to {_LARGEST:g}")


@dataclass(frozen=True, slots=True)
class KvRouterParameters:
    """How the KV-aware router weighs: `b10_routing_config`, with the defaults and rules that `migration` has of it.

    `router_queue_policy` orders the requests that wait because every worker is saturated: `fcfs` by arrival, where
    priority counts as having come earlier, `wspt` by priority and how little there is to compute.
    """

    router_overlap_score_weight: float = ROUTING.keys["router_overlap_score_weight"].default
    router_temperature: float = ROUTING.keys["router_temperature"].default
    router_queue_policy: str = ROUTING.keys["router_queue_policy"].default

    def __post_init__(self) -> None:
        require(ROUTING.check, asdict(self), "")
        for name in ("router_overlap_score_weight", "router_temperature"):
            _require_number(name, getattr(self, name))


def parse_routing(table: object, where: str = "b10_routing_config") -> KvRouterParameters:
    """The parameters of a `b10_routing_config`, a mapping of up to three fields; `where` is named in every error.

    Raises UsageError for anything else: an unknown field (with the nearest known one), a wrong type, a number below 0
    or endless, an unknown queue policy.
    """
    require(ROUTING.check, table, where)
    try:
        return KvRouterParameters(**cast(Mapping[str, Any], table))
    except UsageError as error:
        raise UsageError(f"{where}.{error}") from error


@dataclass(frozen=True, slots=True)
class DecisionCost:
    """How long the router's process takes for one decision, in seconds; it makes one at a time.

    Scoring asks for every worker and walks over the blocks of the prompt. The defaults put the limit of one router at
    50 workers that each take 8 requests of 100 blocks per second: 2.4 ms a decision, 417 decisions per second.
    """

    base: float = 200e-6
    per_worker: float = 40e-6
    per_block: float = 2e-6

    def __post_init__(self) -> None:
        for name in ("base", "per_worker", "per_block"):
            _require_number(f"decision cost {name}", getattr(self, name))

    def seconds(self, *, workers: int, blocks: int) -> float:
        """The duration of one decision between `workers` for a prompt of `blocks`."""
        return self.base + self.per_worker * workers + self.per_block * blocks


@dataclass(frozen=True, slots=True)
class WorkerCapacity:
    """What one worker can run at once: requests in a batch, and blocks in its cache."""

    requests: float
    blocks: float


UNBOUNDED = WorkerCapacity(math.inf, math.inf)
"""The capacity of a worker that never makes a request wait."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """How a router brings its index up to date; times in seconds.

    `gap_seconds` after it noticed that events are missing it asks the worker, which takes `answer_seconds` to answer.
    A process that died is back after `restart_seconds`. Every `snapshot_seconds` the index is written below
    `snapshot_directory`; nothing is written when that is None.
    """

    gap_seconds: float = 1.0
    answer_seconds: float = 0.2
    restart_seconds: float = 2.0
    snapshot_seconds: float = 60.0
    snapshot_directory: Path | None = None

    def __post_init__(self) -> None:
        for name in ("gap_seconds", "answer_seconds", "restart_seconds"):
            _require_number(name, getattr(self, name))
        if not 0 < self.snapshot_seconds < math.inf:
            raise UsageError(f"snapshot_seconds is {self.snapshot_seconds!r}, expected a number above 0")


MOST_ROUTERS = 64


@dataclass(frozen=True, slots=True)
class RouterRuntime:
    """How the router runs, where the documents leave it open; times in seconds.

    There are `replicas` processes of it, all active; what one has in flight the others know `sync_seconds` later.
    A worker is saturated when the requests or the prompt blocks that the router knows to be on it reach
    `saturation_ratio` of its capacity: at 1 its engine would have to queue the next one. Of those that wait when all
    are saturated there are at most `max_queued`; beyond that a request goes to a worker all the same, which queues or
    rejects it. Under `fcfs` each step of priority counts as `priority_bump_seconds` of earlier arrival.
    """

    replicas: int = 1
    sync_seconds: float = 0.05
    decision: DecisionCost = field(default_factory=DecisionCost)
    recovery: Recovery = field(default_factory=Recovery)
    saturation_ratio: float = 1.0
    max_queued: int = 256
    priority_bump_seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.replicas % 1 or not 1 <= self.replicas <= MOST_ROUTERS:
            raise UsageError(f"replicas of the router are {self.replicas!r}, expected 1 to {MOST_ROUTERS}, whole")
        if not 0 < self.saturation_ratio < math.inf:
            raise UsageError(f"saturation_ratio is {self.saturation_ratio!r}, expected a number above 0")
        if self.max_queued < 0:
            raise UsageError(f"max_queued is {self.max_queued!r}, expected 0 or more")
        _require_number("priority_bump_seconds", self.priority_bump_seconds)
        _require_number("sync_seconds", self.sync_seconds)
