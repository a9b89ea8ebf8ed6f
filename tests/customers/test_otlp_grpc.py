"""OTLP over gRPC to a receiver on loopback: what is sent, what its statuses mean, and what is said of failures."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from servescope.customers.points.points import Accepted
from servescope.customers.policy.policy import Push
from servescope.customers.transports.senders import make_sender
from servescope.settings.access import Access, Proxy, Tls
from servescope.web.posting import SendError
from tests.customers.support.customer_points import MINUTE, REQUESTS, T0, kind_of_each, point, push_to, stream
from tests.customers.support.otlp_backends import GrpcBackend, aborting, grpc_backend
from tests.customers.support.sending import fail, send, succeed
from tests.support.authorities import Authority
from tests.support.tunnels import tunnelling

SECRET = "s3cr3t-of-acme"
Code = grpc.StatusCode


def to(backend: GrpcBackend, access: Access | None = None, *, gzip: bool = True) -> Push:
    """The backend as a destination."""
    return push_to(backend.url, access=access, protocol="otlp-grpc", gzip=gzip)


async def test_a_request_arrives_whole_and_is_accepted() -> None:
    """Compressed or not, with the headers as metadata; what is rejected is counted, with its text."""
    async with grpc_backend() as backend:
        access = Access(headers=(("Api-Key", SECRET),))
        assert (await succeed(to(backend, access))).points == 4
        backend.rejecting = 3
        (accepted,) = await send(to(backend, gzip=False), kind_of_each(T0 + 2 * MINUTE))
        assert isinstance(accepted, Accepted)
        assert (accepted.points, accepted.rejected, accepted.message) == (1, 3, "over the limit")
    assert not backend.ledger.broken
    assert {len(points) for points in backend.ledger.streams.values()} == {2}
    assert [headers.get("api-key") for headers in backend.headers] == [SECRET, None]


@pytest.mark.parametrize(
    ("code", "retry_seconds", "reason", "retryable"),
    [
        (Code.UNAVAILABLE, None, "unavailable", True),
        (Code.UNAVAILABLE, 5, "unavailable", True),
        (Code.ABORTED, None, "unavailable", True),
        (Code.DATA_LOSS, None, "unavailable", True),
        (Code.INTERNAL, None, "unavailable", True),
        (Code.RESOURCE_EXHAUSTED, 7, "throttled", True),
        (Code.RESOURCE_EXHAUSTED, None, "throttled", False),
        (Code.UNAUTHENTICATED, None, "credentials", True),
        (Code.PERMISSION_DENIED, None, "credentials", True),
        (Code.UNIMPLEMENTED, None, "protocol", True),
        (Code.INVALID_ARGUMENT, None, "refused", False),
        (Code.FAILED_PRECONDITION, None, "refused", False),
    ],
)
async def test_a_status_says_whether_the_same_request_may_succeed_later(
    code: grpc.StatusCode, retry_seconds: int | None, reason: str, retryable: bool
) -> None:
    """As OTLP has it; an exhausted receiver is asked again only where it says when."""
    async with grpc_backend() as backend:
        backend.faults.append(aborting(code, f"not now, {SECRET}", retry_seconds=retry_seconds))
        error = await fail(to(backend, Access(headers=(("Api-Key", SECRET),))))
        assert (error.reason, error.retryable, error.after_seconds) == (reason, retryable, retry_seconds)
        assert f"gRPC status {code.name}: not now, [secret]" in str(error)
    assert not backend.ledger.streams


async def test_a_request_that_is_too_large_is_split_and_sent_again() -> None:
    """By the receiver's own bound of a message."""
    batch = [point(stream(REQUESTS, result=f"result {number}"), number) for number in range(60)]
    async with grpc_backend(most_bytes=2_000) as backend:
        with ThreadPoolExecutor(1) as executor:
            sender = make_sender(to(backend, gzip=False), executor)
            with pytest.raises(SendError) as caught:
                await sender.send(batch)
            assert (caught.value.reason, caught.value.retryable) == ("too_large", True)
            sent = [(await sender.send(request)).points for request in sender.split(batch)]
            await sender.close()
        assert sum(sent) == len(batch)
    assert len(backend.ledger.streams) == len(batch)


def test_a_receiver_that_does_not_answer_is_given_up() -> None:
    """One that accepts connections and says nothing, and one that is not there."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        push = push_to(f"http://127.0.0.1:{port}", protocol="otlp-grpc", timeout_seconds=0.3)
        hung = asyncio.run(fail(push))
    gone = asyncio.run(fail(push_to("http://127.0.0.1:1", protocol="otlp-grpc")))
    nowhere = asyncio.run(fail(push_to("http://no-such-host.invalid:4317", protocol="otlp-grpc")))

    assert (hung.reason, hung.retryable, str(hung)) == ("timeout", True, "no complete answer within 0.3 s")
    assert (gone.reason, nowhere.reason) == ("unreachable", "unreachable")
    assert "Connection refused" in str(gone)
    assert "no-such-host.invalid" in str(nowhere)


async def test_certificates_are_verified_and_presented(tmp_path: Path) -> None:
    """TLS with the customer's own authority, an expired certificate, another name, and a client's certificate."""
    authority = Authority(tmp_path)
    cert, key = authority.client("acme")
    known = Access(tls=Tls(ca_file=str(authority.path)))
    mutual = Access(tls=Tls(ca_file=str(authority.path), cert_file=cert, key_file=key))
    named = Access(tls=Tls(ca_file=str(authority.path), server_name="backend.example"))
    async with grpc_backend(authority.grpc_server("127.0.0.1")) as backend:
        await succeed(to(backend, known))
        error = await fail(to(backend))
        assert (error.reason, error.retryable) == ("tls", True)
        assert "TLS failed: certificate verify failed" in str(error)
    async with grpc_backend(authority.grpc_server("127.0.0.1", expired=True)) as backend:
        error = await fail(to(backend, known))
        assert str(error) == "TLS failed: certificate verify failed: certificate has expired"
    async with grpc_backend(authority.grpc_server("backend.example")) as backend:
        await succeed(to(backend, named))
        assert (await fail(to(backend, known))).retryable
    async with grpc_backend(authority.grpc_server("127.0.0.1", asks_clients=True)) as backend:
        await succeed(to(backend, mutual))
        assert (await fail(to(backend, known))).reason in ("tls", "unreachable")


async def test_secrets_and_certificates_may_rotate(tmp_path: Path) -> None:
    """The next request is sent with the new token, over a connection with the new certificate."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    trusted, token = tmp_path / "trusted.pem", tmp_path / "token"

    def rotate(authority: Authority, secret: str) -> None:
        trusted.write_bytes(authority.path.read_bytes())
        token.write_text(secret)

    access = Access(tls=Tls(ca_file=str(trusted)), bearer_token_file=str(token))
    async with grpc_backend(new.grpc_server("127.0.0.1")) as backend:
        rotate(old, "first")
        with ThreadPoolExecutor(1) as executor:
            sender = make_sender(to(backend, access), executor)
            with pytest.raises(SendError, match="certificate verify failed"):
                await sender.send(kind_of_each())
            rotate(new, "second")
            await sender.send(kind_of_each())
            trusted.unlink()
            with pytest.raises(SendError, match=r"certificate file '.*trusted.pem' cannot be read") as caught:
                await sender.send(kind_of_each())
            assert caught.value.reason == "credentials"
            await sender.close()
    assert [headers["authorization"] for headers in backend.headers] == ["Bearer second"]


async def test_a_proxy_is_used_with_its_own_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through its tunnel."""
    monkeypatch.setenv("PROXY_PASSWORD", "pr0xy")
    authority = Authority(tmp_path)
    heads: list[bytes] = []
    async with grpc_backend(authority.grpc_server("127.0.0.1")) as backend, tunnelling(heads) as proxy:
        way = Proxy(proxy, "joe", password_env="PROXY_PASSWORD")
        await succeed(to(backend, Access(tls=Tls(ca_file=str(authority.path)), proxy=way)))
    assert heads[0].startswith(b"CONNECT 127.0.0.1:")
    assert b"proxy-authorization: basic am9lonbymhh5" in heads[0].lower()
