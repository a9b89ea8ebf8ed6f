"""Bounds of the mean product of two sizes whose distributions are known by their buckets, and whose coupling is not.

A request's prompt and its duration are one such pair: two histograms do not say which prompts took long. The mean of
the product is highest where the largest of both come together, and lowest where the largest of one come with the
smallest of the other (Hoeffding 1940, Fréchet 1951). Of all distributions with the same buckets and the same mean the
one that is spread most (each value at the lower edge of its bucket up to some point, at the upper edge from there on)
has the most extreme of these, whatever the other distribution is: so both bounds are sharp, and hold without an
assumption on where in its bucket a value lies.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from servescope.migration.traffic.traffic import Floats, SizeDistribution


class Steps(NamedTuple):
    """Values, ascending, (k,), and the share of observations that have each, which add up to 1."""

    values: Floats
    shares: Floats


def spread_most(sizes: SizeDistribution, of: float | None = None) -> Steps:
    """The values of a distribution, as far apart as its buckets and its mean allow.

    `of` counts all things that could have a size, those without one included: these have the value 0.
    """
    low = np.array([0.0, *sizes.edges])
    excess = max(sizes.total - float(sizes.counts @ low), 0.0)
    # Above the last edge one observation alone can have all that is beyond the lower edges, and no more.
    high = np.array([*sizes.edges, sizes.edges[-1] + excess])
    lifts = (high - low) * sizes.counts
    # Lifted are the largest first, until the sum is the one that was observed.
    beyond = np.cumsum(lifts[::-1])[::-1] - lifts
    with np.errstate(invalid="ignore", divide="ignore"):
        lifted = np.where(lifts > 0, np.clip((excess - beyond) / lifts, 0.0, 1.0), 0.0) * sizes.counts
    values = np.stack([low, high], axis=1).ravel()
    counts = np.stack([sizes.counts - lifted, lifted], axis=1).ravel()
    absent = max((of or 0.0) - sizes.count, 0.0)
    values, counts = np.concatenate(([0.0], values)), np.concatenate(([absent], counts))
    kept = counts > 0
    return Steps(values[kept], counts[kept] / counts.sum())


def spread_part(whole: Steps, mean: float) -> Steps:
    """The distribution of a part of each observation, from 0 to the whole, with this mean, spread as far as possible.

    The largest observations are parts as large as their whole, the others 0. A `mean` above that of `whole` counts as
    that of `whole`.
    """
    sums = whole.values * whole.shares
    beyond = np.cumsum(sums[::-1])[::-1] - sums
    with np.errstate(invalid="ignore", divide="ignore"):
        kept = np.where(sums > 0, np.clip((mean - beyond) / sums, 0.0, 1.0), 0.0) * whole.shares
    values, shares = np.concatenate(([0.0], whole.values)), np.concatenate(([1.0 - kept.sum()], kept))
    there = shares > 0
    return Steps(values[there], shares[there])


def bound_product(one: Steps, other: Steps) -> tuple[float, float]:
    """The lowest and the highest mean of the product, over all ways in which the two can come together."""
    return _mean_product(one, Steps(other.values[::-1], other.shares[::-1])), _mean_product(one, other)


def _mean_product(one: Steps, other: Steps) -> float:
    """The mean product where the shares of both come together in their order."""
    ends = [np.cumsum(steps.shares) for steps in (one, other)]
    cuts = np.union1d(*ends).clip(0.0, 1.0)
    widths = np.diff(cuts, prepend=0.0)
    middles = cuts - widths / 2
    rows = [np.minimum(np.searchsorted(end, middles), len(end) - 1) for end in ends]
    return float((widths * one.values[rows[0]] * other.values[rows[1]]).sum())
