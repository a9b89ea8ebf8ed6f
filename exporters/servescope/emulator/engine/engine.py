"""One engine replica: its requests from arrival to end, step by step, with speculative decoding."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from servescope.emulator.clock import VirtualClock
from servescope.emulator.effects import SLOW_FACTOR, EngineEffects
from servescope.emulator.engine.cache import CacheChanges
from servescope.emulator.engine.gpu import EmulatedGpu
from servescope.emulator.engine.parameters import EngineParameters, EngineRole
from servescope.emulator.engine.scheduler import Scheduler
from servescope.emulator.engine.serving import Fate, Prefilled, Serving
from servescope.emulator.engine.stretch import StepStretch, count_by_position, plan_stretch
from servescope.emulator.engine.token_counts import InFlightTokens, TokenCounts
from servescope.emulator.workload.mixes import SMALL_TENANT
from servescope.emulator.workload.requests import Finished, WorkloadRequest
from servescope.errors import UsageError
from servescope.instruments.engine import EngineInstruments

_CHURN_SECONDS = 1.0
_LEAK_SECONDS = 10.0
# How often a request that is held asks whether the engine computes again.
_FROZEN_SECONDS = 1.0
# How often a draft's alignment follows its drift, which is slow.
_DRIFT_SECONDS = 60.0


class Engine:
    """Serves requests step by step: each step prefills chunks of prompts and decodes all running sequences at once.

    What a step computes is the scheduler's to say. `publish` gets the blocks that entered and left the cache, after the
    step that changed it.

    An engine whose `role` is `prefill` computes prompts and their first token, and keeps the KV until it is fetched
    (`release`); one whose role is `decode` continues with those (`submit_prefilled`).

    Steps that follow from the one before are recorded together, when the instruments are read or a method is called
    here; the result is the same as without `leaps`, which simulates them one by one.

    Every step takes `pace` times as long as its costs say. `reused_tokens` counts the prompt tokens that were found in
    the cache, when the first token of their request comes. For one thread at a time, on `clock`.
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
        pace: float = 1.0,
        leaps: bool = True,
    ) -> None:
        self.parameters = parameters
        self.instruments = instruments
        self.role = role
        self._scheduler = Scheduler(parameters)
        self.cache = self._scheduler.cache
        self._clock = clock
        self._gpu = gpu
        self._seed = seed
        self._churn_random = random.Random(f"churn-{seed}")
        self._hang_random = random.Random(f"hang-{seed}")
        self._fate_random = random.Random(f"fate-{seed}")
        # Accepted, and lost before the queue, or not in it yet.
        self._hanging: list[Serving] = []
        self._waiting: list[Serving] = []
        self._publish = publish
        self._pace = pace
        self._leaps = leaps
        self._arrived = 0
        self._steps = 0
        self._stretch: StepStretch | None = None
        self._stepping = False
        self._failed = False
        self._effects = EngineEffects()
        self._churning = False
        self._leaking = False
        self._leaked = 0.0
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
        return self._scheduler.in_flight + len(self._hanging) + len(self._waiting)

    @property
    def queued(self) -> int:
        """Requests that wait to be scheduled, preempted ones included."""
        return len(self._scheduler.waiting)

    @property
    def in_flight_tokens(self) -> int:
        """Σ prompt of the queued, uncached prompt of those in prefill, prompt and output so far of the decoding.

        Requests handed over are not in it: they count where they decode.
        """
        return sum(self.in_flight_tokens_by_phase()[:3])

    def in_flight_tokens_by_phase(self) -> InFlightTokens:
        """The tokens in flight now, by phase."""
        self._catch_up()
        return self._scheduler.in_flight_tokens()

    @property
    def steps(self) -> int:
        """Steps that have ended; no progress is made while requests are in flight and this does not grow."""
        self._catch_up()
        return self._steps

    @property
    def now(self) -> float:
        """The time of the emulation, in seconds."""
        return self._clock.now

    def watch_ended(self, watch: Callable[[Serving, str], None]) -> None:
        """Have `watch` called with each request that ends from now on, and its outcome, before its client is."""
        self._watchers.append(watch)

    def watch_changes(self, watch: Callable[[CacheChanges], None]) -> None:
        """Have `watch` called with what enters and leaves the cache from now on, as `publish` is."""
        self._change_watchers.append(watch)

    def count_tokens(self) -> TokenCounts:
        """The tokens whose KV was here so far; a copy."""
        self._catch_up()
        return replace(self._scheduler.tokens)

    # --- requests -----------------------------------------------------------------------------------------------------

    def submit(
        self,
        request: WorkloadRequest,
        *,
        first_token: Callable[[int], None],
        finished: Finished,
        handed_over: Callable[[Serving], None] | None = None,
    ) -> Serving:
        """Serve a request.

        `first_token` is called with the prompt tokens found in the cache, once there is a first token; `finished` with
        the outcome, exactly once, at once when the request is refused. An engine that prefills calls `handed_over`
        once there is a first token and more are to come; the request then stays until `release` or `abort`.
        """
        if (self.role == "prefill") != (handed_over is not None):
            raise UsageError(f"an engine whose role is {self.role!r} got handed_over={handed_over!r}")
        serving = self._arrive(
            Serving(
                request,
                self.instruments.start_request(request.input_tokens, segment=request.segment),
                seed=self._next_seed(),
                first_token=first_token,
                finished=finished,
                handed_over=handed_over,
            )
        )
        serving.fate = self._draw_fate(serving)
        self._accept(serving, is_full=self._stepping and self.queued >= self.parameters.max_queue)
        return serving

    def submit_prefilled(self, prefilled: Prefilled, *, finished: Finished, arrived: bool = True) -> Serving:
        """Serve a request that another engine has prefilled, its KV having `arrived` here.

        It waits until there is room for the whole context, however long the queue, and then decodes; nothing is
        prefilled, unless its KV has not arrived or it is preempted. It ends as `client_error` when there can never be
        that much room.
        """
        if self.role != "decode":
            raise UsageError(f"an engine whose role is {self.role!r} serves no prefilled requests, only 'decode' does")
        serving = self._arrive(
            Serving(
                prefilled.request,
                self.instruments.take_over(prefilled.handed_over),
                seed=self._next_seed(),
                finished=finished,
            )
        )
        serving.generated = prefilled.generated
        serving.first_token_at = prefilled.first_token_at
        serving.cached_tokens = prefilled.cached_tokens
        serving.fate = prefilled.fate
        serving.arrives_computed = arrived
        self._accept(serving, is_full=False)
        return serving

    def release(self, serving: Serving) -> Prefilled:
        """Free the blocks of a request that was handed over: its KV has been fetched, and no longer in flight here."""
        if serving not in self._scheduler.handed_over:
            raise UsageError(f"request {serving.request.number} is not one that was handed over and not yet released")
        handed_over = serving.observed.hand_over()
        assert handed_over is not None  # noqa: S101 - what was handed over has its first token
        prefilled = Prefilled(
            request=serving.request,
            handed_over=handed_over,
            first_token_at=serving.first_token_at,
            cached_tokens=serving.cached_tokens or 0,
            generated=serving.generated,
            fate=serving.fate,
        )
        serving.ended = True
        self._scheduler.remove(serving)
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
        """Let the process die: every request ends as `error`, later ones too, and no step ends any more."""
        self._interrupt()
        self._failed = True
        self._stretch = None
        self._stepping = False
        scheduler = self._scheduler
        for serving in (*scheduler.running, *scheduler.waiting, *scheduler.handed_over, *self._hanging, *self._waiting):
            if not serving.ended:
                self._end(serving, "error")

    # --- effects ------------------------------------------------------------------------------------------------------

    def apply_effects(self, effects: EngineEffects) -> None:
        """Apply these effects from now on; a step in progress ends as it was planned.

        Requests beyond a batch that shrank stay in it until they end. A frozen engine exposes the last values of its
        queue and its cache, and rejects nothing.
        """
        self._interrupt()
        self._effects = effects
        self._follow_effects()
        if not effects.hang_share:
            # Nobody waits for them any more.
            for serving in tuple(self._hanging):
                self._end(serving, "client_abort")
        if effects.churn_share > 0 and not self._churning:
            self._churning = True
            self._clock.schedule(_CHURN_SECONDS, self._churn)
        if effects.leak_per_hour > 0 and not self._leaking:
            self._leaking = True
            self._clock.schedule(_LEAK_SECONDS, self._leak)
        self._go_on()
        self._show_state()

    def _follow_effects(self) -> None:
        effects, speculation = self._effects, self.parameters.speculation
        self._gpu.is_lost = effects.gpu_lost
        self._gpu.count = effects.gpu_factor
        age_seconds = self._clock.now - self._born_at
        self._reach = speculation.reach(effects.acceptance_factors, age_seconds=age_seconds) if speculation else []
        self._scheduler.largest_batch = max(int(self.parameters.max_batch_size * effects.batch_factor), 1)
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
        # A waiting request that finds less cached begins with a smaller lease, for which there may be room.
        self._interrupt()
        idle = self.cache.idle_blocks()
        self.cache.drop(self._churn_random.sample(idle, round(len(idle) * share)))
        self._publish_changes()
        self._clock.schedule(_CHURN_SECONDS, self._churn)

    def _leak(self) -> None:
        share = self._effects.leak_per_hour
        if share <= 0 or self._failed:
            self._leaking = False
            return
        self._interrupt()
        self._leaked += self.parameters.cache_blocks * share * _LEAK_SECONDS / 3600
        blocks = int(self._leaked)
        self._leaked -= blocks
        self.cache.leak(blocks)
        self._publish_changes()
        self._show_state()
        self._clock.schedule(_LEAK_SECONDS, self._leak)

    # --- arrival ------------------------------------------------------------------------------------------------------

    def _next_seed(self) -> str:
        self._arrived += 1
        return f"{self._arrived}-{self._seed}"

    def _arrive(self, serving: Serving) -> Serving:
        self._interrupt()
        serving.arrived_at = self._clock.now
        return serving

    def _accept(self, serving: Serving, *, is_full: bool) -> None:
        """Queue the request, or end it at once."""
        if self._failed:
            self._end(serving, "error")
        elif not self._scheduler.can_ever_serve(serving.request) or self._is_refused(serving):
            self._end(serving, "client_error")
        elif is_full:
            self._end(serving, "rejected")
        elif self._effects.hang_share and self._hang_random.random() < self._effects.hang_share:
            self._hanging.append(serving)
        elif self._effects.tenant_wait_seconds and serving.request.segment == SMALL_TENANT:
            self._waiting.append(serving)
            self._clock.schedule(self._effects.tenant_wait_seconds, lambda: self._enqueue_late(serving))
        else:
            self._scheduler.enqueue(serving)
            self._go_on()
        self._show_state()

    def _is_refused(self, serving: Serving) -> bool:
        # One whose prompt another engine has computed was accepted there.
        return serving.generated == 0 and self._strikes(self._effects.client_error_share)

    def _draw_fate(self, serving: Serving) -> Fate:
        effects, tokens = self._effects, serving.request.output_tokens
        limited = serving.request.limited
        if effects.answer_factor < 1:
            shorter = max(round(tokens * effects.answer_factor), 1)
            tokens, limited = shorter, limited and shorter == tokens
        slow = self._strikes(effects.slow_share)
        if serving.random.random() < self._error_share:
            return Fate(serving.random.randrange(max(tokens, 1)), "error", slow=slow)
        for share, outcome, lost, truncated in (
            (effects.lost_share, "client_abort", True, False),
            (effects.cut_share, "client_abort", False, False),
            (effects.truncated_share, "ok", False, True),
        ):
            if self._strikes(share):
                return Fate(self._fate_random.randint(1, max(tokens, 1)), outcome, lost, slow, truncated)
        return Fate(tokens, slow=slow, truncated=limited)

    def _strikes(self, share: float) -> bool:
        """Whether a fault of a share of the requests hits the next one; nothing is drawn for a share of 0."""
        return share > 0 and self._fate_random.random() < share

    def _enqueue_late(self, serving: Serving) -> None:
        if serving not in self._waiting:
            return  # its client hung up, or the process died
        self._interrupt()
        self._waiting.remove(serving)
        self._scheduler.enqueue(serving)
        self._go_on()
        self._show_state()

    # --- steps --------------------------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Record the steps that have ended by now."""
        if self._stretch is not None:
            written = self._stretch.write(
                self._clock,
                self.instruments,
                self._gpu,
                len(self._reach),
                together=self.parameters.reports_together,
            )
            self._steps += written.steps
            self._scheduler.tokens.decoded += written.tokens

    def _interrupt(self) -> None:
        """Make the step in progress the last one that is planned."""
        self._catch_up()
        cut = self._stretch.cut() if self._stretch is not None else None
        if cut is not None:
            self._follow(cut)

    def _follow(self, stretch: StepStretch) -> None:
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
        batch = self._scheduler.plan(self._clock.now)
        if batch.preemptions:
            self.instruments.count_preemptions(batch.preemptions)
        if batch.prefills or batch.decodes:
            self._stepping = True
            # After a preemption nothing was admitted, but the next step may admit.
            stretch = self._plan_step(batch.prefills, batch.decodes, alone=batch.preemptions > 0)
            self._gpu.work(stretch.seconds[0])
            self._follow(stretch)

    def _plan_step(self, prefills: list[tuple[Serving, int]], decodes: list[Serving], *, alone: bool) -> StepStretch:
        """The step to take now, and those after it that will be like it, unless it is to stay `alone`."""
        base = self._decode_base(decodes) if decodes else 0.0
        per_context_token = self.parameters.cost.per_context_token * self._effects.decode_factor * self._pace
        # A client that reads every token needs each step at its time, and a slow request waits after each.
        alone = alone or not self._leaps or bool(prefills) or any(serving.fate.slow for serving in decodes)
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
        return StepStretch(prefills, decodes, ends=[self._clock.now + seconds], seconds=[seconds])

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
        return seconds * self._effects.prefill_factor * self._pace * self._cold_factor()

    def _cold_factor(self) -> float:
        """How many times as long prompts take as in a process that has run for long."""
        slowdown = self.parameters.cold_slowdown
        if not slowdown:
            return 1.0
        return 1 + slowdown * math.exp((self._born_at - self._clock.now) / self.parameters.cold_decay_seconds)

    def _decode_base(self, decodes: list[Serving]) -> float:
        """What decoding takes in a step, but for the context."""
        cost, speculation = self.parameters.cost, self.parameters.speculation
        drafted = self.parameters.draft_length
        seconds = cost.weights + cost.decode_base_seconds(decoding=len(decodes), draft_tokens=len(decodes) * drafted)
        if speculation:
            seconds += speculation.draft_seconds * drafted
        return seconds * self._effects.decode_factor * self._pace

    def _end_stretch(self, stretch: StepStretch) -> None:
        if stretch is not self._stretch:
            return  # it was cut
        self._catch_up()
        self._stretch = None  # what comes within the callbacks interrupts nothing
        self._steps += 1
        for serving, tokens in stretch.prefills:
            if not serving.ended:
                self._end_prefill_chunk(serving, tokens)
        self._end_decodes([serving for serving in stretch.decodes if not serving.ended], stretch.seconds[-1])
        if self._failed:
            return
        self._begin_step()
        self._publish_changes()
        self._show_state()

    def _end_prefill_chunk(self, serving: Serving, tokens: int) -> None:
        serving.computed += tokens
        self._scheduler.tokens.prefilled += tokens
        self._scheduler.commit(serving)
        if serving.generated == 0 and serving.tokens_to_prefill == 0:
            if serving.fate.slow:
                self._hold(serving, (SLOW_FACTOR - 1) * (self._clock.now - serving.arrived_at))
            else:
                self._emit(serving, 1)

    def _hold(self, serving: Serving, seconds: float) -> None:
        """Leave a running request out of the batch for so long; its first token comes at the end of that."""
        until = serving.held_until = self._clock.now + seconds

        def go_on() -> None:
            # One that was preempted meanwhile is computed again, and held again.
            if serving.held_until != until or serving.ended:
                return
            if self._effects.frozen:
                self._clock.schedule(_FROZEN_SECONDS, go_on)
                return
            self._interrupt()
            serving.held_until = None
            if serving.generated == 0:
                self._emit(serving, 1)
            self._go_on()
            self._show_state()

        self._clock.schedule_at(until, go_on)

    def _end_decodes(self, decodes: Sequence[Serving], seconds: float) -> None:
        accepted = [self._count_accepted(serving) for serving in decodes]
        for serving, count in zip(decodes, accepted, strict=True):
            # The callback of one token may have aborted another request.
            if not serving.ended:
                self._emit(serving, 1 + count)
            if serving.fate.slow and serving.lease is not None:
                self._hold(serving, (SLOW_FACTOR - 1) * seconds)
        if self._reach and decodes:
            by_position = count_by_position(bytes(accepted), len(self._reach))
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
                self._scheduler.tokens.decoded += tokens
            serving.generated += tokens
            if serving.request.on_tokens is not None:
                serving.request.on_tokens(tokens)
            serving.computed = serving.request.input_tokens + serving.generated - 1
            self._scheduler.commit(serving)
        if serving.ended:
            return  # hung up on its first token
        if serving.generated >= last:
            self._end(serving, serving.fate.outcome)
        elif first and serving.handed_over is not None:
            self._scheduler.hand_over(serving)
            serving.handed_over(serving)

    # --- the end, and what is published -------------------------------------------------------------------------------

    def _end(self, serving: Serving, outcome: str) -> None:
        serving.ended = True
        self._scheduler.remove(serving)
        for apart in (self._hanging, self._waiting):
            if serving in apart:
                apart.remove(serving)
        if not serving.fate.lost:
            serving.observed.finish(outcome, serving.generated, truncated=serving.fate.truncated)
            for watch in self._watchers:
                watch(serving, outcome)
        if serving.request.on_end is not None:
            serving.request.on_end(serving.generated, serving.fate.truncated)
        serving.finished(outcome)

    def _publish_changes(self) -> None:
        changes = self.cache.take_changes()
        if self._effects.removals_lost:
            changes = changes._replace(removed=())
        if changes.stored or changes.removed:
            self._publish(changes)
            for watch in self._change_watchers:
                watch(changes)

    def _show_state(self) -> None:
        if self._effects.frozen or self._failed:
            return
        self.instruments.set_queued_requests(self.queued)
        self.instruments.set_kv_cache_usage(self.cache.usage)
