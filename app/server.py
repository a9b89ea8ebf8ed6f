"""The console's server, for `streamlit run`: the pages, behind a check of the Host header of every request."""

from __future__ import annotations

import os
from pathlib import Path

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from streamlit.starlette import App

from servescope.console import HOSTS_VARIABLE
from servescope.settings.hosts import accepts_host


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


app = App(
    Path(__file__).resolve().parent / "console.py",
    middleware=[Middleware(HostCheck, names=frozenset(os.environ.get(HOSTS_VARIABLE, "").split()))],
)
