"""What a judge answers over HTTP: the judgement for Argo Rollouts, a status code for CI and Flagger, and `/metrics`.

`/judgement` is always 200, as Argo's web metric decides by the body. `/gate` is 200 only when it is HEALTHY and
`/rollback` only when it is DEGRADED, 409 else: Flagger's webhooks and `curl --fail` decide by the status. A POST is
answered as a GET is, whatever its body says.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from servescope.cutover.judgement import Judgement, Verdict
from servescope.exposition.negotiation import OPENMETRICS, TEXT, wants_openmetrics
from servescope.judge.report.latest import Latest
from servescope.judge.telemetry import JudgeTelemetry
from servescope.settings.clock import ProgramClock
from servescope.web.answers import expect_nothing, json_answer, json_bytes
from servescope.web.bounds import Bounds
from servescope.web.gate import GATE, Gate
from servescope.web.settings import ApiSettings

_REFUSED: Final = 409
"""The status of a gate that is closed: the request was understood, the cutover is not in that state."""


def make_application(
    latest: Latest, telemetry: JudgeTelemetry, clock: ProgramClock, *, host: str, api: ApiSettings | None = None
) -> web.Application:
    """The web application of a judge that listens on a host; raises ServescopeError when its tokens cannot be read."""
    gate = Gate(Bounds(), (api or ApiSettings()).tokens(), telemetry, listens_on=host)
    application = web.Application(middlewares=[gate.pass_through])
    application[GATE] = gate
    pages = _Pages(latest, telemetry, clock)
    for path, page in (
        ("/", pages.index),
        ("/judgement", pages.judgement),
        ("/gate", pages.gate),
        ("/rollback", pages.rollback),
        ("/metrics", pages.metrics),
        ("/healthz", pages.healthy),
    ):
        application.router.add_get(path, page, expect_handler=expect_nothing)
    for path, page in (("/gate", pages.gate), ("/rollback", pages.rollback)):
        application.router.add_post(path, page, expect_handler=expect_nothing)
    return application


class _Pages:
    def __init__(self, latest: Latest, telemetry: JudgeTelemetry, clock: ProgramClock) -> None:
        self._latest, self._telemetry, self._clock = latest, telemetry, clock

    async def index(self, request: web.Request) -> web.Response:
        paths = sorted({resource.canonical for resource in request.app.router.resources()} - {"/"})
        return web.Response(text="servescope judge\n\n" + "".join(f"{path}\n" for path in paths))

    async def judgement(self, _: web.Request) -> web.Response:
        return json_answer(json_bytes(self._now().to_json()))

    async def gate(self, _: web.Request) -> web.Response:
        return self._answer(only="HEALTHY")

    async def rollback(self, _: web.Request) -> web.Response:
        return self._answer(only="DEGRADED")

    async def metrics(self, request: web.Request) -> web.Response:
        openmetrics = wants_openmetrics(request.headers.get("Accept"))
        render = generate_openmetrics if openmetrics else generate_latest
        content_type = OPENMETRICS if openmetrics else TEXT
        return web.Response(body=render(self._telemetry), headers={"Content-Type": content_type})

    async def healthy(self, _: web.Request) -> web.Response:
        # That it judges is what `servescope_judgement_age_seconds` says: a restart would not mend what it reads.
        return web.Response(text="ok\n")

    def _answer(self, *, only: Verdict) -> web.Response:
        judgement = self._now()
        shown = {
            "verdict": judgement.verdict,
            "reason": judgement.reason,
            "advice": judgement.advice,
            "plan": judgement.plan,
            "stage": judgement.stage.index + 1,
        }
        return json_answer(json_bytes(shown), status=200 if judgement.verdict == only else _REFUSED)

    def _now(self) -> Judgement:
        return self._latest.judgement(self._clock.now_ms())
