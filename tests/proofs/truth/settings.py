"""What is compared: prompts, and routers and workers of which both sides have the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

Weight = Literal["credit", "scale"]
Traffic = Literal["prefix-heavy", "little-prefix"]

BLOCK_TOKENS = 16
WORKERS = 4
CONCURRENCY = 8
MAX_BATCH_SIZE = 16
MAX_NUM_TOKENS = 2048
MAX_SEQ_LEN = 4096

TOLERANCE = 0.05
"""How far apart figures may be without an explanation: 5 points."""


@dataclass(frozen=True, slots=True)
class TraceSetting:
    """One comparison of hit rates on a public trace: 16 workers, blocks of 512 tokens.

    The overlap weight, the temperature, and the blocks in each worker's cache. Dynamo has two weights: the `credit` of
    a cached block, and the `scale` of what is left to prefill. `clamped` says that ours cuts the credit off where
    Dynamo does; `explained` why figures may be further apart than that.
    """

    weight: float
    temperature: float
    cache_blocks: int
    weight_is: Weight = "credit"
    clamped: bool = False
    explained: str = ""

    @property
    def weight_shown(self) -> str:
        """The weight as the table has it."""
        return f"{self.weight:g} as {self.weight_is}" + (", ours clamped" if self.clamped else "")


@dataclass(frozen=True, slots=True)
class Setting(TraceSetting):
    """One comparison of prompts."""

    traffic: Traffic = "prefix-heavy"


CREDIT = "Dynamo never lets a credit make a prompt cost less than nothing"
FEW = "a ratio of two small numbers"

SETTINGS = (
    Setting(1.0, 0.0, 512),
    Setting(1.0, 0.05, 512),
    Setting(1.0, 0.5, 512),
    Setting(3.5, 0.05, 512, "scale"),
    Setting(3.5, 0.05, 512, explained=CREDIT),
    Setting(3.5, 0.05, 512, clamped=True),
    Setting(0.0, 0.0, 512),
    Setting(1.0, 0.0, 256),
    Setting(1.0, 0.0, 4096),
    Setting(1.0, 0.0, 512, explained=FEW, traffic="little-prefix"),
    Setting(3.5, 0.05, 512, "scale", explained=FEW, traffic="little-prefix"),
)


TRACE_SETTINGS = (
    TraceSetting(1.0, 0.0, 20_000),
    TraceSetting(1.0, 0.0, 5000),
    TraceSetting(1.0, 0.0, 1000),
    TraceSetting(3.5, 0.05, 5000, "scale"),
    TraceSetting(3.5, 0.05, 5000, explained=CREDIT),
    TraceSetting(3.5, 0.05, 5000, clamped=True),
    TraceSetting(0.0, 0.0, 5000),
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: the ids of its prompt's tokens, and how many the model answers with."""

    tokens: tuple[int, ...]
    output_tokens: int


def make_prompts(traffic: Traffic, requests: int) -> list[Prompt]:
    """Prompts in the order they are sent, always the same ones."""
    generator = random.Random(f"truth-{traffic}-1")
    make = _make_conversations if traffic == "prefix-heavy" else _make_lookups
    return make(generator, requests)


def _make_conversations(generator: random.Random, requests: int) -> list[Prompt]:
    """Conversations of several turns, a few dozen at a time, over long system prompts of uneven popularity."""
    systems = [_draw(generator, generator.randint(200, 700)) for _ in range(16)]
    popularity = list(accumulate(1 / (rank + 1) for rank in range(len(systems))))
    open_ones: list[tuple[int, ...]] = []
    prompts = []
    for _ in range(requests):
        if len(open_ones) < 24 or generator.random() < 0.25:
            open_ones.append(generator.choices(systems, cum_weights=popularity)[0])
        chosen = generator.randrange(len(open_ones))
        # What the model answered is left out of the next turn: mock workers answer at random.
        prompt = (*open_ones[chosen], *_draw(generator, generator.randint(30, 150)))
        open_ones[chosen] = prompt
        if len(prompt) > 1200:
            del open_ones[chosen]
        prompts.append(Prompt(prompt, generator.randint(4, 24)))
    return prompts


def _make_lookups(generator: random.Random, requests: int) -> list[Prompt]:
    """Single questions: one in five begins with one of a few short templates, the others share nothing."""
    templates = [_draw(generator, generator.randint(60, 120)) for _ in range(6)]
    prompts = []
    for _ in range(requests):
        beginning: Sequence[int] = generator.choice(templates) if generator.random() < 0.2 else ()
        prompt = (*beginning, *_draw(generator, generator.randint(200, 600)))
        prompts.append(Prompt(prompt, generator.randint(4, 24)))
    return prompts


def _draw(generator: random.Random, count: int) -> tuple[int, ...]:
    # Above the special tokens and the single bytes, below the vocabulary.
    return tuple(generator.choices(range(300, 1000), k=count))
