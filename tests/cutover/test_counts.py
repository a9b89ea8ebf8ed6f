"""Counts of events: exact evidence in both directions, its interval, bursts, and no events at all."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from servescope.cutover.statistics.change import schedule
from servescope.cutover.statistics.counts import (
    BETTER_RATIOS,
    CLUSTER_BLOCKS,
    WORSE_RATIOS,
    EventCounts,
    dispersion,
    latest_log_evidence,
    log_evidence_above,
    log_evidence_below,
    log_evidence_rarer,
    ratio_interval,
)
from servescope.cutover.statistics.sequences import Floats
from tests.support.drawing import examples

events = hnp.arrays(np.float64, 12, elements=st.integers(0, 5).map(float))
requests = hnp.arrays(np.float64, 12, elements=st.integers(5, 500).map(float))


def _day(random: np.random.Generator, share: float, ratio: float, rate: float = 0.002) -> EventCounts:
    load = 1500.0 * (1.0 + 0.6 * np.sin(2.0 * np.pi * (np.arange(288) / 288.0 + random.random())))
    n1, n2 = random.poisson(load * (1.0 - share)), random.poisson(load * share)
    trouble = rate * (1.0 + 4.0 * (random.random(288) < 0.05))
    return EventCounts(
        random.binomial(n1, trouble).astype(float), n1.astype(float),
        random.binomial(n2, np.minimum(1.0, trouble * ratio)).astype(float), n2.astype(float),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_a_day_without_harm_seldom_shows_any_and_one_at_the_margin_is_seldom_called_healthy(share: float) -> None:
    """At most 5 % of days each, however the rate of events itself changes with time."""
    random = np.random.default_rng(1)
    starts, weights = schedule(288)
    equal = [_day(random, share, 1.0) for _ in range(200)]
    double = [_day(random, share, 2.0) for _ in range(200)]
    alarms = [log_evidence_above(day, 1.0, starts=starts, weights=weights).max() > math.log(20.0) for day in equal]
    assert np.mean(alarms) <= 0.06
    assert np.mean([log_evidence_below(day, 2.0).max() > math.log(20.0) for day in double]) <= 0.06


def test_five_times_the_errors_are_found_within_a_quarter_of_an_hour_at_a_quarter_of_the_requests() -> None:
    """On most days; and equal stacks are proven below twice the errors within some hours."""
    random = np.random.default_rng(2)
    starts, weights = schedule(288)
    found = [
        int(np.argmax(log_evidence_above(_day(random, 0.25, 5.0), 1.0, starts=starts, weights=weights) > 3.0)) + 1
        for _ in range(60)
    ]
    assert np.median(found) <= 4
    assert np.median([np.argmax(log_evidence_below(_day(random, 0.25, 1.0), 2.0) > 3.0) for _ in range(40)]) < 40


@pytest.mark.slow
@given(events, requests, events, requests)
@settings(max_examples=examples(50))
def test_the_interval_has_what_was_seen_and_swapped_arms_exchange_it(
    e1: Floats, n1: Floats, e2: Floats, n2: Floats
) -> None:
    """A pooled ratio of one, events in proportion to requests, is within; v1 ÷ v2 overlaps one over v2 ÷ v1."""
    low, high = ratio_interval(EventCounts(e1, n1, e2, n2), 0.05, 0.05)
    back_low, back_high = ratio_interval(EventCounts(e2, n2, e1, n1), 0.05, 0.05)
    assert (low <= high).all()
    assert (low * back_low <= 1.0 + 1e-9).all()
    assert (high * back_high >= 1.0 - 1e-9).all()
    low, high = ratio_interval(EventCounts(n1, 10.0 * n1, n2, 10.0 * n2), 0.05, 0.05)
    assert ((low <= 1.0) & (high >= 1.0)).all()


@given(events, requests, events, requests)
@settings(max_examples=examples(50))
@example(
    np.repeat([0.0, 5.0], [9, 3]), np.full(12, 5.0), np.zeros(12), np.r_[np.full(9, 5.0), 360.0, 373.0, 420.0]
)  # fmt: skip
def test_the_interval_excludes_what_the_evidence_excludes(e1: Floats, n1: Floats, e2: Floats, n2: Floats) -> None:
    """A limit is a ratio that evidence of harm, or of health, beyond 1 ÷ alpha excludes, and 4 % nearer it does not."""
    counts = EventCounts(e1, n1, e2, n2)
    low, high = (limit[-1] for limit in ratio_interval(counts, 0.05, 0.05))

    def evidence(bound: float, multiples: dict[float, float]) -> float:
        on_grid = {math.exp(0.04 * round(math.log(each) / 0.04)): weight for each, weight in multiples.items()}
        return latest_log_evidence(counts, bound, on_grid, 1.0, CLUSTER_BLOCKS)

    needed, rounding = math.log(20.0), 1e-9
    if low > 0.0:
        assert evidence(low, WORSE_RATIOS) >= needed - rounding
        assert low > 190.0 or evidence(low * math.exp(0.04), WORSE_RATIOS) < needed + rounding
    if math.isfinite(high):
        assert evidence(high, BETTER_RATIOS) >= needed - rounding
        assert high < 0.005 or evidence(high * math.exp(-0.04), BETTER_RATIOS) < needed + rounding


def test_blocks_of_one_arm_say_nothing() -> None:
    """A block without requests in an arm leaves the evidence as it was."""
    both = EventCounts(np.array([0.0]), np.array([500.0]), np.array([4.0]), np.array([50.0]))
    alone = EventCounts(np.array([0.0, 0.0]), np.array([500.0, 0.0]), np.array([4.0, 30.0]), np.array([50.0, 50.0]))
    assert log_evidence_above(alone, 1.0).tolist() == pytest.approx([log_evidence_above(both, 1.0)[0]] * 2)


def test_a_baseline_without_errors_is_no_obstacle() -> None:
    """v1 has none, v2 has ten: harm; both have none: neither harm nor health."""
    requests_each = np.full(12, 300.0)
    some = EventCounts(np.zeros(12), requests_each, np.r_[np.ones(10), 0.0, 0.0], requests_each)
    assert log_evidence_above(some, 1.0)[-1] > math.log(20.0)
    none = EventCounts(np.zeros(12), requests_each, np.zeros(12), requests_each)
    assert log_evidence_above(none, 1.0)[-1] == pytest.approx(0.0)
    assert [limit[-1] for limit in ratio_interval(none, 0.05, 0.05)] == [0.0, math.inf]


def test_clean_requests_exclude_a_rate() -> None:
    """At one look 299 exclude 1 %; at every look it takes a few more, and events take it back."""
    clean = log_evidence_rarer(np.zeros(5), np.full(5, 100.0), 0.01)
    assert clean[2] < math.log(20.0) < clean[4]
    assert log_evidence_rarer(np.full(5, 2.0), np.full(5, 100.0), 0.01).max() < 0.5


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_an_impossible_bound_is_refused(value: float) -> None:
    """By its value."""
    counts = EventCounts(*(np.ones(1),) * 4)
    with pytest.raises(ValueError, match=f"{value}"):
        log_evidence_above(counts, value)
    with pytest.raises(ValueError, match=f"{value}"):
        log_evidence_rarer(np.zeros(1), np.ones(1), value)


def test_bursts_are_measured_and_take_their_part_of_the_evidence() -> None:
    """Errors that come five at a time have a dispersion of about five, single ones of about one."""
    random = np.random.default_rng(3)
    each = np.full((4, 400), 300.0)
    group = np.array([True, False, True, False])
    single = random.poisson(1.0, (4, 400)).astype(float)
    assert dispersion(single, each, group)[-1] == pytest.approx(1.0, abs=0.2)
    bursts = 5.0 * random.poisson(0.2, (4, 400)).astype(float)
    assert dispersion(bursts, each, group)[-1] == pytest.approx(5.0, rel=0.25)
    counts = EventCounts(bursts[0], each[0], bursts[1], each[1])
    raised = log_evidence_above(counts, 1.0, dispersion=5.0)
    assert raised.max() < log_evidence_above(counts, 1.0).max()
