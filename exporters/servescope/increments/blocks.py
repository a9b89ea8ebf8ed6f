"""What the counters of a target gained per block of five minutes, and the levels of its gauges: what a judge reads.

A block that begins at `start` covers the scrapes after `start` up to `start + BLOCK_MS`, the last one included, so that
a gain is the difference of the last values at its two edges, as a Prometheus returns them at those instants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from servescope.contract.identity import Identity
from servescope.contract.measured_layers import MEASURED_LAYERS, layer_order
from servescope.contract.samples import Series

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Blocks: TypeAlias = slice | NDArray[np.bool_] | NDArray[np.intp]

BLOCK_MS: Final = 300_000

JUDGED_GAUGES: Final[Mapping[str, float | None]] = MappingProxyType(
    {
        "queued_requests": 0.0,
        "kv_cache_usage": 0.9,
        "concurrent_requests": None,
        "gpu_usage": None,
        "autoscaler_avg_in_flight_tokens": None,
        "autoscaler_avg_num_workers": None,
    }
)
"""The gauges whose levels are recorded per block, and the level above which a replica is saturated, where one is."""


@dataclass(frozen=True, slots=True, eq=False)
class Tallies:
    """What happened to a target's scrapes in each of n blocks: arrays of whole numbers, (n,).

    `scrapes` succeeded and `failed` did not; `torn` are histograms that were dropped from a scrape as their parts did
    not fit together, `resets` the counters' restarts that were added back, `gaps` the increments that were dropped as
    the scrapes around them were too far apart to say which block they belong to.
    """

    scrapes: NDArray[np.int64]
    failed: NDArray[np.int64]
    torn: NDArray[np.int64]
    resets: NDArray[np.int64]
    gaps: NDArray[np.int64]

    def at(self, kept: Blocks) -> Tallies:
        """Those of some of the blocks."""
        return Tallies(self.scrapes[kept], self.failed[kept], self.torn[kept], self.resets[kept], self.gaps[kept])


@dataclass(frozen=True, slots=True, eq=False)
class TargetIncrements:
    """What one target's native series did over n blocks; series have no labels of its identity, as all have the same.

    `blocks` are the starts of the blocks that it was scraped in, (n,) milliseconds, ascending multiples of `BLOCK_MS`.
    `gains` are the increases of its m counters, parts of histograms included (`x_bucket{le}` cumulative, `x_sum`,
    `x_count`), (m, n), NaN where one is not known. `levels` are the means of its g gauges over the scrapes of a block,
    (g, n), and `above` the share of these scrapes above the level of `JUDGED_GAUGES`, both NaN where there is none.
    `started_ms` is when the process began that the block ends with, (n,), NaN where no source shows it.
    `source`, `versions` and `layer` are those of its latest status, "" where they are not known.
    """

    target_id: str
    identity: Identity
    blocks: NDArray[np.int64]
    series: tuple[Series, ...]
    gains: NDArray[np.float64]
    gauges: tuple[Series, ...]
    levels: NDArray[np.float64]
    above: NDArray[np.float64]
    started_ms: NDArray[np.float64]
    tallies: Tallies
    source: str = ""
    versions: str = ""
    layer: str = ""

    def measured_layer(self, metric: str) -> str:
        """Which of `MEASURED_LAYERS` it measures a metric at."""
        return MEASURED_LAYERS[layer_order(self.layer, self.identity.role, metric)]

    def at(self, kept: Blocks) -> TargetIncrements:
        """The same with only these of its blocks: a slice, flags, (n,), or their indices."""
        # As often as there are targets and blocks: `replace` looks through all fields each time.
        return TargetIncrements(
            self.target_id, self.identity, self.blocks[kept], self.series, self.gains[:, kept], self.gauges,
            self.levels[:, kept], self.above[:, kept], self.started_ms[kept], self.tallies.at(kept), self.source,
            self.versions, self.layer,
        )  # fmt: skip
