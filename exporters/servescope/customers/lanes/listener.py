"""What customers scrape: `/customers/NAME/metrics`, each with its own token, and so many times a minute."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from weakref import WeakSet

from aiohttp import hdrs, web

from servescope.customers.lanes.telemetry import CustomersTelemetry
from servescope.customers.policy.policy import Pull
from servescope.customers.transports.page import CustomerPage
from servescope.exposition.negotiation import OPENMETRICS, TEXT, wants_openmetrics
from servescope.web.answers import RequestError, expect_nothing
from servescope.web.bounds import Bounds
from servescope.web.gate import GATE, Gate
from servescope.web.telemetry import ApiTelemetry
from servescope.web.tokens import Tokens

_MINUTE: Final = 60.0
_CHALLENGE: Final = 'Bearer realm="servescope customers"'
_REFUSED: Final = "the name and the bearer token do not belong together: send 'Authorization: Bearer TOKEN'"


@dataclass(slots=True)
class PullAccess:
    """One customer's page, its tokens, the times of its requests within a minute, and its connections."""

    page: CustomerPage
    tokens: Tokens
    requests_per_minute: int
    asked: deque[float] = field(default_factory=deque)
    connections: WeakSet[asyncio.BaseTransport] = field(default_factory=WeakSet)

    @classmethod
    def of(cls, page: CustomerPage, pull: Pull) -> PullAccess:
        """The access to a page as configured; raises TokenError when the token cannot be read."""
        return cls(page, Tokens(file=Path(pull.token_file)), pull.requests_per_minute)

    def admit(self, now: float) -> float:
        """Count a request at `now` (seconds); returns after how many seconds one is admitted, 0 for this one."""
        while self.asked and self.asked[0] <= now - _MINUTE:
            self.asked.popleft()
        if len(self.asked) >= self.requests_per_minute:
            return self.asked[0] + _MINUTE - now
        self.asked.append(now)
        return 0.0

    def close(self) -> None:
        """Abort every connection over which the page was asked for: no answer goes on after it."""
        for connection in list(self.connections):
            if isinstance(connection, asyncio.Transport):
                connection.abort()


def make_pull_application(
    accesses: Mapping[str, PullAccess], telemetry: CustomersTelemetry, monotonic: Callable[[], float]
) -> web.Application:
    """The web application of these customers by name, which may change; it has a gate, as `Listener` needs."""
    # What it counts of connections is not exported: the series of that name are of the operator's pages.
    gate = Gate(Bounds(), Tokens(), ApiTelemetry(), listens_on=None)
    application = web.Application(middlewares=[gate.pass_through])
    application[GATE] = gate
    pages = _Pages(accesses, telemetry, monotonic)
    application.router.add_get("/customers/{name}/metrics", pages.metrics, expect_handler=expect_nothing)
    application.router.add_get("/healthz", pages.healthy, expect_handler=expect_nothing)
    return application


class _Pages:
    def __init__(
        self, accesses: Mapping[str, PullAccess], telemetry: CustomersTelemetry, monotonic: Callable[[], float]
    ) -> None:
        self._accesses, self._telemetry, self._monotonic = accesses, telemetry, monotonic

    async def metrics(self, request: web.Request) -> web.Response:
        access = self._authenticate(request)
        status = 200
        try:
            return await self._page(access, request)
        except RequestError as error:
            status = error.status
            raise
        finally:
            self._telemetry.count_scrape(request.match_info["name"], status)

    async def _page(self, access: PullAccess, request: web.Request) -> web.Response:
        if request.transport is not None:
            access.connections.add(request.transport)
        wait = access.admit(self._monotonic())
        if wait > 0:
            raise RequestError(
                f"at most {access.requests_per_minute} requests a minute are answered",
                status=429,
                headers={"Retry-After": str(math.ceil(wait))},
            )
        content_type = OPENMETRICS if wants_openmetrics(request.headers.get(hdrs.ACCEPT)) else TEXT
        body = await access.page.read(content_type)
        if body is None:
            raise RequestError("there are no current figures; ask again", status=503, headers={"Retry-After": "60"})
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    def _authenticate(self, request: web.Request) -> PullAccess:
        """The access that a request's name and token are for; the answer to others does not say which of both is wrong.

        The token is compared with those of every customer: the time shows neither whether a name exists nor whose
        token is close. One that two customers have, as after a mistake while it was exchanged, is for neither page.
        """
        authorization = request.headers.get(hdrs.AUTHORIZATION)
        admitted = [name for name, access in self._accesses.items() if access.tokens.admit(authorization)]
        name = request.match_info["name"]
        if admitted != [name]:
            self._telemetry.api_refused.labels("token").inc()
            raise RequestError(
                _REFUSED, status=401, headers={hdrs.WWW_AUTHENTICATE: _CHALLENGE, hdrs.CONNECTION: "close"}
            )
        return self._accesses[name]
