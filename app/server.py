"""The console's server, for `streamlit run`: the pages, behind checks of the Host header and of the sign-in's."""

from __future__ import annotations

import os
from pathlib import Path

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from streamlit.starlette import App

from servescope.console import HOSTS_VARIABLE, SIGN_IN_VARIABLE
from servescope.settings.hosts import accepts_host
from servescope.settings.sign_in import SignIn


class HostCheck:
    """ASGI middleware that answers 421 to a request or a WebSocket whose Host is not one of ours.

    It runs before Streamlit's own middleware and routes: pages, static files, health and stream alike. A request
    without a Host passes, as no browser sends one.
    """

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        hosts = Headers(scope=scope).getlist("host") if scope["type"] in ("http", "websocket") else []
        refused = next((host for host in hosts if not accepts_host(host, self._names)), None)
        if refused is None:
            await self._app(scope, receive, send)
            return
        message = (
            f"host {refused[:100]!r} is not served, supported: localhost, an address, "
            "or a name given with `servescope console --allow-host NAME`"
        )
        await PlainTextResponse(message, status_code=421)(scope, receive, send)


class PeerCheck:
    """ASGI middleware that removes the header of a sign-in unless a configured proxy has sent it, once."""

    def __init__(self, app: ASGIApp, sign_in: SignIn) -> None:
        self._app, self._sign_in = app, sign_in
        self._header = sign_in.header.lower().encode("latin-1")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with the header where it is believed."""
        if scope["type"] in ("http", "websocket"):
            named = [value for name, value in scope["headers"] if name.lower() == self._header]
            peer = scope.get("client")
            if named and not (len(named) == 1 and peer is not None and self._sign_in.believes(peer[0])):
                kept = [pair for pair in scope["headers"] if pair[0].lower() != self._header]
                scope = {**scope, "headers": kept}
        await self._app(scope, receive, send)


app = App(
    Path(__file__).resolve().parent / "console.py",
    middleware=[
        Middleware(HostCheck, names=frozenset(os.environ.get(HOSTS_VARIABLE, "").split())),
        Middleware(PeerCheck, sign_in=SignIn.from_json(os.environ.get(SIGN_IN_VARIABLE, ""))),
    ],
)
