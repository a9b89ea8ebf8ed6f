"""SGLang's router in front of emulated workers, and of a real vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.proofs.real.claims import ABSENT, Ledger, Range, exactly
from tests.proofs.real.client import Counts
from tests.proofs.real.engines import START_SECONDS, Engine, Target
from tests.proofs.real.environments import SGLANG_ROUTER, SGLANG_ROUTER_VERSION, ensure_environment
from tests.proofs.real.processes import pick_ports, read, running, wait_until
from tests.proofs.real.programs.program import Program, Running
from tests.proofs.real.programs.workers import Behind, run_emulated_workers, run_vllm_worker

OF_CLIENTS = (400, 404, 413, 422)


@contextmanager
def _run(behind: Behind, name: str, environments: Path, logs: Path) -> Iterator[Running]:
    """The router with a short queue, ready."""
    environment = ensure_environment(environments, SGLANG_ROUTER)
    port, metrics = pick_ports(2)
    with behind(environments, logs) as workers:
        command = [
            str(environment / "bin" / "python"), "-m", "sglang_router.launch_router",
            "--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware",
            "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics), "--worker-urls", *workers.urls,
            "--max-concurrent-requests", "16", "--queue-size", "4", "--queue-timeout-secs", "2",
            "--health-check-interval-secs", "1", "--health-failure-threshold", "2", "--retry-max-retries", "2",
            # What clients do wrong opens it too, and then nothing is answered any more.
            "--disable-circuit-breaker",
        ]  # fmt: skip
        base, page = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics}/metrics"
        with running(name, command, logs) as started:
            seconds = wait_until(
                lambda: _is_ready(base, page, len(workers.urls)), name, seconds=START_SECONDS, processes=[started]
            )
            target = Target(page, "router", "router-0")
            engine = Engine(name, SGLANG_ROUTER_VERSION, base, (target,), seconds, ("sglang-router",))
            yield Running(engine, workers, workers.kill_first)


def _is_ready(base: str, page: str, workers: int) -> bool:
    return read(f"{base}/health") is not None and (read(page) or b"").count(b"\nsmg_worker_health{") == workers


def claim(ledger: Ledger, counts: Counts) -> dict[str, Range]:
    """Answers by status are exact; an answer that begins well counts as one that ends well."""
    begun = len(counts.with_status(200))
    return {
        "requests_started_total": exactly(len(counts.exchanges), "every request, whatever became of it"),
        'requests_total{outcome="ok"}': (
            begun, begun + len(ledger.left_waiting), "began with 200: streams that broke or were left are among them",
        ),
        'requests_total{outcome="client_error"}': exactly(len(counts.with_status(*OF_CLIENTS)), "answered 4xx"),
        'requests_total{outcome="rejected"}': exactly(len(ledger.rejected), "408 of a full queue, 503 without worker"),
        'requests_total{outcome="error"}': exactly(len(counts.with_status(500)), "answered 500"),
        'requests_total{outcome="client_abort"}': ABSENT,
        'replica_count_by_status{status="active"}': exactly(0, "all have died"),
        "concurrent_requests": (0, len(counts.of("broken")), "a stream that broke with its worker may stay counted"),
        "queued_requests": ABSENT,
        "input_tokens_total": ABSENT,
        "time_to_first_token_seconds_count": ABSENT,
        "request_duration_seconds_count": ABSENT,
    }  # fmt: skip


_NAME = "sglang-router"
PROGRAMS = (
    Program(_NAME, partial(_run, run_emulated_workers, _NAME), claim, page=f"{_NAME}-{SGLANG_ROUTER_VERSION}-1"),
    Program(f"{_NAME}-vllm", partial(_run, run_vllm_worker, f"{_NAME}-vllm"), claim),
)
