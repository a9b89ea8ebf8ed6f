"""All lanes of a process: a customer that is removed, and customers whose backends harm nobody but themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from servescope.contract.identity import Identity
from servescope.contract.samples import Sample, Snapshot, make_labels
from servescope.customers.documents.statements import remove_customer
from servescope.customers.lanes.cursors import CursorFile
from servescope.customers.lanes.program import CustomersProgram
from servescope.customers.policy.policy import Policy, Pull, Push
from servescope.customers.running import read_startable
from servescope.errors import ServescopeError
from servescope.exposition.negotiation import TEXT
from servescope.settings.access import Access, Tls
from servescope.settings.clock import EmulatedTime, ProgramClock
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus
from tests.customers.support.customer_points import push_to
from tests.customers.support.otlp_backends import hang, http_backend
from tests.support.authorities import Authority
from tests.support.customers_config import write_customers
from tests.support.faulty_servers import handling
from tests.support.waiting import wait_for_async

ORIGIN = 1_800_000_000
SPEED = 100.0
INTERVAL_MS = 10_000
CUSTOMERS = ("acme", "umbrella", "globex")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An hour of an engine of each customer, with a token a second."""
    with Store(tmp_path / "past.db") as store:
        for customer in CUSTOMERS:
            identity = _engine_of(customer)
            store.set_target(TargetStatus(identity.target_id, "http://127.0.0.1/metrics", identity, healthy=True))
            with store.transaction():
                for scraped in range(ORIGIN - 60, ORIGIN + 3_600, 5):
                    sample = Sample("output_tokens_total", make_labels(identity.labels()), scraped - ORIGIN + 1000.0)
                    store.append_scrape(identity.target_id, scraped * 1000, Snapshot.of([sample]))
        yield store


@pytest.fixture
def clock(tmp_path: Path) -> ProgramClock:
    """A clock that is a hundred times as fast."""
    EmulatedTime(time.time(), float(ORIGIN), SPEED).write(tmp_path / "clock")
    return ProgramClock(tmp_path / "clock")


def _engine_of(customer: str) -> Identity:
    return Identity("llama", f"chat-of-{customer}", "v1", replica="engine-0")


def policy_of(customer: str, *push: Push, pull: Pull | None = None) -> Policy:
    return Policy(
        customer,
        frozenset({_engine_of(customer).deployment()}),
        ("output_tokens_total",),
        labels=("deployment_id",),
        interval_ms=INTERVAL_MS,
        push=push,
        pull=pull,
    )


@asynccontextmanager
async def delivering(
    store: Store, clock: ProgramClock, folder: Path
) -> AsyncIterator[tuple[CustomersProgram, CursorFile]]:
    """A program of lanes that runs meanwhile."""
    with CursorFile(folder / "cursors.db", deliver=True) as cursors:
        program = CustomersProgram(store, cursors, clock)
        ending = asyncio.create_task(program.end_removed())
        try:
            yield program, cursors
        finally:
            ending.cancel()
            await program.close()


def series_of(program: CustomersProgram) -> str:
    """What the program exposes of itself."""
    return generate_latest(program.telemetry).decode()


async def test_nothing_leaves_any_more_when_a_removal_returns(
    store: Store, clock: ProgramClock, tmp_path: Path
) -> None:
    """Neither the request in flight, which is aborted, nor any later one, nor the page; others are delivered to."""
    (tmp_path / "token").write_text("token-of-acme\n")
    answered: list[str] = []
    async with (
        delivering(store, clock, tmp_path) as (program, cursors),
        http_backend() as backend,
        http_backend() as other,
    ):
        backend.faults += [hang] * 100
        acme = policy_of("acme", push_to(backend.url), pull=Pull(str(tmp_path / "token")))
        await program.apply([acme, policy_of("globex", push_to(other.url))])
        await wait_for_async(lambda: len(backend.faults) < 100, "a request that is in flight")

        with CursorFile(cursors.path) as mine:
            removal = await asyncio.to_thread(remove_customer, mine, "acme", [], clock.now_ms())
        answered.append(series_of(program))
        assert (removal.left, "acme" in program.pulls) == (0, False)
        requests, delivered = len(backend.faults), len(other.headers)
        backend.faults.clear()
        await wait_for_async(lambda: len(other.headers) > delivered + 3, "more intervals of the other customer")
        assert (len(backend.headers), requests) == (0, 99)
        assert cursors.rows_of("acme") == 0
    assert 'customer="acme"' not in answered[0]
    assert 'customer="globex"' in answered[0]


async def test_a_page_is_current_by_when_its_past_can_be_read(
    store: Store, clock: ProgramClock, tmp_path: Path
) -> None:
    """Of a past that is read 30 s late, as a Prometheus', the last edge is older than three intervals of 10 s."""
    (tmp_path / "token").write_text("token-of-acme\n")

    class Late(Store):
        @property
        def settle_ms(self) -> int:
            return 30_000

    with Late(store.path, read_only=True) as late:
        async with delivering(late, clock, tmp_path) as (program, _):
            await program.apply([policy_of("acme", pull=Pull(str(tmp_path / "token")))])
            page = program.pulls["acme"].page
            looks: list[asyncio.Task[bytes | None]] = []

            def look() -> bytes | None:
                looks.append(asyncio.ensure_future(page.read(TEXT)))
                return next((each.result() for each in looks if each.done() and each.result()), None)

            assert b"output_tokens_total" in await wait_for_async(look, "a page")


def test_a_removal_that_the_export_does_not_confirm_fails(tmp_path: Path) -> None:
    """The key stays until it is sure that nothing needs it; once the process has ended the removal succeeds."""
    key = tmp_path / "acme.key"
    key.write_text("k" * 40)
    with CursorFile(tmp_path / "cursors.db", deliver=True), CursorFile(tmp_path / "cursors.db") as cursors:
        with pytest.raises(ServescopeError, match=r"'acme': .* has not confirmed within 0 s that it sends nothing"):
            remove_customer(cursors, "acme", [key], 9, patience_seconds=0)
        assert key.exists()
    with CursorFile(tmp_path / "cursors.db") as cursors:
        assert remove_customer(cursors, "acme", [key], 9, patience_seconds=0).keys == (key,)
        assert cursors.unended() == []


async def test_the_table_of_a_removed_customer_stops_nobody_else(
    store: Store, clock: ProgramClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is reported and left out, though its key is deleted; it is not late, which would alert."""
    path = write_customers(tmp_path)
    (tmp_path / "acme.key").unlink()
    policies, left_out = read_startable(path, {"acme": 1})
    assert ([policy.name for policy in policies], left_out) == (["globex"], ())
    assert "customer 'acme' was removed: its table is left out; delete it, or" in caplog.text
    async with delivering(store, clock, tmp_path) as (program, cursors):
        cursors.remove("acme", 1)
        async with http_backend() as backend:
            push = push_to(backend.url)
            await program.apply([policy_of("acme", push), policy_of("globex", push)], ("acme",))
            await wait_for_async(lambda: len(backend.headers) > 2, "the other customer's requests")
            assert 'customer="acme"' not in series_of(program)
            assert {dict(key.resource)["deployment_id"] for key in backend.ledger.streams} == {"chat-of-globex"}


@pytest.mark.slow
async def test_a_backend_that_does_not_read_and_one_with_an_expired_certificate_delay_nobody_else(
    store: Store, clock: ProgramClock, tmp_path: Path
) -> None:
    """Each falls behind by itself, with its own reason; the third customer has every interval."""
    authority = Authority(tmp_path)

    async def never_read(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.Event().wait()

    async with (
        delivering(store, clock, tmp_path) as (program, _),
        handling(never_read) as address,
        http_backend(authority.server("127.0.0.1", expired=True)) as expired,
        http_backend() as healthy,
    ):
        known = Access(tls=Tls(ca_file=str(authority.path)))
        await program.apply(
            [
                policy_of("acme", push_to(f"http://{address}/", timeout_seconds=0.2)),
                policy_of("umbrella", push_to(expired.url, access=known)),
                policy_of("globex", push_to(healthy.url)),
            ]
        )
        outcomes = ('customer="acme",destination="push",outcome="timeout"', 'customer="umbrella"', 'outcome="tls"')
        await wait_for_async(lambda: all(each in series_of(program) for each in outcomes), "both failures")
        received = len(healthy.headers)
        await wait_for_async(lambda: len(healthy.headers) > received + 20, "twenty intervals of the third customer")
        ((key, points),) = healthy.ledger.streams.items()
        times = [point.time_ms for point in points]
        assert times == list(range(times[0], times[-1] + 1, INTERVAL_MS))
        assert dict(key.resource)["deployment_id"] == "chat-of-globex"
        assert not expired.headers
