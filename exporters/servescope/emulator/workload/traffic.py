"""The stream of traffic over several deployments: what it is made of, and how it is split between them."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate

from servescope.emulator.clock import VirtualClock
from servescope.emulator.effects import TrafficEffects
from servescope.emulator.workload.blocks import STREAMS_BESIDE_TRACE
from servescope.emulator.workload.conversations import Conversations
from servescope.emulator.workload.mixes import MOST_RATE, Mix
from servescope.emulator.workload.plans import ReplayedTraffic, TrafficPlan
from servescope.emulator.workload.presets import find_preset
from servescope.emulator.workload.replays import Replay
from servescope.emulator.workload.requests import Send
from servescope.emulator.workload.traces import survey_trace
from servescope.errors import UsageError

# Of a trace so many beginnings of prompts are remembered; one that comes back later may go elsewhere.
_MOST_FAMILIES = 100_000


class Traffic:
    """The requests of all clients, split over deployments by share; nothing is sent before `start`.

    `sends` hands a request to a deployment, by its id; `split` is the share of new conversations of each, in
    the same order; together they need not be 1. `requests_sent` counts all requests. The same seed and the same answers
    give the same traffic.
    """

    def __init__(
        self,
        plan: TrafficPlan,
        *,
        clock: VirtualClock,
        seed: int,
        block_tokens: int,
        sends: Mapping[str, Send],
        split: Mapping[str, float],
    ) -> None:
        self.plan = plan
        self.requests_sent = 0
        self._sends = dict(sends)
        self._random = random.Random(f"split-{seed}")
        self._effects = TrafficEffects()
        self._started = False
        self._split = _divide(self._sends, split)
        self._families: dict[int, str] = {}  # the one that came back longest ago first
        self._replay: Replay | None = None
        first_stream = 0
        if isinstance(plan, ReplayedTraffic):
            survey = survey_trace(plan.trace)
            self._replay = Replay(
                plan,
                survey,
                clock=clock,
                seed=seed,
                block_tokens=block_tokens,
                choose=self._choose_for,
                number=self._count,
            )
            rate = survey.requests / (survey.seconds + survey.mean_gap_seconds) * plan.speed * plan.scale
            # Of a preset that replaces the trace; a trace may be denser than a mix can be.
            self._mix = Mix(requests_per_second=min(rate, MOST_RATE))
            first_stream = STREAMS_BESIDE_TRACE
        else:
            self._mix = plan.mix
        self._conversations = Conversations(
            self._mix,
            clock=clock,
            seed=seed,
            block_tokens=block_tokens,
            choose=self._choose,
            number=self._count,
            first_stream=first_stream,
        )

    @property
    def ended(self) -> bool:
        """Whether nothing more will be sent: a trace has an end, generated traffic has none."""
        return self._replay is not None and self._replay.ended

    @property
    def split(self) -> dict[str, float]:
        """The share of new conversations each deployment gets, by its id; together they are 1."""
        return dict(self._split)

    def start(self) -> None:
        """Start the arrivals."""
        self._started = True
        self._conversations.start()
        if self._replay is not None:
            self._replay.start()
        self._follow()

    def set_share(self, deployment_id: str, share: float) -> None:
        """Give a deployment this share of the new conversations, and the rest to the others.

        These keep their proportions, or get equal parts when they had nothing. Conversations stay where they began.
        """
        self._check_known(deployment_id)
        if not 0 <= share <= 1:
            raise UsageError(f"share of {deployment_id!r} is {share!r}, expected a share in [0, 1]")
        others = {name: kept for name, kept in self._split.items() if name != deployment_id}
        if not others and share != 1:
            raise UsageError(f"share of {deployment_id!r} is {share!r}, expected 1: there is no other deployment")
        total = sum(others.values())
        for name, kept in others.items():
            self._split[name] = (1 - share) * (kept / total if total > 0 else 1 / len(others))
        self._split[deployment_id] = float(share)

    def apply_effects(self, effects: TrafficEffects) -> None:
        """Follow these effects from now on; raises UsageError, changing nothing, when they cannot be.

        A preset replaces the mix but for its rate of requests, so that only what is asked shifts. In place of a trace
        it comes at the trace's mean rate, while time passes in the trace.
        """
        if not 0 <= effects.rate_factor < math.inf:
            raise UsageError(f"rate_factor is {effects.rate_factor!r}, expected 0 or more")
        if effects.abort_share is not None and not 0 <= effects.abort_share <= 1:
            raise UsageError(f"abort_share is {effects.abort_share!r}, expected a share in [0, 1]")
        if effects.preset is not None:
            find_preset(effects.preset)
        self._effects = effects
        if self._started:
            self._follow()

    def _follow(self) -> None:
        effects, mix = self._effects, self._mix
        if effects.preset is not None:
            mix = replace(find_preset(effects.preset), requests_per_second=mix.requests_per_second)
        generates = self._replay is None or effects.preset is not None
        self._conversations.follow(
            mix, rate_factor=effects.rate_factor if generates else 0.0, abort_share=effects.abort_share
        )
        if self._replay is not None:
            self._replay.follow(
                rate_factor=effects.rate_factor, abort_share=effects.abort_share or 0.0, sending=not generates
            )

    def _choose_for(self, family: int | None) -> Send:
        """The deployment of a recorded prompt: that of the last one of its family, as conversations stay, too."""
        if family is None:
            return self._choose()
        name = self._families.pop(family, None) or self._draw_name()
        self._families[family] = name
        if len(self._families) > _MOST_FAMILIES:
            del self._families[next(iter(self._families))]
        return self._sends[name]

    def _choose(self) -> Send:
        return self._sends[self._draw_name()]

    def _draw_name(self) -> str:
        names = list(self._split)
        return self._random.choices(names, cum_weights=list(accumulate(self._split.values())))[0]

    def _count(self) -> int:
        self.requests_sent += 1
        return self.requests_sent

    def _check_known(self, deployment_id: str) -> None:
        if deployment_id not in self._sends:
            known = ", ".join(sorted(self._sends))
            raise UsageError(f"unknown deployment {deployment_id!r}, known: {known}")


def _divide(sends: Mapping[str, Send], split: Mapping[str, float]) -> dict[str, float]:
    """The split as shares that add up to 1."""
    if sends.keys() != split.keys():
        raise UsageError(f"the traffic split is of {sorted(split)}, expected of {sorted(sends)}")
    for name, share in split.items():
        if not 0 <= share < math.inf:
            raise UsageError(f"share of {name!r} is {share!r}, expected 0 or more")
    total = sum(split.values())
    if not total > 0:
        raise UsageError("the shares of the traffic split are all 0, expected one above 0")
    return {name: split[name] / total for name in sends}
