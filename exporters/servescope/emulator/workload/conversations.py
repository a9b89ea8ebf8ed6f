"""Generated traffic: conversations of a mix that arrive over time, each turn sent when the last was answered."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

from servescope.emulator.clock import VirtualClock
from servescope.emulator.workload.blocks import BLOCKS_PER_STREAM, name_document
from servescope.emulator.workload.mixes import SMALL_TENANT, SMALL_TENANT_SHARE, Mix
from servescope.emulator.workload.requests import Send, WorkloadRequest
from servescope.emulator.workload.split import Seat, Split


@dataclass(frozen=True, slots=True)
class _Population:
    """The applications and documents of a mix: how long each is, and how often it is used."""

    mix: Mix
    first_stream: int
    system_tokens: list[int]
    document_tokens: list[int]
    application_weights: list[float]
    document_weights: list[float]

    @classmethod
    def draw(cls, mix: Mix, chance: random.Random, *, first_stream: int) -> _Population:
        """The population of a mix, whose applications are the streams from `first_stream` on."""
        return cls(
            mix=mix,
            first_stream=first_stream,
            system_tokens=[chance.randint(*mix.system_tokens) for _ in range(mix.applications)],
            document_tokens=[chance.randint(*mix.document_tokens) for _ in range(mix.documents)],
            application_weights=_weigh_ranks(mix.applications, mix.popularity),
            document_weights=_weigh_ranks(mix.documents, mix.document_popularity),
        )


def _weigh_ranks(count: int, power: float) -> list[float]:
    """Cumulative weights of ranks whose use falls with the rank to a power."""
    return list(accumulate((rank + 1) ** -power for rank in range(count)))


@dataclass(slots=True)
class _Conversation:
    """One conversation, and the prompt so far: the ends of its streams in tokens, with their numbers.

    The first `shared_tokens` of it are the system prompt and documents; `block_ids` are those of its full blocks.
    """

    population: _Population
    application: int
    turns_left: int
    seat: Seat
    tenant: str | None = None
    shared_tokens: int = 0
    segments: list[tuple[int, int]] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return self.segments[-1][0]

    def extend(self, tokens: int) -> None:
        """Extend the last stream, so that the prompt is `tokens` long."""
        self.segments[-1] = (tokens, self.segments[-1][1])

    def cut(self, tokens: int, block_tokens: int) -> None:
        """Forget all that is after the first `tokens` tokens."""
        while len(self.segments) > 1 and self.segments[-2][0] >= tokens:
            self.segments.pop()
        self.extend(tokens)
        del self.block_ids[tokens // block_tokens :]

    def name_blocks(self, block_tokens: int) -> tuple[int, ...]:
        """Ids of all full blocks: each is named by the stream its last token belongs to, and its place."""
        for tokens, stream in self.segments:
            first = stream * BLOCKS_PER_STREAM
            self.block_ids.extend(range(first + len(self.block_ids), first + tokens // block_tokens))
        return tuple(self.block_ids)


class Conversations:
    """Conversations of a mix, each turn sent when the one before was answered and thought about.

    `split` says which deployment serves a conversation, `sends` hands its requests to it; `number` counts requests.
    Streams of text are numbered from `first_stream`. After a request that did not end well (where the answer is part of
    the next prompt), and when its context is full, a client starts afresh for the turns it has left. The same seed and
    the same answers make the same conversations.
    """

    def __init__(
        self,
        mix: Mix,
        *,
        clock: VirtualClock,
        seed: int,
        block_tokens: int,
        split: Split,
        sends: Mapping[str, Send],
        number: Callable[[], int],
        first_stream: int = 0,
    ) -> None:
        self._clock = clock
        self._block_tokens = block_tokens
        self._split = split
        self._sends = sends
        self._number = number
        self._random = random.Random(f"workload-{seed}")
        # Of its own, so that traffic is the same with tenants and without.
        self._tenant_random = random.Random(f"tenants-{seed}")
        self._streams = first_stream
        self._populations: dict[Mix, _Population] = {}
        self._bursting = False
        self._rate_factor = 0.0
        self._abort_share: float | None = None
        self._arrivals = 0  # goes up when the next arrival is cancelled
        self._mix = mix
        self._population = self._find_population(mix)
        # Of the deployments whose conversations are of another mix.
        self._populations_in: dict[str, _Population] = {}
        self._abort_shares: dict[str, float | None] = {}

    def start(self) -> None:
        """Start the bursts; conversations arrive once `follow` sets their mix."""
        self._clock.schedule(self._random.expovariate(1 / self._mix.calm_seconds), self._toggle_burst)

    def follow(
        self,
        mix: Mix,
        *,
        rate_factor: float = 1.0,
        abort_share: float | None = None,
        mixes: Mapping[str, Mix] | None = None,
        abort_shares: Mapping[str, float | None] | None = None,
    ) -> None:
        """Be of a mix from now on, arrive `rate_factor` times as often, and hang up by `abort_share` where it is given.

        `mixes` and `abort_shares` are those of single deployments that have their own. Conversations under way become
        new ones of the new mix when their next turn comes. A mix that comes back finds its applications and documents
        again. Factor 0 ends all that is under way.
        """
        self._mix = mix
        self._population = self._find_population(mix)
        self._populations_in = {name: self._find_population(own) for name, own in (mixes or {}).items()}
        self._rate_factor = rate_factor
        self._abort_share = abort_share
        self._abort_shares = dict(abort_shares or {})
        self._await_arrival()

    def _find_population(self, mix: Mix) -> _Population:
        population = self._populations.get(mix)
        if population is None:
            population = _Population.draw(mix, self._random, first_stream=self._streams)
            self._populations[mix] = population
            self._streams += mix.applications
        return population

    def _await_arrival(self) -> None:
        """Schedule the next arrival, in place of the one scheduled before."""
        self._arrivals += 1
        if self._rate_factor > 0:
            arrival = self._arrivals
            self._clock.schedule(self._draw_gap(), lambda: self._arrive(arrival))

    def _arrive(self, arrival: int) -> None:
        if arrival != self._arrivals:
            return
        # Thinning: candidates come at the highest rate, and are kept in proportion to the rate now.
        if self._mix.arrivals == "pareto" or self._random.random() * self._peak_rate() < self._rate():
            self._open_conversation()
        self._await_arrival()

    def _draw_gap(self) -> float:
        """Seconds to the next candidate; with a Pareto tail, to the next arrival at the rate as it is now."""
        if self._mix.arrivals == "poisson":
            return self._random.expovariate(self._peak_rate())
        shape = self._mix.pareto_shape
        return (shape - 1) * (self._random.paretovariate(shape) - 1) / self._rate()

    def _rate(self) -> float:
        mix = self._mix
        return self._calm_rate() * mix.day_factor(self._clock.now) * (mix.burst_factor if self._bursting else 1.0)

    def _peak_rate(self) -> float:
        return self._calm_rate() * (1 + self._mix.day_amplitude) * self._mix.burst_factor

    def _calm_rate(self) -> float:
        """Conversations per second outside bursts, so that requests_per_second is the mean over all times."""
        mix = self._mix
        bursting = mix.burst_seconds / (mix.burst_seconds + mix.calm_seconds)
        return self._rate_factor * mix.requests_per_second / mix.turns / (1 + (mix.burst_factor - 1) * bursting)

    def _toggle_burst(self) -> None:
        self._bursting = not self._bursting
        mean = self._mix.burst_seconds if self._bursting else self._mix.calm_seconds
        self._clock.schedule(self._random.expovariate(1 / mean), self._toggle_burst)

    def _open_conversation(self) -> None:
        seat, wait = self._split.seat(), 0.0
        openings = self._draw_openings(seat.deployment)
        if openings:
            self._open_seated(seat)
        for _ in range(openings - 1):
            wait += self._random.expovariate(1 / self._mix.think_seconds)
            self._clock.schedule(wait, partial(self._open_seated, copy(seat)))

    def _draw_openings(self, deployment: str) -> int:
        """How many conversations follow one another there in place of one.

        A deployment gets as many requests whether its own mix has longer or shorter conversations than the others'.
        """
        turns = self._population_in(deployment).mix.turns
        if turns == self._mix.turns:
            return 1
        wanted = self._mix.turns / turns
        return int(wanted) + (self._random.random() < wanted % 1)

    def _open_seated(self, seat: Seat) -> None:
        population = self._population_in(seat.deployment)
        conversation = _Conversation(
            population=population,
            application=self._pick(population.application_weights),
            turns_left=self._draw_turns(population.mix),
            seat=seat,
            tenant=self._draw_tenant(population.mix),
        )
        self._start_afresh(conversation)
        self._send_turn(conversation)

    def _draw_tenant(self, mix: Mix) -> str | None:
        if not mix.tenants:
            return None
        if mix.tenants == 1 or self._tenant_random.random() < SMALL_TENANT_SHARE:
            return SMALL_TENANT
        weights = _weigh_ranks(mix.tenants - 1, mix.popularity)
        rank = self._tenant_random.choices(range(len(weights)), cum_weights=weights)[0]
        return f"tenant-{rank + 1}"

    def _population_in(self, deployment: str) -> _Population:
        return self._populations_in.get(deployment, self._population)

    def _start_afresh(self, conversation: _Conversation) -> None:
        """Begin with the system prompt and documents again; what follows them is the conversation's own."""
        population = conversation.population
        tokens = population.system_tokens[conversation.application]
        stream = population.first_stream + conversation.application
        segments = [(tokens, stream)]
        for document in self._pick_documents(population):
            tokens += population.document_tokens[document]
            stream = name_document(stream, document)
            segments.append((tokens, stream))
        conversation.segments = segments
        conversation.shared_tokens = tokens
        conversation.block_ids = []
        self._branch(conversation)

    def _branch(self, conversation: _Conversation) -> None:
        self._streams += 1
        conversation.segments.append((conversation.tokens, self._streams))

    def _pick_documents(self, population: _Population) -> list[int]:
        picked: list[int] = []
        while len(picked) < population.mix.documents_per_prompt and population.document_weights:
            document = self._pick(population.document_weights)
            if document not in picked:
                picked.append(document)
        return picked

    def _pick(self, cumulative_weights: list[float]) -> int:
        return self._random.choices(range(len(cumulative_weights)), cum_weights=cumulative_weights)[0]

    def _draw_turns(self, mix: Mix) -> int:
        """Turns of a conversation, geometric with the mix's mean."""
        if mix.turns == 1:
            return 1
        return 1 + int(math.log(1.0 - self._random.random()) / math.log(1 - 1 / mix.turns))

    def _send_turn(self, conversation: _Conversation) -> None:
        if self._rate_factor == 0:
            return
        population = self._population_in(self._split.follow(conversation.seat))
        mix = population.mix
        if conversation.population is not population:
            conversation.population = population
            conversation.application = self._pick(population.application_weights)
            conversation.turns_left = self._draw_turns(mix)
            self._start_afresh(conversation)
        conversation.turns_left -= 1
        if self._random.random() < mix.oversized_share:
            self._send(conversation, mix.oversized_tokens, 1, ())
            return
        message = self._draw(mix.message_tokens, mix.message_spread)
        if conversation.tokens + message > mix.prompt_limit:
            self._start_afresh(conversation)
        output_tokens = self._draw(mix.output_tokens, mix.output_spread)
        output_tokens = min(max(output_tokens, mix.output_range[0]), mix.output_range[1])
        self._rewrite_end(conversation, mix)
        input_tokens = min(conversation.tokens + message, mix.prompt_limit)
        conversation.extend(input_tokens)
        self._send(conversation, input_tokens, output_tokens, self._answer(conversation, output_tokens))

    def _rewrite_end(self, conversation: _Conversation, mix: Mix) -> None:
        """Replace the last tokens by as many others, but nothing of what is shared."""
        tokens = conversation.tokens
        kept = max(tokens - mix.rewritten_tokens, conversation.shared_tokens)
        if kept < tokens:
            conversation.cut(kept, self._block_tokens)
            self._branch(conversation)
            conversation.extend(tokens)

    def _answer(self, conversation: _Conversation, output_tokens: int) -> tuple[int, ...]:
        """Let the answer follow the prompt, and forget it again unless it is kept; ids of the blocks of both."""
        input_tokens = conversation.tokens
        if conversation.population.mix.keeps_output:
            conversation.extend(input_tokens + output_tokens)
            return conversation.name_blocks(self._block_tokens)
        self._branch(conversation)
        conversation.extend(input_tokens + output_tokens)
        block_ids = conversation.name_blocks(self._block_tokens)
        conversation.cut(input_tokens, self._block_tokens)
        return block_ids

    def _send(
        self, conversation: _Conversation, input_tokens: int, output_tokens: int, block_ids: tuple[int, ...]
    ) -> None:
        patience = self._draw_patience(conversation)
        request = WorkloadRequest(
            self._number(), input_tokens, output_tokens, block_ids, patience, segment=conversation.tenant
        )
        self._sends[conversation.seat.deployment](request, lambda outcome: self._answered(conversation, outcome))

    def _answered(self, conversation: _Conversation, outcome: str) -> None:
        if outcome != "ok" and conversation.population.mix.keeps_output:
            self._start_afresh(conversation)
        if conversation.turns_left > 0:
            think = self._random.expovariate(1 / conversation.population.mix.think_seconds)
            self._clock.schedule(think, lambda: self._send_turn(conversation))

    def _draw_patience(self, conversation: _Conversation) -> float | None:
        mix = conversation.population.mix
        share = self._abort_shares.get(conversation.seat.deployment, self._abort_share)
        if self._random.random() >= (mix.abort_share if share is None else share):
            return None
        return self._random.expovariate(1 / mix.abort_seconds)

    def _draw(self, mean: float, spread: float) -> int:
        """A log-normal number of tokens, 1 or more."""
        return max(1, round(self._random.lognormvariate(math.log(mean) - spread * spread / 2, spread)))
