"""Counts of events among requests: errors, rejections, aborts, preemptions, by an exact e-process.

Of the events of a block, those in v2 are binomial with the probability q·r ÷ (1 − q + q·r), where q is v2's known share
of the requests and r the ratio of the rates: how often such events happen at all cancels, however it changes with time
(Lindon and Malek 2022, arXiv 2011.03567). No calibration is needed where events are independent. Where they come in
bursts, `dispersion` says by how much they vary more than that, and the likelihood is raised to its inverse.

A block may also be one cluster, which falls into v2 with that same probability and is then most of the block. Both
hypotheses allow for that, so that events which no ratio of rates explains count as one (Huber 1965): fifty at once say
what one event says, and eight among ten say what eight do. The formulas are in docs/judge-method.md#events.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from servescope.cutover.statistics.change import log_mixture
from servescope.cutover.statistics.pieces import Piece, compute_pieces
from servescope.cutover.statistics.sequences import Floats

WORSE_RATIOS = {2.0: 0.35, 5.0: 0.65}
"""The multiples of a bound that evidence of harm is mixed over, with weights: more of them find no harm sooner."""
BETTER_RATIOS = {0.2: 0.5, 0.5: 0.5}
"""The multiples of a bound that evidence of health is mixed over, with their weights."""
_RARER_RATIOS = {0.0: 0.25, 0.125: 0.25, 0.25: 0.25, 0.5: 0.25}
CLUSTER_BLOCKS = 3e-4
"""The part of the blocks that may be one cluster, of which no past has shown any."""
_CLUSTER_POWER = 3.0
"""How far a cluster is on one side: the density of the share of v2 rises with this power from the other side on."""
_PRIOR_EVENTS = 5.0
"""The binomial variance for which independence counts when dispersion is estimated."""
_STEP = 0.04
_AT_ONCE = 48
"""Blocks that are looked at together, and those that are complete once."""
_RATIOS = np.exp(_STEP * np.arange(-173, 174))
"""The ratios that an interval is searched on: from 1/1000 to 1000, 4 % apart."""
_HALVINGS = 40
COARSE_RATIOS = np.exp(8 * _STEP * np.arange(-21, 22))
"""The ratios at which a change of the ratio is looked for; that of equal rates is in the middle."""


@dataclass(frozen=True, eq=False)
class EventCounts:
    """Events and requests per arm and five-minute block, (B,) each.

    A block counts where both arms had requests; events of one arm alone say nothing of the ratio.
    """

    v1_events: Floats
    v1_requests: Floats
    v2_events: Floats
    v2_requests: Floats

    def share(self) -> Floats:
        """v2's share of the requests of each block, NaN where an arm had none."""
        both = (self.v1_requests > 0.0) & (self.v2_requests > 0.0)
        whole = np.where(both, self.v1_requests + self.v2_requests, 1.0)
        return np.where(both, self.v2_requests / whole, np.nan)

    def between(self, first: int, end: int) -> EventCounts:
        """Those of the blocks [first, end)."""
        if first == 0 and end >= self.v1_events.size:
            return self
        return EventCounts(
            self.v1_events[first:end], self.v1_requests[first:end], self.v2_events[first:end],
            self.v2_requests[first:end],
        )  # fmt: skip

    @cached_property
    def eventful(self) -> _Eventful:
        """The blocks that say anything of the ratio, found once for all ratios that are asked for."""
        share, events = self.share(), self.v1_events + self.v2_events
        # A block without events is as probable at each.
        some = np.isfinite(share) & (events > 0.0)
        v1, v2, events = self.v1_events[some], self.v2_events[some], events[some]
        odds, part = share[some] / (1.0 - share[some]), v2 / events
        return _Eventful(
            some, v2, events, odds, np.log(odds), _log_factorials(events) - _log_factorials(v1) - _log_factorials(v2),
            part**_CLUSTER_POWER, (1.0 - part) ** _CLUSTER_POWER,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _Eventful:
    """The n blocks that have events and both arms, which of all they are, (B,), and what follows from them alone, (n,).

    `odds` are those of v2's share, `ways` the logarithm of in how many ways so many `events` may be divided, `of_v2`
    and `of_v1` what the density of a cluster on either side rises with.
    """

    some: NDArray[np.bool_]
    v2_events: Floats
    events: Floats
    odds: Floats
    log_odds: Floats
    ways: Floats
    of_v2: Floats
    of_v1: Floats

    def chosen(self, values: ArrayLike) -> Floats:
        """Those of the values, () or (B,), that are of these blocks."""
        found = np.asarray(values, dtype=float)
        return found[self.some] if found.ndim else found

    def spread(self, logs: Floats) -> Floats:
        """The logarithms of all blocks from those of these, (R, n) to (R, B): 0 in the others."""
        found = np.zeros((logs.shape[0], self.some.size))
        found[:, self.some] = logs
        return found

    def likelihoods(self, ratios: Floats) -> Floats:
        """The logarithm of the probability of each block's events at each ratio of the rates, without the ways."""
        logs = self.v2_events * (np.log(ratios)[:, None] + self.log_odds)
        logs -= self.events * np.log1p(ratios[:, None] * self.odds)
        return logs

    def independent(self, ratios: Floats, dispersion: ArrayLike, clustered: ArrayLike) -> Floats:
        """As `log_independent`, (R, n)."""
        return np.log1p(-self.chosen(clustered)) + (self.ways + self.likelihoods(ratios)) / self.chosen(dispersion)

    def cluster(self, ratios: Floats, clustered: ArrayLike) -> Floats:
        """As `log_cluster`, (R, n)."""
        falls = ratios[:, None] * self.odds
        falls = falls / (1.0 + falls)
        density = falls * self.of_v2 + (1.0 - falls) * self.of_v1
        return np.log(self.chosen(clustered) * (1.0 + _CLUSTER_POWER) / (1.0 + self.events)) + np.log(density)


def log_independent(
    counts: EventCounts, ratios: Floats, dispersion: ArrayLike = 1.0, clustered: ArrayLike = CLUSTER_BLOCKS
) -> Floats:
    """The logarithm of the part of each block's probability that is not of a cluster: (R, B), 0 without events.

    `clustered`, () or (B,), is the probability that a block is one; like `dispersion` it has to be known before.
    """
    return counts.eventful.spread(counts.eventful.independent(ratios, dispersion, clustered))


def log_cluster(counts: EventCounts, ratios: Floats, clustered: ArrayLike = CLUSTER_BLOCKS) -> Floats:
    """The logarithm of the part of each block's probability that is of a cluster: (R, B), 0 without events."""
    return counts.eventful.spread(counts.eventful.cluster(ratios, clustered))


def _log_factorials(values: Floats) -> Floats:
    # Most blocks have one of a few numbers of events.
    some, at = np.unique(values, return_inverse=True)
    return np.array([math.lgamma(value + 1.0) for value in some.tolist()])[at]


def log_probabilities(counts: EventCounts, ratios: Floats, dispersion: ArrayLike, clustered: ArrayLike) -> Floats:
    """The logarithm of the probability of each block's events at each ratio, clusters allowed for: (R, B)."""
    found = counts.eventful
    return found.spread(
        np.logaddexp(found.independent(ratios, dispersion, clustered), found.cluster(ratios, clustered))
    )


def log_evidence_above(counts: EventCounts, bound: float | Sequence[float], *, dispersion: ArrayLike = 1.0,
                       clustered: ArrayLike = CLUSTER_BLOCKS, starts: ArrayLike = (0,),
                       weights: ArrayLike = (1.0,)) -> Floats:  # fmt: skip
    """Evidence after each block that v2's rate is more than `bound` times v1's: (B,) logarithms of an e-value, or
    (N, B) for N bounds.

    It is gathered from each of the `starts` on, indices of blocks, and mixed by their `weights` (`change.schedule`).
    `dispersion`, () or (B,) and at least 1, has to be known before the block; so has `clustered`, the probability that
    it is one cluster.
    """
    return _log_evidence(counts, bound, WORSE_RATIOS, (dispersion, clustered), starts, weights)


def log_evidence_below(counts: EventCounts, bound: float, *, dispersion: ArrayLike = 1.0,
                       clustered: ArrayLike = CLUSTER_BLOCKS) -> Floats:  # fmt: skip
    """Evidence after each block that v2's rate is less than `bound` times v1's: (B,) logarithms of an e-value."""
    return _log_evidence(counts, bound, BETTER_RATIOS, (dispersion, clustered), (0,), (1.0,))


def latest_log_evidence(
    counts: EventCounts, bound: float, multiples: Mapping[float, float], dispersion: ArrayLike, clustered: ArrayLike
) -> float:
    """The evidence of all blocks that v2's rate is beyond `bound` times v1's, as that above and below are at the last.

    `multiples` are `WORSE_RATIOS` or `BETTER_RATIOS`.
    """
    logs = log_probabilities(counts, bound * np.array([1.0, *multiples]), dispersion, clustered).sum(axis=1)
    return float(_log_mean(logs[1:] - logs[0], multiples))


def _log_evidence(counts: EventCounts, bound: float | Sequence[float], multiples: Mapping[float, float],
                  varied: tuple[ArrayLike, ArrayLike],
                  starts: ArrayLike, weights: ArrayLike) -> Floats:  # fmt: skip
    bounds = np.atleast_1d(np.asarray(bound, dtype=float))
    if not (bounds > 0.0).all():
        raise ValueError(f"the bound of a ratio is {bound}, expected above 0")
    ratios = bounds[:, None] * np.array([1.0, *multiples])
    blocks = log_probabilities(counts, ratios.reshape(-1), *varied).reshape(*ratios.shape, -1)
    gained = np.cumsum(blocks[:, 1:] - blocks[:, :1], axis=2)
    running = np.concatenate([np.zeros((*gained.shape[:2], 1)), gained], axis=2)
    begins = np.asarray(starts, dtype=np.int64)

    def sequences(rows: slice, columns: slice) -> Floats:
        since = running[:, :, None, 1:][..., columns] - running[:, :, begins[rows], None]
        # Before it begins, nothing is gathered.
        seen = np.arange(columns.start, columns.stop) >= begins[rows, None]
        logs = np.zeros((bounds.size, *seen.shape))
        logs[:, seen] = _log_mean(np.moveaxis(since[:, :, seen], 1, 0), multiples)
        return logs

    parameters = "events", tuple(multiples.values())
    mixed = log_mixture(sequences, begins, np.asarray(weights, dtype=float), (gained,), parameters)
    return mixed if np.ndim(bound) else mixed[0]


def _log_mean(logs: Floats, multiples: Mapping[float, float]) -> Floats:
    """The logarithm of the mean over the first axis, by the weights of the multiples."""
    highest = np.asarray(logs.max(axis=0))
    # Added one by one: a product of matrices rounds otherwise where there are more blocks.
    mean = np.zeros(highest.shape)
    for weight, each in zip(multiples.values(), np.exp(logs - highest), strict=True):
        mean += weight * each
    return np.asarray(highest + np.log(mean))


def ratio_interval(counts: EventCounts, alpha_low: float, alpha_high: float, *, dispersion: ArrayLike = 1.0,
                   clustered: ArrayLike = CLUSTER_BLOCKS) -> tuple[Floats, Floats]:  # fmt: skip
    """The lower and upper limit of v2's rate ÷ v1's after each block, (B,) each: 0 and infinity where there is none.

    Each is a ratio that the evidence at that block excludes, one-sided at its level and at all blocks together, beside
    one 4 % nearer that it does not; what is further off is excluded with it, though there all ratios explain as little
    as each other. The ratio that was seen is always within.
    """
    spread, apart = (
        np.broadcast_to(np.asarray(each, dtype=float), counts.v1_events.shape) for each in (dispersion, clustered)
    )
    before = np.zeros((_RATIOS.size, 1)), np.array([[0.0], [math.inf]])
    inputs = [*(getattr(counts, each.name) for each in fields(counts)), spread, apart]

    # All at once would be a gigabyte for a stage of a year.
    def compute(columns: slice, before: tuple[Floats, Floats]) -> Piece:
        some, (logs_before, limits_before) = EventCounts(*(each[columns] for each in inputs[:-2])), before
        if not some.eventful.events.size:
            return Piece(np.repeat(limits_before, some.v1_events.size, axis=1), before)
        logs = log_probabilities(some, _RATIOS, spread[columns], apart[columns])
        running = np.cumsum(np.concatenate([logs_before, logs], axis=1), axis=1)
        low = _limits(running[:, 1:], WORSE_RATIOS, alpha_low, outside=0.0)
        high = _limits(running[:, 1:], BETTER_RATIOS, alpha_high, outside=math.inf)
        limits = np.array([low, high])
        return Piece(limits, (running[:, -1:].copy(), limits[:, -1:].copy()))

    low, high = compute_pieces(compute, inputs, ("ratio", alpha_low, alpha_high), _AT_ONCE, before)
    return low, high


def latest_limit(counts: EventCounts, multiples: Mapping[float, float], alpha: float, *, dispersion: ArrayLike = 1.0,
                 clustered: ArrayLike = CLUSTER_BLOCKS) -> float:  # fmt: skip
    """The logarithm of a limit of `ratio_interval` at the last block.

    It is the lower one with `WORSE_RATIOS`, and the upper one with `BETTER_RATIOS`.
    """
    steps, bounds = _bounds(multiples)
    excluded, kept = -1, bounds.size
    while kept - excluded > 1:
        middle = (excluded + kept) // 2
        ratios = _RATIOS[[bounds[middle], *(bounds[middle] + step for step in steps)]]
        logs = log_probabilities(counts, ratios, dispersion, clustered).sum(axis=1)
        is_excluded = _log_mean(logs[1:] - logs[0], multiples) >= -math.log(alpha)
        excluded, kept = (middle, kept) if is_excluded else (excluded, middle)
    if excluded < 0:
        return -math.inf if min(steps) > 0 else math.inf
    return math.log(_RATIOS[bounds[excluded]])


def most_likely(counts: EventCounts) -> float:
    """The logarithm of v2's rate ÷ v1's that all blocks make most likely, between those of the grid's ends.

    It is that of the rates where v2's share does not change; a share that changes together with the rate of both arms
    moves the ratio of their sums and not this one. It is infinite where only one arm has events, and NaN where neither
    has.
    """
    share = counts.share()
    some = np.isfinite(share) & (counts.v1_events + counts.v2_events > 0.0)
    v1, v2 = counts.v1_events[some], counts.v2_events[some]
    if not v1.any() or not v2.any():
        return math.inf if v2.any() else -math.inf if v1.any() else math.nan
    odds = np.log(share[some] / (1.0 - share[some]))
    low, high = math.log(_RATIOS[0]), math.log(_RATIOS[-1])
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        # The likelihood rises while v2 has more events than are to be expected of it.
        more = float((v2 - (v1 + v2) / (1.0 + np.exp(-odds - middle))).sum()) > 0.0
        low, high = (middle, high) if more else (low, middle)
    return 0.5 * (low + high)


def _bounds(multiples: Mapping[float, float]) -> tuple[list[int], NDArray[np.int64]]:
    """How far the multiples are from a bound on the grid, and the bounds that have all of them on it.

    Evidence that the ratio is above a bound falls with the bound, that it is below one rises, but for bounds so far off
    that they explain no less than their multiples: those that are excluded come first, and halving finds the last one.
    """
    steps = [round(math.log(multiple) / _STEP) for multiple in multiples]
    bounds = np.arange(max(0, -min(steps)), _RATIOS.size - max(0, *steps))
    return steps, bounds if min(steps) > 0 else bounds[::-1]


def _limits(running: Floats, multiples: Mapping[float, float], alpha: float, *, outside: float) -> Floats:
    """The limit at each block: the ratio of the grid that is nearest to those that evidence does not exclude."""
    steps, bounds = _bounds(multiples)
    blocks, further = np.arange(running.shape[1]), np.array(steps)[:, None]
    excluded, kept = np.full(blocks.size, -1), np.full(blocks.size, bounds.size)
    while (kept - excluded > 1).any():
        middle = np.maximum((excluded + kept) // 2, 0)
        logs = running[bounds[middle] + further, blocks] - running[bounds[middle], blocks]
        is_excluded = _log_mean(logs, multiples) >= -math.log(alpha)
        excluded, kept = np.where(is_excluded, middle, excluded), np.where(is_excluded, kept, middle)
    return np.where(excluded >= 0, _RATIOS[bounds[np.maximum(excluded, 0)]], outside)


def log_evidence_rarer(events: Floats, requests: Floats, rate: float) -> Floats:
    """Evidence after each block that one arm's events are rarer than `rate` per request: (B,) logarithms.

    Also without a control, and without a single event: after n clean requests it is n · −ln(1 − rate) less ln 4.
    """
    if not 0.0 < rate < 1.0:
        raise ValueError(f"the rate is {rate}, expected above 0 and below 1")
    candidates = rate * np.array(list(_RARER_RATIOS))
    with np.errstate(divide="ignore", invalid="ignore"):
        happened = np.where(events > 0.0, events * np.log(candidates / rate)[:, None], 0.0)
    logs = happened + (requests - events) * (np.log1p(-candidates) - math.log1p(-rate))[:, None]
    return _log_mean(np.cumsum(logs, axis=1), _RARER_RATIOS)


def dispersion(events: Floats, requests: Floats, group: NDArray[np.bool_]) -> Floats:
    """By how much the events of two groups of replicas vary more than independent ones, after each block: (B,), at
    least 1.

    `events` and `requests` are per replica and block, (P, B); `group` says which replicas are the second group, (P,).
    Between two groups of the same stack the ratio is one, so that the excess of (events − expected)² over the binomial
    variance is that of bursts. Shrunk towards one while few events were seen.
    """
    counts = EventCounts(
        np.nansum(events[~group], axis=0), np.nansum(requests[~group], axis=0),
        np.nansum(events[group], axis=0), np.nansum(requests[group], axis=0),
    )  # fmt: skip
    share = counts.share()
    known = np.isfinite(share)
    share = np.where(known, share, 0.5)
    whole = np.where(known, counts.v1_events + counts.v2_events, 0.0)
    squares = np.where(known, np.square(counts.v2_events - whole * share), 0.0)
    expected = whole * share * (1.0 - share)
    return np.maximum(1.0, (_PRIOR_EVENTS + np.cumsum(squares)) / (_PRIOR_EVENTS + np.cumsum(expected)))
