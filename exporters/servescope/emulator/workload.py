"""Traffic: chat conversations that arrive over time, share long system prompts, and come back turn after turn."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from servescope.emulator.clock import VirtualClock
from servescope.errors import UsageError

# A stream of tokens is one system prompt or one conversation; its blocks are numbered within it.
_BLOCKS_PER_STREAM = 1 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the engine meets it.

    `block_ids` are chained ids of the full blocks of the prompt and of the output that will follow it.
    `output_tokens` is what the model would generate before it stops. `patience_seconds` is when the client hangs up,
    None when it waits to the end. Where requests queue, those of higher `priority` go first. A client that wants to
    follow gets the prompt tokens found in the cache with the first token, and the number of tokens each time some are
    generated, the first one included.
    """

    number: int
    input_tokens: int
    output_tokens: int
    block_ids: Sequence[int]
    patience_seconds: float | None = None
    priority: int = 0
    on_first_token: Callable[[int], None] | None = field(default=None, compare=False)
    on_tokens: Callable[[int], None] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ChatMix:
    """What the traffic is made of; token counts and seconds are means of long-tailed distributions, ranges aside.

    Of `applications` each has its own system prompt of `system_tokens` (a range); how often one is used falls with
    its rank to the power of `popularity`. Message sizes are log-normal with `message_spread` (sigma). The rate follows
    a day of `day_seconds` up and down by `day_amplitude` (share), and `burst_factor` times as high during bursts.
    Of all requests, `abort_share` are given up by the client after `abort_seconds`, and `oversized_share` carry a
    prompt of `oversized_tokens`, which no engine takes.
    """

    requests_per_second: float = 8.0
    applications: int = 24
    popularity: float = 0.8
    system_tokens: tuple[int, int] = (400, 1600)
    turns: float = 4.0
    message_tokens: float = 700.0
    output_tokens: float = 190.0
    message_spread: float = 0.8
    output_spread: float = 0.5
    output_range: tuple[int, int] = (50, 400)
    prompt_limit: int = 6000
    think_seconds: float = 12.0
    day_seconds: float = 1500.0
    day_amplitude: float = 0.25
    burst_factor: float = 3.0
    burst_seconds: float = 12.0
    calm_seconds: float = 150.0
    abort_share: float = 0.015
    abort_seconds: float = 2.5
    oversized_share: float = 0.002
    oversized_tokens: int = 50_000

    def __post_init__(self) -> None:
        _require(0 < self.requests_per_second < math.inf, "requests_per_second", self.requests_per_second, "above 0")
        _require(self.applications >= 1, "applications", self.applications, "1 or more")
        _require(self.turns >= 1, "turns", self.turns, "1 or more")
        _require(0 <= self.day_amplitude < 1, "day_amplitude", self.day_amplitude, "in [0, 1)")
        _require(self.burst_factor >= 1, "burst_factor", self.burst_factor, "1 or more")
        for name in ("abort_share", "oversized_share"):
            _require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "in [0, 1]")
        for name in ("message_tokens", "output_tokens", "prompt_limit", "think_seconds", "day_seconds"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "above 0")
        for name in ("burst_seconds", "calm_seconds", "abort_seconds"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "above 0")


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise UsageError(f"{name} is {value!r}, expected {expected}")


Finished = Callable[[str], None]
"""Tells the client how its request ended: one of the contract's outcomes."""

Cancel = Callable[[], None]
"""Hangs up on a request; without effect when it has ended."""

Send = Callable[[Request, Finished], Cancel]
"""Hands a request to a deployment."""


@dataclass(slots=True)
class _Conversation:
    application: int
    turns_left: int
    send: Send
    stream: int = 0
    tokens: int = 0
    block_ids: list[int] = field(default_factory=list)


class ChatWorkload:
    """Conversations of a mix, each turn sent when the one before was answered and thought about.

    A conversation stays with the deployment it started with: one of `sends`, drawn by its share. After a request that
    did not end well, and when its context is full, a client starts afresh for the turns it has left. The same seed and
    the same answers make the same conversations.
    """

    def __init__(
        self,
        mix: ChatMix,
        *,
        clock: VirtualClock,
        seed: int,
        block_tokens: int,
        sends: Sequence[tuple[float, Send]],
    ) -> None:
        self.requests_sent = 0
        self._mix = mix
        self._clock = clock
        self._block_tokens = block_tokens
        self._random = random.Random(f"workload-{seed}")
        self._shares = list(accumulate(share for share, _ in sends))
        self._sends = [send for _, send in sends]
        if not self._shares or self._shares[-1] <= 0:
            raise UsageError("the traffic shares are all 0, expected one above 0")
        self._popularity = list(accumulate((rank + 1) ** -mix.popularity for rank in range(mix.applications)))
        self._system_tokens = [self._random.randint(*mix.system_tokens) for _ in range(mix.applications)]
        self._streams = mix.applications
        self._bursting = False

    def start(self) -> None:
        """Let conversations arrive from now on."""
        self._clock.schedule(self._random.expovariate(1 / self._mix.calm_seconds), self._toggle_burst)
        self._clock.schedule(self._random.expovariate(self._peak_rate()), self._arrive)

    def _arrive(self) -> None:
        # Thinning: candidates come at the highest rate, and are kept in proportion to the rate now.
        if self._random.random() * self._peak_rate() < self._rate():
            self._open_conversation()
        self._clock.schedule(self._random.expovariate(self._peak_rate()), self._arrive)

    def _rate(self) -> float:
        mix = self._mix
        day = 1 + mix.day_amplitude * math.sin(2 * math.pi * self._clock.now / mix.day_seconds)
        return self._calm_rate() * day * (mix.burst_factor if self._bursting else 1.0)

    def _peak_rate(self) -> float:
        return self._calm_rate() * (1 + self._mix.day_amplitude) * self._mix.burst_factor

    def _calm_rate(self) -> float:
        """Conversations per second outside bursts, so that requests_per_second is the mean over all times."""
        mix = self._mix
        bursting = mix.burst_seconds / (mix.burst_seconds + mix.calm_seconds)
        return mix.requests_per_second / mix.turns / (1 + (mix.burst_factor - 1) * bursting)

    def _toggle_burst(self) -> None:
        self._bursting = not self._bursting
        mean = self._mix.burst_seconds if self._bursting else self._mix.calm_seconds
        self._clock.schedule(self._random.expovariate(1 / mean), self._toggle_burst)

    def _open_conversation(self) -> None:
        mix = self._mix
        conversation = _Conversation(
            application=self._random.choices(range(mix.applications), cum_weights=self._popularity)[0],
            turns_left=self._draw_turns(),
            send=self._random.choices(self._sends, cum_weights=self._shares)[0],
        )
        self._start_afresh(conversation)
        self._send_turn(conversation)

    def _start_afresh(self, conversation: _Conversation) -> None:
        self._streams += 1
        conversation.stream = self._streams
        conversation.tokens = self._system_tokens[conversation.application]
        conversation.block_ids = []

    def _draw_turns(self) -> int:
        """Turns of a conversation, geometric with the mix's mean."""
        if self._mix.turns == 1:
            return 1
        return 1 + int(math.log(1.0 - self._random.random()) / math.log(1 - 1 / self._mix.turns))

    def _send_turn(self, conversation: _Conversation) -> None:
        mix = self._mix
        conversation.turns_left -= 1
        if self._random.random() < mix.oversized_share:
            self._send(conversation, mix.oversized_tokens, 1, ())
            return
        message = self._draw(mix.message_tokens, mix.message_spread)
        if conversation.tokens + message > mix.prompt_limit:
            self._start_afresh(conversation)
        input_tokens = min(conversation.tokens + message, mix.prompt_limit)
        output_tokens = self._draw(mix.output_tokens, mix.output_spread)
        output_tokens = min(max(output_tokens, mix.output_range[0]), mix.output_range[1])
        conversation.tokens = input_tokens + output_tokens
        self._send(conversation, input_tokens, output_tokens, self._extend_blocks(conversation))

    def _send(
        self, conversation: _Conversation, input_tokens: int, output_tokens: int, block_ids: tuple[int, ...]
    ) -> None:
        self.requests_sent += 1
        patience = self._draw_patience()
        request = Request(self.requests_sent, input_tokens, output_tokens, block_ids, patience)
        conversation.send(request, lambda outcome: self._answered(conversation, outcome))

    def _answered(self, conversation: _Conversation, outcome: str) -> None:
        if outcome != "ok":
            self._start_afresh(conversation)
        if conversation.turns_left > 0:
            think = self._random.expovariate(1 / self._mix.think_seconds)
            self._clock.schedule(think, lambda: self._send_turn(conversation))

    def _extend_blocks(self, conversation: _Conversation) -> tuple[int, ...]:
        """Ids of the full blocks so far: within the system prompt the application's, after it the conversation's."""
        ids = conversation.block_ids
        system_blocks = self._system_tokens[conversation.application] // self._block_tokens
        for index in range(len(ids), conversation.tokens // self._block_tokens):
            stream = conversation.application if index < system_blocks else conversation.stream
            ids.append(stream * _BLOCKS_PER_STREAM + index)
        return tuple(ids)

    def _draw_patience(self) -> float | None:
        if self._random.random() >= self._mix.abort_share:
            return None
        return self._random.expovariate(1 / self._mix.abort_seconds)

    def _draw(self, mean: float, spread: float) -> int:
        """A log-normal number of tokens, 1 or more."""
        return max(1, round(self._random.lognormvariate(math.log(mean) - spread * spread / 2, spread)))
