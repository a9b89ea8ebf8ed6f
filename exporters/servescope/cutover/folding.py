"""The increments of both arms, folded into arrays over pods and blocks: what every statistic of a judgement reads.

A metric is taken from one place of a deployment per arm, the outermost that shows it, or the one that was frozen. What
cannot be what it says is left out of its block and counted: a value that is not finite, a counter's gain below zero, a
histogram whose parts do not fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.contract.expressions import Matchers, matches
from servescope.contract.increments import BLOCK_MS, TargetIncrements
from servescope.contract.judged import JUDGED, PROMPT_SIZES, SPEED, SPEED_HISTOGRAM, JudgedMetric, Part
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.samples import Series
from servescope.cutover.plan import CutoverPlan

Floats = NDArray[np.float64]
ArmName = Literal["v1", "v2"]

PLACES: Final = ("frontend", "router process", "process", "engine")
"""Where in a deployment a metric is measured, outermost first. What a router's own process measures of its caches is
further out than what the engines behind it measure of theirs."""

TRAFFIC: Final[Mapping[str, tuple[Part, ...]]] = {
    "requests": (Part("requests_total"),),
    "ok": (Part("requests_total", (("outcome", ("ok",)),)),),
    "errors": (Part("requests_total", (("outcome", ("error",)),)),),
    "started": (Part("requests_started_total"),),
    "output_tokens": (Part("output_tokens_total"),),
    "preemptions": (Part("preemptions_total"),),
}
"""Counters that a judgement reads beside its metrics."""

_GAUGES: Final = ("queued_requests", "kv_cache_usage", "gpu_usage", "concurrent_requests")
_COUNT_TOLERANCE: Final = 1e-6


def place_of(layer: str, role: str, family: str) -> str:
    """Where a target of this layer and role measures a metric; bare instruments, of no known layer, are a process."""
    if layer in {"frontend", "engine"}:
        return layer
    routed = METRICS[family].component == "router" and role == "router"
    return "router process" if routed else "process"


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
    `above_level` by gauge. `counting` are by pod the labelled series that its process has counted with at the end.
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

    def end_ms(self) -> int:
        """Up to when it reaches."""
        return int(self.blocks[-1]) + BLOCK_MS if self.blocks.size else 0


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """Both arms over the same blocks."""

    v1: ArmFold
    v2: ArmFold
    edges: Mapping[str, tuple[float, ...]]

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
    former: Folded | None = None,
) -> Folded:
    """Both arms over the closed blocks from `start_ms` to `end_ms`, whole blocks within them.

    `places` and `edges` are those of a frozen plan. With `former`, what it has is taken from it, and `targets` need
    only have the blocks after it.
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
        folded = _fold_arm(_Reading(plan, compared), chosen, blocks, known, before)
        arms.append(folded if before is None else _joined(before, folded))
    return Folded(arms[0], arms[1], compared)


def read_families(plan: CutoverPlan) -> list[str]:
    """The metrics of the contract that judging a plan reads."""
    return sorted(_Reading(plan, {}).families())


# --- One arm ----------------------------------------------------------------------------------------------------------


class _Reading:
    """What is read of each target: the cells that are sums of its series, and the histograms whose buckets count."""

    def __init__(self, plan: CutoverPlan, edges: Mapping[str, tuple[float, ...]]) -> None:
        metrics = {metric.name: JUDGED[metric.name] for metric in plan.metrics}
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
        self.histograms[PROMPT_SIZES] = PROMPT_SIZES
        for name, parts in TRAFFIC.items():
            self.counters[name, "traffic"] = parts
        for name in _GAUGES:
            self.gauges[name, "level"] = (Part(name),)
        self.edges = edges
        self._rows: dict[tuple[Series, ...], _Rows] = {}

    def families(self) -> set[str]:
        """The metrics of the contract that are read."""
        parts = [part for cells in (self.counters, self.gauges) for each in cells.values() for part in each]
        return {SAMPLE_FAMILIES[part.series] for part in parts} | set(self.histograms)

    def rows(self, series: tuple[Series, ...]) -> _Rows:
        """Where these series have what is read; kept for the next target with the same ones."""
        found = self._rows.get(series)
        if found is None:
            found = self._rows[series] = _Rows(series)
        return found


class _Rows:
    """The rows of a target's series by name, and those of its histograms by edge."""

    def __init__(self, series: tuple[Series, ...]) -> None:
        self.by_name: dict[str, list[int]] = {}
        self.labels = [dict(each.labels) for each in series]
        for row, each in enumerate(series):
            self.by_name.setdefault(each.name, []).append(row)
        self._parts: dict[Part, list[int]] = {}
        self._edges: dict[str, list[tuple[float, list[int]]]] = {}

    def of(self, part: Part) -> list[int]:
        """The rows of one part of a sum."""
        found = self._parts.get(part)
        if found is None:
            rows = self.by_name.get(part.series, [])
            found = [row for row in rows if _has(self.labels[row], part.where)]
            self._parts[part] = found
        return found

    def edges(self, histogram: str) -> list[tuple[float, list[int]]]:
        """The rows of the buckets by edge, ascending, the infinite one last."""
        found = self._edges.get(histogram)
        if found is None:
            by_edge: dict[float, list[int]] = {}
            for row in self.by_name.get(f"{histogram}_bucket", []):
                edge = self.labels[row].get("le")
                if edge is not None:
                    by_edge.setdefault(float(edge), []).append(row)
            found = self._edges[histogram] = sorted(by_edge.items())
        return found


def _has(labels: Mapping[str, str], where: Matchers) -> bool:
    return not where or matches(labels, where)


def _fold_arm(
    reading: _Reading,
    targets: Sequence[TargetIncrements],
    blocks: NDArray[np.int64],
    known: Mapping[str, str],
    before: ArmFold | None,
) -> ArmFold:
    shape = (len(targets), blocks.size)
    places = _choose_places(reading, targets, known)
    unknown: Callable[[], Floats] = lambda: np.full(shape, np.nan)  # noqa: E731
    nothing: Callable[[], Floats] = lambda: np.zeros(shape)  # noqa: E731
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
    )  # fmt: skip
    sums = _Sums(blocks.size)
    counting = dict(before.counting) if before is not None else {}
    for pod, target in enumerate(targets):
        inside = (target.blocks >= blocks[0]) & (target.blocks < blocks[-1] + BLOCK_MS) if blocks.size else None
        if inside is None or not inside.any():
            continue
        columns = (target.blocks[inside] - blocks[0]) // BLOCK_MS
        process = _Process(target, inside, before)
        _read_target(reading, arm, pod, target, inside, columns, sums, process)
        counting[target.target_id] = process.counting(target.series)
    return replace(arm, distributions=sums.distributions(), counting=counting)


def _read_target(
    reading: _Reading,
    arm: ArmFold,
    pod: int,
    target: TargetIncrements,
    inside: NDArray[np.bool_],
    columns: NDArray[np.int64],
    sums: _Sums,
    process: _Process,
) -> None:
    every = bool(inside.all())
    gains = target.gains if every else target.gains[:, inside]
    levels = target.levels if every else target.levels[:, inside]
    above = target.above if every else target.above[:, inside]
    tallies = target.tallies
    arm.started[pod, columns] = target.started_ms[inside]
    for name in ("scrapes", "failed", "torn", "resets", "gaps"):
        getattr(arm, name)[pod, columns] = getattr(tallies, name)[inside]
    arm.present[pod, columns] = (tallies.scrapes[inside] + tallies.failed[inside]) > 0
    rows = reading.rows(target.series)
    for (name, side), parts in reading.counters.items():
        if all(_taken(arm, target, SAMPLE_FAMILIES[part.series]) for part in parts):
            value = _sum(rows, gains, parts, process)
            if value is not None:
                _cell(arm, name, side)[pod, columns] = value
    for histogram, name in reading.histograms.items():
        if _taken(arm, target, histogram):
            _read_histogram(reading, arm, pod, columns, (histogram, name), rows, gains, sums)

    gauge_rows = reading.rows(target.gauges)
    for (name, side), parts in reading.gauges.items():
        if not all(_taken(arm, target, part.series) for part in parts):
            continue
        found = [gauge_rows.of(part) for part in parts]
        if all(found):
            values = sum(part.factor * levels[row].sum(axis=0) for part, row in zip(parts, found, strict=True))
            if side == "level":
                arm.levels[name][pod, columns] = values / len(found[0]) if name == "gpu_usage" else values
                arm.above_level[name][pod, columns] = above[found[0]].max(axis=0)
            else:
                _cell(arm, name, side)[pod, columns] = values
    devices = gauge_rows.by_name.get("gpu_usage", [])
    if devices:
        arm.gpus[pod, columns] = np.isfinite(levels[devices]).sum(axis=0)


def _taken(arm: ArmFold, target: TargetIncrements, family: str) -> bool:
    place = arm.places.get(family)
    return place is not None and place.name == place_of(target.layer, target.identity.role, family)


def _cell(arm: ArmFold, name: str, side: str) -> Floats:
    if side == "traffic":
        return arm.traffic[name]
    return arm.metrics[name].above if side == "above" else arm.metrics[name].below


class _Process:
    """When a target's process is another than before, and which labelled series it has counted with.

    Of labelled series beside others that do count, those that have not begun to are 0: their first event has not
    happened. One that did count in the same process, and is not there now, is not known.
    """

    def __init__(self, target: TargetIncrements, inside: NDArray[np.bool_], before: ArmFold | None) -> None:
        started, resets = target.started_ms[inside], target.tallies.resets[inside]
        former = np.nan
        self._former: frozenset[Series] = frozenset()
        if before is not None and target.target_id in before.pods and before.blocks.size:
            former = float(before.started[before.pods.index(target.target_id), -1])
            self._former = before.counting.get(target.target_id, frozenset())
        earlier = np.concatenate([[former], started[:-1]])
        moved = (started != earlier) & np.isfinite(started) & np.isfinite(earlier)
        self._number = np.cumsum(moved | (resets > 0))
        self._series = target.series
        self._counted: dict[int, bool] = {}

    def begun(self, rows: Sequence[int], gains: Floats) -> Floats:
        """The gains of the rows, with zeros where a series has not begun."""
        values = gains[list(rows)]
        finite = np.isfinite(values)
        first = np.array([[0 if self._series[row] in self._former else -1] for row in rows])
        last = np.maximum(np.maximum.accumulate(np.where(finite, self._number, -1), axis=1), first)
        self._counted |= dict(zip(rows, (last[:, -1] == self._number[-1]).tolist(), strict=True))
        if finite.all():
            return values
        unborn = np.isnan(values) & (last < self._number) & finite.any(axis=0)
        return np.where(unborn, 0.0, values)

    def counting(self, series: tuple[Series, ...]) -> frozenset[Series]:
        """The labelled series that the process has counted with, at the end."""
        return frozenset(series[row] for row, counted in self._counted.items() if counted)


def _sum(rows: _Rows, gains: Floats, parts: Sequence[Part], process: _Process) -> Floats | None:
    """The sum of the parts per block, NaN where one is not known; None where the target does not have them."""
    total = np.zeros(gains.shape[1])
    for part in parts:
        family = rows.by_name.get(part.series, [])
        if not family:
            return None
        if len(family) == 1 and not part.where:
            values = gains[family[0]]
            bad = ~(values >= 0.0) | ~np.isfinite(values)
            total = total + part.factor * np.where(bad, np.nan, values)
            continue
        counted = process.begun(family, gains)
        known = np.isfinite(counted).all(axis=0) & (counted >= 0.0).all(axis=0)
        chosen = rows.of(part)
        inside = np.isin(family, chosen)
        total = total + part.factor * np.where(known, counted[inside].sum(axis=0), np.nan)
    return total


def _read_histogram(
    reading: _Reading,
    arm: ArmFold,
    pod: int,
    columns: NDArray[np.int64],
    which: tuple[str, str],
    rows: _Rows,
    gains: Floats,
    sums: _Sums,
) -> None:
    histogram, name = which
    edges = rows.edges(histogram)
    counts, totals = (rows.by_name.get(f"{histogram}{suffix}", []) for suffix in ("_count", "_sum"))
    if not counts or not totals:
        return
    count, total = gains[counts].sum(axis=0), gains[totals].sum(axis=0)
    finite = [each for each in edges if np.isfinite(each[0])]
    cumulative = _stack(gains, finite)
    infinite = _stack(gains, [each for each in edges if not np.isfinite(each[0])])
    tolerance = _COUNT_TOLERANCE * (1.0 + np.abs(count))
    read = np.isfinite(count) & np.isfinite(total) & np.isfinite(cumulative).all(axis=0)
    fits = (count >= 0.0) & (total >= 0.0)
    if finite:
        ladder = np.vstack([cumulative, count[None]])
        fits &= (cumulative[0] >= 0.0) & (np.diff(ladder, axis=0) >= -tolerance).all(axis=0)
    if infinite.size:
        fits &= np.abs(infinite[0] - count) <= tolerance
        read &= np.isfinite(infinite[0])
    # Observations whose sum is zero, or a sum without any, are no latency and no number of tokens.
    fits &= (total > 0.0) == (count > 0.0)
    arm.torn[pod, columns] += (np.isfinite(count) | np.isfinite(total)) & ~(read & fits)
    good = read & fits
    counted = arm.metrics.get(f"{SPEED} histogram" if histogram == SPEED else name)
    if counted is not None:
        counted.above[pod, columns] = np.where(good, total, np.nan)
        counted.below[pod, columns] = np.where(good, count, np.nan)
    if not finite:
        return
    sums.add(histogram, tuple(edge for edge, _ in finite), columns, np.where(good, np.vstack([cumulative, count]), 0.0))
    compared = reading.edges.get(name, ())
    at = {edge: index for index, (edge, _) in enumerate(finite)}
    for number, edge in enumerate(compared):
        if edge in at:
            arm.slow[name][pod, number, columns] = np.where(good, count - cumulative[at[edge]], np.nan)


def _stack(gains: Floats, edges: Sequence[tuple[float, list[int]]]) -> Floats:
    if all(len(rows) == 1 for _, rows in edges):
        return gains[[rows[0] for _, rows in edges]]
    return np.array([gains[rows].sum(axis=0) for _, rows in edges]).reshape(len(edges), gains.shape[1])


class _Sums:
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
    found: dict[str, list[tuple[int, int, str]]] = {}
    wanted = reading.families()
    for target in targets:
        if not target.blocks.size:
            continue
        families = {SAMPLE_FAMILIES.get(each.name, "") for each in (*target.series, *target.gauges)} & wanted
        for family in families:
            place = place_of(target.layer, target.identity.role, family)
            found.setdefault(family, []).append((int(target.blocks[0]), PLACES.index(place), target.source))
    chosen = {}
    for family in wanted:
        seen = found.get(family, [])
        name = known.get(family)
        if name is None and seen:
            name = PLACES[min(seen)[1]]
        if name is not None:
            sources = {source for _, place, source in seen if PLACES[place] == name and source}
            chosen[family] = Place(name, tuple(sorted(sources)))
    return chosen


# --- What comes later -------------------------------------------------------------------------------------------------


def _joined(before: ArmFold, after: ArmFold) -> ArmFold:
    """One arm over the blocks of both; a pod that one of them does not have is not known there."""
    pods = tuple(dict.fromkeys((*before.pods, *after.pods)))
    deployments = dict(zip(after.pods, after.deployments, strict=True)) | dict(
        zip(before.pods, before.deployments, strict=True)
    )
    rows = [np.array([pods.index(pod) for pod in arm.pods], dtype=np.int64) for arm in (before, after)]
    sizes = before.blocks.size, after.blocks.size

    def join(one: NDArray[np.float64], other: NDArray[np.float64], missing: float) -> Floats:
        middle = one.shape[1:-1]
        joined = np.full((len(pods), *middle, sum(sizes)), missing)
        joined[rows[0], ..., : sizes[0]] = one
        joined[rows[1], ..., sizes[0] :] = other
        return joined

    values: dict[str, object] = {}
    for field in fields(ArmFold):
        one, other = getattr(before, field.name), getattr(after, field.name)
        if field.name in _COUNTS:
            values[field.name] = join(one, other, 0.0)
        elif field.name in {"slow", "traffic", "levels", "above_level"}:
            values[field.name] = {name: join(one[name], other[name], np.nan) for name in one}
    return replace(
        after,
        pods=pods,
        deployments=tuple(deployments[pod] for pod in pods),
        blocks=np.concatenate([before.blocks, after.blocks]),
        present=join(before.present.astype(float), after.present.astype(float), 0.0) > 0.0,
        started=join(before.started, after.started, np.nan),
        metrics={
            name: PodSums(
                join(one.above, after.metrics[name].above, np.nan), join(one.below, after.metrics[name].below, np.nan)
            )
            for name, one in before.metrics.items()
        },
        distributions=_joined_distributions(before, after),
        places={
            family: Place(
                place.name,
                tuple(sorted({*place.sources, *(before.places[family].sources if family in before.places else ())})),
            )
            for family, place in after.places.items()
        },
        counting=after.counting,
        **values,  # type: ignore[arg-type]
    )


_COUNTS: Final = ("scrapes", "failed", "torn", "resets", "gaps", "gpus")


def _joined_distributions(before: ArmFold, after: ArmFold) -> dict[str, BucketCounts]:
    joined = {}
    for name in {*before.distributions, *after.distributions}:
        parts = [(arm.distributions.get(name), arm.blocks.size) for arm in (before, after)]
        edges = tuple(sorted(set.intersection(*(set(each.edges) for each, _ in parts if each is not None))))
        counts = [np.zeros((len(edges) + 1, size)) if each is None else _at(each, edges) for each, size in parts]
        joined[name] = BucketCounts(edges, np.concatenate(counts, axis=1))
    return joined


def _at(distribution: BucketCounts, edges: tuple[float, ...]) -> Floats:
    cumulative = np.cumsum(distribution.counts, axis=0)
    chosen = cumulative[[*(distribution.edges.index(edge) for edge in edges), len(distribution.edges)]]
    return np.diff(chosen, axis=0, prepend=0.0)
