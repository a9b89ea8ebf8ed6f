"""What is judged and no counter counts: requests that never end, restarts, cost, and where a cache is in a day."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from servescope.contract.judged import GPU_COST, REPLICA_COST
from servescope.cutover.evidence.agreement import DURATION
from servescope.cutover.evidence.folding import ArmFold, ReplicaSums
from servescope.cutover.evidence.shortfall import count_processes, in_flight
from servescope.cutover.statistics.sequences import Floats, zero_unknown
from servescope.cutover.statistics.trends import median_slope, trend_score
from servescope.increments.blocks import BLOCK_MS

_BLOCK_SECONDS: Final = BLOCK_MS / 1000
_BLOCK_HOURS: Final = BLOCK_MS / 3_600_000
_LEAST_AGE: Final = 6
"""Blocks for which requests are under way beyond what durations explain before they are counted as lost."""
_LONGER: Final = 4.0
"""Where they last longer, by how many times v1's mean duration."""
_HOUR: Final = 12
_LEAST_HOURS: Final = 7
_MOST_HOURS: Final = 24
_RISES: Final = 3.0
"""Mann and Kendall's score from which a cache's use rises: of seven hours each has to be above the one before."""


def unended(arm: ArmFold) -> ReplicaSums:
    """The requests that began and were lost, among those that began.

    Those that are under way beyond what the durations of others explain, and have been for half an hour, or for four
    mean durations where that is longer. What ends later all the same is taken off what is found after it.
    """
    started, ended = arm.traffic["started"], arm.traffic["requests"]
    layers = [arm.layers.get(name) for name in ("requests_started_total", "requests_total")]
    known = np.isfinite(started) & np.isfinite(ended)
    if None in layers or len({each.name for each in layers if each is not None}) > 1 or not known.any():
        return ReplicaSums(np.full_like(started, np.nan), np.full_like(started, np.nan))
    begun, done = (np.where(known, each, 0.0) for each in (started, ended))
    explained = in_flight(arm, slice(None))[1]
    open_ = np.cumsum(begun.sum(axis=0) - done.sum(axis=0)) - explained
    age = _age(arm)
    # The least of the last blocks: what is younger than that may still end.
    before = np.concatenate([np.zeros(age), np.maximum(open_, 0.0)])
    least = np.lib.stride_tricks.sliding_window_view(before, age + 1).min(axis=1)
    lost = np.diff(np.maximum.accumulate(least), prepend=0.0)
    whole = begun.sum(axis=0)
    parts = np.divide(begun, whole, out=np.zeros_like(begun), where=whole > 0.0)
    return ReplicaSums(np.where(known, lost * parts, np.nan), np.where(known, begun, np.nan))


def _age(arm: ArmFold) -> int:
    lasting = arm.metrics.get(DURATION)
    if lasting is None or not np.nansum(lasting.below) > 0.0:
        return _LEAST_AGE
    mean = float(np.nansum(lasting.above) / np.nansum(lasting.below))
    return max(_LEAST_AGE, int(np.ceil(_LONGER * mean / _BLOCK_SECONDS)))


def restarts(arm: ArmFold) -> ReplicaSums:
    """The restarts of replicas among the hours that they were there; if no start is shown, counters that reset."""
    processes = count_processes(arm.started)
    begun = np.diff(processes, prepend=processes[:, :1], axis=1)
    shows = np.isfinite(arm.started).any(axis=1, keepdims=True)
    begun = np.where(shows, begun, (arm.resets > 0.0).astype(float))
    return ReplicaSums(np.where(arm.present, begun, np.nan), np.where(arm.present, _BLOCK_HOURS, np.nan))


def cost(arm: ArmFold, *, of_gpus: bool) -> ReplicaSums:
    """GPU-seconds or replica-seconds among thousands of output tokens; known of replicas that generate tokens."""
    tokens = arm.traffic["output_tokens"]
    used = arm.gpus if of_gpus else np.ones_like(tokens)
    known = np.isfinite(tokens) & (arm.scrapes > 0.0) & (used > 0.0)
    return ReplicaSums(np.where(known, used * _BLOCK_SECONDS, np.nan), np.where(known, tokens / 1000.0, np.nan))


DERIVED: Final[Mapping[str, Callable[[ArmFold], ReplicaSums]]] = MappingProxyType(
    {
        "request_unended_share": unended,
        "restarts_per_replica_hour": restarts,
        GPU_COST: lambda arm: cost(arm, of_gpus=True),
        REPLICA_COST: lambda arm: cost(arm, of_gpus=False),
    }
)
"""How a metric is computed that is no sum of series of one name."""


def cache_in_a_day(v1: Floats, v2: Floats) -> Floats:
    """Where v2's use of its cache is a day later, after each block, (B,): at the end of each hour what it uses, and a
    day of its rise, where it rises beside v1's over the last 7 to 24 hours; NaN before and where it is not reported.

    `v1` and `v2` are the use of their replicas, (P, B), NaN where not known.
    """
    uses = [_mean(each) for each in (v1, v2)]
    # Without a control, a morning looks like a leak.
    beside = uses[1] - uses[0]
    found = np.full(uses[1].size, np.nan)
    hours = uses[1].size // _HOUR
    hourly, level = (_mean(each[: hours * _HOUR].reshape(hours, _HOUR).T) for each in (beside, uses[1]))
    for hour in range(hours):
        past = hourly[max(0, hour + 1 - _MOST_HOURS) : hour + 1]
        past = past[np.isfinite(past)]
        rises = past.size >= _LEAST_HOURS and trend_score(past) >= _RISES
        rise = median_slope(past) if rises else 0.0
        found[(hour + 1) * _HOUR - 1 :] = level[hour] + 24.0 * rise
    return found


def _mean(values: Floats) -> Floats:
    """The mean of each column's known values, NaN where none is."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    total = zero_unknown(values).sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0))
