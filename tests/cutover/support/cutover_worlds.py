"""Worlds of a cutover that change while it runs: steps, recoveries, queues, a v2 that idles."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from servescope.contract.samples import Series
from servescope.cutover.comparison.freezing import freeze
from servescope.cutover.evidence.evidence import Decision, Evidence
from servescope.cutover.judgement import Judgement
from servescope.cutover.plan.plan import FrozenPlan
from servescope.cutover.verdict.judge import fold_evidence, judge_folded
from servescope.increments.blocks import TargetIncrements
from tests.support.cutover_evidence import INTERVAL_MS, Side, Story, plan_of
from tests.support.cutover_store import Step, make_targets

PAST_HOURS = 26


@dataclass(frozen=True)
class Phase:
    """Some hours of v2: how it does, v2's share, and whether its replicas queue requests."""

    side: Side
    hours: int
    share: float = 0.25
    queues: bool = False


@dataclass(frozen=True)
class World:
    """A cutover of one stage: what was observed of it, its plan, and when it began and ended."""

    evidence: Evidence
    frozen: FrozenPlan
    story: Story

    def judge(self, at_ms: int | None = None, *decisions: Decision) -> Judgement:
        """The judgement at a time of it, by default at its end."""
        made = (Decision("start", self.story.started_ms, stage=0), *decisions)
        until_ms = self.story.end_ms if at_ms is None else at_ms
        folded = fold_evidence(self.frozen, self.evidence, made, until_ms)
        return judge_folded(self.frozen, folded, self.evidence, made, until_ms)


def make_world(*phases: Phase, v1: Side | None = None, seed: int = 1, requests_per_minute: float = 600.0) -> World:
    """v1 alone for a day, then the phases one after the other, without a decision."""
    story = Story(
        past_hours=PAST_HOURS, hours=sum(each.hours for each in phases), v1=v1 or Side(replicas=6), seed=seed,
        requests_per_minute=requests_per_minute,
    )  # fmt: skip
    steps = tuple(Step(each.share, each.side, each.hours) for each in phases)
    targets = [
        _queueing(target, phases, story) if target.identity.inference_stack == "v2" else target
        for target in make_targets(story, steps)
    ]
    evidence = Evidence(tuple(targets), story.end_ms, INTERVAL_MS, {each.target_id: story.end_ms for each in targets})
    return World(evidence, freeze(plan_of(phases[0].share), evidence, story.started_ms), story)


def _queueing(target: TargetIncrements, phases: tuple[Phase, ...], story: Story) -> TargetIncrements:
    above, levels = np.array(target.above), np.array(target.levels)
    queued, flying = (target.gauges.index(Series(name, ())) for name in ("queued_requests", "concurrent_requests"))
    begins_ms = story.started_ms
    for phase in phases:
        ends_ms = begins_ms + phase.hours * 3_600_000
        here = (target.blocks >= begins_ms) & (target.blocks < ends_ms)
        above[queued, here] = 0.6 if phase.queues else 0.0
        levels[flying, here] *= 3.0 if phase.queues else 1.0
        begins_ms = ends_ms
    return replace(target, above=above, levels=levels)
