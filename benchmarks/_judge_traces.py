"""Public traces beside the worlds: how bursty arrivals are, who owns the tokens, and how reuse differs between arms.

Traces have no latencies, so what is compared is what moves them: arrivals, lengths, and which prompts were cached. A
session keeps to one replica by its first own block, and every replica has a cache of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks._judge_requests import Flags, Floats, Requests, Whole
from benchmarks._judge_traffic import REPLICAS, draw_cutover, draw_past
from benchmarks._judge_worlds import WORLDS
from servescope.emulator.engine.cache import BlockCache
from servescope.emulator.workload.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest, read_trace
from servescope.increments.blocks import BLOCK_MS

COMPARED: Final = ("clean", "bursts", "heavy-tails", "sessions", "tenants")
SHARE: Final = 0.25
CACHE_BLOCKS: Final = 5_000
"""What one replica caches: 2.5 million tokens of a trace."""
_WARMING: Final = 2
"""Blocks of a trace in which caches fill: they are left out."""
_HASHINGS: Final = 20
_HOUR_BLOCKS: Final = 3_600_000 // BLOCK_MS


@dataclass(frozen=True, slots=True, eq=False)
class Reuse:
    """Tokens of prompts and of what was cached of them, by replica and block, (replicas, blocks); v1's replicas come
    first.
    """

    prompt: Floats
    cached: Floats
    v1_replicas: int

    def rates(self) -> Floats:
        """The share of the tokens that was cached, by replica and block."""
        return np.asarray(self.cached / np.where(self.prompt > 0.0, self.prompt, np.nan))

    def between_arms(self) -> Floats:
        """v2's share less v1's, (blocks,)."""
        v1, v2 = slice(0, self.v1_replicas), slice(self.v1_replicas, None)
        rates = [self.cached[arm].sum(axis=0) / self.prompt[arm].sum(axis=0) for arm in (v1, v2)]
        return np.asarray(rates[1] - rates[0])


def compare_traces(folder: Path) -> Iterator[str]:
    """A table of a folder's traces, and of the worlds that are like them."""
    yield (
        "| of an hour | requests a min | spread of minutes | spread of 5 min | largest 2 % of prompts own | reused |"
        " spread between pods | between arms |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for path in sorted((*folder.glob("*.jsonl"), *folder.glob("*.csv"))):
        requests = list(read_trace(path))
        seconds = np.array([each.seconds for each in requests])
        tokens = np.array([float(each.input_tokens) for each in requests])
        shown = [_replay(requests, hashing) for hashing in range(_HASHINGS)] if requests[0].block_ids else []
        yield _written(f"trace {path.stem}", [_figures(seconds - seconds[0], tokens)], shown)
    for name in COMPARED:
        cutover = draw_cutover(draw_past(0, SHARE, world=WORLDS[name]), 0)
        noon = int(np.searchsorted(cutover.v1.blocks, cutover.stage_ms)) + np.arange(0, 24 * _HOUR_BLOCKS, _HOUR_BLOCKS)
        arms = cutover.v1, cutover.v2
        yield _row_of_hours(f"world {name}", arms, noon)


def _row_of_hours(title: str, arms: tuple[Requests, Requests], starts: Whole) -> str:
    """A world's figures, hour by hour as a trace has but one, and the means of the hours."""
    seconds, tokens, shown = [], [], []
    for start in starts:
        chosen = [(each.block >= start) & (each.block < start + _HOUR_BLOCKS) for each in arms]
        # Within their block requests come evenly.
        when = [
            ((each.block[kept] - start) + each.chance[kept] * 1e6 % 1) * (BLOCK_MS / 1000)
            for each, kept in zip(arms, chosen, strict=True)
        ]
        seconds.append(np.concatenate(when))
        tokens.append(np.concatenate([each.prompt[kept] for each, kept in zip(arms, chosen, strict=True)]))
        if arms[0].reused is not None:
            shown.append(_counted(arms, chosen, int(start)))
    return _written(title, [_figures(*each) for each in zip(seconds, tokens, strict=True)], shown)


def _counted(arms: tuple[Requests, Requests], chosen: Sequence[Flags], start: int) -> Reuse:
    prompts: list[Floats] = []
    cached: list[Floats] = []
    for each, kept in zip(arms, chosen, strict=True):
        cell = each.replica[kept] * _HOUR_BLOCKS + each.block[kept] - start
        for counted, tokens in ((prompts, each.prompt), (cached, each.reused)):
            if tokens is not None:
                total = np.bincount(cell, tokens[kept], minlength=each.replicas * _HOUR_BLOCKS).astype(np.float64)
                counted.append(total.reshape(-1, _HOUR_BLOCKS))
    return Reuse(np.concatenate(prompts), np.concatenate(cached), arms[0].replicas)


def _replay(requests: Sequence[TraceRequest], hashing: int) -> Reuse:
    """A trace on as many replicas as the stage has, each session on one of them by a hash."""
    v1_replicas, v2_replicas = REPLICAS[SHARE]
    blocks = int((requests[-1].seconds - requests[0].seconds) * 1000 // BLOCK_MS)
    prompt, cached = np.zeros((2, v1_replicas + v2_replicas, blocks))
    for each, replica, found in place(requests, hashing, v1_replicas + v2_replicas):
        block = int((each.seconds - requests[0].seconds) * 1000 // BLOCK_MS)
        if block < blocks:
            prompt[replica, block] += each.input_tokens
            cached[replica, block] += found
    return Reuse(prompt[:, _WARMING:], cached[:, _WARMING:], v1_replicas)


def place(requests: Sequence[TraceRequest], hashing: int, replicas: int) -> Iterator[tuple[TraceRequest, int, int]]:
    """Each request with the replica that its session is hashed to, and the tokens of its prompt that
    were cached there.
    """
    caches = [BlockCache(capacity=CACHE_BLOCKS, block_tokens=MOONCAKE_BLOCK_TOKENS) for _ in range(replicas)]
    for each in requests:
        ids = each.block_ids or ()
        # All conversations share their first block, so the second one is whose it is.
        session = ids[min(1, len(ids) - 1)]
        replica = int.from_bytes(blake2b(f"{hashing}/{session}".encode(), digest_size=4).digest()) % replicas
        yield each, replica, min(each.input_tokens, _use(caches[replica], ids) * MOONCAKE_BLOCK_TOKENS)


def _use(cache: BlockCache, ids: Sequence[int]) -> int:
    """How many blocks at the front of a prompt were cached; all of them are afterwards."""
    tokens = len(ids) * cache.block_tokens
    lease = cache.open(ids, reusable=len(ids))
    found = lease.shared
    if cache.grow(lease, tokens):
        cache.commit(lease, tokens)
    cache.close(lease)
    cache.take_changes()
    return found


def _figures(seconds: Floats, tokens: Floats) -> tuple[float, float, float, float]:
    largest = np.sort(tokens)[-max(1, len(tokens) // 50) :]
    return (
        len(seconds) / (float(seconds.max()) / 60),
        _spread(seconds, 60.0),
        _spread(seconds, BLOCK_MS / 1000),
        float(largest.sum() / tokens.sum()),
    )


def _spread(seconds: Floats, window: float) -> float:
    """By how much numbers of arrivals differ between whole windows besides by chance, as a share of their mean."""
    counts = np.bincount((seconds // window).astype(int))[: int(seconds.max() // window)]
    mean = float(counts.mean())
    return float(np.sqrt(max(0.0, float(counts.var(ddof=1)) - mean)) / mean)


def _written(title: str, figures: Sequence[tuple[float, ...]], shown: Sequence[Reuse]) -> str:
    rate, minutes, fives, owned = (float(np.mean(each)) for each in zip(*figures, strict=True))
    cells = [title, f"{rate:.0f}", f"{minutes:.0%}", f"{fives:.0%}", f"{owned:.0%}"]
    if shown:
        reused = float(np.mean([each.cached.sum() / each.prompt.sum() for each in shown]))
        replicas = float(np.mean([np.nanstd(each.rates(), axis=0).mean() for each in shown]))
        arms = float(np.sqrt(np.mean([np.square(each.between_arms()).mean() for each in shown])))
        cells += [f"{reused:.0%}", f"{100 * replicas:.0f} points", f"{100 * arms:.0f} points"]
    else:
        cells += ["–"] * 3
    return "| " + " | ".join(cells) + " |"
