"""v2's token autoscaler on what v1 served: replicas over time, what they carry, and which target to begin with.

It sees the mean of each block of five minutes, which is what it decides on at the block's end with its documented
window of 300 s, and its decision holds in the next block. Peaks within a block are not seen. What is not known is left
out, and not taken to be zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.judged import IN_FLIGHT_TOKENS_PER_WORKER
from servescope.migration.scaling import SlidingWindow, TokenPolicy, TokenScaling
from servescope.migration.traffic.in_flight import ReconstructedTokens
from servescope.migration.traffic.traffic import BLOCK_SECONDS, Floats, ServedTraffic
from servescope.settings.values import format_percent

BEYOND_SHARE: Final = 0.001
"""How much of the requests in flight may be beyond what the replicas carry."""
FULLER: Final = 1.05
"""How much fuller than v1's a replica may be, in 95 % of the time, for the same service."""
AT_MAXIMUM_SHARE: Final = 0.05
_BLOCK_HOURS: Final = BLOCK_SECONDS / 3600


@dataclass(frozen=True, slots=True, eq=False)
class ServedLoad:
    """What was in flight by block, (n,), of blocks that begin at `blocks` in milliseconds: tokens and requests."""

    blocks: NDArray[np.int64]
    tokens: Floats
    concurrency: Floats


@dataclass(frozen=True, slots=True)
class ReplicaCapacity:
    """What one replica carries: requests at once, and tokens in flight with its KV cache full, None where not known.

    A new one serves `start_seconds` after it was ordered. `gpus` are its GPUs, None where not known.
    """

    requests: float
    tokens: float | None = None
    start_seconds: float = 0.0
    gpus: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TargetSimulation:
    """What a number of replicas over time would have been like, or was: by block, (n,), NaN where nothing is known.

    `replicas` are ordered, of which `serving` are ready, on average over the block; `tokens_per_replica` is what these
    hold. Shares are of the time that is known, but `beyond_share` of the requests in flight: those that the replicas
    do not carry at once, `beyond` on average. `stopped` counts replicas that were stopped, each with its cache.
    `target` is None of what v1 did.
    """

    target: float | None
    max_replica: int
    blocks: NDArray[np.int64]
    replicas: Floats
    serving: Floats
    tokens_per_replica: Floats
    beyond: Floats
    beyond_share: float
    at_maximum_share: float
    started: int
    stopped: int
    replica_hours: float
    gpu_hours: float | None

    @property
    def usual_tokens(self) -> float:
        """The tokens in flight of a replica, on average."""
        return float(np.nanmean(self.tokens_per_replica))

    @property
    def most_tokens(self) -> float:
        """The tokens in flight of a replica that are not exceeded in 95 % of the time."""
        return float(np.nanquantile(self.tokens_per_replica, 0.95))


@dataclass(frozen=True, slots=True)
class TargetRecommendation:
    """One target, why, and whether it does all that is wanted of one."""

    target: int
    reason: str
    is_met: bool


def simulate_target(load: ServedLoad, scaling: TokenScaling, capacity: ReplicaCapacity) -> TargetSimulation:
    """The token autoscaler on a load, from its initial replicas on."""
    policy, window = TokenPolicy(scaling), SlidingWindow(scaling.autoscaling_window)
    replicas = np.full(load.blocks.size, np.nan)
    ordered = scaling.initial_replicas
    known = np.flatnonzero(np.isfinite(load.tokens)).tolist()
    for index in known:
        tokens = float(load.tokens[index])
        replicas[index] = ordered
        now = (index - known[0] + 1) * BLOCK_SECONDS
        window.add(now, tokens)
        ordered = policy.decide(now, window.mean() / scaling.target_in_flight_tokens).replicas
    serving = _serving(replicas, capacity.start_seconds)
    return _measure(load, capacity, replicas, serving, scaling.max_replica, scaling.target_in_flight_tokens)


def measure_served(load: ServedLoad, replicas: Floats, max_replica: int, capacity: ReplicaCapacity) -> TargetSimulation:
    """The same of the replicas that there were, all of which served."""
    known = np.where(np.isnan(load.tokens), np.nan, replicas)
    return _measure(load, capacity, known, known, max_replica, None)


def recommend_target(simulations: Sequence[TargetSimulation], served: TargetSimulation) -> TargetRecommendation:
    """The cheapest target at which v2 serves what v1 did: nothing beyond its capacity, replicas hardly fuller than
    v1's (`FULLER`), and seldom at the maximum; where none does, the one that comes nearest.
    """
    low, high = IN_FLIGHT_TOKENS_PER_WORKER
    fitting = [each for each in simulations if not _shortcomings(each, served)]
    if fitting:
        chosen = min(
            fitting,
            key=lambda each: (
                round(each.replica_hours, 3), not low <= (each.target or 0) <= high, each.target,
            ),
        )  # fmt: skip
        saved = 1 - chosen.replica_hours / served.replica_hours if served.replica_hours else 0.0
        cost = f"{format_percent(abs(saved))} {'fewer' if saved >= 0 else 'more'} replica-hours than v1 used"
        reason = (
            f"the cheapest of {len(fitting)} targets that carry all requests with replicas at most "
            f"{round(100 * (FULLER - 1))} % fuller than v1's (up to {chosen.most_tokens:,.0f} tokens in 95 % of the "
            f"time, v1's up to {served.most_tokens:,.0f}): {cost}, {chosen.stopped} caches lost"
        )
        return TargetRecommendation(round(chosen.target or 0), reason, is_met=True)
    chosen = min(simulations, key=lambda each: (each.beyond_share, each.most_tokens, each.replica_hours))
    reason = f"no target serves what v1 did; this one comes nearest: {'; '.join(_shortcomings(chosen, served))}"
    return TargetRecommendation(round(chosen.target or 0), reason, is_met=False)


def measure_cache(traffic: ServedTraffic, tokens: ReconstructedTokens) -> float | None:
    """The tokens in flight with which a replica's KV cache was full: v1's, shared prefixes counted each time.

    None where the use of the cache is not reported, or was below 1 %.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        held = tokens.estimate / traffic.replicas
    both = np.isfinite(held) & np.isfinite(traffic.cache_usage)
    used = float(traffic.cache_usage[both].sum())
    return float(held[both].sum()) / used if both.any() and used / both.sum() > 0.01 else None


def load_of(tokens: ReconstructedTokens, blocks: NDArray[np.int64], which: str = "estimate") -> ServedLoad:
    """The load by the `low`, `estimate` or `high` of the band."""
    return ServedLoad(blocks, getattr(tokens, which), tokens.concurrency)


def scaling_for(scaling: TokenScaling, target: float, replicas: Floats) -> TokenScaling:
    """Settings with a target, that begin with the replicas there were, as far as their bounds allow."""
    known = replicas[np.isfinite(replicas)]
    begun = round(float(known[0])) if known.size else scaling.min_replica
    initial = min(max(begun, scaling.min_replica), scaling.max_replica)
    return replace(scaling, target_in_flight_tokens=target, initial_replicas=initial)


def _serving(replicas: Floats, start_seconds: float) -> Floats:
    """The replicas that are ready, on average over each block: at a time the fewest ordered since a start before it."""
    whole, rest = divmod(start_seconds / BLOCK_SECONDS, 1.0)
    return (1 - rest) * _fewest(replicas, int(whole)) + rest * _fewest(replicas, int(whole) + 1)


def _fewest(replicas: Floats, back: int) -> Floats:
    """The fewest in each block and so many before it."""
    fewest = replicas.copy()
    for shift in range(1, min(back, replicas.size - 1) + 1):
        # What is not known there does not count.
        fewest[shift:] = np.where(np.isnan(replicas[shift:]), np.nan, np.fmin(fewest[shift:], replicas[:-shift]))
    return fewest


def _measure(
    load: ServedLoad,
    capacity: ReplicaCapacity,
    replicas: Floats,
    serving: Floats,
    max_replica: int,
    target: float | None,
) -> TargetSimulation:
    known = np.isfinite(replicas) & np.isfinite(load.tokens)
    with np.errstate(invalid="ignore", divide="ignore"):
        held = np.where(load.concurrency > 0, load.tokens / load.concurrency, np.nan)
        carried = np.full(load.blocks.size, capacity.requests)
        if capacity.tokens is not None:
            carried = np.fmin(carried, capacity.tokens / held)
        beyond = np.where(known, np.maximum(load.concurrency - serving * carried, 0.0), np.nan)
        per_replica = np.where(known & (serving > 0), load.tokens / serving, np.nan)
    steps = np.diff(replicas[known])
    in_flight = float(load.concurrency[known].sum())
    hours = float(replicas[known].sum()) * _BLOCK_HOURS
    return TargetSimulation(
        target=target,
        max_replica=max_replica,
        blocks=load.blocks,
        replicas=replicas,
        serving=serving,
        tokens_per_replica=per_replica,
        beyond=beyond,
        beyond_share=float(np.nansum(beyond)) / in_flight if in_flight else 0.0,
        at_maximum_share=float((replicas[known] >= max_replica).mean()) if known.any() else 0.0,
        started=round(float(steps[steps > 0].sum())),
        stopped=round(float(-steps[steps < 0].sum())),
        replica_hours=hours,
        gpu_hours=hours * capacity.gpus if capacity.gpus is not None else None,
    )


def _shortcomings(simulation: TargetSimulation, served: TargetSimulation) -> list[str]:
    found = []
    if simulation.beyond_share > BEYOND_SHARE:
        found.append(
            f"{format_percent(simulation.beyond_share, 1)} of the requests in flight are beyond the replicas' capacity"
        )
    if simulation.most_tokens > FULLER * served.most_tokens:
        found.append(
            f"replicas hold up to {simulation.most_tokens:,.0f} tokens in 95 % of the time, more than "
            f"{round(100 * (FULLER - 1))} % beyond v1's {served.most_tokens:,.0f}"
        )
    if simulation.at_maximum_share > max(AT_MAXIMUM_SHARE, served.at_maximum_share):
        found.append(
            f"{format_percent(simulation.at_maximum_share)} of the time is spent at max_replica "
            f"{simulation.max_replica}"
        )
    return found
