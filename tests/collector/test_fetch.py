"""Fetching: every fault has its outcome and its cause, and TLS, proxies and secrets do what the configuration says."""

from __future__ import annotations

import asyncio
import base64
import gzip
import os
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from aiohttp import web

from servescope.collector.scrapes.fetch import HttpFetch
from servescope.collector.scrapes.scrape import OUTCOMES, Limits, Scrape, scrape_target
from servescope.collector.targets.deployments import HttpDiscoverySettings
from servescope.collector.targets.target import Target
from servescope.contract.identity import Identity
from servescope.settings.access import Access, Proxy, Tls
from servescope.sources.reader import Reader
from servescope.web.connections import FetchError, open_session
from servescope.web.resolver import Resolver
from tests.collector.support.faulty_tls import TLS_FAULTS, breaking_tls
from tests.support.authorities import Authority
from tests.support.faulty_servers import (
    FAULTS,
    HEALTHY,
    MAX_BODY_BYTES,
    PAGE,
    TIMEOUT_SECONDS,
    Serve,
    answering,
    repeating,
    whole,
)
from tests.support.loopback import running
from tests.support.tunnels import tunnelling
from tests.support.waiting import deadline_seconds

FAULTS_OF_TEXT = {"html", "half a line"}  # an answer that is fetched, and cannot be read
IDENTITY = Identity("llama", "chat", "v1", replica="r0")
# For servers that never complete an answer; whatever else is wrong is found however slow the machine is.
IMPATIENT = Limits(TIMEOUT_SECONDS, MAX_BODY_BYTES, max_series=100)
PATIENT = Limits(deadline_seconds(), MAX_BODY_BYTES, max_series=100)


async def scrape(fetch: HttpFetch, url: str, access: Access | None = None, limits: Limits = PATIENT) -> Scrape:
    target = Target(url, IDENTITY, None, access or Access())
    return await scrape_target(target, Reader(IDENTITY), fetch, limits, clock=lambda: 1_800_000_000)


def limits_of(outcome: str) -> Limits:
    return IMPATIENT if outcome == "timeout" else PATIENT


def scrape_served(serve: Serve, *, limits: Limits = PATIENT) -> Scrape:
    async def run() -> Scrape:
        async with answering(serve) as base, open_session() as session:
            return await scrape(HttpFetch(session), f"{base}/metrics", limits=limits)

    return asyncio.run(run())


@asynccontextmanager
async def fetching() -> AsyncIterator[HttpFetch]:
    async with open_session() as session:
        yield HttpFetch(session)


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_has_its_outcome_and_its_cause(name: str) -> None:
    """The error names the URL and says what was wrong, and repeats little of what the server sent."""
    fault = FAULTS[name]
    found = scrape_served(fault.serve, limits=limits_of(fault.outcome))

    assert (found.outcome, found.snapshot) == (fault.outcome, None), found.error
    assert found.outcome in OUTCOMES
    assert found.error is not None
    assert found.error.startswith("http://127.0.0.1:")
    assert fault.cause in found.error
    assert len(found.error) < 500


async def test_interim_responses_before_an_answer_are_skipped() -> None:
    """A few of them are HTTP; each request has as many as the one before, also on one connection."""
    interim = b"HTTP/1.1 100 Continue\r\n\r\n" * 8 + b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 8
    async with answering(repeating(interim + whole(PAGE))) as base, open_session() as session:
        for _ in range(3):
            found = await scrape(HttpFetch(session), f"{base}/metrics")
            assert found.outcome == "ok", found.error


async def test_a_wrong_name_is_reported_as_such() -> None:
    """A name that does not exist, or cannot, is a matter of DNS and says which name."""
    async with fetching() as fetch:
        found = await scrape(fetch, "http://no-such-host.invalid/metrics")
        assert found.outcome == "dns"
        assert "cannot find host 'no-such-host.invalid': " in str(found.error)


async def test_a_dead_port_is_reported_with_the_systems_reason() -> None:
    """Nobody listens there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with fetching() as fetch:
        found = await scrape(fetch, f"http://127.0.0.1:{port}/metrics")
        assert (found.outcome, str(found.error).partition("metrics: ")[2]) == (
            "unreachable",
            "cannot connect: Connection refused",
        )


def test_gzip_of_several_members_is_read_whole() -> None:
    """One member behind the other, as tools that append write it."""
    body = gzip.compress(PAGE) + gzip.compress(b'queued_requests{deployment_id="inner"} 3\n')

    found = scrape_served(lambda writer: _write(writer, whole(body, "Content-Encoding: gzip")))
    assert found.snapshot is not None, found.error
    assert sorted(found.snapshot.values) == [3, 7]


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


@pytest.mark.parametrize(
    ("headers", "status", "outcome", "seconds"),
    [
        (("Retry-After: 7",), "429 Too Many Requests", "rate_limited", 7.0),
        (("Retry-After: 7",), "503 Service Unavailable", "rate_limited", 7.0),
        ((), "429 Too Many Requests", "rate_limited", None),
        ((), "503 Service Unavailable", "status", None),
        (("Retry-After: soon",), "429 Too Many Requests", "rate_limited", None),
        (("Retry-After: -5",), "429 Too Many Requests", "rate_limited", None),
        (("Retry-After: 999999999999999999",), "429 Too Many Requests", "rate_limited", 3600.0),
        (("Date: Sat, 21 Nov 2026 00:00:00 GMT", "Retry-After: Sat, 21 Nov 2026 00:01:30 GMT"), "429 Too Many Requests",
         "rate_limited", 90.0),
        (("Retry-After: Sat, 21 Nov 2020 00:01:30 GMT",), "429 Too Many Requests", "rate_limited", 0.0),
    ],
)  # fmt: skip
def test_retry_after_is_read_as_seconds_or_as_a_date(
    headers: tuple[str, ...], status: str, outcome: str, seconds: float | None
) -> None:
    """By the server's own clock where it sends a Date; at most an hour; what cannot be read is none."""
    found = scrape_served(lambda writer: _write(writer, whole(b"", *headers, status=status)))

    assert (found.outcome, found.retry_after_seconds) == (outcome, seconds)


@contextmanager
def answering_clients(tls: ssl.SSLContext) -> Iterator[str]:
    """A server in a thread that sends a refused client the TLS alert; asyncio's own only closes the connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.settimeout(5)
            # A second handle: without reading what the client still sends, the refusal would be lost in a reset.
            with socket.socket(fileno=os.dup(connection.fileno())) as rest:
                rest.settimeout(5)
                with suppress(OSError):
                    wrapped = tls.wrap_socket(connection, server_side=True)
                    wrapped.recv(1 << 16)
                    wrapped.sendall(whole(PAGE, "Connection: close"))
                    wrapped.close()
                with suppress(OSError):
                    rest.shutdown(socket.SHUT_WR)
                    while rest.recv(1 << 16):
                        pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(deadline_seconds(5))


@pytest.mark.parametrize(
    ("names", "expired", "known", "cause"),
    [
        (("127.0.0.1",), True, True, "certificate has expired"),
        (("other.example",), False, True, "certificate is not valid for '127.0.0.1'"),
        (("127.0.0.1",), False, False, "unable to get local issuer certificate"),
    ],
)
async def test_a_wrong_certificate_is_refused_and_says_why(
    tmp_path: Path, names: tuple[str, ...], expired: bool, known: bool, cause: str
) -> None:
    """Expired, another name's, or signed by nobody we know; nothing is sent to such a server."""
    authority = Authority(tmp_path)
    asked: list[str] = []

    async def count(writer: asyncio.StreamWriter) -> None:
        asked.append("asked")

    async with fetching() as fetch:
        access = Access(tls=Tls(ca_file=str(authority.path))) if known else Access()
        async with answering(count, tls=authority.server(*names, expired=expired)) as base:
            found = await scrape(fetch, f"{base}/metrics", access)
        assert (found.outcome, asked) == ("tls", []), found.error
        assert f"certificate refused: {cause}" in str(found.error) or cause in str(found.error)
        assert "certificate refused: " in str(found.error)


@pytest.mark.parametrize("name", TLS_FAULTS)
async def test_every_fault_of_tls_has_its_outcome_and_its_cause(tmp_path: Path, name: str) -> None:
    """A handshake or an encrypted answer that stalls, is cut or is broken costs its own scrape at most its timeout."""
    fault, authority = TLS_FAULTS[name], Authority(tmp_path)
    access = Access(tls=Tls(ca_file=str(authority.path)))
    async with fetching() as fetch:
        async with breaking_tls(fault.act, authority.server("127.0.0.1")) as base:
            found = await scrape(fetch, f"{base}/metrics", access, limits_of(fault.outcome))
        assert (found.outcome, found.snapshot) == (fault.outcome, None), found.error
        assert fault.cause in str(found.error)


async def test_a_server_is_known_by_its_authority_and_name(tmp_path: Path) -> None:
    """With the authority's file it is; with another name only when that name is asked for, or none is."""
    authority = Authority(tmp_path)
    ca = str(authority.path)
    async with fetching() as fetch:
        async with answering(HEALTHY, tls=authority.server("engine.example")) as base:
            outcomes = [
                (await scrape(fetch, f"{base}/metrics", Access(tls=tls))).outcome
                for tls in (
                    Tls(ca_file=ca),
                    Tls(ca_file=ca, server_name="engine.example"),
                    Tls(insecure_skip_verify=True),
                )
            ]
        assert outcomes == ["tls", "ok", "ok"]


async def test_a_client_shows_its_certificate(tmp_path: Path) -> None:
    """A server that asks for one answers who has it, and refuses who has none, or another authority's."""
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    cert, key = authority.client("collector")
    other_cert, other_key = stranger.client("other")
    ca = str(authority.path)
    async with fetching() as fetch:
        with answering_clients(authority.server("127.0.0.1", asks_clients=True)) as base:
            found = [
                await scrape(fetch, f"{base}/metrics", Access(tls=tls))
                for tls in (
                    Tls(ca_file=ca, cert_file=cert, key_file=key),
                    Tls(ca_file=ca),
                    Tls(ca_file=ca, cert_file=other_cert, key_file=other_key),
                )
            ]
        assert [each.outcome for each in found] == ["ok", "tls", "tls"], [each.error for each in found]
        assert "certificate required" in str(found[1].error)


async def test_certificates_may_rotate(tmp_path: Path) -> None:
    """The authority's file, and the client's, are read again when they changed; a broken one fails its scrapes."""
    former, latter = Authority(tmp_path, "former"), Authority(tmp_path, "latter")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(former.path.read_bytes())
    access = Access(tls=Tls(ca_file=str(trusted)))
    async with fetching() as fetch:
        async with answering(HEALTHY, tls=latter.server("127.0.0.1")) as base:
            url = f"{base}/metrics"
            before = (await scrape(fetch, url, access)).outcome
            trusted.write_bytes(latter.path.read_bytes())
            after = (await scrape(fetch, url, access)).outcome
            trusted.write_text("no certificate")
            broken = await scrape(fetch, url, access)
        assert (before, after, broken.outcome) == ("tls", "ok", "credentials")
        assert f"tls_ca_file {str(trusted)!r} cannot be used: " in str(broken.error)


async def test_no_tls_is_reported_as_such() -> None:
    """A server that speaks plain HTTP where TLS is expected."""
    async with fetching() as fetch:
        async with recording([]) as base:
            found = await scrape(fetch, f"{base.replace('http:', 'https:')}/metrics")
        assert found.outcome == "tls"
        assert "TLS failed: " in str(found.error)


async def test_an_untouched_certificate_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is kept from scrape to scrape, and nothing is read again while nothing changed."""
    authority = Authority(tmp_path)
    os.utime(authority.path, (1, 1))
    make = Mock(wraps=ssl.create_default_context)
    monkeypatch.setattr(ssl, "create_default_context", make)
    async with fetching() as fetch:
        async with answering(HEALTHY, tls=authority.server("127.0.0.1")) as base:
            for _ in range(3):
                found = await scrape(fetch, f"{base}/metrics", Access(tls=Tls(ca_file=str(authority.path))))
                assert found.outcome == "ok", found.error
        assert make.call_count == 1


@asynccontextmanager
async def recording(requests: list[web.Request]) -> AsyncIterator[str]:
    """A server, or a proxy for plain HTTP, that answers everything and records the requests."""

    async def answer(request: web.Request) -> web.Response:
        requests.append(request)
        return web.Response(body=PAGE)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with running(application) as base:
        yield base


async def test_basic_authentication_is_sent_and_rotates(tmp_path: Path) -> None:
    """The password is the file's as it is now."""
    password = tmp_path / "password"
    access = Access(basic_auth_username="joe", basic_auth_password_file=str(password))
    requests: list[web.Request] = []
    async with fetching() as fetch:
        async with recording(requests) as base:
            for secret in ("first", "latter"):
                password.write_text(secret)
                assert (await scrape(fetch, f"{base}/metrics", access)).outcome == "ok"
            password.unlink()
            gone = await scrape(fetch, f"{base}/metrics", access)
        assert gone.outcome == "credentials"
        assert "secret file" in str(gone.error)
    expected = [f"Basic {base64.b64encode(f'joe:{each}'.encode()).decode()}" for each in ("first", "latter")]
    assert [request.headers["Authorization"] for request in requests] == expected


async def test_settled_secrets_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that has not changed costs no reading; a new one is read even with the same time and size."""
    token = tmp_path / "token"
    token.write_text("s3cret")
    os.utime(token, (1, 1))
    read = Mock(wraps=token.read_text)
    monkeypatch.setattr(Path, "read_text", lambda _, **named: read(**named))
    requests: list[web.Request] = []
    async with fetching() as fetch:
        async with recording(requests) as base:
            for _ in range(3):
                await scrape(fetch, f"{base}/metrics", Access(bearer_token_file=str(token)))
            settled = read.call_count
            now = time.time_ns()
            for secret in ("t3cret", "u3cret"):
                token.write_text(secret)
                os.utime(token, ns=(now, now))
                await scrape(fetch, f"{base}/metrics", Access(bearer_token_file=str(token)))
        assert settled == 1
    assert [request.headers["Authorization"] for request in requests] == [
        *["Bearer s3cret"] * 3,
        "Bearer t3cret",
        "Bearer u3cret",
    ]


@pytest.mark.parametrize("answer", [b"Authorization: %s\n", b"HTTP/1.1 200 OK\r\nX-\x01: %s\r\n\r\n"])
async def test_a_server_that_repeats_a_secret_makes_nobody_show_it(tmp_path: Path, answer: bytes) -> None:
    """A server may send the credentials back in its answer; the error does not show them."""
    (tmp_path / "token").write_text("t0ps3cret-token")
    body = answer % b"Bearer t0ps3cret-token"
    async with fetching() as fetch:
        sent = body if body.startswith(b"HTTP") else whole(body)
        async with answering(lambda writer: _write(writer, sent)) as base:
            found = await scrape(fetch, f"{base}/metrics", Access(bearer_token_file=str(tmp_path / "token")))
        assert found.outcome in ("malformed", "protocol")
        assert "t0ps3cret" not in str(found.error)
        assert "[secret]" in str(found.error)


async def test_a_proxy_is_asked_with_its_own_credentials(tmp_path: Path) -> None:
    """It gets the whole URL and its own password; what is excepted is reached without it."""
    (tmp_path / "password").write_text("pr0xy")
    requests: list[web.Request] = []
    direct: list[web.Request] = []
    async with fetching() as fetch:
        async with recording(requests) as proxy, recording(direct) as base:
            way = Proxy(proxy, "joe", str(tmp_path / "password"), no_proxy=("127.0.0.1",))
            through = await scrape(fetch, "http://engine.example:8000/metrics", Access(proxy=way))
            past = await scrape(fetch, f"{base}/metrics", Access(proxy=way))
        assert (through.outcome, past.outcome) == ("ok", "ok"), through.error
    assert [str(request.url) for request in requests] == ["http://engine.example:8000/metrics"]
    assert requests[0].headers["Proxy-Authorization"] == f"Basic {base64.b64encode(b'joe:pr0xy').decode()}"
    assert len(direct) == 1
    assert "Proxy-Authorization" not in direct[0].headers


async def test_tls_goes_through_a_proxys_tunnel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tunnel is asked for with the proxy's credentials, and the target's certificate is checked through it."""
    monkeypatch.setenv("PROXY_PASSWORD", "pr0xy")
    authority = Authority(tmp_path)
    heads: list[bytes] = []
    async with fetching() as fetch:
        async with answering(HEALTHY, tls=authority.server("127.0.0.1")) as base, tunnelling(heads) as proxy:
            way = Proxy(proxy, "joe", password_env="PROXY_PASSWORD")
            found = await scrape(fetch, f"{base}/metrics", Access(tls=Tls(ca_file=str(authority.path)), proxy=way))
            stranger = await scrape(fetch, f"{base}/metrics", Access(proxy=way))
        assert (found.outcome, stranger.outcome) == ("ok", "tls"), found.error
    assert heads[0].startswith(b"CONNECT 127.0.0.1:")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"joe:pr0xy") in heads[0]


async def test_a_proxy_that_fails_is_reported_as_such(tmp_path: Path) -> None:
    """One that is not there, and one that refuses: the outcome is the proxy's, not the target's."""
    async with fetching() as fetch:
        gone = await scrape(fetch, "http://engine.example/metrics", Access(proxy=Proxy("http://127.0.0.1:1")))
        async with tunnelling([], status="407 Proxy Authentication Required") as proxy:
            refused = await scrape(fetch, "https://engine.example/metrics", Access(proxy=Proxy(proxy)))
        assert (gone.outcome, refused.outcome) == ("proxy", "proxy"), (gone.error, refused.error)
        assert "cannot connect to the proxy: Connection refused" in str(gone.error)
        assert "the proxy answers with HTTP status 407" in str(refused.error)


async def test_interim_responses_of_a_proxy_are_counted() -> None:
    """One that never opens the tunnel and sends `100 Continue` again and again."""
    async with fetching() as fetch:
        async with answering(FAULTS["interim responses without end"].serve) as proxy:
            found = await scrape(fetch, "https://engine.example/metrics", Access(proxy=Proxy(proxy)))
        assert found.outcome == "protocol", found.error


async def test_the_environments_proxy_is_taken_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its credentials; never for loopback, for what NO_PROXY names, or unasked."""
    requests: list[web.Request] = []
    async with fetching() as fetch:
        async with recording(requests) as proxy:
            monkeypatch.setenv("http_proxy", proxy.replace("//", "//joe:pr%40xy@"))
            monkeypatch.setenv("no_proxy", "internal.invalid,10.0.0.0/8")
            asked = Access(proxy=Proxy(from_environment=True))
            through = await scrape(fetch, "http://engine.invalid/metrics", asked)
            past = await scrape(fetch, "http://a.internal.invalid/metrics", asked)
            unasked = await scrape(fetch, "http://engine.invalid/metrics")
            beside = await scrape(fetch, "http://127.0.0.1:1/metrics", asked)
        outcomes = [each.outcome for each in (through, past, unasked, beside)]
        assert outcomes == ["ok", "dns", "dns", "unreachable"]
    (request,) = requests
    assert request.headers["Proxy-Authorization"] == f"Basic {base64.b64encode(b'joe:pr@xy').decode()}"


async def test_a_list_is_asked_for_with_its_own_access(tmp_path: Path) -> None:
    """It gets the refresh interval in a header, as from Prometheus, and its own token, not the targets'."""
    (tmp_path / "token").write_text("inventory")
    requests: list[web.Request] = []
    async with fetching() as fetch, recording(requests) as base:
        settings = HttpDiscoverySettings(
            url=f"{base}/chat",
            refresh_interval_ms=30_000,
            list_access=Access(bearer_token_file=str(tmp_path / "token")),
            access=Access(headers=(("X-Key", "targets"),)),
        )
        assert await fetch.list_targets(settings) == PAGE
    (request,) = requests
    assert request.headers["Authorization"] == "Bearer inventory"
    assert request.headers["X-Prometheus-Refresh-Interval-Seconds"] == "30"
    assert request.headers["Accept"] == "application/json"
    assert "X-Key" not in request.headers


@pytest.mark.parametrize("name", [*sorted(FAULTS.keys() - FAULTS_OF_TEXT), "dns"])
async def test_a_list_that_cannot_be_had_is_an_error(name: str) -> None:
    """Bounded and reported as a target's is."""
    async with fetching() as fetch:
        fault = FAULTS.get(name, FAULTS["error"])
        outcome = "dns" if name == "dns" else fault.outcome
        async with answering(fault.serve) as base:
            url = "http://no-such-host.invalid/" if name == "dns" else f"{base}/chat"
            interval_ms = 400 if outcome == "timeout" else 60_000  # it is the timeout as well
            with pytest.raises(FetchError) as found:
                await fetch.list_targets(HttpDiscoverySettings(url=url, refresh_interval_ms=interval_ms))
        assert found.value.outcome == outcome
        if fault.outcome == "too_large" and name != "dns":
            assert str(found.value) == "the answer exceeds 16000000 bytes (the most a list may have)"


async def test_a_hanging_name_server_holds_up_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many look-ups of one name that gets no answer are one thread; other names are found meanwhile."""
    release, asked = threading.Event(), []
    look_up = socket.getaddrinfo

    def hang(host: str, *words: object, **named: object) -> object:
        if host == "hanging.example":
            asked.append(host)
            release.wait(deadline_seconds(10))
        return look_up("127.0.0.1", *words, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    resolver = Resolver()
    for _ in range(20):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(resolver.resolve("hanging.example", 80, socket.AF_UNSPEC), 0.01)
    found = await asyncio.wait_for(resolver.resolve("other.example", 80, socket.AF_UNSPEC), 5)
    release.set()
    assert [each["host"] for each in found] == ["127.0.0.1"]
    assert len(asked) == 1


async def test_too_many_names_without_an_answer_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a bound to the threads that wait for a name server."""
    release = threading.Event()
    monkeypatch.setattr("servescope.web.resolver._MOST_LOOKUPS", 2)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: release.wait(deadline_seconds(10)) and [])
    resolver = Resolver()
    waiting = [asyncio.ensure_future(resolver.resolve(f"h{number}", 80)) for number in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(OSError, match="2 other names are being looked up without an answer"):
        await resolver.resolve("h2", 80)
    release.set()
    await asyncio.gather(*waiting)


async def test_a_fault_of_one_request_leaves_the_next_alone() -> None:
    """The same session scrapes a good target before, during and after every fault."""
    async with fetching() as fetch, answering(HEALTHY) as good:
        for name, fault in FAULTS.items():
            async with answering(fault.serve) as bad:
                both = await asyncio.gather(
                    scrape(fetch, f"{bad}/metrics", limits=Limits(0.1, MAX_BODY_BYTES, max_series=100)),
                    scrape(fetch, f"{good}/metrics"),
                )
            assert both[1].outcome == "ok", name
