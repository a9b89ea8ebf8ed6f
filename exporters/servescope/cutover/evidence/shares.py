"""Whether v2 gets the share of requests that was configured: the sample ratio, at every look.

The method is in docs/judge-method.md#the-share.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.evidence.coverage import HOUR_BLOCKS, trailing_sum
from servescope.cutover.statistics.sequences import Floats

MATERIAL_RATIO = 0.2
"""A share that differs by less than this part of the configured one, either way, is as configured."""
CONVERSATION = 10.0
"""Requests of a conversation, roughly: they go to one arm together, so that counts vary by so much more."""
_OFF_PART = 0.05
"""The part of a large planned share by which the observed one may differ, though v1 then has much less or more."""
_CHANCE_DEVIATIONS = 4.0
_CONCENTRATIONS = (50.0, 5_000.0)
_lgamma = np.vectorize(math.lgamma, otypes=[np.float64])


def log_evidence_of_mismatch(v1_requests: Floats, v2_requests: Floats, share: float, *,
                             dispersion: float | Floats = 1.0) -> Floats:  # fmt: skip
    """Evidence after each block that v2's share is not `share`: (B,) logarithms of an e-value.

    The mixture of binomials by beta distributions around the configured share. Requests of one conversation follow each
    other to one arm: `dispersion`, at least 1, is by how much counts vary more than single requests would.
    """
    if not 0.0 < share < 1.0:
        raise ValueError(f"the configured share is {share}, expected above 0 and below 1")
    v1 = np.asarray(np.cumsum(v1_requests) / dispersion)
    v2 = np.asarray(np.cumsum(v2_requests) / dispersion)
    logs = []
    for concentration in _CONCENTRATIONS:
        a, b = concentration * share, concentration * (1.0 - share)
        logs.append(
            _log_beta(a + v2, b + v1) - _log_beta(a, b)
            - v2 * math.log(share) - v1 * math.log1p(-share)
        )  # fmt: skip
    highest = np.max(logs, axis=0)
    return np.asarray(highest + np.log(np.exp(np.array(logs) - highest).mean(axis=0)))


def differs(observed: float, share: float) -> bool:
    """Whether an observed share differs from the configured one by more than is immaterial."""
    return abs(observed - share) > MATERIAL_RATIO * min(share, 1.0 - share)


def recent_share(v1_requests: Floats, v2_requests: Floats) -> Floats:
    """v2's share of the requests of each block and of those of the hour before it, (B,); NaN where there were none."""
    v2, whole = trailing_sum(v2_requests), trailing_sum(v1_requests + v2_requests)
    return np.asarray(np.divide(v2, whole, out=np.full(whole.shape, np.nan), where=whole > 0.0))


def off_plan(v1_requests: Floats, v2_requests: Floats, share: float) -> NDArray[np.bool_]:
    """In which blocks v2 does not have the share of a stage, over the last hour, (B,): what is seen is another stage.

    The difference is material, and more than chance explains where conversations stay with one arm. Where an hour has
    too few requests to show that, as many hours as show it do.
    """
    material = max(MATERIAL_RATIO * min(share, 1.0 - share), _OFF_PART * share)
    found, lately, blocks = np.zeros(v1_requests.size, dtype=np.bool_), None, HOUR_BLOCKS
    while lately is None or blocks < 2 * found.size:
        whole = trailing_sum(v1_requests + v2_requests, blocks)
        apart = trailing_sum(v2_requests, blocks) - whole * share
        side = np.where(np.abs(apart) > whole * material, np.sign(apart), 0.0)
        lately = side if lately is None else lately
        chance = _CHANCE_DEVIATIONS * np.sqrt(whole * share * (1.0 - share) * CONVERSATION)
        # A share that was mended is as planned, whatever longer spans remember.
        found |= (side != 0.0) & (side == lately) & (np.abs(apart) > chance)
        blocks *= 2
    return found


def _log_beta(a: Floats | float, b: Floats | float) -> Floats:
    return np.asarray(_lgamma(a) + _lgamma(b) - _lgamma(a + b))
