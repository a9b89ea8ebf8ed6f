"""The effect of each block: the logarithm of v2's mean or ratio over v1's, with its sampling variance.

Both arms are compared within the same span of time, so that load, trend and shared trouble cancel. Effects are ln(v2 ÷
v1); a caller for whom higher is better takes `reversed_effects`, so that everywhere else higher is worse.
The formulas are in docs/judge-method.md#effects-of-blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from servescope.cutover.statistics.sequences import Floats, zero_unknown

ENOUGH_REQUESTS = 20.0
"""Requests that the smaller arm needs in a block for its mean to be nearly normal."""
FEWEST_REQUESTS = 5.0
"""Requests below which a block that could not grow further is left out."""
MOST_MERGED = 3
"""Blocks of five minutes that are merged at most."""
_PRIOR_BLOCKS = 24.0
"""Blocks for which the predicted variance counts when it is compared with the realised one."""
_LEAST_KEPT = 0.01
_LEAST_VARIANCE = 1e-12
_LOCAL_BLOCKS = 24
"""Five-minute blocks, two hours, around whose mean the realised variance is taken."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockEffects:
    """The effects of K blocks of one or several five-minute blocks each, (K,) arrays.

    `effects` are ln(v2 ÷ v1) and `sampling` their variances from the requests alone; `merged` is how many five-minute
    blocks each has, and `last` the index of the latest of these: the effect is known once that one has been scraped.
    """

    effects: Floats
    sampling: Floats
    merged: NDArray[np.int64]
    last: NDArray[np.int64]

    def variances(self, tau2: float, inflation: ArrayLike = 1.0) -> Floats:
        """The variances with the excess `tau2` of a five-minute block, which merged blocks average; times inflation."""
        return np.asarray((self.sampling + tau2 / self.merged) * np.asarray(inflation, dtype=float))


def reversed_effects(blocks: BlockEffects) -> BlockEffects:
    """The same with v2 and v1 exchanged."""
    return replace(blocks, effects=-blocks.effects)


def merge_blocks(v1_requests: Floats, v2_requests: Floats, *, enough: float = ENOUGH_REQUESTS,
                 most: int = MOST_MERGED) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    """The first and the last index (K,) of each merged block among consecutive five-minute blocks.

    A merged block ends where both arms have `enough` requests in it, or where it has `most` blocks, whatever they have.
    Blocks are merged forwards, by their counts alone, so that one never changes when later ones come; the latest is
    left out until it ends. `v1_requests` and `v2_requests` are (B,); NaN counts as 0.
    """
    counts = zero_unknown(np.array([v1_requests, v2_requests]))
    size = counts.shape[1]
    if (counts >= enough).all():
        every = np.arange(size, dtype=np.int64)
        return every, every
    # How many blocks each would be merged with, if a merged one began there.
    lengths, together = np.full(size, most), counts.copy()
    for length in range(1, most):
        ends = (together[0] >= enough) & (together[1] >= enough) & (lengths == most)
        lengths[ends] = length
        together[:, : max(0, size - length)] += counts[:, length:]
    firsts, first = [], 0
    following = lengths.tolist()
    while first < size and first + following[first] <= size:
        firsts.append(first)
        first += following[first]
    begun = np.array(firsts, dtype=np.int64)
    return begun, begun + lengths[begun] - 1


def merged_sums(values: Floats, firsts: NDArray[np.int64], lasts: NDArray[np.int64]) -> Floats:
    """The sums over merged blocks along the last axis: (..., B) to (..., K)."""
    running = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(zero_unknown(values), axis=-1, out=running[..., 1:])
    return np.asarray(running[..., lasts + 1] - running[..., firsts])


def mean_effects(v1_count: Floats, v1_sum: Floats, v2_count: Floats, v2_sum: Floats, cv2: float, *,
                 enough: float = ENOUGH_REQUESTS, most: int = MOST_MERGED) -> BlockEffects:  # fmt: skip
    """The effects of a histogram's mean, from observations and their sums per arm and consecutive block, (B,) each.

    `cv2` is the squared coefficient of variation of one observation; the logarithm of a mean of few is low by half of
    it ÷ n, which is added back. Blocks in which an arm has less than `FEWEST_REQUESTS` have an infinite variance.
    """
    firsts, lasts = merge_blocks(v1_count, v2_count, enough=enough, most=most)
    n1, s1, n2, s2 = merged_sums(np.array([v1_count, v1_sum, v2_count, v2_sum]), firsts, lasts)
    known = (n1 >= FEWEST_REQUESTS) & (n2 >= FEWEST_REQUESTS) & (s1 > 0.0) & (s2 > 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        effects = np.log(s2 / n2) - np.log(s1 / n1) + 0.5 * cv2 * (1.0 / n2 - 1.0 / n1)
        sampling = cv2 * (1.0 / n1 + 1.0 / n2)
    return BlockEffects(np.where(known, effects, 0.0), np.where(known, sampling, np.inf), lasts - firsts + 1, lasts)


def ratio_effects(v1_part: Floats, v1_whole: Floats, v2_part: Floats, v2_whole: Floats, *, least_whole: float,
                  most: int = MOST_MERGED) -> BlockEffects:  # fmt: skip
    """The effects of a ratio of two counters' sums, part ÷ whole, per arm, replica and consecutive block: (P, B) each.

    The variance is the delta method's on what is left of each replica, part − ratio · whole; where an arm has one
    replica only, it comes from the differences between that replica's consecutive blocks so far, and its first block is
    left out. Blocks in which an arm's whole is below `least_whole`, or its part 0, have an infinite variance.
    """
    firsts, lasts = merge_blocks(
        np.nansum(v1_whole, axis=0), np.nansum(v2_whole, axis=0), enough=least_whole, most=most
    )
    arms = [
        _ratio(merged_sums(part, firsts, lasts), merged_sums(whole, firsts, lasts), least_whole)
        for part, whole in ((v1_part, v1_whole), (v2_part, v2_whole))
    ]
    known = np.isfinite(arms[0][1]) & np.isfinite(arms[1][1])
    return BlockEffects(
        np.where(known, arms[1][0] - arms[0][0], 0.0),
        np.where(known, arms[0][1] + arms[1][1], np.inf),
        lasts - firsts + 1,
        lasts,
    )


def steadied(blocks: BlockEffects, v1_whole: Floats, v2_whole: Floats) -> BlockEffects:
    """The effects of ratios whose parts hardly vary, so that all noise is that of what is below the line, (B,) each.

    What few replicas leave says little of the variance of one block, and blocks that seem to have none would weigh
    most. So it is taken as κ·(1/W1 + 1/W2), with κ the mean so far; and by half of κ/W, which the logarithm of a sum
    of few is low, the ratio is too high.
    """
    firsts = blocks.last - blocks.merged + 1
    v1, v2 = (merged_sums(each, firsts, blocks.last) for each in (v1_whole, v2_whole))
    known = np.isfinite(blocks.sampling) & (v1 > 0.0) & (v2 > 0.0)
    parts = [np.divide(1.0, each, out=np.zeros_like(each), where=known) for each in (v1, v2)]
    both = np.where(known, parts[0] + parts[1], 1.0)
    seen = np.cumsum(known)
    each = np.where(known, blocks.sampling, 0.0) / both
    kappa = np.divide(np.cumsum(each), seen, out=np.zeros_like(each), where=seen > 0)
    effects = blocks.effects - 0.5 * kappa * (parts[1] - parts[0])
    return replace(
        blocks, effects=np.where(known, effects, 0.0),
        sampling=np.where(known, np.maximum(kappa * both, _LEAST_VARIANCE), np.inf),
    )  # fmt: skip


def _ratio(part: Floats, whole: Floats, least_whole: float) -> tuple[Floats, Floats]:
    """The logarithm of one arm's ratio per block, and its variance: (K,) each."""
    replicas = whole.shape[0]
    total, base = part.sum(axis=0), whole.sum(axis=0)
    known = (base >= least_whole) & (total > 0.0)
    ratio = np.divide(total, base, out=np.zeros_like(total), where=known)
    logarithm = np.log(np.where(known, ratio, 1.0))
    if replicas > 1:
        residuals = part - ratio * whole
        # What is left of a replica is smaller the more of the ratio is its own: by 1 − 2·h + Σh² where its share is h.
        shares = np.divide(whole, base, out=np.zeros_like(whole), where=known & (whole > 0.0))
        kept = np.maximum(_LEAST_KEPT, 1.0 - 2.0 * shares + np.square(shares).sum(axis=0))
        spread = (np.square(residuals) / kept).sum(axis=0)
        variance = np.divide(spread, np.square(total), out=np.full_like(total, np.inf), where=known)
    else:
        steps = np.square(np.diff(logarithm[known]))
        variance = np.full_like(logarithm, np.inf)
        variance[np.flatnonzero(known)[1:]] = 0.5 * np.cumsum(steps) / np.arange(1, steps.size + 1)
    # A ratio that never moved is not known to every digit.
    return logarithm, np.where(known, np.maximum(variance, _LEAST_VARIANCE), np.inf)


def inflation(blocks: BlockEffects, tau2: float) -> Floats:
    """By how much each block's variance exceeds the predicted one, judged by the blocks before it: (K,), at least 1.

    The realised variance is that around the mean of the blocks of the two hours before, which neither an effect nor its
    slow change enlarges. It is shrunk towards the predicted one, and never makes bounds narrower than predicted.
    """
    variances = blocks.variances(tau2)
    known = np.flatnonzero(np.isfinite(variances))
    factor = np.ones(variances.shape)
    weights, effects = 1.0 / variances[known], blocks.effects[known]
    information = np.concatenate([[0.0], np.cumsum(weights)])
    total = np.concatenate([[0.0], np.cumsum(weights * effects)])
    first = np.searchsorted(blocks.last[known], blocks.last[known] - _LOCAL_BLOCKS, side="left")
    local = information[:-1] - information[first]
    seen = local > 0.0
    mean = np.divide(total[:-1] - total[first], local, out=np.zeros_like(local), where=seen)
    ratio = np.square(effects - mean) / (variances[known] + np.divide(1.0, local, out=np.zeros_like(local), where=seen))
    realised = (_PRIOR_BLOCKS + np.cumsum(np.where(seen, ratio, 0.0))) / (_PRIOR_BLOCKS + np.cumsum(seen))
    factor[known[1:]] = np.maximum(1.0, realised[:-1])
    return factor


def replica_variance(pod_tau2: float, v1_replicas: ArrayLike, v2_replicas: ArrayLike) -> Floats:
    """The variance that replicas that differ for good leave in an effect, however long one waits: τ²·(1/P1 + 1/P2)."""
    return np.asarray(pod_tau2 * (1.0 / np.asarray(v1_replicas, float) + 1.0 / np.asarray(v2_replicas, float)))
