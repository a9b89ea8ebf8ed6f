"""OTLP over HTTP to a receiver on loopback: what is sent, what its answers mean, and what is said of failures."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from aiohttp import web

from servescope.customers.policy.policy import Protocol
from servescope.customers.transports.senders import make_sender
from servescope.settings.access import Access, Proxy, Tls
from servescope.web.posting import SendError
from tests.customers.support.customer_points import MINUTE, REQUESTS, T0, kind_of_each, point, push_to, stream
from tests.customers.support.otlp_backends import http_backend, refusing
from tests.customers.support.sending import fail, succeed
from tests.support.authorities import Authority
from tests.support.faulty_servers import Serve, answering, handling, head, sending, whole
from tests.support.tunnels import tunnelling

SECRET = "s3cr3t-of-acme"


async def test_a_request_arrives_whole_and_is_accepted() -> None:
    """Compressed or not; the outcome counts points and the bytes that were sent."""
    async with http_backend() as backend:
        first = await succeed(push_to(backend.url))
        second = await succeed(push_to(backend.url, gzip=False), kind_of_each(T0 + 2 * MINUTE))
        assert (first.points, first.rejected, second.points) == (4, 0, 4)
        assert 0 < first.sent_bytes < second.sent_bytes
    assert not backend.ledger.broken
    assert {len(points) for points in backend.ledger.streams.values()} == {2}
    assert [headers.get("Content-Encoding") for headers in backend.headers] == ["gzip", None]


async def test_what_a_receiver_rejects_is_counted_with_its_text() -> None:
    """Partial success, in protobuf of either name or in JSON: the request was accepted, and is not sent again."""

    async def in_json(_: web.Request) -> web.Response:
        return web.json_response({"partialSuccess": {"rejectedDataPoints": "1", "errorMessage": f"not {SECRET}"}})

    async def by_the_registered_name(_: web.Request) -> web.Response:
        return web.Response(body=b"\x0a\x02\x08\x02", content_type="application/protobuf")

    async with http_backend() as backend:
        backend.rejecting = 3
        access = Access(headers=(("Api-Key", SECRET),))
        in_protobuf = await succeed(push_to(backend.url))
        backend.faults.append(in_json)
        from_json = await succeed(push_to(backend.url, access=access))
        backend.faults.append(by_the_registered_name)
        assert (await succeed(push_to(backend.url))).rejected == 2
        assert (in_protobuf.points, in_protobuf.rejected, in_protobuf.message) == (1, 3, "over the limit")
        assert (from_json.points, from_json.rejected, from_json.message) == (3, 1, "not [secret]")


@pytest.mark.parametrize(
    ("status", "reason", "retryable"),
    [
        (400, "refused", False),
        (422, "refused", False),
        (401, "credentials", True),
        (403, "credentials", True),
        (404, "protocol", True),
        (405, "protocol", True),
        (408, "timeout", True),
        (415, "protocol", True),
        (429, "throttled", True),
        (500, "unavailable", True),
        (502, "unavailable", True),
        (503, "unavailable", True),
        (504, "unavailable", True),
    ],
)
async def test_a_status_says_whether_the_same_request_may_succeed_later(
    status: int, reason: str, retryable: bool
) -> None:
    """Data that are refused are refused for good; the rest is a matter of time, a token or a path."""
    async with http_backend() as backend:
        backend.faults.append(refusing(status, "out of order"))
        error = await fail(push_to(backend.url))
        assert (error.reason, error.retryable) == (reason, retryable)
        assert f"HTTP status {status}; out of order" in str(error)
        assert ("is the path '/v1/metrics' right?" in str(error)) == (reason == "protocol")
    assert not backend.ledger.streams


async def test_a_receiver_is_left_alone_for_as_long_as_it_asks() -> None:
    """`Retry-After` of 429 and 503, in seconds or as a date."""
    async with http_backend() as backend:
        date = "Sat, 21 Nov 2026 00:01:30 GMT"
        backend.faults += [
            refusing(429, Retry_After="7"),
            refusing(503, Retry_After="9"),
            refusing(503, Date="Sat, 21 Nov 2026 00:00:00 GMT", Retry_After=date),
            refusing(429),
        ]
        found = [(await fail(push_to(backend.url))).after_seconds for _ in range(4)]
        assert found == [7.0, 9.0, 90.0, None]


async def test_a_request_that_is_too_large_is_split_and_sent_again() -> None:
    """What was not accepted is offered again in smaller requests, until it fits."""
    batch = [point(stream(REQUESTS, result=str(number)), number) for number in range(40)]
    async with http_backend() as backend:
        backend.faults += [refusing(413), refusing(413)]
        with ThreadPoolExecutor(1) as executor:
            sender = make_sender(push_to(backend.url), executor)
            for _ in range(2):
                with pytest.raises(SendError) as caught:
                    await sender.send(sender.split(batch)[0])
                assert (caught.value.reason, caught.value.retryable, caught.value.after_seconds) == (
                    "too_large", True, 0.0,
                )  # fmt: skip
            requests = sender.split(batch)
            sizes = [(await sender.send(request)).points for request in requests]
            await sender.close()
        assert len(sizes) >= 4
        assert sum(sizes) == len(batch)
    assert not backend.ledger.broken
    assert len(backend.ledger.streams) == len(batch)


BROKEN = {
    "half a response": (head("Content-Length: 900") + b"\x0a", "unreachable", "the answer ended early"),
    "hanging up": (b"", "unreachable", "before the head of an answer"),
    "not HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", "protocol", "not HTTP"),
    "a page": (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n<p/>", "protocol", "a page of HTML",
    ),
    "a proxy's page": (
        b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<p>\x1b[2J HTTPS",
        "protocol", "400; <p> [2J HTTPS",
    ),
    "redirect": (
        whole(b"", "Location: https://other.example/", status="302 Found"), "protocol", "redirects are not followed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("protocol", ["otlp-http", "remote-write"])
@pytest.mark.parametrize("name", BROKEN)
async def test_an_answer_that_is_none_is_named_and_retried(name: str, protocol: Protocol) -> None:
    """Half a response, none, or one of something else than a receiver."""
    answer, reason, text = BROKEN[name]
    async with answering(sending(answer)) as base:
        error = await fail(push_to(f"{base}/v1/metrics", protocol=protocol))
    assert (error.reason, error.retryable) == (reason, True), error
    assert text in str(error)


@pytest.mark.parametrize("serve", [sending(then_hang=True), sending(head("Content-Length: 9"), then_hang=True)])
async def test_a_receiver_that_does_not_answer_in_time_is_given_up(serve: Serve) -> None:
    """One that is silent, and one that hangs within its answer."""
    async with answering(serve) as base:
        error = await fail(push_to(base, timeout_seconds=0.3))
    assert (error.reason, error.retryable, str(error)) == ("timeout", True, "no complete answer within 0.3 s")


async def test_a_receiver_that_does_not_read_is_given_up() -> None:
    """A slow drain: the request never leaves our own buffers, and the time is bounded all the same."""
    batch = [point(stream(REQUESTS, result=f"{number:0999}"), number) for number in range(9_000)]

    async def never_read(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.Event().wait()

    async with handling(never_read) as address:
        error = await fail(push_to(f"http://{address}/", gzip=False, timeout_seconds=0.5), batch)
    assert error.reason == "timeout"


async def test_a_receiver_that_is_not_there_is_named() -> None:
    """No port and no host."""
    gone = await fail(push_to("http://127.0.0.1:1/v1/metrics"))
    nowhere = await fail(push_to("http://no-such-host.invalid/v1/metrics"))
    assert (gone.reason, nowhere.reason) == ("unreachable", "unreachable")
    assert "Connection refused" in str(gone)
    assert "cannot find host 'no-such-host.invalid'" in str(nowhere)


async def test_a_clock_that_explains_a_refusal_is_named() -> None:
    """And accepted requests carry how far the receiver's clock is ahead."""
    async with http_backend() as backend:
        ahead = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
        backend.faults += [refusing(400, "too old", Date=ahead), refusing(200, Date=ahead)]
        error = await fail(push_to(backend.url))
        accepted = await succeed(push_to(backend.url))
        assert "s ahead of ours" in str(error)
        assert accepted.skew_seconds is not None
        assert 3500 < accepted.skew_seconds < 3700


async def test_a_token_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    """A rotated token is sent with the next request, and one that cannot be read is named without its value."""
    token = tmp_path / "token"
    token.write_text("first\n")
    async with http_backend() as backend:
        push = push_to(backend.url, access=Access(bearer_token_file=str(token)))
        with ThreadPoolExecutor(1) as executor:
            sender = make_sender(push, executor)
            await sender.send(kind_of_each())
            token.write_text("second\n")
            await sender.send(kind_of_each(T0 + 2 * MINUTE))
            token.unlink()
            with pytest.raises(SendError, match=r"secret file '.*token' cannot be read") as caught:
                await sender.send(kind_of_each())
            await sender.close()
        assert (caught.value.reason, caught.value.retryable) == ("credentials", True)
    assert [headers["Authorization"] for headers in backend.headers] == ["Bearer first", "Bearer second"]


async def test_a_secret_that_a_receiver_sends_back_is_not_shown(tmp_path: Path) -> None:
    """In the text of its refusal."""
    async with http_backend() as backend:
        backend.faults.append(refusing(403, f"key {SECRET} is unknown"))
        error = await fail(push_to(backend.url, access=Access(headers=(("Api-Key", SECRET),))))
        assert "key [secret] is unknown" in str(error)
        assert SECRET not in repr(error)


async def test_certificates_are_verified_and_presented(tmp_path: Path) -> None:
    """TLS with the customer's own authority, an expired certificate, a client certificate asked for and missing."""
    authority = Authority(tmp_path)
    cert, key = authority.client("acme")
    known = Access(tls=Tls(ca_file=str(authority.path)))
    mutual = Access(tls=Tls(ca_file=str(authority.path), cert_file=cert, key_file=key))
    async with http_backend(authority.server("127.0.0.1")) as backend:
        await succeed(push_to(backend.url, access=known))
        error = await fail(push_to(backend.url))
        assert (error.reason, error.retryable) == ("tls", True)
    async with http_backend(authority.server("127.0.0.1", expired=True)) as backend:
        error = await fail(push_to(backend.url, access=known))
        assert (error.reason, "certificate has expired" in str(error)) == ("tls", True)
    async with http_backend(authority.server("127.0.0.1", asks_clients=True)) as backend:
        await succeed(push_to(backend.url, access=mutual))
        error = await fail(push_to(backend.url, access=known))
        assert error.reason in ("tls", "unreachable")


async def test_a_proxy_is_used_with_its_own_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS through its tunnel; a proxy that refuses is named."""
    monkeypatch.setenv("PROXY_PASSWORD", "pr0xy")
    authority = Authority(tmp_path)
    heads: list[bytes] = []
    async with http_backend(authority.server("127.0.0.1")) as backend, tunnelling(heads) as proxy:
        way = Proxy(proxy, "joe", password_env="PROXY_PASSWORD")
        access = Access(tls=Tls(ca_file=str(authority.path)), proxy=way)
        await succeed(push_to(backend.url, access=access))
    async with tunnelling([], status="407 Proxy Authentication Required") as proxy:
        error = await fail(push_to("https://backend.example/v1/metrics", access=Access(proxy=Proxy(proxy))))
        assert (error.reason, error.retryable) == ("unreachable", True)
        assert "the proxy answers with HTTP status 407" in str(error)
    assert heads[0].startswith(b"CONNECT 127.0.0.1:")
    assert b"Proxy-Authorization: Basic " in heads[0]
