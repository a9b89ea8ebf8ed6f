"""Whether a few values in a row rise or fall, and how fast, whatever their distribution."""

from __future__ import annotations

import numpy as np

from servescope.cutover.statistics.sequences import Floats


def trend_score(values: Floats) -> float:
    """Mann and Kendall's standardised score of a trend: above 0 where values rise, 0 for fewer than three."""
    count = values.size
    if count < 3:
        return 0.0
    later, earlier = np.tril_indices(count, -1)
    score = float(np.sign(values[later] - values[earlier]).sum())
    deviation = float(np.sqrt(count * (count - 1) * (2 * count + 5) / 18.0))
    return float(np.sign(score)) * max(0.0, abs(score) - 1.0) / deviation


def median_slope(values: Floats) -> float:
    """By how much values change from one to the next: the median of the slopes of all pairs (Theil and Sen), which one
    that stands out does not move."""
    first, second = np.triu_indices(values.size, 1)
    return float(np.median((values[second] - values[first]) / (second - first)))
