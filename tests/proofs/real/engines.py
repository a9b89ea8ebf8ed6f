"""The engines as they are run for the proof: their commands, their targets, and how they refuse."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.proofs.real.environments import (
    DYNAMO,
    DYNAMO_VERSION,
    VLLM,
    VLLM_VERSION,
    VOCABULARY,
    ensure_environment,
    ensure_model,
    install_plugin,
)
from tests.proofs.real.processes import Started, pick_ports, read, read_page, running, wait_until
from tests.support.waiting import deadline_seconds

MODEL_NAME = "tiny"
PLUGIN = "vllm-plugin"
START_SECONDS = 300.0
BLOCK_SIZE = 16
_EVENTS_CONNECT_SECONDS = 1.5  # the workers' event streams connect just after they register

VLLM_MAX_QUEUED = 24
"""Requests vLLM takes at once; more are refused."""

DYNAMO_WORKERS = 3
DYNAMO_PREFILL_LIMIT = 1500
"""Prompt tokens in prefill above which Dynamo takes a worker for busy; all busy, it refuses."""


@dataclass(frozen=True, slots=True)
class Target:
    """One place to scrape: `role` as in the collector's configuration."""

    url: str
    role: str
    replica: str


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine: where requests go, what is scraped, how long it took to be ready."""

    name: str
    version: str
    base_url: str
    targets: tuple[Target, ...]
    ready_seconds: float
    captured_as: tuple[str, ...]
    """Names for captures of the first targets."""
    inside: Engine | None = None
    """The same engine as our plugin in it reports it, as a deployment of its own."""
    started: Started | None = None
    """Its process, where it is one."""

    @property
    def stack(self) -> str:
        """What the deployment calls it."""
        return f"{self.name}-{self.version}"


@contextmanager
def run_vllm(
    folder: Path,
    logs: Path,
    *,
    name: str = "vllm",
    options: Sequence[str] = (),
    plugin: Mapping[str, str] | None = None,
    pages: int = 1,
) -> Iterator[Engine]:
    """Real vLLM on the CPU with n-gram speculation and our plugin in it, ready to serve.

    `options` are added to its command line, `plugin` to the plugin's variables; `pages` is how many the plugin serves.
    """
    environment = ensure_environment(folder, VLLM)
    model = ensure_model(folder, ensure_environment(folder, DYNAMO))
    port, *free = pick_ports(2)
    speculation = {
        "method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2,
    }  # fmt: skip
    command = [
        str(environment / "bin" / "vllm"), "serve", str(model), "--served-model-name", MODEL_NAME,
        "--load-format", "dummy", "--dtype", "float32", "--enforce-eager",
        "--host", "127.0.0.1", "--port", str(port),
        "--max-model-len", "2048", "--max-num-seqs", "16", "--max-num-queued-reqs", str(VLLM_MAX_QUEUED),
        # Without it the usage block does not say how many prompt tokens came from the cache.
        "--enable-prompt-tokens-details",
        "--speculative-config", json.dumps(speculation), *options,
    ]  # fmt: skip
    settings = {
        "PATH": f"{environment / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(install_plugin(folder)),
        "SERVESCOPE_PORT": str(free[0]),
        "SERVESCOPE_REPLICA": "vllm-0",
        **(plugin or {}),
    }
    base = f"http://127.0.0.1:{port}"
    with running(name, command, logs, environment=settings) as started:
        seconds = wait_until(lambda: serves(base), name, seconds=START_SECONDS, processes=[started])
        target = Target(f"{base}/metrics", "aggregated", "vllm-0")
        inside = tuple(
            Target(f"http://127.0.0.1:{free[0] + page}/metrics", "aggregated", "vllm-0") for page in range(pages)
        )
        plugged = Engine(PLUGIN, VLLM_VERSION, base, inside, seconds, (PLUGIN,))
        yield Engine("vllm", VLLM_VERSION, base, (target,), seconds, ("vllm",), plugged, started)


@contextmanager
def run_dynamo(
    folder: Path, logs: Path, *, vocabulary: int = VOCABULARY, workers: int = DYNAMO_WORKERS
) -> Iterator[Engine]:
    """Dynamo's real frontend and KV router over mock workers, one process each, ready to serve."""
    environment = ensure_environment(folder, DYNAMO)
    model = ensure_model(folder, environment, vocabulary)
    ports = pick_ports(1 + workers)
    frontend = ["--router-temperature", "0.05", "--active-prefill-tokens-threshold", str(DYNAMO_PREFILL_LIMIT)]
    worker = [
        "--num-gpu-blocks-override", "512", "--block-size", str(BLOCK_SIZE), "--max-num-seqs", "16",
        "--max-num-batched-tokens", "2048", "--max-model-len", "4096", "--speedup-ratio", "5",
    ]  # fmt: skip
    with running_dynamo(environment, model, ports, logs, frontend=frontend, worker=worker) as (_, seconds):
        base, captured_as = f"http://127.0.0.1:{ports[0]}", ("dynamo-frontend", "dynamo-mocker")
        yield Engine("dynamo", DYNAMO_VERSION, base, _dynamo_targets(base, ports[1:]), seconds, captured_as)


@contextmanager
def running_dynamo(
    environment: Path,
    model: Path,
    ports: Sequence[int],
    logs: Path,
    *,
    frontend: Sequence[str],
    worker: Sequence[str],
    **variables: str,
) -> Iterator[tuple[Started, float]]:
    """Dynamo's frontend and KV router on the first port over a mock worker for each of the others, ready to serve.

    `frontend` and `worker` are added to their command lines. Gives the frontend, and how long it took to be ready.
    """
    base, discovery = f"http://127.0.0.1:{ports[0]}", logs / f"dynamo-discovery-{ports[0]}"
    discovery.mkdir(parents=True)
    hosts = ("DYN_SYSTEM_HOST", "DYN_EVENT_PLANE_HOST", "DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST")
    settings = {
        "HF_HUB_OFFLINE": "1", "DYN_FILE_KV": str(discovery), **dict.fromkeys(hosts, "127.0.0.1"), **variables,
    }  # fmt: skip
    python = str(environment / "bin" / "python")
    planes = ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]
    router = [
        python, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(ports[0]),
        "--router-mode", "kv", "--router-queue-policy", "fcfs", *frontend, *planes,
    ]  # fmt: skip
    mocker = [
        python, "-m", "dynamo.mocker", "--model-path", str(model), "--model-name", MODEL_NAME, *worker, *planes,
    ]  # fmt: skip
    with ExitStack() as stack:
        started = [stack.enter_context(running(f"dynamo-{ports[0]}", router, logs, environment=settings))]
        for port in ports[1:]:
            # A mocker with several workers shows one of them on its system port, and does not always describe their
            # model alike, so that the router turns away those that differ from the first: hence a process each.
            mine = {**settings, "DYN_SYSTEM_PORT": str(port)}
            started.append(stack.enter_context(running(f"dynamo-worker-{port}", mocker, logs, environment=mine)))
        seconds = wait_until(
            lambda: serves(base) and registered_workers(base) == len(ports) - 1,
            "dynamo",
            seconds=START_SECONDS,
            processes=started,
        )
        time.sleep(deadline_seconds(_EVENTS_CONNECT_SECONDS))
        yield started[0], seconds


def _dynamo_targets(base: str, workers: list[int]) -> tuple[Target, ...]:
    frontend = Target(f"{base}/metrics", "router", "frontend-0")
    return (
        frontend,
        *(
            Target(f"http://127.0.0.1:{port}/metrics", "aggregated", f"worker-{index}")
            for index, port in enumerate(workers)
        ),
    )


def capture(engines: Sequence[Engine], folder: Path | None, moment: str) -> None:
    """Save the targets' `/metrics`, one of several that are alike for all; without effect where there is no folder."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for engine in engines:
        for target, part in zip(engine.targets, engine.captured_as, strict=False):
            (folder / f"{part}-{engine.version}-{moment}.txt").write_bytes(read_page(target.url))


def serves(base: str) -> bool:
    """Whether requests are answered there."""
    body = read(f"{base}/v1/models")
    return body is not None and any(entry["id"] == MODEL_NAME for entry in json.loads(body)["data"])


def registered_workers(base: str) -> int:
    """How many workers Dynamo's router there knows."""
    body = read(f"{base}/metrics") or b""
    return body.count(b"\ndynamo_component_router_worker_registered{")


Runner = Callable[[Path, Path], AbstractContextManager[Engine]]

RUNNERS: Mapping[str, Runner] = {"vllm": run_vllm, "dynamo": run_dynamo}
