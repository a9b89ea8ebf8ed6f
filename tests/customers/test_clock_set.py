"""A clock that was ahead for three minutes and is set right: what the customers of an export receive of it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from servescope.customers.cursors import Gap
from servescope.customers.policy import Temporality
from servescope.store.embedded import Store
from tests.support.changing_hands import CUSTOMERS, MINUTE, RATES, T0, Action, Export, World, act, run, total
from tests.support.customer_points import push_to
from tests.support.otlp_backends import http_backend

AHEAD: list[Action] = [
    ("own", "chat", "acme", 0), ("restart",), ("pass", 5 * MINUTE), ("clock", 10 * MINUTE), ("pass", 3 * MINUTE),
]  # fmt: skip


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_it_costs_gaps_and_is_counted_once(tmp_path: Path, temporality: Temporality) -> None:
    """Cumulative points have to rise, so they wait for the time of the last one; deltas go on at once.

    The time whose scrapes were dropped is a gap, and the one that is waited for, or that deltas will have twice.
    """

    async def receive() -> tuple[float, float, list[Gap]]:
        async with AsyncExitStack() as ends:
            backend = await ends.enter_async_context(http_backend())
            store = ends.enter_context(Store(tmp_path / "past.db"))
            pushes = dict.fromkeys(CUSTOMERS, push_to(backend.url, temporality=temporality))
            export = Export(World(tmp_path, "deployment", store, pushes), {"acme": backend})
            for action in [*AHEAD, ("clock", 0), ("pass", 3 * MINUTE)]:
                await act(export, *action)
            soon = total(backend.ledger, "chat")
            gaps = await run(export, [("pass", 7 * MINUTE)])
            return soon, total(backend.ledger, "chat"), gaps["acme"]

    soon, at_last, gaps = asyncio.run(receive())

    minute = RATES["chat"] * 60
    waited_for = (8, 17) if temporality == "cumulative" else (15, 17)
    assert (soon > 8 * minute) == (temporality == "delta")
    assert 26 * minute < at_last <= 28 * minute
    assert [(round((gap.start_ms - T0) / MINUTE), round((gap.end_ms - T0) / MINUTE), gap.reason) for gap in gaps] == [
        (5, 8, "clock"), (*waited_for, "clock"),
    ]  # fmt: skip
