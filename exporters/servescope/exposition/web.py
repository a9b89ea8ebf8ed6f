"""The page as an app to mount in a web server: ASGI and WSGI.

An app responds at its mount point, with or without a trailing slash, and at `/metrics` below it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from servescope.exposition.page_cache import CACHE_SECONDS, PageCache, Response, refusal
from servescope.exposition.rendering import cached_pages
from servescope.instruments.instrument import Exposed

__all__ = ["make_asgi_app", "make_wsgi_app"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PATH = "/metrics"
_WHERE = f"the app's mount point, or {PATH}"


def make_asgi_app(*instruments: Exposed, cache_seconds: float = CACHE_SECONDS) -> AsgiApp:
    """The page as an ASGI app, to mount in a FastAPI or Starlette app: `app.mount("/metrics", make_asgi_app(engine))`.

    It renders in a thread of its own, never on the event loop, once for all scrapes within `cache_seconds`. Raises
    UsageError when two instruments have the same identity.
    """
    return AsgiApp(cached_pages(instruments, cache_seconds))


def make_wsgi_app(*instruments: Exposed, cache_seconds: float = CACHE_SECONDS) -> WsgiApp:
    """The page as a WSGI app, rendered once for all scrapes within `cache_seconds`, in the server's thread.

    Raises UsageError when two instruments have the same identity.
    """
    return WsgiApp(cached_pages(instruments, cache_seconds))


class AsgiApp:
    """An ASGI 3 app for asyncio servers; it renders in one thread of its own, never on the event loop."""

    def __init__(self, pages: PageCache) -> None:
        self._pages = pages
        self._begin()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one connection: a request, the server's lifespan, or a websocket, which is closed."""
        if scope["type"] == "http":
            await self._respond(scope, send)
        elif scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _respond(self, scope: Message, send: Send) -> None:
        path, mount = scope["path"], scope.get("root_path", "")
        # The standard's path includes the mount point; older frameworks take it off, and proxies what they add to it.
        found = _is_page(path.removeprefix(mount)) or mount.endswith(path.rstrip("/"))
        response = refusal(scope["method"], found=found, where=_WHERE) or await self._page(scope)
        headers = [(name.lower().encode(), value.encode()) for name, value in response.headers]
        await send({"type": "http.response.start", "status": response.status.value, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else response.body})

    async def _page(self, scope: Message) -> Response:
        asked = _header(scope, b"accept"), _header(scope, b"accept-encoding")
        kept = self._pages.cached_response(*asked)
        if kept is not None:
            return kept
        if os.getpid() != self._process:
            self._begin()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._pages.response, *asked)

    def _begin(self) -> None:
        # A thread does not survive a fork; it starts with the first page.
        self._process = os.getpid()
        self._thread = ThreadPoolExecutor(1, "servescope-metrics")


class WsgiApp:
    """A WSGI app; it renders in the server's thread, which waits for the page in any case."""

    def __init__(self, pages: PageCache) -> None:
        self._pages = pages

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        """Answer one request."""
        method = environ["REQUEST_METHOD"]
        found = _is_page(environ.get("PATH_INFO", ""))
        response = refusal(method, found=found, where=_WHERE) or self._pages.response(
            environ.get("HTTP_ACCEPT"), environ.get("HTTP_ACCEPT_ENCODING")
        )
        start_response(f"{response.status.value} {response.status.phrase}", list(response.headers))
        return [] if method == "HEAD" else [response.body]


def _is_page(path: str) -> bool:
    return path in ("", "/", PATH)


def _header(scope: Message, name: bytes) -> str | None:
    """The header's lines as one; None when it was not sent."""
    values = [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]
    return ", ".join(values) if values else None


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
