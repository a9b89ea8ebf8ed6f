"""A recorded trace as traffic: its requests at their times, however long the answers take."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from servescope.emulator.clock import VirtualClock
from servescope.emulator.workload.blocks import name_private, name_trace_block
from servescope.emulator.workload.plans import ReplayedTraffic
from servescope.emulator.workload.requests import Send, WorkloadRequest
from servescope.emulator.workload.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest, TraceSurvey, read_trace
from servescope.errors import UsageError

# As the generated chat's impatient clients, where an effect makes some of a trace's hang up.
_ABORT_SECONDS = 2.5


class _Arrival(NamedTuple):
    """One request to send: when, in seconds of the trace, and which of its copies (0 is itself)."""

    seconds: float
    copy: int
    place: int
    request: TraceRequest


class Replay:
    """The requests of a trace, each sent at its time; for one thread at a time, on `clock`.

    `choose` gives the deployment for a prompt, by a number that prompts with the same beginning share, None for one
    that begins like no other; `number` counts requests. `ended` is True once the last request was sent.
    """

    def __init__(
        self,
        plan: ReplayedTraffic,
        survey: TraceSurvey,
        *,
        clock: VirtualClock,
        seed: int,
        block_tokens: int,
        choose: Callable[[int | None], Send],
        number: Callable[[], int],
    ) -> None:
        if survey.format == "mooncake" and MOONCAKE_BLOCK_TOKENS % block_tokens:
            raise UsageError(
                f"block size is {block_tokens!r} tokens, expected a divisor of {MOONCAKE_BLOCK_TOKENS}, "
                "the trace's, so that its blocks can be the cache's"
            )
        self.ended = False
        self._plan = plan
        self._survey = survey
        self._clock = clock
        self._block_tokens = block_tokens
        self._choose = choose
        self._number = number
        self._random = random.Random(f"replay-{seed}")
        self._arrivals = self._order_arrivals()
        self._next = next(self._arrivals, None)
        self._rate = 0.0
        self._abort_share = 0.0
        self._sending = False
        # Where in the trace the replay stood, and when that was.
        self._position = 0.0
        self._stood_at = clock.now
        self._waits = 0  # goes up when the next arrival is cancelled

    def start(self) -> None:
        """Begin the trace now; requests due at once are sent when `follow` sets its speed."""
        self._stood_at = self._clock.now

    def follow(self, *, rate_factor: float, abort_share: float, sending: bool) -> None:
        """Go on `rate_factor` times as fast; `abort_share` of the clients hang up from now on.

        Unless it is `sending`, time passes in the trace and what arrives is left out.
        """
        self._position += (self._clock.now - self._stood_at) * self._rate
        self._stood_at = self._clock.now
        self._rate = self._plan.speed * rate_factor
        self._abort_share = abort_share
        self._sending = sending
        self._await_next()

    def _await_next(self) -> None:
        self._waits += 1
        if self._next is None:
            self.ended = True
        elif self._rate > 0:
            wait = self._waits
            ahead = (self._next.seconds - self._position) / self._rate - (self._clock.now - self._stood_at)
            self._clock.schedule(ahead, lambda: self._arrive(wait))

    def _arrive(self, wait: int) -> None:
        if wait != self._waits or self._next is None:
            return
        arrival, self._next = self._next, next(self._arrivals, None)
        if self._sending:
            self._send(arrival)
        self._await_next()

    def _send(self, arrival: _Arrival) -> None:
        number, recorded = self._number(), arrival.request
        request = WorkloadRequest(
            number,
            recorded.input_tokens,
            recorded.output_tokens,
            self._name_blocks(number, arrival),
            self._draw_patience(),
        )
        self._choose(_find_family(arrival))(request, _ignore)

    def _draw_patience(self) -> float | None:
        if not self._abort_share or self._random.random() >= self._abort_share:
            return None
        return self._random.expovariate(1 / _ABORT_SECONDS)

    def _name_blocks(self, number: int, arrival: _Arrival) -> Sequence[int]:
        """Ids of the full blocks of prompt and output: as the trace names them, the rest the request's own."""
        recorded = arrival.request
        end = (recorded.input_tokens + recorded.output_tokens) // self._block_tokens
        if recorded.block_ids is None:
            return name_private(number, 0, end)
        full = recorded.input_tokens // self._block_tokens
        parts = MOONCAKE_BLOCK_TOKENS // self._block_tokens
        if parts == 1 and arrival.copy == 0:
            named = tuple(recorded.block_ids[:full])
        else:
            named = tuple(
                name_trace_block(recorded.block_ids[index // parts], parts, index % parts, arrival.copy)
                for index in range(full)
            )
        return (*named, *name_private(number, full, end))

    # --- When -----------------------------------------------------------------------------------------------------

    def _order_arrivals(self) -> Iterator[_Arrival]:
        """All repetitions, in the order of time; only the requests of one moment are held."""
        survey = self._survey
        span = survey.seconds + survey.mean_gap_seconds
        for repetition in range(self._plan.repeat):
            start = repetition * span - survey.first_seconds
            moments = groupby(read_trace(self._plan.trace), key=lambda request: request.seconds)
            moment, requests = next(moments)
            while True:
                gathered = list(requests)
                following = next(moments, None)
                gap = following[0] - moment if following else survey.mean_gap_seconds
                yield from self._spread(gathered, start + moment, gap)
                if following is None:
                    break
                moment, requests = following

    def _spread(self, requests: Sequence[TraceRequest], moment: float, gap: float) -> Iterator[_Arrival]:
        """Requests of one moment, and their copies, at times before the next.

        Those the trace has stay in its order, within the jitter; copies come anywhere until the next moment.
        """
        jitter = self._plan.find_jitter(self._survey)
        copies: list[list[_Arrival]] = []
        for copy in range(math.ceil(self._plan.scale)):
            share = min(self._plan.scale - copy, 1.0)
            kept = [request for request in requests if share == 1.0 or self._random.random() < share]
            width = gap if copy else min(jitter, gap)
            moments = sorted(moment + self._random.random() * width for _ in kept) if width else [moment] * len(kept)
            copies.append(
                [
                    _Arrival(seconds, copy, place, request)
                    for place, (seconds, request) in enumerate(zip(moments, kept, strict=True))
                ]
            )
        return heapq.merge(*copies)


def _find_family(arrival: _Arrival) -> int | None:
    """A number for prompts that begin alike.

    The second block decides, as the first one may be a system prompt that all have.
    """
    ids = arrival.request.block_ids
    return None if ids is None or len(ids) < 2 else name_trace_block(ids[1], 1, 0, arrival.copy)


def _ignore(outcome: str) -> None:
    """A recorded client does not react."""
