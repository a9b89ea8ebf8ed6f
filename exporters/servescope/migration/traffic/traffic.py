"""What a deployment served, by block of five minutes: requests, their sizes and durations, and what was in flight.

Arrays are over the n blocks, NaN where nothing is known: absent is not zero. Needs numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import Deployment
from servescope.increments.blocks import BLOCK_MS

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

BLOCK_SECONDS: Final = BLOCK_MS / 1000


@dataclass(frozen=True, slots=True, eq=False)
class SizeDistribution:
    """Observations by bucket: `counts`, (E + 1,), up to each of the finite `edges` and above the last; `total` their
    sum.
    """

    edges: tuple[float, ...]
    counts: Floats
    total: float

    @property
    def count(self) -> float:
        """How many observations there are."""
        return float(self.counts.sum())

    @property
    def mean(self) -> float:
        """Their mean, exactly; there must be one."""
        return self.total / self.count

    def quantile(self, share: float) -> float:
        """A quantile, observations spread evenly within their bucket; the last edge where it is above that."""
        reached = np.concatenate(([0.0], np.cumsum(self.counts)))
        edges = np.array([0.0, *self.edges, self.edges[-1]])
        return float(np.interp(share * reached[-1], reached, edges))

    def deviation(self) -> float:
        """The standard deviation, observations spread evenly within their bucket and scaled to their mean."""
        values = self.spread_evenly(2000)
        return float(values.std())

    def spread_evenly(self, parts: int) -> Floats:
        """As many values of equal weight, ascending, (parts,): even within buckets, with the mean that was observed."""
        shares = (np.arange(parts) + 0.5) / parts
        reached = np.concatenate(([0.0], np.cumsum(self.counts) / self.count))
        # What is above the last edge is taken to reach twice as far, which the mean then corrects.
        values: Floats = np.interp(shares, reached, np.array([0.0, *self.edges, 2 * self.edges[-1]]))
        mean = float(values.mean())
        return values * (self.mean / mean) if mean > 0 else values


@dataclass(frozen=True, slots=True, eq=False)
class ServedHistogram:
    """Observations of all replicas: `counts`, (E + 1, n), by bucket and block, and their sums `totals`, (n,).

    Both are NaN in blocks in which those of a replica are not known.
    """

    edges: tuple[float, ...]
    counts: Floats
    totals: Floats

    def pool(self, blocks: Flags | slice = slice(None)) -> SizeDistribution | None:
        """The observations of some blocks together; None where there are none."""
        counts, total = np.nansum(self.counts[:, blocks], axis=1), float(np.nansum(self.totals[blocks]))
        return SizeDistribution(self.edges, counts, total) if counts.sum() > 0 else None


@dataclass(frozen=True, slots=True, eq=False)
class ServedTraffic:
    """What a deployment served in n blocks without a gap between them, `blocks` their starts in milliseconds.

    `replicas` are those that were scraped, one that came or went within a block by its share of it; the sums over them
    are `concurrency` and `queued`, means of the requests in flight and of those that waited, and `requests`, how many
    ended. `cache_usage` is the mean share of a replica's KV cache in use. `histograms` are by metric of the contract,
    `counters` by series, such as `requests_total` and `requests_total{outcome="ok"}`: what they gained.
    `gpus_per_replica` is None where no GPU was seen.
    """

    deployments: tuple[Deployment, ...]
    blocks: NDArray[np.int64]
    replicas: Floats
    concurrency: Floats
    queued: Floats
    cache_usage: Floats
    requests: Floats
    histograms: Mapping[str, ServedHistogram]
    counters: Mapping[str, Floats]
    gpus_per_replica: float | None
    remarks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The deployment, by its model and id."""
        return f"{self.deployments[0].model_name}/{self.deployments[0].deployment_id}"

    @property
    def known(self) -> Flags:
        """The blocks in which a replica was scraped."""
        return np.isfinite(self.replicas)

    @property
    def start_ms(self) -> int:
        """When the first block begins."""
        return int(self.blocks[0])

    @property
    def end_ms(self) -> int:
        """When the last block ends."""
        return int(self.blocks[-1]) + BLOCK_MS

    def pool(self, histogram: str, blocks: Flags | slice = slice(None)) -> SizeDistribution | None:
        """The observations of a histogram in some blocks; None where the deployment has none."""
        found = self.histograms.get(histogram)
        return found.pool(blocks) if found is not None else None

    def gained(self, series: str) -> float | None:
        """What a counter gained in all; None where the deployment does not have it."""
        values = self.counters.get(series)
        return float(np.nansum(values)) if values is not None and np.isfinite(values).any() else None

    def request_rate(self) -> float:
        """Requests that ended a second, on average over the blocks in which they are known; NaN without any."""
        known = self.requests[np.isfinite(self.requests)]
        return float(known.mean()) / BLOCK_SECONDS if known.size else float("nan")
