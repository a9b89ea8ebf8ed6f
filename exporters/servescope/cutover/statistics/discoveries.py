"""Many hypotheses at once, of which a share of the discoveries may be false: e-BH (Wang and Ramdas 2022).

Of N e-values, the k largest are discoveries where each of them is at least N ÷ (alpha · k), for the largest such k.
Whatever their dependence, the expected share of false ones among them is at most alpha; and where all hypotheses are
true, their mean is an e-process, so that the probability that any is ever discovered is at most alpha. It is of
e-values as they are now: of running maxima neither holds, so that a discovery is never kept.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.statistics.sequences import Floats


def discoveries(log_e: Floats, hypotheses: Floats, alpha: float) -> NDArray[np.bool_]:
    """Which of N hypotheses are discovered at each of B blocks, (N, B), from the logarithms of their e-values, (N, B).

    `hypotheses`, (B,), are how many there are so far: of the others the e-value is one.
    """
    needed = np.log(hypotheses) - math.log(alpha)
    ordered = -np.sort(-log_e, axis=0)
    rank = np.arange(1, log_e.shape[0] + 1)[:, None]
    enough = ordered + np.log(rank) >= needed
    count = np.where(enough.any(axis=0), log_e.shape[0] - np.argmax(enough[::-1], axis=0), 0)
    least = np.take_along_axis(ordered, np.maximum(count - 1, 0)[None], axis=0)[0]
    return np.asarray((count > 0) & (log_e >= least))
