"""The console's door: what is checked of every request and WebSocket before Streamlit sees it, as ASGI middleware."""

from __future__ import annotations

import json
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose
from streamlit.web.server.starlette.starlette_server_config import USER_COOKIE_NAME

# Streamlit has no public name for what reads the cookie of its own login.
from streamlit.web.server.starlette.starlette_websocket import _get_signed_cookie_with_chunks

from app.door.refusals import Refusals
from servescope.settings.hosts import accepts_host
from servescope.settings.sign_in import SignIn, name_by_claims

_HEADERS: Final = {
    "X-Frame-Options": "DENY",
    # A page loads what is the console's alone: Streamlit asks no other host, and a text from outside that were taken
    # for markup would fetch nothing. Streamlit's markup has scripts and styles in it.
    "Content-Security-Policy": (
        "frame-ancestors 'none'; default-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:"
    ),
}
# What the browser asks for before somebody has signed in; the pages themselves ask by `require_reader`.
_OPEN: Final = ("_stcore/health", "_stcore/host-config", "_stcore/stream")
_CLOSED: Final = ("_stcore", "media", "component")
_FRONTEND: Final = "static"


class HeaderGuard:
    """Adds to every answer, files and errors included, the headers with which no other page may frame it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""

        async def send_guarded(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                message.setdefault("headers", [])
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, send_guarded)


class HostCheck:
    """Answers 421 to a request or a WebSocket whose Host is not one of ours.

    A request without a Host passes, as no browser sends one.
    """

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        refused = next((host for host in _values(scope, "host") if not accepts_host(host, self._names)), None)
        if refused is None:
            await self._app(scope, receive, send)
            return
        message = (
            f"host {refused[:100]!r} is not served, supported: localhost, an address, "
            "or a name given with `servescope console --allow-host NAME`"
        )
        await PlainTextResponse(message, status_code=421)(scope, receive, send)


class OriginCheck:
    """Answers 403 to a request or a WebSocket of a page that is not ours: of another site, port or scheme.

    Without an Origin it passes: every browser sends one with a WebSocket, and with whatever a page of another site
    sends but links and pictures. Streamlit's own check accepts other ports of this machine, and looks up the machine's
    address at a service outside before it refuses.
    """

    def __init__(self, app: ASGIApp, refusals: Refusals) -> None:
        self._app, self._refusals = app, refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        origins, hosts = _values(scope, "origin"), _values(scope, "host")
        own = {f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts}
        if not origins or (len(origins) == 1 and origins[0] in own):
            await self._app(scope, receive, send)
            return
        self._refusals.note("a request of another origin", scope)
        message = f"origin {', '.join(origins)[:100]!r} is not that of this console: open its own address"
        # No page can read the answer to a WebSocket that is refused, and uvicorn logs an error for each with a text.
        refusal = WebSocketClose() if scope["type"] == "websocket" else PlainTextResponse(message, status_code=403)
        await refusal(scope, receive, send)


class PeerCheck:
    """Removes the header of a sign-in unless a configured proxy has sent it, once."""

    def __init__(self, app: ASGIApp, sign_in: SignIn) -> None:
        self._app, self._sign_in = app, sign_in
        self._header = sign_in.header.lower().encode("latin-1")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with the header where it is believed."""
        named = _values(scope, self._sign_in.header)
        peer = scope.get("client")
        if named and not (len(named) == 1 and peer is not None and self._sign_in.believes(peer[0])):
            kept = [pair for pair in scope["headers"] if pair[0].lower() != self._header]
            scope = {**scope, "headers": kept}
        await self._app(scope, receive, send)


class SignInCheck:
    """Answers 401 to who has not signed in and asks for more than the page that says how; its peers are checked."""

    def __init__(self, app: ASGIApp, sign_in: SignIn) -> None:
        self._app, self._sign_in = app, sign_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if not _is_closed(scope) or self._sign_in.kind == "none" or self._name(scope):
            await self._app(scope, receive, send)
            return
        await PlainTextResponse("sign in on a page of this console first", status_code=401)(scope, receive, send)

    def _name(self, scope: Scope) -> str:
        if self._sign_in.kind == "proxy":
            return "".join(_values(scope, self._sign_in.header))
        claims = _get_signed_cookie_with_chunks(HTTPConnection(scope).cookies, USER_COOKIE_NAME)
        return name_by_claims(json.loads(claims)) if claims else ""


def _is_closed(scope: Scope) -> bool:
    parts = [part for part in scope.get("path", "").split("/") if part]
    # What is before it is the path below which the console is served.
    first = next((place for place, part in enumerate(parts) if part in (*_CLOSED, _FRONTEND)), None)
    return first is not None and parts[first] != _FRONTEND and "/".join(parts[first:]) not in _OPEN


def _values(scope: Scope, header: str) -> list[str]:
    """What a request or a WebSocket has in this header, in each line of it."""
    return Headers(scope=scope).getlist(header) if "headers" in scope else []
