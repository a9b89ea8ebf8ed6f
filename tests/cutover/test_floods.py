"""Errors that flood v2, errors that both stacks share, and a v2 that answers nothing: what each is called, and why."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from servescope.contract.samples import Series, make_labels
from servescope.cutover.comparison.floods import flooded, log_evidence_of_flood
from servescope.cutover.comparison.freezing import freeze
from servescope.cutover.evidence.agreement import DURATION
from servescope.cutover.evidence.evidence import Decision, Evidence
from servescope.cutover.evidence.folding import ReplicaSums
from servescope.cutover.judgement import Judgement
from servescope.cutover.plan.plan import FrozenPlan
from servescope.cutover.verdict.judge import judge
from servescope.increments.blocks import TargetIncrements
from tests.cutover.support.failing import Fails, with_failures
from tests.support.cutover_evidence import Side, Story, evidence_of, metric_of, plan_of, slowed

STORY = Story(past_hours=26, hours=4, requests_per_minute=300.0, v1=Side(replicas=9), v2=Side(replicas=3))
FROM = 18
"""The block from which on something fails."""


def judged(fails: Fails, *, blocks: int, evidence: Evidence | None = None, share: float = 0.25) -> Judgement:
    """What is said so many blocks after requests begin to fail; `share` is the one that is planned."""
    failing = with_failures(evidence or evidence_of(STORY), STORY, fails)
    frozen = frozen_at(share)
    start = (Decision("start", STORY.started_ms, stage=0),)
    return judge(frozen, failing, start, STORY.started_ms + (FROM + blocks) * 300_000)


@cache
def frozen_at(share: float) -> FrozenPlan:
    """The least plan with a stage at this share."""
    return freeze(plan_of(share), evidence_of(STORY), STORY.started_ms)


def errors_of(judgement: Judgement) -> tuple[str, str, str]:
    """The verdict on errors, its cause and its reason."""
    found = metric_of(judgement, "request_error_share")
    return found.verdict, found.cause, found.reason


def during(fails: Fails, blocks: int = 1000) -> Fails:
    """The same from `FROM` on, for so many blocks."""
    return lambda stack, replica, block: fails(stack, replica, block) if FROM <= block < FROM + blocks else 0.0


FLOOD = during(lambda stack, replica, block: 0.3 if stack == "v2" else 0.0)


@pytest.mark.slow
def test_a_flood_of_v2_is_harm_after_two_blocks_and_says_what_it_is_compared_with() -> None:
    """30 % of v2's requests fail, and v1's as seldom as before; the second block shows that it is no cluster."""
    verdict, cause, reason = errors_of(judged(FLOOD, blocks=2))

    assert (verdict, cause) == ("DEGRADED", "objective")
    assert "requests to v2 within five minutes" in reason
    assert " to v1" in reason
    assert judged(FLOOD, blocks=2).advice == "roll back"
    assert errors_of(judged(FLOOD, blocks=0))[0] != "DEGRADED"


@pytest.mark.slow
def test_a_flood_of_one_replica_is_harm_after_three_blocks() -> None:
    """Errors of one replica may be one cluster that lasts from a block into the next."""
    one = during(lambda stack, replica, block: 0.5 if (stack, replica) == ("v2", 1) else 0.0)

    assert errors_of(judged(one, blocks=2))[0] != "DEGRADED"
    assert errors_of(judged(one, blocks=3))[:2] == ("DEGRADED", "objective")


@pytest.mark.slow
@pytest.mark.parametrize(("v1", "v2"), [(1.0, 1.0), (0.6, 0.8), (0.8, 0.6), (0.3, 0.5)])
def test_an_outage_that_both_stacks_share_is_no_harm(v1: float, v2: float) -> None:
    """However long it lasts, and though v2 fails somewhat more often."""
    outage = during(lambda stack, replica, block: v1 if stack == "v1" else v2, blocks=12)

    for blocks in (1, 2, 6, 12, 24):
        judgement = judged(outage, blocks=blocks)
        assert judgement.verdict != "DEGRADED", judgement.reason


@pytest.mark.slow
def test_an_outage_that_reaches_v1_later_is_no_harm() -> None:
    """In its first block v2 fails twice as often as v1, which is all that happened so far."""
    later = during(lambda stack, replica, block: 0.6 if stack == "v2" else 0.3 if block == FROM else 0.6, blocks=6)

    for blocks in (1, 2, 6, 12):
        judgement = judged(later, blocks=blocks)
        assert judgement.verdict != "DEGRADED", judgement.reason


@pytest.mark.slow
@pytest.mark.parametrize("replica", [0, None], ids=["one replica", "all of them"])
def test_one_cluster_of_errors_is_no_harm(replica: int | None) -> None:
    """Fifty requests that fail at once in v2, when none ever did before."""
    cluster = during(lambda stack, each, block: 0.14 if stack == "v2" and replica in {None, each} else 0.0, blocks=1)
    if replica is not None:
        cluster = during(lambda stack, each, block: 0.4 if (stack, each) == ("v2", replica) else 0.0, blocks=1)

    for blocks in (1, 2, 3, 12):
        assert judged(cluster, blocks=blocks).verdict != "DEGRADED"


def test_clusters_that_v1_shows_make_a_flood_of_their_size_one_of_them() -> None:
    """Where clusters last two blocks on v1, two blocks of v2 prove nothing; more than that does."""
    random = np.random.default_rng(1)
    v1 = ReplicaSums(random.binomial(125, 0.002, (9, 60)).astype(float), np.full((9, 60), 125.0))
    v2 = ReplicaSums(random.binomial(125, 0.002, (3, 60)).astype(float), np.full((3, 60), 125.0))
    v2.above[:, 40:43] = 40.0
    seen = np.array(v1.above)
    seen[:, 10:12] = 15.0
    calm = log_evidence_of_flood(v1, v2, flooded(v1, v2, 2.0))
    shown = log_evidence_of_flood(ReplicaSums(seen, v1.below), v2, flooded(ReplicaSums(seen, v1.below), v2, 2.0))

    assert calm[39] == 0.0
    assert calm[41] > 9.0 > 1.0 > shown[41]
    assert calm[42] > shown[42] > 1.0
    assert calm[43] < calm[42]


def test_the_evidence_of_a_flood_is_of_the_blocks_before_alone() -> None:
    """The same, however many blocks follow; none without v1's requests."""
    random = np.random.default_rng(2)
    v1 = ReplicaSums(random.binomial(60, 0.05, (3, 40)).astype(float), np.full((3, 40), 60.0))
    v2 = ReplicaSums(
        random.binomial(60, np.where(np.arange(40) % 7 < 3, 0.4, 0.01), (2, 40)).astype(float), np.full((2, 40), 60.0)
    )
    whole = log_evidence_of_flood(v1, v2, flooded(v1, v2, 2.0))

    for blocks in (1, 5, 12, 33):
        one, other = (ReplicaSums(each.above[:, :blocks], each.below[:, :blocks]) for each in (v1, v2))
        np.testing.assert_array_equal(log_evidence_of_flood(one, other, flooded(one, other, 2.0)), whole[:blocks])
    alone = ReplicaSums(np.where(np.arange(40) == 3, 20.0, 0.0)[None], np.full((1, 40), 60.0))
    twice = ReplicaSums(np.where(np.isin(np.arange(40), [3, 20, 21]), 20.0, 0.0)[None], np.full((1, 40), 60.0))
    evidence = [log_evidence_of_flood(v1, each, flooded(v1, each, 2.0)) for each in (alone, twice)]
    np.testing.assert_array_equal(evidence[0][:20], evidence[1][:20])
    assert whole.any()
    assert not flooded(ReplicaSums(0.0 * v1.above, 0.0 * v1.below), v2, 2.0).any()


# --- A v2 that answers nothing ----------------------------------------------------------------------------------------

SILENT = during(lambda stack, replica, block: 1.0 if stack == "v2" else 0.0)
OK = Series("requests_total", make_labels({"outcome": "ok"}))


def without_v1(*, requests: bool) -> Evidence:
    """v1 is not scraped since the cutover began, or gets no requests any more."""
    evidence = evidence_of(STORY)
    targets = []
    for each in evidence.targets:
        before = each.blocks < STORY.started_ms
        if each.identity.inference_stack == "v1":
            each = (
                replace(each, gains=np.where(before, each.gains, 0.0))
                if requests
                else each.at(slice(0, int(before.sum())))
            )
        targets.append(each)
    return replace(evidence, targets=tuple(targets))


def test_a_v2_that_answers_nothing_is_harm_at_once() -> None:
    """With all of v1's requests answered, and with most of them: after the first block that is wholly so."""
    partial = during(lambda stack, replica, block: 1.0 if stack == "v2" else 0.7)

    for fails in (SILENT, partial):
        judgement = judged(fails, blocks=1)
        assert judgement.verdict == "DEGRADED"
        assert judgement.severity == "beyond margin"


@pytest.mark.parametrize("v1", [1.0, 0.995])
def test_it_is_none_while_v1_answers_nothing_either(v1: float) -> None:
    """Nothing at all, or so few that v2's may all fail by chance; nor in the block in which v1 recovers first."""
    both = during(lambda stack, replica, block: 1.0 if stack == "v2" else v1)
    first = during(lambda stack, replica, block: 1.0 if stack == "v2" or block < FROM + 2 else 0.0, blocks=3)

    for fails, blocks in ((both, 1), (both, 6), (first, 3)):
        assert judged(fails, blocks=blocks).verdict != "DEGRADED"


@pytest.mark.parametrize("requests", [True, False], ids=["no requests to v1", "v1 not scraped"])
def test_it_is_harm_where_no_v1_excuses_it(requests: bool) -> None:
    """At 100 %, and where v1 is gone: v1 fails no request, so that nothing shows that the trouble is shared."""
    judgement = judged(SILENT, blocks=2, evidence=without_v1(requests=requests), share=1.0)

    assert judgement.verdict == "DEGRADED"
    assert "none of them succeeded" in judgement.reason


def lasting(blocks: int) -> Evidence:
    """Every request lasts so many blocks, and v2 has had none before the cutover."""

    def last(target: TargetIncrements) -> TargetIncrements:
        # A duration of the story is 7.2 s on average.
        target = slowed(target, DURATION, np.full(target.blocks.size, blocks * 300.0 / 7.2))
        served = (target.blocks >= STORY.started_ms) | (target.identity.inference_stack == "v1")
        gains = np.where(served, target.gains, 0.0)
        ended = [row for row, each in enumerate(target.series) if each.name != "requests_started_total"]
        gains[ended] = np.concatenate([np.zeros((len(ended), blocks)), gains[ended, :-blocks]], axis=1)
        levels = np.array(target.levels)
        levels[target.gauges.index(Series("concurrent_requests", ()))] *= 60.0 * blocks
        return replace(target, gains=gains, levels=levels)

    evidence = evidence_of(STORY)
    return replace(evidence, targets=tuple(map(last, evidence.targets)))


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [*(pytest.param(each, marks=pytest.mark.proof) for each in (1, 2)), 4])
def test_requests_that_have_not_ended_yet_are_not_unanswered(blocks: int) -> None:
    """Where v1's last ten and twenty minutes, v2's first ones cannot succeed before; once they do, silence is harm."""
    slow = lasting(blocks)
    # Every second block: each judgement takes a tenth of a CPU second.
    *before, after = [judged(SILENT, blocks=at, evidence=slow) for at in (*range(1 - FROM, 0, 2), 2)]

    assert {each.verdict for each in before} <= {"NO DATA", "INCONCLUSIVE"}
    assert "none of them succeeded" in after.reason


def test_a_flood_without_v1_is_not_judged() -> None:
    """30 % of v2's requests fail at 100 %: alerts say so, and the judge has nothing to compare it with."""
    assert judged(FLOOD, blocks=6, evidence=without_v1(requests=True), share=1.0).verdict != "DEGRADED"
