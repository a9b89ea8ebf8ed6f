"""Several metrics at once: Holm's correction for harm, none for health (docs/judge-method.md#several-metrics).

Health is claimed only where every required metric is proven not worse, each at its own alpha: the intersection of
claims needs no correction. Harm is claimed where any metric shows it, so that its probability is that of the family.
"""

from __future__ import annotations

import numpy as np

from servescope.cutover.statistics.sequences import Floats


def holm(log_p: Floats, weights: Floats | None = None) -> Floats:
    """Holm's adjusted p-values of M metrics at each of K blocks, as logarithms: (M, K) to (M, K).

    One that is at most alpha may be claimed: the probability that any false claim is ever made is at most alpha, in
    whatever way the metrics depend on each other, and at all blocks together since p-values only fall. `weights`, (M,),
    are how the metrics share alpha, equally where there are none; they have to be chosen before (Holm 1979).
    """
    parts = np.ones(log_p.shape[0]) if weights is None else np.asarray(weights, dtype=float)
    scaled = log_p - np.log(parts)[:, None]
    order = np.argsort(scaled, axis=0, kind="stable")
    left = np.cumsum(parts[order][::-1], axis=0)[::-1]
    adjusted = np.maximum.accumulate(np.take_along_axis(scaled, order, axis=0) + np.log(left), axis=0)
    result = np.empty_like(log_p)
    np.put_along_axis(result, order, np.minimum(adjusted, 0.0), axis=0)
    return result
