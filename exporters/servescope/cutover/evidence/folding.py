"""The increments of both arms, folded into arrays over replicas and blocks: what every statistic of a judgement reads.

A metric is taken from one layer of a deployment per arm, the outermost that shows it, or the one that was frozen. What
cannot be what it says is left out of its block and counted: a value that is not finite, a counter's gain below zero, a
histogram whose parts do not fit together, and all of a process whose counters contradict each other (`agreement`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import AUXILIARY
from servescope.contract.judged import JUDGED, PROMPT_SIZES, SPEED, SPEED_HISTOGRAM, JudgedMetric, Part
from servescope.contract.measured_layers import MEASURED_LAYERS
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES, SEGMENT
from servescope.contract.samples import Series
from servescope.cutover.evidence.agreement import agree
from servescope.cutover.evidence.segments import REQUESTS, SegmentSums
from servescope.cutover.plan.plan import CutoverPlan
from servescope.increments.batches import (
    BlockSums,
    HistogramGains,
    Processes,
    TargetBatch,
    batches,
    find_layers,
    read_histogram,
    sum_counters,
    sum_gauges,
)
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from servescope.sources.map_files import was_only_read

Floats = NDArray[np.float64]
ArmName = Literal["v1", "v2"]
ARMS: Final[tuple[ArmName, ArmName]] = ("v1", "v2")

TRAFFIC: Final[Mapping[str, tuple[Part, ...]]] = {
    "requests": (Part("requests_total"),),
    "ok": (Part("requests_total", (("outcome", ("ok",)),)),),
    "errors": (Part("requests_total", (("outcome", ("error",)),)),),
    "started": (Part("requests_started_total"),),
    "output_tokens": (Part("output_tokens_total"),),
    "preemptions": (Part("preemptions_total"),),
    "eligible": (Part("kv_cache_eligible_tokens_total"),),
    "reused": (Part("kv_cache_reused_tokens_total"),),
}
"""Counters that a judgement reads beside its metrics."""

_GAUGES: Final = ("queued_requests", "kv_cache_usage", "gpu_usage", "concurrent_requests")


class MeasuredLayer(NamedTuple):
    """Where an arm's metric is taken from, and the releases there: pairs of a source and its versions."""

    name: str
    releases: tuple[tuple[str, str], ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources there."""
        return tuple(sorted({source for source, _ in self.releases}))

    @property
    def never_run(self) -> tuple[str, ...]:
        """The sources there of which nobody has run a release that is there."""
        return tuple(sorted({source for source, versions in self.releases if was_only_read(source, versions)}))


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaSums:
    """What a metric counts, and among how much, by replica and block, (P, B); NaN where it is not known."""

    above: Floats
    below: Floats


@dataclass(frozen=True, slots=True, eq=False)
class BucketCounts:
    """Observations of an arm per bucket and block, (E + 1, B): up to each of `edges`, and above the last."""

    edges: tuple[float, ...]
    counts: Floats


@dataclass(frozen=True, slots=True, eq=False)
class ArmFold:
    """One arm over P replicas and B blocks; `blocks` are their starts, (B,), without a gap, the rest is (P, B).

    `present` is where a replica was scraped, or failed to be, `started` when its process began, NaN where that is not
    known; the tallies are those of `contract.increments`, `torn` with those that were found here. `slow` are the
    observations above each of the compared edges, (P, K, B). `traffic` is by the names of `TRAFFIC`, `levels` and
    `above_level` by gauge. `counting` are by replica the labelled series that its process has counted with at the end,
    `doubled` the replicas that have a series twice. `kinds` are the layer and the role of each replica, a layer "" of
    one that no scrape has shown. `rejected` is 1 where a replica's counters contradict each other, so that none of them
    is taken; `served` is the most requests that any of them has, NaN where none says. `segments` are the sums of
    required metrics by their name, or their histogram's, and by segment, where sources keep segments apart, and of all
    requests under `REQUESTS`.
    """

    replicas: tuple[str, ...]
    deployments: tuple[str, ...]
    blocks: NDArray[np.int64]
    present: NDArray[np.bool_]
    started: Floats
    scrapes: Floats
    failed: Floats
    torn: Floats
    resets: Floats
    gaps: Floats
    metrics: Mapping[str, ReplicaSums]
    slow: Mapping[str, Floats]
    distributions: Mapping[str, BucketCounts]
    traffic: Mapping[str, Floats]
    levels: Mapping[str, Floats]
    above_level: Mapping[str, Floats]
    gpus: Floats
    layers: Mapping[str, MeasuredLayer]
    counting: Mapping[str, frozenset[Series]]
    doubled: frozenset[str]
    kinds: tuple[tuple[str, str], ...]
    rejected: Floats
    served: Floats
    segments: Mapping[str, Mapping[str, ReplicaSums]]

    def end_ms(self) -> int:
        """Up to when it reaches."""
        return int(self.blocks[-1]) + BLOCK_MS if self.blocks.size else 0


@dataclass(frozen=True, slots=True, eq=False)
class ArmArrays:
    """Both arms over the same blocks; `faults` are sentences, of targets that could not be folded as they were."""

    v1: ArmFold
    v2: ArmFold
    edges: Mapping[str, tuple[float, ...]]
    faults: tuple[str, ...] = ()

    @property
    def blocks(self) -> NDArray[np.int64]:
        """The starts of the blocks, (B,)."""
        return self.v1.blocks


def judged_metric(name: str, histograms: Iterable[str]) -> JudgedMetric:
    """How a metric is computed: token speed from its histogram where that was frozen."""
    return SPEED_HISTOGRAM if name == SPEED and name in histograms else JUDGED[name]


def fold(
    plan: CutoverPlan,
    targets: Sequence[TargetIncrements],
    start_ms: int,
    end_ms: int,
    *,
    layers: Mapping[str, tuple[str, str]] | None = None,
    edges: Mapping[str, tuple[float, ...]] | None = None,
    former: ArmArrays | None = None,
) -> ArmArrays:
    """Both arms over the closed blocks from `start_ms` to `end_ms`, whole blocks within them.

    `layers` and `edges` are those of a frozen plan. With `former`, the part before them, only the blocks after it.
    """
    first = -(-start_ms // BLOCK_MS) * BLOCK_MS if former is None else former.v1.end_ms() or start_ms
    blocks = np.arange(first, end_ms - BLOCK_MS + 1, BLOCK_MS, dtype=np.int64)
    compared = dict(edges or {})
    arms = []
    for index, arm in enumerate((plan.v1, plan.v2)):
        before = None if former is None else (former.v1, former.v2)[index]
        known = {family: both[index] for family, both in (layers or {}).items() if both[index]}
        if before is not None:
            known = {family: layer.name for family, layer in before.layers.items()} | known
        chosen = [each for each in targets if arm.selects(each.identity) and each.identity.role != AUXILIARY]
        arms.append(_fold_arm(_Reading(plan, compared), chosen, blocks, known, before))
    return ArmArrays(arms[0], arms[1], compared, () if former is None else former.faults)


def joined(parts: Sequence[ArmArrays]) -> ArmArrays:
    """Parts that follow one another as one; each was folded after the one before it."""
    found = [part for part in parts if part.blocks.size] or list(parts[-1:])
    if len(found) == 1:
        return replace(found[0], faults=parts[-1].faults)
    arms = (_joined([part.v1 for part in found]), _joined([part.v2 for part in found]))
    return ArmArrays(*arms, parts[-1].edges, parts[-1].faults)


def read_families(plan: CutoverPlan) -> list[str]:
    """The metrics of the contract that judging a plan reads."""
    return sorted(_Reading(plan, {}).families())


def _has_segments(parts: Iterable[Part]) -> bool:
    return all(SEGMENT in METRICS[SAMPLE_FAMILIES[part.series]].optional for part in parts)


# --- One arm ----------------------------------------------------------------------------------------------------------


class _Reading:
    """What is read of each target: the cells that are sums of its series, and the histograms whose buckets count."""

    def __init__(self, plan: CutoverPlan, edges: Mapping[str, tuple[float, ...]]) -> None:
        metrics = {metric.name: JUDGED[metric.name] for metric in plan.metrics}
        required = {metric.name for metric in plan.metrics if metric.required}
        self.counters: dict[tuple[str, str], tuple[Part, ...]] = {}
        self.gauges: dict[tuple[str, str], tuple[Part, ...]] = {}
        self.histograms: dict[str, str] = {}
        self.tails = {name: metric.histogram for name, metric in metrics.items() if metric.made_of and metric.histogram}
        for name, metric in metrics.items():
            if not metric.made_of:
                cells = self.gauges if metric.gauge else self.counters
                cells[name, "above"], cells[name, "below"] = metric.above, metric.below
                if metric.histogram:
                    self.histograms[metric.histogram] = name
        for name, histogram in self.tails.items():
            self.histograms.setdefault(histogram, name)
        if SPEED in metrics:
            self.histograms[SPEED] = SPEED
        # What is optional never gates, nor does it reject what is required.
        self.agreeing = {histogram for histogram, name in self.histograms.items() if name in required}
        self.segmented: dict[str, tuple[tuple[Part, ...], tuple[Part, ...]]] = {
            name: (metric.above, metric.below) for name, metric in metrics.items() if name in required
            and metric.kind == "events" and _has_segments((*metric.above, *metric.below))
        } | {REQUESTS: (TRAFFIC["requests"], TRAFFIC["requests"])}  # fmt: skip
        self.histograms[PROMPT_SIZES] = PROMPT_SIZES
        for name, parts in TRAFFIC.items():
            self.counters[name, "traffic"] = parts
        for name in _GAUGES:
            self.gauges[name, "level"] = (Part(name),)
        self.edges = edges

    def families(self) -> set[str]:
        parts = [part for cells in (self.counters, self.gauges) for each in cells.values() for part in each]
        return {SAMPLE_FAMILIES[part.series] for part in parts} | set(self.histograms)


def _fold_arm(
    reading: _Reading,
    targets: Sequence[TargetIncrements],
    blocks: NDArray[np.int64],
    known: Mapping[str, str],
    before: ArmFold | None,
) -> ArmFold:
    shape = (len(targets), blocks.size)
    layers = _choose_layers(reading, targets, known)

    def unknown() -> Floats:
        return np.full(shape, np.nan)

    def nothing() -> Floats:
        return np.zeros(shape)

    arm = ArmFold(
        replicas=tuple(target.target_id for target in targets),
        deployments=tuple(target.identity.deployment_id for target in targets),
        blocks=blocks,
        present=np.zeros(shape, dtype=np.bool_),
        started=unknown(),
        scrapes=nothing(), failed=nothing(), torn=nothing(), resets=nothing(), gaps=nothing(),
        metrics={
            name: ReplicaSums(unknown(), unknown())
            for name, side in (*reading.counters, *reading.gauges)
            if side == "above"
        } | {name: ReplicaSums(unknown(), unknown()) for name in (f"{SPEED} histogram", PROMPT_SIZES, *reading.tails)},
        slow={
            name: np.full((len(targets), len(edges), blocks.size), np.nan)
            for name, edges in reading.edges.items()
            if name not in reading.tails
        },
        distributions={},
        traffic={name: unknown() for name in TRAFFIC},
        levels={name: unknown() for name in _GAUGES},
        above_level={name: unknown() for name in _GAUGES},
        gpus=nothing(),
        layers=layers,
        counting={},
        doubled=frozenset(),
        kinds=tuple((target.layer, target.identity.role) for target in targets),
        rejected=nothing(),
        served=unknown(),
        segments={},
    )  # fmt: skip
    sums, segments = BlockSums(blocks.size), SegmentSums(shape)
    former = _former(before)
    counting = dict(before.counting) if before is not None else {}
    doubled: set[str] = set(before.doubled) if before is not None else set()
    for batch in batches(targets, blocks):
        batch, processes, histograms = _read_sound(reading, arm, batch, former)
        _read_batch(reading, arm, batch, processes, histograms, sums)
        _read_segments(reading, arm, batch, processes, histograms, segments)
        counting |= processes.counting()
        if batch.rows.doubled:
            doubled |= {target.target_id for target in batch.targets}
    distributions = {
        name: BucketCounts(edges, np.diff(counts, axis=0, prepend=0.0))
        for name, (edges, counts) in sums.shared().items()
    }
    return replace(
        arm, distributions=distributions, counting=counting, doubled=frozenset(doubled),
        segments={name: {segment: ReplicaSums(*each) for segment, each in by_segment.items()}
                  for name, by_segment in segments.found.items()},
    )  # fmt: skip


def _read_segments(
    reading: _Reading, arm: ArmFold, batch: TargetBatch, processes: Processes,
    histograms: Mapping[str, HistogramGains], segments: SegmentSums,
) -> None:  # fmt: skip
    if not batch.rows.segments:
        return
    for name, parts in reading.segmented.items():
        if _taken(arm, batch, parts[1]):
            segments.add_counters(name, batch, processes, parts)
    for name in reading.agreeing & histograms.keys():
        segments.add_histogram(name, batch, processes, np.isfinite(histograms[name].count))


def _former(before: ArmFold | None) -> dict[str, tuple[float, frozenset[Series]]]:
    if before is None or not before.blocks.size:
        return {}
    # Of one that was not there at the end, only what it has counted with is known.
    started = dict(zip(before.replicas, before.started[:, -1].tolist(), strict=True))
    return {
        replica: (started.get(replica, np.nan), before.counting.get(replica, frozenset()))
        for replica in {**started, **before.counting}
    }


def _read_sound(
    reading: _Reading, arm: ArmFold, batch: TargetBatch, former: Mapping[str, tuple[float, frozenset[Series]]]
) -> tuple[TargetBatch, Processes, dict[str, HistogramGains]]:
    """The batch without the gains of blocks in which its counters contradict each other, and its histograms."""
    cells = batch.cells
    for name, values in batch.tallies.items():
        getattr(arm, name)[cells] = values
    processes = Processes(batch, former)
    histograms = _read_histograms(reading, arm, batch, processes)
    found = agree(batch, arm.blocks[batch.columns], processes, histograms, reading.agreeing)
    arm.rejected[cells], arm.served[cells] = found.torn, found.served
    arm.torn[cells] += found.torn
    for name, each in histograms.items():
        lost = found.torn | found.short.get(name, found.torn)
        arm.torn[cells] += each.torn | lost
        histograms[name] = each.without(lost)
    if not found.torn.any():
        return batch, processes, histograms
    sound = replace(batch, gains=np.where(found.torn[:, None], np.nan, batch.gains))
    return sound, Processes(sound, former), histograms


def _read_histograms(
    reading: _Reading, arm: ArmFold, batch: TargetBatch, processes: Processes
) -> dict[str, HistogramGains]:
    """Those that the arm takes from where the batch's targets are."""
    taken = (name for name in reading.histograms if _taken(arm, batch, (Part(f"{name}_count"),)))
    return {name: found for name in taken if (found := read_histogram(batch, name, processes)) is not None}


def _read_batch(
    reading: _Reading,
    arm: ArmFold,
    batch: TargetBatch,
    processes: Processes,
    histograms: Mapping[str, HistogramGains],
    sums: BlockSums,
) -> None:
    cells = batch.cells
    arm.started[cells] = batch.started
    arm.present[cells] = (batch.tallies["scrapes"] + batch.tallies["failed"]) > 0.0
    for (name, side), parts in reading.counters.items():
        if _taken(arm, batch, parts):
            value = sum_counters(batch, parts, processes)
            if value is not None:
                _cell(arm, name, side)[cells] = value
    for (name, side), parts in reading.gauges.items():
        value = sum_gauges(batch, parts) if _taken(arm, batch, parts) else None
        if value is None:
            continue
        if side == "level":
            rows = batch.gauges.of(parts[0])
            arm.levels[name][cells] = value / len(rows) if name == "gpu_usage" else value
            arm.above_level[name][cells] = batch.above[:, rows].max(axis=1)
        else:
            _cell(arm, name, side)[cells] = value
    devices = batch.gauges.by_name.get("gpu_usage", [])
    if devices:
        arm.gpus[cells] = np.isfinite(batch.levels[:, devices]).sum(axis=1)
    for histogram, found in histograms.items():
        _take_histogram(reading, arm, batch, histogram, found, sums)


def _take_histogram(
    reading: _Reading, arm: ArmFold, batch: TargetBatch, histogram: str, found: HistogramGains, sums: BlockSums
) -> None:
    name, cells = reading.histograms[histogram], batch.cells
    counted = arm.metrics.get(f"{SPEED} histogram" if histogram == SPEED else name)
    if counted is not None and name not in reading.tails:
        counted.above[cells], counted.below[cells] = found.total, found.count
    if not found.edges:
        return
    whole = np.concatenate([found.cumulative.sum(axis=0), np.nansum(found.count, axis=0)[None]])
    sums.add(histogram, batch.columns, whole, found.edges)

    def above(edge: float) -> Floats:
        return np.asarray(found.count - found.cumulative[:, found.edges.index(edge)])

    for tail in (tail for tail, of in reading.tails.items() if of == histogram):
        for edge in reading.edges.get(tail, ()):
            if edge in found.edges:
                arm.metrics[tail].above[cells], arm.metrics[tail].below[cells] = above(edge), found.count
    for number, edge in enumerate(reading.edges.get(name, ()) if name not in reading.tails else ()):
        if edge in found.edges:
            arm.slow[name][:, number][cells] = above(edge)


def _taken(arm: ArmFold, batch: TargetBatch, parts: Iterable[Part]) -> bool:
    """Whether the arm takes what these series count from where the batch's targets are."""
    families = (SAMPLE_FAMILIES[part.series] for part in parts)
    return all(
        family in arm.layers and arm.layers[family].name == batch.targets[0].measured_layer(family)
        for family in families
    )


def _cell(arm: ArmFold, name: str, side: str) -> Floats:
    if side == "traffic":
        return arm.traffic[name]
    return arm.metrics[name].above if side == "above" else arm.metrics[name].below


def _choose_layers(
    reading: _Reading, targets: Sequence[TargetIncrements], known: Mapping[str, str]
) -> dict[str, MeasuredLayer]:
    """Per family the layer that is frozen, or the outermost of those that showed it first."""
    wanted = reading.families()
    found = find_layers(targets, wanted)
    chosen = {}
    for family in wanted & (found.keys() | known.keys()):
        seen = found.get(family, [])
        name = known.get(family) or MEASURED_LAYERS[min(seen).order]
        releases = {
            (each.source, each.versions) for each in seen if MEASURED_LAYERS[each.order] == name and each.source
        }
        chosen[family] = MeasuredLayer(name, tuple(sorted(releases)))
    return chosen


# --- What comes later -------------------------------------------------------------------------------------------------


def _joined(arms: Sequence[ArmFold]) -> ArmFold:
    """One arm over the blocks of all; a replica that one of them does not have is not known there."""
    replicas = tuple(dict.fromkeys(replica for arm in arms for replica in arm.replicas))
    index = {replica: number for number, replica in enumerate(replicas)}
    rows = [
        slice(None)
        if arm.replicas == replicas
        else np.array([index[replica] for replica in arm.replicas], dtype=np.int64)
        for arm in arms
    ]
    ends = np.cumsum([0, *(arm.blocks.size for arm in arms)]).tolist()

    def join(values: Sequence[Any], missing: float) -> Any:
        one = next(each for each in reversed(values) if each is not None)
        if isinstance(one, np.ndarray):
            is_whole = all(isinstance(each, slice) for each in rows) and all(each is not None for each in values)
            alike = _same(values) if is_whole else None
            if alike is not None:
                return np.broadcast_to(alike, (*one.shape[:-1], ends[-1]))
            shape, kind = (len(replicas), *one.shape[1:-1], ends[-1]), bool if one.dtype == np.bool_ else float
            if is_whole:
                return np.concatenate(values, axis=-1, out=np.empty(shape, kind), casting="unsafe")
            whole = np.full(shape, missing, kind)
            for each, chosen, first, end in zip(values, rows, ends, ends[1:], strict=False):
                if each is not None:
                    whole[chosen, ..., first:end] = each
            return whole
        if isinstance(one, ReplicaSums):
            return ReplicaSums(
                join([each and each.above for each in values], missing),
                join([each and each.below for each in values], missing),
            )
        # A segment may have come later.
        names = dict.fromkeys(name for each in values for name in each or ())
        return {name: join([each and each.get(name) for each in values], missing) for name in names}

    def of_replicas(name: str) -> tuple[Any, ...]:
        known = {replica: each for arm in arms for replica, each in zip(arm.replicas, getattr(arm, name), strict=True)}
        return tuple(known[replica] for replica in replicas)

    blocks = np.concatenate([arm.blocks for arm in arms])
    values: dict[str, Any] = {
        "blocks": blocks, "distributions": _joined_distributions(arms), "layers": _joined_layers(arms),
        "counting": arms[-1].counting, "doubled": arms[-1].doubled,
    }  # fmt: skip
    for each in fields(ArmFold):
        if each.name not in values:
            parts = [getattr(arm, each.name) for arm in arms]
            missing = 0.0 if each.name in _COUNTS or each.name == "present" else np.nan
            values[each.name] = of_replicas(each.name) if isinstance(parts[0], tuple) else join(parts, missing)
    return ArmFold(**values)


_COUNTS: Final = ("scrapes", "failed", "torn", "resets", "gaps", "gpus", "rejected")
"""What is 0 of a replica in blocks in which it was not there; all else is not known."""


def _same(values: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
    """The one number that all of these arrays repeat, as `windows.compacted` makes them; None where they do not."""
    if any(any(each.strides) or not each.size for each in values):
        return None
    firsts = np.array([each.reshape(-1)[0] for each in values])
    return firsts[0] if np.array_equal(firsts, np.full(firsts.shape, firsts[0]), equal_nan=True) else None


def _joined_layers(arms: Sequence[ArmFold]) -> dict[str, MeasuredLayer]:
    """The layers of the last arm, with the releases that all have seen there."""
    return {
        family: MeasuredLayer(layer.name, tuple(sorted({each for arm in arms if family in arm.layers
                                                        for each in arm.layers[family].releases})))
        for family, layer in arms[-1].layers.items()
    }  # fmt: skip


def _joined_distributions(arms: Sequence[ArmFold]) -> dict[str, BucketCounts]:
    found = {}
    for name in dict.fromkeys(name for arm in arms for name in arm.distributions):
        parts = [(arm.distributions.get(name), arm.blocks.size) for arm in arms]
        edges = tuple(sorted(set.intersection(*(set(each.edges) for each, _ in parts if each is not None))))
        counts = [np.zeros((len(edges) + 1, size)) if each is None else _at(each, edges) for each, size in parts]
        found[name] = BucketCounts(edges, np.concatenate(counts, axis=1))
    return found


def _at(distribution: BucketCounts, edges: tuple[float, ...]) -> Floats:
    counts = distribution.counts.astype(float)
    if distribution.edges == edges:
        return counts
    cumulative = np.cumsum(counts, axis=0)
    chosen = cumulative[[*(distribution.edges.index(edge) for edge in edges), len(distribution.edges)]]
    return np.diff(chosen, axis=0, prepend=0.0)
