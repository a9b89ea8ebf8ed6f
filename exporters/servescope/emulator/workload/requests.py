"""A request to the emulated stack, and the callbacks that answer it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request as the engine meets it.

    `block_ids` are chained ids of the full blocks of the prompt and of the output that will follow it.
    `output_tokens` is what the model would generate before it stops, or before it is stopped at the client's limit
    where the answer is `limited`. `patience_seconds` is when the client hangs up,
    None when it waits to the end. Where requests queue, those of higher `priority` go first. `segment` is the tenant it
    is of, None where traffic has none. A client that wants to
    follow gets the prompt tokens found in the cache with the first token, the number of tokens each time some are
    generated, the first one included, and at the end, before its outcome, the number of all of them and whether they
    are truncated.
    """

    number: int
    input_tokens: int
    output_tokens: int
    block_ids: Sequence[int]
    patience_seconds: float | None = None
    priority: int = 0
    segment: str | None = None
    limited: bool = False
    on_first_token: Callable[[int], None] | None = field(default=None, compare=False)
    on_tokens: Callable[[int], None] | None = field(default=None, compare=False)
    on_end: Callable[[int, bool], None] | None = field(default=None, compare=False)


Finished = Callable[[str], None]
"""Called when a request has ended, with one of the contract's outcomes."""

Cancel = Callable[[], None]
"""Cancels the request, as its client hangs up; without effect once it has ended."""

Send = Callable[[WorkloadRequest, Finished], object]
"""Hands a request to a deployment."""
