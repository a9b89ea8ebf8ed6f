"""What a translator answers over HTTP: `/probe`, its own `/metrics`, and its health."""

from __future__ import annotations

from aiohttp import web

from servescope.collector.api.answers import RequestError
from servescope.collector.api.bounds import Bounds
from servescope.collector.api.gate import GATE, Gate
from servescope.collector.exposition import Page, PageRenderer
from servescope.exposition.negotiation import OPENMETRICS, TEXT, wants_openmetrics
from servescope.probe.prober import Prober

_TIMEOUT_HEADER = "X-Prometheus-Scrape-Timeout-Seconds"
_BESIDE_PROBES = 16
_PATHS = ("/probe", "/metrics", "/-/healthy", "/-/ready")


def make_translate_application(prober: Prober) -> web.Application:
    """The web application of a prober; raises ServescopeError when its tokens cannot be read."""
    configuration = prober.configuration
    bounds = Bounds(
        # Beside the probes, which the prober bounds: its own page must be readable when they are at their limit.
        requests=configuration.max_probes + _BESIDE_PROBES,
        connections=configuration.max_connections,
        # A scraper keeps a connection for each of its targets, and comes back after its interval.
        idle_seconds=300.0,
        answer_seconds=configuration.limits.timeout_seconds + 30.0,
    )
    tokens = configuration.api.tokens()
    gate = Gate(bounds, tokens, prober.telemetry, listens_on=configuration.listen[0])
    application = web.Application(middlewares=[gate.pass_through])
    application[GATE] = gate
    pages = _Pages(prober)
    for path, page in zip(_PATHS, (pages.probe, pages.metrics, pages.healthy, pages.healthy), strict=True):
        application.router.add_get(path, page)
    application.router.add_get("/", pages.index)
    return application


class _Pages:
    """The handlers."""

    def __init__(self, prober: Prober) -> None:
        self._prober = prober

    async def probe(self, request: web.Request) -> web.Response:
        twice = next((name for name in request.query if len(request.query.getall(name)) > 1), None)
        if twice is not None:
            raise RequestError(f"parameter {twice!r} is given twice")
        openmetrics = wants_openmetrics(request.headers.get("Accept"))
        page = await self._prober.probe(request.query, request.headers.get(_TIMEOUT_HEADER), openmetrics=openmetrics)
        return _answer(page, openmetrics=openmetrics)

    async def metrics(self, request: web.Request) -> web.Response:
        openmetrics = wants_openmetrics(request.headers.get("Accept"))
        page, renderer = Page((), (), (), self._prober.telemetry), PageRenderer()
        text = renderer.render_openmetrics(page) if openmetrics else renderer.render(page)
        return _answer(text, openmetrics=openmetrics)

    async def healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def index(self, _: web.Request) -> web.Response:
        return web.Response(text="servescope translate\n\n/probe?target=HOST:PORT\n" + "\n".join(_PATHS[1:]) + "\n")


def _answer(page: bytes, *, openmetrics: bool) -> web.Response:
    headers = {"Content-Type": OPENMETRICS if openmetrics else TEXT, "Vary": "Accept, Accept-Encoding"}
    return web.Response(body=page, headers=headers)
