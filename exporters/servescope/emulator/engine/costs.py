"""How long an engine takes: the linear cost of a step."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from servescope.errors import UsageError


@dataclass(frozen=True, slots=True)
class StepCost:
    """How long one forward pass takes, as a sum of its parts, in seconds.

    Prefill is bound by compute, so each prompt token costs, and each pair of a prompt token and one before it that it
    attends to. Decode is bound by memory, so the weights cost once per step whatever the batch, and the context that
    is attended to costs by its length; each sequence, and each draft token that is verified, adds compute.
    """

    weights: float = 0.034
    per_prefill_token: float = 160e-6
    per_prefill_pair: float = 0.0
    per_decoding_sequence: float = 350e-6
    per_draft_token: float = 160e-6
    per_context_token: float = 25e-9

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 <= getattr(self, field.name) < math.inf:
                raise UsageError(f"{field.name} is {getattr(self, field.name)!r}, expected seconds of 0 or more")

    def prefill_seconds(self, *, tokens: int, pairs: float) -> float:
        """What the prompts' part of a step takes: `tokens` of them, which attend to `pairs` tokens in sum."""
        return self.per_prefill_token * tokens + self.per_prefill_pair * pairs

    def decode_base_seconds(self, *, decoding: int, draft_tokens: int) -> float:
        """What the decoding part of a step takes beside the context, `draft_tokens` being those of all sequences."""
        return self.per_decoding_sequence * decoding + self.per_draft_token * draft_tokens


@dataclass(frozen=True, slots=True)
class TransferCost:
    """How long the KV of a prompt takes from one worker to another, when the link has nothing else to do."""

    fixed_seconds: float = 2e-3
    bytes_per_token: float = 327_680
    bytes_per_second: float = 40e9

    def __post_init__(self) -> None:
        for name in ("fixed_seconds", "bytes_per_token"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} is {getattr(self, name)!r}, expected a number of 0 or more")
        if not 0 < self.bytes_per_second < math.inf:
            raise UsageError(f"bytes_per_second is {self.bytes_per_second!r}, expected a number above 0")

    def seconds(self, tokens: int) -> float:
        """What the KV of so many tokens takes."""
        return self.fixed_seconds + tokens * self.bytes_per_token / self.bytes_per_second
