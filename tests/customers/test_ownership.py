"""A deployment that changes its owner: what each owner receives is of its own time, by whatever way, in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servescope.contract.identity import Deployment
from servescope.customers.lanes.cursors import CursorFile, Gap, LaneId
from servescope.customers.policy.ownership import NOBODY, NOT_YET_MS, Ownership, pass_on
from servescope.customers.policy.policy import Policy, Protocol, Push, Resolution, Temporality
from servescope.store.embedded import Store
from tests.customers.support.changing_hands import (
    CUSTOMERS,
    MINUTE,
    RATES,
    T0,
    Action,
    Export,
    World,
    check,
    play,
    run,
    total,
)
from tests.customers.support.customer_points import push_to
from tests.customers.support.otlp_backends import http_backend
from tests.support import prometheus as prometheus_server
from tests.support import victoria_metrics as victoria_metrics_server
from tests.support.filled_prometheus import RETENTION

CHAT = Deployment("llama", "chat", "v2")
BOTH: list[Action] = [("own", "chat", "acme", 0), ("own", "search", "globex", 0), ("restart",), ("pass", 8 * MINUTE)]
MOVED: list[Action] = [("own", "chat", "globex", 10 * MINUTE)]
RESOLUTIONS = pytest.mark.parametrize("resolution", ["deployment", "replica"])


def policy(name: str, since_ms: int | None = None) -> Policy:
    return Policy(name, frozenset({CHAT}), since_ms={} if since_ms is None else {CHAT.group: since_ms})


def test_a_deployment_is_a_customers_from_when_that_is_first_known() -> None:
    """Unless its policy says since when; what applies again changes nothing."""
    known = pass_on({}, [policy("acme")], (), 50)
    assert known == {CHAT.group: Ownership("acme", 50)}
    assert pass_on(known, [policy("acme")], (), 99) == known
    assert pass_on(known, [policy("acme", 20)], (), 99) == {CHAT.group: Ownership("acme", 20)}


def test_a_new_owner_has_it_from_the_change_on_whatever_its_policy_says() -> None:
    """Also when it was nobody's in between, and when the owner changes back."""
    known = pass_on(pass_on({}, [policy("acme")], (), 50), [policy("globex", 10)], (), 70)
    assert known == {CHAT.group: Ownership("globex", 70, 70)}
    nobodys = pass_on(known, [], (), 80)
    assert nobodys == {CHAT.group: Ownership(NOBODY, 80, 80)}
    assert pass_on(nobodys, [policy("acme")], (), 95) == {CHAT.group: Ownership("acme", 95, 80)}
    assert pass_on(nobodys, [policy("acme", 10)], (), 95) == {CHAT.group: Ownership("acme", 80, 80)}


def test_what_is_of_a_customer_whose_table_cannot_be_used_stays_its_own() -> None:
    """It is left out, and nobody else has it."""
    known = pass_on({}, [policy("acme")], (), 50)
    assert pass_on(known, [], ["acme"], 70) == known
    assert pass_on(known, [], ["globex"], 70) == {CHAT.group: Ownership(NOBODY, 70, 70)}


def test_a_time_that_a_clock_ahead_noted_is_now() -> None:
    """It would keep the owner waiting; before now it was not its own."""
    known = pass_on(pass_on({}, [policy("acme")], (), 50), [policy("globex")], (), 700)
    assert pass_on(known, [policy("globex")], (), 90) == {CHAT.group: Ownership("globex", 90, 90)}


def test_what_changes_hands_while_the_clock_is_behind_waits_for_it() -> None:
    """By the right clock it may be the other's until then; what was nobody else's does not wait."""
    known = pass_on({}, [policy("acme")], (), 500)
    waiting = pass_on(known, [policy("globex", 10)], (), 90, is_behind=True)
    assert waiting == {CHAT.group: Ownership("globex", NOT_YET_MS, NOT_YET_MS)}
    assert pass_on(waiting, [policy("globex")], (), 120, is_behind=True) == waiting
    assert pass_on(waiting, [policy("globex")], (), 600) == {CHAT.group: Ownership("globex", 600, 600)}
    assert pass_on(known, [policy("acme")], (), 90, is_behind=True) == {CHAT.group: Ownership("acme", 90)}


@given(steps=st.lists(st.tuples(st.sampled_from(["acme", "globex", NOBODY]), st.none() | st.integers(0, 300))))
def test_no_time_is_of_two_owners(steps: list[tuple[str, int | None]]) -> None:
    """In any order of owners, whatever their policies say of since when."""
    known = pass_on({}, [], (), 0)
    ended = {"acme": 0, "globex": 0}
    owner = NOBODY
    for number, (name, since_ms) in enumerate(steps):
        now_ms = 100 + 10 * number
        if owner not in (NOBODY, name):
            ended[owner] = now_ms
        owner = name
        known = pass_on(known, [policy(name, since_ms)] if name else [], (), now_ms)
        if name:
            others_until_ms = max(until_ms for other, until_ms in ended.items() if other != name)
            assert known[CHAT.group].since_ms >= others_until_ms


def test_it_is_kept_with_the_cursors(tmp_path: Path) -> None:
    """Over a restart; what the former owner was not delivered until then is a gap of its own, removed with it."""
    lane = LaneId("acme", "push")
    with CursorFile(tmp_path / "cursors.db", deliver=True) as cursors:
        cursors.pass_on([policy("acme")], (), 50)
        cursors.begin(lane, 60)
    with CursorFile(tmp_path / "cursors.db", deliver=True) as cursors:
        assert cursors.pass_on([policy("globex")], (), 100) == {CHAT.group: Ownership("globex", 100, 100)}
        assert cursors.gaps(lane) == [Gap(60, 100, "moved")]
        cursors.remove("globex", 120)
        assert cursors.ownerships() == {CHAT.group: Ownership(NOBODY, 120, 120)}
        assert cursors.rows_of("globex") == 0


@pytest.mark.slow
@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
@RESOLUTIONS
def test_a_new_owner_receives_nothing_from_before(
    tmp_path: Path, temporality: Temporality, resolution: Resolution
) -> None:
    """A backfill reaches back to the move, and so does its lane that was behind; the former one has all until then."""
    story = [
        *BOTH, ("outage", "globex"), ("pass", 4 * MINUTE), *MOVED, ("reload",), ("pass", 4 * MINUTE), ("heal",),
        ("pass", 3 * MINUTE),
    ]  # fmt: skip
    ledgers = asyncio.run(play(tmp_path, temporality, resolution, story))

    moved_s = 12 * 60
    assert 0 < total(ledgers["globex"], "chat") <= RATES["chat"] * 17 * 60
    assert RATES["chat"] * (moved_s - 150) < total(ledgers["acme"], "chat") <= RATES["chat"] * moved_s
    of_chat = [points for key, points in ledgers["globex"].streams.items() if ("deployment_id", "chat") in key.resource]
    assert min(point.time_ms for points in of_chat for point in points) > T0 + moved_s * 1000


@RESOLUTIONS
def test_the_owner_changes_back(tmp_path: Path, resolution: Resolution) -> None:
    """What the other one counted in between is no gain of the first one's, though its lane remembers the engine."""
    story = [*BOTH, *MOVED, ("reload",), ("pass", 6 * MINUTE), ("own", "chat", "acme", 0), ("reload",)]
    ledgers = asyncio.run(play(tmp_path, "cumulative", resolution, story))

    own_s = 8 * 60 + 10 * 60
    assert RATES["chat"] * (own_s - 300) < total(ledgers["acme"], "chat") <= RATES["chat"] * own_s


def test_a_move_while_nothing_ran_is_of_when_it_is_seen(tmp_path: Path) -> None:
    """Nobody receives what was counted between the end of the former export and the start of the next one."""
    story = [*BOTH, ("stop",), ("pass", 5 * MINUTE), *MOVED, ("pass", 5 * MINUTE), ("restart",)]
    ledgers = asyncio.run(play(tmp_path, "delta", "deployment", story))

    assert total(ledgers["globex"], "chat") <= RATES["chat"] * 10 * 60
    assert total(ledgers["acme"], "chat") <= RATES["chat"] * 8 * 60


def test_a_backfill_reaches_as_far_back_as_the_policy_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`since` is what an operator knows of the time before the export did; without it, the log says what is missing."""

    async def receive(since_ms: int | None) -> float:
        folder = tmp_path / str(since_ms)
        folder.mkdir()
        async with AsyncExitStack() as ends:
            backend = await ends.enter_async_context(http_backend())
            store = ends.enter_context(Store(folder / "past.db"))
            pushes = dict.fromkeys(CUSTOMERS, push_to(backend.url, temporality="delta"))
            world = World(folder, "deployment", store, pushes, since_ms=since_ms)
            await run(Export(world), [("own", "chat", "acme", 8 * MINUTE), ("restart",)])
            return total(backend.ledger, "chat")

    known = asyncio.run(receive(T0 - 8 * MINUTE))
    assert "backfill leaves out" not in caplog.text
    unknown = asyncio.run(receive(None))
    assert "customer acme: push: backfill leaves out what is from before" in caplog.text
    assert unknown <= RATES["chat"] * 10 * 60
    assert unknown + RATES["chat"] * 6 * 60 < known <= RATES["chat"] * 18 * 60


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize(
    ("protocol", "temporality"), [("otlp-http", "cumulative"), ("otlp-http", "delta"), ("remote-write", "cumulative")]
)
@RESOLUTIONS
def test_victoria_metrics_has_of_each_owner_its_own_time(
    victoria_metrics: Path, tmp_path: Path, protocol: Protocol, temporality: Temporality, resolution: Resolution
) -> None:
    """Moves with a backfill, with the reload long after the change, while nothing runs, and back."""
    story = [
        *BOTH, *MOVED, ("pass", 2 * MINUTE), ("restart",), ("pass", 5 * MINUTE), ("engine", "chat"),
        ("pass", 2 * MINUTE), ("own", "chat", "acme", 10 * MINUTE), ("stop",), ("pass", 3 * MINUTE),
    ]  # fmt: skip
    with ExitStack() as ends:
        servers = {
            name: ends.enter_context(victoria_metrics_server.running(victoria_metrics, tmp_path / name))
            for name in CUSTOMERS
        }
        urls = {
            name: server.otlp_url if protocol == "otlp-http" else server.remote_write_url
            for name, server in servers.items()
        }
        pushes = {name: push_to(url, protocol=protocol, temporality=temporality) for name, url in urls.items()}
        world, gaps = deliver(tmp_path, resolution, pushes, story)
        for customer, name in product(CUSTOMERS, RATES):
            found = servers[customer].read_samples(f'{{__name__="output_tokens_total",deployment_id="{name}"}}')
            check(world, customer, name, counted([each.values for each in found], temporality), gaps[customer])


@pytest.mark.slow
@pytest.mark.proof
@RESOLUTIONS
def test_prometheus_has_of_each_owner_its_own_time(prometheus: Path, tmp_path: Path, resolution: Resolution) -> None:
    """By remote write."""
    options = (*RETENTION, "--web.enable-remote-write-receiver")
    with ExitStack() as ends:
        servers = {
            name: ends.enter_context(prometheus_server.running(prometheus, tmp_path / name, {}, options=options))
            for name in CUSTOMERS
        }
        pushes = {
            name: push_to(f"http://127.0.0.1:{server.port}/api/v1/write", protocol="remote-write")
            for name, server in servers.items()
        }
        world, gaps = deliver(tmp_path, resolution, pushes, [*BOTH, *MOVED, ("reload",), ("pass", 6 * MINUTE)])
        for customer, name in product(CUSTOMERS, RATES):
            found = servers[customer].read_samples(
                f'{{__name__="output_tokens_total",deployment_id="{name}"}}', end_ms=T0 + 60 * MINUTE,
                range_ms=80 * MINUTE,
            )  # fmt: skip
            check(world, customer, name, counted([each.values for each in found], "cumulative"), gaps[customer])


def deliver(
    folder: Path, resolution: Resolution, pushes: dict[str, Push], story: Sequence[Action]
) -> tuple[World, dict[str, list[Gap]]]:
    """Have a story happen to customers with these backends."""
    with Store(folder / "past.db") as store:
        world = World(folder, resolution, store, pushes)
        return world, asyncio.run(run(Export(world), story))


def counted(series: Sequence[Sequence[float]], temporality: Temporality) -> float:
    """What counters counted: deltas added up, or rises, and what they had after they fell."""
    shown = [[value for value in values if value == value] for values in series]
    if temporality == "delta":
        return sum(map(sum, shown))
    rises = (after - before if after >= before else after for values in shown for before, after in pairwise(values))
    return sum(values[0] for values in shown if values) + sum(rises)
