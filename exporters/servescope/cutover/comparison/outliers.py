"""A replica that alone differs from the others of its arm: what it shows is its own, and not its arm's.

The noise of few replicas is not normal: somebody else's work slows one of them for an hour, and a third of an arm is
slow. So each replica is compared with the others of its arm over the same blocks. The one that differs most, beyond the
margin and beyond what replicas differ by of themselves, is left out of its arm in these blocks, in either arm and in
either direction alike. What two replicas show is their arm's. Everything at a block follows from the blocks up to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.judged import JudgedMetric
from servescope.cutover.evidence.coverage import HOUR_BLOCKS, trailing_sum
from servescope.cutover.plan.plan import MetricPlan, Noise
from servescope.cutover.statistics.pieces import compare_pieces
from servescope.cutover.statistics.sequences import Floats

TIMED: Final = frozenset({"mean", "ratio"})
"""The kinds of metrics in which replicas are compared: those of what takes time."""
WINDOWS: Final = (1, 3, 9)
"""Blocks over which a replica is compared with the others: the shortest finds what is large at once, the longest what
is small."""
SURE: Final = 4.5
"""Standard errors from which a difference is no chance: every replica is looked at after every block."""
LEAST: Final = 20.0
"""Observations, or seconds of decoding, of a replica within a window below which their mean is too rough."""
_OVER: Final = 7.0
"""The logarithm of the likelihood from which a replica is taken to be like the others again."""
_PRIOR: Final = 24.0
_SEEN_BLOCKS: Final = 24
_LEAST_SEEN: Final = 12.0
_TYPICAL: Final = 0.82218
"""The mean of the root of the size of a standard normal variable."""


@dataclass(frozen=True, slots=True)
class ReplicaNoise:
    """What replicas of one arm differ by of themselves in one metric, in natural logarithms.

    `cv2` is the squared coefficient of variation of one observation, None where it is to be estimated; `drift` the
    variance of a five-minute block beyond that, autocorrelation included; `lasting` that which never averages out.
    """

    cv2: float | None
    drift: float
    lasting: float


def replica_noise(noise: Noise, judged: JudgedMetric) -> ReplicaNoise:
    """What a frozen plan says of single replicas."""
    drift = noise.tau2 / noise.spread if noise.spread > 0.0 else 0.0
    return ReplicaNoise(noise.cv2 if judged.kind == "mean" else None, drift, noise.pod_tau2)


@dataclass(frozen=True, slots=True, eq=False)
class Outliers:
    """Where replicas of an arm differ from the others in a metric, (P, B) each, 0 where they do not.

    `scores` are by how many standard errors, `costs` the logarithms of their means ÷ the others', or the negative where
    higher is better: above 0 where a replica is worse. `at_once` is where a block alone shows that a replica is worse.
    """

    scores: Floats
    costs: Floats
    at_once: NDArray[np.bool_]


def find_outliers(
    above: Floats, below: Floats, noise: ReplicaNoise, metric: MetricPlan, *, several: bool = False
) -> Outliers:
    """The outliers of one arm in a metric, from what each replica counted per block, (P, B), 0 where not known.

    Less than the metric's margin does not matter. A replica that was found stays one until what it counts later is
    likelier of a replica like the others: one of which nothing is known any more stays what it was. Only the one that
    differs most in a block is found there, unless `several` are wanted.
    """
    scores, costs = np.zeros(above.shape), np.zeros(above.shape)
    at_once = np.zeros(above.shape, dtype=np.bool_)
    size = above.shape[1]
    if above.shape[0] < 2 or not size:
        return Outliers(scores, costs, at_once)
    sign, furthest = -1.0 if metric.better == "higher" else 1.0, 1.0 + (metric.margin or 0.0)

    def look(columns: slice, before: _Before) -> tuple[_Found, _Before]:
        return _look(above, below, columns, before, noise, sign, furthest, several=several)

    before = _Before((np.zeros((above.shape[0], HOUR_BLOCKS + _LEAD)),) * 2, np.zeros((2, 0)))
    if several:
        pieces = [look(slice(0, size), before)[0]]
    else:
        pieces = compare_pieces(look, (above, below), ("outliers", noise, sign, furthest), _AT_ONCE, before)
    for each in pieces:
        scores[each.cells], costs[each.cells], at_once[each.cells] = each.scores, each.costs, each.at_once
    rows = np.unique(np.concatenate([each.cells[0] for each in pieces]))
    if rows.size:
        totals = np.concatenate([each.totals for each in pieces], axis=2)
        windows = [
            _window(span, _running(above[rows]), _running(below[rows]), below[rows] > 0.0, 0, of_all)
            for span, of_all in zip(WINDOWS, totals, strict=True)
        ]
        variation = np.concatenate([each.variation for each in pieces])
        found = _until_over(scores[rows], costs[rows], windows, sign, variation, noise)
        scores[rows], costs[rows] = found
    return Outliers(scores, costs, at_once)


_Cells = tuple[NDArray[np.int64], ...]
_AT_ONCE: Final = 24
"""Blocks that are looked at together, and those that are complete once."""
_LEAD: Final = 2
"""Blocks before those that are looked at with them: numpy adds the numbers of one block alone in another order."""


@dataclass(frozen=True, slots=True, eq=False)
class _Before:
    """What is needed of the blocks before: the latest running `sums`, (P, `HOUR_BLOCKS` + `_LEAD`) each, and how much
    all replicas together changed by from block to block with how many did, (2, B − 1)."""

    sums: tuple[Floats, Floats]
    steps: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """The outliers of k blocks: where they are, with their `scores`, `costs` and whether they are found `at_once`; of
    each window the `totals` of all replicas (`_totals`), (3, 3, k), and the `variation`, (k,)."""

    cells: _Cells
    scores: Floats
    costs: Floats
    at_once: NDArray[np.bool_]
    totals: Floats
    variation: Floats


def _look(
    above: Floats, below: Floats, columns: slice, before: _Before, noise: ReplicaNoise, sign: float, furthest: float,
    *, several: bool,
) -> tuple[_Found, _Before]:  # fmt: skip
    """The outliers that show in some of the blocks, and what the next ones need."""
    lead, first = min(columns.start, _LEAD), columns.start
    above_sums, below_sums = (
        np.concatenate([past, _continued(past, values[:, columns])], axis=1)
        for past, values in zip(before.sums, (above, below), strict=True)
    )
    with_lead = slice(first - lead, columns.stop)
    steps = np.concatenate(
        [before.steps, _steps(above[:, with_lead], below[:, with_lead])[:, max(0, lead - 1) :]], axis=1
    )
    variation, counting = _variation(steps, noise.cv2)[columns].copy(), below[:, columns] > 0.0
    width = counting.shape[1] + lead
    totals = np.array([_totals(*_gained(above_sums, below_sums, span, width))[:, lead:] for span in WINDOWS])
    windows = [
        _window(span, above_sums, below_sums, counting, first, of_all)
        for span, of_all in zip(WINDOWS, totals, strict=True)
    ]
    scores, costs, at_once = _outliers_now(windows, sign, furthest, variation, noise)
    if not several:
        # That the others differ from the one that differs most is its doing, and so is it for as long as a longer
        # window remembers another one.
        surest = np.where(at_once.any(axis=0), at_once, scores >= scores.max(axis=0))
        scores, costs = scores * surest, costs * surest
    rows, blocks = np.nonzero(scores)
    shown = scores[rows, blocks], costs[rows, blocks], at_once[rows, blocks]
    found = _Found((rows, blocks + first), *shown, totals, variation)
    own, count = (each[:, -HOUR_BLOCKS - _LEAD :].copy() for each in (above_sums, below_sums))
    return found, _Before((own, count), steps)


def _outliers_now(
    windows: Sequence[_Window], sign: float, furthest: float, variation: Floats, noise: ReplicaNoise
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """The scores and costs of each replica in each block, as far as it shows, and where the block alone shows them."""
    scores, costs = np.zeros(windows[0].times.shape), np.zeros(windows[0].times.shape)
    at_once = np.zeros(scores.shape, dtype=np.bool_)
    for number, window in enumerate(windows):
        # Few differ by the margin, and by what is no drift: the rest is computed of these only.
        least = max(furthest, math.exp(SURE * math.sqrt(noise.drift / window.size + noise.lasting)))
        cells = np.nonzero(((window.times > least) | (window.times * least < 1.0)) & (window.count >= LEAST))
        if not cells[0].size:
            continue
        times = window.at(cells)
        # What a shorter window shows no more is over.
        late = [np.where(times > 1.0, each, 1.0 / each) for each in (shorter.at(cells) for shorter in windows[:number])]
        still = np.isfinite(times) & np.all([~(each < furthest**0.5) for each in late], axis=0)
        cells = cells[0][still], cells[1][still]
        cost = sign * np.log(times[still])
        score = np.abs(cost) / np.sqrt(window.variances(cells, variation, noise))
        # Of two replicas it is the slower one: somebody else's work makes none faster.
        alone = (window.neighbours[cells[1]] > 1.0) | (cost > 0.0)
        sure = (score >= SURE) & (score > scores[cells]) & alone
        cells = cells[0][sure], cells[1][sure]
        scores[cells], costs[cells] = score[sure], cost[sure]
        if window.size == WINDOWS[0]:
            at_once = (costs > 0.0) & (scores >= scores.max(axis=0))
    return scores, costs, at_once


def _running(values: Floats) -> Floats:
    """The sums up to each block, after as many zeros as the longest span of blocks: (P, `HOUR_BLOCKS` + B)."""
    return np.concatenate([np.zeros((values.shape[0], HOUR_BLOCKS)), np.cumsum(values, axis=1)], axis=1)


def _continued(past: Floats, values: Floats) -> Floats:
    """The running sums of values that follow others."""
    return np.asarray(np.cumsum(np.concatenate([past[:, -1:], values], axis=1), axis=1)[:, 1:])


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """Each replica against the others over the `size` blocks up to each, (P, B): `times` is its mean ÷ theirs.

    Of how little a quotient is does not matter to it, and is looked up where it does (`at`). `count` and `others` are
    what its means are over, `counting` is where it counted in the last block, `neighbours` are the others, (B,), and
    `lasting` is over how many blocks it is, (B,).
    """

    size: int
    times: Floats
    count: Floats
    others: Floats
    counting: NDArray[np.bool_]
    neighbours: Floats
    lasting: NDArray[np.int64]

    def at(self, cells: _Cells) -> Floats:
        """The quotients at these replicas and blocks, NaN where either mean is of too little, or of nothing new."""
        enough = np.minimum(self.count[cells], self.others[cells]) >= LEAST
        times = self.times[cells]
        return np.where(enough & self.counting[cells] & (times > 0.0) & (times < np.inf), times, np.nan)

    def variances(self, cells: _Cells, variation: Floats, noise: ReplicaNoise) -> Floats:
        """The variances of the logarithms of the quotients at these replicas and blocks."""
        blocks = cells[1]
        sampled = variation[blocks] * (1.0 / self.count[cells] + 1.0 / self.others[cells])
        drift = noise.drift / self.lasting[blocks] + noise.lasting
        return np.asarray(sampled + drift * (1.0 + 1.0 / self.neighbours[blocks]))


def _gained(above: Floats, below: Floats, size: int, blocks: int) -> tuple[Floats, Floats]:
    """What was counted over `size` blocks up to each of the latest, from running sums."""
    own, count = (each[:, -blocks:] - each[:, -blocks - size : -size] for each in (above, below))
    return own, count


def _totals(own: Floats, count: Floats) -> Floats:
    """What all replicas counted together above and below the line, and how many did, (3, B)."""
    return np.array([own.sum(axis=0), count.sum(axis=0), (count > 0.0).sum(axis=0)])


def _window(
    size: int, above: Floats, below: Floats, counting: NDArray[np.bool_], first: int, totals: Floats
) -> _Window:
    """The window of this size, an hour at most, from the running sums of what is above and below the line.

    The first of the blocks is the `first` of all, and `totals` are those of all replicas.
    """
    blocks = counting.shape[1]
    own, count = _gained(above, below, size, blocks)
    whole, every, serving = totals
    rest, others = whole - own, every - count
    with np.errstate(divide="ignore", invalid="ignore"):
        times = own * others / (rest * count)
    lasting = np.minimum(size, np.arange(first, first + blocks) + 1)
    return _Window(size, times, count, others, counting, np.maximum(1.0, serving - 1.0), lasting)


def _until_over(
    scores: Floats, costs: Floats, windows: Sequence[_Window], sign: float, variation: Floats, noise: ReplicaNoise
) -> tuple[Floats, Floats]:
    """The scores and costs of each outlier from where it is found until it is over."""
    every = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    cells = np.broadcast_to(np.arange(len(scores))[:, None], scores.shape), every
    at = np.maximum.accumulate(np.where(scores > 0.0, every, 0), axis=1)
    as_found = np.take_along_axis(costs, at, axis=1)
    now = np.array([sign * np.log(each.at(cells)) for each in windows])
    with np.errstate(divide="ignore"):
        variances = np.array([each.variances(cells, variation, noise) for each in windows])
    # The logarithm of how much likelier it is that the replica is like the others than that it differs as it did.
    likelier = as_found * (0.5 * as_found - now) / variances
    # A long window that has only begun to differ does not end what a short one has found.
    shortest = np.where(np.isnan(likelier[0]), np.where(np.isnan(likelier[1]), likelier[2], likelier[1]), likelier[0])
    over = (shortest > 0.0) & (likelier > _OVER).any(axis=0)
    latest = np.maximum.accumulate(np.where((scores > 0.0) & ~over, every, -1), axis=1)
    still = latest > np.maximum.accumulate(np.where(over, every, -1), axis=1)
    current = np.nan_to_num(np.sign(as_found) * now / np.sqrt(variances))
    best = current.argmax(axis=0)[None]
    scores, costs = (np.take_along_axis(each, best, axis=0)[0] for each in (current, now))
    # Where nothing is known, it is as it was known last.
    known = np.maximum.accumulate(np.where(scores > 0.0, every, 0), axis=1)
    return (
        np.where(still, np.take_along_axis(scores, known, axis=1), 0.0),
        np.where(still, np.take_along_axis(costs, known, axis=1), 0.0),
    )


def _steps(above: Floats, below: Floats) -> Floats:
    """How much replicas change by from each block to the next, of which the mean root is taken, so that the few changes
    at the ends of an episode do not count much; and of how many that is known: sums of all, (2, B − 1)."""
    known = (below >= LEAST / HOUR_BLOCKS) & (above > 0.0)
    inverse = 1.0 / np.where(known, below, 1.0)
    level = np.log(np.where(known, above, 1.0) * inverse)
    both = known[:, 1:] & known[:, :-1]
    steps = np.sqrt(np.abs(np.diff(level, axis=1)) / np.sqrt(inverse[:, 1:] + inverse[:, :-1]))
    return np.array([np.where(both, steps, 0.0).sum(axis=0), both.sum(axis=0)])


def _variation(steps: Floats, cv2: float | None) -> Floats:
    """The squared coefficient of variation of one unit of `below`, judged by the blocks before each, (B,).

    From the `steps`; never below `cv2`; infinite while nothing shows it.
    """
    size = steps.shape[1] + 1
    total, seen = trailing_sum(np.concatenate([np.zeros((2, 2)), steps], axis=1)[:, :size], _SEEN_BLOCKS)
    if cv2 is None:
        typical = np.divide(total, seen, out=np.full(size, np.inf), where=seen >= _LEAST_SEEN)
        return np.asarray((typical / _TYPICAL) ** 4)
    typical = (total + _PRIOR * _TYPICAL * cv2**0.25) / (seen + _PRIOR)
    return np.asarray(np.maximum(cv2, (typical / _TYPICAL) ** 4))


# --- One arm over all metrics -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Alone:
    """The replica of an arm that alone is worse than the others in a metric, after each block: (B,) each.

    `replica` is its index in `names`, −1 where there is none, and `cost` the logarithm of by how much it is worse.
    """

    names: tuple[str, ...]
    replica: NDArray[np.int64]
    cost: Floats

    def named(self, block: int) -> str:
        """Who it is after a block, and how much worse: `v2-1 is × 1.6 slower`."""
        return f"{self.names[self.replica[block]]} is × {math.exp(self.cost[block]):.2g} slower"


@dataclass(frozen=True, slots=True, eq=False)
class ArmOutliers:
    """The outliers of one arm: `kept` is where a replica is not left out, (P, B), `alone` by metric who is worse."""

    kept: NDArray[np.bool_]
    alone: Mapping[str, Alone]


def arm_outliers(found: Mapping[str, Outliers], present: NDArray[np.bool_], names: tuple[str, ...]) -> ArmOutliers:
    """The outliers of an arm from those of each metric; a replica that is not `present` any more, (P, B), is none.

    At most one replica is left out of a block, of all metrics alike: the one that any of them is surest of. Who has
    been one for long is not exchanged for who looks like one for a block, but for who is slow in the block itself:
    somebody else's work moves from one replica to another.
    """
    kept = np.ones(present.shape, dtype=np.bool_)
    if not found or not names:
        return ArmOutliers(kept, {})
    # Most never are one.
    ever = np.flatnonzero(np.any([each.scores.any(axis=1) for each in found.values()], axis=0))
    ever = ever if ever.size else np.zeros(1, dtype=np.int64)
    scores = np.array([each.scores[ever] * present[ever] for each in found.values()])
    at_once = np.max(scores * np.array([each.at_once[ever] for each in found.values()]), axis=0)
    lasting = np.max((scores > 0.0) * trailing_sum(scores, WINDOWS[-1]), axis=0)
    surest = np.where(at_once.any(axis=0), at_once, lasting)
    first, every = surest.argmax(axis=0), np.arange(present.shape[1])
    kept[ever[first], every] = surest[first, every] <= 0.0
    alone = {}
    for (name, each), score in zip(found.items(), scores, strict=True):
        worse = np.where(each.costs[ever] > 0.0, score, 0.0)
        first = worse.argmax(axis=0)
        replica = np.where(worse[first, every] > 0.0, ever[first], -1)
        alone[name] = Alone(names, replica, each.costs[ever[first], every])
    return ArmOutliers(kept, alone)


def with_proving(alone: Alone, proving: NDArray[np.int64], above: Floats, below: Floats, metric: MetricPlan) -> Alone:
    """The same, and where a replica proves harm alone, (B,), that one for as long as it is worse within the hour."""
    if not (proving >= 0).any():
        return alone
    every = np.arange(proving.size)
    sums = _running(above), _running(below)
    totals = _totals(*_gained(*sums, HOUR_BLOCKS, proving.size))
    times = _window(HOUR_BLOCKS, *sums, below > 0.0, 0, totals).at((proving, every))
    cost = np.log(times) * (-1.0 if metric.better == "higher" else 1.0)
    more = (alone.replica < 0) & (proving >= 0) & (cost > 0.0)
    return replace(alone, replica=np.where(more, proving, alone.replica), cost=np.where(more, cost, alone.cost))


# --- v1's past --------------------------------------------------------------------------------------------------------


def usual_of_past(
    timed: Sequence[tuple[Floats, Floats, ReplicaNoise, MetricPlan]], present: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Where v1's replicas were like each other in a past, (P, B), by what each metric counted and varies by there.

    A past is known at once: an outlier is looked for from both ends, and all there are are left out. A replica that
    differs for most of the past always does, and is none.
    """
    usual = np.ones(present.shape, dtype=np.bool_)
    for above, below, noise, metric in timed:
        forth = find_outliers(above, below, noise, metric, several=True).scores
        back = find_outliers(above[:, ::-1], below[:, ::-1], noise, metric, several=True).scores[:, ::-1]
        usual &= (forth <= 0.0) & (back <= 0.0)
    always = (present & ~usual).sum(axis=1) > _MOSTLY * present.sum(axis=1)
    return np.asarray(usual | always[:, None])


_MOSTLY: Final = 0.5


def past_noise(above: Floats, below: Floats, cv2: float | None) -> ReplicaNoise:
    """What replicas differ by of themselves, from a past that may have outliers: those change it little.

    From the hours of each replica against the others': what an hour differs from the one before is drift, what the
    whole past differs by lasts.
    """
    hours = above.shape[1] // HOUR_BLOCKS
    shape = (above.shape[0], hours, HOUR_BLOCKS)
    own, count = (each[:, : hours * HOUR_BLOCKS].reshape(shape).sum(axis=2) for each in (above, below))
    hourly, known = _differences(own, count)
    both = known[:, 1:] & known[:, :-1]
    # A replica against all others differs by its own variance and a share of theirs, an hour from the last by twice it.
    spread = above.shape[0] / max(1, above.shape[0] - 1)
    changed = _typical2(np.diff(hourly, axis=1)[both]) / 2.0 / spread
    sampled = cv2 * float(np.mean(1.0 / count[known])) if cv2 is not None and known.any() else 0.0
    whole, seen = _differences(above.sum(axis=1, keepdims=True), below.sum(axis=1, keepdims=True))
    return ReplicaNoise(cv2, HOUR_BLOCKS * max(0.0, changed - sampled), _typical2(whole[seen]) / spread)


def _differences(own: Floats, count: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """The logarithm of each replica's mean ÷ that of the others, and where it is known."""
    rest, others = own.sum(axis=0) - own, count.sum(axis=0) - count
    known = (own > 0.0) & (rest > 0.0) & (count > 0.0) & (others > 0.0)
    mine, theirs = np.where(known, own * others, 1.0), np.where(known, rest * count, 1.0)
    return np.log(mine / theirs), known


def _typical2(values: Floats) -> float:
    """The variance of values around zero, of which a few may be far off."""
    return float((np.sqrt(np.abs(values)).mean() / _TYPICAL) ** 4) if values.size else 0.0
