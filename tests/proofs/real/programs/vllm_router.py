"""vLLM's router in front of emulated workers or a real vLLM, whose cache events it follows."""

from __future__ import annotations

from tests.proofs.real.claims import ABSENT, Ledger, Range, exactly
from tests.proofs.real.client import Counts
from tests.proofs.real.engines import MODEL_NAME
from tests.proofs.real.environments import VLLM_ROUTER
from tests.proofs.real.programs.smg import Router
from tests.proofs.real.programs.workers import BLOCK_SIZE, Workers


def _options(workers: Workers) -> tuple[str, ...]:
    sources = (f"--kv-event-source={worker.url}={worker.events}" for worker in workers.workers)
    model = ("--kv-event-block-size", str(BLOCK_SIZE), "--kv-event-model", MODEL_NAME)
    return ("--policy", "kv_aware", "--log-level", "debug", *model, *sources)


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


PROGRAMS = Router(VLLM_ROUTER, ("vllm-router",), _options, "vllm_router_worker_health", claim).programs()
