"""Increments per block of the targets whose series a Prometheus holds.

Where nothing happened in a block, its gains are the differences of the last values at its edges. Blocks with a reset, a
gap, a torn histogram, or series that came or went, are computed from their scrapes, as a collector's store does it. A
histogram whose buckets alone disagree in one scrape, without having fallen, is not noticed there: its gains are the
same, `torn` lacks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import Deployment, Identity
from servescope.contract.incrementing import GAP_INTERVALS, compute_increments, memory_ms
from servescope.contract.increments import BLOCK_MS, JUDGED_GAUGES, Tallies, TargetIncrements
from servescope.contract.metrics import METRICS, REPLICA_START_TIME, SAMPLE_FAMILIES
from servescope.contract.samples import Labels, Series, Window, make_labels
from servescope.store.prometheus.batches import AskedTargets, read_in_parts
from servescope.store.prometheus.blocks import Blocks
from servescope.store.prometheus.client import Prometheus, Track
from servescope.store.prometheus.figure_queries import matchers
from servescope.store.prometheus.places import Key, far_of, key_of, name_at
from servescope.store.prometheus.scrapes import own_series, place_samples, read_all_samples, read_scrapes
from servescope.store.prometheus.targets import (
    CONTRACT_NAMES,
    TARGET_INFO,
    TARGET_UP,
    ScrapedTarget,
    find_contract_targets,
)
from servescope.store.prometheus.windows import read_clocks

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
T = TypeVar("T", bound=np.generic)

# Runs of blocks to be read scrape by scrape that lie so close are read at once, and many at once with all between.
_NEAR_BLOCKS, _MOST_RUNS = 3, 12
_USUAL_INTERVAL_MS = 15_000
# Scrapes of intervals up to a block's length have to do with those so long after them.
_BEFORE_MS = 3 * BLOCK_MS
_OWN = ("servescope", "process")
_SUCCEEDED: Final = Series(TARGET_UP, ())


def read_increments(
    prometheus: Prometheus, deployment: Deployment, names: Sequence[str], start_ms: int, end_ms: int
) -> tuple[list[TargetIncrements], list[str]]:
    """The increments of a deployment's targets in the blocks that lie between start and end; `names` are metrics.

    The texts are the problems of series without an identity, which are read of no target.

    A target that several collectors expose is taken, block by block, from the one with the most scrapes of it. `torn`,
    `resets` and `gaps` are those of the metrics that are read.
    """
    first_ms, last_ms = -(-start_ms // BLOCK_MS) * BLOCK_MS, end_ms // BLOCK_MS * BLOCK_MS
    if last_ms <= first_ms:
        return [], []
    wanted = _Wanted.of(names)
    targets, problems = _find_targets(prometheus, deployment, first_ms, last_ms)

    def read(part: Sequence[ScrapedTarget]) -> list[tuple[ScrapedTarget, TargetIncrements]]:
        batch = _batch_of(deployment, part, is_all=len(part) == len(targets))
        return _read_batch(prometheus, part, batch, Blocks(prometheus, batch, first_ms, last_ms), wanted)

    found: dict[Identity, dict[Labels, list[TargetIncrements]]] = {}
    for computed in read_in_parts(targets, _text_length, read):
        for target, increments in computed:
            found.setdefault(increments.identity, {}).setdefault(far_of(target.attached), []).append(increments)
    merged = (
        each
        for _, places in sorted(found.items())
        for each in _told_apart({far: _merge(pages) for far, pages in sorted(places.items())})
    )
    return list(merged), problems


def _batch_of(deployment: Deployment, targets: Sequence[ScrapedTarget], *, is_all: bool) -> AskedTargets:
    if is_all:
        return AskedTargets(deployment)
    return AskedTargets(
        deployment,
        tuple(target.identity.replica for target in targets),
        tuple(dict(target.attached).get("instance", "") for target in targets),
    )


def _text_length(target: ScrapedTarget) -> int:
    return len(target.identity.replica) + len(dict(target.attached).get("instance", ""))


def _read_batch(
    prometheus: Prometheus, targets: Sequence[ScrapedTarget], batch: AskedTargets, blocks: Blocks, wanted: _Wanted
) -> list[tuple[ScrapedTarget, TargetIncrements]]:
    """The increments of each target of a batch."""
    by_key = {_key(target): target for target in targets}
    clocks = read_clocks(prometheus, by_key, batch, blocks.first_ms - _BEFORE_MS, blocks.last_ms)
    pages = {
        key: _Page(target, _clock(prometheus, target, clocks[key], blocks, wanted), blocks)
        for key, target in by_key.items()
    }
    _read_edges(blocks, wanted, pages)
    _mark_blocks(blocks, wanted, pages)
    infos, levels = _read_infos(blocks), _read_levels(prometheus, batch, blocks, wanted)
    return [
        (
            page.target,
            _describe(_compute(prometheus, page, blocks, wanted, levels.get(key, ())), page.target, infos.get(key, ())),
        )
        for key, page in pages.items()
    ]


def _told_apart(found: Mapping[Labels, TargetIncrements]) -> Iterator[TargetIncrements]:
    """One identity as it was scraped in several clusters: one process, or several if it was there at the same time."""
    seen = np.concatenate([each.blocks for each in found.values()])
    if len(np.unique(seen)) == len(seen):
        yield _merge(list(found.values()))
        return
    for far, each in found.items():
        identity = name_at(each.identity, far)
        yield replace(each, identity=identity, target_id=identity.target_id)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is read: the sample names of counters and histograms, the histograms, and the gauges.

    Of gauges the means suffice, but of those with a level it is wanted how often they were above it.
    """

    counters: tuple[str, ...]
    histograms: tuple[str, ...]
    means: tuple[str, ...]
    levelled: tuple[str, ...]

    @classmethod
    def of(cls, names: Sequence[str]) -> _Wanted:
        wanted = [name for name in CONTRACT_NAMES if SAMPLE_FAMILIES[name] in names or name in names]
        kinds = {name: METRICS[SAMPLE_FAMILIES[name]].kind for name in wanted}
        judged = [name for name in wanted if name in JUDGED_GAUGES]
        return cls(
            tuple(name for name in wanted if kinds[name] != "gauge"),
            tuple({SAMPLE_FAMILIES[name]: None for name in wanted if kinds[name] == "histogram"}),
            tuple(name for name in judged if JUDGED_GAUGES[name] is None),
            tuple(name for name in judged if JUDGED_GAUGES[name] is not None),
        )


# --- The targets ------------------------------------------------------------------------------------------------------


def _find_targets(
    prometheus: Prometheus, deployment: Deployment, start_ms: int, end_ms: int
) -> tuple[list[ScrapedTarget], list[str]]:
    """The targets of a deployment, and the problems of series that are of none.

    Those that a collector exposes are not read a second time where they are scraped.
    """
    match = f"{{{matchers(deployment)}}}"
    found, problems = find_contract_targets(prometheus, match, start_ms=start_ms - BLOCK_MS, end_ms=end_ms)
    collected = {target.identity for target in found if target.form == "collected"}
    read = [target for target in found if target.form == "collected" or target.identity not in collected]
    return read, problems


def _key(target: ScrapedTarget) -> Key:
    # Identity labels that a scraper attached are those of the identity.
    return key_of(make_labels({**dict(target.attached), **dict(target.identity.labels())}))


class _Page:
    """One target as one page exposes it: its scrapes, and the values of its series at the edges of the blocks."""

    def __init__(self, target: ScrapedTarget, clock: Mapping[int, bool], blocks: Blocks) -> None:
        self.target, self.clock, self._blocks = target, clock, blocks
        self._rows: dict[Series, Floats] = {}
        self._series: dict[Labels, Series] = {}
        distances = [later - earlier for earlier, later in pairwise(clock)]
        self.interval_ms = round(median(distances)) if distances else _USUAL_INTERVAL_MS
        times, succeeded = np.array(list(clock), dtype=np.int64), np.array(list(clock.values()), dtype=bool)
        self.scrapes, self.failed = (self._per_block(times[flags]) for flags in (succeeded, ~succeeded))
        self.raw: Flags = self._after_gaps(times[succeeded])

    def _per_block(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        numbers = (times - 1 - self._blocks.first_ms) // BLOCK_MS
        inside = (numbers >= 0) & (numbers < self._blocks.count - 1)
        return np.bincount(numbers[inside], minlength=self._blocks.count - 1)

    def _after_gaps(self, times: NDArray[np.int64]) -> Flags:
        """The blocks that begin with a gap, or with the target."""
        late = np.diff(times, prepend=-(1 << 60)) > GAP_INTERVALS * self.interval_ms
        return self._per_block(times[late]) > 0

    def add(self, labels: Labels, edges: NDArray[np.intp], values: Floats) -> None:
        """Keep the values of one of its series at some edges."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = own_series(labels, self.target)
            self._rows.setdefault(series, np.full(self._blocks.count, np.nan))
        self._rows[series][edges] = values

    def window(self) -> Window:
        """The values at the edges, as if each were a scrape."""
        values = np.array(list(self._rows.values())).reshape(len(self._rows), self._blocks.count)
        return Window(tuple(self._rows), self._blocks.edges, values)

    def runs(self) -> list[tuple[int, int]]:
        """From which block to which, not included, it has to be read scrape by scrape."""
        wanted = np.flatnonzero(self.raw & (self.scrapes > 0)).tolist()
        runs: list[tuple[int, int]] = []
        for block in wanted:
            if runs and block - runs[-1][1] <= _NEAR_BLOCKS:
                runs[-1] = runs[-1][0], block + 1
            else:
                runs.append((block, block + 1))
        return runs if len(runs) <= _MOST_RUNS else [(runs[0][0], runs[-1][1])]


def _clock(
    prometheus: Prometheus, target: ScrapedTarget, clock: Mapping[int, bool] | None, blocks: Blocks, wanted: _Wanted
) -> Mapping[int, bool]:
    """When a target was scraped, from so long before the first block as has to do with it."""
    if clock is not None:
        return clock
    # Nothing says when: every instant with a sample is a scrape.
    before_ms = blocks.first_ms - _BEFORE_MS
    window = read_scrapes(prometheus, target, wanted.counters, None, before_ms, blocks.last_ms).window
    return dict.fromkeys(window.times.tolist(), True)


# --- The blocks -------------------------------------------------------------------------------------------------------


def _read_edges(blocks: Blocks, wanted: _Wanted, pages: Mapping[Key, _Page]) -> None:
    last = [("last_over_time", name) for name in (*wanted.counters, REPLICA_START_TIME)]
    for function, name in [*last, *(("avg_over_time", name) for name in wanted.means)]:
        for labels, edges, values in blocks.values(function, name):
            page = pages.get(key_of(labels))
            if page is not None:
                page.add(labels, edges, values)


def _mark_blocks(blocks: Blocks, wanted: _Wanted, pages: Mapping[Key, _Page]) -> None:
    """Find the blocks that the values at their edges do not suffice for, beside those that show it themselves."""
    reach_ms = max((round(GAP_INTERVALS * page.interval_ms) for page in pages.values()), default=0)
    fallen, torn = blocks.fallen(wanted.counters, reach_ms), blocks.torn(wanted.histograms)
    # A histogram that is there is there with its count.
    fewest = blocks.fewest(name for name in wanted.counters if not name.endswith(("_bucket", "_sum")))
    for key, page in pages.items():
        for flags in (fallen.get(key), torn.get(key)):
            if flags is not None:
                page.raw |= flags[1:]
        samples = fewest.get(key)
        if samples is not None:
            page.raw |= np.isfinite(samples[1:]) & (samples[1:] != page.scrapes)


def _compute(
    prometheus: Prometheus, page: _Page, blocks: Blocks, wanted: _Wanted, levelled: Sequence[Track]
) -> TargetIncrements:
    """The increments of one page's target, in the blocks that it was scraped in."""
    window = page.window()
    computed = compute_increments(
        page.target.process.target_id, page.target.process, window,
        start_ms=blocks.first_ms, end_ms=blocks.last_ms, interval_ms=BLOCK_MS,
    )  # fmt: skip
    there = ~np.isnan(window.values)
    page.raw |= (there[:, 1:] != there[:, :-1]).any(axis=0)
    for unclear in (computed.tallies.torn, computed.tallies.resets, computed.tallies.gaps):
        page.raw |= unclear > 0
    gains, started = computed.gains, computed.started_ms
    torn, resets, gaps = (np.zeros(blocks.count - 1, dtype=np.int64) for _ in range(3))
    for first, last in page.runs():
        read = _read_raw(prometheus, page, blocks, window.series, (*wanted.counters, REPLICA_START_TIME), first, last)
        at = (read.blocks - blocks.first_ms) // BLOCK_MS
        gains[:, at], started[at] = read.gains, read.started_ms
        torn[at], resets[at], gaps[at] = read.tallies.torn, read.tallies.resets, read.tallies.gaps
    gauges, levels, above = _levels(page, blocks, levelled)
    return _observed(
        replace(
            computed,
            gains=gains,
            gauges=(*computed.gauges, *gauges),
            levels=np.concatenate((computed.levels, levels)),
            above=np.concatenate((computed.above, above)),
            started_ms=started,
            tallies=Tallies(page.scrapes, page.failed, torn, resets, gaps),
        )
    )


def _read_raw(
    prometheus: Prometheus,
    page: _Page,
    blocks: Blocks,
    rows: Sequence[Series],
    names: Sequence[str],
    first: int,
    last: int,
) -> TargetIncrements:
    """The increments in the blocks from `first` to `last`, not included, computed from the scrapes of these series."""
    start_ms, end_ms = (blocks.first_ms + block * BLOCK_MS for block in (first, last))
    before_ms = start_ms - memory_ms(page.interval_ms)
    clock = {time_ms: succeeded for time_ms, succeeded in page.clock.items() if before_ms <= time_ms <= end_ms}
    read = read_scrapes(prometheus, page.target, names, clock, before_ms, end_ms).window
    placed = {series: row for row, series in enumerate(rows)}
    values = np.full((len(rows) + 1, len(read.times)), np.nan)
    for series, row in zip(read.series, read.values, strict=True):
        if series in placed:
            values[placed[series]] = row
    # A scrape that has none of these series is one that succeeded all the same.
    values[-1] = np.where(list(clock.values()), 1.0, np.nan)
    return compute_increments(
        page.target.process.target_id, page.target.process, Window((*rows, _SUCCEEDED), read.times, values),
        start_ms=start_ms, end_ms=end_ms, interval_ms=page.interval_ms,
    )  # fmt: skip


def _read_levels(
    prometheus: Prometheus, batch: AskedTargets, blocks: Blocks, wanted: _Wanted
) -> dict[Key, list[Track]]:
    """The samples of the gauges of which is wanted how often they were above a level, by target."""
    found: dict[Key, list[Track]] = {}
    if wanted.levelled:
        selected = batch.select(wanted.levelled)
        for track in read_all_samples(prometheus, selected, blocks.first_ms + 1, blocks.last_ms):
            found.setdefault(key_of(track.labels), []).append(track)
    return found


def _levels(page: _Page, blocks: Blocks, tracks: Sequence[Track]) -> tuple[tuple[Series, ...], Floats, Floats]:
    """These gauges of one page, and their levels and shares (g, n) per block."""
    clock = {time_ms: succeeded for time_ms, succeeded in page.clock.items() if time_ms > blocks.first_ms}
    computed = compute_increments(
        page.target.process.target_id, page.target.process, place_samples(page.target, tracks, clock).window,
        start_ms=blocks.first_ms, end_ms=blocks.last_ms, interval_ms=page.interval_ms,
    )  # fmt: skip
    levels, above = (np.full((len(computed.gauges), blocks.count - 1), np.nan) for _ in range(2))
    at = (computed.blocks - blocks.first_ms) // BLOCK_MS
    levels[:, at], above[:, at] = computed.levels, computed.above
    return computed.gauges, levels, above


def _observed(computed: TargetIncrements) -> TargetIncrements:
    """The same without the blocks in which there was no scrape."""
    tallies = computed.tallies
    return computed.at(np.flatnonzero(tallies.scrapes + tallies.failed))


# --- What is known of a target ----------------------------------------------------------------------------------------


def _read_infos(blocks: Blocks) -> dict[Key, Labels]:
    """The labels of the last `servescope_target_info` of each target."""
    newest: dict[Key, tuple[int, Labels]] = {}
    for labels, edges, _ in blocks.values("last_over_time", TARGET_INFO):
        key, edge = key_of(labels), int(edges[-1])
        newest[key] = max(newest.get(key, (edge, labels)), (edge, labels))
    return {key: labels for key, (_, labels) in newest.items()}


def _describe(computed: TargetIncrements, target: ScrapedTarget, info: Labels) -> TargetIncrements:
    """The same with the source, versions and layer of its target."""
    about = dict(info)
    # Our instruments, where a Prometheus scrapes them itself, say nothing about themselves, and need not.
    source, layer = _OWN if target.form == "contract" else ("", "")
    return replace(
        computed,
        source=about.get("source", source),
        versions=about.get("version", ""),
        layer=about.get("layer", layer),
    )


def _merge(pages: Sequence[TargetIncrements]) -> TargetIncrements:
    """One target from what several pages expose of it: each block from the one with the most scrapes."""
    if len(pages) == 1:
        return pages[0]
    blocks = np.unique(np.concatenate([page.blocks for page in pages]))
    scrapes = np.full((len(pages), len(blocks)), -1)
    for number, page in enumerate(pages):
        scrapes[number, np.searchsorted(blocks, page.blocks)] = page.tallies.scrapes
    best = scrapes.argmax(axis=0)
    places = [np.flatnonzero(best == number) for number in range(len(pages))]
    parts = [page.at(np.searchsorted(page.blocks, blocks[at])) for page, at in zip(pages, places, strict=True)]
    order = np.argsort(np.concatenate(places))

    def in_order(read: Callable[[TargetIncrements], NDArray[T]]) -> NDArray[T]:
        return np.concatenate([read(part) for part in parts])[order]

    series, gains = _spread([(part.series, part.gains) for part in parts], places, len(blocks))
    gauges, levels = _spread([(part.gauges, part.levels) for part in parts], places, len(blocks))
    _, above = _spread([(part.gauges, part.above) for part in parts], places, len(blocks))
    return replace(
        pages[best[-1]] if len(best) else pages[0],
        blocks=blocks,
        series=series,
        gains=gains,
        gauges=gauges,
        levels=levels,
        above=above,
        started_ms=in_order(lambda part: part.started_ms),
        tallies=Tallies(
            scrapes=in_order(lambda part: part.tallies.scrapes),
            failed=in_order(lambda part: part.tallies.failed),
            torn=in_order(lambda part: part.tallies.torn),
            resets=in_order(lambda part: part.tallies.resets),
            gaps=in_order(lambda part: part.tallies.gaps),
        ),
    )


def _spread(
    parts: Sequence[tuple[Sequence[Series], Floats]], places: Sequence[NDArray[np.intp]], count: int
) -> tuple[tuple[Series, ...], Floats]:
    """The rows of all parts, each once, and their values at the places of each part among `count` blocks."""
    rows: dict[Series, int] = {}
    for series, _ in parts:
        for each in series:
            rows.setdefault(each, len(rows))
    spread = np.full((len(rows), count), np.nan)
    for (series, values), at in zip(parts, places, strict=True):
        spread[np.array([rows[each] for each in series], dtype=np.intp)[:, None], at] = values
    return tuple(rows), spread
