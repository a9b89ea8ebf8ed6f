"""Edges of a customer's deployments, written out by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import Series, format_edge, make_labels
from servescope.customers.points.edges import IntervalSnapshot, TargetInterval

T0 = 1_700_000_040_000
MINUTE = 60_000
BORN = T0 - 600_000


@dataclass(frozen=True)
class Seen:
    """One series at an edge: its value, what it gained, whether it ended, and what it counted, which is its value."""

    value: float = math.nan
    gain: float = math.nan
    ended: bool = False
    counted: float | None = None


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


def target(identity: Identity, seen: Mapping[Series, Seen], since_ms: int = BORN) -> TargetInterval:
    """A target that counts since a time."""
    each = tuple(seen.values())
    return TargetInterval(
        identity,
        tuple(seen),
        np.array([one.value for one in each]),
        np.array([one.gain for one in each]),
        np.array([one.value if one.counted is None else one.counted for one in each]),
        since_ms,
        np.array([one.ended for one in each], dtype=bool),
    )


def fleet(
    *targets: TargetInterval,
    number: int = 1,
    figures: Mapping[Deployment, Mapping[str, float]] | None = None,
) -> IntervalSnapshot:
    """The edge `number` minutes after T0; the first one of a lane is number 0."""
    time_ms = T0 + number * MINUTE
    return IntervalSnapshot(time_ms, time_ms - MINUTE if number else None, targets, figures or {}, 300_000)
