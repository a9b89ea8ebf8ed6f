"""Receivers that send back what they were sent, in every spelling and every place: nothing shows it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import grpc
import pytest
from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceResponse,
)

from servescope.customers.policy.policy import Protocol
from servescope.settings.access import Access
from tests.customers.support.customer_export import CUSTOMERS, exporting
from tests.customers.support.customer_points import push_to
from tests.customers.support.otlp_backends import PROTOBUF, aborting, grpc_backend
from tests.customers.support.sending import fail, succeed
from tests.support.answering import Handler, answering
from tests.support.echoes import BASIC, PASSWORD, TOKEN, echoes, shows, write_accesses
from tests.support.loopback import running
from tests.support.waiting import wait_for

Answer = Callable[[str], web.Response]
ANSWERS: dict[str, Answer] = {
    "a refusal": lambda spelled: web.Response(status=403, text=f"not for {spelled}, no"),
    "a status line": lambda spelled: web.Response(status=503, reason=" ".join(spelled.split()), text=""),
    "a page": lambda spelled: web.Response(status=400, text=f"<p>{spelled}</p>" * 4, content_type="text/html"),
    "what is rejected": lambda spelled: web.Response(
        body=ExportMetricsServiceResponse(
            partial_success=ExportMetricsPartialSuccess(rejected_data_points=1, error_message=f"was {spelled}")
        ).SerializeToString(),
        content_type=PROTOBUF,
    ),
}


@pytest.fixture
def accesses(tmp_path: Path) -> dict[str, Access]:
    return write_accesses(tmp_path)


async def hear(url: str, access: Access, protocol: Protocol) -> str:
    """What is said of an answer of a receiver."""
    push = push_to(f"{url}/v1/metrics?api-token={TOKEN}", access=access, protocol=protocol)
    try:
        return (await succeed(push)).message
    except Exception as error:
        return f"{error} {error!r}"


@pytest.mark.slow
@pytest.mark.parametrize("place", ANSWERS)
@pytest.mark.parametrize("protocol", ["otlp-http", "remote-write"])
async def test_nothing_of_an_answer_over_http_shows_a_secret(
    accesses: dict[str, Access], protocol: Protocol, place: str
) -> None:
    """The password, the pair, the header, the token, and the token in the query."""
    said_back = [""]

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return ANSWERS[place](said_back[0])

    application = web.Application()
    application.router.add_post("/v1/metrics", answer)
    async with running(application) as url:
        for sent, access in accesses.items():
            for spelled in (*islice(echoes(sent), 0, None, 1 if place == "a refusal" else 5), TOKEN.upper()):
                said_back[0] = spelled
                said = await hear(url, access, protocol)
                assert not shows(said, sent), (spelled, said)
                assert TOKEN.casefold() not in said.casefold()


@pytest.mark.slow
async def test_nothing_of_a_status_over_grpc_shows_a_secret(accesses: dict[str, Access]) -> None:
    """Nor where it is worded as gRPC words its own failures."""
    wordings = (
        "not for {}", "failed to connect to all addresses; last error: UNKNOWN: {}",
        "failed to connect to all addresses; last error: OPENSSL_internal:{}",
    )  # fmt: skip
    async with grpc_backend() as backend:
        for sent, access in accesses.items():
            for spelled in islice(echoes(sent), 0, None, 3):
                for wording in wordings:
                    line = " ".join(wording.format(spelled).split())
                    backend.faults.append(aborting(grpc.StatusCode.UNAVAILABLE, line))
                    said = str(await fail(push_to(backend.url, access=access, protocol="otlp-grpc")))
                    assert not shows(said, sent), (line, said)


@pytest.mark.slow
def test_an_export_shows_no_secret_of_a_receiver_that_sends_it_back(tmp_path: Path) -> None:
    """In its log, `status`, `statement`, its metrics and its cursors; what else the receiver said is shown."""
    asked = []

    def answer(request: Handler) -> None:
        asked.append(request.headers["Authorization"])
        pair = base64.b64decode(asked[-1].removeprefix("Basic ")).decode()
        request.reply(403, f"unknown user: '{pair}', {pair.upper()}, {asked[-1]}, {PASSWORD.encode().hex()}")

    with answering(answer) as url:
        access = 'temporality = "delta"\nbasic_auth_username = "joe"\nbasic_auth_password_file = "password"'
        customers = CUSTOMERS.replace("{url}", f"{url}/v1/metrics").replace('temporality = "delta"', access)
        (tmp_path / "password").write_text(PASSWORD)
        with exporting(tmp_path, customers=customers) as exported:
            log = tmp_path / "run.log"
            with exported.running() as process:
                wait_for(lambda: len(asked) > 1 and "unknown user" in log.read_text(), "answers", process=process)
                shown = [exported.run("status"), exported.run("statement", "acme", "--from", "1h"), log.read_text()]
    files = b"".join(path.read_bytes() for path in tmp_path.glob("*.db*"))

    assert {asked[0], *asked} == {BASIC}
    assert not shows("\n".join(shown), BASIC)
    assert PASSWORD.encode() not in files
    assert BASIC.removeprefix("Basic ").encode() not in files
    assert "HTTP status 403; unknown user: '[secret]', [secret], [secret], [secret]" in shown[0]
    assert "HTTP status 403; unknown user: '[secret]'" in shown[2]
