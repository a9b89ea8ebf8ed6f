"""Routers: v2's, which knows what every worker has cached, and v1's, which knows only how busy each one is.

`configuration` says how a router weighs and runs, `placement` is what becomes of a request. `index` knows the caches,
`events` carries what changes in them, `following` keeps the one true to the other, over restarts with `snapshots`.
`kv` and `least_load` decide, `waiting` orders what must wait, `replicas` are several of them at once.
"""

from servescope.emulator.router.configuration import (
    UNBOUNDED,
    DecisionCost,
    KvRouterParameters,
    Recovery,
    RouterRuntime,
    WorkerCapacity,
    parse_routing,
)
from servescope.emulator.router.events import BlockEvent, EventPublisher, Inventory, WorkerLink
from servescope.emulator.router.index import BlockIndex
from servescope.emulator.router.kv import KvRouter
from servescope.emulator.router.least_load import LeastLoadRouter
from servescope.emulator.router.placement import Placed, Placement, Router
from servescope.emulator.router.replicas import RouterReplicas

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
    "Recovery",
    "Router",
    "RouterReplicas",
    "RouterRuntime",
    "WorkerCapacity",
    "WorkerLink",
    "parse_routing",
]
