"""What holds of every judgement, whatever the evidence: over generated cases, of which `make proofs` has more."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from numpy.typing import NDArray

from servescope.contract.judged import JUDGED
from servescope.contract.samples import Series, format_edge, make_labels
from servescope.cutover.evidence.evidence import Decision, Evidence
from servescope.cutover.judgement import Judgement
from servescope.cutover.plan.plan import Arm, FrozenPlan, MetricPlan
from servescope.cutover.verdict.judge import fold_evidence, judge, judge_folded
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from tests.support.cutover_evidence import Side, Story, evidence_of, frozen_of, metric_of

Damage = Callable[[Evidence, np.random.Generator], Evidence]


def lose_replicas(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """Some replicas, of either arm."""
    kept = random.random(len(evidence.targets)) > random.uniform(0.1, 0.9)
    return replace(evidence, targets=tuple(each for each, keep in zip(evidence.targets, kept, strict=True) if keep))


def lose_blocks(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """Some blocks of every replica, each by chance."""
    part = random.uniform(0.02, 0.9)
    return _each(evidence, lambda target: target.at(random.random(target.blocks.size) > part))


def lose_a_span(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """All blocks of a span, of one arm or both."""
    start = random.integers(0, 60) * BLOCK_MS
    end = evidence.observed_until_ms - start
    begin = end - random.integers(1, 60) * BLOCK_MS
    arms = [("v1",), ("v2",), ("v1", "v2")][random.integers(0, 3)]

    def cut(target: TargetIncrements) -> TargetIncrements:
        if target.identity.inference_stack not in arms:
            return target
        return target.at((target.blocks < begin) | (target.blocks >= end))

    return _each(evidence, cut)


def lose_a_metric(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """The series of one metric, of some replicas."""
    names = sorted({each.name.split("_bucket")[0] for target in evidence.targets for each in target.series})
    if not names:
        return evidence
    name = names[random.integers(0, len(names))]
    part = random.uniform(0.0, 1.0)

    def drop(target: TargetIncrements) -> TargetIncrements:
        if random.random() < part:
            return target
        kept = [row for row, each in enumerate(target.series) if not each.name.startswith(name)]
        return replace(target, series=tuple(target.series[row] for row in kept), gains=target.gains[kept])

    return _each(evidence, drop)


def spoil_values(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """Gains here and there that no counter can have."""
    part, bad = random.uniform(0.001, 0.3), [np.nan, np.inf, -1.0][random.integers(0, 3)]

    def spoil(target: TargetIncrements) -> TargetIncrements:
        return replace(target, gains=np.where(random.random(target.gains.shape) < part, bad, target.gains))

    return _each(evidence, spoil)


def lose_scrapes(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """Scrapes of every block, with what was counted in them."""
    part = random.uniform(0.05, 0.9)

    def thin(target: TargetIncrements) -> TargetIncrements:
        lost = random.binomial(target.tallies.scrapes, part)
        share = np.divide(lost, target.tallies.scrapes, out=np.zeros(lost.size), where=target.tallies.scrapes > 0)
        tallies = replace(target.tallies, scrapes=target.tallies.scrapes - lost, failed=target.tallies.failed + lost)
        return replace(target, gains=_floor(target.gains, 1.0 - share), tallies=tallies)

    return _each(evidence, thin)


def _floor(gains: NDArray[np.float64], part: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        return np.asarray(np.floor(gains * part))


def restart(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """Processes that begin anew."""

    def again(target: TargetIncrements) -> TargetIncrements:
        fell = random.random(target.blocks.size) < random.uniform(0.0, 0.2)
        return replace(target, tallies=replace(target.tallies, resets=fell.astype(np.int64)))

    return _each(evidence, again)


def negate(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """Counters of some blocks that were answered with the wrong sign."""
    return _alter(evidence, random, lambda gains: -gains)


def thin(evidence: Evidence, random: np.random.Generator, whole: float = 0.3) -> Evidence:
    """Counters of some blocks of which a part was lost on the way."""
    left = random.uniform(0.0, 0.6)
    return _alter(evidence, random, lambda gains: _floor(gains, np.asarray(left)), whole=whole)


def duplicate(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """One counter that was added up twice, or more often; of all of them it looks like more requests."""
    times = float(random.integers(2, 6))
    return _alter(evidence, random, lambda gains: times * gains, whole=0.0)


def scale_sums(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """The sums of a histogram in another unit than its buckets."""
    factor = float(random.choice([0.001, 0.05, 0.2, 5.0, 20.0, 1000.0]))
    return _alter(evidence, random, lambda gains: factor * gains, ending="_sum")


def swap(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """The sums of two histograms exchanged, on some replicas."""
    part = random.uniform(0.2, 1.0)

    def exchange(target: TargetIncrements) -> TargetIncrements:
        sums = [row for row, each in enumerate(target.series) if each.name.endswith("_sum")]
        if len(sums) < 2 or random.random() > part:
            return target
        one, other = random.choice(sums, size=2, replace=False)
        gains = np.array(target.gains)
        gains[[one, other]] = gains[[other, one]]
        return replace(target, gains=gains)

    return _each(evidence, exchange)


def delay(evidence: Evidence, random: np.random.Generator) -> Evidence:
    """One counter that is some blocks late, on some replicas."""
    part, late = random.uniform(0.2, 1.0), int(random.integers(1, 4))

    def shift(target: TargetIncrements) -> TargetIncrements:
        name = _family(target, random)
        if not name or random.random() > part:
            return target
        rows = [row for row, each in enumerate(target.series) if each.name.startswith(name)]
        gains = np.array(target.gains)
        gains[rows] = np.roll(gains[rows], late, axis=1)
        return replace(target, gains=gains)

    return _each(evidence, shift)


def _alter(
    evidence: Evidence,
    random: np.random.Generator,
    change: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    ending: str = "",
    whole: float = 0.3,
) -> Evidence:
    """The gains of one family of series, or as often as `whole` of all, changed in some blocks of one arm or both."""
    arms = [("v1",), ("v2",), ("v1", "v2")][random.integers(0, 3)]
    name = _family(evidence.targets[0], random) if evidence.targets and random.random() >= whole else ""
    part = random.uniform(0.02, 1.0)

    def alter(target: TargetIncrements) -> TargetIncrements:
        if target.identity.inference_stack not in arms:
            return target
        rows = [
            row
            for row, each in enumerate(target.series)
            if each.name.startswith(name) and each.name.endswith(ending)
        ]  # fmt: skip
        cells = np.ix_(np.array(rows, dtype=np.intp), np.flatnonzero(random.random(target.blocks.size) < part))
        gains = np.array(target.gains)
        gains[cells] = change(gains[cells])
        return replace(target, gains=gains)

    return _each(evidence, alter)


def _family(target: TargetIncrements, random: np.random.Generator) -> str:
    """The name of a metric that a target has; "" of one that has none."""
    names = sorted({_PART.sub("", each.name) for each in target.series})
    return str(random.choice(names)) if names else ""


_PART = re.compile("_(bucket|sum|count)$")

DAMAGES: tuple[Damage, ...] = (
    lose_replicas, lose_blocks, lose_a_span, lose_a_metric, spoil_values, lose_scrapes, restart, negate, thin,
    duplicate, scale_sums, swap, delay,
)  # fmt: skip


def _each(evidence: Evidence, change: Callable[[TargetIncrements], TargetIncrements]) -> Evidence:
    return replace(evidence, targets=tuple(change(target) for target in evidence.targets))


V1, V2 = Side(replicas=6), Side(replicas=2)
STORIES = {
    "equal": Story(past_hours=25, hours=3, v1=V1, v2=V2),
    "slow": Story(past_hours=25, hours=3, v1=V1, v2=replace(V2, slower=1.4), seed=2),
    "failing": Story(past_hours=25, hours=3, v1=V1, v2=replace(V2, errors=0.012), seed=3),
    "slow to begin": Story(past_hours=25, hours=3, v1=V1, v2=replace(V2, first_token=1.35), seed=4),
    "quiet": Story(past_hours=25, hours=3, v1=V1, v2=V2, requests_per_minute=90.0, seed=5),
    "other prompts": Story(past_hours=25, hours=3, v1=V1, v2=replace(V2, prompts=1.5), seed=6),
    "one replica": Story(past_hours=25, hours=3, v1=V1, v2=Side(replicas=1), seed=7),
    "young": Story(past_hours=2, hours=5, v1=Side(replicas=3), v2=Side(replicas=1, slower=1.3), seed=8),
}  # fmt: skip
HARMED = ("slow", "failing", "slow to begin")
UNPROVEN = ("quiet", "one replica", "other prompts", "young")
LOSSES = (lose_blocks, lose_a_metric, spoil_values, negate, partial(thin, whole=0.0), duplicate, scale_sums)


@cache
def observed(name: str) -> tuple[Story, Evidence, FrozenPlan]:
    """A story, its evidence and the plan frozen at its start."""
    story = STORIES[name]
    evidence = evidence_of(story)
    return story, evidence, frozen_of(story)


def judged(name: str, evidence: Evidence, frozen: FrozenPlan | None = None, at_ms: int | None = None) -> Judgement:
    """The judgement of a story from other evidence, with another plan, or at another time than its end."""
    story, _, own = observed(name)
    return judge(frozen or own, evidence, (start(name),), at_ms or story.end_ms)


def start(name: str) -> Decision:
    """The first entry of the journal of a story."""
    return Decision("start", STORIES[name].started_ms, stage=0)


def drawn(case: int) -> tuple[np.random.Generator, str, Evidence]:
    """What else is drawn of a case, its story, and what is known of that: damaged every other time."""
    random = np.random.default_rng(case)
    name = list(STORIES)[case % len(STORIES)]
    evidence = observed(name)[1]
    if random.random() < 0.5:
        evidence = DAMAGES[random.integers(0, len(DAMAGES))](evidence, random)
    return random, name, evidence


def check_deletion(case: int) -> None:
    """Damage what is known of a cutover that harms, and find that it is still not healthy."""
    random = np.random.default_rng(case)
    name = HARMED[case % len(HARMED)]
    _, evidence, _ = observed(name)
    for damage in random.choice(len(DAMAGES), size=random.integers(1, 4), replace=False):
        evidence = DAMAGES[damage](evidence, random)
    judgement = judged(name, evidence)
    # A failure's own series that is not there means that nothing failed: that is the contract.
    lost = any(
        not any(each.name == "requests_total" for each in target.series) for target in evidence.targets
    )  # fmt: skip
    assert judgement.verdict != "HEALTHY" or (lost and name == "failing"), f"case {case}: {judgement.reason}"


def check_creation(case: int) -> None:
    """Damage what is known of a cutover that is not proven yet: that does not prove it."""
    random = np.random.default_rng(case)
    name = UNPROVEN[case % len(UNPROVEN)]
    evidence = observed(name)[1]
    for damage in random.choice(len(DAMAGES), size=random.integers(1, 4), replace=False):
        evidence = DAMAGES[damage](evidence, random)

    assert judged(name, evidence).verdict != "HEALTHY", f"case {case}"


def check_loss(case: int) -> None:
    """Damage what is known of equal stacks: where they are healthy all the same, nearly all of it was counted."""
    random = np.random.default_rng(case)
    _, evidence, _ = observed("equal")
    whole = _counts(judged("equal", evidence))
    evidence = LOSSES[case % len(LOSSES)](evidence, random)
    judgement = judged("equal", evidence)
    counted = _counts(judgement)

    if judgement.verdict == "HEALTHY":
        assert all(counted[each] >= 0.9 * whole[each] for each in whole), f"case {case}"


def _counts(judgement: Judgement) -> dict[tuple[str, str], float]:
    """What both arms have of each required metric."""
    return {
        (metric.name, name): arm.count
        for metric in judgement.metrics
        for name, arm in (("v1", metric.v1), ("v2", metric.v2))
        if metric.required and arm is not None
    }


def check_stream(case: int) -> None:
    """Judge up to some block, alone, from evidence that ends there, and by what was folded before."""
    random, name, evidence = drawn(case)
    story, _, frozen = observed(name)
    at_ms = story.started_ms + int(random.integers(1, story.hours * 12 + 1)) * BLOCK_MS
    whole = judged(name, evidence)
    early = judged(name, evidence, at_ms=at_ms)
    streamed = replace(
        evidence,
        targets=tuple(target.at(target.blocks + BLOCK_MS <= at_ms) for target in evidence.targets),
        observed_until_ms=at_ms,
    )

    assert early.changes == tuple(change for change in whole.changes if change.at_ms <= at_ms), f"case {case}"
    assert judged(name, streamed, at_ms=at_ms).changes == early.changes, f"case {case}"
    before = fold_evidence(frozen, evidence, (start(name),), at_ms)
    again = fold_evidence(frozen, _since(evidence, at_ms), (start(name),), story.end_ms, before)
    assert judge_folded(frozen, again, evidence, (start(name),), story.end_ms) == whole, f"case {case}"


def _since(evidence: Evidence, at_ms: int) -> Evidence:
    return replace(evidence, targets=tuple(target.at(target.blocks >= at_ms) for target in evidence.targets))


def check_swap(case: int) -> None:
    """Exchange the arms: every ratio is its inverse."""
    _, name, evidence = drawn(case)
    frozen = observed(name)[2]
    plan = frozen.plan
    exchanged = replace(
        plan, v1=Arm("v1", plan.v2.selectors), v2=Arm("v2", plan.v1.selectors),
        stages=tuple(replace(stage, share=1.0 - stage.share) for stage in plan.stages),
    )  # fmt: skip
    swapped = replace(frozen, plan=exchanged, layers={})
    for one, other in zip(
        judged(name, evidence, replace(frozen, layers={})).metrics, judged(name, evidence, swapped).metrics, strict=True
    ):
        if one.ratio and other.ratio and JUDGED[one.name].kind == "events":
            assert one.ratio * other.ratio == pytest.approx(1.0, rel=1e-9), f"case {case}: {one.name}"
        elif one.verdict == "HEALTHY" and one.ratio and other.ratio and other.cause != "warming":
            # Only v2 warms up: a restart in either arm leaves out other blocks.
            assert one.ratio * other.ratio == pytest.approx(1.0, rel=0.02), f"case {case}: {one.name}"


def check_units(case: int) -> None:
    """Measure the latencies in another unit: no ratio, interval or verdict changes."""
    random = np.random.default_rng(case)
    name = list(STORIES)[case % len(STORIES)]
    story, evidence, frozen = observed(name)
    factor = float(2.0 ** random.integers(-10, 11))
    targets = tuple(_scaled(target, factor) for target in evidence.targets)
    scaled = replace(evidence, targets=targets)
    edges = {
        metric: tuple(replace(each, edge=each.edge * factor) for each in found)
        for metric, found in frozen.edges.items()
    }
    tails = {metric: edge * factor for metric, edge in frozen.tails.items()}
    in_units = replace(frozen, edges=edges, tails=tails)
    before, after = judged(name, evidence), judge(in_units, scaled, (start(name),), story.end_ms)
    for one, other in zip(before.metrics, after.metrics, strict=True):
        assert (one.verdict, one.cause) == (other.verdict, other.cause), f"case {case}: {one.name}"
        for value, expected in zip((one.ratio, one.low, one.high), (other.ratio, other.low, other.high), strict=True):
            assert value == (expected if expected is None else pytest.approx(expected, rel=1e-9)), f"case {case}"


def _scaled(target: TargetIncrements, factor: float) -> TargetIncrements:
    series, gains = [], np.array(target.gains)
    for row, each in enumerate(target.series):
        timed = each.name.split("_seconds")[0] != each.name and each.name != "decode_seconds_total"
        if timed and each.name.endswith("_bucket"):
            edge = float(dict(each.labels)["le"]) * factor
            each = Series(each.name, make_labels({"le": format_edge(edge)}))
        elif timed and each.name.endswith("_sum"):
            gains[row] *= factor
        series.append(each)
    return replace(target, series=tuple(series), gains=gains)


def check_optional(case: int) -> None:
    """Add optional metrics, or take some away: a verdict does not become DEGRADED, nor any other."""
    random, name, evidence = drawn(case)
    frozen = observed(name)[2]
    optional = [each for each in frozen.plan.metrics if not each.required]
    kept = tuple(each for each in optional if random.random() < 0.5)
    required = tuple(each for each in frozen.plan.metrics if each.required)
    fewer = replace(frozen, plan=replace(frozen.plan, metrics=(*required, *kept)))
    one, other = judged(name, evidence), judged(name, evidence, fewer)

    assert (one.verdict, one.reason, one.changes) == (other.verdict, other.reason, other.changes), f"case {case}"


def check_refresh(case: int) -> None:
    """Look again: nothing has changed."""
    random = np.random.default_rng(case)
    name = list(STORIES)[case % len(STORIES)]
    _, evidence, _ = observed(name)
    evidence = DAMAGES[random.integers(0, len(DAMAGES))](evidence, random)

    assert judged(name, evidence).to_json() == judged(name, evidence).to_json(), f"case {case}"


CHECKS = (
    check_deletion,
    check_creation,
    check_loss,
    check_stream,
    check_swap,
    check_units,
    check_optional,
    check_refresh,
)
FEW = 4
PROOFS = {"check_deletion": 4_000, "check_creation": 2_000, "check_loss": 2_000,
          "check_stream": 1_200, "check_swap": 1_000, "check_units": 600,
          "check_optional": 1_000, "check_refresh": 400}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_a_property_holds(check) -> None:  # type: ignore[no-untyped-def]
    """Of a few cases of each kind."""
    for case in range(FEW):
        check(case)


@pytest.mark.proof
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_a_property_holds_of_thousands(check) -> None:  # type: ignore[no-untyped-def]
    """More than ten thousand cases together."""
    for case in range(FEW, PROOFS[check.__name__]):
        check(case)


def test_there_are_ten_thousand_cases() -> None:
    """As the specification asks for."""
    assert sum(PROOFS.values()) >= 10_000


@pytest.mark.slow
def test_a_metric_that_is_not_required_is_no_metric_plan_less() -> None:
    """An optional metric that is harmed warns, and gates nothing."""
    _, evidence, frozen = observed("slow to begin")
    metrics = tuple(_optional(each) for each in frozen.plan.metrics)
    judgement = judged("slow to begin", evidence, replace(frozen, plan=replace(frozen.plan, metrics=metrics)))
    found = metric_of(judgement, "time_to_first_token_seconds")

    assert (judgement.verdict, found.verdict) == ("HEALTHY", "DEGRADED")


def _optional(metric: MetricPlan) -> MetricPlan:
    return replace(metric, required=metric.required and metric.name != "time_to_first_token_seconds", guard=False)
