"""Requests of synthetic stacks, drawn one by one: the law that both follow, and what a world adds to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.increments.blocks import BLOCK_MS

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]

BLOCKS_PER_HOUR: Final = 3_600_000 // BLOCK_MS
BLOCKS_PER_DAY: Final = 24 * BLOCKS_PER_HOUR
EPOCH_MS: Final = 1_772_409_600_000
"""A midnight in UTC, 2 March 2026, at which the day's load is at its mean and rises."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The law that traffic and both stacks follow. Spreads and drifts are standard deviations of natural logarithms.

    A replica differs from others of its stack by `replica_spread` for as long as it lives, and drifts by
    `replica_drift`; a whole stack drifts by `stack_drift`, which no comparison of one stack's replicas with each other
    can show. Together they give a comparison of 3 replicas with 9 an excess noise of about 0.07 a block.

    A request in `heavy_share` waits longer for its first token by `heavy_factor` times a Pareto factor of the index
    `heavy_index`, up to the clients' timeout of `heavy_seconds`. A first token comes sooner by the factor
    exp(−`reuse_slope`) when all of the prompt is cached.
    """

    requests_per_minute: float = 300.0
    swing: float = 0.6
    first_token_median: float = 0.35
    first_token_sigma: float = 0.7
    prompt_median: float = 800.0
    prompt_sigma: float = 1.0
    prompt_slope: float = 0.35
    output_median: float = 150.0
    output_sigma: float = 0.8
    per_token_median: float = 0.025
    per_token_sigma: float = 0.25
    load_slope: float = 0.25
    shock: float = 0.10
    replica_spread: float = 0.015
    replica_drift: float = 0.031
    stack_drift: float = 0.010
    drift_minutes: float = 20.0
    error_share: float = 0.002
    abort_share: float = 0.01
    heavy_share: float = 0.0
    heavy_factor: float = 10.0
    heavy_index: float = 1.3
    heavy_seconds: float = 300.0
    reuse_slope: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Lives:
    """The processes of a stack that is not the same all day: (rows,) of `names` and `started_ms`, (rows, blocks)."""

    names: tuple[str, ...]
    started_ms: Floats
    alive: Flags


@dataclass(frozen=True, slots=True, eq=False)
class Tenants:
    """Whose requests a stack gets: cumulative `shares`, (blocks, T), and what sets each tenant apart, (T,).

    `prompt` and `output` are shifts of the lengths' logarithms, `hits` the probability that a prompt is cached.
    """

    shares: Floats
    prompt: Floats
    output: Floats
    hits: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Weather:
    """What a world does to one stack, (rows, blocks) or what broadcasts to it; nothing by default.

    `demand` is a factor of the requests that a replica is expected to get, `slower` the logarithm of a factor of its
    times, `failing` the share of requests that fail besides the usual errors, `clusters` how many fail together. `hits`
    is the probability that a prompt is cached, None where the stack does not report reuse.
    """

    demand: Floats | float = 1.0
    slower: Floats | float = 0.0
    failing: Floats | float = 0.0
    clusters: Whole | None = None
    hits: Floats | None = None
    tenants: Tenants | None = None
    lives: Lives | None = None


CALM: Final = Weather()


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """The requests of one stack, (n,) each: which of `replicas` and `blocks` they are of and what each one is like.

    `blocks` are the starts of the blocks. `surprise` is how much slower a first token is than its prompt explains, in
    standard deviations; `chance` is uniform and decides the outcome and which requests a partial harm affects.
    `reused` are the prompt's tokens that were cached, None where that is not reported. `left` are those that their
    clients leave besides the usual, `lost` those that begin and never end, None of none.
    """

    stack: str
    replicas: int
    blocks: Whole
    replica: Whole
    block: Whole
    first_token: Floats
    per_token: Floats
    prompt: Floats
    output: Floats
    failed: Flags
    surprise: Floats
    chance: Floats
    reused: Floats | None = None
    lives: Lives | None = None
    left: Flags | None = None
    lost: Flags | None = None


# --- Levels: how slow a replica is in a block
# -----------------------------------------------------------------------------


def load_at(blocks: Whole, setting: Setting) -> Floats:
    """Requests in each block over both stacks, as expected, (n,)."""
    phase = 2 * np.pi * (blocks - EPOCH_MS) / (BLOCKS_PER_DAY * BLOCK_MS)
    return np.asarray(setting.requests_per_minute * (BLOCK_MS / 60_000) * (1 + setting.swing * np.sin(phase)))


def draw_shock(rng: np.random.Generator, setting: Setting, blocks: int) -> Floats:
    """What slows both stacks at once, (2, 1, blocks): of the first token, and of the tokens behind it."""
    return _correlated(rng, autoregress(rng, (2, 1, blocks), setting.shock, 30.0))


def draw_levels(rng: np.random.Generator, setting: Setting, shock: Floats, effects: Floats) -> Floats:
    """The logarithm by which each replica is slower than the median, (2, replicas, blocks)."""
    blocks = shock.shape[-1]
    stack = autoregress(rng, (2, 1, blocks), setting.stack_drift, setting.drift_minutes)
    replicas = autoregress(rng, (2, len(effects), blocks), setting.replica_drift, setting.drift_minutes)
    lasting = np.stack([effects, setting.replica_spread * rng.standard_normal(len(effects))])[:, :, np.newaxis]
    # Tokens behind the first one vary half as much as it does, and mostly together with it.
    return shock + _correlated(rng, stack + replicas + lasting)


def _correlated(rng: np.random.Generator, levels: Floats) -> Floats:
    first, own = levels
    return np.stack([first, 0.5 * (0.7 * first + math.sqrt(1 - 0.7**2) * own)])


def autoregress(rng: np.random.Generator, shape: tuple[int, ...], deviation: float, minutes: float) -> Floats:
    """Stationary AR(1) series along the last axis with that standard deviation and correlation time."""
    kept = math.exp(-BLOCK_MS / 60_000 / minutes)
    series = rng.standard_normal(shape) * deviation
    fresh = math.sqrt(1 - kept**2)
    for block in range(1, shape[-1]):
        series[..., block] = kept * series[..., block - 1] + fresh * series[..., block]
    return series


# --- Requests ---------------------------------------------------------------------------------------------------------

CACHED: Final = 0.9
"""The part of a prompt that is cached when its beginning is; of others a twentieth is."""
UNCACHED: Final = 0.05


def draw_requests(
    rng: np.random.Generator,
    setting: Setting,
    stack: str,
    blocks: Whole,
    share: float,
    replicas: int,
    levels: Floats,
    weather: Weather = CALM,
    *,
    prompt_shift: float = 0.0,
) -> Requests:
    """A stack's requests: its share of the load over as many replicas, by how slow they are, (2, rows, blocks)."""
    rows = levels.shape[1]
    # What a world draws leaves the other draws of a seed as they are.
    extra = rng.spawn(1)[0]
    load = load_at(blocks, setting)
    counts = rng.poisson(np.broadcast_to(load * share / replicas * weather.demand, (rows, len(blocks))))
    cell = np.repeat(np.arange(rows * len(blocks)), counts.ravel())
    n = len(cell)
    replica, block = np.divmod(cell, len(blocks))
    draws = rng.standard_normal((4, n), dtype=np.float32).astype(np.float64)
    ln_prompt = setting.prompt_sigma * draws[0] + prompt_shift
    ln_output = setting.output_sigma * draws[3]
    own = own_sigma(setting)
    busy = load * weather.demand / (setting.requests_per_minute * BLOCK_MS / 60_000) - 1
    level = levels + setting.load_slope * busy * np.array([1.0, 0.4])[:, np.newaxis, np.newaxis] + weather.slower
    flat = level.reshape(2, -1)
    tenant = _draw_tenants(extra, weather.tenants, block)
    if weather.tenants is not None:
        ln_prompt, ln_output = ln_prompt + weather.tenants.prompt[tenant], ln_output + weather.tenants.output[tenant]
    first = setting.first_token_median * np.exp(flat[0][cell] + setting.prompt_slope * ln_prompt + own * draws[1])
    per_token = setting.per_token_median * np.exp(flat[1][cell] + setting.per_token_sigma * draws[2])
    prompt = np.maximum(1.0, np.rint(setting.prompt_median * np.exp(ln_prompt)))
    output = np.clip(np.rint(setting.output_median * np.exp(ln_output)), 2, 8192)
    chance = rng.random(n)
    failed = chance < setting.error_share
    if np.any(weather.failing):
        failed |= extra.random(n) < np.broadcast_to(weather.failing, counts.shape).ravel()[cell]
    if weather.clusters is not None:
        place = np.arange(n) - np.repeat(np.cumsum(counts) - counts.ravel(), counts.ravel())
        failed |= place < weather.clusters.ravel()[cell]
    if setting.heavy_share:
        heavy = extra.random(n) < setting.heavy_share
        first[heavy] *= setting.heavy_factor * (1.0 + extra.pareto(setting.heavy_index, int(heavy.sum())))
        first = np.minimum(first, setting.heavy_seconds)
    reused = None
    hits = weather.tenants.hits[tenant] if weather.tenants is not None else None
    if weather.hits is not None:
        hits = np.broadcast_to(weather.hits, counts.shape).ravel()[cell]
    if hits is not None:
        part = np.where(extra.random(n) < hits, CACHED, UNCACHED)
        reused = np.floor(part * prompt)
        first = first * np.exp(-setting.reuse_slope * part)
    return Requests(
        stack, rows, blocks, replica, block, first, per_token, prompt, output, failed, draws[1], chance, reused,
        weather.lives,
    )  # fmt: skip


def _draw_tenants(rng: np.random.Generator, tenants: Tenants | None, block: Whole) -> Whole:
    """Whose each request is, (n,)."""
    if tenants is None:
        return np.zeros(0, dtype=np.int64)
    blocks, count = tenants.shares.shape
    # One sorted row of all blocks' cumulative shares, in which a search finds the tenant of the block.
    row = (tenants.shares + np.arange(blocks)[:, np.newaxis]).ravel()
    found = np.searchsorted(row, block + rng.random(len(block)), side="right") - block * count
    return np.asarray(np.minimum(found, count - 1), dtype=np.int64)


def own_sigma(setting: Setting) -> float:
    """What of the first token's spread the prompt's length does not explain."""
    return math.sqrt(setting.first_token_sigma**2 - (setting.prompt_slope * setting.prompt_sigma) ** 2)
