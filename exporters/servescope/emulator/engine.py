"""One engine replica: continuous batching over a paged KV cache with prefix reuse, and speculative decoding."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from servescope.emulator.cache import BlockCache, CacheChanges, Lease
from servescope.emulator.clock import VirtualClock
from servescope.emulator.gpu import EmulatedGpu
from servescope.emulator.workload import Finished, Request
from servescope.engine import EngineInstruments
from servescope.engine import Request as ObservedRequest
from servescope.errors import UsageError


@dataclass(frozen=True, slots=True)
class StepCost:
    """How long one forward pass takes, as a sum of its parts, in seconds.

    Prefill is bound by compute, so each prompt token costs; decode is bound by memory, so the weights cost once per
    step whatever the batch, and the context that is attended to costs by its length.
    """

    weights: float = 0.034
    per_prefill_token: float = 160e-6
    per_decoding_sequence: float = 350e-6
    per_context_token: float = 25e-9

    def seconds(self, *, prefill_tokens: int, decoding: int, context_tokens: int) -> float:
        """The duration of one step."""
        return (
            self.weights
            + self.per_prefill_token * prefill_tokens
            + self.per_decoding_sequence * decoding
            + self.per_context_token * context_tokens
        )


@dataclass(frozen=True, slots=True)
class Speculation:
    """How far drafts are right: the chance that each draft position is accepted, given that those before it were."""

    acceptance: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.acceptance or not all(0 <= chance <= 1 for chance in self.acceptance):
            raise UsageError(f"acceptance is {self.acceptance!r}, expected one or more chances in [0, 1]")

    @property
    def draft_length(self) -> int:
        """Tokens drafted for one sequence in one step."""
        return len(self.acceptance)


@dataclass(frozen=True, slots=True)
class EngineParameters:
    """How an engine is built; sizes in tokens, blocks, requests or bytes, shares 0 to 1.

    `error_share` of the requests fail while they are served. `speculation` is None when it is off.
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
    cost: StepCost = StepCost()
    speculation: Speculation | None = None

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_seq_len", "block_tokens", "cache_blocks"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)!r}, expected 1 or more")
        if self.max_queue < 0:
            raise UsageError(f"max_queue is {self.max_queue!r}, expected 0 or more")
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
        return 1 + (self.speculation.draft_length if self.speculation else 0)


class Serving:
    """One request within the engine.

    `computed` tokens have their KV in the cache; `generated` were sent to the client. `lease` is None while it waits.
    """

    __slots__ = (
        "cached_tokens", "computed", "ended", "fails_at", "finished", "first_token", "generated", "lease", "observed",
        "request",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        observed: ObservedRequest,
        *,
        first_token: Callable[[int], None],
        finished: Finished,
        fails_at: int | None,
    ) -> None:
        self.request = request
        self.observed = observed
        self.first_token = first_token
        self.finished = finished
        self.fails_at = fails_at
        self.lease: Lease | None = None
        self.computed = 0
        self.generated = 0
        self.cached_tokens: int | None = None
        self.ended = False

    @property
    def tokens_to_prefill(self) -> int:
        """Tokens whose KV is still missing before the next token can be decoded; 0 while it decodes."""
        # The newest generated token is the input of the next step, so its KV is never there before.
        return self.request.input_tokens + max(self.generated - 1, 0) - self.computed

    @property
    def in_flight_tokens(self) -> int:
        """What the request weighs for a token-based autoscaler (prompt when queued, uncached prompt, or all so far)."""
        if self.lease is None:
            return self.request.input_tokens
        if self.generated == 0:
            return self.request.input_tokens - (self.cached_tokens or 0)
        return self.request.input_tokens + self.generated


class Engine:
    """Serves requests step by step: each step prefills chunks of prompts and decodes all running sequences at once.

    Running sequences come before waiting ones; when blocks run out, the one admitted last is preempted and computes
    its KV again later. `publish` gets the blocks that came into the cache and left it, after the step that did it.
    `steps` counts those that have ended. For one thread at a time, on `clock`.
    """

    def __init__(
        self,
        parameters: EngineParameters,
        *,
        clock: VirtualClock,
        instruments: EngineInstruments,
        gpu: EmulatedGpu,
        seed: str,
        publish: Callable[[CacheChanges], None] = lambda changes: None,
    ) -> None:
        self.parameters = parameters
        self.instruments = instruments
        self.cache = BlockCache(capacity=parameters.cache_blocks, block_tokens=parameters.block_tokens)
        self._clock = clock
        self._gpu = gpu
        self._random = random.Random(seed)
        self._publish = publish
        self._running: list[Serving] = []
        self._waiting: deque[Serving] = deque()
        self._stepping = False
        self.steps = 0
        speculation = parameters.speculation
        self._reach = list(accumulate(speculation.acceptance, mul)) if speculation else []

    @property
    def in_flight(self) -> int:
        """Requests that have arrived and not ended."""
        return len(self._running) + len(self._waiting)

    @property
    def in_flight_tokens(self) -> int:
        """Σ prompt of the queued, uncached prompt of those in prefill, prompt and output so far of the decoding."""
        return sum(serving.in_flight_tokens for serving in (*self._running, *self._waiting))

    def submit(self, request: Request, *, first_token: Callable[[int], None], finished: Finished) -> Serving:
        """Take a request.

        `first_token` is called with the prompt tokens found in the cache, once there is a first token; `finished` with
        the outcome, exactly once, at once when the request is refused.
        """
        serving = Serving(
            request,
            self.instruments.start_request(request.input_tokens),
            first_token=first_token,
            finished=finished,
            fails_at=self._draw_failure(request),
        )
        if not self._can_ever_serve(request):
            self._end(serving, "client_error")
        elif len(self._waiting) >= self.parameters.max_queue and self._stepping:
            self._end(serving, "rejected")
        else:
            self._waiting.append(serving)
            self._step_if_idle()
        self._show_state()
        return serving

    def abort(self, serving: Serving, outcome: str = "client_abort") -> None:
        """End a request before its time: the client hung up, or the process dies; without effect when it has ended."""
        if not serving.ended:
            self._end(serving, outcome)
            self._show_state()

    def _draw_failure(self, request: Request) -> int | None:
        """After how many tokens the request fails, None when it does not."""
        if self._random.random() >= self.parameters.error_share:
            return None
        return self._random.randrange(max(request.output_tokens, 1))

    def _can_ever_serve(self, request: Request) -> bool:
        tokens = request.input_tokens + request.output_tokens
        needed_blocks = -(-(tokens + self.parameters.tokens_per_decode) // self.parameters.block_tokens)
        whole_prompt_fits = self.parameters.chunked_prefill or tokens <= self.parameters.max_num_tokens
        return (
            request.input_tokens >= 1
            and request.output_tokens >= 1
            and tokens <= self.parameters.max_seq_len
            and needed_blocks <= self.cache.capacity
            and whole_prompt_fits
        )

    def _step_if_idle(self) -> None:
        if not self._stepping:
            self._begin_step()

    def _begin_step(self) -> None:
        queued = len(self._waiting)
        budget, prefills, decodes = self._plan_running(self.parameters.max_num_tokens)
        # What was just preempted would take back the room that was made.
        if len(self._waiting) == queued:
            self._admit(budget, prefills)
        self._stepping = bool(prefills or decodes)
        if self._stepping:
            seconds = self.parameters.cost.seconds(
                prefill_tokens=sum(tokens for _, tokens in prefills),
                decoding=len(decodes),
                context_tokens=sum(serving.computed for serving in decodes),
            )
            self._gpu.work(seconds)
            self._clock.schedule(seconds, lambda: self._end_step(prefills, decodes))

    def _plan_running(self, budget: int) -> tuple[int, list[tuple[Serving, int]], list[Serving]]:
        """Budget that is left, prefill chunks and decodes of the running sequences, in the order of their admission."""
        prefills: list[tuple[Serving, int]] = []
        decodes: list[Serving] = []
        per_decode = self.parameters.tokens_per_decode
        position = 0
        # A preemption takes from the end of the list, so what was planned already is never taken back.
        while position < len(self._running):
            serving = self._running[position]
            position += 1
            missing = serving.tokens_to_prefill
            tokens = self._chunk(missing, budget) if missing else per_decode
            if tokens == 0 or tokens > budget or not self._make_room(serving, tokens):
                continue
            budget -= tokens
            if missing:
                prefills.append((serving, tokens))
            else:
                decodes.append(serving)
        return budget, prefills, decodes

    def _chunk(self, missing: int, budget: int) -> int:
        """Tokens of a prompt to prefill in this step; 0 when it must wait."""
        if self.parameters.chunked_prefill:
            return min(missing, budget)
        return missing if missing <= budget else 0

    def _make_room(self, serving: Serving, tokens: int) -> bool:
        """Blocks for `tokens` more tokens, preempting others if need be; False when it was itself preempted."""
        assert serving.lease is not None  # noqa: S101 - what runs holds a lease
        while not self.cache.grow(serving.lease, serving.computed + tokens):
            victim = self._running.pop()
            self._release(victim)
            self._waiting.appendleft(victim)
            self.instruments.count_preemptions()
            if victim is serving:
                return False
        return True

    def _admit(self, budget: int, prefills: list[tuple[Serving, int]]) -> None:
        while self._waiting and len(self._running) < self.parameters.max_batch_size and budget > 0:
            serving = self._waiting[0]
            tokens = self._start_prefill(serving, budget)
            if tokens == 0:
                return
            self._running.append(self._waiting.popleft())
            prefills.append((serving, tokens))
            budget -= tokens

    def _start_prefill(self, serving: Serving, budget: int) -> int:
        """Give a waiting request its cached prefix and room for a first chunk; its tokens, 0 if it must wait."""
        block_tokens = self.parameters.block_tokens
        missing = serving.tokens_to_prefill
        # At least one token is computed, or there would be nothing to decode the next one from.
        lease = self.cache.open(serving.request.block_ids, reusable=(missing - 1) // block_tokens)
        cached = lease.shared * block_tokens
        tokens = self._chunk(missing - cached, budget)
        if tokens == 0 or not self.cache.grow(lease, cached + tokens):
            self.cache.close(lease)
            return 0
        serving.lease = lease
        serving.computed = cached
        if serving.cached_tokens is None:
            serving.cached_tokens = cached
        return tokens

    def _end_step(self, prefills: list[tuple[Serving, int]], decodes: list[Serving]) -> None:
        self.steps += 1
        for serving, tokens in prefills:
            if not serving.ended:
                self._end_prefill_chunk(serving, tokens)
        self._end_decodes([serving for serving in decodes if not serving.ended])
        self._begin_step()
        self._publish_changes()
        self._show_state()

    def _end_prefill_chunk(self, serving: Serving, tokens: int) -> None:
        serving.computed += tokens
        self._commit(serving)
        if serving.generated == 0 and serving.tokens_to_prefill == 0:
            self._emit(serving, 1)

    def _end_decodes(self, decodes: Sequence[Serving]) -> None:
        accepted_by_position = [0] * len(self._reach)
        for serving in decodes:
            accepted = self._draw_accepted()
            for position in range(accepted):
                accepted_by_position[position] += 1
            self._emit(serving, 1 + accepted)
        if self._reach and decodes:
            self.instruments.record_speculation(len(decodes) * len(self._reach), tuple(accepted_by_position))

    def _draw_accepted(self) -> int:
        """How many draft tokens of one sequence the model accepts in one step."""
        draw = self._random.random()
        accepted = 0
        for reach in self._reach:
            if draw >= reach:
                break
            accepted += 1
        return accepted

    def _emit(self, serving: Serving, tokens: int) -> None:
        """Send tokens to the client, no more than the request asks for, and end it when it is complete or fails."""
        last = serving.request.output_tokens if serving.fails_at is None else serving.fails_at
        tokens = min(tokens, last - serving.generated)
        if tokens > 0:
            if serving.generated == 0:
                serving.observed.first_token()
                serving.first_token(serving.cached_tokens or 0)
                if serving.request.on_first_token is not None:
                    serving.request.on_first_token(serving.cached_tokens or 0)
            else:
                serving.observed.tokens(tokens)
            serving.generated += tokens
            if serving.request.on_tokens is not None:
                serving.request.on_tokens(tokens)
            serving.computed = serving.request.input_tokens + serving.generated - 1
            self._commit(serving)
        if serving.generated >= last:
            self._end(serving, "ok" if serving.fails_at is None else "error")

    def _commit(self, serving: Serving) -> None:
        assert serving.lease is not None  # noqa: S101 - what runs holds a lease
        self.cache.commit(serving.lease, serving.computed)

    def _end(self, serving: Serving, outcome: str) -> None:
        serving.ended = True
        if serving.lease is not None:
            self._release(serving)
            self._running.remove(serving)
        elif serving in self._waiting:
            self._waiting.remove(serving)
        serving.observed.finish(outcome, serving.generated)
        serving.finished(outcome)

    def _release(self, serving: Serving) -> None:
        assert serving.lease is not None  # noqa: S101 - what runs holds a lease
        self.cache.close(serving.lease)
        serving.lease = None
        serving.computed = 0

    def _publish_changes(self) -> None:
        changes = self.cache.take_changes()
        if changes.stored or changes.removed:
            self._publish(changes)

    def _show_state(self) -> None:
        self.instruments.set_queued_requests(len(self._waiting))
        self.instruments.set_kv_cache_usage(self.cache.usage)
