"""A probe of a destination: one labelled point, and an explanation of the answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from servescope.cli import main
from servescope.contract.identity import Deployment
from servescope.customers.documents.probe import MEANINGS, PROBE, ProbeOutcome, send_probe
from servescope.customers.policy.policy import Policy
from servescope.settings.access import Access
from servescope.web.posting import REASONS
from tests.customers.support.customer_points import T0, push_to
from tests.customers.support.otlp_backends import HttpBackend, grpc_backend, http_backend, refusing
from tests.customers.support.remote_write_receiver import remote_write_receiver
from tests.support.customers_config import CUSTOMERS, write_customers
from tests.support.otlp_receiver import Receiver

POLICY = Policy("acme", frozenset({Deployment("llama", "chat", "v2")}))
DAY_MS = 86_400_000
SECRET = "s3cr3t-of-acme"


async def test_a_probe_is_one_labelled_point_by_each_protocol() -> None:
    """It measures nothing, and its name says what it is."""
    async with http_backend() as http, grpc_backend() as grpc, remote_write_receiver() as remote:
        for push in (
            push_to(http.url),
            push_to(grpc.url, protocol="otlp-grpc"),
            push_to(remote.url, protocol="remote-write"),
        ):  # fmt: skip
            outcome = await send_probe(POLICY, push, T0)
            assert outcome.is_accepted
            assert "accepted after" in outcome.describe(DAY_MS)
        for ledger in (http.ledger, grpc.ledger):
            ((key, points),) = ledger.streams.items()
            assert (key.name, key.attributes, points[0].value) == (PROBE.name, (("customer", "acme"),), 1.0)
        assert list(remote.series) == [(("__name__", PROBE.family), ("customer", "acme"))]


@pytest.mark.parametrize(
    ("status", "meaning", "later"),
    [
        (401, "check the token or header", "is tried again, for 1d at most"),
        (404, "check the path of url", "is tried again, for 1d at most"),
        (503, "a fault of its own", "is tried again, for 1d at most"),
        (400, "refused the data", "is dropped, and recorded as a gap"),
    ],
)
async def test_a_refusal_is_explained(status: int, meaning: str, later: str) -> None:
    """What it means, what to check, and what becomes of the points meanwhile; no secret is shown."""

    async def act(backend: HttpBackend) -> ProbeOutcome:
        backend.faults.append(refusing(status, f"not {SECRET}"))
        push = push_to(f"{backend.url}?api-token={SECRET}", access=Access(headers=(("Api-Key", SECRET),)))
        return await send_probe(POLICY, push, T0)

    async with http_backend() as backend:
        outcome = await act(backend)
    text = outcome.describe(DAY_MS)
    assert not outcome.is_accepted
    assert f"HTTP status {status}; not [secret]" in text
    assert meaning in text
    assert later in text
    assert SECRET not in text


async def test_what_is_accepted_in_part_or_by_a_wrong_clock_is_told_apart() -> None:
    """A rejected point is a failure; a clock that is wrong is remarked upon."""
    async with http_backend() as backend:
        backend.rejecting = 1
        rejected = await send_probe(POLICY, push_to(backend.url), T0)
        assert not rejected.is_accepted
        assert "the point was rejected: over the limit" in rejected.describe(DAY_MS)
        behind = format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)
        backend.faults.append(refusing(200, Date=behind))
        accepted = await send_probe(POLICY, push_to(backend.url), T0)
        assert accepted.is_accepted
        assert "s behind ours" in accepted.describe(DAY_MS)


def test_every_reason_has_a_meaning() -> None:
    """And no meaning is left over."""
    assert MEANINGS.keys() == set(REASONS)


def test_the_command_tests_the_destinations_of_one_customer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It exits with 1 where one does not accept the point, with 2 where there is no such customer or destination."""
    with Receiver() as receiver:
        path = write_customers(tmp_path, CUSTOMERS.replace("http://127.0.0.1:4318", receiver.url))
        assert main(["customers", "test", "globex", "--config", str(path)]) == 0
        assert "push (otlp-http, http://127.0.0.1:" in capsys.readouterr().out
        receiver.failing = 1
        assert main(["customers", "test", "globex", "--config", str(path), "--destination", "push"]) == 1
        assert "failed: HTTP status 400" in capsys.readouterr().out
        assert [metric for resource in receiver.resources() for metric in _names(resource)] == [PROBE.name]

        assert main(["customers", "test", "initech", "--config", str(path)]) == 2
        assert "no customer 'initech', known: acme, globex" in capsys.readouterr().err
        assert main(["customers", "test", "globex", "--config", str(path), "--destination", "pull"]) == 2
        assert "no destination 'pull', known: push" in capsys.readouterr().err


def _names(resource: ResourceMetrics) -> list[str]:
    return [metric.name for scope in resource.scope_metrics for metric in scope.metrics]
