"""The share of requests slower than an edge that both stacks have: the Cochran-Mantel-Haenszel martingale.

Blocks are the strata. Nothing is interpolated. It may show harm and never proves health: a slowdown moves the share of
slow requests little at night and much at the peak, so that its running average begins with the quiet hours. The
formulas are in docs/judge-method.md#slow-requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from servescope.cutover.statistics.change import log_mixture
from servescope.cutover.statistics.pieces import Piece, compute_pieces
from servescope.cutover.statistics.sequences import Floats, half_width, log_evidence, tuned

ENOUGH_VARIANCE = 9.0
"""The variance of the slow requests of v2, thus about their number, below which their sum is not nearly normal."""

_AT_ONCE = 48
"""Blocks of which limits are found together."""


@dataclass(frozen=True, slots=True, eq=False)
class SlowFractions:
    """The strata of one edge, (K,) each: v2's slow requests beyond the expected, its variance and the weight.

    `excess` is x2 − n2·(x1 + x2)/n, `variance` the hypergeometric one, `weight` n1·n2/n, so that excess ÷ weight is the
    difference of the fractions.
    """

    excess: Floats
    variance: Floats
    weight: Floats

    def total_variance(self, tau2: float) -> Floats:
        """The variances with that of the difference itself, `tau2` per block."""
        return self.variance + np.square(self.weight) * tau2


def slow_fractions(v1_requests: Floats, v1_slow: Floats, v2_requests: Floats, v2_slow: Floats) -> SlowFractions:
    """The strata from requests and those above the edge, per arm and block, (K,) each; without control all are 0."""
    both = (v1_requests > 0.0) & (v2_requests > 0.0)
    whole = np.where(both, v1_requests + v2_requests, 2.0)
    slow = np.where(both, v1_slow + v2_slow, 0.0)
    weight = np.where(both, v1_requests * v2_requests / whole, 0.0)
    excess = np.where(both, v2_slow - v2_requests * slow / whole, 0.0)
    variance = weight * slow * (whole - slow) / (whole * (whole - 1.0))
    return SlowFractions(excess, variance, weight)


def difference_path(
    strata: SlowFractions, tau2: float, *, alpha: float, wanted: float
) -> tuple[Floats, Floats, Floats]:
    """v2's slow fraction minus v1's with its lower and upper limit, after each block: (K,) each.

    Each limit is one-sided at `alpha`; `wanted` is the variance at which they are narrowest. Infinite where nothing
    has been seen.
    """
    difference, variance, weight, seen = _differences(strata, tau2)
    chosen = np.flatnonzero(seen)
    information = variance[chosen]

    def compute(columns: slice, _: object) -> Piece:
        return Piece(half_width(information[columns], alpha, wanted)[None], None)

    width = np.full(weight.shape, np.inf)
    found = compute_pieces(compute, (information,), ("difference", alpha, wanted), _AT_ONCE)[0]
    width[chosen] = found * information / weight[chosen]
    return difference, difference - width, difference + width


def latest_difference(strata: SlowFractions, tau2: float, *, alpha: float, wanted: float) -> tuple[float, float, float]:
    """That of `difference_path` after the last block."""
    difference, variance, weight, seen = (each[-1:] for each in _differences(strata, tau2))
    if not seen.any():
        return float(difference[0]), -math.inf, math.inf
    width = half_width(variance, alpha, wanted) * variance / weight
    return float(difference[0]), float((difference - width)[0]), float((difference + width)[0])


def _differences(strata: SlowFractions, tau2: float) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
    """v2's slow fraction minus v1's after each block, its variance, its weight, and where anything was seen, (K,)."""
    variance = np.cumsum(strata.total_variance(tau2))
    weight = np.cumsum(strata.weight)
    seen = (weight > 0.0) & (variance > 0.0)
    return np.divide(np.cumsum(strata.excess), weight, out=np.zeros_like(weight), where=seen), variance, weight, seen


def log_evidence_of_harm(strata: SlowFractions, tau2: float, *, floor: ArrayLike, alpha: float, wanted: float,
                         starts: NDArray[np.int64], weights: Floats) -> Floats:  # fmt: skip
    """The evidence after each block that v2's slow fraction exceeds v1's by more than `floor`: (K,) logarithms, or
    (N, K) for N floors.

    `starts` and `weights` are as in `change.log_evidence_of_harm`. There is none before `ENOUGH_VARIANCE`.
    """
    variance = np.concatenate([[0.0], np.cumsum(strata.total_variance(tau2))])
    sampled = np.concatenate([[0.0], np.cumsum(strata.variance)])
    floors = np.atleast_1d(np.asarray(floor, dtype=float))[:, None]
    moved = np.cumsum(strata.excess - floors * strata.weight, axis=1)
    total = np.concatenate([np.zeros((floors.size, 1)), moved], axis=1)
    rhos = tuned(wanted, alpha) * np.where(np.arange(starts.size) == 0, 1.0, 1.0 / 3.0)

    def sequences(rows: slice, columns: slice) -> Floats:
        gathered = variance[None, 1:][:, columns] - variance[starts[rows]][:, None]
        logs = np.zeros((floors.size, *gathered.shape))
        row, column = np.nonzero(gathered > 0.0)
        drift = total[:, 1:][:, columns][:, column] - total[:, starts[rows]][:, row]
        logs[:, row, column] = log_evidence(drift, gathered[row, column], rhos[rows][row])
        enough = sampled[None, 1:][:, columns] - sampled[starts[rows]][:, None] >= ENOUGH_VARIANCE
        return np.where(enough, logs, np.minimum(logs, 0.0))

    inputs = (variance[1:], sampled[1:], total[:, 1:])
    mixed = log_mixture(sequences, starts, weights, inputs, ("slow", rhos[0]))
    return mixed if np.ndim(floor) else mixed[0]


def choose_edges(edges: Floats, above: Floats, objective: float | None = None) -> tuple[float, ...]:
    """The two or three edges to compare: the objective's, the one nearest v1's p65, and one in the tail.

    `above` is the share of v1's observations above each of the shared `edges`, (E,). Fewer where they coincide, or
    where all of v1's observations are on one side of them.
    """
    useful = np.flatnonzero((above > 0.005) & (above < 0.95))
    if not useful.size:
        return ()
    picked = [useful[np.argmin(np.abs(above[useful] - 0.35))], useful[np.argmin(np.abs(above[useful] - 0.05))]]
    if objective is not None and objective in edges[useful]:
        picked.append(int(np.flatnonzero(edges == objective)[0]))
    return tuple(float(edges[index]) for index in sorted(set(picked)))
