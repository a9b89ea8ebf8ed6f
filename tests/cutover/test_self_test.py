"""The self-test: false alarms measured on a deployment's own past."""

from dataclasses import replace

import pytest
import scipy

from servescope.cutover.evidence.evidence import Evidence
from servescope.cutover.forecast.self_test import clopper_pearson, run_self_test
from servescope.increments.blocks import BLOCK_MS
from tests.support.cutover_evidence import Side, Story, evidence_of, plan_of

STORY = Story(past_hours=48, hours=0, v1=Side(replicas=4), v2=Side(replicas=0))


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    """Two days of four equal replicas."""
    return evidence_of(STORY)


@pytest.mark.slow
def test_equal_replicas_raise_no_alarm(evidence: Evidence) -> None:
    """All divisions are judged, progress is reported, and most are proven healthy."""
    reported: list[tuple[int, int]] = []
    found = run_self_test(plan_of(0.25, 1.0), evidence, splits=4, progress=lambda *each: reported.append(each))
    (share,) = found.shares
    assert reported == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert (share.share, share.replicas, share.splits, share.alarms, share.alarm_low) == (0.25, 1, 4, 0, 0.0)
    assert share.healthy >= 3
    detectable = share.detectable["time_to_first_token_seconds"]
    assert detectable is not None
    assert 0.0 < detectable < 0.2
    assert found.sentence.startswith(
        "of 4 divisions of v1 against itself, each watched for 24 h, 0 were called DEGRADED"
    )


@pytest.mark.slow
def test_as_many_divisions_are_judged_as_are_asked_for(evidence: Evidence) -> None:
    """What does not divide by the number of shares goes to those that have more divisions."""
    found = run_self_test(plan_of(0.25, 0.5), evidence, splits=5)

    assert [(share.replicas, share.splits) for share in found.shares] == [(1, 2), (2, 3)]
    assert (found.splits, found.wanted) == (5, 5)


@pytest.mark.slow
def test_a_past_that_falls_a_block_short_of_two_days_is_tested(evidence: Evidence) -> None:
    """What is not settled yet at its end shortens the hours watched, and not the day that calibrates."""
    unsettled = replace(evidence, observed_until_ms=evidence.observed_until_ms - BLOCK_MS // 2)
    found = run_self_test(plan_of(0.25), unsettled, splits=2)
    assert found.shares[0].splits == 2
    assert found.shares[0].detectable["time_to_first_token_seconds"] is not None
    assert found.hours == pytest.approx(24.0 - 5.0 / 60.0)


@pytest.mark.slow
def test_a_replica_that_is_not_equal_is_a_false_alarm(evidence: Evidence) -> None:
    """One that became twice as slow halfway alarms where it is called v2: the self-test says what the past is like."""
    slow = evidence_of(replace(STORY, v1=Side(replicas=4, first_token=2.0, from_hour=-24.0))).targets[0]
    changed = replace(evidence, targets=(slow, *evidence.targets[1:]))
    found = run_self_test(plan_of(0.25), changed, splits=4)
    assert found.shares[0].alarms >= 1
    assert found.shares[0].alarm_high > 0.25


@pytest.mark.parametrize(
    ("story", "shares", "reason"),
    [
        (replace(STORY, v1=Side(replicas=1)), (0.25,), "v1 has fewer than two replicas"),
        (replace(STORY, past_hours=20), (0.25,), "it needs 26 hours"),
        (STORY, (1.0,), "no stage of the plan keeps a part of the requests on v1"),
    ],
)
def test_a_past_that_cannot_be_divided_says_so(story: Story, shares: tuple[float, ...], reason: str) -> None:
    """By a reason, and without a rate."""
    found = run_self_test(plan_of(*shares), evidence_of(story))
    assert found.shares == ()
    assert reason in found.sentence


@pytest.mark.parametrize(("events", "trials"), [(0, 200), (3, 200), (7, 8), (8, 8), (0, 1), (1900, 2000)])
def test_limits_are_clopper_and_pearsons(events: int, trials: int) -> None:
    """Those of scipy."""
    exact = scipy.stats.binomtest(events, trials).proportion_ci(confidence_level=0.95, method="exact")
    assert clopper_pearson(events, trials) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_an_impossible_count_is_refused() -> None:
    """By its numbers."""
    with pytest.raises(ValueError, match="3 of 2"):
        clopper_pearson(3, 2)
