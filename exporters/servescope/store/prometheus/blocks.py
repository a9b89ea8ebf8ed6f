"""What a Prometheus says of blocks: the last values in each, and which have to be read scrape by scrape.

Every question is asked of a batch of targets at once, at the ends of the blocks, in as many queries as their
size needs. The samples of a block are those of the last 299.999 s at its end, so that the first instant is left out by
every version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.increments import BLOCK_MS
from servescope.contract.samples import Labels, make_labels
from servescope.store.prometheus.batches import AskedTargets
from servescope.store.prometheus.client import Prometheus, Track
from servescope.store.prometheus.places import PLACE_LABELS, Key, key_of
from servescope.store.prometheus.steps import read_steps

WITHIN: Final = f"[{BLOCK_MS - 1}ms]"
_GROUP: Final = ", ".join((*IDENTITY_LABELS, *PLACE_LABELS))


class Blocks:
    """The blocks of a batch of targets that begin at `first_ms` or later and end at `last_ms` or earlier, multiples of
    `BLOCK_MS` both.

    Its arrays are over the n edges, from the one at `first_ms`, where the block before ends, to that at `last_ms`.
    Raises PrometheusError.
    """

    def __init__(self, prometheus: Prometheus, batch: AskedTargets, first_ms: int, last_ms: int) -> None:
        self.first_ms, self.last_ms = first_ms, last_ms
        self.edges = np.arange(first_ms, last_ms + 1, BLOCK_MS, dtype=np.int64)
        self.count = len(self.edges)
        self._prometheus = prometheus
        # What a collector derives of several targets is of none of them.
        self._where = f'{{{batch.matchers()},derived="",window=""}}'

    def values(self, function: str, name: str) -> Iterator[tuple[Labels, NDArray[np.intp], NDArray[np.float64]]]:
        """What a function over the samples of each block returns for the series of a name: edges, and the values there.

        The same series comes several times where one query cannot return all blocks.
        """
        for track in self._ask(f"{function}({name}{self._where}{WITHIN})"):
            # Most functions drop the name.
            labels = make_labels({**dict(track.labels), "__name__": name})
            yield labels, self._edges(track), track.values

    def fallen(self, names: Iterable[str], reach_ms: int) -> dict[Key, NDArray[np.bool_]]:
        """Where any series of these names fell within a block, or since `reach_ms` before it."""
        within = f"[{BLOCK_MS + reach_ms}ms]"
        return self._flags(f"resets({name}{self._where}{within}) > 0" for name in names)

    def torn(self, histograms: Iterable[str]) -> dict[Key, NDArray[np.bool_]]:
        """Where a histogram's last bucket was not its count in some scrape of a block."""
        return self._flags(
            f'sum_over_time({name}_bucket{self._where[:-1]},le="+Inf"}}{WITHIN}) '
            f"!= ignoring(le) sum_over_time({name}_count{self._where}{WITHIN})"
            for name in histograms
        )

    def fewest(self, names: Iterable[str]) -> dict[Key, NDArray[np.float64]]:
        """How many samples the series of these names with the fewest has in a block, of those that have any."""
        found: dict[Key, NDArray[np.float64]] = {}
        for name in names:
            for track in self._ask(f"min by ({_GROUP}) (count_over_time({name}{self._where}{WITHIN}))"):
                fewest = found.setdefault(key_of(track.labels), np.full(self.count, np.nan))
                edges = self._edges(track)
                fewest[edges] = np.fmin(fewest[edges], track.values)
        return found

    def _flags(self, conditions: Iterable[str]) -> dict[Key, NDArray[np.bool_]]:
        found: dict[Key, NDArray[np.bool_]] = {}
        for condition in conditions:
            for track in self._ask(f"group by ({_GROUP}) ({condition})"):
                flags = found.setdefault(key_of(track.labels), np.zeros(self.count, dtype=bool))
                flags[self._edges(track)] = True
        return found

    def _edges(self, track: Track) -> NDArray[np.intp]:
        return (track.times - self.first_ms) // BLOCK_MS

    def _ask(self, expression: str) -> Iterator[Track]:
        return read_steps(self._prometheus, expression, self.first_ms, self.last_ms, BLOCK_MS)
