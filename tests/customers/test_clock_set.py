"""A clock that was ahead for three minutes and is set right: what the customers of an export receive of it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from servescope.customers.lanes.cursors import LaneId
from servescope.customers.policy.policy import Policy, Quotas, Temporality
from servescope.store.embedded import Store
from tests.customers.support.changing_hands import (
    CUSTOMERS,
    MINUTE,
    RATES,
    T0,
    Action,
    Export,
    World,
    act,
    play,
    run,
    total,
)
from tests.customers.support.customer_points import push_to
from tests.customers.support.otlp_backends import http_backend, refusing

AHEAD: list[Action] = [
    ("own", "chat", "acme", 0), ("restart",), ("pass", 5 * MINUTE), ("clock", 10 * MINUTE), ("pass", 3 * MINUTE),
]  # fmt: skip


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
async def test_it_costs_gaps_and_is_counted_once(tmp_path: Path, temporality: Temporality) -> None:
    """Cumulative points have to rise, so they wait for the time of the last one; deltas go on at once."""
    async with AsyncExitStack() as ends:
        backend = await ends.enter_async_context(http_backend())
        store = ends.enter_context(Store(tmp_path / "past.db"))
        pushes = dict.fromkeys(CUSTOMERS, push_to(backend.url, temporality=temporality))
        export = Export(World(tmp_path, "deployment", store, pushes), {"acme": backend})
        for action in [*AHEAD, ("clock", 0), ("pass", 3 * MINUTE)]:
            await act(export, *action)
        soon = total(backend.ledger, "chat")
        gaps = (await run(export, [("pass", 7 * MINUTE)]))["acme"]
        at_last = total(backend.ledger, "chat")

    minute = RATES["chat"] * 60
    waited_for = (8, 17) if temporality == "cumulative" else (15, 17)
    assert (soon > 8 * minute) == (temporality == "delta")
    assert 26 * minute < at_last <= 28 * minute
    assert [(round((gap.start_ms - T0) / MINUTE), round((gap.end_ms - T0) / MINUTE), gap.reason) for gap in gaps] == [
        (5, 8, "clock"), (*waited_for, "clock"),
    ]  # fmt: skip


HOUR = 60 * MINUTE
YEAR = 365 * 24 * HOUR
OWNED: list[Action] = [("own", "chat", "acme", 0), ("own", "search", "globex", 0), ("restart",), ("pass", 8 * MINUTE)]
MOVED: list[Action] = [("own", "chat", "globex", 10 * MINUTE), ("reload",), ("pass", 20_000)]
RIGHT: list[Action] = [("clock", 0), ("pass", 3 * MINUTE), ("heal",), ("pass", 3 * MINUTE)]


@pytest.mark.slow
@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
@pytest.mark.parametrize("behind_ms", [10 * MINUTE, 3 * HOUR, YEAR])
@pytest.mark.parametrize("when", ["before", "after", "restarted"])
def test_a_clock_that_is_behind_gives_a_new_owner_nothing_of_the_former_one(
    tmp_path: Path, temporality: Temporality, behind_ms: int, when: str
) -> None:
    """For a moment around the change, also over a restart: a backfill begins when it was free by any clock."""
    behind: list[Action] = [("export's clock", -behind_ms), ("pass", 20_000)]
    stories = {
        "before": [*behind, *MOVED],
        "after": [*MOVED, *behind],
        "restarted": [("stop",), *behind, ("restart",), *MOVED],
    }
    story = [*OWNED, ("outage", "globex"), ("pass", 2 * MINUTE), *stories[when], *RIGHT]
    ledgers = asyncio.run(play(tmp_path, temporality, "deployment", story))
    assert total(ledgers["globex"], "chat") > 0


@pytest.mark.slow
@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
@pytest.mark.parametrize("ahead_ms", [10 * MINUTE, pytest.param(50 * MINUTE, marks=pytest.mark.proof)])
def test_a_change_by_a_clock_that_is_ahead_is_a_gap_of_the_new_owner(
    tmp_path: Path, temporality: Temporality, ahead_ms: int
) -> None:
    """Until that time has come, or the clock has shown the right one for an hour, it may be the former owner's."""
    story = [*OWNED, ("clock", ahead_ms), *MOVED, ("clock", 0), ("pass", 90 * MINUTE)]
    ledgers = asyncio.run(play(tmp_path, temporality, "deployment", story))
    assert total(ledgers["globex"], "chat") > 0


def test_what_could_not_be_applied_is_not_applied_when_the_clock_is_set(tmp_path: Path) -> None:
    """A reload on a full disk failed, and the former configuration goes on until the next one."""
    story = [
        *OWNED, ("full",), ("own", "chat", "globex", 0), ("reload",), ("heal",), ("export's clock", -10 * MINUTE),
        ("pass", 20_000), ("clock", 0), ("pass", 6 * MINUTE),
    ]  # fmt: skip
    ledgers = asyncio.run(play(tmp_path, "delta", "deployment", story))
    minute = RATES["chat"] * 60
    assert total(ledgers["acme"], "chat") > 12 * minute


@pytest.mark.slow
def test_a_new_owner_does_not_wait_for_a_year(tmp_path: Path) -> None:
    """An hour after the clock was set right, its time begins."""
    story = [*OWNED, ("clock", YEAR), *MOVED, ("clock", 0), ("pass", 90 * MINUTE)]
    ledgers = asyncio.run(play(tmp_path, "delta", "deployment", story))
    minute = RATES["chat"] * 60
    assert 25 * minute < total(ledgers["globex"], "chat") < 45 * minute


async def test_a_quota_does_not_wait_for_a_clock_that_was_set_back(tmp_path: Path) -> None:
    """Neither of points nor of bytes; and the problems of a lane are reported by the clock that is right."""
    async with AsyncExitStack() as ends:
        backend = await ends.enter_async_context(http_backend())
        store = ends.enter_context(Store(tmp_path / "past.db"))
        pushes = dict.fromkeys(CUSTOMERS, push_to(backend.url, temporality="delta"))
        export = Export(LimitedWorld(tmp_path, "deployment", store, pushes), {"acme": backend})
        story: list[Action] = [
            ("own", "chat", "acme", 0), ("restart",), ("pass", 5 * MINUTE), ("clock", 40 * MINUTE),
            ("outage", "acme"), ("pass", 3 * MINUTE), ("clock", 0),
        ]  # fmt: skip
        for action in story:
            await act(export, *action)
        backend.faults.clear()
        backend.faults.extend([refusing(401)] * 3)
        await act(export, "pass", 12 * MINUTE)
        assert export.cursors is not None
        problem = export.cursors.problem(LaneId("acme", "push"))
        await export.stop()
        received = total(backend.ledger, "chat")
    assert received > RATES["chat"] * 60 * 12
    assert problem is None or "503" not in problem[1]


class LimitedWorld(World):
    """Its customers have quotas, of no more than is sent."""

    def policies(self) -> list[Policy]:
        quotas = Quotas(samples_per_minute=2, bytes_per_minute=1_000)
        return [replace(policy, quotas=quotas) for policy in super().policies()]
