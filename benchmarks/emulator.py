"""How fast the emulator replays a public trace on its virtual clock, on one core."""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from servescope.emulator.autoscaler import TokenScaling
from servescope.emulator.clock import VirtualClock
from servescope.emulator.engine import EngineParameters
from servescope.emulator.router import KvRouterParameters
from servescope.emulator.stack import Deployment, DeploymentPlan
from servescope.emulator.workload import Request
from servescope.identity import Deployment as DeploymentIdentity

_WORKERS = 16
_BLOCK_TOKENS = 512


def configure(parser: argparse.ArgumentParser) -> None:
    """Take the trace to replay."""
    parser.add_argument("--trace", type=Path, default=Path("/work/shared/traces/conversation_trace.jsonl"))


def run(arguments: argparse.Namespace) -> None:
    requests = list(read(arguments.trace))
    print(len(requests))
    started, cpu = time.perf_counter(), time.process_time()
    outcomes, deployment, clock = replay(requests)
    took = time.perf_counter() - started
    print(f"{took:.1f} s, {time.process_time()-cpu:.1f} cpu", outcomes, clock.now)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MiB")
    totals = {}
    for target in deployment.targets():
        for s in target.instruments.samples():
            if s.name.endswith(("_total", "_sum", "_count")) and s.value:
                totals[s.name] = totals.get(s.name, 0) + s.value
    for k, v in totals.items(): print(k, v)


def read(path: Path) -> Iterator[tuple[float, Request]]:
    draw = random.Random("bench")
    for number, line in enumerate(path.open(), 1):
        row = json.loads(line)
        ids = row["hash_ids"][: row["input_length"] // _BLOCK_TOKENS]
        total = (row["input_length"] + row["output_length"]) // _BLOCK_TOKENS
        ids += [-(number << 20) - i for i in range(len(ids), total)]
        yield row["timestamp"] / 1000 + draw.random() * 3, Request(number, row["input_length"], row["output_length"], tuple(ids))


def replay(requests):
    clock = VirtualClock()
    plan = DeploymentPlan(
        identity=DeploymentIdentity("m", "replay", "v2"),
        engine=EngineParameters(max_batch_size=128, max_num_tokens=8192, max_seq_len=200_000, max_queue=100000, block_tokens=_BLOCK_TOKENS, cache_blocks=3000, error_share=0.0),
        scaling=TokenScaling(target_in_flight_tokens=50_000, min_replica=_WORKERS, initial_replicas=_WORKERS, max_replica=_WORKERS),
        routing=KvRouterParameters(),
    )
    deployment = Deployment(plan, clock=clock, seed=1)
    outcomes: dict[str, int] = {}

    def finished(outcome: str) -> None:
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    for at, request in requests:
        clock.schedule(at, lambda request=request: deployment.send(request, finished))
    while sum(outcomes.values()) < len(requests):
        clock.run_until(clock.now + 60)
    return outcomes, deployment, clock


if __name__ == "__main__":
    p = argparse.ArgumentParser(); configure(p); run(p.parse_args())
