"""Requests counted by replica and block, as the increments of the counters, histograms and gauges that
a judge reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from benchmarks._judge_requests import BLOCKS_PER_DAY, EPOCH_MS, Flags, Floats, Lives, Requests, Setting, Whole
from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, OUTCOMES
from servescope.contract.samples import Series, format_edge, make_labels
from servescope.increments.blocks import BLOCK_MS, Tallies, TargetIncrements

SCRAPE_INTERVAL_MS: Final = 15_000

_HISTOGRAMS: Final = (
    "time_to_first_token_seconds", "time_per_output_token_seconds", "request_duration_seconds", "tps_per_request",
    "input_tokens_per_request", "output_tokens_per_request",
)  # fmt: skip


def count(
    requests: Requests,
    setting: Setting,
    *,
    started_ms: int = EPOCH_MS - 7 * BLOCKS_PER_DAY * BLOCK_MS,
    saturated: bool = False,
    gpus: int = 1,
    creep: Floats | float = 0.0,
    restarts_ms: Floats | None = None,
) -> tuple[TargetIncrements, ...]:
    """The increments of each replica, which has so many `gpus`.

    `creep` is what its cache holds besides requests, (blocks,), `restarts_ms` when its process began last, (replicas,
    blocks), NaN before it ever began anew.
    """
    replicas, blocks = requests.replicas, len(requests.blocks)
    cell = requests.replica * blocks + requests.block
    failed = requests.failed
    aborted = requests.chance > 1 - setting.abort_share
    ended = np.ones(failed.size, dtype=np.bool_) if requests.lost is None else ~requests.lost
    if requests.left is not None:
        aborted |= requests.left
    failed = failed & ended
    served = ~failed & ended
    done = cell[served]
    first, per_token = requests.first_token[served], requests.per_token[served]
    output, prompt = requests.output[served], requests.prompt[served]
    decode = per_token * (output - 1)
    values = dict(zip(_HISTOGRAMS, (first, per_token, first + decode, 1 / per_token, prompt, output), strict=True))
    names: list[Series] = []
    rows: list[Floats] = []
    for name in _HISTOGRAMS:
        cumulative, total = _histogram(name, values[name], done, replicas * blocks)
        edges = METRICS[name].edges or ()
        names += [
            Series(f"{name}_bucket", make_labels({"le": format_edge(edge)})) for edge in (*edges, math.inf)
        ]  # fmt: skip
        names += [Series(f"{name}_sum", ()), Series(f"{name}_count", ())]
        rows += [*cumulative, total, cumulative[-1]]

    def counted(chosen: Whole, weights: Floats | None = None) -> Floats:
        return np.bincount(chosen, weights, minlength=replicas * blocks).astype(np.float64)

    outcomes = {"ok": served & ~aborted, "client_abort": served & aborted, "error": failed}
    for outcome in OUTCOMES:
        names.append(Series("requests_total", make_labels({"outcome": outcome})))
        rows.append(counted(cell[outcomes[outcome]]) if outcome in outcomes else np.zeros(replicas * blocks))
    counters = {
        "requests_started_total": counted(cell),
        "input_tokens_total": counted(done, prompt),
        "output_tokens_total": counted(done, output),
        "decode_seconds_total": counted(done, decode),
        "preemptions_total": counted(cell) * (0.05 if saturated else 0.0),
    }
    if requests.reused is not None:
        counters |= {
            "kv_cache_eligible_tokens_total": counted(done, prompt),
            "kv_cache_reused_tokens_total": counted(done, requests.reused[served]),
        }
    names += [Series(name, ()) for name in counters]
    rows += list(counters.values())
    gains = np.stack(rows).reshape(len(rows), replicas, blocks)
    busy = counted(done, values["request_duration_seconds"]).reshape(replicas, blocks) / (BLOCK_MS / 1000)
    series = tuple(names)
    lives = requests.lives or Lives(
        tuple(f"{requests.stack}-{replica}" for replica in range(replicas)), np.full(replicas, float(started_ms)),
        np.ones((replicas, blocks), dtype=np.bool_),
    )  # fmt: skip
    return tuple(
        make_target(
            Identity("llama-3.3-70b", f"chat-{requests.stack}", requests.stack, replica=lives.names[replica]),
            requests.blocks,
            series,
            gains[:, replica],
            _gauges(busy[replica], creep, gpus, saturated=saturated),
            lives.started_ms[replica]
            if restarts_ms is None
            else np.where(np.isnan(restarts_ms[replica]), lives.started_ms[replica], restarts_ms[replica]),
        ).at(_span(lives.alive[replica]))
        for replica in range(replicas)
    )


def _span(alive: Flags) -> slice:
    """The blocks from the first to the last in which a process ran."""
    blocks = np.flatnonzero(alive)
    return slice(int(blocks[0]), int(blocks[-1]) + 1) if blocks.size else slice(0, 0)


def _histogram(name: str, values: Floats, cell: Whole, cells: int) -> tuple[Floats, Floats]:
    """Cumulative counts, (edges + 1, cells), and the sums, (cells,)."""
    edges = np.array(METRICS[name].edges)
    width = len(edges) + 1
    bucket = np.searchsorted(edges, values)
    counts = np.bincount(bucket * cells + cell, minlength=width * cells).reshape(width, cells)
    sums: Floats = np.bincount(cell, values, minlength=cells).astype(np.float64)
    return np.cumsum(counts, axis=0, dtype=np.float64), sums


def _gauges(
    busy: Floats, creep: Floats | float, gpus: int, *, saturated: bool
) -> Mapping[Series, tuple[Floats, Floats]]:
    """The levels of a replica's gauges, and the share of scrapes above the level at which it is saturated."""
    full = np.full(len(busy), float(saturated))
    none = np.full(len(busy), math.nan)
    used = np.minimum(np.minimum(0.3 + 0.01 * busy, 0.85) + creep, 1.0 - 0.1 * full)
    return {
        Series("queued_requests", ()): (6.0 * full, full),
        Series("kv_cache_usage", ()): (used + 0.1 * full, full),
        Series("concurrent_requests", ()): (busy + 6.0 * full, none),
        **{
            Series("gpu_usage", make_labels({"gpu": str(number)})): (np.full(len(busy), 0.6), none)
            for number in range(gpus)
        },
    }


def make_target(
    identity: Identity,
    blocks: Whole,
    series: tuple[Series, ...],
    gains: Floats,
    gauges: Mapping[Series, tuple[Floats, Floats]],
    started_ms: Floats | float,
) -> TargetIncrements:
    none = np.zeros(len(blocks), dtype=np.int64)
    return TargetIncrements(
        identity.target_id, identity, blocks, series, gains, tuple(gauges),
        np.stack([levels for levels, _ in gauges.values()]), np.stack([above for _, above in gauges.values()]),
        np.broadcast_to(started_ms, len(blocks)).astype(float),
        Tallies(none + BLOCK_MS // SCRAPE_INTERVAL_MS, none, none, none, none),
        source="servescope",
    )  # fmt: skip
