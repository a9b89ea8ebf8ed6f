"""Whether both arms carry a comparable load, so that their latencies can be compared (docs/judge-method.md#load).

A replica that is nearly idle is fast and says nothing of how it serves its share; one that queues is slow whatever its
stack. So each block has a regime per arm, and a relation of the loads per replica.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servescope.cutover.statistics.sequences import Floats, zero_unknown

SATURATED_SCRAPES = 0.2
"""The share of a block's scrapes above a gauge's level from which a replica counts as saturated."""
MATCHED_RATIO = 1.5
"""The ratio of the loads per replica, either way, up to which they are comparable."""
_SMOOTHED = 12
"""Blocks, an hour, over which loads are compared."""
_LASTING = 3
"""Blocks for which v2 has to be saturated before it is said to have slowed."""
_LEAST_SERVED = 6
"""Blocks in which v2 served its arrivals freely, from which these are known."""
_LIKE_ARRIVALS = 1.1
"""Up to which multiple of what v2 served freely its arrivals are like those."""
_JUMPED = 1.2
"""From which multiple of its load beside v1's on v2 has got more at once."""
_SURE = 3.0
"""Standard deviations of the numbers of requests that are chance."""
_GROWN = 1.5
"""From which multiple of the usual on v2's requests in flight per arrival have grown."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadRelation:
    """How the loads of both arms relate in each block, (B,) each.

    `free` blocks have neither arm saturated at loads per replica that match: latency is judged there. `overloaded` ones
    have v2 alone saturated at no more load per replica than v1's: a loss of capacity. `both` have both saturated:
    throughput is judged there. `unmatched` are all others with requests in both arms.
    """

    free: NDArray[np.bool_]
    overloaded: NDArray[np.bool_]
    both: NDArray[np.bool_]
    unmatched: NDArray[np.bool_]


def saturated(above: Floats, preemptions: Floats) -> NDArray[np.bool_]:
    """In which blocks an arm is saturated, (B,).

    `above` is the share of scrapes above the level of each gauge (`contract.increments.JUDGED_GAUGES`: waiting
    requests, KV cache), per gauge, replica and block, (G, P, B), NaN where not reported; `preemptions` are those of
    each block, (B,), NaN where not counted. It is where the replicas on average exceed `SATURATED_SCRAPES` or preempt
    requests.
    """
    with np.errstate(invalid="ignore"):
        reported = np.isfinite(above)
        counts = reported.sum(axis=1)
        shares = np.divide(
            np.where(reported, above, 0.0).sum(axis=1), counts, out=np.zeros(counts.shape), where=counts > 0
        )
        return np.asarray((shares > SATURATED_SCRAPES).any(axis=0) | (zero_unknown(preemptions) > 0.0))


def relate(v1_load: Floats, v2_load: Floats, v1_saturated: NDArray[np.bool_],
           v2_saturated: NDArray[np.bool_]) -> LoadRelation:  # fmt: skip
    """How the arms' loads relate, from offered requests per ready replica and second, (B,) each, NaN where unknown.

    Loads are compared as means of the hour up to each block: the few requests of a small arm vary by chance.
    """
    present = (zero_unknown(v1_load) > 0.0) & (zero_unknown(v2_load) > 0.0)
    ratio = _trailing_sum(np.where(present, v2_load, 0.0)) / np.maximum(
        _trailing_sum(np.where(present, v1_load, 0.0)), 1e-12
    )
    similar = present & (ratio <= MATCHED_RATIO) & (ratio >= 1.0 / MATCHED_RATIO)
    both = present & v1_saturated & v2_saturated
    free = similar & ~v1_saturated & ~v2_saturated
    overloaded = present & v2_saturated & ~v1_saturated & (ratio <= 1.0 + 1e-9)
    return LoadRelation(free, overloaded, both, present & ~free & ~overloaded & ~both)


def slowed(free: NDArray[np.bool_], saturated: tuple[NDArray[np.bool_], NDArray[np.bool_]], arrivals: Floats,
           in_flight: Floats) -> NDArray[np.bool_]:  # fmt: skip
    """In which blocks v2 is saturated because it got slower, and not because more is asked of it, (B,).

    Known before the block: v2 has been saturated for `_LASTING` blocks and v1 for an hour not, v2 gets no more arrivals
    per replica than it served freely earlier in the stage, and has more requests in flight for each of them than then.
    `free` are the blocks of the relation of that name, `saturated` those of v1 and of v2, `arrivals` v2's per replica
    and second and `in_flight` its requests in flight, (B,) each, NaN where not known.
    """
    size = free.size
    known = np.isfinite(arrivals) & np.isfinite(in_flight) & (zero_unknown(arrivals) > 0.0)
    arrived, flying = (np.where(known, each, 0.0) for each in (arrivals, in_flight))
    served = np.cumsum(free & known)
    usual_arrivals = np.maximum.accumulate(np.where(free & known, _mean(arrived, known, _SMOOTHED), 0.0))
    usual_flying = np.divide(
        np.cumsum(np.where(free, flying, 0.0)), np.cumsum(np.where(free, arrived, 0.0)),
        out=np.full(size, np.inf), where=served >= _LEAST_SERVED,
    )  # fmt: skip
    now = _mean(arrived, known, _LASTING)
    per_arrival = np.divide(_mean(flying, known, _LASTING), now, out=np.zeros(size), where=now > 0.0)
    v1, v2 = (
        _trailing_sum(each.astype(float), blocks) for each, blocks in zip(saturated, (_SMOOTHED, _LASTING), strict=True)
    )
    found = (v2 >= _LASTING) & (v1 <= 0.0) & (now > 0.0) & (now <= _LIKE_ARRIVALS * usual_arrivals)
    found &= per_arrival >= _GROWN * usual_flying
    return np.concatenate([[False], found[:-1]]) if size else found


def jumped(loads: tuple[Floats, Floats], requests: tuple[Floats, Floats]) -> NDArray[np.bool_]:
    """In which blocks v2 suddenly carries more beside v1 than in the hour before, (B,), and not by chance.

    For a quarter of an hour at most, after which it is v2's load. `loads` are v1's and v2's per replica, `requests`
    those of the arms, (B,) each, 0 or NaN where not known.
    """
    known = np.all([np.nan_to_num(each) > 0.0 for each in (*loads, *requests)], axis=0)
    v1, v2, n1, n2 = (np.where(known, each, 0.0) for each in (*loads, *requests))
    before = [np.concatenate([[0.0], _trailing_sum(each)])[: known.size] for each in (v1, v2, n1, n2)]
    known &= before[0] > 0.0
    times = np.divide(v2 * before[0], v1 * before[1], out=np.ones(known.size), where=known)
    counts = np.where(known, np.array([n1, n2, *before[2:]]), 1.0)
    found = known & (np.log(times) > math.log(_JUMPED) + _SURE * np.sqrt((1.0 / counts).sum(axis=0)))
    return np.asarray(found & (_trailing_sum(found.astype(float), _LASTING + 1) <= _LASTING))


def _mean(values: Floats, known: NDArray[np.bool_], blocks: int) -> Floats:
    """The mean of the known ones of the last blocks, 0 without any."""
    count = _trailing_sum(known.astype(float), blocks)
    return np.divide(_trailing_sum(values, blocks), count, out=np.zeros(count.shape), where=count > 0.0)


def _trailing_sum(values: Floats, blocks: int = _SMOOTHED) -> Floats:
    """The sum of each block and those before it, an hour in all: (B,)."""
    running = np.concatenate([np.zeros(blocks), np.cumsum(values)])
    return np.asarray(running[blocks:] - running[:-blocks])


def recent_load(loads: Floats) -> float | None:
    """The mean load per replica of the last hour, over which loads are compared; None where none is known."""
    known = loads[-_SMOOTHED:][np.isfinite(loads[-_SMOOTHED:])]
    return float(known.mean()) if known.size else None


def load_range(loads: Floats) -> tuple[float, float] | None:
    """The 5 % and 95 % quantiles of the loads per replica that were judged, None where there were none."""
    known = loads[np.isfinite(loads) & (loads > 0.0)]
    return (float(np.quantile(known, 0.05)), float(np.quantile(known, 0.95))) if known.size else None
