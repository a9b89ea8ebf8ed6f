"""What the store says of a customer's deployments at one edge of its interval, before any policy is applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import Series

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class CounterReset:
    """The last scrape of a target before counters of it began anew, or ended: its time, `values` and `starts_ms`.

    Values are NaN for series that went on.
    """

    time_ms: int
    values: Floats
    starts_ms: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class TargetEdge:
    """One target at an edge: its m native `series`, without the labels of its identity; each array is (m,).

    `values` are those of its last good scrape, counters, buckets, sums and counts as they are, gauges; NaN where a
    series has none. `gains` are what a counter counted since the edge before, resets added, NaN where it is not known,
    as at its first sight. `starts_ms` is when each counter began to count: the process's start where the contract has
    it, else the last scrape at which it was not there, or lower; 0 for gauges. `ended` are the series that had a value
    at the edge before and have none now; of a target that left, all. `series` is the same object from edge to edge
    while the target has the same ones, and of all targets that have the same ones.
    """

    identity: Identity
    series: tuple[Series, ...]
    values: Floats
    gains: Floats
    starts_ms: NDArray[np.int64]
    ended: NDArray[np.bool_]
    resets: tuple[CounterReset, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class FleetEdge:
    """All of a customer's deployments at `time_ms`; `before_ms` is the edge before, None for the first of a lane.

    The first has values but no gains: they begin there. `figures` are by deployment the derived figures over the
    `window_ms` before, by their key, absent ones left out.
    """

    time_ms: int
    before_ms: int | None
    targets: tuple[TargetEdge, ...]
    figures: Mapping[Deployment, Mapping[str, float]]
    window_ms: int
