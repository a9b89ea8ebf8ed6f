"""What differs between halves of sessions: reuse explains what length does not, by the slopes that the judge learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks._judge_reuse import left_in_traces, left_of_variance
from servescope.emulator.workload.traces import TraceRequest


def _sessions(*, shared: bool) -> list[TraceRequest]:
    """An hour of conversations of like prompts, whose turns begin as the turn before; or which share nothing."""
    random = np.random.default_rng(5)
    found = []
    for session in range(700):
        began, turns = random.uniform(0.0, 3_000.0), int(random.integers(1, 9))
        for turn in range(turns):
            # A conversation that grows drops its oldest turn, so that all prompts are alike.
            own = range(1_000 * (1 + session), 1_000 * (1 + session) + 8)
            fresh = range(10_000_000 + 100 * (16 * session + turn), 10_000_000 + 100 * (16 * session + turn) + 8)
            ids = (0, *(own if shared else fresh), *fresh)[:12]
            tokens = 512 * len(ids) - int(random.integers(0, 200))
            found.append(TraceRequest(began + 60.0 * turn + random.uniform(0.0, 20.0), tokens, 100, ids))
    return sorted(found, key=lambda each: each.seconds)


def test_reuse_explains_sessions_of_like_prompts() -> None:
    """Where all prompts are of a size, length leaves all of the variance and reuse next to none."""
    left = left_of_variance("sessions", _sessions(shared=True), hashings=3)

    assert left.length > 0.9
    assert left.reuse < 0.3
    assert left.both < 0.3


def test_reuse_explains_nothing_where_nothing_is_reused() -> None:
    """Sessions that share nothing wait alike, however they are hashed, and nothing is claimed to explain it."""
    left = left_of_variance("strangers", _sessions(shared=False), hashings=3)

    assert left.reuse > 0.9


@pytest.mark.proof
@pytest.mark.reference
def test_reuse_explains_what_length_does_not_in_public_traces(reference: Path) -> None:
    """Adjusted for both, the halves of both traces of Mooncake have less than half of the variance left."""
    found = {each.trace: each for each in left_in_traces(reference / "traces")}

    assert {"conversation_trace", "synthetic_trace"} <= found.keys()
    assert all(each.both < 0.5 for each in found.values())
    assert all(each.both < 0.7 * each.length for each in found.values())
