"""Notifications over HTTP: with the receiver's credentials, to its URL and nowhere else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from servescope.collector.scrapes.fetch import HttpFetch
from servescope.settings.access import Access
from servescope.web.connections import FetchError, open_session
from tests.support.loopback import running
from tests.support.waiting import deadline_seconds

TOKEN = "t0ken-of-the-tests"


def posting(access: Access) -> list[tuple[str, str, bytes]]:
    """The requests that a server got from one post: path, Authorization and body."""
    got: list[tuple[str, str, bytes]] = []

    async def take(request: web.Request) -> web.Response:
        got.append((request.path, request.headers.get("Authorization", ""), await request.read()))
        return web.Response(status=204)

    async def run() -> None:
        application = web.Application()
        application.router.add_post("/hook", take)
        async with running(application) as url, open_session() as session:
            await HttpFetch(session).post(f"{url}/hook", access, b"[1]", deadline_seconds())

    asyncio.run(run())
    return got


def test_a_post_carries_the_credentials_of_its_receiver(tmp_path: Path) -> None:
    """A token from its file; a password likewise, as basic authentication; nothing is sent where the file is gone."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    bearer = Access(bearer_token_file="token", directory=str(tmp_path))
    basic = Access(basic_auth_username="u", basic_auth_password_file="token", directory=str(tmp_path))

    assert posting(bearer) == [("/hook", f"Bearer {TOKEN}", b"[1]")]
    assert posting(basic)[0][1].startswith("Basic ")
    assert posting(Access()) == [("/hook", "", b"[1]")]
    with pytest.raises(FetchError, match="secret file 'gone' cannot be read"):
        posting(Access(bearer_token_file="gone", directory=str(tmp_path)))
