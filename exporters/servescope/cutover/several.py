"""Several metrics at once: Holm's correction for harm, none for health (4.12).

Health is claimed only where every required metric is proven not worse, each at its own alpha: the intersection of
claims needs no correction. Harm is claimed where any metric shows it, so that its probability is that of the family.
"""

from __future__ import annotations

import numpy as np

from servescope.cutover.sequences import Floats


def anytime_log_p(log_evidence: Floats) -> Floats:
    """The anytime-valid p-values of evidence over blocks, (..., K), as logarithms: the least of 1 ÷ e so far, ≤ 0."""
    return np.asarray(np.minimum(0.0, -np.maximum.accumulate(log_evidence, axis=-1)))


def holm(log_p: Floats) -> Floats:
    """Holm's adjusted p-values of M metrics at each of K blocks, as logarithms: (M, K) to (M, K).

    One that is at most alpha may be claimed: the probability that any false claim is ever made is at most alpha, in
    whatever way the metrics depend on each other, and at all blocks together since p-values only fall.
    """
    metrics = log_p.shape[0]
    order = np.argsort(log_p, axis=0, kind="stable")
    factors = np.log(np.arange(metrics, 0, -1, dtype=float))[:, None]
    adjusted = np.maximum.accumulate(np.take_along_axis(log_p, order, axis=0) + factors, axis=0)
    result = np.empty_like(log_p)
    np.put_along_axis(result, order, np.minimum(adjusted, 0.0), axis=0)
    return result
