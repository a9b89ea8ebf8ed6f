"""SGLang's router in front of emulated workers, and of a real vLLM."""

from __future__ import annotations

from tests.proofs.real.claims import ABSENT, Ledger, Range, exactly
from tests.proofs.real.client import Counts
from tests.proofs.real.environments import SGLANG_ROUTER
from tests.proofs.real.programs.smg import Router

OF_CLIENTS = (400, 404, 413, 422)


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


PROGRAMS = Router(
    SGLANG_ROUTER, ("python", "-m", "sglang_router.launch_router"),
    lambda _: ("--policy", "cache_aware"), "smg_worker_health", claim,
).programs()  # fmt: skip
