"""NVIDIA Dynamo's own replay of a trace: its KV router and mock workers on a virtual clock, on one core."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

_SECONDS_AT_MOST = 600.0

# Runs inside Dynamo's environment; its log, a line for each decision, is turned off.
_REPLAY = """
import json, os, resource, sys
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
from dynamo._core import run_mocker_trace_replay
from dynamo.llm import KvRouterConfig
given = json.loads(sys.argv[1])
result = run_mocker_trace_replay(
    [given["trace"]],
    extra_engine_args={"engine": given["engine"]},
    router_config=KvRouterConfig(**given["router"]),
    num_workers=given["workers"],
    router_mode="kv_router",
    trace_block_size=given["engine"]["block_size"],
)
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "cpu_seconds": used.ru_utime + used.ru_stime,
    "peak_mib": used.ru_maxrss / 1024,
    "requests": result.summary["completed_requests"],
    "prompt_tokens": result.summary["total_input_tokens"],
    "hit_rate": result.summary["prefix_cache_reused_ratio"],
}))
"""


@dataclass(frozen=True, slots=True)
class DynamoReplay:
    """One replay as a process: what it used, and the share of prompt tokens reused."""

    seconds: float
    cpu_seconds: float
    peak_mib: float
    requests: int
    prompt_tokens: int
    hit_rate: float


def find_dynamo(environments: Path) -> Path | None:
    """The Python of the environment that `make real` builds; None when there is none."""
    python = environments / "dynamo" / "bin" / "python"
    return python if python.exists() else None


def replay_with_dynamo(
    python: Path,
    trace: Path,
    *,
    workers: int = 16,
    cache_blocks: int = 20_000,
    block_tokens: int = 512,
    max_batch_size: int = 256,
    max_num_tokens: int = 8192,
    credit: float = 1.0,
    prefill_load_scale: float = 1.0,
    temperature: float = 0.0,
) -> DynamoReplay:
    """Replay a Mooncake trace; `credit` and `prefill_load_scale` are its two weights of a cached block."""
    given = {
        "trace": str(trace),
        "workers": workers,
        "engine": {
            "num_gpu_blocks": cache_blocks,
            "block_size": block_tokens,
            "max_num_seqs": max_batch_size,
            "max_num_batched_tokens": max_num_tokens,
        },
        "router": {
            "overlap_score_credit": credit,
            "prefill_load_scale": prefill_load_scale,
            "router_temperature": temperature,
        },
    }
    started = time.perf_counter()
    ran = subprocess.run(
        [str(python), "-c", _REPLAY, json.dumps(given)], capture_output=True, text=True, timeout=_SECONDS_AT_MOST,
        check=False, env={**os.environ, "HF_HUB_OFFLINE": "1", "DYN_LOG": "error"},
    )  # fmt: skip
    if ran.returncode != 0:
        raise RuntimeError(f"dynamo's replay ended with {ran.returncode}: {ran.stderr[-500:]}")
    seconds = time.perf_counter() - started
    return DynamoReplay(seconds=seconds, **json.loads(ran.stdout.strip().rpartition("\n")[2]))
