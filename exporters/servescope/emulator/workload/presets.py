"""Mixes with a name: what a few common kinds of traffic look like.

Each fits an engine of 8 192 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from servescope.emulator.workload.mixes import Mix
from servescope.errors import UsageError

PRESETS: Mapping[str, Mix] = MappingProxyType(
    {
        # People who talk to one of a few applications, each with a long system prompt.
        "chat": Mix(),
        # A program that calls tools: the context grows fast, the next turn comes as soon as the tool is done.
        "agents": Mix(
            applications=6,
            popularity=0.6,
            system_tokens=(1800, 2600),
            turns=9.0,
            message_tokens=420.0,
            message_spread=0.9,
            output_tokens=110.0,
            output_spread=0.6,
            output_range=(16, 500),
            prompt_limit=7500,
            think_seconds=1.8,
        ),
        # Questions over documents that many ask about; no question comes twice.
        "retrieval": Mix(
            applications=3,
            popularity=0.6,
            system_tokens=(300, 600),
            documents=160,
            documents_per_prompt=2,
            document_popularity=1.0,
            document_tokens=(900, 2200),
            turns=1.3,
            message_tokens=60.0,
            message_spread=0.6,
            output_tokens=230.0,
            output_range=(40, 600),
            prompt_limit=7000,
            think_seconds=20.0,
        ),
        # An editor that asks at each pause: the same file up to the cursor, a few tokens, often no longer wanted.
        "code-completion": Mix(
            applications=40,
            popularity=0.7,
            system_tokens=(1500, 4500),
            turns=14.0,
            message_tokens=45.0,
            message_spread=0.8,
            output_tokens=26.0,
            output_spread=0.6,
            output_range=(4, 96),
            keeps_output=False,
            rewritten_tokens=40,
            prompt_limit=6500,
            think_seconds=2.5,
            abort_share=0.3,
            abort_seconds=0.4,
        ),
        # Prompts that share nothing with any other: no cache helps.
        "unique": Mix(
            applications=1,
            system_tokens=(0, 0),
            turns=1.0,
            message_tokens=1900.0,
            prompt_limit=7000,
        ),
        # The chat, ten times as many for half a minute every few minutes.
        "chat-bursty": Mix(burst_factor=10.0, burst_seconds=30.0, calm_seconds=240.0, day_amplitude=0.0),
        # The chat over a day of 24 hours, nearly still at night.
        "chat-diurnal": Mix(day_seconds=86_400.0, day_amplitude=0.8, burst_factor=1.0),
        # The chat in clusters: many requests at once, then none for long.
        "chat-heavy-tailed": Mix(
            arrivals="pareto", pareto_shape=1.4, burst_factor=1.0, day_amplitude=0.0, message_spread=1.3
        ),
    }
)


def find_preset(name: str) -> Mix:
    """The mix of that name; raises UsageError, naming all there are."""
    if name not in PRESETS:
        raise UsageError(f"unknown preset {name!r}, known: {', '.join(sorted(PRESETS))}")
    return PRESETS[name]
