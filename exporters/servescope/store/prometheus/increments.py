"""Increments per block of the targets whose series a Prometheus holds.

Where nothing happened in a block, its gains are the differences of the last values at its edges. Blocks with a reset, a
gap, a torn histogram, or series that came or went, are computed from their scrapes, as a collector's store does it. A
histogram whose buckets alone disagree in one scrape, without having fallen, is not noticed there: its gains are the
same, `torn` lacks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import Deployment, Identity
from servescope.contract.metrics import METRICS, REPLICA_START_TIME, SAMPLE_FAMILIES
from servescope.contract.samples import Labels, Series, make_labels
from servescope.increments.accumulation import GAP_INTERVALS
from servescope.increments.blocks import BLOCK_MS, JUDGED_GAUGES, Tallies, TargetIncrements
from servescope.store.prometheus.batches import AskedTargets, read_in_parts
from servescope.store.prometheus.blocks import Blocks, Flags, Floats, in_parts, series_of
from servescope.store.prometheus.client import PartialError, Prometheus, Track
from servescope.store.prometheus.figure_queries import matchers
from servescope.store.prometheus.pages import BlockRange, PageBlocks
from servescope.store.prometheus.places import Key, far_of, key_of, name_at
from servescope.store.prometheus.scrapes import read_all_samples, read_samples_each, read_scrapes, sample_parts
from servescope.store.prometheus.steps import SizedQuery, at_once
from servescope.store.prometheus.targets import (
    CONTRACT_NAMES,
    TARGET_INFO,
    ScrapedTarget,
    find_contract_targets,
)
from servescope.store.prometheus.windows import read_clocks

T = TypeVar("T", bound=np.generic)

# Scrapes of intervals up to a block's length have to do with those so long after them.
_BEFORE_MS = 3 * BLOCK_MS
_MOST_RAW_BLOCKS = 400
"""The blocks of targets together that are held scrape by scrape at the same time."""
_MOST_RAW_SERIES = 3_000
"""The series that are read scrape by scrape by one query."""
_OWN = ("servescope", "process")
_SHOWN = 3
"""Replicas that a message names at most."""


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
    named = frozenset(_key(target)[0] for target in targets)

    def read(part: Sequence[ScrapedTarget]) -> list[tuple[ScrapedTarget, TargetIncrements]]:
        batch = _batch_of(deployment, part, is_all=len(part) == len(targets))
        blocks = Blocks(prometheus, batch, len(part), first_ms, last_ms)
        return _read_batch(prometheus, part, batch, blocks, wanted, named)

    are_named = all(target.identity.replica for target in targets)

    def length(target: ScrapedTarget) -> int:
        instance = "" if are_named else dict(target.attached).get("instance", "")
        return len(target.identity.replica) + len(instance)

    found: dict[Identity, dict[Labels, list[TargetIncrements]]] = {}
    for computed in read_in_parts(targets, length, read):
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
    replicas = tuple(target.identity.replica for target in targets)
    # Processes without a name are distinguished by where they were scraped.
    instances = () if all(replicas) else tuple(dict(target.attached).get("instance", "") for target in targets)
    return AskedTargets(deployment, replicas, instances)


def _read_batch(
    prometheus: Prometheus,
    targets: Sequence[ScrapedTarget],
    batch: AskedTargets,
    blocks: Blocks,
    wanted: _Wanted,
    named: frozenset[Labels],
) -> list[tuple[ScrapedTarget, TargetIncrements]]:
    """The increments of each target of a batch; `named` are the identities of all targets."""
    by_key = {_key(target): target for target in targets}
    clocks = read_clocks(prometheus, by_key, batch, blocks.first_ms - _BEFORE_MS, blocks.last_ms)
    pages = {
        key: PageBlocks(target, _clock(prometheus, target, clocks[key], blocks, wanted), blocks)
        for key, target in by_key.items()
    }
    infos, others = _read_blocks(blocks, wanted, pages)
    # A process without a name of its own is one of those that are distinguished by where they were scraped.
    unlisted = sorted(name for each in others - named if (name := dict(each).get("replica")))
    if unlisted:
        raise PartialError(
            prometheus.url, f"it answers with series of replicas that it does not list: {', '.join(unlisted[:_SHOWN])}"
        )
    levels = _read_levels(prometheus, batch, len(targets), blocks, wanted)
    for page in pages.values():
        page.compute()
    _read_runs(prometheus, batch, pages, (*wanted.counters, REPLICA_START_TIME))
    return [
        (page.target, _describe(page.increments(levels.get(key, ())), page.target, infos.get(key, ())))
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


def _read_blocks(
    blocks: Blocks, wanted: _Wanted, pages: Mapping[Key, PageBlocks]
) -> tuple[dict[Key, Labels], set[Labels]]:
    """Give the pages their values at the edges, and mark the blocks that these do not suffice for.

    Returns the labels of the last `servescope_target_info` of each target, and the identities of others with series.
    """
    infos: dict[Key, tuple[int, Labels]] = {}
    others: set[Labels] = set()

    def take(labels: Labels, edges: NDArray[np.intp], values: Floats) -> None:
        key = key_of(labels)
        if ("__name__", TARGET_INFO) in labels:
            infos[key] = max(infos.get(key, (-1, labels)), (int(edges[-1]), labels))
        elif key in pages:
            pages[key].add(labels, edges, values)
        else:
            others.add(key[0])

    reach_ms = max((round(GAP_INTERVALS * page.interval_ms) for page in pages.values()), default=0)
    unclear: dict[Key, Flags] = {}
    fewest: dict[Key, Floats] = {}
    # A histogram that is there is there with its count.
    counted = [name for name in wanted.counters if not name.endswith(("_bucket", "_sum"))]
    blocks.ask(
        blocks.last_values((*wanted.counters, REPLICA_START_TIME, TARGET_INFO), take),
        blocks.fallen(wanted.counters, reach_ms, unclear),
        blocks.fewest(counted, fewest),
        blocks.torn(wanted.histograms, unclear),
        blocks.means(wanted.means, take),
    )
    for key, page in pages.items():
        page.mark(unclear.get(key), fewest.get(key))
    return {key: labels for key, (_, labels) in infos.items()}, others


def _read_runs(
    prometheus: Prometheus, batch: AskedTargets, pages: Mapping[Key, PageBlocks], names: Sequence[str]
) -> None:
    """Read scrape by scrape what the values at the edges do not suffice for."""
    ranges = [
        (block_range, keys, part)
        for block_range, keys in _ranges(pages)
        for part in _select_range(batch, pages, block_range, keys, names)
    ]
    read = at_once(lambda each: read_all_samples(prometheus, *each[2]), ranges)
    for (block_range, keys), found in groupby(zip(ranges, read, strict=True), key=lambda each: each[0][:2]):
        tracks: dict[Key, list[Track]] = {key: [] for key in keys}
        for track in (track for _, part in found for track in part):
            tracks.get(keys[0] if len(keys) == 1 else key_of(track.labels), []).append(track)
        for key in keys:
            pages[key].replace(block_range, tracks[key])


def _ranges(pages: Mapping[Key, PageBlocks]) -> Iterator[tuple[BlockRange, list[Key]]]:
    """Each range with the targets that have it, as many as are held scrape by scrape at the same time."""
    ranges: dict[BlockRange, list[Key]] = {}
    for key, page in pages.items():
        for block_range in page.ranges():
            ranges.setdefault(block_range, []).append(key)
    for block_range, keys in ranges.items():
        most = max(1, _MOST_RAW_BLOCKS // (block_range[1] - block_range[0]))
        yield from ((block_range, keys[place : place + most]) for place in range(0, len(keys), most))


def _select_range(
    batch: AskedTargets,
    pages: Mapping[Key, PageBlocks],
    block_range: BlockRange,
    keys: Sequence[Key],
    names: Sequence[str],
) -> Iterator[tuple[str, int, int]]:
    """Selectors of the samples of these targets that have to do with a range, and from when to when."""
    targets = [pages[key].target for key in keys]
    asked = targets[0] if len(targets) == 1 else _batch_of(batch.deployment, targets, is_all=False)
    spans = [pages[key].span_of(block_range) for key in keys]
    for part in in_parts(names, len, max(1, _MOST_RAW_SERIES // len(targets))):
        series = len(targets) * sum(map(series_of, part))
        yield from sample_parts(SizedQuery(asked.select(part), series), min(spans)[0], spans[0][1])


def _read_levels(
    prometheus: Prometheus, batch: AskedTargets, targets: int, blocks: Blocks, wanted: _Wanted
) -> dict[Key, list[Track]]:
    """The samples of the gauges of which is wanted how often they were above a level, by target."""
    found: dict[Key, list[Track]] = {}
    if wanted.levelled:
        asked = SizedQuery(batch.select(wanted.levelled), targets * len(wanted.levelled))
        (tracks,) = read_samples_each(prometheus, [asked], blocks.first_ms + 1, blocks.last_ms)
        for track in tracks:
            found.setdefault(key_of(track.labels), []).append(track)
    return found


# --- What is known of a target ----------------------------------------------------------------------------------------


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
