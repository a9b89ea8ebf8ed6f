"""Load: which blocks compare latencies at like loads."""

import numpy as np
import pytest

from servescope.cutover.conditions.load import jumped, load_range, relate, saturated, slowed
from servescope.cutover.statistics.sequences import Floats

NO = np.zeros(24, dtype=np.bool_)
YES = ~NO
LOAD = np.full(24, 0.5)


def test_like_loads_without_queues_are_free() -> None:
    """And unlike ones are unmatched: one idle v2 replica beside a busy fleet."""
    assert relate(LOAD, LOAD * 1.2, NO, NO).free.all()
    idle = relate(LOAD, LOAD * 0.1, NO, NO)
    assert idle.unmatched.all()
    assert not idle.free.any()
    assert relate(LOAD, LOAD * 2.0, NO, NO).unmatched.all()


def test_chance_in_few_requests_does_not_unmatch() -> None:
    """Fifteen requests a block vary by a quarter; the hour does not."""
    random = np.random.default_rng(1)
    few = random.poisson(15.0, 288) / 15.0 * 0.5
    quiet = np.zeros(288, dtype=np.bool_)
    assert relate(np.full(288, 0.5), few, quiet, quiet).free.mean() > 0.99


def test_a_crowd_that_v2_has_more_of_is_a_jump_for_a_quarter_of_an_hour() -> None:
    """One block in which both have three times as many requests, and v2 half as many again; what stays is v2's load."""
    crowd, stays = np.ones(24), np.ones(24)
    crowd[12], stays[12:] = 1.5, 1.5
    together = np.where(np.arange(24) == 12, 3.0, 1.0)
    requests = (1000.0 * together, 1000.0 * together)

    found = jumped((LOAD * together, LOAD * together * crowd), requests)
    assert np.flatnonzero(found).tolist() == [12]
    assert np.flatnonzero(jumped((LOAD, LOAD * stays), requests)).tolist() == [12, 13, 14]
    assert not jumped((LOAD * together * crowd, LOAD * together), requests).any()
    assert not jumped((LOAD * together, LOAD * together), requests).any()


def test_chance_in_few_requests_is_no_jump() -> None:
    """Ten days of fifteen requests a block, of an arm that is silent for hours, and of none."""
    random = np.random.default_rng(2)
    few = random.poisson(15.0, 2880).astype(float)
    few[500:530] = 0.0
    many = np.full(2880, 1500.0)

    assert jumped((many, few), (many, few)).mean() < 0.002
    assert not jumped((many[:0], few[:0]), (many[:0], few[:0])).any()


def test_who_is_saturated_decides_what_is_compared() -> None:
    """v2 alone at no more load lost capacity; both are compared by throughput; other cases by nothing."""
    assert relate(LOAD, LOAD, NO, YES).overloaded.all()
    assert relate(LOAD, LOAD, YES, YES).both.all()
    assert relate(LOAD, LOAD, YES, NO).unmatched.all()
    assert relate(LOAD, LOAD * 1.3, NO, YES).unmatched.all()


def test_an_arm_without_requests_is_in_no_relation() -> None:
    """Neither matched nor unmatched."""
    for v1, v2 in ((LOAD, LOAD * 0.0), (LOAD * np.nan, LOAD)):
        found = relate(v1, v2, NO, NO)
        assert not (found.free | found.overloaded | found.both | found.unmatched).any()


def test_queues_caches_and_preemptions_saturate() -> None:
    """Above a fifth of the scrapes on average over replicas, and gauges that are not reported do not count."""
    above = np.full((2, 2, 3), np.nan)
    above[0, :, 0] = [0.5, 0.1]
    above[0, :, 1] = [0.1, 0.1]
    assert saturated(above, np.array([0.0, 0.0, 3.0])).tolist() == [True, False, True]
    assert saturated(np.full((2, 2, 3), np.nan), np.full(3, np.nan)).tolist() == [False, False, False]


def test_the_range_of_loads() -> None:
    """From the twentieth to the last twentieth of the blocks with load; none where there were none."""
    assert load_range(np.arange(1.0, 102.0)) == pytest.approx((6.0, 96.0))
    assert load_range(np.zeros(3)) is None


def test_v2_that_queues_what_it_served_freely_before_has_slowed() -> None:
    """From the fourth block on in which it queues; before a block nothing of that block is known."""
    queues = np.arange(24) >= 12
    in_flight = np.where(queues, 9.0, 3.0)
    found = slowed(~queues, (NO, queues), LOAD * 1.3, in_flight)
    assert found.tolist() == [False] * 15 + [True] * 9


@pytest.mark.parametrize(
    "changes",
    [
        {"arrivals": np.where(np.arange(24) >= 12, 1.0, 0.5)},
        {"in_flight": np.full(24, 3.0)},
        {"in_flight": np.full(24, np.nan)},
        {"v1": np.arange(24) >= 12},
        {"free": np.arange(24) < 4},
    ],
    ids=["more is asked of it", "nothing waits", "not known", "v1 queues as well", "it never served freely for long"],
)
def test_what_is_no_slowing(changes: dict[str, Floats]) -> None:
    """More arrivals, no more requests in flight, trouble of both, or too little known."""
    queues = np.arange(24) >= 12
    given = {
        "free": ~queues, "v1": NO, "arrivals": LOAD * 1.3, "in_flight": np.where(queues, 9.0, 3.0), **changes,
    }  # fmt: skip
    found = slowed(
        given["free"].astype(bool), (given["v1"].astype(bool), queues), given["arrivals"], given["in_flight"]
    )
    assert not found.any()
