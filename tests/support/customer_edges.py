"""Edges of a customer's deployments, written out by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import Series, format_edge, make_labels
from servescope.customers.edges import CounterReset, FleetEdge, TargetEdge

T0 = 1_700_000_040_000
MINUTE = 60_000
BORN = T0 - 600_000


@dataclass(frozen=True)
class Seen:
    """One series at an edge: its value, what it gained, since when it counts, whether it ended."""

    value: float = math.nan
    gain: float = math.nan
    start_ms: int = BORN
    ended: bool = False


def series(name: str, **labels: str) -> Series:
    """A series without labels of an identity."""
    return Series(name, make_labels(labels))


def histogram(
    name: str, edges: tuple[float, ...], values: tuple[int, ...], gains: tuple[int, ...]
) -> dict[Series, Seen]:
    """A histogram of observations of one second each: per bucket its count, and what that gained; `+Inf` last."""
    found: dict[Series, Seen] = {}
    totals = [sum(values[: place + 1]) for place in range(len(values))]
    gained = [sum(gains[: place + 1]) for place in range(len(gains))]
    for edge, value, gain in zip((*edges, math.inf), totals, gained, strict=True):
        found[series(f"{name}_bucket", le=format_edge(edge))] = Seen(value, gain)
    found[series(f"{name}_count")] = Seen(totals[-1], gained[-1])
    found[series(f"{name}_sum")] = Seen(totals[-1], gained[-1])
    return found


def target(
    identity: Identity,
    seen: Mapping[Series, Seen],
    *,
    resets: Mapping[int, Mapping[Series, tuple[float, int]]] | None = None,
) -> TargetEdge:
    """A target; `resets` are by their time the values and starts of series until then."""
    names = tuple(seen)
    each = tuple(seen.values())
    before = tuple(
        CounterReset(
            time_ms,
            np.array([states.get(name, (math.nan, 0))[0] for name in names]),
            np.array([states.get(name, (math.nan, 0))[1] for name in names], dtype=np.int64),
        )
        for time_ms, states in (resets or {}).items()
    )
    return TargetEdge(
        identity,
        names,
        np.array([one.value for one in each]),
        np.array([one.gain for one in each]),
        np.array([one.start_ms for one in each], dtype=np.int64),
        np.array([one.ended for one in each], dtype=bool),
        before,
    )


def fleet(
    *targets: TargetEdge,
    number: int = 1,
    figures: Mapping[Deployment, Mapping[str, float]] | None = None,
) -> FleetEdge:
    """The edge `number` minutes after T0; the first one of a lane is number 0."""
    time_ms = T0 + number * MINUTE
    return FleetEdge(time_ms, time_ms - MINUTE if number else None, targets, figures or {}, 300_000)
