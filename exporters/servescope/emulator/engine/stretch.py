"""Steps of an engine that follow one another by the same plan and are recorded together.

While sequences only decode, each step takes as long as the one before plus a little for the longer context. That holds
until a sequence ends, fills a block or needs another one. The steps before then are planned when the first of them
begins, and recorded when something is read, or when they are over.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from servescope.emulator.clock import VirtualClock
from servescope.emulator.engine.gpu import EmulatedGpu
from servescope.emulator.engine.serving import Serving
from servescope.instruments.engine import EngineInstruments

# A longer plan is mostly wasted, as something interrupts it.
_LONGEST = 1024


class Written(NamedTuple):
    """How many steps were written down, and how many tokens they sent."""

    steps: int
    tokens: int


class StepStretch:
    """One step or several: what each computes and when it ends.

    All but the last are quiet: nothing ends, no block is taken or filled. `ends` are times of the clock; of `written`
    steps the books know. `accepted` has the draft tokens accepted of each sequence in each quiet step, None without
    speculation.
    """

    __slots__ = ("accepted", "decodes", "ends", "prefills", "seconds", "written")

    def __init__(
        self,
        prefills: list[tuple[Serving, int]],
        decodes: list[Serving],
        *,
        ends: list[float],
        seconds: list[float],
        accepted: list[list[int]] | None = None,
    ) -> None:
        self.prefills = prefills
        self.decodes = decodes
        self.ends = ends
        self.seconds = seconds
        self.accepted = accepted
        self.written = 0

    def cut(self) -> StepStretch | None:
        """The step in progress alone, the books being up to date; None when that is the last one anyway."""
        if self.written == len(self.ends) - 1:
            return None
        now = slice(self.written, self.written + 1)
        return StepStretch(self.prefills, self.decodes, ends=self.ends[now], seconds=self.seconds[now])

    def write(
        self,
        clock: VirtualClock,
        instruments: EngineInstruments,
        gpu: EmulatedGpu,
        draft_length: int,
        *,
        together: bool = False,
    ) -> Written:
        """Bring the books of the quiet steps that have ended by now up to date.

        The instruments meet what they would have met step by step, at the times they would have met it; with `together`
        they meet all of it at the end of the last of these steps.
        """
        ended = bisect_right(self.ends, clock.now, self.written, len(self.ends) - 1)
        steps = range(self.written, ended)
        if not steps:
            return Written(0, 0)
        now = clock.now
        try:
            if together:
                tokens = self._write_together(steps, clock, instruments, gpu, draft_length)
            elif self.accepted is None:
                tokens = self._write_plain(steps, clock, gpu)
            else:
                tokens = self._write_speculative(steps, self.accepted, clock, instruments, gpu, draft_length)
        finally:
            clock.now = now
        self.written = ended
        return Written(len(steps), tokens)

    def _write_plain(self, steps: range, clock: VirtualClock, gpu: EmulatedGpu) -> int:
        record = [serving.observed.tokens for serving in self.decodes]
        for step in steps:
            clock.now = self.ends[step]
            for tokens in record:
                tokens(1)
            gpu.work(self.seconds[step + 1])
        for serving in self.decodes:
            serving.generated += len(steps)
            serving.computed += len(steps)
        return len(steps) * len(self.decodes)

    def _write_speculative(
        self,
        steps: range,
        accepted: list[list[int]],
        clock: VirtualClock,
        instruments: EngineInstruments,
        gpu: EmulatedGpu,
        draft_length: int,
    ) -> int:
        record = [serving.observed.tokens for serving in self.decodes]
        drafted = draft_length * len(self.decodes)
        for step in steps:
            clock.now = self.ends[step]
            counts = accepted[step]
            for tokens, count in zip(record, counts, strict=True):
                tokens(1 + count)
            instruments.record_speculation(drafted, count_by_position(bytes(counts), draft_length))
            gpu.work(self.seconds[step + 1])
        tokens_of_all = 0
        for position, serving in enumerate(self.decodes):
            tokens_sent = sum(accepted[step][position] for step in steps) + len(steps)
            serving.generated += tokens_sent
            serving.computed += tokens_sent
            serving.skip_draws(len(steps))
            tokens_of_all += tokens_sent
        return tokens_of_all

    def _write_together(
        self, steps: range, clock: VirtualClock, instruments: EngineInstruments, gpu: EmulatedGpu, draft_length: int
    ) -> int:
        first, last = steps[0], steps[-1]
        clock.now = self.ends[last]
        sent = [len(steps)] * len(self.decodes)
        if self.accepted is not None:
            accepted = self.accepted[first : last + 1]
            sent = [len(steps) + more for more in map(sum, zip(*accepted, strict=True))]
            drafted = draft_length * len(self.decodes) * len(steps)
            counts = bytes(chain.from_iterable(accepted))
            instruments.record_speculation(drafted, count_by_position(counts, draft_length))
        for serving, tokens in zip(self.decodes, sent, strict=True):
            serving.observed.tokens(tokens)
            serving.generated += tokens
            serving.computed += tokens
            if self.accepted is not None:
                serving.skip_draws(len(steps))
        gpu.work(self.seconds[last + 1], before=sum(self.seconds[first + 1 : last + 1]))
        return sum(sent)


def count_by_position(accepted: bytes, draft_length: int) -> tuple[int, ...]:
    """Of how many sequences the draft was accepted at each position, `accepted` being the tokens of each.

    They are bytes, as counting these takes no step of Python each.
    """
    left, counts = len(accepted), []
    for position in range(draft_length):
        left -= accepted.count(position)
        counts.append(left)
    return tuple(counts)


def plan_stretch(
    decodes: list[Serving],
    *,
    begins: float,
    base_seconds: float,
    per_context_token: float,
    block_tokens: int,
    tokens_per_decode: int,
    reach: Sequence[float],
) -> StepStretch:
    """As many steps as can be foreseen in which these sequences decode, and nothing else is done.

    `base_seconds` is what a step takes whatever the context; `reach` the chances of each draft position. The blocks
    for the first step are there.
    """
    context = sum(serving.computed for serving in decodes)
    quiet_tokens = [_count_quiet_tokens(serving, block_tokens, tokens_per_decode) for serving in decodes]
    # Every step sends a token or more.
    longest = min(*quiet_tokens, _LONGEST) if len(quiet_tokens) > 1 else min(quiet_tokens[0], _LONGEST)
    accepted = _foresee_accepted(decodes, quiet_tokens, longest, reach) if reach else None
    steps = longest if accepted is None else len(accepted) + 1
    ends, seconds, time = [], [], begins
    for step in range(steps):
        taken = base_seconds + per_context_token * context
        time += taken
        seconds.append(taken)
        ends.append(time)
        context += len(decodes)
        if accepted is not None and step < steps - 1:
            context += sum(accepted[step])
    return StepStretch([], decodes, ends=ends, seconds=seconds, accepted=accepted)


def _count_quiet_tokens(serving: Serving, block_tokens: int, tokens_per_decode: int) -> int:
    """How many more tokens a sequence sends until the step that sends the last of them is not quiet; 1 or more."""
    lease = serving.lease
    assert lease is not None  # noqa: S101 - what decodes holds a lease
    tokens = min(
        serving.last_token - serving.generated,
        # After it the next step could not begin without another block.
        lease.blocks * block_tokens - tokens_per_decode - serving.computed + 1,
    )
    if lease.shared < len(lease.block_ids):
        tokens = min(tokens, (lease.shared + 1) * block_tokens - serving.computed)
    return tokens


def _foresee_accepted(
    decodes: list[Serving], quiet_tokens: list[int], longest: int, reach: Sequence[float]
) -> list[list[int]]:
    """The draft tokens accepted of each sequence in the steps that are quiet, fewer than `longest` steps."""
    ascending, length = list(reversed(reach)), len(reach)
    draws = [serving.look_ahead(longest) for serving in decodes]
    left = quiet_tokens[:]
    foreseen: list[list[int]] = []
    for step in range(longest - 1):
        counts = [length - bisect_right(ascending, each[step]) for each in draws]
        left = [tokens - count - 1 for tokens, count in zip(left, counts, strict=True)]
        if min(left) <= 0:
            break
        foreseen.append(counts)
    return foreseen
