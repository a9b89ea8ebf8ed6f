"""A recorded trace served twice by the same emulated workers: routed by load, as v1 does, and by v2's router."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from servescope.emulator.deployment.configured import read_workers
from servescope.emulator.replay import MOST_WORKERS, ReplayReport, ReplaySettings, replay
from servescope.emulator.router.configuration import parse_routing
from servescope.emulator.workload.plans import ReplayedTraffic
from servescope.emulator.workload.traces import MOONCAKE_BLOCK_TOKENS, read_trace, survey_trace
from servescope.errors import UsageError
from servescope.migration.advice.routing_advice import RoutedTraffic, RoutingTrial


def try_routers(
    trace: Path,
    config: Mapping[str, Any],
    *,
    replicas: int,
    cache_tokens: int | None = None,
    routing: Mapping[str, Any] | None = None,
) -> RoutingTrial:
    """Replay a trace behind both routers on the `replicas` that a `config.yaml` describes.

    Each has a cache of `cache_tokens`, None for what its memory holds; `routing` is a `b10_routing_config`. Raises
    TraceError for a file that is no trace, and UsageError for one that names no blocks, a number of replicas out of
    range, and a cache that no request fits into.
    """
    if not 1 <= replicas <= MOST_WORKERS:
        raise UsageError(f"replicas is {replicas}, expected 1 to {MOST_WORKERS}")
    survey = survey_trace(trace)
    if survey.format != "mooncake":
        raise UsageError(
            f"{trace}: names no blocks of its prompts, so nothing is known of what they share: expected Mooncake's "
            "JSON Lines, with hash_ids"
        )
    workers, text = read_workers(config)
    if cache_tokens is not None:
        if cache_tokens < MOONCAKE_BLOCK_TOKENS:
            raise UsageError(f"cache_tokens is {cache_tokens}, expected {MOONCAKE_BLOCK_TOKENS} or more")
        workers = replace(workers, blocks=cache_tokens // MOONCAKE_BLOCK_TOKENS)
    settings = ReplaySettings(workers=replicas, router="least-load", engine=workers)
    by_load = replay(ReplayedTraffic(trace), settings)
    kv_aware = replay(
        ReplayedTraffic(trace), replace(settings, router="kv", routing=parse_routing(dict(routing or {})))
    )
    return RoutingTrial(
        trace=trace.name,
        requests=survey.requests,
        seconds=survey.seconds,
        replicas=replicas,
        cache_tokens=by_load.plan.engine.cache_blocks * MOONCAKE_BLOCK_TOKENS,
        engine=text,
        reachable_hit_rate=_find_reachable(trace) / survey.input_tokens,
        by_load=_read(by_load),
        kv_aware=_read(kv_aware),
    )


def _find_reachable(trace: Path) -> int:
    """The prompt tokens that are in the cache already when nothing ever leaves it."""
    seen: set[int] = set()
    found = 0
    for request in read_trace(trace):
        blocks = (request.block_ids or ())[: request.input_tokens // MOONCAKE_BLOCK_TOKENS]
        # At least one token is computed, so a prompt that is cached to its end is never reused whole.
        for block in blocks[: (request.input_tokens - 1) // MOONCAKE_BLOCK_TOKENS]:
            if block not in seen:
                break
            found += 1
        seen.update(blocks)
    return found * MOONCAKE_BLOCK_TOKENS


def _read(report: ReplayReport) -> RoutedTraffic:
    served = report.outcomes.get("ok", 0)
    if not served:
        raise UsageError(
            f"{report.traffic.trace}: not one request was served: the cache of {report.plan.engine.cache_blocks} "
            f"blocks of {report.plan.engine.block_tokens} tokens has no room for them"
        )
    return RoutedTraffic(
        hit_rate=report.figures["kv_cache_hit_rate"]["kv_cache_hit_rate"],
        first_token_mean_seconds=report.figures["time_to_first_token_mean"]["time_to_first_token_mean"],
        first_token_p95_seconds=report.figures["time_to_first_token_p95"]["time_to_first_token_p95"],
        load_imbalance=report.load_imbalance,
        failed=report.requests - served,
    )
