"""Notifications over HTTP: with the receiver's credentials, to its URL and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from servescope.collector.scrapes.fetch import HttpFetch
from servescope.settings.access import Access
from servescope.web.connections import FetchError, open_session

TOKEN = "t0ken-of-the-tests"


def posting(
    answer: Callable[[web.Request], Awaitable[web.Response]], access: Access, *, seconds: float = 5.0
) -> list[tuple[str, str, bytes]]:
    """The requests that a server got from one post: path, Authorization and body; raises what the post raised."""
    got: list[tuple[str, str, bytes]] = []

    async def handle(request: web.Request) -> web.Response:
        got.append((request.path, request.headers.get("Authorization", ""), await request.read()))
        return await answer(request)

    async def run() -> None:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            async with open_session() as session:
                await HttpFetch(session).post(f"http://127.0.0.1:{port}/hook", access, b"[1]", seconds)
        finally:
            await runner.cleanup()

    asyncio.run(run())
    return got


async def _take(_: web.Request) -> web.Response:
    return web.Response(status=204)


def test_a_post_carries_the_credentials_of_its_receiver(tmp_path: Path) -> None:
    """A token from its file; a password likewise, as basic authentication."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    bearer = Access(bearer_token_file="token", directory=str(tmp_path))
    basic = Access(basic_auth_username="u", basic_auth_password_file="token", directory=str(tmp_path))

    assert posting(_take, bearer) == [("/hook", f"Bearer {TOKEN}", b"[1]")]
    assert posting(_take, basic)[0][1].startswith("Basic ")
    assert posting(_take, Access()) == [("/hook", "", b"[1]")]


@pytest.mark.parametrize(
    ("status", "outcome"), [(302, "status"), (400, "status"), (500, "status"), (429, "rate_limited")]
)
def test_a_status_other_than_2xx_fails(tmp_path: Path, status: int, outcome: str) -> None:
    """A redirect too: it is not followed, so that no credentials leave for another URL."""
    (tmp_path / "token").write_text(TOKEN)
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=status, headers={"Location": "/elsewhere"})

    with pytest.raises(FetchError) as raised:
        posting(answer, Access(bearer_token_file="token", directory=str(tmp_path)))
    assert (raised.value.outcome, asked) == (outcome, ["/hook"])
    assert f"HTTP status {status}" in str(raised.value)
    assert TOKEN not in str(raised.value)


def test_a_receiver_that_does_not_answer_fails(tmp_path: Path) -> None:
    """After the timeout; one whose secret file is gone fails at once."""

    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    with pytest.raises(FetchError, match=r"no answer within 0\.2 s"):
        posting(hang, Access(), seconds=0.2)
    with pytest.raises(FetchError, match="secret file 'gone' cannot be read"):
        posting(_take, Access(bearer_token_file="gone", directory=str(tmp_path)))
