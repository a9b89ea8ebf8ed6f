"""The real side: Dynamo's frontend and KV router, and its mock workers, as processes on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from servescope.errors import ServescopeError
from tests.proofs.real.engines import MODEL_NAME, running_dynamo
from tests.proofs.real.environments import DYNAMO, ensure_environment, ensure_model
from tests.proofs.real.processes import Started, pick_ports, read
from tests.proofs.truth.figures import Figures
from tests.proofs.truth.settings import (
    BLOCK_TOKENS,
    CONCURRENCY,
    MAX_BATCH_SIZE,
    MAX_NUM_TOKENS,
    MAX_SEQ_LEN,
    WORKERS,
    Prompt,
    Setting,
)

_REQUEST_SECONDS = 60.0
_TURNED_AWAY = "Rejected incompatible workers"


def run_real(setting: Setting, prompts: Sequence[Prompt], *, environments: Path, logs: Path) -> Figures:
    """The figures of Dynamo's router when the prompts are sent in their order."""
    with _running_dynamo(setting, environments, logs) as (base, frontend):
        asyncio.run(_send_all(base, prompts))
        figures = _read_figures(base)
    if _TURNED_AWAY in frontend.log.read_text(encoding="utf-8", errors="replace"):
        raise ServescopeError(f"dynamo's router turned workers away, so it chose between fewer: {frontend.log}")
    return figures


@contextmanager
def _running_dynamo(setting: Setting, environments: Path, logs: Path) -> Iterator[tuple[str, Started]]:
    environment = ensure_environment(environments, DYNAMO)
    model = ensure_model(environments, environment)
    ports = pick_ports(1 + WORKERS)
    frontend = [*_weigh(setting), "--router-temperature", str(setting.temperature)]
    worker = [
        "--num-gpu-blocks-override", str(setting.cache_blocks),
        "--block-size", str(BLOCK_TOKENS), "--max-num-seqs", str(MAX_BATCH_SIZE),
        "--max-num-batched-tokens", str(MAX_NUM_TOKENS), "--max-model-len", str(MAX_SEQ_LEN),
    ]  # fmt: skip
    with running_dynamo(
        environment, model, ports, logs, frontend=frontend, worker=worker, DYN_LOG="warn"
    ) as (router, _):  # fmt: skip
        yield f"http://127.0.0.1:{ports[0]}", router


def _weigh(setting: Setting) -> list[str]:
    """Dynamo has two weights on a cached block: one of them scales what is left to prefill, the other the credit."""
    if setting.weight_is == "scale":
        return ["--router-prefill-load-scale", str(setting.weight), "--router-kv-overlap-score-credit", "1.0"]
    return ["--router-kv-overlap-score-credit", str(setting.weight)]


async def _send_all(base: str, prompts: Sequence[Prompt]) -> None:
    """Send the prompts in their order, CONCURRENCY of them at once."""
    waiting = iter(prompts)
    timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
    async with aiohttp.ClientSession(base, timeout=timeout) as session:

        async def send_in_turn() -> None:
            for prompt in waiting:
                await _send(session, prompt)

        await asyncio.gather(*(send_in_turn() for _ in range(CONCURRENCY)))


async def _send(session: aiohttp.ClientSession, prompt: Prompt) -> None:
    body = {"model": MODEL_NAME, "prompt": list(prompt.tokens), "max_tokens": prompt.output_tokens, "ignore_eos": True}
    async with session.post("/v1/completions", json=body) as response:
        answer = await response.text()
        if response.status != 200:
            raise ServescopeError(f"dynamo answered {response.status}: {answer[:300]}")


def _read_figures(base: str) -> Figures:
    """As the source map of Dynamo's frontend reads them; reused is what the workers reported to the frontend."""
    page = (read(f"{base}/metrics") or b"").decode()
    return Figures(
        eligible=_sum(page, "dynamo_component_router_input_sequence_tokens_sum"),
        predicted=_sum(page, "dynamo_component_router_kv_selected_cached_prefix_tokens_total"),
        reused=_sum(page, "dynamo_frontend_cached_tokens_sum"),
        best=_sum(page, "dynamo_component_router_kv_best_eligible_cached_prefix_tokens_total"),
    )


def _sum(page: str, name: str) -> float:
    values = [
        float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith((f"{name}{{", f"{name} "))
    ]
    if not values:
        raise ServescopeError(f"dynamo shows no {name!r}")
    return sum(values)
