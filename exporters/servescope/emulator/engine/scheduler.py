"""The scheduler of one engine: which requests compute how many tokens in the next step, and the blocks they hold."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from servescope.emulator.engine.cache import BlockCache
from servescope.emulator.engine.parameters import EngineParameters
from servescope.emulator.engine.serving import Serving
from servescope.emulator.engine.token_counts import InFlightTokens, TokenCounts
from servescope.emulator.workload.requests import WorkloadRequest


class StepBatch(NamedTuple):
    """What one step computes: chunks of prompts, each with its tokens, and the sequences that decode.

    `preemptions` counts the sequences that lost their blocks to make room for these.
    """

    prefills: list[tuple[Serving, int]]
    decodes: list[Serving]
    preemptions: int


class Scheduler:
    """Continuous batching over a paged KV cache. Not thread safe.

    Running sequences come before waiting ones; when blocks run out, the one admitted last is preempted and computes
    its KV again later. A request is in one of `waiting`, `running`, in the order of admission, and `handed_over`, which
    keep their blocks until another engine has fetched them.
    """

    def __init__(self, parameters: EngineParameters) -> None:
        self.cache = BlockCache(capacity=parameters.cache_blocks, block_tokens=parameters.block_tokens)
        self.tokens = TokenCounts()
        self.running: list[Serving] = []
        self.waiting: deque[Serving] = deque()
        self.handed_over: list[Serving] = []
        self.largest_batch = parameters.max_batch_size
        self._parameters = parameters

    @property
    def in_flight(self) -> int:
        """Requests that are waiting, running or handed over."""
        return len(self.running) + len(self.waiting) + len(self.handed_over)

    def in_flight_tokens(self) -> InFlightTokens:
        """The tokens in flight now, by phase."""
        prefill = decode = 0
        for serving in self.running:
            if serving.generated == 0:
                prefill += serving.request.input_tokens - (serving.cached_tokens or 0)
            else:
                decode += serving.request.input_tokens + serving.generated
        return InFlightTokens(
            queued=sum(serving.request.input_tokens for serving in self.waiting),
            prefill=prefill,
            decode=decode,
            handed_over=sum(serving.request.input_tokens + serving.generated for serving in self.handed_over),
        )

    def can_ever_serve(self, request: WorkloadRequest) -> bool:
        """Whether the request fits into an engine that has nothing else to do."""
        tokens = request.input_tokens + request.output_tokens
        needed_blocks = -(-(tokens + self._parameters.tokens_per_decode) // self._parameters.block_tokens)
        whole_prompt_fits = self._parameters.chunked_prefill or tokens <= self._parameters.max_num_tokens
        return (
            request.input_tokens >= 1
            and request.output_tokens >= 1
            and tokens <= self._parameters.max_seq_len
            and needed_blocks <= self.cache.capacity
            and whole_prompt_fits
        )

    # --- moves --------------------------------------------------------------------------------------------------------

    def enqueue(self, serving: Serving) -> None:
        """Queue behind requests of the same or a higher priority, and behind those that were preempted."""
        priority = serving.request.priority
        place = len(self.waiting)
        while place and self.waiting[place - 1].request.priority < priority and not self.waiting[place - 1].preempted:
            place -= 1
        self.waiting.insert(place, serving)

    def hand_over(self, serving: Serving) -> None:
        """Take a running request out of the batch, and keep its blocks."""
        self.running.remove(serving)
        self.handed_over.append(serving)

    def remove(self, serving: Serving) -> None:
        """Remove a request and free its blocks; without effect on one that was never queued."""
        if serving.lease is not None:
            self._free(serving)
            (self.running if serving in self.running else self.handed_over).remove(serving)
        elif serving in self.waiting:
            self.waiting.remove(serving)

    def commit(self, serving: Serving) -> None:
        """Share the blocks that a request has computed."""
        if serving.lease is not None:
            self.cache.commit(serving.lease, serving.computed)

    def _free(self, serving: Serving) -> None:
        assert serving.lease is not None  # noqa: S101 - asked by the callers
        self.cache.close(serving.lease)
        self.tokens.dropped += serving.computed
        serving.lease = None
        serving.computed = 0
        serving.held_until = None

    # --- the next step ------------------------------------------------------------------------------------------------

    def plan(self, now: float) -> StepBatch:
        """What the next step computes; what it admits is admitted at `now`."""
        budget, batch = self._plan_running(self._parameters.max_num_tokens)
        # A sequence that was just preempted would take the room that was made.
        if not batch.preemptions:
            self._admit(budget, batch, now)
        return batch

    def _plan_running(self, budget: int) -> tuple[int, StepBatch]:
        """The budget that is left, and the chunks and decodes of the running sequences."""
        prefills: list[tuple[Serving, int]] = []
        decodes: list[Serving] = []
        preemptions = position = 0
        # A preemption takes from the end of the list, so what was planned already is never taken back.
        while position < len(self.running):
            serving = self.running[position]
            position += 1
            if serving.held_until is not None:
                continue
            missing = serving.tokens_to_prefill
            tokens = self._chunk(missing, budget) if missing else self._parameters.tokens_per_decode
            if tokens == 0 or tokens > budget:
                continue
            preemptions += self._make_room(serving, tokens)
            if serving.lease is None:
                continue
            budget -= tokens
            if missing:
                prefills.append((serving, tokens))
            else:
                decodes.append(serving)
        return budget, StepBatch(prefills, decodes, preemptions)

    def _chunk(self, missing: int, budget: int) -> int:
        """Tokens of a prompt to prefill in this step; 0 when it must wait."""
        if self._parameters.chunked_prefill:
            return min(missing, budget)
        return missing if missing <= budget else 0

    def _make_room(self, serving: Serving, tokens: int) -> int:
        """Get blocks for `tokens` more tokens; how many sequences were preempted for it, in the end itself."""
        preemptions = 0
        while serving.lease is not None and not self.cache.grow(serving.lease, serving.computed + tokens):
            victim = self.running.pop()
            self._free(victim)
            victim.preempted = True
            self.waiting.appendleft(victim)
            preemptions += 1
        return preemptions

    def _admit(self, budget: int, batch: StepBatch, now: float) -> None:
        while self.waiting and len(self.running) < self.largest_batch and budget > 0:
            serving = self.waiting[0]
            if serving.arrives_computed:
                tokens = self._start_decode(serving, budget)
                batch.decodes.extend([serving] if tokens else [])
            else:
                tokens = self._start_prefill(serving, budget)
                batch.prefills.extend([(serving, tokens)] if tokens else [])
            if tokens == 0:
                return
            self.running.append(self.waiting.popleft())
            serving.preempted = False
            if serving.admitted_at is None:
                serving.admitted_at = now
            budget -= tokens

    def _start_prefill(self, serving: Serving, budget: int) -> int:
        """Give a waiting request its cached prefix and room for a first chunk; its tokens, 0 if it must wait."""
        missing = serving.tokens_to_prefill
        # At least one token is computed, or there would be nothing to decode the next one from.
        reusable = (missing - 1) // self._parameters.block_tokens
        block_ids = serving.request.block_ids
        shared = self.cache.count_cached_prefix(block_ids[:reusable])
        cached = shared * self._parameters.block_tokens
        tokens = self._chunk(missing - cached, budget)
        # A request that must wait has not used the cache.
        if tokens == 0 or not self.cache.has_room(block_ids, shared=shared, tokens=cached + tokens):
            return 0
        serving.lease = self.cache.open(block_ids, reusable=reusable)
        self.cache.grow(serving.lease, cached + tokens)
        serving.computed = cached
        self.tokens.reused += cached
        if serving.cached_tokens is None:
            serving.cached_tokens = cached
        return tokens

    def _start_decode(self, serving: Serving, budget: int) -> int:
        """Give a prefilled request room for its whole context and the next step; its tokens, 0 if it must wait."""
        tokens = self._parameters.tokens_per_decode
        computed = serving.request.input_tokens + serving.generated - 1
        block_ids = serving.request.block_ids
        full = computed // self._parameters.block_tokens
        shared = self.cache.count_cached_prefix(block_ids[:full])
        if tokens > budget or not self.cache.has_room(block_ids, shared=shared, tokens=computed + tokens):
            return 0
        serving.lease = self.cache.open(block_ids, reusable=full)
        self.cache.grow(serving.lease, computed + tokens)
        serving.arrives_computed = False
        serving.computed = computed
        self.tokens.transferred += computed
        self.commit(serving)
        return tokens
