"""Whether both arms got the same prompts, and what to do where they did not (docs/judge-method.md#prompts).

Detected by evidence that holds at every look; its size is the total variation distance over shared edges. Up to a
distance of `MOST_DISTANCE` effects are adjusted by what one unit of the feature, the logarithm of the mean prompt
tokens, moved the metric by in v1's own past; beyond it no comparison is to be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.statistics.effects import BlockEffects, merged_sums
from servescope.cutover.statistics.sequences import Floats

MOST_DISTANCE = 0.10
"""The total variation distance up to which adjusted effects are trusted."""
_PRIOR = 2.0
"""Requests per bucket by which a difference is shrunk before evidence is bet on it."""
_SCALES = (0.25, 0.5, 1.0)
"""The parts of the difference seen so far that evidence is mixed over."""
_LEAST_ROWS = 48
SURE_ERRORS = 3.0
"""A slope of fewer standard errors is none."""
_CLOSE_ERROR = 0.02
_MOST_EXPLAINED = 0.9


@dataclass(frozen=True, slots=True)
class PromptSlope:
    """What one unit of the feature moves the logarithm of a metric's mean by, and its standard error.

    `tokens_cv2` is the squared coefficient of variation of one prompt's tokens; `explained` the share of the metric's
    sampling variance that goes with prompts, 0 … 1, so that adjusting takes it away even where both arms get the same.
    """

    slope: float
    error: float
    tokens_cv2: float
    explained: float


@dataclass(frozen=True, eq=False)
class Prompts:
    """The prompt tokens of one arm and over how many requests, per five-minute block, (B,), or per replica, (P, B)."""

    tokens: Floats
    requests: Floats

    def together(self) -> Prompts:
        """Those of all replicas."""
        return self._all

    @cached_property
    def _all(self) -> Prompts:
        return Prompts(self.tokens.sum(axis=0), self.requests.sum(axis=0))

    def of(self, group: NDArray[np.bool_]) -> Prompts:
        """Those of a group of replicas together."""
        return Prompts(self.tokens[group].sum(axis=0), self.requests[group].sum(axis=0))


def log_evidence_of_difference(v1: Floats, v2: Floats) -> Floats:
    """Evidence after each block that the arms' histograms differ: (B,) logarithms of an e-value.

    `v1` and `v2` are requests per bucket and block, (E, B). Of a block's pooled buckets, those of the arm that was the
    smaller one so far are drawn without replacement if both get the same prompts, however these change with time;
    betting on the difference seen in the blocks before, the expected stake is at most that of drawing with replacement
    (Hoeffding 1963).
    """
    before_v1, before_v2 = (
        np.concatenate([np.zeros((each.shape[0], 1)), np.cumsum(each, axis=1)[:, :-1]], axis=1) for each in (v1, v2)
    )
    v2_is_smaller = before_v2.sum(axis=0) <= before_v1.sum(axis=0)
    smaller, before_small = np.where(v2_is_smaller, v2, v1), np.where(v2_is_smaller, before_v2, before_v1)
    pooled = before_v1 + before_v2
    shares = np.divide(pooled, pooled.sum(axis=0), out=np.zeros_like(pooled), where=pooled.sum(axis=0) > 0.0)
    prior = _PRIOR * np.maximum(v1.shape[0] * shares, 1e-9)
    expected = shares * before_small.sum(axis=0)
    tilt = np.log((before_small + prior) / (expected + prior))
    block = v1 + v2
    whole = block.sum(axis=0)
    logs = []
    for scale in _SCALES:
        stakes = np.exp(scale * tilt)
        fair = np.divide((block * stakes).sum(axis=0), whole, out=np.ones_like(whole), where=whole > 0.0)
        logs.append(np.cumsum((smaller * scale * tilt).sum(axis=0) - smaller.sum(axis=0) * np.log(fair)))
    highest = np.max(logs, axis=0)
    return np.asarray(highest + np.log(np.exp(np.array(logs) - highest).mean(axis=0)))


def distance(v1: Floats, v2: Floats) -> tuple[float, float] | None:
    """The total variation distance of two histograms, (E,) each, and what chance alone makes of it at these counts.

    None where an arm has no requests.
    """
    n1, n2 = float(v1.sum()), float(v2.sum())
    if n1 <= 0.0 or n2 <= 0.0:
        return None
    pooled = (v1 + v2) / (n1 + n2)
    # The mean of |normal| is √(2/π) of its deviation.
    chance = 0.5 * np.sqrt(2.0 / np.pi * pooled * (1.0 - pooled) * (1.0 / n1 + 1.0 / n2)).sum()
    return float(0.5 * np.abs(v1 / n1 - v2 / n2).sum()), float(chance)


def learn_slope(means: Floats, prompts: Prompts, cv2: float, tokens_cv2: float) -> PromptSlope | None:
    """The slope of a metric on the feature, from v1's replicas before the cutover; None where they show none.

    `means` are the logarithms of the metric's mean per replica and block, (P, B), NaN where it has none, as `prompts`
    are; `cv2` and `tokens_cv2` the squared coefficients of variation of one observation and of one prompt's tokens.
    Each block's own mean is taken out of both, so that load and trend explain nothing. A slope of less than
    `SURE_ERRORS` is none, or zero where the error is small.
    """
    found = within_blocks(prompts.requests, means, feature(prompts))
    if found is None:
        return None
    weights, y, x = found
    fitted = fit(weights, y, x)
    if fitted is None:
        return None
    slope, error = fitted
    if abs(slope) <= SURE_ERRORS * error:
        # That prompts do not move a metric is known as well where the error is small.
        return PromptSlope(0.0, error, tokens_cv2, 0.0) if error <= _CLOSE_ERROR else None
    # A slope that is off by its error leaves as much of the prompts' variance in.
    explained = (slope**2 - error**2) * tokens_cv2 / cv2
    return PromptSlope(slope, error, tokens_cv2, min(_MOST_EXPLAINED, explained))


def within_blocks(requests: Floats, *values: Floats) -> tuple[Floats, ...] | None:
    """The weights of replicas and blocks, and the values less the weighted mean of their block: (P, B) each.

    Weights are 0, as the values then are, where a value is not known or fewer than two replicas have it. None where too
    few are left.
    """
    known = np.all([np.isfinite(each) for each in values], axis=0)
    weights = np.where(known & (known.sum(axis=0) >= 2), requests, 0.0)
    if int((weights.sum(axis=1) > 0.0).sum()) < 2 or int((weights > 0.0).sum()) < _LEAST_ROWS:
        return None
    whole = weights.sum(axis=0)
    centred = []
    for each in values:
        present = np.where(weights > 0.0, each, 0.0)
        centre = np.divide((weights * present).sum(axis=0), whole, out=np.zeros_like(whole), where=whole > 0.0)
        centred.append(np.where(weights > 0.0, present - centre, 0.0))
    return weights, *centred


def fit(weights: Floats, y: Floats, x: Floats) -> tuple[float, float] | None:
    """The slope of y on x, of what `within_blocks` gives, and its error; None where x does not vary.

    The error allows for replicas that differ, one cluster each (Liang and Zeger 1986).
    """
    base = float((weights * x * x).sum())
    if base <= 0.0:
        return None
    slope = float((weights * x * y).sum()) / base
    replicas = int((weights.sum(axis=1) > 0.0).sum())
    scores = (weights * x * (y - slope * x)).sum(axis=1)
    return slope, float(np.sqrt(replicas / (replicas - 1) * np.square(scores).sum())) / base


def feature(prompts: Prompts) -> Floats:
    """The logarithm of the mean prompt tokens, NaN where there were no requests."""
    known = (prompts.requests > 0.0) & (prompts.tokens > 0.0)
    means = np.where(known, prompts.tokens, 1.0) / np.where(known, prompts.requests, 1.0)
    return np.where(known, np.log(means), np.nan)


def adjusted_effects(blocks: BlockEffects, slope: PromptSlope, v1: Prompts, v2: Prompts) -> BlockEffects:
    """The effects less what the arms' different prompts explain: y − slope · (z2 − z1).

    The prompts are per five-minute block, (B,). Where both arms get the same mix, this takes the chance differences of
    their prompts out of the effect, and their part out of its sampling variance (Deng, Xu, Kohavi and Walker 2013). A
    slope that was frozen before the cutover leaves the sequences valid. Until both arms report their prompts, effects
    are left as they are; later on, a block whose prompts are not known in an arm is left out.
    """
    every = np.array([v1.tokens, v1.requests, v2.tokens, v2.requests])
    sums = merged_sums(every, blocks.last - blocks.merged + 1, blocks.last)
    merged = [Prompts(*sums[:2]), Prompts(*sums[2:])]
    known = np.all([(each.requests > 0.0) & (each.tokens > 0.0) for each in merged], axis=0)
    first, second = (feature(each) for each in merged)
    inverse = [1.0 / np.where(known, each.requests, 1.0) for each in merged]
    moved = slope.slope * (second - first + 0.5 * slope.tokens_cv2 * (inverse[1] - inverse[0]))
    reported = np.logical_or.accumulate(known)
    return replace(
        blocks,
        effects=np.where(known, blocks.effects - moved, np.where(reported, 0.0, blocks.effects)),
        sampling=np.where(
            known, blocks.sampling * (1.0 - slope.explained), np.where(reported, np.inf, blocks.sampling)
        ),
    )
