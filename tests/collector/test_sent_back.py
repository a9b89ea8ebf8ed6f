"""Targets and lists that send back what they were sent: nothing shows it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from servescope.collector.scrapes.fetch import HttpFetch
from servescope.collector.scrapes.scrape import Limits, scrape_target
from servescope.collector.targets.target import Target
from servescope.contract.identity import Identity
from servescope.settings.access import Access
from servescope.sources.reader import Reader
from servescope.web.connections import open_session
from tests.support.answering import Handler
from tests.support.answering import answering as answering_here
from tests.support.collect_command import collecting, get, wait_until
from tests.support.echoes import BASIC, BEARER, PAIR, PASSWORD, TOKEN, echoes, shows, write_accesses
from tests.support.faulty_servers import answering, sending, whole
from tests.support.prometheus import free_port
from tests.support.waiting import deadline_seconds

IDENTITY = Identity("llama", "chat", "v1", replica="r0")

ANSWERS: dict[str, Callable[[str], bytes]] = {
    "a line": lambda spelled: whole(f"a 1\n{spelled}\n".encode()),
    "a label's name": lambda spelled: whole(f'a{{{spelled}="x"}} 1\n'.encode()),
    "a long line": lambda spelled: whole(f"{'x' * 70} {spelled}\n".encode()),
    "no end": lambda spelled: whole(f"a 1\nb{{x={json.dumps(spelled)}}} 2".encode()),
    "a status": lambda spelled: whole(b"", status=f"403 No {spelled}"),
    "a redirect": lambda spelled: whole(b"", f"Location: http://x.example/?{spelled}", status="302 Found"),
    "an encoding": lambda spelled: whole(b"", f"Content-Encoding: {spelled}"),
    "no HTTP": lambda spelled: f"{spelled} HTTP/1.1 200 OK\r\n\r\n".encode(),
    "a wrong header": lambda spelled: f"HTTP/1.1 200 OK\r\nX-\x01: {spelled}\r\n\r\n".encode(),
}


@pytest.fixture
def accesses(tmp_path: Path) -> dict[str, Access]:
    return write_accesses(tmp_path)


def lines_of(credentials: str) -> Iterator[str]:
    """Every third of what is sent back, in one line."""
    return (" ".join(each.split()) for number, each in enumerate(echoes(credentials)) if number % 3 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("place", ANSWERS)
async def test_no_failed_scrape_shows_a_secret(accesses: dict[str, Access], place: str) -> None:
    """Wherever in the answer it is, and where the answer was cut."""
    answers = [b""]
    limits = Limits(deadline_seconds(), 100_000, max_series=100)
    async with answering(lambda writer: sending(answers[0])(writer)) as url, open_session() as session:
        fetch = HttpFetch(session)
        for sent, access in accesses.items():
            for line in lines_of(sent):
                answers[0] = ANSWERS[place](line)
                target = Target(f"{url}/metrics", IDENTITY, None, access)
                found = await scrape_target(target, Reader(IDENTITY), fetch, limits, clock=lambda: 1.0)
                assert not shows(str(found.error), sent), (line, found.error)


async def test_a_fault_of_ours_shows_no_secret(accesses: dict[str, Access], caplog: pytest.LogCaptureFixture) -> None:
    """Whose traceback quotes the answer: in the status of the target, and in the log."""

    async def fetch(*_: object) -> bytes:
        raise RuntimeError(f"unexpected: {PAIR}")

    limits = Limits(1.0, 1, max_series=1)
    target = Target("http://x/metrics", IDENTITY, None, accesses[BASIC])
    found = await scrape_target(target, Reader(IDENTITY), fetch, limits, clock=lambda: 1.0)
    shown = str(found.error)
    assert found.outcome == "internal"
    assert shown == "http://x/metrics: a fault in the collector: RuntimeError: unexpected: [secret]"
    assert "RuntimeError: unexpected: [secret]" in caplog.text
    assert not shows(caplog.text, BASIC)


@pytest.mark.slow
def test_a_collector_shows_no_secret_that_came_back(tmp_path: Path) -> None:
    """By its API, its metrics, its log and its store: of a target, of a list, and of the proxy on the way."""
    port = free_port()
    write_accesses(tmp_path)
    asked = set()

    def answer(request: Handler) -> None:
        sent = request.headers["Authorization"]
        asked.add(sent)
        scheme, _, rest = sent.partition(" ")
        said = base64.b64decode(rest).decode() if scheme == "Basic" else rest
        if request.path == "/list":
            request.reply(200, json.dumps([{said: [base64.b64encode(said.encode()).decode()]}]))
        else:
            request.reply(200, f"{said} {said.upper()} {rest}\n")

    with answering_here(answer) as url:
        (tmp_path / "servescope.toml").write_text(f"""
[collector]
listen = "127.0.0.1:{port}"
scrape_interval = "500ms"
window = "3s"

[[deployments]]
deployment_id = "chat"
model_name = "llama"
inference_stack = "v1"
targets = [{{ url = "{url}/metrics", basic_auth_username = "joe", basic_auth_password_file = "password" }}]
http_sd = [{{ url = "{url}/list", list_access = {{ bearer_token_file = "token" }} }}]
""")
        log, base = tmp_path / "collect.log", f"http://127.0.0.1:{port}"
        with collecting(folder=tmp_path):
            wait_until(lambda: "malformed" in get(f"{base}/metrics"), log)
            wait_until(lambda: "unknown key" in get(f"{base}/api/v1/targets"), log)
            seen = [get(f"{base}{path}") for path in ("/metrics", "/api/v1/targets", "/api/v1/events")]
    with suppress(UnicodeDecodeError):
        seen.append(log.read_text())
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("*.db*"))

    assert asked == {BASIC, BEARER}
    target = json.loads(seen[1])["targets"][0]["error"]
    assert target.endswith("in '[secret] [secret] [secret]'"), target
    for sent, secret in ((BASIC, PASSWORD), (BEARER, TOKEN)):
        assert not shows("\n".join(seen), sent)
        assert secret.encode() not in stored
