"""Synthetic cutovers of known truth: two stacks under one stream of requests, as the increments that a judge reads.

Requests are drawn one by one and then counted by replica and block, so that sums, buckets and counters agree with each
other as they do in an engine. The setting is that of the published simulations: 300 requests a minute in all with a
swing of 60 % over the day, a lognormal time to first token, a shock that both stacks share, and drift of each replica
and of each stack, autocorrelated over 20 minutes.

A deployment's past is drawn once and shared by several cutovers, as it is on a real deployment; what the cutovers then
show is independent given that past. Results are therefore reported over many pasts, clustered by past.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final, Literal

import numpy as np

from benchmarks._judge_counting import SCRAPE_INTERVAL_MS, count, make_target
from benchmarks._judge_requests import (
    BLOCKS_PER_DAY,
    BLOCKS_PER_HOUR,
    CALM,
    EPOCH_MS,
    Flags,
    Floats,
    Requests,
    Setting,
    Weather,
    Whole,
    draw_levels,
    draw_requests,
    draw_shock,
    load_at,
    own_sigma,
)
from servescope.contract.identity import Identity
from servescope.contract.samples import Series
from servescope.cutover.evidence.evidence import Evidence
from servescope.increments.blocks import BLOCK_MS, Tallies, TargetIncrements

HarmKind = Literal[
    "none", "mean", "tail", "bimodal", "one pod", "drift", "step", "errors", "tps",
    "short", "truncated", "unended", "left", "gpus", "slowest", "restarts", "creep",
]  # fmt: skip

PAST_BLOCKS: Final = 2 * BLOCKS_PER_DAY
LEAD_BLOCKS: Final = 2 * BLOCKS_PER_HOUR
"""v2 has served its share for two hours when the stage begins, and its processes for six: they are warm unless a
cutover says otherwise."""

REPLICAS: Final[Mapping[float, tuple[int, int]]] = {0.01: (198, 2), 0.05: (57, 3), 0.25: (9, 3), 0.5: (6, 6)}
"""Pods of v1 and v2 by v2's share: as many as leave each replica of both stacks the same load, and v2 at least two."""


@dataclass(frozen=True, slots=True)
class Harm:
    """What is wrong with v2. `size` is the relative change to the worse, of the mean where the harm is in a part.

    `mean` slows every first token by `size`; `tail` only the slowest 5 %, `bimodal` a random tenth of the requests and
    `one replica` one replica, each so much that the mean rises by `size` where replicas are equal; `drift` grows by
    `size` an hour; `step` is a `mean` from `hour` on; `errors` multiplies errors by 1 + `size`; `tps` lowers tokens per
    second by it.

    Of what guards look at, `short` lowers the tokens of an answer by `size`, `truncated` halves that share of answers,
    `unended` loses it of requests, `left` has clients leave it, `slowest` makes it five times slower; `gpus` gives each
    replica so many times as many, `restarts` so many restarts a day, and `creep` fills caches by it an hour.
    """

    kind: HarmKind = "none"
    size: float = 0.0
    hour: float = 0.0


@dataclass(frozen=True, slots=True)
class Confounder:
    """What differs between the stacks while v2 is as good as v1.

    `mix_distance` is the total variation distance of the prompts' lengths; `warm_up_minutes` the time constant of a
    start that is 80 % slower, with v2's replicas started as the stage begins; `replicas_factor` multiplies v2's
    replicas at the same share, which leaves them idle; `saturated` are the stacks that queue and preempt.
    """

    mix_distance: float = 0.0
    warm_up_minutes: float = 0.0
    replicas_factor: int = 1
    saturated: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """Where a world's weather is drawn: `blocks`, the first `lead` of them before the stage, and `replicas` of each
    stack.

    In v1's past v2 has no replica and all blocks are before the stage.
    """

    setting: Setting
    blocks: Whole
    lead: int
    share: float
    replicas: tuple[int, int]


USUAL: Final = Setting()
NOTHING_ELSE: Final = Confounder()


def calm(_rng: np.random.Generator, _scene: Scene) -> tuple[Weather, Weather]:
    """Nothing besides the law."""
    return CALM, CALM


@dataclass(frozen=True, slots=True)
class World:
    """What happens to both stacks by the same law, so that v2 is as good as v1 unless it has a `Harm`.

    `title` is what a table names it; `weather` draws what happens, in v1's past and in the stage.
    """

    name: str
    title: str
    setting: Setting = USUAL
    weather: Callable[[np.random.Generator, Scene], tuple[Weather, Weather]] = calm
    confounder: Confounder = NOTHING_ELSE


CLEAN: Final = World("clean", "clean")


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """Two days of v1 alone, before v2 gets a request: `targets` are its replicas, `effects` what sets each apart."""

    targets: tuple[TargetIncrements, ...]
    effects: Floats
    setting: Setting
    share: float
    start_ms: int
    world: World = CLEAN


@dataclass(frozen=True, slots=True, eq=False)
class Cutover:
    """One stage of a cutover of known truth: v1's requests and increments, and v2's requests, unharmed."""

    past: Past
    stage_ms: int
    v1: Requests
    v1_targets: tuple[TargetIncrements, ...]
    v2: Requests
    confounder: Confounder


def draw_past(seed: int, share: float, setting: Setting | None = None, world: World = CLEAN) -> Past:
    """v1 alone for two days, with as many replicas as both stacks have later, and less the share that v2 then takes."""
    setting = setting or world.setting
    rng = np.random.Generator(np.random.SFC64([1, seed, round(share * 1000)]))
    # Stages of consecutive seeds begin at hours that are spread over the day.
    start = EPOCH_MS + (7 * seed % 24) * BLOCKS_PER_HOUR * BLOCK_MS
    replicas = sum(REPLICAS[share])
    blocks = start + BLOCK_MS * np.arange(PAST_BLOCKS, dtype=np.int64)
    effects = setting.replica_spread * rng.standard_normal(replicas)
    scene = Scene(setting, blocks, PAST_BLOCKS, share, (replicas, 0))
    weather, _ = world.weather(np.random.Generator(np.random.SFC64([4, seed, round(share * 1000)])), scene)
    levels = draw_levels(
        rng, setting, draw_shock(rng, setting, len(blocks)), _with_more(rng, setting, effects, weather)
    )
    requests = draw_requests(rng, setting, "v1", blocks, 1.0, replicas, levels, weather)
    return Past(count(requests, setting), effects, setting, share, start, world)


def draw_cutover(past: Past, seed: int, confounder: Confounder | None = None) -> Cutover:
    """A day of a stage after that past; v2 follows the same law as v1 but for the confounder."""
    setting, share, world = past.setting, past.share, past.world
    confounder = confounder or world.confounder
    place = [seed, past.start_ms // BLOCK_MS, round(share * 1000)]
    rng = np.random.Generator(np.random.SFC64([2, *place]))
    v1_replicas, v2_replicas = REPLICAS[share]
    v2_replicas *= confounder.replicas_factor
    stage_ms = past.start_ms + (PAST_BLOCKS + LEAD_BLOCKS) * BLOCK_MS
    blocks = past.start_ms + BLOCK_MS * np.arange(PAST_BLOCKS, PAST_BLOCKS + LEAD_BLOCKS + BLOCKS_PER_DAY)
    scene = Scene(setting, blocks, LEAD_BLOCKS, share, (v1_replicas, v2_replicas))
    v1_weather, v2_weather = world.weather(np.random.Generator(np.random.SFC64([5, *place])), scene)
    shock = draw_shock(rng, setting, len(blocks))
    v1_levels = draw_levels(rng, setting, shock, _with_more(rng, setting, past.effects[:v1_replicas], v1_weather))
    v1 = draw_requests(rng, setting, "v1", blocks, 1 - share, v1_replicas, v1_levels, v1_weather)
    fresh = blocks[LEAD_BLOCKS:] if confounder.warm_up_minutes else blocks
    effects = _with_more(rng, setting, setting.replica_spread * rng.standard_normal(v2_replicas), v2_weather)
    v2_levels = draw_levels(rng, setting, shock[..., -len(fresh) :], effects)
    if confounder.warm_up_minutes:
        minutes = (fresh - fresh[0]) / 60_000 + BLOCK_MS / 120_000
        v2_levels = v2_levels + np.log1p(0.8 * np.exp(-minutes / confounder.warm_up_minutes))
    shift = 2 * setting.prompt_sigma * NormalDist().inv_cdf((1 + confounder.mix_distance) / 2)
    v2 = draw_requests(rng, setting, "v2", fresh, share, v2_replicas, v2_levels, v2_weather, prompt_shift=shift)
    counted = count(v1, setting, saturated="v1" in confounder.saturated)
    return Cutover(past, stage_ms, v1, counted, v2, confounder)


def _with_more(rng: np.random.Generator, setting: Setting, effects: Floats, weather: Weather) -> Floats:
    """What sets each process apart: those that come and go are as different as those that stay."""
    if weather.lives is None:
        return effects
    rows = len(weather.lives.names)
    return np.concatenate([effects, setting.replica_spread * rng.standard_normal(max(0, rows - len(effects)))])[:rows]


def draw_day(seed: int, v1_replicas: int, v2_replicas: int) -> tuple[TargetIncrements, ...]:
    """A day of both stacks of so many replicas that bear like loads, from `EPOCH_MS` on."""
    setting = Setting()
    rng = np.random.Generator(np.random.SFC64([3, seed]))
    blocks = EPOCH_MS + BLOCK_MS * np.arange(BLOCKS_PER_DAY, dtype=np.int64)
    shock = draw_shock(rng, setting, len(blocks))
    targets: list[TargetIncrements] = []
    for stack, replicas in (("v1", v1_replicas), ("v2", v2_replicas)):
        levels = draw_levels(rng, setting, shock, setting.replica_spread * rng.standard_normal(replicas))
        share = replicas / (v1_replicas + v2_replicas)
        targets += count(draw_requests(rng, setting, stack, blocks, share, replicas, levels), setting)
    return tuple(targets)


def show(cutover: Cutover, harm: Harm | None = None, *, until_block: int = BLOCKS_PER_DAY) -> Evidence:
    """What a judge reads `until_block` blocks into the stage when v2 has this harm: from when v2 gets requests on."""
    until = cutover.stage_ms + until_block * BLOCK_MS
    v2 = _show_v2(cutover, harm or Harm())
    return _evidence((*cutover.v1_targets, *v2, _autoscaler(cutover)), until)


def show_past(cutover: Cutover) -> Evidence:
    """What is known when the stage begins, v1's past included: what a plan is frozen from."""
    v2 = _show_v2(cutover, Harm())
    targets = (*join(cutover.past.targets, cutover.v1_targets), *v2, _autoscaler(cutover))
    return _evidence(targets, cutover.stage_ms)


def _show_v2(cutover: Cutover, harm: Harm) -> tuple[TargetIncrements, ...]:
    hours = np.maximum(0.0, (cutover.v2.blocks - cutover.stage_ms) / 3_600_000)
    return count(
        suffer(cutover, harm),
        cutover.past.setting,
        started_ms=cutover.stage_ms - (0 if cutover.confounder.warm_up_minutes else 3 * LEAD_BLOCKS * BLOCK_MS),
        saturated="v2" in cutover.confounder.saturated,
        gpus=round(harm.size) if harm.kind == "gpus" else 1,
        creep=harm.size * hours if harm.kind == "creep" else 0.0,
        restarts_ms=_restarts(cutover.v2, harm.size * hours / 24.0) if harm.kind == "restarts" else None,
    )


def _restarts(v2: Requests, turns: Floats) -> Floats:
    """When each replica's process began last, (replicas, blocks), which all do in turn within one of `turns`."""
    rows = np.floor(turns + np.arange(v2.replicas)[:, np.newaxis] / v2.replicas)
    anew = np.diff(rows, axis=1, prepend=rows[:, :1]) > 0.0
    began = np.where(anew, v2.blocks + 1_000.0, -np.inf)
    latest = np.maximum.accumulate(began, axis=1)
    return np.where(np.isfinite(latest), latest, np.nan)


def _evidence(targets: tuple[TargetIncrements, ...], until_ms: int) -> Evidence:
    kept = tuple(truncate(each, until_ms) for each in targets)
    last = {each.target_id: until_ms for each in kept if len(each.blocks) and each.blocks[-1] == until_ms - BLOCK_MS}
    return Evidence(kept, until_ms, SCRAPE_INTERVAL_MS, last)


def suffer(cutover: Cutover, harm: Harm) -> Requests:
    """v2's requests as they are under a harm, which begins with the stage."""
    requests, setting = cutover.v2, cutover.past.setting
    if harm.kind == "none":
        return requests
    hours = (requests.blocks - cutover.stage_ms) / 3_600_000
    during = (hours >= harm.hour)[requests.block]
    if harm.kind == "errors":
        return replace(
            requests, failed=requests.failed | (requests.chance < setting.error_share * (1 + harm.size * during))
        )
    if harm.kind == "tps":
        slower = np.where(during, requests.per_token / (1 - harm.size), requests.per_token)
        return replace(requests, per_token=slower)
    if harm.kind in OF_GUARDS:
        return _suffer_quietly(requests, harm, during)
    if harm.kind in ("mean", "step"):
        factor = 1 + harm.size * during
    elif harm.kind == "drift":
        factor = 1 + harm.size * np.maximum(0.0, hours)[requests.block]
    elif harm.kind == "one pod":
        lives = requests.lives
        replicas = requests.replicas if lives is None else float(lives.alive.sum(axis=0).mean())
        factor = 1 + harm.size * replicas * (during & (requests.replica == 0))
    elif harm.kind == "bimodal":
        factor = 1 + harm.size / 0.1 * (during & (np.mod(requests.chance, 0.1) < 0.01))
    else:
        slow = requests.surprise > NormalDist().inv_cdf(0.95)
        # What the slowest 5 % of a lognormal hold of its mean.
        weight = NormalDist().cdf(own_sigma(setting) - NormalDist().inv_cdf(0.95))
        factor = 1 + harm.size / weight * (during & slow)
    return replace(requests, first_token=requests.first_token * factor)


OF_GUARDS: Final = frozenset({"short", "truncated", "unended", "left", "gpus", "slowest", "restarts", "creep"})


def _suffer_quietly(requests: Requests, harm: Harm, during: Flags) -> Requests:
    """What no time or error shows, or of few requests only."""
    chosen = during & (np.mod(requests.chance, 0.1) < 0.1 * harm.size)
    match harm.kind:
        case "short":
            shorter = np.maximum(1.0, np.rint(requests.output * (1 - harm.size)))
            return replace(requests, output=np.where(during, shorter, requests.output))
        case "truncated":
            return replace(
                requests, output=np.where(chosen, np.maximum(1.0, np.rint(requests.output / 2)), requests.output)
            )
        case "unended":
            return replace(requests, lost=chosen)
        case "left":
            return replace(requests, left=chosen)
        case "slowest":
            factor = np.where(chosen, 5.0, 1.0)
            return replace(
                requests, first_token=requests.first_token * factor, per_token=requests.per_token * factor
            )  # fmt: skip
    return requests


def truncate(target: TargetIncrements, until_ms: int) -> TargetIncrements:
    """The blocks of a target that end by a time."""
    kept = int(np.searchsorted(target.blocks, until_ms - BLOCK_MS, side="right"))
    if kept == len(target.blocks):
        return target
    return target.at(slice(0, kept))


def cut(target: TargetIncrements, from_ms: int) -> TargetIncrements:
    """The blocks of a target that begin at a time or later."""
    return target.at(slice(int(np.searchsorted(target.blocks, from_ms)), None))


def join(before: tuple[TargetIncrements, ...], after: tuple[TargetIncrements, ...]) -> tuple[TargetIncrements, ...]:
    """Each replica's past with what it did later; replicas that are gone later keep their past."""
    later = {each.target_id: each for each in after}
    known = {each.target_id for each in before}
    return (
        *(_concatenate(each, later[each.target_id]) if each.target_id in later else each for each in before),
        *(each for each in after if each.target_id not in known),
    )


def _autoscaler(cutover: Cutover) -> TargetIncrements:
    """v2's autoscaler, with tokens in flight per worker within the recommended range."""
    blocks = cutover.v2.blocks
    load = load_at(blocks, cutover.past.setting)
    lives = cutover.v2.lives
    workers = (
        np.full(len(blocks), float(cutover.v2.replicas)) if lives is None else lives.alive.sum(axis=0, dtype=float)
    )
    none = np.full(len(blocks), math.nan)
    gauges = {
        Series("autoscaler_avg_in_flight_tokens", ()): (workers * 80_000 * (load / load.mean()) ** 0.4, none),
        Series("autoscaler_avg_num_workers", ()): (workers, none),
    }
    identity = Identity("llama-3.3-70b", "chat-v2", "v2", replica="autoscaler", role="autoscaler")
    return make_target(identity, blocks, (), np.empty((0, len(blocks))), gauges, int(blocks[0]))


def _concatenate(before: TargetIncrements, after: TargetIncrements) -> TargetIncrements:
    return replace(
        after,
        blocks=np.concatenate([before.blocks, after.blocks]),
        gains=np.concatenate([before.gains, after.gains], axis=1),
        levels=np.concatenate([before.levels, after.levels], axis=1),
        above=np.concatenate([before.above, after.above], axis=1),
        started_ms=np.concatenate([before.started_ms, after.started_ms]),
        tallies=Tallies(
            *(
                np.concatenate([getattr(before.tallies, name), getattr(after.tallies, name)])
                for name in Tallies.__dataclass_fields__
            )
        ),
    )
