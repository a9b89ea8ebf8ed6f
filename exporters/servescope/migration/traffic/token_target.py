"""v2's `target_in_flight_tokens` from the traffic that v1 served: what was measured, simulated, and is recommended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from servescope.contract.judged import IN_FLIGHT_TOKENS_PER_WORKER
from servescope.errors import UsageError
from servescope.increments.blocks import BLOCK_MS
from servescope.migration.fields.llm_config import ROUTER_WORKERS, TOO_MANY_WORKERS
from servescope.migration.fields.meaning import token_target
from servescope.migration.scaling import MOST_REPLICAS, TokenScaling
from servescope.migration.traffic.in_flight import ReconstructedTokens, TokenBand, reconstruct_in_flight
from servescope.migration.traffic.simulation import (
    ReplicaCapacity,
    TargetRecommendation,
    TargetSimulation,
    load_of,
    measure_cache,
    measure_served,
    recommend_target,
    scaling_for,
    simulate_target,
)
from servescope.migration.traffic.traffic import BLOCK_SECONDS, Floats, ServedTraffic
from servescope.settings.values import format_instant

LEAST_BLOCKS: Final = 12
"""Nothing is said on less than an hour."""
_DAY_BLOCKS: Final = 288
_AROUND: Final = (0.5, 0.7, 0.85, 1.0, 1.2)
"""The targets that are tried, as parts of what v1's replicas held in 95 % of the time."""
_DIFFERENT: Final = 0.2
_NORMAL_95: Final = 1.645


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """What is decided beside the traffic: targets to try, and what v2 has for each of its replicas.

    `max_replica` is the most that v1 had where it is None. `scaling` has v2's other settings of autoscaling.
    `requests_from` says where `requests_per_replica` is from.
    """

    targets: tuple[int, ...] = ()
    concurrency_target: float | None = None
    max_replica: int | None = None
    requests_per_replica: int = 256
    requests_from: str = "v2's default of max_batch_size"
    start_seconds: float = 120.0
    gpus_per_replica: int | None = None
    scaling: TokenScaling = field(default_factory=TokenScaling)


@dataclass(frozen=True, slots=True)
class SizeSummary:
    """The mean and quantiles of a histogram of requests, and how many it counted."""

    count: float
    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class FormulaTarget:
    """The documented formula: `concurrency_target` × the mean tokens of a request, in and out.

    So many requests of the sizes that were measured have between `low` and `high` tokens, nine times of ten.
    """

    concurrency_target: float
    tokens_per_request: float
    target: int
    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class TokenTargets:
    """Numbers from traffic: what was served, tokens in flight as bands, targets simulated, and one recommended.

    `per_replica` is by quantile, of the tokens in flight of a replica over time. `uncertain` are the recommended
    target's simulations at the lower and the upper bound of the tokens in flight. `recommended_band` is the target that
    has the same effect at those bounds. `sizes` are by metric of the contract.
    """

    traffic: ServedTraffic
    tokens: ReconstructedTokens
    sizes: dict[str, SizeSummary]
    tokens_per_request: float
    per_replica: dict[float, TokenBand]
    formula: FormulaTarget | None
    capacity: ReplicaCapacity
    served: TargetSimulation
    simulations: tuple[TargetSimulation, ...]
    recommendation: TargetRecommendation
    recommended_band: TokenBand
    uncertain: tuple[TargetSimulation, TargetSimulation]
    notes: tuple[str, ...]

    @property
    def known_hours(self) -> float:
        """For how many hours it is known what was in flight."""
        return float(np.isfinite(self.tokens.estimate).sum()) * BLOCK_SECONDS / 3600


def measure_targets(traffic: ServedTraffic, options: TargetOptions) -> TokenTargets:
    """The numbers from traffic.

    Raises UsageError where less than an hour is known, where a histogram that is needed is missing, and for options
    that cannot be.
    """
    tokens = reconstruct_in_flight(traffic)
    known = np.isfinite(tokens.estimate) & traffic.known
    if known.sum() < LEAST_BLOCKS:
        minutes = int(known.sum()) * BLOCK_MS // 60_000
        raise UsageError(f"{traffic.name}: {minutes} minutes of traffic are known, expected an hour at least")
    if not np.nansum(tokens.estimate) > 0:
        raise UsageError(f"{traffic.name}: no request was in flight in this time, expected one with traffic")
    sizes = dict(_summarise(traffic))
    per_request = sizes["input_tokens_per_request"].mean + sizes["output_tokens_per_request"].mean
    formula = _apply_formula(traffic, options.concurrency_target, per_request)
    cache = measure_cache(traffic, tokens)
    gpus = options.gpus_per_replica if options.gpus_per_replica is not None else traffic.gpus_per_replica
    capacity = ReplicaCapacity(options.requests_per_replica, cache, options.start_seconds, gpus)
    most = options.max_replica or max(round(float(np.nanmax(traffic.replicas))), options.scaling.min_replica)
    scaling = _with_most(options.scaling, most)
    per_replica = {share: tokens.per_replica(traffic.replicas, share) for share in (0.5, 0.95, 0.99)}
    load = load_of(tokens, traffic.blocks)
    served = measure_served(load, traffic.replicas, most, capacity)
    targets = options.targets or _targets(per_replica[0.95].estimate, formula)
    simulations = tuple(
        simulate_target(load, scaling_for(scaling, target, traffic.replicas), capacity) for target in targets
    )
    recommendation = recommend_target(simulations, served)
    chosen = scaling_for(scaling, recommendation.target, traffic.replicas)
    low, high = (simulate_target(load_of(tokens, traffic.blocks, bound), chosen, capacity) for bound in ("low", "high"))
    held = tokens.per_request
    return TokenTargets(
        traffic=traffic,
        tokens=tokens,
        sizes=sizes,
        tokens_per_request=per_request,
        per_replica=per_replica,
        formula=formula,
        capacity=capacity,
        served=served,
        simulations=simulations,
        recommendation=recommendation,
        recommended_band=held.scaled(recommendation.target / held.estimate),
        uncertain=(low, high),
        notes=(*_note_documented(recommendation.target, most), *_notes(traffic, tokens, options, capacity, most)),
    )


def _with_most(scaling: TokenScaling, most: int) -> TokenScaling:
    if not scaling.min_replica <= most <= MOST_REPLICAS:
        raise UsageError(f"max_replica is {most}, expected {scaling.min_replica} (min_replica) to {MOST_REPLICAS}")
    return replace(scaling, max_replica=most, initial_replicas=scaling.min_replica)


def _summarise(traffic: ServedTraffic) -> Iterator[tuple[str, SizeSummary]]:
    for name in traffic.histograms:
        found = traffic.pool(name)
        if found is not None:
            p50, p90, p99 = (found.quantile(share) for share in (0.5, 0.9, 0.99))
            yield name, SizeSummary(found.count, found.mean, p50, p90, p99)


def _apply_formula(
    traffic: ServedTraffic, concurrency_target: float | None, tokens_per_request: float
) -> FormulaTarget | None:
    if concurrency_target is None:
        return None
    target = token_target(concurrency_target, tokens_per_request)
    pools = [traffic.pool(name) for name in ("input_tokens_per_request", "output_tokens_per_request")]
    # Whether long prompts have long answers is not known: the deviations add up where they do.
    deviation = sum(each.deviation() for each in pools if each is not None)
    around = _NORMAL_95 * deviation * concurrency_target**0.5
    return FormulaTarget(concurrency_target, tokens_per_request, target, max(target - around, 0.0), target + around)


def _targets(usual: float, formula: FormulaTarget | None) -> tuple[int, ...]:
    """The targets that are tried: around what v1's replicas held, the documented ones, and that of the formula."""
    low, high = IN_FLIGHT_TOKENS_PER_WORKER
    tried = [usual * part for part in _AROUND] + [low, (low + high) / 2, high]
    tried += [formula.target] if formula is not None else []
    return tuple(sorted({max(_round(each), 1) for each in tried}))


def _round(tokens: float) -> int:
    """To two digits: a target is no measurement."""
    return int(float(f"{tokens:.1e}"))


def _note_documented(target: int, most: int) -> Iterator[str]:
    """Where what is recommended, or taken, is outside of what the documents advise."""
    low, high = IN_FLIGHT_TOKENS_PER_WORKER
    if not low <= target <= high:
        yield f"{target:,} is outside of the documented {low:,.0f} to {high:,.0f} tokens"
    if most > ROUTER_WORKERS:
        yield f"max_replica is {most}: {TOO_MANY_WORKERS}"


def _notes(
    traffic: ServedTraffic, tokens: ReconstructedTokens, options: TargetOptions, capacity: ReplicaCapacity, most: int
) -> Iterator[str]:
    known = np.isfinite(tokens.estimate) & traffic.known
    if known.sum() < _DAY_BLOCKS:
        hours = known.sum() * BLOCK_SECONDS / 3600
        yield f"{hours:.1f} hours of traffic are known, less than a day: its peak may not be among them"
    for first, last in _gaps(known):
        begin, end = int(traffic.blocks[first]), int(traffic.blocks[last]) + BLOCK_MS
        yield (
            f"nothing is known from {format_instant(begin)} to {format_instant(end)}: left out, as no replicas and no "
            "scrapes look the same"
        )
    if tokens.is_derived:
        yield "requests in flight are not reported: they follow from how many ended and how long they took"
    else:
        yield from _check_littles_law(traffic)
    if options.max_replica is None:
        yield f"max_replica is taken to be {most}, the most that v1 had (--max-replica)"
    yield (
        f"a replica is taken to carry {capacity.requests:g} requests at once, {options.requests_from} "
        "(--requests-per-replica)"
    )
    if capacity.tokens is None:
        yield "the use of the KV cache is not reported: whether it would be full is not simulated"
    else:
        yield (
            f"a replica's KV cache was full with about {capacity.tokens:,.0f} tokens in flight on v1; v2 sizes its own"
        )
    yield f"a new replica is taken to serve {capacity.start_seconds:g} s after it was ordered (--start-seconds)"
    if capacity.gpus is None:
        yield "GPUs of a replica are not known: replica-hours are shown in place of GPU-hours"
    yield from traffic.remarks


def _gaps(known: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Iterator[tuple[int, int]]:
    """The first and the last block of each time that is not known."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], ~known, [False])).astype(np.int8)))
    for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield first, end - 1


def _check_littles_law(traffic: ServedTraffic) -> Iterator[str]:
    durations = traffic.histograms["request_duration_seconds"].totals
    known = np.isfinite(traffic.concurrency) & np.isfinite(durations)
    seen, computed = _mean(traffic.concurrency[known]), _mean(durations[known]) / BLOCK_SECONDS
    if abs(seen - computed) > _DIFFERENT * max(seen, computed):
        yield (
            f"{seen:.1f} requests are reported to be in flight, and {computed:.1f} follow from how many ended and how "
            "long they took: one of both counts something else; the bands span both, and hold as far as the reported "
            "ones are like those that ended"
        )


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else 0.0
