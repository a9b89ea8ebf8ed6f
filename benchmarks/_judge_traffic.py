"""Synthetic cutovers of known truth: two stacks under one stream of requests, as the increments that a judge reads.

Requests are drawn one by one and then counted by pod and block, so that sums, buckets and counters agree with each
other as they do in an engine. The setting is that of the published simulations: 300 requests a minute in all with a
swing of 60 % over the day, a lognormal time to first token, a shock that both stacks share, and drift of each pod and
of each stack, autocorrelated over 20 minutes.

A deployment's past is drawn once and shared by several cutovers, as it is on a real deployment; what the cutovers then
show is independent given that past. Results are therefore reported over many pasts, clustered by past.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import Identity
from servescope.contract.increments import BLOCK_MS, Tallies, TargetIncrements
from servescope.contract.metrics import METRICS, OUTCOMES
from servescope.contract.samples import Series, format_edge, make_labels
from servescope.cutover.evidence import Evidence

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]

HarmKind = Literal["none", "mean", "tail", "bimodal", "one pod", "drift", "step", "errors", "tps"]

BLOCKS_PER_HOUR: Final = 3_600_000 // BLOCK_MS
BLOCKS_PER_DAY: Final = 24 * BLOCKS_PER_HOUR
SCRAPE_INTERVAL_MS: Final = 15_000
EPOCH_MS: Final = 1_772_409_600_000
"""A midnight in UTC, 2 March 2026, at which the day's load is at its mean and rises."""

PAST_BLOCKS: Final = 2 * BLOCKS_PER_DAY
LEAD_BLOCKS: Final = 2 * BLOCKS_PER_HOUR
"""v2 has served its share for two hours when the stage begins, and its processes for six: they are warm unless a
cutover says otherwise."""

PODS: Final[Mapping[float, tuple[int, int]]] = {0.01: (198, 2), 0.05: (57, 3), 0.25: (9, 3), 0.5: (6, 6)}
"""Pods of v1 and v2 by v2's share: as many as leave each pod of both stacks the same load, and v2 at least two."""

_HISTOGRAMS: Final = (
    "time_to_first_token_seconds",
    "time_per_output_token_seconds",
    "request_duration_seconds",
    "tps_per_request",
    "input_tokens_per_request",
    "output_tokens_per_request",
)


@dataclass(frozen=True, slots=True)
class Setting:
    """The law that traffic and both stacks follow. Spreads and drifts are standard deviations of natural logarithms.

    A pod differs from others of its stack by `pod_spread` for as long as it lives, and drifts by `pod_drift`; a whole
    stack drifts by `stack_drift`, which no comparison of one stack's pods with each other can show. Together they give
    a comparison of 3 pods with 9 an excess noise of about 0.07 a block.
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
    pod_spread: float = 0.015
    pod_drift: float = 0.031
    stack_drift: float = 0.010
    drift_minutes: float = 20.0
    error_share: float = 0.002
    abort_share: float = 0.01


@dataclass(frozen=True, slots=True)
class Harm:
    """What is wrong with v2. `size` is the relative change to the worse, of the mean where the harm is in a part.

    `mean` slows every first token by `size`; `tail` only the slowest 5 %, `bimodal` a random tenth of the requests and
    `one pod` one pod, each so much that the mean rises by `size` where pods are equal; `drift` grows by `size` an hour;
    `step` is a `mean` from `hour` on; `errors` multiplies errors by 1 + `size`; `tps` lowers tokens per second by it.
    """

    kind: HarmKind = "none"
    size: float = 0.0
    hour: float = 0.0


@dataclass(frozen=True, slots=True)
class Confounder:
    """What differs between the stacks while v2 is as good as v1.

    `mix_distance` is the total variation distance of the prompts' lengths; `warm_up_minutes` the time constant of a
    start that is 80 % slower, with v2's pods started as the stage begins; `pods_factor` multiplies v2's pods at the
    same share, which leaves them idle; `saturated` are the stacks that queue and preempt.
    """

    mix_distance: float = 0.0
    warm_up_minutes: float = 0.0
    pods_factor: int = 1
    saturated: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """Two days of v1 alone, before v2 gets a request: `targets` are its pods, `effects` what sets each apart."""

    targets: tuple[TargetIncrements, ...]
    effects: Floats
    setting: Setting
    share: float
    start_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class Cutover:
    """One stage of a cutover of known truth: v1's requests and increments, and v2's requests, unharmed."""

    past: Past
    stage_ms: int
    v1: Requests
    v1_targets: tuple[TargetIncrements, ...]
    v2: Requests
    confounder: Confounder


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """The requests of one stack, (n,) each: which of `pods` and `blocks` they are of and what each one is like.

    `blocks` are the starts of the blocks. `surprise` is how much slower a first token is than its prompt explains, in
    standard deviations; `chance` is uniform and decides the outcome and which requests a partial harm affects.
    """

    stack: str
    pods: int
    blocks: Whole
    pod: Whole
    block: Whole
    first_token: Floats
    per_token: Floats
    prompt: Floats
    output: Floats
    failed: Flags
    surprise: Floats
    chance: Floats


def draw_past(seed: int, share: float, setting: Setting | None = None) -> Past:
    """v1 alone for two days, with as many pods as both stacks have later, and less the share that v2 then takes."""
    setting = setting or Setting()
    rng = np.random.Generator(np.random.SFC64([1, seed, round(share * 1000)]))
    # Stages of consecutive seeds begin at hours that are spread over the day.
    start = EPOCH_MS + (7 * seed % 24) * BLOCKS_PER_HOUR * BLOCK_MS
    pods = sum(PODS[share])
    blocks = start + BLOCK_MS * np.arange(PAST_BLOCKS, dtype=np.int64)
    effects = setting.pod_spread * rng.standard_normal(pods)
    levels = _levels(rng, setting, _shock(rng, setting, len(blocks)), effects)
    requests = _draw_requests(rng, setting, "v1", blocks, 1.0, levels)
    return Past(_count(requests, setting), effects, setting, share, start)


def draw_cutover(past: Past, seed: int, confounder: Confounder | None = None) -> Cutover:
    """A day of a stage after that past; v2 follows the same law as v1 but for the confounder."""
    setting, share = past.setting, past.share
    confounder = confounder or Confounder()
    rng = np.random.Generator(np.random.SFC64([2, seed, past.start_ms // BLOCK_MS, round(share * 1000)]))
    v1_pods, v2_pods = PODS[share]
    v2_pods *= confounder.pods_factor
    stage_ms = past.start_ms + (PAST_BLOCKS + LEAD_BLOCKS) * BLOCK_MS
    blocks = past.start_ms + BLOCK_MS * np.arange(PAST_BLOCKS, PAST_BLOCKS + LEAD_BLOCKS + BLOCKS_PER_DAY)
    shock = _shock(rng, setting, len(blocks))
    v1_levels = _levels(rng, setting, shock, past.effects[:v1_pods])
    v1 = _draw_requests(rng, setting, "v1", blocks, 1 - share, v1_levels)
    fresh = blocks[LEAD_BLOCKS:] if confounder.warm_up_minutes else blocks
    v2_levels = _levels(rng, setting, shock[..., -len(fresh) :], setting.pod_spread * rng.standard_normal(v2_pods))
    if confounder.warm_up_minutes:
        minutes = (fresh - fresh[0]) / 60_000 + BLOCK_MS / 120_000
        v2_levels = v2_levels + np.log1p(0.8 * np.exp(-minutes / confounder.warm_up_minutes))
    shift = 2 * setting.prompt_sigma * NormalDist().inv_cdf((1 + confounder.mix_distance) / 2)
    v2 = _draw_requests(rng, setting, "v2", fresh, share, v2_levels, prompt_shift=shift)
    counted = _count(v1, setting, saturated="v1" in confounder.saturated)
    return Cutover(past, stage_ms, v1, counted, v2, confounder)


def draw_day(seed: int, v1_pods: int, v2_pods: int) -> tuple[TargetIncrements, ...]:
    """A day of both stacks of so many pods that bear like loads, from `EPOCH_MS` on."""
    setting = Setting()
    rng = np.random.Generator(np.random.SFC64([3, seed]))
    blocks = EPOCH_MS + BLOCK_MS * np.arange(BLOCKS_PER_DAY, dtype=np.int64)
    shock = _shock(rng, setting, len(blocks))
    targets: list[TargetIncrements] = []
    for stack, pods in (("v1", v1_pods), ("v2", v2_pods)):
        levels = _levels(rng, setting, shock, setting.pod_spread * rng.standard_normal(pods))
        targets += _count(_draw_requests(rng, setting, stack, blocks, pods / (v1_pods + v2_pods), levels), setting)
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
    return _count(
        suffer(cutover, harm),
        cutover.past.setting,
        started_ms=cutover.stage_ms - (0 if cutover.confounder.warm_up_minutes else 3 * LEAD_BLOCKS * BLOCK_MS),
        saturated="v2" in cutover.confounder.saturated,
    )


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
        return replace(requests, failed=requests.chance < setting.error_share * (1 + harm.size * during))
    if harm.kind == "tps":
        slower = np.where(during, requests.per_token / (1 - harm.size), requests.per_token)
        return replace(requests, per_token=slower)
    if harm.kind in ("mean", "step"):
        factor = 1 + harm.size * during
    elif harm.kind == "drift":
        factor = 1 + harm.size * np.maximum(0.0, hours)[requests.block]
    elif harm.kind == "one pod":
        factor = 1 + harm.size * requests.pods * (during & (requests.pod == 0))
    elif harm.kind == "bimodal":
        factor = 1 + harm.size / 0.1 * (during & (np.mod(requests.chance, 0.1) < 0.01))
    else:
        slow = requests.surprise > NormalDist().inv_cdf(0.95)
        # What the slowest 5 % of a lognormal hold of its mean.
        weight = NormalDist().cdf(_own_sigma(setting) - NormalDist().inv_cdf(0.95))
        factor = 1 + harm.size / weight * (during & slow)
    return replace(requests, first_token=requests.first_token * factor)


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
    """Each pod's past with what it did later; pods that are gone later keep their past."""
    later = {each.target_id: each for each in after}
    known = {each.target_id for each in before}
    return (
        *(_concatenate(each, later[each.target_id]) if each.target_id in later else each for each in before),
        *(each for each in after if each.target_id not in known),
    )


# --- Levels: how slow a pod is in a block -----------------------------------------------------------------------------


def load_at(blocks: Whole, setting: Setting) -> Floats:
    """Requests in each block over both stacks, as expected, (n,)."""
    phase = 2 * np.pi * (blocks - EPOCH_MS) / (BLOCKS_PER_DAY * BLOCK_MS)
    return np.asarray(setting.requests_per_minute * (BLOCK_MS / 60_000) * (1 + setting.swing * np.sin(phase)))


def _shock(rng: np.random.Generator, setting: Setting, blocks: int) -> Floats:
    """What slows both stacks at once, (2, 1, blocks): of the first token, and of the tokens behind it."""
    return _correlated(rng, 0.5, _autoregress(rng, (2, 1, blocks), setting.shock, 30.0))


def _levels(rng: np.random.Generator, setting: Setting, shock: Floats, effects: Floats) -> Floats:
    """The logarithm by which each pod is slower than the median, (2, pods, blocks)."""
    blocks = shock.shape[-1]
    stack = _autoregress(rng, (2, 1, blocks), setting.stack_drift, setting.drift_minutes)
    pods = _autoregress(rng, (2, len(effects), blocks), setting.pod_drift, setting.drift_minutes)
    lasting = np.stack([effects, setting.pod_spread * rng.standard_normal(len(effects))])[:, :, np.newaxis]
    # Tokens behind the first one vary half as much as it does, and mostly together with it.
    return shock + _correlated(rng, 0.5, stack + pods + lasting)


def _correlated(rng: np.random.Generator, scale: float, levels: Floats) -> Floats:
    first, own = levels
    return np.stack([first, scale * (0.7 * first + math.sqrt(1 - 0.7**2) * own)])


def _autoregress(rng: np.random.Generator, shape: tuple[int, ...], deviation: float, minutes: float) -> Floats:
    """Stationary AR(1) series along the last axis with that standard deviation and correlation time."""
    kept = math.exp(-BLOCK_MS / 60_000 / minutes)
    series = rng.standard_normal(shape) * deviation
    fresh = math.sqrt(1 - kept**2)
    for block in range(1, shape[-1]):
        series[..., block] = kept * series[..., block - 1] + fresh * series[..., block]
    return series


# --- Requests ---------------------------------------------------------------------------------------------------------


def _draw_requests(
    rng: np.random.Generator,
    setting: Setting,
    stack: str,
    blocks: Whole,
    share: float,
    levels: Floats,
    *,
    prompt_shift: float = 0.0,
) -> Requests:
    pods = levels.shape[1]
    load = load_at(blocks, setting)
    counts = rng.poisson(np.broadcast_to(load * share / pods, (pods, len(blocks))))
    cell = np.repeat(np.arange(pods * len(blocks)), counts.ravel())
    n = len(cell)
    pod, block = np.divmod(cell, len(blocks))
    draws = rng.standard_normal((4, n), dtype=np.float32).astype(np.float64)
    ln_prompt = setting.prompt_sigma * draws[0] + prompt_shift
    own = _own_sigma(setting)
    busy = load / (setting.requests_per_minute * BLOCK_MS / 60_000) - 1
    level = levels + setting.load_slope * busy * np.array([1.0, 0.4])[:, np.newaxis, np.newaxis]
    flat = level.reshape(2, -1)
    first = setting.first_token_median * np.exp(flat[0][cell] + setting.prompt_slope * ln_prompt + own * draws[1])
    per_token = setting.per_token_median * np.exp(flat[1][cell] + setting.per_token_sigma * draws[2])
    prompt = np.maximum(1.0, np.rint(setting.prompt_median * np.exp(ln_prompt)))
    output = np.clip(np.rint(setting.output_median * np.exp(setting.output_sigma * draws[3])), 2, 8192)
    chance = rng.random(n)
    failed = chance < setting.error_share
    return Requests(stack, pods, blocks, pod, block, first, per_token, prompt, output, failed, draws[1], chance)


def _own_sigma(setting: Setting) -> float:
    """What of the first token's spread the prompt's length does not explain."""
    return math.sqrt(setting.first_token_sigma**2 - (setting.prompt_slope * setting.prompt_sigma) ** 2)


# --- Counting them ----------------------------------------------------------------------------------------------------


def _count(
    requests: Requests,
    setting: Setting,
    *,
    started_ms: int = EPOCH_MS - 7 * BLOCKS_PER_DAY * BLOCK_MS,
    saturated: bool = False,
) -> tuple[TargetIncrements, ...]:
    """The increments of each pod."""
    pods, blocks = requests.pods, len(requests.blocks)
    cell = requests.pod * blocks + requests.block
    failed = requests.failed
    aborted = requests.chance > 1 - setting.abort_share
    served = ~failed
    done = cell[served]
    first, per_token = requests.first_token[served], requests.per_token[served]
    output, prompt = requests.output[served], requests.prompt[served]
    decode = per_token * (output - 1)
    values = dict(zip(_HISTOGRAMS, (first, per_token, first + decode, 1 / per_token, prompt, output), strict=True))
    names: list[Series] = []
    rows: list[Floats] = []
    for name in _HISTOGRAMS:
        cumulative, total = _histogram(name, values[name], done, pods * blocks)
        edges = METRICS[name].edges or ()
        names += [
            Series(f"{name}_bucket", make_labels({"le": format_edge(edge)})) for edge in (*edges, math.inf)
        ]  # fmt: skip
        names += [Series(f"{name}_sum", ()), Series(f"{name}_count", ())]
        rows += [*cumulative, total, cumulative[-1]]

    def counted(chosen: Whole, weights: Floats | None = None) -> Floats:
        return np.bincount(chosen, weights, minlength=pods * blocks).astype(np.float64)

    outcomes = {"ok": served & ~aborted, "client_abort": served & aborted, "error": failed}
    for outcome in OUTCOMES:
        names.append(Series("requests_total", make_labels({"outcome": outcome})))
        rows.append(counted(cell[outcomes[outcome]]) if outcome in outcomes else np.zeros(pods * blocks))
    counters = {
        "requests_started_total": counted(cell),
        "input_tokens_total": counted(done, prompt),
        "output_tokens_total": counted(done, output),
        "decode_seconds_total": counted(done, decode),
        "preemptions_total": counted(cell) * (0.05 if saturated else 0.0),
    }
    names += [Series(name, ()) for name in counters]
    rows += list(counters.values())
    gains = np.stack(rows).reshape(len(rows), pods, blocks)
    busy = counted(done, values["request_duration_seconds"]).reshape(pods, blocks) / (BLOCK_MS / 1000)
    series = tuple(names)
    return tuple(
        _target(
            Identity("llama-3.3-70b", f"chat-{requests.stack}", requests.stack, replica=f"{requests.stack}-{pod}"),
            requests.blocks,
            series,
            gains[:, pod],
            _gauges(busy[pod], saturated=saturated),
            started_ms,
        )
        for pod in range(pods)
    )


def _histogram(name: str, values: Floats, cell: Whole, cells: int) -> tuple[Floats, Floats]:
    """Cumulative counts, (edges + 1, cells), and the sums, (cells,)."""
    edges = np.array(METRICS[name].edges)
    width = len(edges) + 1
    bucket = np.searchsorted(edges, values)
    counts = np.bincount(bucket * cells + cell, minlength=width * cells).reshape(width, cells)
    sums: Floats = np.bincount(cell, values, minlength=cells).astype(np.float64)
    return np.cumsum(counts, axis=0, dtype=np.float64), sums


def _gauges(busy: Floats, *, saturated: bool) -> Mapping[str, tuple[Floats, Floats]]:
    """The levels of a pod's gauges, and the share of scrapes above the level at which it is saturated."""
    full = np.full(len(busy), float(saturated))
    none = np.full(len(busy), math.nan)
    return {
        "queued_requests": (6.0 * full, full),
        "kv_cache_usage": (np.minimum(0.3 + 0.01 * busy, 0.85) + 0.1 * full, full),
        "concurrent_requests": (busy + 6.0 * full, none),
    }


def _autoscaler(cutover: Cutover) -> TargetIncrements:
    """v2's autoscaler, with tokens in flight per worker within the recommended range."""
    blocks = cutover.v2.blocks
    load = load_at(blocks, cutover.past.setting)
    workers = np.full(len(blocks), float(cutover.v2.pods))
    none = np.full(len(blocks), math.nan)
    gauges = {
        "autoscaler_avg_in_flight_tokens": (workers * 80_000 * (load / load.mean()) ** 0.4, none),
        "autoscaler_avg_num_workers": (workers, none),
    }
    identity = Identity("llama-3.3-70b", "chat-v2", "v2", replica="autoscaler", role="autoscaler")
    return _target(identity, blocks, (), np.empty((0, len(blocks))), gauges, int(blocks[0]))


def _target(
    identity: Identity,
    blocks: Whole,
    series: tuple[Series, ...],
    gains: Floats,
    gauges: Mapping[str, tuple[Floats, Floats]],
    started_ms: int,
) -> TargetIncrements:
    none = np.zeros(len(blocks), dtype=np.int64)
    return TargetIncrements(
        identity.target_id,
        identity,
        blocks,
        series,
        gains,
        tuple(Series(name, ()) for name in gauges),
        np.stack([levels for levels, _ in gauges.values()]),
        np.stack([above for _, above in gauges.values()]),
        np.full(len(blocks), float(started_ms)),
        Tallies(none + BLOCK_MS // SCRAPE_INTERVAL_MS, none, none, none, none),
        source="servescope",
    )


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
