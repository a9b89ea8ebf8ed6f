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
    """The last scrape of a target before its counters began anew: its time, and its `values` as in `TargetEdge`."""

    time_ms: int
    values: Floats


@dataclass(frozen=True, slots=True, eq=False)
class TargetEdge:
    """One target at an edge: its m native `series`, each array (m,), NaN where a series has no value.

    `values` are those of its last good scrape: counters, buckets, sums and counts as they are, gauges. `gains` are what
    a counter counted since the edge before, resets added, NaN at its first sight. `starts_ms` is when each counter
    began to count: the process's start where the contract has it, else the last edge or scrape at which it was known
    to be lower. `series` is the same object from edge to edge while the target has the same ones.
    """

    identity: Identity
    series: tuple[Series, ...]
    values: Floats
    gains: Floats
    starts_ms: NDArray[np.int64]
    resets: tuple[CounterReset, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class FleetEdge:
    """All of a customer's deployments at `time_ms`; `before_ms` is the edge before, None for the first of a lane.

    `left` are targets that were there at the edge before and are gone; `figures` are by deployment the derived figures
    over the window before, absent ones left out.
    """

    time_ms: int
    before_ms: int | None
    targets: tuple[TargetEdge, ...]
    left: tuple[Identity, ...]
    figures: Mapping[Deployment, Mapping[str, float]]
    window_ms: int
