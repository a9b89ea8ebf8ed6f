"""Targets that show what a Dynamo frontend shows: gaps between tokens, and no time per output token of a request."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

from servescope.contract.samples import format_edge
from servescope.sources.map_files import load_sources
from tests.proofs.live.exporter import Pages, serving

FRONTENDS: Final = ("gaps", "brief-gaps")
"""Their deployments."""

_SOURCE: Final = load_sources()["dynamo-frontend"]
_REQUESTS_PER_SECOND: Final = 1.0
_TOKENS: Final = 100
_GAP_SECONDS: Final = 0.03
_LATE_SECONDS: Final = 0.5


@dataclass
class Frontend(Pages):
    """It serves a request per second of the emulated time; while `is_late` is set, tokens are 0.5 s apart."""

    name: str
    times: int
    is_late: threading.Event = field(default_factory=threading.Event)
    _at: float = field(default_factory=time.monotonic)
    _requests: dict[float, float] = field(default_factory=lambda: {_GAP_SECONDS: 0.0, _LATE_SECONDS: 0.0})

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its series."""
        return {
            "model_name": f"model-{self.name}", "deployment_id": self.name, "inference_stack": "v2",
            "environment": "live",
        }  # fmt: skip

    def page(self) -> bytes:
        """What the next scrape gets."""
        now = time.monotonic()
        gap = _LATE_SECONDS if self.is_late.is_set() else _GAP_SECONDS
        self._requests[gap] += (now - self._at) * self.times * _REQUESTS_PER_SECOND
        self._at = now
        by_gap = {each: int(requests) for each, requests in self._requests.items()}
        count = sum(by_gap.values())
        model = f'model="{self.labels["model_name"]}"'
        of_requests = f'endpoint="chat_completions",{model},request_type="stream"'
        lines = [
            "dynamo_frontend_disconnected_clients 0",
            "dynamo_frontend_event_loop_stall_total 0",
            f"dynamo_frontend_model_context_length{{{model}}} 4096",
            f"dynamo_frontend_active_requests{{{model}}} 3",
            f"dynamo_frontend_queued_requests{{{model}}} 0",
            f"dynamo_frontend_requests_started_total{{{of_requests}}} {count}",
            f'dynamo_frontend_requests_total{{{of_requests},status="success",error_type=""}} {count}',
            *_histogram("time_to_first_token_seconds", model, {0.2: count}),
            *_histogram("request_duration_seconds", model, {each * _TOKENS: by_gap[each] for each in by_gap}),
            *_histogram("input_sequence_tokens", model, {500.0: count}, of="input_tokens_per_request"),
            *_histogram("output_sequence_tokens", model, {float(_TOKENS): count}, of="output_tokens_per_request"),
            *_histogram(
                "inter_token_latency_seconds", model, {each: (_TOKENS - 1) * by_gap[each] for each in by_gap}
            ),
        ]  # fmt: skip
        return ("\n".join(lines) + "\n").encode()


def _histogram(name: str, labels: str, observed: Mapping[float, int], *, of: str = "") -> Iterator[str]:
    """The lines of a histogram in which these values were observed so often each, with the frontend's edges."""
    native = f"dynamo_frontend_{name}"
    edges: Sequence[float] = (*_SOURCE.metrics[of or name].edges, float("inf"))
    for edge in edges:
        within = sum(count for value, count in observed.items() if value <= edge)
        yield f'{native}_bucket{{{labels},le="{format_edge(edge)}"}} {within}'
    yield f"{native}_sum{{{labels}}} {sum(value * count for value, count in observed.items()):g}"
    yield f"{native}_count{{{labels}}} {sum(observed.values())}"


@contextmanager
def frontends(times: int) -> Iterator[Mapping[str, Frontend]]:
    """Those of `FRONTENDS` by name, for a stack that is so many times as fast, each on a free port of loopback."""
    with ExitStack() as served:
        found = {name: Frontend("", name, times) for name in FRONTENDS}
        for each in found.values():
            served.enter_context(serving(each))
        yield found
