"""One engine replica: continuous batching over a paged KV cache with prefix reuse, and speculative decoding."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from servescope.emulator.cache import BlockCache, CacheChanges
from servescope.emulator.clock import VirtualClock
from servescope.emulator.costs import StepCost
from servescope.emulator.effects import EngineEffects
from servescope.emulator.gpu import EmulatedGpu
from servescope.emulator.serving import Prefilled, Serving
from servescope.emulator.speculation import Speculation
from servescope.emulator.stretch import Stretch, count_by_position, plan_stretch
from servescope.emulator.token_counts import InFlightTokens, TokenCounts
from servescope.emulator.workload.requests import Finished, Request
from servescope.errors import UsageError
from servescope.instruments.engine import EngineInstruments

EngineRole = Literal["aggregated", "prefill", "decode"]

_LARGEST_SIZE = 10**12
_CHURN_SECONDS = 1.0
# How often a draft's alignment follows its drift, which is slow.
_DRIFT_SECONDS = 60.0


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
    cost: StepCost = field(default_factory=StepCost)
    speculation: Speculation | None = None

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_seq_len", "block_tokens", "cache_blocks"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)!r}, expected 1 or more")
            if getattr(self, name) > _LARGEST_SIZE:
                raise UsageError(f"{name} is above {_LARGEST_SIZE:g}, expected 1 to {_LARGEST_SIZE:g}")
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
        return 1 + self.draft_length

    @property
    def draft_length(self) -> int:
        """Tokens drafted for one sequence in one step; 0 without speculation."""
        return self.speculation.draft_length if self.speculation else 0


class Engine:
    """Serves requests step by step: each step prefills chunks of prompts and decodes all running sequences at once.

    Running sequences come before waiting ones; when blocks run out, the one admitted last is preempted and computes
    its KV again later. `publish` gets the blocks that came into the cache and left it, after the step that did it.

    An engine whose `role` is `prefill` computes prompts and their first token, and keeps the KV until it is fetched
    (`release`); one whose role is `decode` goes on with those (`submit_prefilled`).

    Steps that follow from the one before are not gone through one by one but written down together, when somebody reads
    the instruments or asks for anything here; nobody sees a difference but in speed. Without `leaps` they are not.

    `reused_tokens` counts the prompt tokens that were found in the cache, when the first token of their request comes.
    For one thread at a time, on `clock`.
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
        role: EngineRole = "aggregated",
        leaps: bool = True,
    ) -> None:
        self.parameters = parameters
        self.instruments = instruments
        self.role = role
        self.cache = BlockCache(capacity=parameters.cache_blocks, block_tokens=parameters.block_tokens)
        self._clock = clock
        self._gpu = gpu
        self._seed = seed
        self._churn_random = random.Random(f"churn-{seed}")
        self._publish = publish
        self._leaps = leaps
        self._arrived = 0
        self._steps = 0
        self._tokens = TokenCounts()
        self._running: list[Serving] = []
        self._waiting: deque[Serving] = deque()
        self._handed_over: list[Serving] = []
        self._stretch: Stretch | None = None
        self._stepping = False
        self._failed = False
        self._effects = EngineEffects()
        self._churning = False
        self._watchers: list[Callable[[Serving, str], None]] = []
        self._change_watchers: list[Callable[[CacheChanges], None]] = []
        self.reused_tokens = 0
        self._born_at = clock.now
        self._follow_effects()
        gpu.watch_reading(self._catch_up)
        if parameters.speculation and parameters.speculation.drift_per_hour:
            clock.schedule(_DRIFT_SECONDS, self._drift)

    # --- what others read ---------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Requests that have arrived and neither ended nor left."""
        return len(self._running) + len(self._waiting) + len(self._handed_over)

    @property
    def queued(self) -> int:
        """Requests that wait to be scheduled, preempted ones included."""
        return len(self._waiting)

    @property
    def in_flight_tokens(self) -> int:
        """Σ prompt of the queued, uncached prompt of those in prefill, prompt and output so far of the decoding.

        Those handed over are not in it: they weigh where they decode.
        """
        return sum(self.in_flight_tokens_by_phase()[:3])

    def in_flight_tokens_by_phase(self) -> InFlightTokens:
        """The tokens in flight now, by phase."""
        self._catch_up()
        prefill = decode = 0
        for serving in self._running:
            if serving.generated == 0:
                prefill += serving.request.input_tokens - (serving.cached_tokens or 0)
            else:
                decode += serving.request.input_tokens + serving.generated
        return InFlightTokens(
            queued=sum(serving.request.input_tokens for serving in self._waiting),
            prefill=prefill,
            decode=decode,
            handed_over=sum(serving.request.input_tokens + serving.generated for serving in self._handed_over),
        )

    @property
    def steps(self) -> int:
        """Steps that have ended: an engine with requests in flight whose number stands still makes no progress."""
        self._catch_up()
        return self._steps

    @property
    def now(self) -> float:
        """The time of the emulation, in seconds."""
        return self._clock.now

    def watch_ended(self, watch: Callable[[Serving, str], None]) -> None:
        """Have `watch` called with each request that ends from now on, and its outcome, before its client hears."""
        self._watchers.append(watch)

    def watch_changes(self, watch: Callable[[CacheChanges], None]) -> None:
        """Have `watch` called with what comes into the cache and leaves it from now on, as `publish` is."""
        self._change_watchers.append(watch)

    def count_tokens(self) -> TokenCounts:
        """The tokens whose KV was here so far; a copy."""
        self._catch_up()
        return replace(self._tokens)

    # --- requests -----------------------------------------------------------------------------------------------------

    def submit(
        self,
        request: Request,
        *,
        first_token: Callable[[int], None],
        finished: Finished,
        handed_over: Callable[[Serving], None] | None = None,
    ) -> Serving:
        """Take a request.

        `first_token` is called with the prompt tokens found in the cache, once there is a first token; `finished` with
        the outcome, exactly once, at once when the request is refused. An engine that prefills calls `handed_over`
        once there is a first token and more are to come; the request then stays until `release` or `abort`.
        """
        if (self.role == "prefill") != (handed_over is not None):
            raise UsageError(f"an engine whose role is {self.role!r} got handed_over={handed_over!r}")
        serving = self._meet(
            Serving(
                request,
                self.instruments.start_request(request.input_tokens),
                seed=self._next_seed(),
                first_token=first_token,
                finished=finished,
                handed_over=handed_over,
            )
        )
        serving.fails_at = self._draw_failure(serving)
        if self._failed:
            self._end(serving, "error")
        elif not self._can_ever_serve(request):
            self._end(serving, "client_error")
        elif len(self._waiting) >= self.parameters.max_queue and self._stepping:
            self._end(serving, "rejected")
        else:
            self._wait(serving)
        self._show_state()
        return serving

    def submit_prefilled(self, prefilled: Prefilled, *, finished: Finished) -> Serving:
        """Take a request that another engine has prefilled, its KV being here now.

        It waits until there is room for the whole context, however many wait already, and then decodes; nothing is
        prefilled, unless it is preempted. It ends as `client_error` when there can never be that much room.
        """
        if self.role != "decode":
            raise UsageError(f"an engine whose role is {self.role!r} takes no prefilled requests, only 'decode' does")
        serving = self._meet(
            Serving(
                prefilled.request,
                self.instruments.take_over(prefilled.handed_over),
                seed=self._next_seed(),
                finished=finished,
            )
        )
        serving.generated = prefilled.generated
        serving.cached_tokens = prefilled.cached_tokens
        serving.fails_at = prefilled.fails_at
        serving.arrives_computed = True
        if self._failed:
            self._end(serving, "error")
        elif not self._can_ever_serve(prefilled.request):
            self._end(serving, "client_error")
        else:
            self._wait(serving)
        self._show_state()
        return serving

    def release(self, serving: Serving) -> Prefilled:
        """Let go of a request that was handed over: its KV has been fetched, and it is in flight here no more."""
        if serving not in self._handed_over:
            raise UsageError(f"request {serving.request.number} is not one that was handed over and not yet released")
        self._handed_over.remove(serving)
        handed_over = serving.observed.hand_over()
        assert handed_over is not None  # noqa: S101 - what was handed over has its first token
        prefilled = Prefilled(
            request=serving.request,
            handed_over=handed_over,
            computed_tokens=serving.computed,
            cached_tokens=serving.cached_tokens or 0,
            generated=serving.generated,
            fails_at=serving.fails_at,
        )
        serving.ended = True
        self._release(serving)
        self._go_on()
        self._show_state()
        return prefilled

    def abort(self, serving: Serving) -> None:
        """The client hung up; without effect when the request has ended, or was released."""
        if not serving.ended:
            self._interrupt()
            self._end(serving, "client_abort")
            self._go_on()
            self._show_state()

    def fail(self) -> None:
        """The process dies: every request ends as `error`, and so do those that still come; no step ends any more."""
        self._interrupt()
        self._failed = True
        self._stretch = None
        self._stepping = False
        for serving in (*self._running, *self._waiting, *self._handed_over):
            if not serving.ended:
                self._end(serving, "error")

    # --- effects ------------------------------------------------------------------------------------------------------

    def apply_effects(self, effects: EngineEffects) -> None:
        """Be like this from now on; a step in progress ends as it was planned.

        Requests beyond a batch that shrank stay in it until they end. Frozen, the engine shows what it last showed of
        its queue and its cache, and rejects nobody.
        """
        self._interrupt()
        self._effects = effects
        self._follow_effects()
        if effects.churn_share > 0 and not self._churning:
            self._churning = True
            self._clock.schedule(_CHURN_SECONDS, self._churn)
        self._go_on()
        self._show_state()

    def _follow_effects(self) -> None:
        effects, speculation = self._effects, self.parameters.speculation
        age_seconds = self._clock.now - self._born_at
        self._reach = speculation.reach(effects.acceptance_factors, age_seconds=age_seconds) if speculation else []
        self._largest_batch = max(int(self.parameters.max_batch_size * effects.batch_factor), 1)
        self._error_share = 1 - (1 - self.parameters.error_share) * (1 - effects.error_share)

    def _drift(self) -> None:
        if not self._failed:
            self._interrupt()
            self._follow_effects()
            self._clock.schedule(_DRIFT_SECONDS, self._drift)

    def _churn(self) -> None:
        share = self._effects.churn_share
        if share <= 0 or self._failed:
            self._churning = False
            return
        # Whoever finds less cached begins with less, for which there may be room.
        self._interrupt()
        idle = self.cache.idle_blocks()
        self.cache.drop(self._churn_random.sample(idle, round(len(idle) * share)))
        self._publish_changes()
        self._clock.schedule(_CHURN_SECONDS, self._churn)

    # --- arrival ------------------------------------------------------------------------------------------------------

    def _next_seed(self) -> str:
        self._arrived += 1
        return f"{self._arrived}-{self._seed}"

    def _meet(self, serving: Serving) -> Serving:
        self._interrupt()
        serving.arrived_at = self._clock.now
        return serving

    def _draw_failure(self, serving: Serving) -> int | None:
        """After how many tokens the request fails, None when it does not."""
        if serving.random.random() >= self._error_share:
            return None
        return serving.random.randrange(max(serving.request.output_tokens, 1))

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

    def _wait(self, serving: Serving) -> None:
        """Queue behind those of the same priority or a higher one, and behind those that had begun before."""
        priority = serving.request.priority
        place = len(self._waiting)
        while place and self._waiting[place - 1].request.priority < priority and not self._waiting[place - 1].preempted:
            place -= 1
        self._waiting.insert(place, serving)
        self._go_on()

    # --- steps --------------------------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Write down the steps that have ended by now."""
        if self._stretch is not None:
            written = self._stretch.write(self._clock, self.instruments, self._gpu, len(self._reach))
            self._steps += written.steps
            self._tokens.decoded += written.tokens

    def _interrupt(self) -> None:
        """Let the step in progress be the last one that is planned."""
        self._catch_up()
        cut = self._stretch.cut() if self._stretch is not None else None
        if cut is not None:
            self._follow(cut)

    def _follow(self, stretch: Stretch) -> None:
        self._stretch = stretch
        self._clock.schedule_at(stretch.ends[-1], lambda: self._end_stretch(stretch))

    def _go_on(self) -> None:
        if not self._stepping:
            self._begin_step()
            self._publish_changes()

    def _begin_step(self) -> None:
        self._stretch = None
        self._stepping = False
        if self._effects.frozen or self._failed:
            return
        queued = len(self._waiting)
        budget, prefills, decodes = self._plan_running(self.parameters.max_num_tokens)
        # What was just preempted would take back the room that was made.
        preempted = len(self._waiting) != queued
        if not preempted:
            self._admit(budget, prefills, decodes)
        if prefills or decodes:
            self._stepping = True
            # After a preemption nobody was admitted, but in the next step somebody may be.
            stretch = self._plan_step(prefills, decodes, alone=preempted)
            self._gpu.work(stretch.seconds[0])
            self._follow(stretch)

    def _plan_step(self, prefills: list[tuple[Serving, int]], decodes: list[Serving], *, alone: bool) -> Stretch:
        """The step to take now, and those after it that will be like it, unless it is to stay `alone`."""
        base = self._decode_base(decodes) if decodes else 0.0
        per_context_token = self.parameters.cost.per_context_token * self._effects.decode_factor
        # Who is told of every token is told at its time.
        alone = alone or not self._leaps or bool(prefills)
        if not alone and all(serving.request.on_tokens is None for serving in decodes):
            return plan_stretch(
                decodes,
                begins=self._clock.now,
                base_seconds=base,
                per_context_token=per_context_token,
                block_tokens=self.parameters.block_tokens,
                tokens_per_decode=self.parameters.tokens_per_decode,
                reach=self._reach,
            )
        seconds = base + per_context_token * sum(serving.computed for serving in decodes)
        if prefills:
            seconds += self._prefill_seconds(prefills, decodes)
        return Stretch(prefills, decodes, ends=[self._clock.now + seconds], seconds=[seconds])

    def _prefill_seconds(self, prefills: list[tuple[Serving, int]], decodes: list[Serving]) -> float:
        """What prompts take, and what the step takes that only prefills."""
        cost = self.parameters.cost
        seconds = cost.prefill_seconds(
            tokens=sum(tokens for _, tokens in prefills),
            # Each token attends to all before it in its own chunk, too.
            pairs=sum(tokens * (serving.computed + (tokens + 1) / 2) for serving, tokens in prefills),
        )
        if not decodes:
            seconds += cost.weights
        return seconds * self._effects.prefill_factor

    def _decode_base(self, decodes: list[Serving]) -> float:
        """What decoding takes in a step, but for the context."""
        cost, speculation = self.parameters.cost, self.parameters.speculation
        drafted = self.parameters.draft_length
        seconds = cost.weights + cost.decode_base_seconds(decoding=len(decodes), draft_tokens=len(decodes) * drafted)
        if speculation:
            seconds += speculation.draft_seconds * drafted
        return seconds * self._effects.decode_factor

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
            victim.preempted = True
            self._waiting.appendleft(victim)
            self.instruments.count_preemptions()
            if victim is serving:
                return False
        return True

    def _admit(self, budget: int, prefills: list[tuple[Serving, int]], decodes: list[Serving]) -> None:
        while self._waiting and len(self._running) < self._largest_batch and budget > 0:
            serving = self._waiting[0]
            tokens = self._start_decode(serving, budget) if serving.arrives_computed else 0
            if tokens:
                decodes.append(serving)
            elif serving.arrives_computed:
                return
            else:
                tokens = self._start_prefill(serving, budget)
                if tokens == 0:
                    return
                prefills.append((serving, tokens))
            self._running.append(self._waiting.popleft())
            serving.preempted = False
            if serving.admitted_at is None:
                serving.admitted_at = self._clock.now
            budget -= tokens

    def _start_prefill(self, serving: Serving, budget: int) -> int:
        """Give a waiting request its cached prefix and room for a first chunk; its tokens, 0 if it must wait."""
        missing = serving.tokens_to_prefill
        # At least one token is computed, or there would be nothing to decode the next one from.
        reusable = (missing - 1) // self.parameters.block_tokens
        block_ids = serving.request.block_ids
        shared = self.cache.count_cached_prefix(block_ids[:reusable])
        cached = shared * self.parameters.block_tokens
        tokens = self._chunk(missing - cached, budget)
        # Who looks and must wait has not used the cache.
        if tokens == 0 or not self.cache.has_room(block_ids, shared=shared, tokens=cached + tokens):
            return 0
        serving.lease = self.cache.open(block_ids, reusable=reusable)
        self.cache.grow(serving.lease, cached + tokens)
        serving.computed = cached
        self._tokens.reused += cached
        if serving.cached_tokens is None:
            serving.cached_tokens = cached
        return tokens

    def _start_decode(self, serving: Serving, budget: int) -> int:
        """Give a prefilled request room for its whole context and the next step; its tokens, 0 if it must wait."""
        tokens = self.parameters.tokens_per_decode
        computed = serving.request.input_tokens + serving.generated - 1
        block_ids = serving.request.block_ids
        full = computed // self.parameters.block_tokens
        shared = self.cache.count_cached_prefix(block_ids[:full])
        if tokens > budget or not self.cache.has_room(block_ids, shared=shared, tokens=computed + tokens):
            return 0
        serving.lease = self.cache.open(block_ids, reusable=full)
        self.cache.grow(serving.lease, computed + tokens)
        serving.arrives_computed = False
        serving.computed = computed
        self._tokens.transferred += computed
        self._commit(serving)
        return tokens

    def _end_stretch(self, stretch: Stretch) -> None:
        if stretch is not self._stretch:
            return  # it was cut
        self._catch_up()
        self._stretch = None  # what comes within the callbacks interrupts nothing
        self._steps += 1
        for serving, tokens in stretch.prefills:
            if not serving.ended:
                self._end_prefill_chunk(serving, tokens)
        self._end_decodes([serving for serving in stretch.decodes if not serving.ended])
        if self._failed:
            return
        self._begin_step()
        self._publish_changes()
        self._show_state()

    def _end_prefill_chunk(self, serving: Serving, tokens: int) -> None:
        serving.computed += tokens
        self._tokens.prefilled += tokens
        self._commit(serving)
        if serving.generated == 0 and serving.tokens_to_prefill == 0:
            self._emit(serving, 1)

    def _end_decodes(self, decodes: Sequence[Serving]) -> None:
        accepted = [self._count_accepted(serving) for serving in decodes]
        for serving, count in zip(decodes, accepted, strict=True):
            # Whoever was told of a token may have hung up on another.
            if not serving.ended:
                self._emit(serving, 1 + count)
        if self._reach and decodes:
            by_position = count_by_position(accepted, len(self._reach))
            self.instruments.record_speculation(len(decodes) * len(self._reach), by_position)

    def _count_accepted(self, serving: Serving) -> int:
        """How many draft tokens of one sequence the model accepts in one step."""
        if not self._reach:
            return 0
        draw = serving.draw()
        return sum(1 for reach in self._reach if draw < reach)

    def _emit(self, serving: Serving, tokens: int) -> None:
        """Send tokens to the client, no more than the request asks for, and end it when it is complete or fails."""
        last = serving.last_token
        tokens = min(tokens, last - serving.generated)
        first = serving.generated == 0
        if tokens > 0:
            if first:
                serving.observed.first_token()
                serving.first_token_at = self._clock.now
                self.reused_tokens += serving.cached_tokens or 0
                serving.first_token(serving.cached_tokens or 0)
                if serving.request.on_first_token is not None:
                    serving.request.on_first_token(serving.cached_tokens or 0)
            else:
                serving.observed.tokens(tokens)
                self._tokens.decoded += tokens
            serving.generated += tokens
            if serving.request.on_tokens is not None:
                serving.request.on_tokens(tokens)
            serving.computed = serving.request.input_tokens + serving.generated - 1
            self._commit(serving)
        if serving.ended:
            return  # hung up on its first token
        if serving.generated >= last:
            self._end(serving, "ok" if serving.fails_at is None else "error")
        elif first and serving.handed_over is not None:
            self._running.remove(serving)
            self._handed_over.append(serving)
            serving.handed_over(serving)

    # --- the books ----------------------------------------------------------------------------------------------------

    def _commit(self, serving: Serving) -> None:
        if serving.lease is not None:
            self.cache.commit(serving.lease, serving.computed)

    def _end(self, serving: Serving, outcome: str) -> None:
        serving.ended = True
        if serving.lease is not None:
            self._release(serving)
            (self._running if serving in self._running else self._handed_over).remove(serving)
        elif serving in self._waiting:
            self._waiting.remove(serving)
        serving.observed.finish(outcome, serving.generated)
        for watch in self._watchers:
            watch(serving, outcome)
        serving.finished(outcome)

    def _release(self, serving: Serving) -> None:
        assert serving.lease is not None  # noqa: S101 - what runs holds a lease
        self.cache.close(serving.lease)
        self._tokens.dropped += serving.computed
        serving.lease = None
        serving.computed = 0

    def _publish_changes(self) -> None:
        changes = self.cache.take_changes()
        if changes.stored or changes.removed:
            self._publish(changes)
            for watch in self._change_watchers:
                watch(changes)

    def _show_state(self) -> None:
        if self._effects.frozen or self._failed:
            return
        self.instruments.set_queued_requests(len(self._waiting))
        self.instruments.set_kv_cache_usage(self.cache.usage)
