"""What is behind a real router: `servescope emulate`, which looks like a vLLM server, or a real vLLM."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from servescope.sources.parse import parse_exposition
from tests.proofs.real.client import Counts
from tests.proofs.real.engines import MODEL_NAME, run_vllm, serves
from tests.proofs.real.processes import Started, pick_ports, read, running, wait_until

START_SECONDS = 120.0
IDLE_SECONDS = 60.0
BLOCK_SIZE = 32

SCENARIO = f"""\
seed = 1

[[deployments]]
model_name = "{MODEL_NAME}"
deployment_id = "worker"

[deployments.engine]
max_queue = 200

[deployments.runtime]
max_batch_size = 32

[deployments.autoscaling]
min_replica = 1
max_replica = 1
"""


@dataclass(frozen=True, slots=True)
class Worker:
    """One server, and where it publishes the events of its cache."""

    url: str
    events: str
    started: Started


@dataclass(frozen=True, slots=True)
class Workers:
    """Servers that can die and, where they are `emulated`, fail."""

    workers: Sequence[Worker]
    emulated: bool = True

    @property
    def urls(self) -> list[str]:
        """Where each answers."""
        return [worker.url for worker in self.workers]

    def fail(self, share: float) -> None:
        """From now on that share of the requests fails, in each worker; 0 ends it."""
        for worker in self.workers:
            _ask(f"{worker.url}/faults", "DELETE")
            if share:
                _ask(f"{worker.url}/faults", "POST", {"kind": "error-burst", "intensity": share})

    def kill_first(self) -> Counts:
        """End the process of one at once, as by a machine that is gone; that takes no request."""
        _kill(self.workers[0])
        return Counts()

    def kill_all(self) -> None:
        """End the processes of all, those that have ended included."""
        for worker in self.workers:
            _kill(worker)

    def wait_until_idle(self) -> None:
        """Return when none has anything left to compute, also for clients that are gone."""
        wait_until(lambda: not any(map(_running, self.workers)), "idle workers", seconds=IDLE_SECONDS)


def _kill(worker: Worker) -> None:
    worker.started.process.kill()
    worker.started.process.wait()


def _running(worker: Worker) -> float:
    pages = read(f"{worker.url}/worker/engine-0/metrics") or b""
    return sum(
        sample.value
        for sample in parse_exposition(pages).samples
        if sample.name in ("vllm:num_requests_running", "vllm:num_requests_waiting")
    )


def _ask(url: str, method: str, body: object = None) -> None:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None, headers, method=method)
    with urllib.request.urlopen(request, timeout=10) as response:
        response.read()


Behind = Callable[[Path, Path], AbstractContextManager[Workers]]
"""Runs what is behind a router, with a folder of environments and one for logs."""


@contextmanager
def run_vllm_worker(environments: Path, logs: Path) -> Iterator[Workers]:
    """One real vLLM that publishes the events of its cache, ready."""
    events = f"tcp://127.0.0.1:{pick_ports(1)[0]}"
    publishing = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": events}
    options = ["--kv-events-config", json.dumps(publishing), "--block-size", str(BLOCK_SIZE)]
    with run_vllm(environments, logs, name="vllm-worker", options=options) as engine:
        assert engine.started is not None
        yield Workers([Worker(engine.base_url, events, engine.started)], emulated=False)


def run_emulated_workers(_: Path, logs: Path) -> AbstractContextManager[Workers]:
    """Several emulated workers, ready."""
    return run_workers(3, logs)


@contextmanager
def run_workers(count: int, logs: Path) -> Iterator[Workers]:
    """So many emulated workers, ready."""
    scenario = logs / "worker.toml"
    scenario.write_text(SCENARIO, encoding="utf-8")
    servescope = str(Path(sys.executable).with_name("servescope"))
    with ExitStack() as stack:
        workers = []
        for index in range(count):
            port, events = pick_ports(2)
            command = [
                servescope, "emulate", "--scenario", str(scenario), "--traffic", "none", "--metrics", "vllm",
                "--listen", f"127.0.0.1:{port}", "--directory", str(logs / f"worker-{index}"),
                "--kv-events", f"tcp://127.0.0.1:{events}",
            ]  # fmt: skip
            started = stack.enter_context(running(f"worker-{index}", command, logs))
            workers.append(Worker(f"http://127.0.0.1:{port}", f"tcp://127.0.0.1:{events}", started))
        for worker in workers:
            wait_until(lambda url=worker.url: serves(url), "worker", seconds=START_SECONDS, processes=[worker.started])  # type: ignore[misc]  # the default is no part of the type
        yield Workers(workers)
