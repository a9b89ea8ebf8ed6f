"""An aiohttp server on 127.0.0.1 for the length of an `async with` block."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(routes: Mapping[str, Handler]) -> AsyncIterator[str]:
    """The base URL of a server that answers these paths."""
    application = web.Application()
    for path, handler in routes.items():
        application.router.add_get(path, handler)
    async with running(application) as url:
        yield url


@asynccontextmanager
async def running(application: web.Application, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The base URL of an application on a free port, with TLS where a context is given."""
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        yield f"{'https' if context else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
