"""Bounds on a running sum that hold at every look: the normal mixture, in information time.

Robbins' mixture over the half normal distribution. A sum of independent or martingale differences, of which `variance`
has been gathered, is compared with the hypothesis that it does not drift upwards; the evidence against that is a
non-negative supermartingale that starts at one, so that it ever exceeds 1 ÷ alpha with a probability of alpha at most
(Ville). Howard, Ramdas, McAuliffe and Sekhon 2021 (arXiv 1810.08240); as a bound for means that are only normal in the
limit, Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2024 (arXiv 2103.06476). The formulas are in
docs/judge-method.md#the-confidence-sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from servescope.cutover.statistics.pieces import Piece, compute_pieces

Floats = NDArray[np.float64]

_GRIDS, _GRID_POINTS = 6, 64
_AT_ONCE = 48
"""Blocks of which limits are found together."""
_STEPS = 4
"""Of Newton's method; the boundary's equation is nearly quadratic, so that these give all digits."""


@dataclass(frozen=True, slots=True, eq=False)
class EffectPath:
    """A running estimate: its mean over all blocks so far and the information gathered, (K,) each.

    Information is the inverse of the estimate's variance; where it is zero, the estimate is not defined and zero.
    """

    estimate: Floats
    information: Floats

    def at(self, blocks: NDArray[np.int64]) -> EffectPath:
        """Those of some blocks."""
        return EffectPath(self.estimate[blocks], self.information[blocks])

    def limits(self, alphas: tuple[float, float], wanted: float) -> tuple[Floats, Floats]:
        """The lower and the upper limit at each block: one-sided, all of either hold together with probability 1 − its
        alpha."""

        def compute(columns: slice, _: object) -> Piece:
            return Piece(half_widths(self.information[columns], alphas, wanted), None)

        low, high = compute_pieces(compute, (self.information,), ("limits", alphas, wanted), _AT_ONCE)
        return self.estimate - low, self.estimate + high

    def log_evidence_above(self, bound: float, alpha: float, wanted: float) -> Floats:
        """Evidence that the effect exceeds `bound`, as natural logarithm of an e-value, (K,)."""
        return log_evidence(self.information * (self.estimate - bound), self.information, tuned(wanted, alpha))

    def log_evidence_below(self, bound: float, alpha: float, wanted: float) -> Floats:
        """Evidence that the effect is less than `bound`, as natural logarithm of an e-value, (K,)."""
        return log_evidence(self.information * (bound - self.estimate), self.information, tuned(wanted, alpha))


def zero_unknown(values: Floats) -> Floats:
    """The values, 0 where they are NaN; numpy's own looks for infinities as well, of which nothing here has any."""
    return np.where(np.isnan(values), 0.0, values)


def accumulate(effects: Floats, variances: Floats, persistent: ArrayLike = 0.0) -> EffectPath:
    """The precision-weighted mean of the effects of K blocks, after each of them.

    `variances` are theirs, (K,); an infinite one leaves the block out. `persistent` is the variance of what the blocks
    share and time does not average out, () or (K,): replicas that differ for good. The sequence then is that of a mean
    that is itself drawn with this variance, so that information never exceeds its inverse.
    """
    weights = np.where(np.isfinite(variances) & np.isfinite(effects), 1.0 / variances, 0.0)
    information = np.cumsum(weights)
    total = np.cumsum(np.where(weights > 0.0, weights * zero_unknown(effects), 0.0))
    estimate = np.divide(total, information, out=np.zeros_like(total), where=information > 0.0)
    return EffectPath(estimate, lasting_information(information, persistent))


def lasting_information(information: Floats, persistent: ArrayLike) -> Floats:
    """What information is left where the mean itself has the variance `persistent`: 1 ÷ (1 ÷ I + persistent)."""
    return np.asarray(information / (1.0 + information * np.asarray(persistent, dtype=float)))


def tuned(wanted: float, alpha: float) -> float:
    """The mixture's parameter that makes its bound narrowest where the information is `wanted`."""
    if not 0.0 < alpha < 0.5:
        raise ValueError(f"alpha is {alpha}, expected above 0 and below 0.5")
    if not wanted > 0.0:
        raise ValueError(f"the wanted information is {wanted}, expected above 0")
    spent = -2.0 * math.log(2.0 * alpha)
    return wanted / (spent + math.log(spent + 1.0))


def log_evidence(total: ArrayLike, variance: ArrayLike, rho: ArrayLike) -> Floats:
    """Evidence that `total` drifts upwards, as natural logarithm of an e-value: 0 before the first information.

    2·√(ρ/(V+ρ))·exp(S²/(2(V+ρ)))·Φ(S/√(V+ρ)), of which a more negative drift has less, so that it holds against any
    drift of zero or below.
    """
    prior = np.asarray(rho, dtype=float)
    spread = np.asarray(variance, dtype=float) + prior
    score = np.asarray(total, dtype=float) / np.sqrt(spread)
    return np.asarray(math.log(2.0) + 0.5 * np.log(prior / spread) + _log_mixed(score))


_erfc = np.frompyfunc(math.erfc, 1, 1)


def normal_probability(score: ArrayLike) -> Floats:
    """The probability that a standard normal variable is below each score; numpy has no normal distribution."""
    return 0.5 * np.asarray(_erfc(np.asarray(score, dtype=float) / -math.sqrt(2.0)), dtype=float)


def half_width(information: ArrayLike, alpha: float, wanted: float) -> Floats:
    """How far the one-sided limit is from the estimate, infinite where there is no information.

    It is where `log_evidence` reaches ln(1 ÷ alpha), found by Newton's method from the closed form
    √((I+ρ)/I² · ln((I+ρ)/(ρ(2α)²))), which it exceeds by less than 1 %.
    """
    gathered = np.asarray(information, dtype=float)
    width: Floats = half_widths(gathered.reshape(-1), (alpha,), wanted)[0].reshape(gathered.shape)
    return width


def half_widths(information: Floats, alphas: Sequence[float], wanted: float) -> Floats:
    """Those of several levels, (A, K), of the information of K blocks."""
    gathered = np.broadcast_to(information, (len(alphas), information.size))
    rho = np.array([[tuned(wanted, alpha)] for alpha in alphas])
    needed = 0.5 * np.log1p(gathered / rho) - np.array([[math.log(2.0 * alpha)] for alpha in alphas])
    score = np.sqrt(2.0 * needed)
    for _ in range(_STEPS):
        below = normal_probability(score)
        density = np.exp(-0.5 * score**2) / math.sqrt(2.0 * math.pi)
        score = score - (0.5 * score**2 + np.log(below) - needed) / (score + density / below)
    width = np.full(gathered.shape, np.inf)
    np.divide(score * np.sqrt(gathered + rho), gathered, out=width, where=gathered > 0.0)
    return width


def information_wanted(margin: float) -> float:
    """The information that bounds are tuned to, for a margin that is a positive fraction: (2 ÷ ln(1 + margin))².

    It is where an effect of twice the margin is about to be found. Ten times as much would find it a sixth later at a
    share of 1 % and settle an equal stack no sooner.
    """
    return (2.0 / math.log1p(margin)) ** 2


def information_to_settle(distance: float, alpha: float, wanted: float, power: float = 0.5) -> float:
    """The information at which an estimate that is `distance` from a bound settles it, infinite where it never does.

    With a power above one half, of an estimate that varies: the information at which it is settled with that
    probability, if the effect itself is `distance` away.
    """
    if distance <= 0.0:
        return math.inf
    margin = NormalDist().inv_cdf(power)

    # The distance that is missing falls with information: found on a grid that closes in on where it ends.
    low, high = math.log(1e-9 * wanted), math.log(1e18 * wanted)
    for _ in range(_GRIDS):
        grid, information, widths = _widths_between(low, high, alpha, wanted)
        settled = widths + margin / np.sqrt(information) <= distance
        if not settled.any():
            return math.inf
        first = int(np.argmax(settled))
        low, high = float(grid[max(0, first - 1)]), float(grid[first])
    return math.exp(high)


@lru_cache(maxsize=256)
def _widths_between(low: float, high: float, alpha: float, wanted: float) -> tuple[Floats, Floats, Floats]:
    """A grid of logarithms of information, the information, and its half widths: the same for many distances."""
    grid = np.linspace(low, high, _GRID_POINTS)
    information = np.exp(grid)
    return grid, information, half_width(information, alpha, wanted)


def split_alpha(shares: Sequence[float]) -> tuple[float, ...]:
    """How a probability is best divided among stages with these shares of v2: parts that sum to one.

    A stage gathers information in proportion to share × (1 − share), and a smaller part costs it −ln(part) ÷ that, so
    that the sum of all delays is least where parts are inverse to information. None is left with less than a tenth of
    an equal part; a stage without a control gets that and can use none.
    """
    if not shares:
        raise ValueError("there is no stage to divide alpha among")
    wanted = np.array([1.0 / (share * (1.0 - share)) if 0.0 < share < 1.0 else 0.0 for share in shares])
    if not wanted.any():
        return tuple(1.0 / len(shares) for _ in shares)
    least = 0.1 / len(shares)
    parts = least + (1.0 - 0.1) * wanted / wanted.sum()
    return tuple(float(part) for part in parts)


def _log_mixed(score: Floats) -> Floats:
    """score²/2 + ln Φ(score), by Mills' ratio where Φ is too small to be computed."""
    near = np.maximum(score, -8.0)
    logs = np.asarray(0.5 * near**2 + np.log(normal_probability(near)))
    deep = ~(score > -8.0)
    if deep.any():
        far = score[deep]
        logs[deep] = -np.log(-far * math.sqrt(2.0 * math.pi)) + np.log1p(-1.0 / far**2 + 3.0 / far**4)
    return logs
