"""How an engine is built: its limits, its cache, its costs, and its speculation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from servescope.emulator.engine.costs import StepCost
from servescope.emulator.engine.speculation import Speculation
from servescope.errors import UsageError

EngineRole = Literal["aggregated", "prefill", "decode"]

_LARGEST_SIZE = 10**12


@dataclass(frozen=True, slots=True)
class EngineParameters:
    """How an engine is built; sizes in tokens, blocks, requests or bytes, shares 0 to 1.

    `error_share` of the requests fail while they are served. `speculation` is None when it is off.

    Replicas differ in speed: a step takes longer by a factor that is log-normal between them with `pace_spread`
    (sigma). A new process computes prompts slower: by `cold_slowdown` (share) at its start, which decays with
    `cold_decay_seconds`.

    One that `reports_together` records the tokens of several alike steps at the end of the last one, as an engine does
    that streams every few tokens: less work, and only the inter-token latency is another.
    """

    max_batch_size: int = 10
    max_num_tokens: int = 2048
    max_seq_len: int = 8192
    max_queue: int = 4
    chunked_prefill: bool = True
    block_tokens: int = 32
    cache_blocks: int = 3000
    error_share: float = 0.002
    weights_bytes: int = 70_000_000_000
    cache_bytes_per_token: int = 327_680
    cost: StepCost = field(default_factory=StepCost)
    speculation: Speculation | None = None
    pace_spread: float = 0.0
    cold_slowdown: float = 0.0
    cold_decay_seconds: float = 1200.0
    reports_together: bool = False

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_seq_len", "block_tokens", "cache_blocks"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)!r}, expected 1 or more")
            if getattr(self, name) > _LARGEST_SIZE:
                raise UsageError(f"{name} is above {_LARGEST_SIZE:g}, expected 1 to {_LARGEST_SIZE:g}")
        if self.max_queue < 0:
            raise UsageError(f"max_queue is {self.max_queue!r}, expected 0 or more")
        for name, most in (("pace_spread", 1.0), ("cold_slowdown", 100.0)):
            if not 0 <= getattr(self, name) <= most:
                raise UsageError(f"{name} is {getattr(self, name)!r}, expected 0 to {most:g}")
        if not 0 < self.cold_decay_seconds < math.inf:
            raise UsageError(f"cold_decay_seconds is {self.cold_decay_seconds!r}, expected a number above 0")
        if not 0 <= self.error_share <= 1:
            raise UsageError(f"error_share is {self.error_share!r}, expected a share in [0, 1]")
        if self.max_num_tokens < self.tokens_per_decode:
            raise UsageError(
                f"max_num_tokens is {self.max_num_tokens!r}, expected {self.tokens_per_decode} or more: "
                "what one sequence decodes in one step"
            )

    @property
    def gpu_memory_bytes(self) -> int:
        """What the engine reserves: the weights, and the whole cache."""
        return self.weights_bytes + self.cache_blocks * self.block_tokens * self.cache_bytes_per_token

    @property
    def tokens_per_decode(self) -> int:
        """Tokens one decoding sequence takes in a step: the next one, and the draft after it."""
        return 1 + self.draft_length

    @property
    def draft_length(self) -> int:
        """Tokens drafted for one sequence in one step; 0 without speculation."""
        return self.speculation.draft_length if self.speculation else 0
