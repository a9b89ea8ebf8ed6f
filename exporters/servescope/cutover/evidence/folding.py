"""The increments of both arms, folded into arrays over pods and blocks: what every statistic of a judgement reads.

A metric is taken from one place of a deployment per arm, the outermost that shows it, or the one that was frozen. What
cannot be what it says is left out of its block and counted: a value that is not finite, a counter's gain below zero, a
histogram whose parts do not fit together, and all of a process whose counters contradict each other (`agreement`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.contract.judged import JUDGED, PROMPT_SIZES, SPEED, SPEED_HISTOGRAM, JudgedMetric, Part
from servescope.contract.metrics import SAMPLE_FAMILIES
from servescope.contract.samples import Series
from servescope.cutover.evidence.agreement import agree
from servescope.cutover.plan.plan import CutoverPlan
from servescope.increments.batches import (
    PLACES,
    HistogramGains,
    Processes,
    SeriesNumbers,
    TargetBatch,
    batches,
    place_of,
    read_histogram,
    sum_counters,
    sum_gauges,
)
from servescope.increments.blocks import BLOCK_MS, TargetIncrements

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


class Place(NamedTuple):
    """Where an arm's metric is taken from, and what the sources there are."""

    name: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PodSums:
    """What a metric counts, and among how much, by pod and block, (P, B); NaN where it is not known."""

    above: Floats
    below: Floats


@dataclass(frozen=True, slots=True, eq=False)
class BucketCounts:
    """Observations of an arm per bucket and block, (E + 1, B): up to each of `edges`, and above the last."""

    edges: tuple[float, ...]
    counts: Floats


@dataclass(frozen=True, slots=True, eq=False)
class ArmFold:
    """One arm over P pods and B blocks; `blocks` are their starts, (B,), without a gap, the rest is (P, B).

    `present` is where a pod was scraped, or failed to be, `started` when its process began, NaN where that is not
    known; the tallies are those of `contract.increments`, `torn` with those that were found here. `slow` are the
    observations above each of the compared edges, (P, K, B). `traffic` is by the names of `TRAFFIC`, `levels` and
    `above_level` by gauge. `counting` are by pod the labelled series that its process has counted with at the end,
    `doubled` the pods that have a series twice. `kinds` are the layer and the role of each pod, a layer "" of one that
    no scrape has shown. `rejected` is 1 where a pod's counters contradict each other, so that none of them is taken;
    `served` is the most requests that any of them has, NaN where none says.
    """

    pods: tuple[str, ...]
    deployments: tuple[str, ...]
    blocks: NDArray[np.int64]
    present: NDArray[np.bool_]
    started: Floats
    scrapes: Floats
    failed: Floats
    torn: Floats
    resets: Floats
    gaps: Floats
    metrics: Mapping[str, PodSums]
    slow: Mapping[str, Floats]
    distributions: Mapping[str, BucketCounts]
    traffic: Mapping[str, Floats]
    levels: Mapping[str, Floats]
    above_level: Mapping[str, Floats]
    gpus: Floats
    places: Mapping[str, Place]
    counting: Mapping[str, frozenset[Series]]
    doubled: frozenset[str]
    kinds: tuple[tuple[str, str], ...]
    rejected: Floats
    served: Floats

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
    places: Mapping[str, tuple[str, str]] | None = None,
    edges: Mapping[str, tuple[float, ...]] | None = None,
    former: ArmArrays | None = None,
) -> ArmArrays:
    """Both arms over the closed blocks from `start_ms` to `end_ms`, whole blocks within them.

    `places` and `edges` are those of a frozen plan. With `former`, the part before them, only the blocks after it.
    """
    first = -(-start_ms // BLOCK_MS) * BLOCK_MS if former is None else former.v1.end_ms() or start_ms
    blocks = np.arange(first, end_ms - BLOCK_MS + 1, BLOCK_MS, dtype=np.int64)
    compared = dict(edges or {})
    arms = []
    for index, arm in enumerate((plan.v1, plan.v2)):
        before = None if former is None else (former.v1, former.v2)[index]
        known = {family: both[index] for family, both in (places or {}).items() if both[index]}
        if before is not None:
            known = {family: place.name for family, place in before.places.items()} | known
        chosen = [target for target in targets if arm.selects(target.identity)]
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


# --- One arm ----------------------------------------------------------------------------------------------------------


class _Reading:
    """What is read of each target: the cells that are sums of its series, and the histograms whose buckets count."""

    def __init__(self, plan: CutoverPlan, edges: Mapping[str, tuple[float, ...]]) -> None:
        metrics = {metric.name: JUDGED[metric.name] for metric in plan.metrics}
        required = {metric.name for metric in plan.metrics if metric.required}
        self.counters: dict[tuple[str, str], tuple[Part, ...]] = {}
        self.gauges: dict[tuple[str, str], tuple[Part, ...]] = {}
        self.histograms: dict[str, str] = {}
        for name, metric in metrics.items():
            cells = self.gauges if metric.gauge else self.counters
            cells[name, "above"], cells[name, "below"] = metric.above, metric.below
            if metric.histogram:
                self.histograms[metric.histogram] = name
        if SPEED in metrics:
            self.histograms[SPEED] = SPEED
        # What is optional never gates, nor does it reject what is required.
        self.agreeing = {histogram for histogram, name in self.histograms.items() if name in required}
        self.histograms[PROMPT_SIZES] = PROMPT_SIZES
        for name, parts in TRAFFIC.items():
            self.counters[name, "traffic"] = parts
        for name in _GAUGES:
            self.gauges[name, "level"] = (Part(name),)
        self.edges = edges

    def families(self) -> set[str]:
        """The metrics of the contract that are read."""
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
    places = _choose_places(reading, targets, known)

    def unknown() -> Floats:
        return np.full(shape, np.nan)

    def nothing() -> Floats:
        return np.zeros(shape)

    arm = ArmFold(
        pods=tuple(target.target_id for target in targets),
        deployments=tuple(target.identity.deployment_id for target in targets),
        blocks=blocks,
        present=np.zeros(shape, dtype=np.bool_),
        started=unknown(),
        scrapes=nothing(), failed=nothing(), torn=nothing(), resets=nothing(), gaps=nothing(),
        metrics={
            name: PodSums(unknown(), unknown())
            for name, side in (*reading.counters, *reading.gauges)
            if side == "above"
        } | {name: PodSums(unknown(), unknown()) for name in (f"{SPEED} histogram", PROMPT_SIZES)},
        slow={name: np.full((len(targets), len(edges), blocks.size), np.nan) for name, edges in reading.edges.items()},
        distributions={},
        traffic={name: unknown() for name in TRAFFIC},
        levels={name: unknown() for name in _GAUGES},
        above_level={name: unknown() for name in _GAUGES},
        gpus=nothing(),
        places=places,
        counting={},
        doubled=frozenset(),
        kinds=tuple((target.layer, target.identity.role) for target in targets),
        rejected=nothing(),
        served=unknown(),
    )  # fmt: skip
    sums = _BucketSums(blocks.size)
    former = _former(before)
    counting = dict(before.counting) if before is not None else {}
    doubled: set[str] = set(before.doubled) if before is not None else set()
    for batch in batches(targets, blocks):
        batch, processes, histograms = _read_sound(reading, arm, batch, former)
        _read_batch(reading, arm, batch, processes, histograms, sums)
        counting |= processes.counting()
        if batch.rows.doubled:
            doubled |= {target.target_id for target in batch.targets}
    return replace(arm, distributions=sums.distributions(), counting=counting, doubled=frozenset(doubled))


def _former(before: ArmFold | None) -> dict[str, tuple[float, frozenset[Series]]]:
    if before is None or not before.blocks.size:
        return {}
    # Of one that was not there at the end, only what it has counted with is known.
    started = dict(zip(before.pods, before.started[:, -1].tolist(), strict=True))
    return {
        pod: (started.get(pod, np.nan), before.counting.get(pod, frozenset())) for pod in {**started, **before.counting}
    }


def _read_sound(
    reading: _Reading, arm: ArmFold, batch: TargetBatch, former: Mapping[str, tuple[float, frozenset[Series]]]
) -> tuple[TargetBatch, Processes, dict[str, HistogramGains]]:
    """The batch without the gains of blocks in which its counters contradict each other, and its histograms."""
    cells = batch.cells
    for name, values in batch.tallies.items():
        getattr(arm, name)[cells] = values
    processes, histograms = Processes(batch, former), _read_histograms(reading, arm, batch)
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


def _read_histograms(reading: _Reading, arm: ArmFold, batch: TargetBatch) -> dict[str, HistogramGains]:
    """Those that the arm takes from where the batch's targets are."""
    taken = (name for name in reading.histograms if _taken(arm, batch, (Part(f"{name}_count"),)))
    return {name: found for name in taken if (found := read_histogram(batch, name)) is not None}


def _read_batch(
    reading: _Reading,
    arm: ArmFold,
    batch: TargetBatch,
    processes: Processes,
    histograms: Mapping[str, HistogramGains],
    sums: _BucketSums,
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
    reading: _Reading, arm: ArmFold, batch: TargetBatch, histogram: str, found: HistogramGains, sums: _BucketSums
) -> None:
    name, cells = reading.histograms[histogram], batch.cells
    counted = arm.metrics.get(f"{SPEED} histogram" if histogram == SPEED else name)
    if counted is not None:
        counted.above[cells], counted.below[cells] = found.total, found.count
    if not found.edges:
        return
    whole = np.concatenate([found.cumulative.sum(axis=0), np.nansum(found.count, axis=0)[None]])
    sums.add(histogram, found.edges, batch.columns, whole)
    for number, edge in enumerate(reading.edges.get(name, ())):
        if edge in found.edges:
            above = found.count - found.cumulative[:, found.edges.index(edge)]
            arm.slow[name][:, number][cells] = above


def _taken(arm: ArmFold, batch: TargetBatch, parts: Iterable[Part]) -> bool:
    """Whether the arm takes what these series count from where the batch's targets are."""
    target = batch.targets[0]
    for part in parts:
        family = SAMPLE_FAMILIES[part.series]
        place = arm.places.get(family)
        if place is None or place.name != place_of(target.layer, target.identity.role, family):
            return False
    return True


def _cell(arm: ArmFold, name: str, side: str) -> Floats:
    if side == "traffic":
        return arm.traffic[name]
    return arm.metrics[name].above if side == "above" else arm.metrics[name].below


class _BucketSums:
    """The buckets of an arm's pods added up, each at the edges that its pods share."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._found: dict[str, dict[tuple[float, ...], Floats]] = {}

    def add(self, histogram: str, edges: tuple[float, ...], columns: NDArray[np.int64], cumulative: Floats) -> None:
        by_edges = self._found.setdefault(histogram, {})
        counts = by_edges.get(edges)
        if counts is None:
            counts = by_edges[edges] = np.zeros((len(edges) + 1, self._blocks))
        counts[:, columns] += cumulative

    def distributions(self) -> dict[str, BucketCounts]:
        return {name: _distribution(self._blocks, by_edges) for name, by_edges in self._found.items()}


def _distribution(blocks: int, by_edges: Mapping[tuple[float, ...], Floats]) -> BucketCounts:
    shared = tuple(sorted(set.intersection(*(set(edges) for edges in by_edges))))
    total = np.zeros((len(shared) + 1, blocks))
    for edges, counts in by_edges.items():
        total += counts[[*(edges.index(edge) for edge in shared), len(edges)]]
    return BucketCounts(shared, np.diff(total, axis=0, prepend=0.0))


def _choose_places(
    reading: _Reading, targets: Sequence[TargetIncrements], known: Mapping[str, str]
) -> dict[str, Place]:
    """Per family the place that is frozen, or the outermost of those that showed it first."""
    wanted = reading.families()
    numbers = SeriesNumbers()
    kinds: dict[tuple[object, ...], tuple[int, TargetIncrements]] = {}
    for target in targets:
        if target.blocks.size:
            kind = *numbers.of(target), target.layer, target.identity.role, target.source
            first, _ = kinds.get(kind, (int(target.blocks[0]), target))
            kinds[kind] = min(first, int(target.blocks[0])), target
    found: dict[str, list[tuple[int, int, str]]] = {}
    for first, target in kinds.values():
        for family in {SAMPLE_FAMILIES.get(each.name, "") for each in (*target.series, *target.gauges)} & wanted:
            place = place_of(target.layer, target.identity.role, family)
            found.setdefault(family, []).append((first, PLACES.index(place), target.source))
    chosen = {}
    for family in wanted & (found.keys() | known.keys()):
        seen = found.get(family, [])
        name = known.get(family) or PLACES[min(seen)[1]]
        sources = {source for _, place, source in seen if PLACES[place] == name and source}
        chosen[family] = Place(name, tuple(sorted(sources)))
    return chosen


# --- What comes later -------------------------------------------------------------------------------------------------


def _joined(arms: Sequence[ArmFold]) -> ArmFold:
    """One arm over the blocks of all; a pod that one of them does not have is not known there."""
    pods = tuple(dict.fromkeys(pod for arm in arms for pod in arm.pods))
    index = {pod: number for number, pod in enumerate(pods)}
    rows = [
        slice(None) if arm.pods == pods else np.array([index[pod] for pod in arm.pods], dtype=np.int64) for arm in arms
    ]
    ends = np.cumsum([0, *(arm.blocks.size for arm in arms)]).tolist()

    def join(values: Sequence[Any], missing: float) -> Any:
        one = values[-1]
        if isinstance(one, np.ndarray):
            alike = _same(values) if all(isinstance(each, slice) for each in rows) else None
            if alike is not None:
                return np.broadcast_to(alike, (*one.shape[:-1], ends[-1]))
            shape, kind = (len(pods), *one.shape[1:-1], ends[-1]), bool if one.dtype == np.bool_ else float
            if all(isinstance(each, slice) for each in rows):
                return np.concatenate(values, axis=-1, out=np.empty(shape, kind), casting="unsafe")
            whole = np.full(shape, missing, kind)
            for each, chosen, first, end in zip(values, rows, ends, ends[1:], strict=False):
                whole[chosen, ..., first:end] = each
            return whole
        if isinstance(one, PodSums):
            return PodSums(
                join([each.above for each in values], missing), join([each.below for each in values], missing)
            )
        return {name: join([each[name] for each in values], missing) for name in one}

    def of_pods(name: str) -> tuple[Any, ...]:
        known = {pod: each for arm in arms for pod, each in zip(arm.pods, getattr(arm, name), strict=True)}
        return tuple(known[pod] for pod in pods)

    blocks = np.concatenate([arm.blocks for arm in arms])
    values: dict[str, Any] = {
        "blocks": blocks, "distributions": _joined_distributions(arms), "places": _joined_places(arms),
        "counting": arms[-1].counting, "doubled": arms[-1].doubled,
    }  # fmt: skip
    for each in fields(ArmFold):
        if each.name not in values:
            parts = [getattr(arm, each.name) for arm in arms]
            missing = 0.0 if each.name in _COUNTS or each.name == "present" else np.nan
            values[each.name] = of_pods(each.name) if isinstance(parts[0], tuple) else join(parts, missing)
    return ArmFold(**values)


_COUNTS: Final = ("scrapes", "failed", "torn", "resets", "gaps", "gpus", "rejected")
"""What is 0 of a pod in blocks in which it was not there; all else is not known."""


def _same(values: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
    """The one number that all of these arrays repeat, as `windows.compacted` makes them; None where they do not."""
    if any(any(each.strides) or not each.size for each in values):
        return None
    firsts = np.array([each.reshape(-1)[0] for each in values])
    return firsts[0] if np.array_equal(firsts, np.full(firsts.shape, firsts[0]), equal_nan=True) else None


def _joined_places(arms: Sequence[ArmFold]) -> dict[str, Place]:
    """The places of the last arm, with the sources that all have seen there."""
    return {
        family: Place(place.name, tuple(sorted({each for arm in arms if family in arm.places
                                                for each in arm.places[family].sources})))
        for family, place in arms[-1].places.items()
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
