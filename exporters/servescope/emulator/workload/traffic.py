"""The stream of traffic over several deployments: what it is made of, and how it is split between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from servescope.emulator.clock import VirtualClock
from servescope.emulator.effects import TrafficEffects
from servescope.emulator.workload.blocks import STREAMS_BESIDE_TRACE
from servescope.emulator.workload.conversations import Conversations
from servescope.emulator.workload.mixes import MOST_RATE, Mix
from servescope.emulator.workload.plans import ReplayedTraffic, TrafficPlan
from servescope.emulator.workload.presets import find_preset
from servescope.emulator.workload.replays import Replay
from servescope.emulator.workload.requests import Send
from servescope.emulator.workload.split import Seat, Split
from servescope.emulator.workload.traces import survey_trace
from servescope.errors import UsageError

# Of a trace so many beginnings of prompts are remembered; one that comes back later may go elsewhere.
_MOST_FAMILIES = 100_000


class Traffic:
    """The requests of all clients, split over deployments by share; nothing is sent before `start`.

    `sends` hands a request to a deployment, by its id; `split` is the share of conversations of each; together they
    need not be 1. `mixes` are of the deployments whose conversations are of a mix of their own, but for its arrivals.
    `requests_sent` counts all requests. The same seed and the same answers give the same traffic.
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
        mixes: Mapping[str, Mix] | None = None,
    ) -> None:
        self.plan = plan
        self.requests_sent = 0
        self.split = Split(sends, split, clock=clock, seed=seed)
        self._sends = dict(sends)
        self._mixes = dict(mixes or {})
        self._effects = TrafficEffects()
        self._effects_in: Mapping[str, TrafficEffects] = {}
        self._started = False
        self._families: dict[int, Seat] = {}  # the one that came back longest ago first
        self._replay: Replay | None = None
        first_stream = 0
        if isinstance(plan, ReplayedTraffic):
            if self._mixes:
                raise UsageError(f"deployment {next(iter(self._mixes))!r} has a mix of its own, expected none: a trace")
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
            split=self.split,
            sends=self._sends,
            number=self._count,
            first_stream=first_stream,
        )

    @property
    def ended(self) -> bool:
        """Whether nothing more will be sent: a trace has an end, generated traffic has none."""
        return self._replay is not None and self._replay.ended

    def start(self) -> None:
        """Start the arrivals."""
        self._started = True
        self._conversations.start()
        if self._replay is not None:
            self._replay.start()
        self._follow()

    def apply_effects(self, effects: TrafficEffects, by_deployment: Mapping[str, TrafficEffects] | None = None) -> None:
        """Follow these effects from now on; raises UsageError, changing nothing, when they cannot be.

        A preset replaces the mix but for its arrivals and its tenants, so that only what is asked shifts. In place of a
        trace it comes at the trace's mean rate, while time passes in the trace. `by_deployment` are what a deployment's
        own conversations are like, where that differs; the arrivals are those of all.
        """
        for each in (effects, *(by_deployment or {}).values()):
            _check(each)
        self._effects = effects
        self._effects_in = dict(by_deployment or {})
        if self._started:
            self._follow()

    def _follow(self) -> None:
        effects = self._effects
        generates = self._replay is None or effects.preset is not None
        self._conversations.follow(
            self._mix_of(effects, self._mix),
            rate_factor=effects.rate_factor if generates else 0.0,
            abort_share=effects.abort_share,
            mixes={name: self._mix_in(name) for name in {*self._mixes, *self._effects_in}},
            abort_shares={name: each.abort_share for name, each in self._effects_in.items()},
        )
        if self._replay is not None:
            self._replay.follow(
                rate_factor=effects.rate_factor, abort_share=effects.abort_share or 0.0, sending=not generates
            )

    def _mix_of(self, effects: TrafficEffects, mix: Mix) -> Mix:
        """The mix under effects: another where they name a preset, arriving as all of the traffic does."""
        if effects.preset is not None:
            mix = find_preset(effects.preset)
        return replace(mix, requests_per_second=self._mix.requests_per_second, tenants=self._mix.tenants)

    def _mix_in(self, deployment_id: str) -> Mix:
        effects = self._effects_in.get(deployment_id, self._effects)
        return self._mix_of(effects, self._mixes.get(deployment_id, self._mix))

    def _choose_for(self, family: int | None) -> Send:
        """The deployment of a recorded prompt: that of the last one of its family, as conversations stay, too."""
        if family is None:
            return self._sends[self.split.seat().deployment]
        seat = self._families.pop(family, None) or self.split.seat()
        self._families[family] = seat
        if len(self._families) > _MOST_FAMILIES:
            del self._families[next(iter(self._families))]
        return self._sends[self.split.follow(seat)]

    def _count(self) -> int:
        self.requests_sent += 1
        return self.requests_sent


def _check(effects: TrafficEffects) -> None:
    if not 0 <= effects.rate_factor < math.inf:
        raise UsageError(f"rate_factor is {effects.rate_factor!r}, expected 0 or more")
    if effects.abort_share is not None and not 0 <= effects.abort_share <= 1:
        raise UsageError(f"abort_share is {effects.abort_share!r}, expected a share in [0, 1]")
    if effects.preset is not None:
        find_preset(effects.preset)
