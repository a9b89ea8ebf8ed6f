"""How long a judgement takes from a store, and what memory: a fleet of two hundred replicas, twelve metrics.

The store holds increments as a collector writes them at 15 s scrapes. What is measured runs in a process of its own on
one thread; the peer is what the judge would do without increments: read the raw samples of a time and count them anew.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks._judge_counting import SCRAPE_INTERVAL_MS
from benchmarks._judge_recordings import making
from benchmarks._judge_requests import BLOCKS_PER_DAY, EPOCH_MS
from benchmarks._judge_traffic import draw_day
from benchmarks._judge_trials import CACHE, one_stage
from servescope.contract.identity import Identity
from servescope.contract.samples import Series, Snapshot
from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.evidence.folding import read_families
from servescope.increments.accumulation import compute_increments
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from servescope.judge.case import WatchedCase, freeze_plan, judge_case
from servescope.store.embedded import Store
from servescope.store.records import RecordedSettings, TargetStatus

V1_REPLICAS, V2_REPLICAS = 150, 50
_DAY_MS: Final = BLOCKS_PER_DAY * BLOCK_MS
_PAST_BLOCKS: Final = BLOCKS_PER_DAY + 12
"""Blocks before the start: noise is calibrated from a day of them, and the last is not closed yet."""
_EXTRA_BLOCKS: Final = 6
"""Blocks after the days, which arrive one by one."""
_PEER_REPLICAS, _PEER_HOURS = 4, 4
_REPEATS: Final = 5
_SETTLED_MS: Final = 60_000
"""After the end of a block it is closed."""
_ROUTED: Final = (
    "kv_cache_eligible_tokens_total", "kv_cache_predicted_tokens_total", "kv_cache_reused_tokens_total",
    "kv_cache_best_tokens_total",
)  # fmt: skip
_DRAFTED: Final = ("spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total")


def measure_speed(days: Sequence[int]) -> None:
    """Print how long judgements take over so many days, with the memory, and the peer's time."""
    targets = fleet(V1_REPLICAS, V2_REPLICAS)
    for length in days:
        path = _filled(targets, length)
        environment = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")}
        command = [sys.executable, "-m", "benchmarks._judge_speed", str(path), str(length)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        found = json.loads(done.stdout)
        print(f"{V1_REPLICAS + V2_REPLICAS} replicas at {SCRAPE_INTERVAL_MS // 1000} s scrapes, a stage of {length} d")
        print(f"  metrics, with data of them                 {found['metrics']}, {found['judged']}")
        print(f"  the plan frozen from a day of v1's past    {found['freeze']:.2f} s")
        print(f"  one judgement from the store               {found['first']:.2f} s")
        print(f"    of which the increments are read in      {found['read']:.2f} s")
        print(f"  the next, after one more block             {found['next'] * 1000:.0f} ms")
        print(f"  again, with no new block                   {found['again'] * 1000:.0f} ms")
        print(f"  most memory of the process                 {found['bytes'] / 2**20:.0f} MiB")
        print(f"  the store, with a day of v1's past         {path.stat().st_size / 1e6:.0f} MB")
        print(f"  verdict at the end                         {found['verdict']}", flush=True)
    _measure_peer(targets)


# --- In a process of its own ------------------------------------------------------------------------------------------


def _measure(path: Path, days: int) -> dict[str, object]:
    started_ms = EPOCH_MS + _PAST_BLOCKS * BLOCK_MS
    plan = one_stage(V2_REPLICAS / (V1_REPLICAS + V2_REPLICAS), calibration="25h")
    decisions = [Decision("start", started_ms, stage=0)]
    with Store(path, read_only=True) as store:
        began = time.process_time()
        frozen = freeze_plan(store, plan, started_ms)
        freeze_seconds = time.process_time() - began
        at_ms = started_ms + days * _DAY_MS + _SETTLED_MS
        whole = []
        for _ in range(_REPEATS if days == 1 else 1):
            began = time.process_time()
            judgement = judge_case(store, frozen, decisions, at_ms)
            whole.append(time.process_time() - began)
        began = time.process_time()
        # A day at a time, as more is refused.
        for day in range(days):
            for deployment in store.deployments():
                first_ms = started_ms + day * _DAY_MS
                store.read_increments(deployment, read_families(plan), first_ms, first_ms + _DAY_MS)
        read_seconds = time.process_time() - began
        case = WatchedCase(store)
        case.judge(frozen, decisions, at_ms)
        following: list[float] = []
        again: list[float] = []
        for block in range(1, _EXTRA_BLOCKS + 1):
            for times, moment in ((following, at_ms + block * BLOCK_MS), (again, at_ms + block * BLOCK_MS + 15_000)):
                began = time.process_time()
                judgement = case.judge(frozen, decisions, moment)
                times.append(time.process_time() - began)
    return {
        "freeze": freeze_seconds, "first": min(whole), "read": read_seconds, "next": float(np.median(following)),
        "again": float(np.median(again)), "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "metrics": len(judgement.metrics), "verdict": judgement.verdict,
        "judged": sum(metric.verdict != "NO DATA" for metric in judgement.metrics),
    }  # fmt: skip


# --- The store --------------------------------------------------------------------------------------------------------


def fleet(v1_replicas: int, v2_replicas: int) -> tuple[TargetIncrements, ...]:
    """A day of all targets: replicas that draft, and a router and an autoscaler for each stack."""
    replicas = [_with_counters(each, _drafts(each)) for each in draw_day(1, v1_replicas, v2_replicas)]
    routers = []
    for stack in ("v1", "v2"):
        one = next(each for each in replicas if each.identity.inference_stack == stack)
        identity = replace(one.identity, replica="router", role="router")
        routed = np.multiply.outer(np.array([1.0, 0.62, 0.55, 0.58]), np.round(np.linspace(4e5, 6e5, BLOCKS_PER_DAY)))
        router = replace(
            one, identity=identity, target_id=identity.target_id, series=tuple(Series(name, ()) for name in _ROUTED),
            gains=np.round(routed), gauges=(), levels=one.levels[:0], above=one.above[:0],
        )  # fmt: skip
        routers.append(router)
    return (*replicas, *routers, _autoscaler(replicas[-1], v2_replicas))


def _drafts(target: TargetIncrements) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    tokens = target.gains[[series.name for series in target.series].index("output_tokens_total")]
    return np.stack([np.round(1.5 * tokens), np.round(0.9 * tokens)])


def _with_counters(
    target: TargetIncrements, gains: np.ndarray[tuple[int, int], np.dtype[np.float64]]
) -> TargetIncrements:
    series = (*target.series, *(Series(name, ()) for name in _DRAFTED))
    return replace(target, series=series, gains=np.concatenate([target.gains, gains]))


def _autoscaler(like: TargetIncrements, replicas: int) -> TargetIncrements:
    identity = replace(like.identity, replica="autoscaler", role="autoscaler")
    names = ("autoscaler_avg_in_flight_tokens", "autoscaler_avg_num_workers")
    levels = np.multiply.outer(np.array([80_000.0 * replicas, float(replicas)]), np.ones(BLOCKS_PER_DAY))
    return replace(
        like, identity=identity, target_id=identity.target_id, series=(), gains=like.gains[:0],
        gauges=tuple(Series(name, ()) for name in names), levels=levels, above=np.full(levels.shape, np.nan),
    )  # fmt: skip


def _filled(fleet: Sequence[TargetIncrements], days: int) -> Path:
    """A store with a day of past, so many days of a stage, and the blocks after them; made once."""
    # One more than is judged: it shows that scrapes go on.
    blocks = _PAST_BLOCKS + days * BLOCKS_PER_DAY + _EXTRA_BLOCKS + 1
    path = CACHE / f"speed-{blocks}.db"
    if path.exists():
        return path
    with making(path) as begun, Store.begin(begun) as store:
        store.record_settings(EPOCH_MS, RecordedSettings(BLOCK_MS, BLOCK_MS, SCRAPE_INTERVAL_MS, "closed"))
        with store.transaction():
            for target in fleet:
                store.set_target(_status(target.identity, EPOCH_MS + blocks * BLOCK_MS))
        for number in range(blocks):
            with store.transaction():
                for target in fleet:
                    store.append_increments(_block(target, number))
            # The newest block of each target is not packed when it is judged.
            while number < blocks - _EXTRA_BLOCKS - 1 and store.pack_due():
                pass
    return path


def _block(target: TargetIncrements, number: int) -> TargetIncrements:
    """One block of the day that the target repeats."""
    kept = slice(number % BLOCKS_PER_DAY, number % BLOCKS_PER_DAY + 1)
    return replace(target.at(kept), blocks=np.array([EPOCH_MS + number * BLOCK_MS]))


def _status(identity: Identity, last_ms: int) -> TargetStatus:
    return TargetStatus(
        identity.target_id, f"http://{identity.replica}/metrics", identity, source="servescope", healthy=True,
        last_scrape_ms=last_ms, last_success_ms=last_ms,
    )  # fmt: skip


# --- The peer ---------------------------------------------------------------------------------------------------------


def _measure_peer(fleet: Sequence[TargetIncrements]) -> None:
    """The time of reading increments, and of computing them from raw samples, for the same replicas and hours."""
    chosen = fleet[:_PEER_REPLICAS]
    end_ms = EPOCH_MS + _PEER_HOURS * 3_600_000
    with (
        tempfile.TemporaryDirectory(prefix="servescope-judge-") as folder,
        Store.begin(Path(folder) / "raw.db") as store,
    ):
        store.record_settings(EPOCH_MS, RecordedSettings(300_000, 15_000, SCRAPE_INTERVAL_MS, "closed"))
        for target in chosen:
            store.set_target(_status(target.identity, end_ms))
        for time_ms, snapshots in _scrapes(chosen):
            with store.transaction():
                for target, snapshot in zip(chosen, snapshots, strict=True):
                    store.append_scrape(target.target_id, time_ms, snapshot)
            while store.pack_due():
                pass
        names = read_families(one_stage(0.5))
        deployment = chosen[0].identity.deployment()
        began = time.process_time()
        store.read_increments(deployment, names, EPOCH_MS, end_ms)
        short = time.process_time() - began
        began = time.process_time()
        for target, window in zip(chosen, store.read_samples(deployment, names, EPOCH_MS, end_ms), strict=True):
            compute_increments(
                target.target_id, target.identity, window, start_ms=EPOCH_MS, end_ms=end_ms,
                interval_ms=SCRAPE_INTERVAL_MS,
            )  # fmt: skip
        long = time.process_time() - began
    replica_days = _PEER_REPLICAS * _PEER_HOURS / 24
    print(f"{_PEER_REPLICAS} replicas, {_PEER_HOURS} h, the same series:")
    print(f"  increments read from the store             {short * 1000:.1f} ms")
    print(f"  raw samples read, increments computed      {long * 1000:.0f} ms, {long / short:.0f} ×")
    whole = long / replica_days * (V1_REPLICAS + V2_REPLICAS)
    print(
        f"  that is for {V1_REPLICAS + V2_REPLICAS} replicas and a day           {whole:.0f} s, "
        "and more than is read at once"
    )


def _scrapes(targets: Sequence[TargetIncrements]) -> Iterator[tuple[int, list[Snapshot]]]:
    """What the targets showed every 15 s: counters that rise evenly within a block."""
    each = BLOCK_MS // SCRAPE_INTERVAL_MS
    totals = [np.concatenate([np.zeros((len(t.series), 1)), np.cumsum(t.gains, axis=1)], axis=1) for t in targets]
    for number in range(_PEER_HOURS * 3_600_000 // SCRAPE_INTERVAL_MS + 1):
        block, part = divmod(number, each)
        snapshots = []
        for target, total in zip(targets, totals, strict=True):
            counters = np.floor(total[:, block] + (total[:, block + 1] - total[:, block]) * part / each)
            snapshots.append(
                Snapshot((*target.series, *target.gauges), np.concatenate([counters, target.levels[:, block]]))
            )
        yield EPOCH_MS + number * SCRAPE_INTERVAL_MS, snapshots


if __name__ == "__main__":
    print(json.dumps(_measure(Path(sys.argv[1]), int(sys.argv[2]))))
