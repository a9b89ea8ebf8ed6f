"""Routers: v2's, which knows what every worker has cached, and v1's, which knows only how busy each one is.

`index` knows the caches, `events` carries what changes in them, `configuration` says how the router weighs and runs,
`placement` is what becomes of a request, `kv` and `least_load` decide.
"""

from servescope.emulator.router.configuration import (
    UNBOUNDED,
    DecisionCost,
    KvRouterParameters,
    RouterRuntime,
    WorkerCapacity,
    parse_routing,
)
from servescope.emulator.router.events import BlockEvent, EventPublisher, Inventory, WorkerLink
from servescope.emulator.router.index import BlockIndex
from servescope.emulator.router.kv import KvRouter
from servescope.emulator.router.least_load import LeastLoadRouter
from servescope.emulator.router.placement import Placed, Placement, Router

__all__ = [
    "UNBOUNDED",
    "BlockEvent",
    "BlockIndex",
    "DecisionCost",
    "EventPublisher",
    "Inventory",
    "KvRouter",
    "KvRouterParameters",
    "LeastLoadRouter",
    "Placed",
    "Placement",
    "Router",
    "RouterRuntime",
    "WorkerCapacity",
    "WorkerLink",
    "parse_routing",
]
