"""The tokens of an engine: those in flight by phase, and where its KV came from and went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class InFlightTokens(NamedTuple):
    """The load that an engine's requests are to a token-based autoscaler, by phase.

    `queued` is Σ prompt of those that wait, `prefill` Σ uncached prompt of those whose prompt is computed, `decode`
    Σ prompt and output so far of those that decode, `handed_over` the same of those whose KV is still to be fetched.
    """

    queued: int
    prefill: int
    decode: int
    handed_over: int


@dataclass(slots=True)
class TokenCounts:
    """Where the KV an engine ever held came from, and where it went, in tokens.

    `prefilled` were computed as prompts, recomputation after a preemption included; `reused` were found in the cache,
    `transferred` came from another engine, and `decoded` were computed as they were generated. `dropped` left with
    their sequence; all others are held: prefilled + reused + transferred + decoded = dropped + held, always.
    """

    prefilled: int = 0
    reused: int = 0
    transferred: int = 0
    decoded: int = 0
    dropped: int = 0
