"""What a ratio is of: the blocks in which both arms were compared, by spans between which the effect has changed.

A running estimate holds for a stage only while the effect does. Bounds that start at every block, each at its part of
the level, hold together; where those up to a block exclude those since, the effect has changed there (Shekhar and
Ramdas 2023, arXiv 2309.09111). Each span has its own estimate and its own limits, so that no limit is of other blocks
than its estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.comparison.clusters import Clustered
from servescope.cutover.statistics import counts
from servescope.cutover.statistics.effects import BlockEffects, merged_sums
from servescope.cutover.statistics.sequences import EffectPath, Floats, half_width, lasting_information

_EQUAL_STARTS: Final = 288
"""Blocks, a day of them, from which bounds begin at equal parts of the level; each day has half of what is left."""
_MOST_SPANS: Final = 6
_LEAST_BLOCKS: Final = 3
"""Blocks that a span has at least: one in which the effect was about to change is none of its own."""
_SHORTER: Final = 3.0
"""A span that began late is tuned to a third of the information of the whole stage, as evidence of harm is."""


@dataclass(frozen=True, slots=True)
class Span:
    """Compared blocks in a row, [`first`, `end`) of a stage, with the estimate of the cost in them and its limits.

    `cost`, `low` and `high` are logarithms, NaN and infinite where there is none. `v1` is v1's level in the metric's
    unit, of the same blocks with the same weights as the estimate. `counts` and `events` are v1's and v2's sums of what
    is counted among, and of events; None of what is no event. `blocks` are how many five-minute blocks were compared.
    """

    first: int
    end: int
    cost: float
    low: float
    high: float
    v1: float
    counts: tuple[float, float]
    events: tuple[float, float] | None
    blocks: int


class Comparison(Protocol):
    """The compared blocks of a metric, of which each method takes the first `end` five-minute blocks of the stage."""

    def whole(self, end: int) -> Span:
        """All of them."""

    def parts(self, end: int) -> tuple[Span, ...]:
        """The spans between which the effect is proven to have changed, oldest first; none where it has not."""

    def worst(self, end: int) -> tuple[Span, Span] | None:
        """Those up to the block since when the lower limit of the cost is highest, and those since; None where that is
        the first."""


@dataclass(frozen=True, slots=True, eq=False)
class Widened:
    """A comparison whose whole has at least these limits after each block, (B,); NaN where it keeps its own."""

    inner: Comparison
    low: Floats
    high: Floats

    def whole(self, end: int) -> Span:
        """All of them, with the wider limits."""
        span = self.inner.whole(end)
        low, high = float(np.fmin(span.low, self.low[end - 1])), float(np.fmax(span.high, self.high[end - 1]))
        return replace(span, low=low, high=high)

    def parts(self, end: int) -> tuple[Span, ...]:
        """As they are."""
        return self.inner.parts(end)

    def worst(self, end: int) -> tuple[Span, Span] | None:
        """As it is."""
        return self.inner.worst(end)


def harmful_spans(compared: Comparison, end: int, bounds: Sequence[float]) -> tuple[Span, tuple[Span, ...]]:
    """The span that shows a cost above the first of the `bounds` that any shows, with all where the effect has changed.

    It is the latest whose lower limit is above the bound, else that of the highest lower limit whose estimate is; and
    all that was compared where there is none. What proves nothing is divided only where the effect is proven to have
    changed, or where all of it together does not cost as much.
    """
    whole, parts = compared.whole(end), compared.parts(end)
    for bound in bounds:
        costly: list[tuple[Span, tuple[Span, ...]]] = []
        for found in _divisions(compared, whole, parts, end):
            above = [(each, found if len(found) > 1 else ()) for each in found if each.cost > bound]
            proven = [each for each in above if each[0].low > bound]
            if proven:
                return proven[-1]
            costly = costly or above
        if costly:
            return max(costly, key=lambda each: each[0].low)
    return whole, parts


def _divisions(compared: Comparison, whole: Span, parts: tuple[Span, ...], end: int) -> Iterator[tuple[Span, ...]]:
    yield parts or (whole,)
    yield compared.worst(end) or ()


@dataclass(frozen=True, slots=True)
class SpanLevels:
    """How often the lower and the upper limits of a stage may be wrong, and the information they are tuned to."""

    low: float
    high: float
    wanted: float


def _start_weight(block: int) -> float:
    """The part of the level that bounds from a block on have."""
    return float(_start_weights(np.array([block]))[0])


def _start_weights(blocks: NDArray[np.int64]) -> Floats:
    return np.asarray(np.exp2(-1.0 - blocks // _EQUAL_STARTS) / _EQUAL_STARTS)


# --- Means and ratios -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class EffectComparison:
    """Compared blocks whose effects are averaged by precision: costs, of K merged blocks, with their `variances`.

    `path` is the running estimate of the stage with its lower and upper `limits`, (K,), and the variance `persistent`
    that time does not average out, (K,).
    `sums` are v1's and v2's sums above and below the line by five-minute block, (B,) each. `changes` is False where the
    noise is not known well enough to claim a change.
    """

    blocks: BlockEffects
    variances: Floats
    persistent: Floats
    path: EffectPath
    limits: tuple[Floats, Floats]
    sums: tuple[tuple[Floats, Floats], tuple[Floats, Floats]]
    levels: SpanLevels
    changes: bool

    def whole(self, end: int) -> Span:
        """All of them, with the limits of the stage."""
        known = self._known(end)
        if not known or not self.path.information[known - 1] > 0.0:
            return self._span(0, known, (math.nan, -math.inf, math.inf))
        estimate, low, high = (float(each[known - 1]) for each in (self.path.estimate, *self.limits))
        return self._span(0, known, (estimate, low, high))

    def parts(self, end: int) -> tuple[Span, ...]:
        """Found one after the other, each within what the one before has left."""
        known = self._known(end)
        found: list[tuple[int, int]] = []
        first = 0
        while self.changes and len(found) < _MOST_SPANS - 1 and (split := self._split(first, known)) is not None:
            found.append((first, split))
            first = split
        return tuple(self._part(*each) for each in (*found, (first, known))) if found else ()

    def worst(self, end: int) -> tuple[Span, Span] | None:
        """By the limits that hold from each block on."""
        known = self._known(end)
        starts = np.arange(known)
        if not self.changes or not known:
            return None
        since = self._between(starts, np.full(known, known))
        low = since.estimate - self._widths(since.information, self.levels.low * _start_weights(starts), known)
        first = int(np.argmax(low))
        return (self._part(0, first), self._part(first, known)) if first and math.isfinite(low[first]) else None

    def _known(self, end: int) -> int:
        """How many merged blocks have ended."""
        return int(np.searchsorted(self.blocks.last, end - 1, side="right"))

    def _split(self, first: int, end: int) -> int | None:
        """The merged block from which on the effect differs most surely from that of the blocks since `first`."""
        at = np.arange(first + _LEAST_BLOCKS, end - _LEAST_BLOCKS + 1)
        if not at.size:
            return None
        level = min(self.levels.low, self.levels.high)
        before, since = self._between(np.full_like(at, first), at), self._between(at, np.full_like(at, end))
        # No limit is nearer than this many standard deviations.
        nearest = math.sqrt(-2.0 * math.log(2.0 * level * _start_weight(first)))
        with np.errstate(divide="ignore"):
            deviations = 1.0 / np.sqrt(before.information) + 1.0 / np.sqrt(since.information)
        near = np.flatnonzero(np.abs(since.estimate - before.estimate) > nearest * deviations)
        at, before, since = at[near], before.at(near), since.at(near)
        widths = self._widths(before.information, np.full(at.shape, level * _start_weight(first)), end)
        widths = widths + self._widths(since.information, level * _start_weights(at), end)
        difference = since.estimate - before.estimate
        apart = np.abs(difference) > widths
        if not apart.any():
            return None
        # By how much two means explain the blocks better than one does.
        both = before.information + since.information
        gain = np.square(difference) * before.information * since.information / np.where(both > 0.0, both, 1.0)
        return int(at[np.argmax(np.where(apart, gain, -1.0))])

    def _widths(self, information: Floats, levels: Floats, end: int) -> Floats:
        kept = lasting_information(information, self.persistent[end - 1])
        found = np.full(kept.shape, np.inf)
        for level in np.unique(levels):
            same = levels == level
            found[same] = half_width(kept[same], float(level), self.levels.wanted / _SHORTER)
        return found

    def _between(self, first: NDArray[np.int64], end: NDArray[np.int64]) -> EffectPath:
        """The means of the merged blocks [first, end), with the information of the blocks alone."""
        weights = self._weights()
        information, total = (
            np.concatenate([[0.0], np.cumsum(each)]) for each in (weights, weights * self.blocks.effects)
        )
        gathered = np.maximum(information[end] - information[first], 0.0)
        none = np.zeros_like(gathered)
        return EffectPath(np.divide(total[end] - total[first], gathered, out=none, where=gathered > 0.0), gathered)

    def _weights(self) -> Floats:
        finite = np.isfinite(self.variances)
        return np.where(finite, 1.0 / np.where(finite, self.variances, 1.0), 0.0)

    def _part(self, first: int, end: int) -> Span:
        here = self._between(np.array([first]), np.array([end]))
        if not here.information[0] > 0.0:
            return self._span(first, end, (math.nan, -math.inf, math.inf))
        weight, cost = _start_weight(first), float(here.estimate[0])
        low, high = (
            float(self._widths(here.information, np.array([level * weight]), end)[0])
            for level in (self.levels.low, self.levels.high)
        )
        return self._span(first, end, (cost, cost - low, cost + high))

    def _span(self, first: int, end: int, estimate: tuple[float, float, float]) -> Span:
        (above1, below1), (_, below2) = self.sums
        weights = self._weights()[first:end]
        used = np.flatnonzero(weights > 0.0) + first
        firsts, lasts = (self.blocks.last - self.blocks.merged + 1)[used], self.blocks.last[used]
        n1, n2, s1 = (merged_sums(each, firsts, lasts) for each in (below1, below2, above1))
        v1 = math.exp(float(weights[used - first] @ np.log(s1 / n1)) / float(weights.sum())) if used.size else math.nan
        return Span(
            int(firsts[0]) if used.size else 0, int(lasts[-1]) + 1 if used.size else 0, *estimate, v1,
            (float(n1.sum()), float(n2.sum())), None, int(self.blocks.merged[used].sum()),
        )  # fmt: skip


# --- Events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class EventComparison:
    """Compared blocks of counts of events: those in which both arms had requests.

    What is shown is of all events, and limits are of events with clusters counted once, widened to what is shown.
    `limits` are the logarithms of those of the stage after each block, (B,) each.
    """

    arms: counts.EventCounts
    clustered: Clustered
    levels: SpanLevels
    limits: tuple[Floats, Floats]

    def whole(self, end: int) -> Span:
        """All of them, with the limits of the stage."""
        low, high = (float(each[end - 1]) for each in self.limits)
        return self._span(0, end, low, high)

    def parts(self, end: int) -> tuple[Span, ...]:
        """Two where events became more or less frequent on v2 beside v1, as the limits exclude each other."""
        running = self._running(end)
        # By how much two ratios explain the events better than one does.
        gain = running.max(axis=0)[1:-1] + (running[:, -1:] - running[:, 1:-1]).max(axis=0)
        # Limits that exclude each other exclude any one ratio, before or since.
        least = -0.5 * math.log(max(self.levels.low, self.levels.high))
        if not gain.size or gain.max() - running[:, -1].max() < least:
            return ()
        first = int(np.argmax(gain)) + 1
        return self._apart(first, end) if self._is_apart(first, end) else ()

    def worst(self, end: int) -> tuple[Span, Span] | None:
        """By the evidence of each block on that v2 has more."""
        running = self._running(end)
        since = running[:, -1:] - running[:, :-1]
        same = counts.COARSE_RATIOS.size // 2
        first = int(np.argmax(since[same:].max(axis=0) - since[same])) if end else 0
        return self._apart(first, end) if first else None

    def _is_apart(self, first: int, end: int) -> bool:
        """Whether the limits before a block and those since exclude each other."""
        spans = (0, first), (first, end)
        costs = [counts.most_likely(self.arms.between(*each)) for each in spans]
        for lesser, greater in ((0, 1), (1, 0)):
            # No limits exclude their own estimate.
            if not costs[lesser] >= costs[greater]:
                high = self._limit(spans[lesser], counts.BETTER_RATIOS, self.levels.high)
                low = self._limit(spans[greater], counts.WORSE_RATIOS, self.levels.low)
                if np.fmax(costs[lesser], high) < np.fmin(costs[greater], low):
                    return True
        return False

    def _limit(self, span: tuple[int, int], multiples: Mapping[float, float], level: float) -> float:
        """The limit of a span of blocks, of which the first has its part of the level."""
        first, end = span
        return counts.latest_limit(
            self.clustered.events.between(first, end), multiples, level * _start_weight(first),
            dispersion=self.clustered.dispersion[first:end], clustered=self.clustered.clustered[first:end],
        )  # fmt: skip

    def _apart(self, first: int, end: int) -> tuple[Span, Span]:
        return self._part(0, first), self._part(first, end)

    def _part(self, first: int, end: int) -> Span:
        low = self._limit((first, end), counts.WORSE_RATIOS, self.levels.low)
        return self._span(first, end, low, self._limit((first, end), counts.BETTER_RATIOS, self.levels.high))

    def _running(self, end: int) -> Floats:
        logs = counts.log_probabilities(
            self.clustered.events.between(0, end), counts.COARSE_RATIOS, self.clustered.dispersion[:end],
            self.clustered.clustered[:end],
        )  # fmt: skip
        return np.concatenate([np.zeros((logs.shape[0], 1)), np.cumsum(logs, axis=1)], axis=1)

    def _span(self, first: int, end: int, low: float, high: float) -> Span:
        part = self.arms.between(first, end)
        cost = counts.most_likely(part)
        estimate = cost, float(np.fmin(low, cost)), float(np.fmax(high, cost))
        both = np.isfinite(part.share())
        events = float(part.v1_events[both].sum()), float(part.v2_events[both].sum())
        requests = float(part.v1_requests[both].sum()), float(part.v2_requests[both].sum())
        v1 = events[0] / requests[0] if requests[0] > 0.0 else math.nan
        return Span(first, end, *estimate, v1, requests, events, int(both.sum()))
