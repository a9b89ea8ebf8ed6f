"""One request within an engine, and its transfer from an engine that prefills to one that decodes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from servescope.emulator.engine.cache import Lease
from servescope.emulator.workload.requests import Finished, WorkloadRequest
from servescope.instruments.request import HandedOver, Request


class Fate(NamedTuple):
    """How a request will end of itself: after how many tokens, with which outcome, and whether at a limit of them.

    One that is `lost` ends for the engine and its client, and nothing counts the end. Between the tokens of a `slow`
    one it is left out of the batch.
    """

    last_token: int
    outcome: str = "ok"
    lost: bool = False
    slow: bool = False
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A request whose prompt is computed and whose first token came, on its way to the engine that decodes the rest.

    `generated` tokens were sent to the client, the first at `first_token_at`.
    """

    request: WorkloadRequest
    handed_over: HandedOver
    first_token_at: float | None
    cached_tokens: int
    generated: int
    fate: Fate


class Serving:
    """One request within the engine; others may keep it, and read it when the engine has reported it.

    `computed` tokens have their KV in the cache; `generated` were sent to the client. `lease` is None while it waits.
    With `arrives_computed` the KV of all but the newest token comes from another engine, once there is room.
    `arrived_at`, `admitted_at` (None while it has never run) and `first_token_at` are times of the emulation. While it
    runs, no step computes it before `held_until`, None when it is not held.
    """

    __slots__ = (
        "admitted_at", "arrived_at", "arrives_computed", "cached_tokens", "computed", "draws", "ended", "fate",
        "finished", "first_token", "first_token_at", "generated", "handed_over", "held_until", "lease", "observed",
        "preempted", "random", "request",
    )  # fmt: skip

    def __init__(
        self,
        request: WorkloadRequest,
        observed: Request,
        *,
        seed: str,
        finished: Finished,
        first_token: Callable[[int], None] = lambda cached: None,
        handed_over: Callable[[Serving], None] | None = None,
    ) -> None:
        self.request = request
        self.observed = observed
        self.first_token = first_token
        self.finished = finished
        self.handed_over = handed_over
        # Its own, so that what is drawn for it does not depend on what else the engine does.
        self.random = random.Random(seed)
        self.draws: list[float] = []
        self.fate = Fate(request.output_tokens, truncated=request.limited)
        self.lease: Lease | None = None
        self.computed = 0
        self.generated = 0
        self.cached_tokens: int | None = None
        self.arrived_at = 0.0
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None
        self.held_until: float | None = None
        self.arrives_computed = False
        self.preempted = False
        self.ended = False

    @property
    def tokens_to_prefill(self) -> int:
        """Tokens whose KV is still missing before the next token can be decoded; 0 while it decodes."""
        # The newest generated token is the input of the next step, so its KV is never there before.
        return self.request.input_tokens + max(self.generated - 1, 0) - self.computed

    @property
    def last_token(self) -> int:
        """How many tokens it will have generated when it ends of itself."""
        return self.fate.last_token

    def draw(self) -> float:
        """A number in [0, 1): how well its next draft does."""
        return self.draws.pop() if self.draws else self.random.random()

    def look_ahead(self, count: int) -> list[float]:
        """The next `count` draws, which stay to be drawn."""
        draws = self.draws
        if len(draws) < count:
            more = [self.random.random() for _ in range(count - len(draws))]
            more.reverse()
            draws[:0] = more
        return draws[: -count - 1 : -1]

    def skip_draws(self, count: int) -> None:
        """Let the next `count` draws, which were looked at, be drawn."""
        del self.draws[len(self.draws) - count :]
