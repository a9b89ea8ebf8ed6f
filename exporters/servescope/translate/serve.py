"""What a translator answers over HTTP: `/probe`, its own `/metrics`, and its health."""

from __future__ import annotations

from aiohttp import web

from servescope.collector.exposition import Page, PageRenderer
from servescope.exposition.negotiation import OPENMETRICS, TEXT, wants_openmetrics
from servescope.translate.config import ProbeConfiguration
from servescope.translate.prober import Prober
from servescope.web.bounds import Bounds
from servescope.web.gate import GATE, Gate

_TIMEOUT_HEADER = "X-Prometheus-Scrape-Timeout-Seconds"
_BESIDE_PROBES = 16
# A scraper uses its connections for as long as they are open, so that a translator that is added behind their service
# would be asked nothing: of so many probes one ends its connection, and the next one is opened to any of them.
_PROBES_A_CONNECTION = 50
_PATHS = ("/probe", "/metrics", "/-/healthy", "/-/ready")


def make_translate_application(prober: Prober) -> web.Application:
    """The web application of a prober; raises ServescopeError when its tokens cannot be read."""
    configuration = prober.configuration
    tokens = configuration.api.tokens()
    gate = Gate(_bounds_of(configuration), tokens, prober.telemetry, listens_on=configuration.listen[0])
    application = web.Application(middlewares=[gate.pass_through])
    application[GATE] = gate
    pages = _Pages(prober)
    for path, page in zip(_PATHS, (pages.probe, pages.metrics, pages.healthy, pages.healthy), strict=True):
        application.router.add_get(path, page)
    application.router.add_get("/", pages.index)
    return application


def apply_configuration(prober: Prober, application: web.Application, configuration: ProbeConfiguration) -> None:
    """Use this configuration from the next request on; but its tokens and certificates, which need a restart."""
    prober.apply(configuration)
    application[GATE].bounds = _bounds_of(configuration)


def _bounds_of(configuration: ProbeConfiguration) -> Bounds:
    return Bounds(
        # Beside the probes, which the prober bounds, there are those that just ended for others; and its own page must
        # be readable when they are at their limit.
        requests=2 * configuration.max_probes + _BESIDE_PROBES,
        connections=configuration.max_connections,
        # A scraper keeps a connection for each of its targets, and comes back after its interval.
        idle_seconds=300.0,
        answer_seconds=configuration.limits.timeout_seconds + 30.0,
    )


class _Pages:
    def __init__(self, prober: Prober) -> None:
        self._prober, self._probes = prober, 0

    async def probe(self, request: web.Request) -> web.Response:
        openmetrics = wants_openmetrics(request.headers.get("Accept"))
        page = await self._prober.probe(request.query, request.headers.get(_TIMEOUT_HEADER), openmetrics=openmetrics)
        answer = _answer(page, openmetrics=openmetrics)
        self._probes += 1
        if self._probes % _PROBES_A_CONNECTION == 0:
            answer.headers["Connection"] = "close"
        return answer

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
