"""How noisy v1 against itself was before the cutover: what a block's effect varies by beyond its requests.

v1's replicas are divided into two groups as the cutover will divide requests, and their effects taken as if they were
two stacks. What these vary by beyond sampling, autocorrelation included, is the excess variance of a block; what
differs between replicas for hours is kept apart, since waiting does not average it out. The formulas are in
docs/judge-method.md#noise-before-the-cutover.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from servescope.cutover.plan.plan import Noise
from servescope.cutover.statistics.effects import BlockEffects, mean_effects
from servescope.cutover.statistics.mix import Prompts, PromptSlope, adjusted_effects
from servescope.cutover.statistics.sequences import EffectPath, Floats, accumulate, lasting_information

BLOCKS_PER_HOUR = 12
LAG_BLOCKS = 36
"""Autocorrelation counts up to three hours."""
LEAST_BLOCKS = 24 * BLOCKS_PER_HOUR - 3
"""A day of past is the least that shows the noise. It need not begin with a block, and when a plan is frozen its last
blocks are not closed yet."""
_MOST_SPLITS = 12
_MOST_TURNS = 50
_LEAST_SPLIT = 3 * LAG_BLOCKS
"""Blocks with an effect below which a division shows no autocorrelation."""
_MOST_REPLICAS = 48
"""Of these replicas the lasting differences are taken, if there are more."""
_NODES = 12
"""Of the quadrature within a bucket."""
_STEEPEST = 8.0
"""The largest exponent of a density within a bucket, either way."""
_SEGMENT_BLOCKS = 6 * BLOCKS_PER_HOUR
"""What differs between replicas over six hours is taken as lasting."""

ONLINE_BURN_IN = 12
"""Blocks of fifteen minutes that have to be seen before noise that is estimated meanwhile may decide."""
ONLINE_MERGED = 3
_ONLINE_LAGS = 8
_CROSSING = 3.0
"""About the score at which a sequence crosses its bound."""
_SINGLE_LOOK = 1.645
"""The score of a bound that is looked at once, one-sided 5 %."""


def scaled_tau2(noise: Noise, spread: ArrayLike) -> Floats:
    """The excess variance of arms of P1 and P2 replicas with `spread` = 1/P1 + 1/P2, () or (K,).

    Between those of the two sizes of groups that were calibrated it is in proportion; with fewer replicas than the
    smaller ones it grows with the spread, and with more than the larger ones it stays.
    """
    wide = np.asarray(spread, dtype=float)
    if noise.spread <= 0.0:
        return np.full(wide.shape, noise.tau2)
    between = np.interp(wide, [noise.least_spread, noise.spread], [noise.least_tau2, noise.tau2])
    return np.asarray(np.where(wide > noise.spread, noise.tau2 * wide / noise.spread, between))


def calibrate_means(counts: Floats, sums: Floats, cv2: float, wanted: float, *, v2_replicas: int | None = None,
                    prompts: Prompts | None = None, slope: PromptSlope | None = None) -> Noise | None:  # fmt: skip
    """The noise of a histogram's mean from v1's past; None where one replica, or less than a day, cannot show it.

    `counts` and `sums` are per replica and consecutive five-minute block, (P, B), 0 where a replica was not seen; so
    are the `prompts` that effects are adjusted by with a `slope`. `v2_replicas` is as in `calibrate`.
    """
    counts, sums = np.nan_to_num(counts), np.nan_to_num(sums)

    def split(group: NDArray[np.bool_]) -> BlockEffects:
        rest = ~group
        blocks = mean_effects(
            counts[rest].sum(axis=0), sums[rest].sum(axis=0), counts[group].sum(axis=0), sums[group].sum(axis=0), cv2
        )
        if prompts is None or slope is None:
            return blocks
        return adjusted_effects(blocks, slope, prompts.of(rest), prompts.of(group))

    return calibrate(split, counts, cv2, wanted, v2_replicas=v2_replicas)


def calibrate(split: Callable[[NDArray[np.bool_]], BlockEffects], observed: Floats, cv2: float, wanted: float, *,
              v2_replicas: int | None = None) -> Noise | None:  # fmt: skip
    """The noise of any effect from v1's past; None where one replica, or less than a day, cannot show it.

    `split` gives the effects of a group of replicas, (P,), against all others; `observed` is what each replica was
    observed with per consecutive five-minute block, (P, B), 0 where it was not. Groups are as large as v2 is to be,
    `v2_replicas`, and again half of the replicas. `wanted` is the information that bounds are tuned to.
    """
    seen = int((observed.sum(axis=0) > 0.0).sum())
    replicas = np.flatnonzero(observed.sum(axis=1) > 0.0)
    if replicas.size < 2 or seen < LEAST_BLOCKS:
        return None
    large = _split_noise(split, replicas, observed.shape[0], seen, _group_size(replicas.size))
    small = large
    if _group_size(replicas.size, v2_replicas) != _group_size(replicas.size):
        small = _split_noise(split, replicas, observed.shape[0], seen, v2_replicas)
    if small is None or large is None:
        return None
    chosen = replicas if replicas.size <= _MOST_REPLICAS else replicas[:: -(-replicas.size // _MOST_REPLICAS)]
    lasting = _lasting_variance([split(_among(replicas[replicas == replica], observed.shape[0])) for replica in chosen])
    return Noise(
        tau2=max(small[0], large[0]), pod_tau2=lasting, cv2=cv2, information_wanted=wanted, blocks=seen,
        calibrated=True, spread=small[1], least_tau2=large[0], least_spread=large[1],
    )  # fmt: skip


def _split_noise(split: Callable[[NDArray[np.bool_]], BlockEffects], replicas: NDArray[np.int64], count: int, seen: int,
                 size: int | None) -> tuple[float, float] | None:  # fmt: skip
    """The excess variance of groups of so many replicas, and their spread; None where their effects are too few."""
    groups = replica_groups(replicas.size, size)
    chosen = int(groups[0].sum())
    few = student_factor(_freedom(seen, LAG_BLOCKS) * len(groups), _CROSSING)
    excess = np.array([excess_variance(split(_among(replicas[group], count)), few) for group in groups])
    excess = excess[np.isfinite(excess)]
    return (upper_of(excess), 1.0 / chosen + 1.0 / (replicas.size - chosen)) if excess.size else None


def _among(replicas: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    group = np.zeros(count, dtype=np.bool_)
    group[replicas] = True
    return group


def replica_groups(replicas: int, size: int | None = None) -> list[NDArray[np.bool_]]:
    """Which replicas are the second group, (P,) each, of several divisions that differ: the same ones at every call.

    As many as there are independent contrasts between the replicas, 12 at most. Replicas take turns, so that each is in
    about as many groups as any other. `size` is that of the second group, half of the replicas at most.
    """
    chosen = _group_size(replicas, size)
    random = np.random.default_rng(replicas * 1009 + chosen)
    groups: dict[bytes, NDArray[np.bool_]] = {}
    for _ in range(_MOST_TURNS):
        order = random.permutation(replicas)
        for first in range(0, replicas - chosen + 1, chosen):
            group = np.zeros(replicas, dtype=np.bool_)
            group[order[first : first + chosen]] = True
            # A division into halves is the same whichever half is called the second.
            groups.setdefault(min(group.tobytes(), (~group).tobytes()), group)
            if len(groups) == min(_MOST_SPLITS, replicas - 1):
                return list(groups.values())
    return list(groups.values())


def _group_size(replicas: int, size: int | None = None) -> int:
    """How many replicas the second group has, of so many that are wanted."""
    most = max(1, replicas // 2)
    return most if size is None else min(max(1, size), most)


def upper_of(values: Floats) -> float:
    """What several divisions showed plus one standard error, at least 0: all of them may have been quiet ones."""
    error = float(np.std(values, ddof=1)) / math.sqrt(values.size) if values.size > 1 else 0.0
    return max(0.0, float(np.mean(values)) + error)


def excess_variance(blocks: BlockEffects, few: float = 1.0) -> float:
    """The long-run variance of effects beyond their sampling, for a five-minute block; below 0 where there is none.

    `few` enlarges what was estimated from few blocks (`student_factor`).
    """
    known = np.isfinite(blocks.sampling)
    if known.sum() < _LEAST_SPLIT:
        return math.inf
    merged = float(blocks.merged[known].mean())
    effects = np.where(known, blocks.effects, np.nan)
    whole = long_run_variance(effects, max(1, round(LAG_BLOCKS / merged)))
    return float(merged * (few * whole - blocks.sampling[known].mean()))


def _freedom(blocks: int, lags: int) -> float:
    """The degrees of freedom of a long-run variance with Bartlett's weights."""
    return 1.5 * blocks / lags


def long_run_variance(values: Floats, lags: int) -> float:
    """The variance of the values plus twice their autocovariances with Bartlett's weights; NaN values are gaps.

    Newey and West 1987: γ0 + 2·Σ (1 − l/(m+1))·γl. Never negative where there are no gaps.
    """
    known = np.isfinite(values)
    centred = np.where(known, values - np.mean(values[known]), 0.0)
    total = float(centred @ centred)
    for lag in range(1, min(lags, values.size - 1) + 1):
        total += 2.0 * (1.0 - lag / (lags + 1.0)) * float(centred[lag:] @ centred[:-lag])
    return float(total / known.sum())


def _lasting_variance(each_replica: Sequence[BlockEffects]) -> float:
    """The variance between replicas of their effects over six hours beyond their noise, at least 0.

    Each replica is compared with all others. What few replicas show is enlarged by Student's factor.
    """
    effects, variances = [], []
    for blocks in each_replica:
        known = np.isfinite(blocks.sampling)
        excess = excess_variance(blocks)
        if not math.isfinite(excess):
            continue
        per_block = max(0.0, excess) + float((blocks.sampling * blocks.merged)[known].mean())
        segments = blocks.last // _SEGMENT_BLOCKS
        for segment in np.unique(segments):
            within = (segments == segment) & known
            size = int(blocks.merged[within].sum())
            if size >= _SEGMENT_BLOCKS // 2:
                effects.append(float(blocks.effects[within] @ blocks.merged[within]) / size)
                variances.append(per_block / size)
    replicas = len(each_replica)
    if len(effects) < 2 or replicas < 2:
        return 0.0
    # A replica against the mean of all others differs by its own variance and a share of theirs.
    own = (float(np.mean(np.square(effects))) - float(np.mean(variances))) * (replicas - 1) / replicas
    return max(0.0, own) * student_factor(replicas - 1.0, _SINGLE_LOOK)


def student_factor(freedom: float, score: float) -> float:
    """By how much a variance of few degrees of freedom is enlarged: (t ÷ z)² of the same quantile, z the `score`.

    Wallace's approximation of Student's quantiles, within 4 % from two degrees on and larger below.
    """
    corrected = score * (8.0 * freedom + 3.0) / (8.0 * freedom + 1.0)
    return freedom * math.expm1(corrected**2 / freedom) / score**2


def coefficient2_from_buckets(counts: Floats, edges: Floats, mean: float) -> float | None:
    """The squared coefficient of variation of one observation, from its histogram; None without observations.

    `counts` are per bucket, (E + 1,), the last above the last of `edges`, (E,); `mean` is the exact one. Within a
    bucket the density is a power of the observation, with the exponent of the densities around it; all exponents are
    then moved alike until the mean is the exact one. Within 4 % for smooth distributions on the contract's edges, where
    middles of buckets are off by a third.
    """
    total = float(counts.sum())
    if total <= 0.0 or not mean > 0.0:
        return None
    low = np.concatenate([[edges[0] / 4.0], edges])
    high = np.concatenate([edges, [2.0 * edges[-1]]])
    nodes, weights = _quadrature()
    centres, half = 0.5 * np.log(low * high), 0.5 * np.log(high / low)
    points = centres[:, None] + half[:, None] * nodes
    apart, observations = points - centres[:, None], np.exp(points)
    seen = np.flatnonzero(counts > 0.0)
    exponents = np.zeros(counts.size)
    if seen.size > 1:
        densities = np.log(counts[seen] / (high - low)[seen])
        exponents[seen] = np.clip(np.gradient(densities, centres[seen]), -_STEEPEST, _STEEPEST)

    def densities_at(moved: float) -> Floats:
        density = weights * np.exp((1.0 + exponents + moved)[:, None] * apart)
        return np.asarray(density / density.sum(axis=1, keepdims=True))

    def moment(density: Floats, values: Floats) -> float:
        return float(counts @ (density * values).sum(axis=1)) / total

    least, most = -_STEEPEST, _STEEPEST
    for _ in range(40):
        moved = 0.5 * (least + most)
        least, most = (least, moved) if moment(densities_at(moved), observations) > mean else (moved, most)
    density = densities_at(0.5 * (least + most))
    return max(0.0, moment(density, np.exp(2.0 * points)) / moment(density, observations) ** 2 - 1.0)


@cache
def _quadrature() -> tuple[Floats, Floats]:
    """The nodes and weights of Gauss and Legendre."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return nodes, weights


def online_path(blocks: BlockEffects, *, persistent: ArrayLike = 0.0) -> EffectPath:
    """The running estimate where no past has shown the noise: it is estimated from the cutover itself.

    `blocks` are merged to fifteen minutes (`ONLINE_MERGED`). There is no information before `ONLINE_BURN_IN` of them.
    After each block the variance of all effects so far is taken with its autocorrelation, and never below sampling.
    """
    plain = accumulate(blocks.effects, blocks.sampling)
    known = np.flatnonzero(np.isfinite(blocks.sampling))
    information = np.zeros_like(plain.information)
    for position, block in enumerate(known):
        factor = online_factor(blocks, known[: position + 1], float(plain.estimate[block]))
        information[block:] = plain.information[block] / factor
    lasting = lasting_information(information, persistent)
    return EffectPath(np.where(lasting > 0.0, plain.estimate, 0.0), lasting)


def online_factor(blocks: BlockEffects, known: NDArray[np.int64], mean: float) -> float:
    """By how much the variance of the `known` blocks, their indices, exceeds sampling, autocorrelation included.

    At least 1, and infinite before `ONLINE_BURN_IN` of them. `mean` is that of their effects.
    """
    seen = known.size
    if seen < ONLINE_BURN_IN:
        return math.inf
    scores = (blocks.effects[known] - mean) / np.sqrt(blocks.sampling[known])
    lags = min(_ONLINE_LAGS, seen // 3)
    # Bartlett's weights and the fitted mean take away about (lags + 1) ÷ n of the variance.
    fitted = seen / (seen - lags - 1)
    return max(1.0, long_run_variance(scores, lags) * fitted * student_factor(_freedom(seen, lags), _CROSSING))
