"""The rate and the present value of every series of many targets at once.

Each target costs a look at its first and last scrape in the range; the arithmetic is done once, over all series one
after the other. Only series that were not in every scrape are read sample by sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.collector.scrapes.recent_scrapes import RecentScrapes, ScrapeRange
from servescope.increments import extrapolation


class RowReadings(NamedTuple):
    """Of every row of all targets, one target after the other, (n,): its changes over a range, and its value now.

    NaN where there is none.
    """

    changes: extrapolation.Changes
    levels: extrapolation.Floats


def read_recent(recents: Sequence[RecentScrapes], within: extrapolation.Range) -> RowReadings:
    """The readings of all targets over a range."""
    if not recents:
        nothing = np.zeros(0)
        return RowReadings(extrapolation.Changes(nothing, nothing), nothing)
    stretches = [recent.stretch(within) for recent in recents]
    lengths = np.array([len(stretch.first) for stretch in stretches], dtype=np.intp)
    offsets = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    firsts = np.concatenate([stretch.first for stretch in stretches])
    with np.errstate(over="ignore", invalid="ignore"):
        deltas = np.concatenate([stretch.last for stretch in stretches]) - firsts
        of_each = zip(offsets.tolist(), stretches, strict=True)
        extrapolation.add_resets(
            deltas, ((each.rows + offset, each.before) for offset, own in of_each for each in own.resets)
        )
    times = np.array([stretch[2:5] for stretch in stretches], dtype=np.int64)
    spans = extrapolation.measure_spans(times[:, 0], times[:, 1], times[:, 2], within).repeated(lengths)
    changes = extrapolation.Changes(deltas, extrapolation.extrapolation_factors(deltas, firsts, spans, within.bounds))
    _read_turned(changes, recents, stretches, offsets, within)
    return RowReadings(changes, np.concatenate([stretch.levels for stretch in stretches]))


def _read_turned(
    changes: extrapolation.Changes,
    recents: Sequence[RecentScrapes],
    stretches: Sequence[ScrapeRange],
    offsets: NDArray[np.intp],
    within: extrapolation.Range,
) -> None:
    """Read the rows that were not in all scrapes sample by sample, those of all targets in one table."""
    turned = [
        (recent, stretch.turned, offset)
        for recent, stretch, offset in zip(recents, stretches, offsets.tolist(), strict=True)
        if stretch.turned is not None
    ]
    if not turned:
        return
    columns = max(stretch.scrapes for stretch in stretches)
    rows = sum(len(each) for _, each, _ in turned)
    # Absent beyond a target's own scrapes; the times there are never read.
    times, values = np.zeros((rows, columns), dtype=np.int64), np.full((rows, columns), np.nan)
    end = 0
    for recent, own, _ in turned:
        start, end = end, end + len(own)
        scraped, samples = recent.samples(within, own)
        times[start:end, : len(scraped)], values[start:end, : len(scraped)] = scraped, samples.T
    places = np.concatenate([own + offset for _, own, offset in turned])
    changes.deltas[places], changes.factors[places] = extrapolation.sample_changes(times, values, within)
