"""What the collector answers over HTTP: `/metrics`, its health, and a JSON API.

Times are milliseconds since 1970; a figure that was absent is null. What is wrong with a request is answered with
`{"error": …}`, which names the value and what would have been right.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import get_args

from aiohttp import web

from servescope import __version__
from servescope.collector.api import parameters, shapes
from servescope.collector.api.events import MOST_EVENTS_SHOWN, event_json, events_json, read_deploy
from servescope.collector.api.openapi import describe
from servescope.collector.collector import Collector
from servescope.collector.evaluation import Evaluation
from servescope.collector.exposition import Gauges, Page, PageRenderer, Scraped
from servescope.contract.identity import DEPLOYMENT_LABELS, Deployment
from servescope.contract.own_metrics import FILLED_SERIES
from servescope.contract.samples import make_labels
from servescope.errors import ServescopeError
from servescope.exposition.negotiation import OPENMETRICS, TEXT
from servescope.exposition.page_cache import PageCache
from servescope.settings.values import format_duration
from servescope.store.records import FigureTable, Health, StoreError, TooLargeError
from servescope.store.writer import WriteBatch
from servescope.web.answers import RequestError, expect_nothing, json_answer, json_bytes
from servescope.web.bounds import Bounds
from servescope.web.gate import GATE, Gate, Reads
from servescope.web.settings import ApiSettings

_TIMES = ("start_ms", "end_ms", "name")
# Samples are read in stretches, so that too large an answer is noticed before all of it is in memory.
_STRETCH_MS = 900_000


def make_application(
    collector: Collector, api: ApiSettings | None = None, *, bounds: Bounds | None = None
) -> web.Application:
    """The web application of a running collector; raises ServescopeError when its tokens cannot be read."""
    tokens = (api or ApiSettings()).tokens()
    gate = Gate(bounds or Bounds(), tokens, collector.telemetry, listens_on=collector.fleet.settings.listen[0])
    application = web.Application(middlewares=[gate.pass_through])
    application[GATE] = gate
    pages = _Pages(collector, gate)
    application.cleanup_ctx.append(pages.run)
    for path, page in (
        ("/", pages.index),
        ("/metrics", pages.metrics),
        ("/-/healthy", pages.healthy),
        ("/-/ready", pages.ready),
        ("/api/v1/deployments", pages.deployments),
        ("/api/v1/figures", pages.figures),
        ("/api/v1/samples", pages.samples),
        ("/api/v1/targets", pages.targets),
        ("/api/v1/catalog", pages.catalog),
        ("/api/v1/status", pages.status),
        ("/api/v1/alerts", pages.alerts),
        ("/api/v1/events", pages.events),
        ("/api/v1/openapi.json", pages.openapi),
    ):
        application.router.add_get(path, page, expect_handler=expect_nothing)
    application.router.add_post("/api/v1/events", pages.report_deploy, expect_handler=expect_nothing)
    application.router.add_post("/-/reload", pages.reload, expect_handler=expect_nothing)
    return application


class _Pages:
    def __init__(self, collector: Collector, gate: Gate) -> None:
        self._collector, self._gate, self._bounds = collector, gate, gate.bounds
        self._reads = Reads(gate.bounds, gate.telemetry)
        self._started = time.time()
        self._page = Page((), (), (), collector.telemetry)
        renderer = PageRenderer()
        self._metrics = PageCache(
            {
                TEXT: lambda: self._timed(renderer.render),
                OPENMETRICS: lambda: self._timed(renderer.render_openmetrics),
            },
            gate.bounds.page_seconds,
            cache_share=gate.bounds.page_share,
        )
        self._rendering = asyncio.Lock()
        self._description = json_bytes(describe())

    async def run(self, _: web.Application) -> AsyncIterator[None]:
        """Let go of the reading threads when the application ends."""
        yield
        self._reads.close()

    async def index(self, request: web.Request) -> web.Response:
        paths = sorted({resource.canonical for resource in request.app.router.resources()} - {"/"})
        return web.Response(text="servescope collector\n\n" + "".join(f"{path}\n" for path in paths))

    # --- For scrapers and whoever starts the collector ----------------------------------------------------------------

    async def metrics(self, request: web.Request) -> web.Response:
        asked = request.headers.get("Accept"), request.headers.get("Accept-Encoding")
        answer = self._metrics.cached_response(*asked)
        if answer is None:
            async with self._rendering:
                answer = self._metrics.cached_response(*asked)
                if answer is None:
                    self._page = self._take_page()
                    answer = await asyncio.to_thread(self._metrics.response, *asked)
        return web.Response(body=answer.body, status=answer.status, headers=answer.headers)

    def _timed(self, render: Callable[[Page], bytes]) -> bytes:
        started = time.perf_counter()
        text = render(self._page)
        self._collector.telemetry.render_seconds.observe(time.perf_counter() - started)
        return text

    def _take_page(self) -> Page:
        """What `/metrics` shows now; targets that fail, or are not scraped any more, show no sample."""
        collector = self._collector
        evaluation = collector.evaluating.last
        derivations = list(evaluation.deployments.values()) if evaluation else []
        return Page(
            [
                Scraped(each.target.target_id, *each.recent.latest())
                for each in collector.fleet.watched
                if collector.fleet.health(each) == "up"
            ],
            [sample for derivation in derivations for sample in (*derivation.counted, *derivation.exposed)],
            [watched.status for watched in collector.fleet.shown if collector.fleet.health(watched) != "unknown"],
            collector.telemetry,
            [*collector.own.gauges(), self._windows(evaluation)],
        )

    def _windows(self, evaluation: Evaluation | None) -> Gauges:
        """How much of the window of each deployment's figures is there."""
        window = format_duration(self._collector.fleet.settings.window_ms)
        derived = evaluation.deployments if evaluation is not None else {}
        return Gauges(
            FILLED_SERIES,
            [
                (make_labels((*deployment.labels(), ("window", window))), each.filled)
                for deployment, each in derived.items()
                if each.filled is not None
            ],
        )

    async def healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(self, _: web.Request) -> web.Response:
        if self._collector.evaluating.last is None:
            return web.Response(text="not ready: no figures were derived yet\n", status=503)
        if self._collector.store_problem is not None:
            # It scrapes, derives and answers all the same, so that it is ready. The reason is in the API.
            return web.Response(text="ok, but nothing is stored: see /api/v1/status\n")
        return web.Response(text="ok\n")

    async def reload(self, request: web.Request) -> web.Response:
        """Read the configuration anew; one that is wrong is answered with 400, and the former stays."""
        parameters.check_parameters(request, ())
        try:
            # Shielded: cancelled half-way, it would leave parts of the former configuration in place.
            loading = await asyncio.shield(self._collector.reload())
        except StoreError:
            raise
        except ServescopeError as error:
            raise RequestError(str(error)) from error
        return json_answer(json_bytes(asdict(loading)))

    # --- What is stored -----------------------------------------------------------------------------------------------

    async def deployments(self, request: web.Request) -> web.Response:
        parameters.check_parameters(request, ())
        return json_answer(await self._reads.run(self._read_latest))

    def _read_latest(self) -> bytes:
        history, settings = self._collector.recorder.history, self._collector.fleet.settings

        def window_at(time_ms: int) -> int:
            recorded = history.settings_at(time_ms)
            return recorded.window_ms if recorded is not None else settings.window_ms

        return shapes.deployments_json(history.latest_figures(), window_at)

    async def figures(self, request: web.Request) -> web.Response:
        parameters.check_parameters(request, (*DEPLOYMENT_LABELS, *_TIMES, "max_points"))
        asked = parameters.read_range(request, self._collector.clock.now_ms, default_ms=parameters.DEFAULT_RANGE_MS)
        points = parameters.read_whole_number(
            request, "max_points", parameters.DEFAULT_POINTS, least=1, most=parameters.MOST_POINTS
        )
        names = parameters.read_figure_names(request)
        tables, numbers = [], 0
        for deployment in await self._choose(request):
            table, size = await self._reads.run(self._read_figures, deployment, asked, names, points)
            tables.append(table)
            numbers += size
            self._check_numbers(numbers, "fewer figures (name), fewer points (max_points), or a shorter time")
        return json_answer(shapes.figures_json(*asked, tables))

    def _read_figures(
        self, deployment: Deployment, asked: parameters.QueryRange, names: frozenset[str], points: int
    ) -> tuple[bytes, int]:
        """A deployment's figures of the names as JSON, and how many numbers that are."""
        table = self._collector.recorder.history.read_figures(deployment, *asked, max_points=points)
        if names:
            # A name without labels selects all keys with that name.
            wanted = {*names, FILLED_SERIES}
            shown = {key: table.values[key] for key in table.values if not wanted.isdisjoint({key, key.split("{")[0]})}
            table = FigureTable(table.times, shown)
        numbers = len(table.times) * (2 + len(table.values.keys() - {FILLED_SERIES}))
        self._check_numbers(numbers, "fewer figures (name), fewer points (max_points), or a shorter time")
        return shapes.table_json(deployment, table), numbers

    async def samples(self, request: web.Request) -> web.Response:
        parameters.check_parameters(request, (*DEPLOYMENT_LABELS, *_TIMES))
        now_ms = self._collector.clock.now_ms
        asked = parameters.read_range(
            request, now_ms, default_ms=parameters.DEFAULT_SAMPLES_RANGE_MS, most_ms=parameters.MOST_SAMPLES_RANGE_MS
        )
        names = parameters.read_metric_names(request)
        points: dict[Deployment, shapes.Points] = {deployment: {} for deployment in await self._choose(request)}
        numbers = 0
        for deployment, collected in points.items():
            for start_ms in range(asked.start_ms, asked.end_ms + 1, _STRETCH_MS):
                end_ms = min(start_ms + _STRETCH_MS - 1, asked.end_ms)
                numbers += 2 * await self._reads.run(
                    self._read_samples, collected, deployment, names, parameters.QueryRange(start_ms, end_ms)
                )
                self._check_numbers(numbers, "fewer metrics (name), or a shorter time")
        return json_answer(await self._reads.run(shapes.samples_json, *asked, points))

    def _read_samples(
        self, points: shapes.Points, deployment: Deployment, names: list[str], asked: parameters.QueryRange
    ) -> int:
        try:
            windows = self._collector.recorder.history.read_samples(deployment, names, *asked)
        except TooLargeError as error:
            raise RequestError(str(error)) from error
        return shapes.collect_points(points, windows)

    async def _choose(self, request: web.Request) -> list[Deployment]:
        return parameters.choose_deployments(
            await self._reads.run(self._collector.recorder.history.deployments), request.query
        )

    def _check_numbers(self, numbers: int, less: str) -> None:
        if numbers > self._bounds.answer_values:
            raise RequestError(f"the answer would hold more than {self._bounds.answer_values} numbers; ask for {less}")

    # --- The collector itself -----------------------------------------------------------------------------------------

    async def targets(self, request: web.Request) -> web.Response:
        parameters.check_parameters(request, ())
        collector = self._collector
        targets = [
            shapes.TargetShown(each.status, each.target.scraping.interval_ms, each.next_scrape_ms)
            for each in collector.fleet.watched
        ]
        lists = [asdict(each) for each in collector.discovering.discovery.lists()]
        loading = asdict(collector.loading)
        return json_answer(await self._reads.run(shapes.targets_json, targets, collector.problems, lists, loading))

    async def catalog(self, request: web.Request) -> web.Response:
        parameters.check_parameters(request, ())
        window = format_duration(self._collector.fleet.settings.window_ms)
        return json_answer(shapes.catalog_json(window))

    async def status(self, request: web.Request) -> web.Response:
        parameters.check_parameters(request, ())
        collector, settings = self._collector, self._collector.fleet.settings
        health = Counter(collector.fleet.health(watched) for watched in collector.fleet.watched)
        shown = {
            "version": __version__,
            "time_ms": collector.clock.now_ms,
            "uptime_seconds": time.time() - self._started,
            "window": format_duration(settings.window_ms),
            "scrape_interval_ms": settings.scrape_interval_ms,
            "evaluation_interval_ms": settings.evaluation_interval_ms,
            "retention_ms": settings.retention_ms,
            "increments_retention_ms": settings.increments_retention_ms,
            "evaluated_ms": collector.evaluating.last.at_ms if collector.evaluating.last is not None else None,
            "series": sum(len(watched.recent) for watched in collector.fleet.watched),
            "targets": {each: health[each] for each in get_args(Health)},
            "discovery_problems": len(collector.problems),
            "clock_problem": collector.recorder.clock_problem,
            "configuration": asdict(collector.loading),
            "store": await self._reads.run(self._store_shown),
        }
        return json_answer(json_bytes(shown))

    async def alerts(self, request: web.Request) -> web.Response:
        parameters.check_parameters(request, ())
        alerts, evaluation = self._collector.alerts, self._collector.evaluating.last
        shown = {
            "evaluated_ms": evaluation.at_ms if evaluation is not None else None,
            "evaluated": alerts.evaluated,
            "alerts": [asdict(each) for each in alerts.shown],
            "receivers": alerts.notifier.problems(),
        }
        return json_answer(await self._reads.run(json_bytes, shown))

    async def events(self, request: web.Request) -> web.Response:
        parameters.check_parameters(request, _TIMES[:2])
        asked = parameters.read_range(
            request, self._collector.clock.now_ms, default_ms=parameters.DEFAULT_EVENTS_RANGE_MS
        )
        return json_answer(await self._reads.run(self._read_events, asked))

    def _read_events(self, asked: parameters.QueryRange) -> bytes:
        return events_json(asked, self._collector.recorder.history.read_events(*asked, most=MOST_EVENTS_SHOWN))

    async def report_deploy(self, request: web.Request) -> web.Response:
        """Add a deploy to the event log, which is evidence: never without a token."""
        parameters.check_parameters(request, ())
        if not self._gate.needs_token:
            message = (
                "deploys are accepted only with a bearer token; configure [api] bearer_token_file or bearer_token_env"
            )
            raise RequestError(message, status=403)
        event = await read_deploy(request, self._collector.clock.now_ms)
        self._collector.recorder.submit(WriteBatch(events=[event]))
        return json_answer(json_bytes(event_json(event)), status=202)

    def _store_shown(self) -> dict[str, int | str | None]:
        """What the store holds; why it cannot be written, or read, in `problem`, None while it can."""
        history, problem = self._collector.recorder.history, self._collector.store_problem
        oldest = newest = None
        try:
            oldest, newest = history.held_range() or (None, None)
        except StoreError as error:
            problem = problem or str(error)
        return {"bytes": history.size_bytes(), "oldest_ms": oldest, "newest_ms": newest, "problem": problem}

    async def openapi(self, request: web.Request) -> web.Response:
        parameters.check_parameters(request, ())
        return json_answer(self._description)
