"""Worlds in which judges are fooled: what happens to both stacks by the same law, so that v2 is no worse than v1.

Each is seeded and its truth is known. Whatever is drawn of a world's own leaves the requests' draws as they are, so
that judges, and versions of one judge, are compared on the same days. How severe a world is, is in its constants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from benchmarks._judge_requests import (
    BLOCKS_PER_DAY,
    BLOCKS_PER_HOUR,
    CALM,
    Floats,
    Lives,
    Setting,
    Tenants,
    Weather,
    autoregress,
    load_at,
)
from benchmarks._judge_traffic import CLEAN, REPLICAS, Confounder, Scene, World
from servescope.increments.blocks import BLOCK_MS

Rng = np.random.Generator
Both = tuple[Weather, Weather]

BLOCK_MINUTES: Final = BLOCK_MS // 60_000


# --- Arrivals ---------------------------------------------------------------------------------------------------------

BURST_SIGMA: Final = 0.35
BURST_MINUTES: Final = 15.0
CROWD_SIGMA: Final = 0.30
CROWDS_PER_DAY: Final = 6.0


def bursts(rng: Rng, scene: Scene) -> Both:
    """Requests come in bursts: of all clients for a quarter of an hour, of a few at single replicas,
    and short peaks.
    """
    shape = len(scene.blocks)
    together = autoregress(rng, (shape,), BURST_SIGMA, BURST_MINUTES) - BURST_SIGMA**2 / 2
    peaks = np.where(rng.random(shape) < CROWDS_PER_DAY / BLOCKS_PER_DAY, rng.uniform(1.5, 3.0, shape), 1.0)

    def of(replicas: int) -> Weather:
        own = CROWD_SIGMA * rng.standard_normal((replicas, shape)) - CROWD_SIGMA**2 / 2
        return Weather(demand=np.exp(together + own) * peaks)

    return of(scene.replicas[0]), of(scene.replicas[1])


STORM_MINUTES: Final = (10.0, 40.0)
STORMS_PER_DAY: Final = 1.0
STORM_SHARES: Final = (0.01, 0.30)
RETRIES: Final = 2.0


def storms(rng: Rng, scene: Scene) -> Both:
    """Something behind both stacks fails a part of the requests; clients try again, which slows what is left."""
    failing = np.zeros(len(scene.blocks))
    for first, end in _episodes(rng, len(scene.blocks), STORMS_PER_DAY, STORM_MINUTES):
        peak = math.exp(rng.uniform(*np.log(STORM_SHARES)))
        failing[first:end] = np.maximum(failing[first:end], peak * _hump(end - first))
    demand = 1.0 + RETRIES * failing

    def of(replicas: int) -> Weather:
        # Replicas differ in how many of their requests need what fails.
        return Weather(demand=demand, failing=np.clip(failing * rng.lognormal(0.0, 0.1, (replicas, 1)), 0.0, 0.95))

    return of(scene.replicas[0]), of(scene.replicas[1])


# --- Failures ---------------------------------------------------------------------------------------------------------

CLUSTER: Final = 50
CLUSTERS_PER_REPLICA_DAY: Final = 0.25


def clustered_errors(rng: Rng, scene: Scene) -> Both:
    """Fifty requests of one replica fail at once, once in four days each: whatever was in flight when
    its engine died.
    """

    def of(replicas: int) -> Weather:
        drawn = rng.poisson(CLUSTERS_PER_REPLICA_DAY / BLOCKS_PER_DAY, (replicas, len(scene.blocks)))
        return Weather(clusters=CLUSTER * drawn)

    return of(scene.replicas[0]), of(scene.replicas[1])


OUTAGE_MINUTES: Final = (10.0, 30.0)
OUTAGE_SHARES: Final = (0.3, 1.0)


def shared_outage(rng: Rng, scene: Scene) -> Both:
    """Once in the stage, and never before it, most requests of both stacks fail for a while."""
    failing = np.zeros(len(scene.blocks))
    if scene.replicas[1]:
        length = _length(rng, OUTAGE_MINUTES)
        first = int(rng.integers(scene.lead + 1, len(scene.blocks) - length))
        failing[first : first + length] = rng.uniform(*OUTAGE_SHARES)
    both = Weather(failing=failing)
    return both, both


# --- Neighbours -------------------------------------------------------------------------------------------------------

NEIGHBOURS_PER_REPLICA_DAY: Final = 0.35
NEIGHBOUR_MINUTES: Final = (20.0, 90.0)
NEIGHBOUR_FACTORS: Final = (1.3, 3.0)


def neighbours(rng: Rng, scene: Scene) -> Both:
    """Somebody else's work slows single replicas of either stack for a while, some four times a day among twelve."""

    def of(replicas: int) -> Weather:
        slower = np.zeros((replicas, len(scene.blocks)))
        for replica in range(replicas):
            for first, end in _episodes(rng, len(scene.blocks), NEIGHBOURS_PER_REPLICA_DAY, NEIGHBOUR_MINUTES):
                slower[replica, first:end] += rng.uniform(*np.log(NEIGHBOUR_FACTORS))
        return Weather(slower=slower)

    return of(scene.replicas[0]), of(scene.replicas[1])


MOVING_REPLICAS: Final = 3
MOVING_PER_DAY: Final = 1.0
MOVING_MINUTES: Final = (40.0, 120.0)
MOVING_BLOCKS: Final = 2


def moving_neighbours(rng: Rng, scene: Scene) -> Both:
    """Somebody else's work slows one of three replicas at a time, and moves to another of them within ten minutes."""

    def of(replicas: int) -> Weather:
        slower = np.zeros((replicas, len(scene.blocks)))
        for group in np.array_split(np.arange(replicas), math.ceil(replicas / MOVING_REPLICAS)) if replicas else ():
            per_day = MOVING_PER_DAY * group.size / MOVING_REPLICAS
            for first, end in _episodes(rng, len(scene.blocks), per_day, MOVING_MINUTES):
                factor = rng.uniform(*np.log(NEIGHBOUR_FACTORS))
                while first < end:
                    stays = min(end - first, int(rng.integers(1, MOVING_BLOCKS + 1)))
                    slower[rng.choice(group), first : first + stays] += factor
                    first += stays
        return Weather(slower=slower)

    return of(scene.replicas[0]), of(scene.replicas[1])


# --- Who asks ---------------------------------------------------------------------------------------------------------

TENANTS: Final = 300
TENANT_SIGMA: Final = 0.5
TENANT_PROMPT: Final = 0.4
TENANT_OUTPUT: Final = 0.1
TENANT_HOURS: Final = 12.0
TENANT_BURSTS: Final = (0.3, 30.0)
TENANT_SETTING: Final = Setting(reuse_slope=0.4)


def tenants(rng: Rng, scene: Scene) -> Both:
    """Tenants of their own prompts, reuse and hours, each wholly on one stack, and moved twice a day or so."""
    shape = (TENANTS, len(scene.blocks))
    days = (scene.blocks - scene.blocks[0]) / (BLOCKS_PER_DAY * BLOCK_MS)
    size = rng.lognormal(0.0, TENANT_SIGMA, (TENANTS, 1))
    daily = 1 + 0.6 * np.sin(2 * np.pi * (days + rng.random((TENANTS, 1))))
    weights = size * daily * np.exp(autoregress(rng, shape, *TENANT_BURSTS))
    weights /= weights.sum(axis=0)
    moved = rng.random(shape) < 1 / (TENANT_HOURS * BLOCKS_PER_HOUR)
    on_v2 = _held(moved, rng.random(shape)) < (scene.share if scene.replicas[1] else 0.0)
    prompt, output = TENANT_PROMPT * rng.standard_normal(TENANTS), TENANT_OUTPUT * rng.standard_normal(TENANTS)
    hits = rng.beta(2.0, 2.0, TENANTS)

    def of(chosen: Floats, share: float) -> Weather:
        total = chosen.sum(axis=0)
        shares = np.cumsum(chosen, axis=0) / np.where(total > 0.0, total, 1.0)
        return Weather(demand=total / share, tenants=Tenants(shares.T, prompt, output, hits))

    if not scene.replicas[1]:
        return of(weights, 1.0), CALM
    return of(weights * ~on_v2, 1 - scene.share), of(weights * on_v2, scene.share)


SESSION_SETTING: Final = Setting(reuse_slope=0.8)
SESSION_HITS: Final = 0.5
SESSION_REPLICA: Final = (0.4, 60.0)
SESSION_STACK: Final = (0.2, 120.0)


def sessions(rng: Rng, scene: Scene) -> Both:
    """Sessions stay on their replica, so what is cached differs from replica to replica and between the stacks, for
    hours.
    """

    def of(replicas: int) -> Weather:
        return Weather(hits=_hits(rng, (replicas, len(scene.blocks))))

    return of(scene.replicas[0]), of(scene.replicas[1])


def _hits(rng: Rng, shape: tuple[int, int]) -> Floats:
    """The probability that a prompt is cached, by replica and block: its logit wanders."""
    stack = autoregress(rng, (1, shape[1]), *SESSION_STACK)
    wandering = stack + autoregress(rng, shape, *SESSION_REPLICA)
    return np.asarray(1.0 / (1.0 + np.exp(-wandering)) * 2 * SESSION_HITS)


# --- Replicas that come and go ----------------------------------------------------------------------------------------

FILLING_MINUTES: Final = 15.0
"""The time constant with which a cold cache fills: after 40 minutes nine tenths are there."""
CACHE_SETTING: Final = Setting(reuse_slope=1.42)
CACHE_HITS: Final = 0.6


def cold_cache(idle_minutes: float) -> World:
    """v2 has run for so long without a request when the stage begins, and its cache is empty."""

    def weather(rng: Rng, scene: Scene) -> Both:
        lead = np.arange(len(scene.blocks)) < scene.lead
        before = idle_minutes / BLOCK_MINUTES
        v1 = Weather(
            demand=np.where(lead & (scene.replicas[1] > 0), 1 / (1 - scene.share), 1.0), hits=np.array(CACHE_HITS)
        )
        minutes = np.maximum(0.0, np.arange(len(scene.blocks)) - scene.lead + 0.5) * BLOCK_MINUTES
        filled = CACHE_HITS * (1.0 - np.exp(-minutes / FILLING_MINUTES))
        replicas = scene.replicas[1]
        alive = np.broadcast_to(np.arange(len(scene.blocks)) >= scene.lead - before, (replicas, len(scene.blocks)))
        started = np.full(replicas, float(scene.blocks[min(scene.lead, len(lead) - 1)]) - idle_minutes * 60_000)
        lives = Lives(tuple(f"v2-{replica}" for replica in range(replicas)), started, np.asarray(alive))
        return v1, Weather(demand=np.where(lead, 0.0, 1.0), hits=filled, lives=lives)

    title = f"v2 idle for {idle_minutes:g} min, cold cache"
    return World(f"cold-cache-{idle_minutes:g}", title, CACHE_SETTING, weather)


SCALED_LOAD: Final = 0.8
"""How much of a replica's mean load each replica is given before another one is started."""
SCALED_BLOCKS: Final = 6
SCALED_MINUTES: Final = 8.0
"""The time constant of a fresh replica's start, which is 80 % slower."""


def autoscaled(rng: Rng, scene: Scene) -> Both:
    """Replicas of both stacks come and go with the load, at least half of them stay; fresh ones are slow at first."""
    load = load_at(scene.blocks, scene.setting)
    relative = load / (scene.setting.requests_per_minute * BLOCK_MINUTES)
    relative = relative * np.exp(autoregress(rng, (len(load),), 0.15, 60.0))

    # Both stacks scale in the steps of the smaller one, or it would have more to spare.
    steps = REPLICAS[scene.share][1]
    least = math.ceil(steps / 2)
    wanted = np.clip(np.ceil(steps * relative / SCALED_LOAD), least, 2 * steps).astype(int)
    # Replicas are stopped when they were not wanted for a while, and started at once.
    wanted = sliding_window_view(np.pad(wanted, (SCALED_BLOCKS - 1, 0), "edge"), SCALED_BLOCKS).max(axis=-1)

    def of(stack: str, replicas: int) -> Weather:
        names, started, rows = [], [], []
        old = float(scene.blocks[0]) - BLOCKS_PER_DAY * BLOCK_MS
        for slot in range(2 * replicas):
            alive = wanted * replicas > slot * steps
            for first, end in _runs(alive):
                stays = slot * steps < least * replicas
                names.append(f"{stack}-{slot}" if stays else f"{stack}-{slot}-{scene.blocks[first] // BLOCK_MS}")
                started.append(old if stays or first == 0 else float(scene.blocks[first]))
                row = np.zeros(len(load), dtype=np.bool_)
                row[first:end] = True
                rows.append(row)
        alive = np.array(rows)
        minutes = (scene.blocks - np.array(started)[:, np.newaxis]) / 60_000 + BLOCK_MINUTES / 2
        slower = np.where(alive, np.log1p(0.8 * np.exp(-np.maximum(minutes, 0.0) / SCALED_MINUTES)), 0.0)
        demand = relative / (load / (scene.setting.requests_per_minute * BLOCK_MINUTES)) * replicas * alive
        return Weather(
            demand=demand / alive.sum(axis=0), slower=slower, lives=Lives(tuple(names), np.array(started), alive)
        )

    return of("v1", scene.replicas[0]), of("v2", scene.replicas[1]) if scene.replicas[1] else CALM


# --- Together ---------------------------------------------------------------------------------------------------------


def everything(rng: Rng, scene: Scene) -> Both:
    """Bursts, neighbours, errors fifty at a time and storms, each as often as alone."""
    drawn = [each(rng, scene) for each in (bursts, neighbours, clustered_errors, storms)]
    return _together([v1 for v1, _ in drawn]), _together([v2 for _, v2 in drawn])


def _together(parts: Sequence[Weather]) -> Weather:
    demand, slower, failing = CALM.demand, CALM.slower, CALM.failing
    for each in parts:
        demand, slower, failing = demand * each.demand, slower + each.slower, np.maximum(failing, each.failing)
    clusters = sum((each.clusters for each in parts if each.clusters is not None), np.zeros((1, 1), dtype=np.int64))
    return Weather(demand=demand, slower=slower, failing=failing, clusters=clusters)


# --- Parts ------------------------------------------------------------------------------------------------------------


def _length(rng: Rng, minutes: tuple[float, float]) -> int:
    return max(1, round(rng.uniform(*minutes) / BLOCK_MINUTES))


def _episodes(rng: Rng, blocks: int, per_day: float, minutes: tuple[float, float]) -> list[tuple[int, int]]:
    """The first block and the end of what happens so many times a day for so long, in the order that it is drawn."""
    found = []
    for _ in range(rng.poisson(per_day * blocks / BLOCKS_PER_DAY)):
        first = int(rng.integers(blocks))
        found.append((first, min(blocks, first + _length(rng, minutes))))
    return found


def _hump(blocks: int) -> Floats:
    """Rises and falls again within so many blocks, at most 1."""
    return np.asarray(np.sin(np.pi * (np.arange(blocks) + 0.5) / blocks))


def _held(changed: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], drawn: Floats) -> Floats:
    """The value of each row that was drawn at its latest change, (rows, blocks)."""
    changed = changed.copy()
    changed[:, 0] = True
    latest = np.maximum.accumulate(np.where(changed, np.arange(drawn.shape[1]), 0), axis=1)
    return np.asarray(np.take_along_axis(drawn, latest, axis=1))


def _runs(flags: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> list[tuple[int, int]]:
    """The first block and the end of each run of blocks that have a flag."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    return [(int(first), int(end)) for first, end in edges.reshape(-1, 2)]


_ALL = (
    CLEAN,
    World("heavy-tails", "heavy tails: 2 % of requests own 40 % of the mean", Setting(heavy_share=0.02)),
    World("bursts", "bursts of arrivals", weather=bursts),
    World("neighbours", "noisy neighbours on single replicas", weather=neighbours),
    World("moving-neighbours", "neighbours that move from replica to replica", weather=moving_neighbours),
    World("tenants", "tenants hashed to arms", TENANT_SETTING, tenants),
    World("clustered-errors", "errors 50 at a time", weather=clustered_errors),
    World("outage", "an outage that both share", weather=shared_outage),
    World("storms", "retry storms in both", weather=storms),
    World("sessions", "sticky sessions", SESSION_SETTING, sessions),
    cold_cache(180.0),
    cold_cache(130.0),
    cold_cache(100.0),
    World("autoscaled", "autoscaled replicas", weather=autoscaled),
    World("everything", "bursts, neighbours, clusters and storms together", weather=everything),
    World("fresh", "v2 starts with the stage, 80 % slower at first", confounder=Confounder(warm_up_minutes=20.0)),
)
WORLDS: Final[Mapping[str, World]] = MappingProxyType({world.name: world for world in _ALL})
