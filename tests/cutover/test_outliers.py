"""One replica that alone differs from the others: it is named, it is not its arm's, and it keeps v2 from HEALTHY."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from servescope.contract.identity import Identity, replica_of
from servescope.cutover.comparison.freezing import freeze
from servescope.cutover.comparison.outliers import ReplicaNoise, arm_outliers, find_outliers
from servescope.cutover.evidence.evidence import Decision, Evidence
from servescope.cutover.judgement import Judgement, MetricJudgement
from servescope.cutover.plan.plan import MetricPlan
from servescope.cutover.statistics.sequences import Floats
from servescope.cutover.verdict.judge import judge
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from tests.support.cutover_evidence import HOUR, Side, Story, evidence_of, frozen_of, metric_of, plan_of

FIRST_TOKEN = "time_to_first_token_seconds"
STORY = Story(past_hours=26, hours=6, v1=Side(replicas=9), v2=Side(replicas=3))
SLOW = 1.6
METRIC = MetricPlan(FIRST_TOKEN, "mean", "lower", margin=0.1, floor=0.02)
NOISE = ReplicaNoise(0.6, 0.008, 0.0002)


# --- What is said of it -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("only", [False, True], ids=["in all it does", "in the first token"])
def test_one_slow_replica_is_named_and_is_not_harm_of_v2(*, only: bool) -> None:
    """From the second hour on one of three is slower: never DEGRADED, and from then on not HEALTHY."""
    judgement = judged(episode({"v2-1": (2, 6)}, first_token_only=only))
    metric = first_token(judgement)

    assert "DEGRADED" not in verdicts(judgement)
    assert judgement.verdict == "INCONCLUSIVE"
    assert (metric.verdict, metric.cause, metric.eta_seconds) == ("INCONCLUSIVE", "one replica", None)
    assert "one replica: v2-1 is × 1." in metric.reason
    assert "slower than the others of v2" in metric.reason
    assert metric.flips == "v2-1 like the others of v2 again, or replaced"
    assert any("one replica: v2-1" in change.reason for change in judgement.changes)
    assert any(note.startswith("left out of v2") and "v2-1 for " in note for note in judgement.notes)


@pytest.mark.slow
def test_what_is_shown_is_of_the_others() -> None:
    """Estimate, interval and both figures are those of the replicas that are compared, and agree with each other."""
    metric = first_token(judged(episode({"v2-1": (0, 6)})))

    assert metric.ratio is not None
    assert metric.low is not None
    assert metric.high is not None
    assert metric.v1 is not None
    assert metric.v2 is not None
    assert metric.low < metric.ratio < metric.high < 1.1
    assert (metric.v2.value or 0.0) / (metric.v1.value or 1.0) == pytest.approx(metric.ratio, rel=0.03)


def test_two_slow_replicas_of_three_are_harm_of_v2() -> None:
    """What two of them show is v2's, and DEGRADED within the hour."""
    judgement = judged(episode({"v2-0": (2, 6), "v2-1": (2, 6)}))
    harmed = next(change for change in judgement.changes if change.verdict == "DEGRADED")

    assert judgement.verdict == "DEGRADED"
    assert harmed.at_ms <= STORY.started_ms + 3 * HOUR * BLOCK_MS


@pytest.mark.slow
def test_harm_of_all_that_is_worst_in_one_is_still_found() -> None:
    """All are 20 % slower, and one of them much more: the others' is proven, and that one is out of it."""
    judgement = judged(episode({"v2-1": (0, 6)}, replace(STORY, v2=Side(replicas=3, slower=1.2))))

    assert judgement.verdict == "DEGRADED"
    assert first_token(judgement).ratio == pytest.approx(1.2, rel=0.05)


@pytest.mark.slow
def test_it_is_healthy_again_when_it_is_over() -> None:
    """An hour of one replica ends, and half an hour later v2 is HEALTHY as it was before."""
    evidence = episode({"v2-1": (2, 3)})
    shown = verdicts(judged(evidence))
    later = judged(evidence, at_ms=STORY.started_ms + round(3.5 * HOUR) * BLOCK_MS)

    assert shown == ["INCONCLUSIVE", "HEALTHY", "INCONCLUSIVE", "HEALTHY"]
    assert later.verdict == "HEALTHY"


@pytest.mark.slow
def test_it_is_healthy_again_when_the_replica_is_gone() -> None:
    """It is slow to its end, and replaced by another: that one and the others are judged."""
    evidence = episode({"v2-1": (2, 4)})
    gone = STORY.started_ms + 4 * HOUR * BLOCK_MS
    targets = []
    for target in evidence.targets:
        if replica_of(target.target_id) == "v2-1":
            identity = replace(target.identity, replica="v2-9")
            later = target.at(target.blocks >= gone)
            targets += [
                target.at(target.blocks < gone), replace(later, target_id=identity.target_id, identity=identity),
            ]  # fmt: skip
        else:
            targets.append(target)
    before = judged(evidence, at_ms=gone)
    scraped = {target.target_id: evidence.observed_until_ms for target in targets}
    after = judged(replace(evidence, targets=tuple(targets), last_scrape_ms=scraped), at_ms=gone + 2 * HOUR * BLOCK_MS)

    assert before.verdict == "INCONCLUSIVE"
    assert after.verdict == "HEALTHY", after.reason


@pytest.mark.slow
def test_a_judgement_is_the_same_as_blocks_come() -> None:
    """The changes that are known at any time are the first of those that are known at the end."""
    evidence = episode({"v2-1": (2, 3), "v1-3": (3, 4), "v2-0": (4.5, 5)})
    whole = judged(evidence).changes

    for hour in (1.5, 2.25, 3.25, 4.75, 5.5):
        at_ms = STORY.started_ms + round(hour * HOUR) * BLOCK_MS
        assert judged(evidence, at_ms=at_ms).changes == tuple(each for each in whole if each.at_ms <= at_ms)


@pytest.mark.slow
def test_an_episode_of_v1_proves_no_health_of_a_worse_v2() -> None:
    """One of v1's three is twice as slow for two hours, and v2 15 % slower all the time: never HEALTHY nor better."""
    story = replace(STORY, share=0.5, v1=Side(replicas=3), v2=Side(replicas=3, slower=1.15))
    evidence = episode({"v1-0": (0, 2)}, story, slow=2.0)
    judgement = judged(evidence, story)
    looks = [judged(evidence, story, at_ms=story.started_ms + block * BLOCK_MS) for block in range(3, 30, 3)]

    assert "HEALTHY" not in verdicts(judgement)
    assert judgement.verdict == "DEGRADED"
    assert [first_token(each).cause for each in looks if first_token(each).cause in {"better", "not worse"}] == []


@pytest.mark.slow
def test_of_two_replicas_the_slower_one_is_left_out() -> None:
    """Harm of v2 is what both show; what the slower one adds is its own."""
    story = replace(STORY, v1=Side(replicas=6), v2=Side(replicas=2))
    one = judged(episode({"v2-1": (1, 6)}, story), story)
    both = judged(episode({"v2-0": (1, 6), "v2-1": (1, 6)}, story), story)

    assert "DEGRADED" not in verdicts(one)
    assert first_token(one).cause == "one replica"
    assert both.verdict == "DEGRADED"


@pytest.mark.slow
def test_one_replica_in_all_has_nothing_to_be_compared_with() -> None:
    """What slows it is v2's, and a note says that nothing else can be known."""
    story = replace(STORY, v1=Side(replicas=3), v2=Side(replicas=1))
    judgement = judged(episode({"v2-0": (1, 6)}, story), story)

    assert judgement.verdict == "DEGRADED"
    assert any(note.startswith("v2 has one replica:") for note in judgement.notes)
    assert not any(note.startswith("v2 has one replica:") for note in judged(evidence_of(STORY)).notes)


@pytest.mark.slow
def test_an_episode_in_the_past_is_no_noise() -> None:
    """Hours in which one of v1's replicas was slow leave the frozen noise nearly as it is without them."""
    plain = frozen_of(STORY).noise[FIRST_TOKEN]
    past = episode({"v1-0": (-20, -18), "v1-4": (-9, -8), "v1-5": (-4, -2.5)}, slow=2.5)
    noisy = freeze(plan_of(STORY.share), past, STORY.started_ms).noise[FIRST_TOKEN]
    spread = np.sqrt(noisy.tau2) - np.sqrt(plain.tau2)

    assert spread <= 0.01


# --- The statistic ----------------------------------------------------------------------------------------------------


def test_a_slow_replica_is_found_soon_and_let_go_soon() -> None:
    """Of three with a hundred requests a block: from within three blocks on until six after it."""
    above, below = drawn(blocks=200, slow={1: (100, 118)})
    found = find_outliers(above, below, NOISE, METRIC)

    assert not found.scores[:, :100].any()
    assert not found.scores[[0, 2]].any()
    assert found.scores[1, 102:118].all()
    assert not found.scores[1, 122:].any()
    assert found.costs[1, 110] == pytest.approx(np.log(SLOW), abs=0.1)


def test_a_silent_replica_that_was_slow_stays_one() -> None:
    """That it answers nothing any more is no sign that it is well."""
    above, below = drawn(blocks=100, slow={1: (40, 60)})
    above[1, 60:], below[1, 60:] = 0.0, 0.0

    assert (find_outliers(above, below, NOISE, METRIC).scores[1, 43:] > 0.0).all()


def test_replicas_that_are_alike_are_no_outliers() -> None:
    """Neither as they are in ten days, nor where all of them become slower at once."""
    above, below = drawn(blocks=2880)
    assert not find_outliers(above, below, NOISE, METRIC).scores.any()

    above, below = drawn(blocks=300, slow=dict.fromkeys(range(3), (100, 300)))
    assert not find_outliers(above, below, NOISE, METRIC).scores.any()


def test_where_two_are_slow_the_third_is_the_outlier() -> None:
    """And it is better than they are, so that nobody takes it for the bad one."""
    above, below = drawn(blocks=100, slow={0: (40, 100), 1: (40, 100)})
    found = find_outliers(above, below, NOISE, METRIC)

    assert (found.scores.argmax(axis=0)[50:] == 2).all()
    assert (found.costs[2, 50:] < 0.0).all()


def test_what_moves_from_replica_to_replica_is_left_out_of_each() -> None:
    """In every block it is the slow one that is out, and not one that longer windows remember."""
    turns = np.repeat(np.array([0, 1, 2, 0, 2, 1, 0, 1]), [9, 2, 1, 1, 2, 2, 1, 2])
    below = np.full((3, 40 + turns.size), 400.0)
    random = np.random.default_rng(7)
    means = np.exp(0.02 * random.standard_normal(below.shape))
    means[turns, 40 + np.arange(turns.size)] *= 2.4
    found = {"first": find_outliers(below * means, below, replace(NOISE, cv2=0.1, drift=0.0004), METRIC)}
    rough = means * np.exp(0.1 * random.standard_normal(below.shape))
    found["second"] = find_outliers(below * rough, below, NOISE, replace(METRIC, name="second"))
    kept = arm_outliers(found, np.ones(below.shape, dtype=np.bool_), ("a", "b", "c")).kept

    assert kept[:, :40].all()
    assert ((~kept[:, 40:]).argmax(axis=0) == turns).all()
    assert ((~kept[:, 40:]).sum(axis=0) == 1).all()


def test_swapping_directions_flips_the_sign() -> None:
    """A metric of which more is better finds the same replicas, with the opposite cost."""
    above, below = drawn(blocks=100, slow={1: (40, 60)})
    lower, higher = (find_outliers(above, below, NOISE, replace(METRIC, better=each)) for each in ("lower", "higher"))

    assert np.array_equal(lower.scores, higher.scores)
    assert np.array_equal(lower.costs, -higher.costs)


def test_what_comes_later_changes_nothing_before() -> None:
    """The outliers of any first blocks are those that were found when there were no others."""
    above, below = drawn(blocks=120, slow={1: (40, 58), 0: (80, 90)})
    whole = find_outliers(above, below, NOISE, METRIC)

    for until in (1, 2, 41, 43, 60, 85, 119):
        part = find_outliers(above[:, :until], below[:, :until], NOISE, METRIC)
        assert np.array_equal(part.scores, whole.scores[:, :until])
        assert np.array_equal(part.costs, whole.costs[:, :until])


def test_a_ratio_that_no_past_has_shown_is_judged_by_what_it_varies_by() -> None:
    """Without a coefficient of variation it is estimated from the blocks before, and a slow replica found."""
    above, below = drawn(blocks=120, slow={1: (60, 78)})
    scores = find_outliers(above, below, replace(NOISE, cv2=None), METRIC).scores > 0.0

    assert not scores[:, :60].any()
    assert scores[1, 63:78].all()


@pytest.mark.parametrize("shape", [(0, 5), (1, 5), (3, 0)])
def test_nothing_to_compare_is_no_outlier(shape: tuple[int, int]) -> None:
    """No replica, one alone, or no block."""
    assert find_outliers(np.zeros(shape), np.zeros(shape), NOISE, METRIC).scores.shape == shape


def test_a_target_is_named_by_its_replica() -> None:
    """As it is in its identity, whatever it looks like; a name of another kind stays what it is."""
    for replica in ("v2-1", "a/b#c", "pod"):
        assert replica_of(Identity("llama", "chat/decode", "v2", replica=replica).target_id) == replica
    assert replica_of("chat-v2") == "chat-v2"


# --- Parts ------------------------------------------------------------------------------------------------------------


def episode(
    slow_hours: Mapping[str, tuple[float, float]], story: Story = STORY, *, slow: float = SLOW,
    first_token_only: bool = False,
) -> Evidence:  # fmt: skip
    """A story in which these replicas are so much slower than their arm within these hours of the cutover."""
    factor = {"first_token": slow} if first_token_only else {"slower": slow}

    def harmed(side: Side) -> Side:
        return replace(side, from_hour=-story.past_hours, **{k: v * getattr(side, k) for k, v in factor.items()})

    plain = evidence_of(story)
    slower = evidence_of(replace(story, v1=harmed(story.v1), v2=harmed(story.v2)))
    targets = []
    for usual, other in zip(plain.targets, slower.targets, strict=True):
        hours = slow_hours.get(replica_of(usual.target_id))
        targets.append(usual if hours is None else _within(usual, other, story.started_ms, hours))
    return replace(plain, targets=tuple(targets))


def _within(
    usual: TargetIncrements, other: TargetIncrements, started_ms: int, hours: tuple[float, float]
) -> TargetIncrements:
    first, end = (started_ms + round(hour * HOUR) * BLOCK_MS for hour in hours)
    return replace(usual, gains=np.where((usual.blocks >= first) & (usual.blocks < end), other.gains, usual.gains))


def judged(evidence: Evidence, story: Story = STORY, *, at_ms: int | None = None) -> Judgement:
    # What is made of a story for an hour of the cutover leaves its past as it is.
    return judge(frozen_of(story), evidence, (Decision("start", story.started_ms, stage=0),), at_ms or story.end_ms)


def first_token(judgement: Judgement) -> MetricJudgement:
    return metric_of(judgement, FIRST_TOKEN)


def verdicts(judgement: Judgement) -> list[str]:
    return [change.verdict for change in judgement.changes]


def drawn(*, blocks: int, slow: Mapping[int, tuple[int, int]] | None = None) -> tuple[Floats, Floats]:
    """The sums and counts of three replicas with a hundred requests a block, of which some are slower for a while."""
    random = np.random.default_rng(5)
    below = random.poisson(100.0, (3, blocks)).astype(float)
    means = 0.5 * np.exp(0.03 * random.standard_normal((3, blocks)))
    for replica, (first, end) in (slow or {}).items():
        means[replica, first:end] *= SLOW
    return below * means * (1.0 + np.sqrt(0.6 / below) * random.standard_normal((3, blocks))), below
