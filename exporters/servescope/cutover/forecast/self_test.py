"""How far the judge can be trusted on this deployment: its own history divided into two stacks that are equal.

A part of v1's replicas is called v2 and judged like one, with the real plan, over hours that are past. Whatever is
called DEGRADED there is a false alarm. Divisions share replicas and hours, so that they are less than independent, and
the interval of the rate is narrower than it should be where there are few of either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

import numpy as np

from servescope.cutover.comparison.freezing import freeze_from
from servescope.cutover.evidence.evidence import Decision, Evidence
from servescope.cutover.forecast.duration import forecast_stages
from servescope.cutover.plan.plan import Arm, CutoverPlan, FrozenPlan, Stage
from servescope.cutover.verdict.judge import judge
from servescope.increments.blocks import BLOCK_MS, TargetIncrements

_HOUR_MS: Final = 3_600_000
_LEAST_WATCHED_MS: Final = 2 * _HOUR_MS
_MOST_COMBINATIONS: Final = 100_000
_LEAST_PRESENT: Final = 0.9
_CONFIDENCE: Final = 0.95
_V1: Final = "self-test-v1"
_V2: Final = "self-test-v2"

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class SelfTestShare:
    """What the divisions of one share showed: how many of `splits` were called DEGRADED, and how many HEALTHY, at any
    time of the hours watched.

    `alarm_low` and `alarm_high` are Clopper and Pearson's limits of the rate of false alarms at 95 %. `detectable` is
    by metric the smallest harm that a day at this share is expected to show (`planning.MetricForecast`), None for none.
    """

    share: float
    replicas: int
    splits: int
    alarms: int
    alarm_low: float
    alarm_high: float
    healthy: int
    detectable: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The self-test of a deployment over `hours` of its past. Without shares `reason` says why it cannot be tested.

    `wanted` divisions were asked for, of which there may be fewer.
    """

    hours: float
    shares: tuple[SelfTestShare, ...]
    reason: str = ""
    wanted: int = 0

    @property
    def splits(self) -> int:
        """The divisions that were judged, over all shares."""
        return sum(each.splits for each in self.shares)

    @property
    def sentence(self) -> str:
        """The whole in a sentence."""
        if not self.shares:
            return f"the judge cannot be tested on this past: {self.reason}"
        splits, alarms = self.splits, sum(each.alarms for each in self.shares)
        low, high = clopper_pearson(alarms, splits)
        return (
            f"of {splits} divisions of v1 against itself, each watched for {self.hours:.3g} h, {alarms} were called "
            f"DEGRADED: {100 * alarms / splits:.1f} % ({100 * low:.1f}–{100 * high:.1f} %) false alarms"
        )


def run_self_test(
    plan: CutoverPlan, evidence: Evidence, *, splits: int = 200, progress: Progress | None = None
) -> SelfTest:
    """The self-test of a plan on v1's past: `splits` divisions in all, fewer where fewer differ.

    The first half of the past calibrates, but not less than a day, which noise needs, nor more than the plan's hours;
    what follows, a day at most, is watched. `progress` is called with the divisions judged and their number.
    """
    targets = tuple(target for target in evidence.targets if plan.v1.selects(target.identity) and target.blocks.size)
    if len(targets) < 2:
        return SelfTest(0.0, (), "v1 has fewer than two replicas")
    began_ms = min(int(target.blocks[0]) for target in targets)
    past_ms = evidence.observed_until_ms - began_ms
    calibrated_ms = min(past_ms // 2, round(plan.calibration_hours * _HOUR_MS)) // BLOCK_MS * BLOCK_MS
    calibrated_ms = max(calibrated_ms, 24 * _HOUR_MS)
    watched_ms = min(past_ms - calibrated_ms, 24 * _HOUR_MS) // BLOCK_MS * BLOCK_MS
    if watched_ms < _LEAST_WATCHED_MS:
        return SelfTest(0.0, (), "it needs 26 hours, of which the first day calibrates and the rest is watched")
    started_ms = evidence.observed_until_ms // BLOCK_MS * BLOCK_MS - watched_ms
    window = _Window(plan, evidence, _relabelled(targets, frozenset()), started_ms, started_ms + watched_ms)
    sizes = sorted({
        min(max(1, round(stage.share * len(targets))), len(targets) // 2)
        for stage in plan.stages if 0.0 < stage.share < 1.0
    })  # fmt: skip
    if not sizes:
        return SelfTest(0.0, (), "no stage of the plan keeps a part of the requests on v1")
    groups: dict[int, list[frozenset[str]]] = {}
    for left, size in zip(range(len(sizes), 0, -1), sizes, strict=True):
        # What few replicas cannot be divided into is left to the sizes that can, which have more divisions.
        had = sum(map(len, groups.values()))
        groups[size] = _groups(window, size, max(1, (splits - had) // left))
    total, done = sum(len(each) for each in groups.values()), 0
    shares = []
    for size, chosen in groups.items():
        share = size / len(targets)
        frozen = window.freeze(share)
        verdicts = []
        for group in chosen:
            verdicts.append(window.verdicts(frozen, group))
            done += 1
            if progress is not None:
                progress(done, total)
        if verdicts:
            shares.append(_result(window, frozen, share, size, verdicts))
    reason = "" if shares else "no replica was there for the hours that would be watched"
    return SelfTest(watched_ms / _HOUR_MS, tuple(shares), reason, splits)


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    plan: CutoverPlan
    evidence: Evidence
    targets: tuple[TargetIncrements, ...]
    started_ms: int
    ended_ms: int

    def freeze(self, share: float) -> FrozenPlan:
        """The plan with one stage of this share, frozen from the past in which all replicas are v1."""
        plan = replace(
            self.plan,
            v1=Arm("v1", ({"deployment_id": _V1},)),
            v2=Arm("v2", ({"deployment_id": _V2},)),
            stages=(Stage(share),),
        )
        return freeze_from(plan, self.seen(self.targets), self.started_ms)

    def verdicts(self, frozen: FrozenPlan, group: frozenset[str]) -> frozenset[str]:
        """The verdicts that were given at any time when these replicas are called v2."""
        evidence = self.seen(_relabelled(self.targets, group))
        start = Decision("start", self.started_ms, stage=0)
        judgement = judge(frozen, evidence, (start,), self.ended_ms)
        return frozenset({judgement.verdict, *(change.verdict for change in judgement.changes)})

    def seen(self, targets: tuple[TargetIncrements, ...]) -> Evidence:
        """The evidence as it was at the end of the hours watched."""
        return replace(
            self.evidence,
            targets=targets,
            observed_until_ms=self.ended_ms,
            last_scrape_ms={
                target.target_id: min(int(target.blocks[-1]) + BLOCK_MS, self.ended_ms) for target in targets
            },
            events=(),
        )


def _relabelled(targets: tuple[TargetIncrements, ...], group: frozenset[str]) -> tuple[TargetIncrements, ...]:
    """The replicas with those of the group in the deployment of v2, and the others in v1's."""
    return tuple(
        replace(
            target,
            identity=replace(target.identity, deployment_id=_V2 if target.target_id in group else _V1),
        )
        for target in targets
    )


def _groups(window: _Window, size: int, count: int) -> list[frozenset[str]]:
    """At most `count` different groups of replicas that were there for the hours watched, the same at every call."""
    blocks = (window.ended_ms - window.started_ms) // BLOCK_MS
    there = [
        target.target_id
        for target in window.targets
        if int((target.blocks >= window.started_ms).sum()) >= _LEAST_PRESENT * blocks
    ]
    if len(there) < size:
        return []
    random = np.random.default_rng(size * 7919 + len(there))
    if math.comb(len(there), size) <= min(_MOST_COMBINATIONS, 20 * count):
        found = [frozenset(each) for each in combinations(there, size)]
        order = random.permutation(len(found))[:count]
        return [found[index] for index in order]
    groups: dict[frozenset[str], None] = {}
    while len(groups) < count:
        groups.setdefault(frozenset(there[index] for index in random.choice(len(there), size, replace=False)))
    return list(groups)


def _result(
    window: _Window, frozen: FrozenPlan, share: float, size: int, verdicts: list[frozenset[str]]
) -> SelfTestShare:
    alarms = sum("DEGRADED" in each for each in verdicts)
    low, high = clopper_pearson(alarms, len(verdicts))
    forecast = forecast_stages(frozen, window.seen(window.targets))[0]
    return SelfTestShare(
        share=share,
        replicas=size,
        splits=len(verdicts),
        alarms=alarms,
        alarm_low=low,
        alarm_high=high,
        healthy=sum("HEALTHY" in each for each in verdicts),
        detectable={each.name: each.detectable for each in forecast.metrics},
    )


def clopper_pearson(events: int, trials: int) -> tuple[float, float]:
    """The exact limits of a probability of which `events` of `trials` were seen (Clopper and Pearson 1934)."""
    if not 0 <= events <= trials or trials < 1:
        raise ValueError(f"{events} of {trials} is no count of events")
    tail = (1.0 - _CONFIDENCE) / 2.0
    counts = np.arange(trials + 1)
    choices = np.array([math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1) for k in counts])

    def at_most(seen: int, rate: float) -> float:
        logs = choices + counts * math.log(rate) + (trials - counts) * math.log1p(-rate)
        return float(np.exp(logs[: seen + 1]).sum())

    low = 0.0 if events == 0 else _solve(lambda rate: 1.0 - at_most(events - 1, rate) >= tail)
    high = 1.0 if events == trials else _solve(lambda rate: at_most(events, rate) <= tail)
    return low, high


def _solve(reached: Callable[[float], bool]) -> float:
    """The smallest rate at which what only grows with it is reached."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high
