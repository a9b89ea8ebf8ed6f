"""Owners, reloads, outages, restarts and full disks in any order: to each customer what is its own, once."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from servescope.customers.policy.policy import Resolution, Temporality
from tests.customers.support.changing_hands import CUSTOMERS, MINUTE, RATES, Action, play
from tests.support.drawing import examples

names = st.sampled_from([*RATES])
actions = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.sampled_from([20_000, MINUTE, 4 * MINUTE, 15 * MINUTE, 45 * MINUTE])),
        st.tuples(st.just("pass"), st.sampled_from([20_000, MINUTE, 4 * MINUTE])),
        st.tuples(st.just("own"), names, st.sampled_from([*CUSTOMERS, ""]), st.sampled_from([0, 10 * MINUTE])),
        st.just(("reload",)),
        st.just(("reload",)),
        st.tuples(st.just("outage"), st.sampled_from(CUSTOMERS)),
        st.tuples(st.just("engine"), names),
        st.tuples(st.just("clock"), st.sampled_from([0, 0, 10 * MINUTE, 50 * MINUTE])),
        st.sampled_from([("restart",), ("stop",), ("heal",), ("full",)]),
    ),
    min_size=4,
    max_size=16,
)
ways = st.sampled_from([*product(("cumulative", "delta"), ("deployment", "replica"))])
first_outages = st.sampled_from([[], [("outage", "acme")]])


def story(down: list[Action], happening: list[Action]) -> list[Action]:
    """A deployment of each customer, one of whom may not receive yet, and what happens from then on."""
    return [
        ("own", "chat", "acme", 0),
        ("own", "search", "globex", 0),
        *down,
        ("restart",),
        ("pass", 3 * MINUTE),
        *happening,
    ]


# What the collector drops of a clock that was ahead is from before it was set right, though its stamps are not.
DROPPED_UNTIL_NOW: list[Action] = [
    ("clock", 10 * MINUTE), ("stop",), ("pass", 15 * MINUTE), ("engine", "chat"), ("heal",),
]  # fmt: skip

# The lane of the former owner runs no more when the clock is right again.
DROPPED_BEFORE_A_MOVE: list[Action] = [
    ("clock", 10 * MINUTE), ("own", "chat", "globex", 0), ("pass", 20_000), ("stop",), ("pass", 4 * MINUTE),
]  # fmt: skip
LONG_BEFORE_A_MOVE = [*DROPPED_BEFORE_A_MOVE[:-1], ("pass", 15 * MINUTE)]


@pytest.mark.slow
@settings(max_examples=examples(400, few=3), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(way=("cumulative", "deployment"), down=[], happening=LONG_BEFORE_A_MOVE)
@example(way=("cumulative", "deployment"), down=[], happening=DROPPED_BEFORE_A_MOVE)
@example(way=("cumulative", "deployment"), down=[], happening=DROPPED_UNTIL_NOW)
@given(way=ways, down=first_outages, happening=actions)
def test_whatever_happens_each_customer_gets_its_own(
    tmp_path_factory: pytest.TempPathFactory,
    way: tuple[Temporality, Resolution],
    down: list[Action],
    happening: list[Action],
) -> None:
    """Moves, reloads in another order, outages, restarts, full disks: nothing of another's, lost or twice."""
    asyncio.run(play(tmp_path_factory.mktemp("world"), *way, story(down, happening)))
