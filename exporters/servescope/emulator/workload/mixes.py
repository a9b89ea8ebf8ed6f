"""What generated traffic is made of: the mix of prompts, answers and arrivals, each parameter with its range."""

from __future__ import annotations

import math
from dataclasses import dataclass

from servescope.contract.metrics import MOST_SEGMENTS
from servescope.errors import UsageError

ARRIVALS = ("poisson", "pareto")
SMALL_TENANT = "tenant-small"
SMALL_TENANT_SHARE = 0.03
"""The tenant that has few of the conversations, and how many."""


@dataclass(frozen=True, slots=True)
class Mix:
    """What the traffic is made of; token counts and seconds are means of long-tailed distributions, ranges aside.

    A prompt begins with the system prompt of one of `applications`, of `system_tokens` (a range, 0 for none); how often
    one is used falls with its rank to the power of `popularity`. After it come `documents_per_prompt` different ones of
    `documents`, of `document_tokens` each (a range), used by their rank to the power of `document_popularity`; the
    messages of a conversation of `turns` requests on average follow. Message sizes are log-normal with `message_spread`
    (sigma), answers with `output_spread` within `output_range`; an answer becomes part of the next prompt if
    `keeps_output`. Before each turn but the first, the last `rewritten_tokens` of the prompt are replaced by others, as
    many, as an editor does. A conversation starts afresh when its prompt would pass `prompt_limit` tokens. Between an
    answer and the next turn are `think_seconds`.

    Conversations arrive independently of each other (`poisson`), or with gaps of a Pareto tail of `pareto_shape` (above
    1; the variance is infinite up to 2), so that many come at once and then none for long (`pareto`). Their rate makes
    `requests_per_second` on average; it follows a day of `day_seconds` up and down by `day_amplitude` (share), of which
    `day_start_seconds` have passed at the start, and is `burst_factor` times as high during bursts of `burst_seconds`,
    `calm_seconds` apart.

    Conversations are of one of `tenants` each, by its rank as applications are, of which `SMALL_TENANT` has
    `SMALL_TENANT_SHARE`; with 0 of none.

    Of all requests, `abort_share` are given up by the client after `abort_seconds`, and `oversized_share` carry a
    prompt of `oversized_tokens`, which no engine takes.
    """

    requests_per_second: float = 8.0
    applications: int = 24
    popularity: float = 0.8
    system_tokens: tuple[int, int] = (400, 1600)
    documents: int = 0
    documents_per_prompt: int = 1
    document_popularity: float = 0.9
    document_tokens: tuple[int, int] = (600, 1800)
    turns: float = 4.0
    message_tokens: float = 700.0
    output_tokens: float = 190.0
    message_spread: float = 0.8
    output_spread: float = 0.5
    output_range: tuple[int, int] = (50, 400)
    keeps_output: bool = True
    rewritten_tokens: int = 0
    prompt_limit: int = 6000
    think_seconds: float = 12.0
    arrivals: str = "poisson"
    pareto_shape: float = 2.2
    day_seconds: float = 1500.0
    day_amplitude: float = 0.25
    day_start_seconds: float = 0.0
    burst_factor: float = 3.0
    burst_seconds: float = 12.0
    calm_seconds: float = 150.0
    abort_share: float = 0.015
    abort_seconds: float = 2.5
    oversized_share: float = 0.002
    oversized_tokens: int = 50_000
    tenants: int = 0

    def __post_init__(self) -> None:
        self._require(self.arrivals in ARRIVALS, "arrivals", f"one of {', '.join(ARRIVALS)}")
        self._require(
            0 < self.requests_per_second <= MOST_RATE, "requests_per_second", f"above 0, at most {MOST_RATE:g}"
        )
        for name in ("message_tokens", "output_tokens", "think_seconds", "day_seconds"):
            self._require(0 < getattr(self, name) < math.inf, name, "above 0")
        for name in ("burst_seconds", "calm_seconds", "abort_seconds"):
            self._require(0 < getattr(self, name) < math.inf, name, "above 0")
        for name in ("applications", "documents_per_prompt", "turns", "prompt_limit", "oversized_tokens"):
            self._require(1 <= getattr(self, name) < math.inf, name, "1 or more")
        for name in ("documents", "rewritten_tokens", "popularity", "document_popularity", "day_start_seconds"):
            self._require(0 <= getattr(self, name) < math.inf, name, "0 or more")
        for name in ("message_spread", "output_spread"):
            self._require(0 <= getattr(self, name) <= _WIDEST_SPREAD, name, f"from 0 to {_WIDEST_SPREAD:g}")
        for name in ("abort_share", "oversized_share"):
            self._require(0 <= getattr(self, name) <= 1, name, "in [0, 1]")
        self._require(0 <= self.tenants <= MOST_SEGMENTS, "tenants", f"from 0 to {MOST_SEGMENTS}")
        self._require(0 <= self.day_amplitude < 1, "day_amplitude", "in [0, 1)")
        self._require(1 <= self.burst_factor < math.inf, "burst_factor", "1 or more")
        self._require(1 < self.pareto_shape < math.inf, "pareto_shape", "above 1")
        self._require_range("system_tokens", 0)
        self._require_range("document_tokens", 1)
        self._require_range("output_range", 1)
        if self.documents:
            most = f"at most documents = {self.documents}"
            self._require(self.documents_per_prompt <= self.documents, "documents_per_prompt", most)
        self._require(self.shared_tokens < self.prompt_limit, "prompt_limit", f"above {self.shared_tokens}, {_SHARED}")

    def day_factor(self, seconds: float) -> float:
        """How many times as high as on average the rate is so long after the start, before it if negative."""
        return 1 + self.day_amplitude * math.sin(2 * math.pi * (seconds + self.day_start_seconds) / self.day_seconds)

    @property
    def shared_tokens(self) -> int:
        """The longest that system prompt and documents can be together, in tokens."""
        documents = self.documents_per_prompt * self.document_tokens[1] if self.documents else 0
        return self.system_tokens[1] + documents

    def _require(self, holds: bool, name: str, expected: str) -> None:
        if not holds:
            raise UsageError(f"{name} is {getattr(self, name)!r}, expected {expected}")

    def _require_range(self, name: str, least: int) -> None:
        lowest, highest = getattr(self, name)
        self._require(least <= lowest <= highest, name, f"a range of token counts, the first {least} or more")


# More than any machine emulates: one that is asked for it would never come to the end of a second.
MOST_RATE = 10_000.0
# A log-normal of sigma 4 has a mean three thousand times its median; beyond that no mean is ever seen.
_WIDEST_SPREAD = 4.0
_SHARED = "what the longest system prompt and documents take"
