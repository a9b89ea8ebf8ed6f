"""The real side: Dynamo's frontend and KV router, and its mock workers, as processes on loopback."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import aiohttp

from servescope.errors import ServescopeError
from tests.proofs.real.engines import MODEL_NAME, START_SECONDS, registered_workers, serves
from tests.proofs.real.environments import DYNAMO, ensure_environment, ensure_model
from tests.proofs.real.processes import Started, pick_ports, read, running, wait_until
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
_EVENTS_CONNECT_SECONDS = 1.5  # the workers' event streams connect just after they register


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
    frontend_port, *worker_ports = pick_ports(1 + WORKERS)
    base = f"http://127.0.0.1:{frontend_port}"
    python = str(environment / "bin" / "python")
    planes = ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]
    discovery = logs / f"discovery-{frontend_port}"
    discovery.mkdir(parents=True)
    hosts = ("DYN_SYSTEM_HOST", "DYN_EVENT_PLANE_HOST", "DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST")
    settings = {
        "HF_HUB_OFFLINE": "1",
        "DYN_FILE_KV": str(discovery),
        "DYN_LOG": "warn",
        **dict.fromkeys(hosts, "127.0.0.1"),
    }
    frontend = [
        python, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(frontend_port),
        "--router-mode", "kv", "--router-queue-policy", "fcfs",
        *_weigh(setting),
        "--router-temperature", str(setting.temperature), *planes,
    ]  # fmt: skip
    worker = [
        python, "-m", "dynamo.mocker", "--model-path", str(model), "--model-name", MODEL_NAME,
        "--num-gpu-blocks-override", str(setting.cache_blocks),
        "--block-size", str(BLOCK_TOKENS), "--max-num-seqs", str(MAX_BATCH_SIZE),
        "--max-num-batched-tokens", str(MAX_NUM_TOKENS), "--max-model-len", str(MAX_SEQ_LEN), *planes,
    ]  # fmt: skip
    with ExitStack() as stack:
        started = [stack.enter_context(running(f"frontend-{frontend_port}", frontend, logs, environment=settings))]
        # Workers of one process do not always describe their model alike, and the router turns away those that differ
        # from the first: hence a process each.
        for port in worker_ports:
            mine = {**settings, "DYN_SYSTEM_PORT": str(port)}
            started.append(stack.enter_context(running(f"worker-{port}", worker, logs, environment=mine)))
        wait_until(
            lambda: serves(base) and registered_workers(base) == WORKERS,
            "dynamo",
            seconds=START_SECONDS,
            processes=started,
        )
        time.sleep(_EVENTS_CONNECT_SECONDS)
        yield base, started[0]


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
