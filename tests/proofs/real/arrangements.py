"""The plugin in vLLM servers arranged otherwise: several processes, several engines, and settings that are wrong."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from servescope.contract.samples import Labels
from servescope.sources.parse import parse_exposition
from tests.proofs.real.claims import Claim
from tests.proofs.real.client import Counts, send_all
from tests.proofs.real.engines import PLUGIN, Engine, run_vllm
from tests.proofs.real.processes import read, wait_until
from tests.proofs.real.traffic import make_traffic

REQUESTS = 30
LEAVING = 4


def claim_arrangements(folder: Path, logs: Path) -> list[Claim]:
    """Each arrangement by itself, under the same traffic."""
    return [
        *_claim_sums(folder, logs, "2 API servers", ["--api-server-count", "2"], pages=2, replicas=2),
        *_claim_sums(folder, logs, "2 engines", ["--data-parallel-size", "2", "--api-server-count", "1"], replicas=2),
        *_claim_wrong_port(folder, logs),
    ]


def _claim_sums(
    folder: Path, logs: Path, what: str, options: list[str], *, replicas: int, pages: int = 1
) -> Iterator[Claim]:
    """Over all pages and replicas the plugin's counters are the client's counts and what vLLM's own page adds up to."""
    with run_vllm(folder, logs, name=f"vllm {what}", options=options, pages=pages) as engine:
        counts = _send(engine)
        native = _sums(engine.targets[0].url)
        assert engine.inside is not None
        inside: dict[str, float] = defaultdict(float)
        for target in engine.inside.targets:
            for name, value in _sums(target.url).items():
                inside[name] += value
    ok = counts.of("ok")
    claimed = {
        "output_tokens_total": native["vllm:generation_tokens_total"],
        "input_tokens_total": native["vllm:prompt_tokens_total"],
        "kv_cache_reused_tokens_total": float(sum(each.cached_tokens for each in ok)),
        'requests_total{outcome="ok"}': native['vllm:request_success_total{finished_reason="length"}']
        + native['vllm:request_success_total{finished_reason="stop"}'],
        "time_to_first_token_seconds_count": native["vllm:time_to_first_token_seconds_count"],
        "replicas": float(replicas),
    }
    for name, value in claimed.items():
        yield Claim(PLUGIN, f"{what}: {name}", inside[name], value, value)
    # With several processes the engine reports its state to one of them only; the others may get it too late.
    gone = inside['requests_total{outcome="client_abort"}']
    most = inside["time_to_first_token_seconds_count"] - claimed['requests_total{outcome="ok"}']
    yield Claim(PLUGIN, f"{what}: clients that left", gone, 0 if pages > 1 else most, most, "a count from below")


def _claim_wrong_port(folder: Path, logs: Path) -> Iterator[Claim]:
    """vLLM serves as if there were no plugin, and its log names what is wrong."""
    name = "vllm wrong port"
    with run_vllm(folder, logs, name=name, plugin={"SERVESCOPE_PORT": "nine"}) as engine:
        served = len(_send(engine).of("ok"))
    log = (logs / f"{name}.log").read_text(encoding="utf-8", errors="replace")
    warnings = log.count("SERVESCOPE_PORT is 'nine', expected a port from 0 to 65535")
    yield Claim(PLUGIN, "wrong port: requests served", served, REQUESTS, REQUESTS)
    yield Claim(PLUGIN, "wrong port: warnings in vLLM's log", warnings, 1, 1)


def _send(engine: Engine) -> Counts:
    traffic = make_traffic(5, REQUESTS, leaving=LEAVING)
    counts = asyncio.run(send_all(engine.base_url, traffic, concurrency=4))
    wait_until(lambda: _is_idle(engine), "the engine noticing who left", seconds=60)
    time.sleep(1.0)
    return counts


def _is_idle(engine: Engine) -> bool:
    sums = _sums(engine.targets[0].url)
    return sums["vllm:num_requests_running"] + sums["vllm:num_requests_waiting"] == 0


def _sums(url: str) -> dict[str, float]:
    """What is on a page, summed over engines and replicas; by name, or with the label that says what became of it."""
    body = read(url)
    assert body is not None, url
    sums: dict[str, float] = defaultdict(float)
    replicas = set()
    for sample in parse_exposition(body).samples:
        labels = dict(sample.labels)
        replicas.add(labels.get("replica"))
        sums[sample.name + _kept(sample.labels)] += sample.value
    sums["replicas"] = float(len(replicas - {None}))
    return sums


def _kept(labels: Labels) -> str:
    kept = [f'{{{name}="{value}"}}' for name, value in labels if name in ("outcome", "finished_reason")]
    return "".join(kept)
