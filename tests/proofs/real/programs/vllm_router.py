"""vLLM's router in front of emulated workers or a real vLLM, whose cache events it follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.proofs.real.claims import ABSENT, Ledger, Range, exactly
from tests.proofs.real.client import Counts
from tests.proofs.real.engines import MODEL_NAME, START_SECONDS, Engine, Target
from tests.proofs.real.environments import VLLM_ROUTER, VLLM_ROUTER_VERSION, ensure_environment
from tests.proofs.real.processes import pick_ports, read, running, wait_until
from tests.proofs.real.programs.program import Program, Running
from tests.proofs.real.programs.workers import BLOCK_SIZE, Behind, run_emulated_workers, run_vllm_worker


@contextmanager
def _run(behind: Behind, name: str, environments: Path, logs: Path) -> Iterator[Running]:
    """The router with a short queue, ready."""
    environment = ensure_environment(environments, VLLM_ROUTER)
    port, metrics = pick_ports(2)
    with behind(environments, logs) as workers:
        sources = [f"--kv-event-source={worker.url}={worker.events}" for worker in workers.workers]
        command = [
            str(environment / "bin" / "vllm-router"), "--host", "127.0.0.1", "--port", str(port),
            "--policy", "kv_aware", "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics),
            "--worker-urls", *workers.urls, *sources,
            "--kv-event-block-size", str(BLOCK_SIZE), "--kv-event-model", MODEL_NAME,
            "--max-concurrent-requests", "16", "--queue-size", "4", "--queue-timeout-secs", "2",
            "--health-check-interval-secs", "1", "--health-failure-threshold", "2", "--retry-max-retries", "2",
            # What clients do wrong opens it too, and then nothing is answered any more.
            "--disable-circuit-breaker", "--log-level", "debug",
        ]  # fmt: skip
        base, page = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics}/metrics"
        with running(name, command, logs) as started:
            seconds = wait_until(
                lambda: _is_ready(base, page, len(workers.urls)), name, seconds=START_SECONDS, processes=[started]
            )
            target = Target(page, "router", "router-0")
            engine = Engine(name, VLLM_ROUTER_VERSION, base, (target,), seconds, ("vllm-router",))
            yield Running(engine, workers, workers.kill_first)


def _is_ready(base: str, page: str, workers: int) -> bool:
    return read(f"{base}/health") is not None and (read(page) or b"").count(b"\nvllm_router_worker_health{") == workers


def claim(ledger: Ledger, counts: Counts) -> dict[str, Range]:
    """What its workers answer is exact; what it refuses itself is in no series."""
    begun = len(counts.with_status(200))
    return {
        'requests_total{outcome="ok"}': (
            begun, begun + len(ledger.left_waiting), "began with 200: streams that broke or were left are among them",
        ),
        'requests_total{outcome="client_error"}': exactly(
            len([each for each in counts.of("client_error") if each.job.kind not in ("malformed", "incomplete")]),
            "4xx of the workers: bodies that the router refuses itself are in no series",
        ),
        'requests_total{outcome="error"}': exactly(
            len(counts.with_status(500, 502, 503)), "500 after every try, and 503 without a worker"
        ),
        'requests_total{outcome="rejected"}': ABSENT,
        'requests_total{outcome="client_abort"}': ABSENT,
        "requests_started_total": ABSENT,
        'replica_count_by_status{status="active"}': exactly(0, "all have died"),
        "concurrent_requests": exactly(0, "all have ended"),
        "queued_requests": ABSENT,
        "input_tokens_total": ABSENT,
        "time_to_first_token_seconds_count": ABSENT,
        "request_duration_seconds_count": ABSENT,
    }  # fmt: skip


_NAME = "vllm-router"
PROGRAMS = (
    Program(_NAME, partial(_run, run_emulated_workers, _NAME), claim, page=f"{_NAME}-{VLLM_ROUTER_VERSION}-1"),
    Program(f"{_NAME}-vllm", partial(_run, run_vllm_worker, f"{_NAME}-vllm"), claim),
)
