"""A client's request in a deployment: its choices as the engine's requests, and their progress."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import count

from servescope.emulator.block_contents import BlockContents
from servescope.emulator.deployment.deployment import EmulatedDeployment
from servescope.emulator.openai import errors
from servescope.emulator.openai.errors import ApiError
from servescope.emulator.openai.requests import Embedding, Generation
from servescope.emulator.server.server import RunningEmulator
from servescope.emulator.tokens import Answer, chain_blocks, compose_answer
from servescope.emulator.workload.requests import Cancel, WorkloadRequest

# How long an answer is that ends by itself, in tokens: log-normal, as that of the generated chat.
_MEAN_TOKENS = 190.0
_SPREAD = 0.5
# Far above those that generated traffic counts up from.
_FIRST_NUMBER = 10**12
# An emulation that failed sends nothing more, so those who wait check for it.
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to one prompt: `answer` is None where only the prompt matters, as for an embedding."""

    prompt: int
    ids: tuple[int, ...]
    block_ids: tuple[int, ...]
    answer: Answer | None
    output_tokens: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ChoiceProgress:
    """Progress of a choice, by its number: so many more `tokens`, or its end with an `outcome`."""

    choice: int
    tokens: int = 0
    outcome: str | None = None


def plan_choices(
    generation: Generation, deployment: EmulatedDeployment, *, seed: int, contents: BlockContents | None = None
) -> list[Choice]:
    """The choices of a request, prompt by prompt; all they are made of is the request and the seed.

    `contents` records the tokens of their blocks.
    """
    parameters = deployment.plan.engine
    # vLLM, whose parameter it is, serves the lowest number first.
    priority = -generation.priority
    choices: list[Choice] = []
    for prompt, ids in enumerate(generation.prompts):
        room = parameters.max_seq_len - len(ids)
        most = generation.most_tokens
        digest = blake2b(repr(ids).encode(), digest_size=16).hexdigest()
        for number in range(generation.choices):
            if room < (most or 1):
                # The engine refuses it, so that it is counted where all that is too long is counted.
                choices.append(Choice(prompt, ids, (), None, most or 1, priority))
                continue
            key = f"{seed if generation.seed is None else generation.seed}-{digest}-{number}"
            limit = room if most is None else most
            fewest = generation.fewest_tokens
            natural = None if generation.ignores_end else max(_draw_length(key), fewest)
            answer = compose_answer(key, natural=natural, limit=limit, fewest=fewest, stop=generation.stop)
            blocks = _chain((*ids, *answer.tokens), parameters.block_tokens, contents)
            choices.append(Choice(prompt, ids, blocks, answer, len(answer.tokens), priority))
    return choices


def plan_inputs(
    embedding: Embedding, deployment: EmulatedDeployment, *, contents: BlockContents | None = None
) -> list[Choice]:
    """The inputs of a request for embeddings: an engine reads each as a prompt, and generates one token of it."""
    block_tokens = deployment.plan.engine.block_tokens
    return [
        Choice(number, ids, _chain(ids, block_tokens, contents), None, 1) for number, ids in enumerate(embedding.inputs)
    ]


def _chain(ids: tuple[int, ...], block_tokens: int, contents: BlockContents | None) -> tuple[int, ...]:
    blocks = chain_blocks(ids, block_tokens)
    if contents is not None:
        contents.remember(blocks, ids, block_tokens)
    return blocks


def _draw_length(key: str) -> int:
    return max(
        1, round(random.Random(f"length-{key}").lognormvariate(math.log(_MEAN_TOKENS) - _SPREAD**2 / 2, _SPREAD))
    )


class ChoicesInFlight:
    """The choices of one request while they are served by a deployment; leave it, and those that have not ended do.

    Of `choices`, one whose answer the engine ended early has that answer once it has ended.
    `source` names the parameter of the prompts. Without `follow` only the ends are reported. For one
    handler of the server.
    """

    _numbers: Iterator[int] = count(_FIRST_NUMBER)

    def __init__(
        self,
        emulator: RunningEmulator,
        deployment: EmulatedDeployment,
        choices: Sequence[Choice],
        *,
        source: str,
        follow: bool = False,
    ) -> None:
        self.deployment = deployment
        # All prompts are checked before any is served: what fits is not begun, and left, beside what is refused.
        longest = deployment.plan.engine.max_seq_len
        too_long = [choice for choice in choices if len(choice.ids) + choice.output_tokens > longest]
        self.choices = too_long or list(choices)
        self.cached_tokens = [0] * len(self.choices)
        self._emulator = emulator
        self._source = source
        self._follow = follow
        self._loop = asyncio.get_running_loop()
        self._progress: asyncio.Queue[ChoiceProgress] = asyncio.Queue()
        self._cancels: list[Cancel] = []
        self._open = len(self.choices)
        self._following = emulator.runner.following()

    async def __aenter__(self) -> ChoicesInFlight:
        """Send all choices."""
        self._following.__enter__()
        try:
            await self._emulator.call(self._send)
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Hang up."""
        self._leave()

    async def follow(self) -> ChoiceProgress:
        """What happens next to a choice; call it until all have ended. Raises ApiError when one ended badly."""
        while True:
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    progress = await self._progress.get()
            except TimeoutError:
                if self._emulator.runner.wait(0.0):
                    raise errors.failed() from None
                continue
            if progress.outcome is not None:
                self._open -= 1
                self._check(progress.outcome, self.choices[progress.choice])
            return progress

    @property
    def ended(self) -> bool:
        """Whether all choices have ended."""
        return self._open == 0

    def _leave(self) -> None:
        if self._open and not self._emulator.runner.wait(0.0):
            # After what is still on its way, and whether it was sent or not.
            self._emulator.runner.call(self._hang_up)
        self._following.__exit__(None, None, None)

    # --- in the thread of the stack -----------------------------------------------------------------------------------

    def _send(self) -> None:
        for number, choice in enumerate(self.choices):
            request = WorkloadRequest(
                next(self._numbers),
                len(choice.ids),
                choice.output_tokens,
                choice.block_ids,
                priority=choice.priority,
                limited=choice.answer is not None and choice.answer.finish == "length",
                on_first_token=self._on_cached(number),
                on_tokens=self._on_tokens(number) if self._follow else None,
                on_end=self._on_generated(number),
            )
            self._cancels.append(self.deployment.send(request, self._on_end(number)))

    def _hang_up(self) -> None:
        for cancel in self._cancels:
            cancel()

    def _on_cached(self, number: int) -> Callable[[int], None]:
        def note(tokens: int) -> None:
            self.cached_tokens[number] = tokens

        return note

    def _on_generated(self, number: int) -> Callable[[int, bool], None]:
        def shorten(tokens: int, truncated: bool) -> None:
            choice = self.choices[number]
            if choice.answer is not None and 0 < tokens <= choice.output_tokens:
                ended = choice.answer.end_after(tokens, truncated=truncated)
                self.choices[number] = replace(choice, answer=ended, output_tokens=tokens)

        return shorten

    def _on_tokens(self, number: int) -> Callable[[int], None]:
        return lambda tokens: self._report(ChoiceProgress(number, tokens=tokens))

    def _on_end(self, number: int) -> Callable[[str], None]:
        return lambda outcome: self._report(ChoiceProgress(number, outcome=outcome))

    def _report(self, progress: ChoiceProgress) -> None:
        self._loop.call_soon_threadsafe(self._progress.put_nowait, progress)

    def _check(self, outcome: str, choice: Choice) -> None:
        if outcome == "ok":
            return
        if outcome == "rejected":
            raise errors.refused("The engine is currently overloaded, please try again later.")
        if outcome == "client_error":
            raise self._too_long(choice)
        raise errors.failed()

    def _too_long(self, choice: Choice) -> ApiError:
        parameters = self.deployment.plan.engine
        prompt, answer = len(choice.ids), choice.output_tokens
        if prompt + answer > parameters.max_seq_len:
            return errors.too_long(self._source, parameters.max_seq_len, prompt, answer)
        message = (
            f"The engine cannot hold {prompt + answer} tokens at once. Please reduce the length of the {self._source}."
        )
        return ApiError(400, message, param=self._source, code="context_length_exceeded")
