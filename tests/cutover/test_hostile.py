"""Hostile evidence: whatever is wrong with the past of a healthy cutover, it is never called HEALTHY."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from servescope.contract.samples import Series, make_labels
from servescope.cutover.comparison.freezing import freeze
from servescope.cutover.evidence.evidence import Decision, Evidence
from servescope.cutover.judgement import Judgement
from servescope.cutover.verdict.judge import judge
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from tests.support.cutover_evidence import Side, Story, evidence_of, frozen_of, plan_of

STORY = Story(past_hours=25, hours=3, v1=Side(replicas=6), v2=Side(replicas=2))
EVIDENCE = evidence_of(STORY)
FROZEN = frozen_of(STORY)
START = (Decision("start", STORY.started_ms, stage=0),)

Change = Callable[[TargetIncrements], TargetIncrements | None]


def judged(evidence: Evidence) -> Judgement:
    """The judgement at the end of the story."""
    return judge(FROZEN, evidence, START, STORY.end_ms)


def changed(change: Change, *arms: str) -> Evidence:
    """The evidence with the targets of these arms changed; those that a change makes nothing of are gone."""
    targets = (change(target) if target.identity.inference_stack in arms else target for target in EVIDENCE.targets)
    return replace(EVIDENCE, targets=tuple(target for target in targets if target is not None))


def gone(target: TargetIncrements) -> TargetIncrements | None:
    """No target at all."""
    del target
    return None


def gains(change: Callable[[TargetIncrements, np.ndarray], np.ndarray]) -> Change:
    """A change of the gains since the cutover began."""

    def apply(target: TargetIncrements) -> TargetIncrements:
        since = target.blocks >= STORY.started_ms
        values = np.array(target.gains)
        values[:, since] = change(target, values[:, since])
        return replace(target, gains=values)

    return apply


def rows(target: TargetIncrements, prefix: str) -> list[int]:
    """The series whose names begin so."""
    return [row for row, each in enumerate(target.series) if each.name.startswith(prefix)]


def renamed(prefix: str, name: str) -> Change:
    """A metric under another name from the middle of the stage on."""

    def apply(target: TargetIncrements) -> TargetIncrements:
        found = rows(target, prefix)
        late = target.blocks >= STORY.end_ms - 6 * BLOCK_MS
        values = np.array(target.gains)
        moved = np.where(late, values[found], np.nan)
        values[np.array(found)[:, None], late] = np.nan
        others = tuple(
            Series(name + target.series[row].name.removeprefix(prefix), target.series[row].labels) for row in found
        )
        return replace(target, series=(*target.series, *others), gains=np.concatenate([values, moved]))

    return apply


def spoiled(prefix: str, value: float) -> Change:
    """A metric's gains that are all one impossible value."""

    def spoil(target: TargetIncrements, values: np.ndarray) -> np.ndarray:
        values[rows(target, prefix)] = value
        return values

    return gains(spoil)


def torn(target: TargetIncrements, values: np.ndarray) -> np.ndarray:
    """Histograms whose lowest buckets have more than all."""
    found = rows(target, "time_to_first_token_seconds_bucket")[:3]
    values[found] = values[found] + 1e6
    return values


def relabelled(target: TargetIncrements) -> TargetIncrements:
    """Buckets whose edges are words."""
    series = tuple(
        Series(each.name, make_labels({"le": "fast"})) if each.name.endswith("seconds_bucket") else each
        for each in target.series
    )
    return replace(target, series=series)


def doubled(target: TargetIncrements) -> TargetIncrements:
    """Every series twice."""
    return replace(target, series=target.series * 2, gains=np.concatenate([target.gains, target.gains]))


def tallied(**counts: int) -> Change:
    """Scrapes as they were not."""

    def apply(target: TargetIncrements) -> TargetIncrements:
        since = target.blocks >= STORY.started_ms
        values = {name: np.where(since, value, getattr(target.tallies, name)) for name, value in counts.items()}
        return replace(target, tallies=replace(target.tallies, **values))

    return apply


def until(hours: float) -> Change:
    """Nothing after so many hours of the stage."""

    def apply(target: TargetIncrements) -> TargetIncrements:
        return target.at(target.blocks < STORY.started_ms + hours * 3_600_000)

    return apply


def moved(milliseconds: int) -> Change:
    """Blocks at other times."""
    return lambda target: replace(target, blocks=target.blocks + milliseconds)


def frozen_at(hours: float) -> Change:
    """Counters that do not move any more, though scrapes succeed."""

    def stop(target: TargetIncrements, values: np.ndarray) -> np.ndarray:
        late = target.blocks[target.blocks >= STORY.started_ms] >= STORY.started_ms + hours * 3_600_000
        values[:, late] = 0.0
        return values

    return gains(stop)


def mislabelled(target: TargetIncrements) -> TargetIncrements:
    """A target of some other deployment."""
    return replace(target, identity=replace(target.identity, deployment_id="another"))


def test_the_evidence_itself_is_healthy() -> None:
    """So that what follows shows what was done to it."""
    assert judged(EVIDENCE).verdict == "HEALTHY"


HOSTILE: dict[str, tuple[Change, tuple[str, ...]]] = {
    "v2 absent": (gone, ("v2",)),
    "v1 absent": (gone, ("v1",)),
    "both absent": (gone, ("v1", "v2")),
    "v2 of another deployment": (mislabelled, ("v2",)),
    "v1 of another deployment": (mislabelled, ("v1",)),
    "v2 all zero": (gains(lambda _, values: values * 0.0), ("v2",)),
    "both all zero": (gains(lambda _, values: values * 0.0), ("v1", "v2")),
    "v2 not a number": (gains(lambda _, values: values * np.nan), ("v2",)),
    "v1 not a number": (gains(lambda _, values: values * np.nan), ("v1",)),
    "v2 infinite": (gains(lambda _, values: values + np.inf), ("v2",)),
    "v2 counts backwards": (gains(lambda _, values: -values), ("v2",)),
    "v2 frozen for an hour": (frozen_at(2.0), ("v2",)),
    "v1 frozen for an hour": (frozen_at(2.0), ("v1",)),
    "both frozen for an hour": (frozen_at(1.9), ("v1", "v2")),
    "v2 stale": (until(2.5), ("v2",)),
    "v1 stale": (until(2.5), ("v1",)),
    "both stale": (until(2.5), ("v1", "v2")),
    "histograms torn": (gains(torn), ("v2",)),
    "edges are words": (relabelled, ("v2",)),
    "series twice": (doubled, ("v2",)),
    "a metric absent": (spoiled("time_to_first_token_seconds", np.nan), ("v2",)),
    "a metric renamed": (renamed("time_to_first_token_seconds", "ttft_seconds"), ("v2",)),
    "a sum that is zero": (spoiled("time_to_first_token_seconds_sum", 0.0), ("v2",)),
    "a sum that is infinite": (spoiled("time_to_first_token_seconds_sum", np.inf), ("v2",)),
    "a count that is zero": (spoiled("time_to_first_token_seconds_count", 0.0), ("v2",)),
    "outcomes not a number": (spoiled("requests_total", np.nan), ("v2",)),
    "a third of the scrapes fail": (tallied(scrapes=13, failed=7), ("v2",)),
    "a third of v1's scrapes fail": (tallied(scrapes=13, failed=7), ("v1",)),
    "a third of the scrapes are not there": (tallied(scrapes=13), ("v1", "v2")),
    "every block a restart": (tallied(resets=1), ("v2",)),
    "v2's clock is a day ahead": (moved(288 * BLOCK_MS), ("v2",)),
    "v2's clock is a day behind": (moved(-288 * BLOCK_MS), ("v2",)),
    "blocks between blocks": (moved(1_000), ("v2",)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_hostile_is_healthy(name: str) -> None:
    """Nor harmful by its absence: it is NO DATA, or not decided."""
    change, arms = HOSTILE[name]
    judgement = judged(changed(change, *arms))

    assert judgement.verdict in {"NO DATA", "INCONCLUSIVE"}
    assert judgement.reason


def test_a_target_that_is_there_twice_is_named() -> None:
    """Its requests would count twice."""
    judgement = judged(replace(EVIDENCE, targets=(*EVIDENCE.targets, EVIDENCE.targets[-1])))

    assert judgement.verdict == "NO DATA"
    assert any("is there twice" in note for note in judgement.notes)


def test_a_past_that_could_not_be_read_is_no_data() -> None:
    """The problem is among the notes."""
    judgement = judged(replace(EVIDENCE, problems=("the query timed out",)))

    assert judgement.verdict == "NO DATA"
    assert "the query timed out" in judgement.notes


def test_all_of_the_requests_to_v2_leave_no_control() -> None:
    """The verdict is not HEALTHY, however good v2 looks, and says why."""
    story = replace(STORY, share=1.0)
    evidence = evidence_of(story)
    judgement = judge(freeze(plan_of(1.0), evidence, story.started_ms), evidence, START, story.end_ms)

    assert judgement.verdict == "INCONCLUSIVE"
    assert {each.cause for each in judgement.metrics if each.required} == {"no control"}
