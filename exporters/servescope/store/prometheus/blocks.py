"""What a Prometheus says of blocks: the last values in each, and which have to be read scrape by scrape.

Every question is asked of a batch of targets at once, at the ends of the blocks, in as many queries as their
size needs. The samples of a block are those of the last 299.999 s at its end, so that the first instant is left out by
every version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from math import prod
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.samples import Labels, make_labels
from servescope.increments.blocks import BLOCK_MS
from servescope.store.prometheus.batches import AskedTargets
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.places import PLACE_LABELS, Key, key_of
from servescope.store.prometheus.selectors import MOST_TEXT, selector, split
from servescope.store.prometheus.steps import SizedQuery, read_each

WITHIN: Final = f"[{BLOCK_MS - 1}ms]"
_GROUP: Final = ", ".join((*IDENTITY_LABELS, *PLACE_LABELS))
_SAMPLES: Final = "samples"
_MOST_SERIES: Final = 40
"""The series of one target that are asked for by one query, so that several are evaluated at the same time."""
_OPEN_VALUES: Final = 4


Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Take = Callable[[Labels, NDArray[np.intp], Floats], None]
"""What is done with a series: its labels, indexes (n,) into `Blocks.edges`, and the values (n,) at these edges.

It is called several times for a series where one query cannot return all of its blocks."""


class BlockQuery(NamedTuple):
    """What is asked of all blocks, and what is done with each series of the answer."""

    asked: SizedQuery
    take: Take


class Blocks:
    """The blocks of a batch of targets that begin at `first_ms` or later and end at `last_ms` or earlier, multiples of
    `BLOCK_MS` both.

    Its arrays are over the n edges, from the one at `first_ms`, where the block before ends, to that at `last_ms`.
    Raises PrometheusError.
    """

    def __init__(self, prometheus: Prometheus, batch: AskedTargets, targets: int, first_ms: int, last_ms: int) -> None:
        self.first_ms, self.last_ms = first_ms, last_ms
        self.edges = np.arange(first_ms, last_ms + 1, BLOCK_MS, dtype=np.int64)
        self.count = len(self.edges)
        self._prometheus, self._targets = prometheus, targets
        # What a collector derives of several targets is of none of them.
        self._where = f'{{{batch.matchers()},derived="",window=""}}'

    def ask(self, *kinds: Iterable[BlockQuery]) -> None:
        """Ask everything, in turns of its kinds, as some take the server longer and others the reader."""
        questions = [question for turn in zip_longest(*kinds) for question in turn if question is not None]
        asked = [question.asked for question in questions]
        for number, tracks in read_each(self._prometheus, asked, self.first_ms, self.last_ms, BLOCK_MS):
            for track in tracks:
                questions[number].take(track.labels, (track.times - self.first_ms) // BLOCK_MS, track.values)

    def last_values(self, names: Iterable[str], take: Take) -> Iterator[BlockQuery]:
        """Pass on the last value in each block of each series of these names."""
        for part in in_parts(names, len):
            series = self._targets * sum(map(series_of, part))
            wanted = selector(names=part, extra=self._where)
            yield BlockQuery(SizedQuery(f"last_over_time({wanted}{WITHIN})", series), take)

    def means(self, names: Iterable[str], take: Take) -> Iterator[BlockQuery]:
        """Pass on the mean of each gauge over its samples in each block, with the name that the function drops."""

        def named(name: str) -> Take:
            # Most functions drop the name.
            return lambda labels, edges, values: take(make_labels({**dict(labels), "__name__": name}), edges, values)

        for name in names:
            series = self._targets * series_of(name)
            yield BlockQuery(SizedQuery(f"avg_over_time({name}{self._where}{WITHIN})", series), named(name))

    def fallen(self, names: Iterable[str], reach_ms: int, found: dict[Key, Flags]) -> Iterator[BlockQuery]:
        """Mark where any series of these names fell within a block, or since `reach_ms` before it."""
        within = f"[{BLOCK_MS + reach_ms}ms]"
        return self._flags(names, lambda name: f"resets({name}{self._where}{within}) > 0", found)

    def torn(self, histograms: Iterable[str], found: dict[Key, Flags]) -> Iterator[BlockQuery]:
        """Mark where a histogram's last bucket was not its count in some scrape of a block."""

        def condition(name: str) -> str:
            return (
                f'sum_over_time({name}_bucket{self._where[:-1]},le="+Inf"}}{WITHIN}) '
                f"!= ignoring(le) sum_over_time({name}_count{self._where}{WITHIN})"
            )

        return self._flags(histograms, condition, found)

    def _flags(
        self, names: Iterable[str], condition: Callable[[str], str], found: dict[Key, Flags]
    ) -> Iterator[BlockQuery]:
        def mark(labels: Labels, edges: NDArray[np.intp], _: Floats) -> None:
            found.setdefault(key_of(labels), np.zeros(self.count, dtype=bool))[edges] = True

        return self._joined(names, lambda name: f"group by ({_GROUP}) ({condition(name)})", mark)

    def fewest(self, names: Iterable[str], found: dict[Key, Floats]) -> Iterator[BlockQuery]:
        """How many samples the series of these names with the fewest has in a block, of those that have any."""

        def count(labels: Labels, edges: NDArray[np.intp], _: Floats) -> None:
            fewest = found.setdefault(key_of(labels), np.full(self.count, np.nan))
            fewest[edges] = np.fmin(fewest[edges], float(dict(labels)[_SAMPLES]))

        def counted(name: str) -> str:
            return f'count_values by ({_GROUP}) ("{_SAMPLES}", count_over_time({name}{self._where}{WITHIN}))'

        return self._joined(names, counted, count)

    def _joined(self, names: Iterable[str], query: Callable[[str], str], take: Take) -> Iterator[BlockQuery]:
        """The queries of several names in one, by target; equal elements of several names are one."""
        for part in in_parts(names, lambda name: len(query(name)) + 4):
            yield BlockQuery(SizedQuery(" or ".join(map(query, part)), self._targets), take)


def in_parts(
    names: Iterable[str], length: Callable[[str], int], most_series: int = _MOST_SERIES
) -> Iterator[Sequence[str]]:
    """The names in parts of at most so many series of a target, whose `length` together fits into a query."""
    return split(names, lambda name: max(length(name), MOST_TEXT * series_of(name) // most_series))


def series_of(name: str) -> int:
    """About how many series of a sample's name a target has; of labels with any values, `_OPEN_VALUES` of each."""
    metric = METRICS.get(SAMPLE_FAMILIES.get(name, ""))
    if metric is None:
        return 1
    if name.endswith("_bucket"):
        return len(metric.edges or ()) + 1
    return prod(len(metric.label_values.get(label, ())) or _OPEN_VALUES for label in metric.labels)
