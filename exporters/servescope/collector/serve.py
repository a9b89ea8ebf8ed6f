"""What the collector answers over HTTP: `/metrics`, its health, and a JSON API.

Times are milliseconds since 1970; a figure that was absent is null. A wrong parameter is answered with 400 and what
would have been right.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from aiohttp import web

from servescope.catalog import FIGURES, METRICS, Band, Figure, Metric
from servescope.collector.collector import Collector, Watched
from servescope.collector.config import format_duration
from servescope.collector.exposition import Page, PageRenderer, Scraped
from servescope.collector.store import FigureTable, StoreError
from servescope.errors import ServescopeError
from servescope.expressions import promql
from servescope.identity import DEPLOYMENT_LABELS, Deployment

DEFAULT_RANGE_MS = 3_600_000
DEFAULT_POINTS = 1_000
MOST_POINTS = 11_000
_LATEST_MS = (1 << 44) - 1
_COMPRESS_FROM_BYTES = 1_024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_application(collector: Collector) -> web.Application:
    """The web application of a running collector."""
    application = web.Application(middlewares=[_compress_and_report])
    pages = _Pages(collector)
    application.add_routes(
        [
            web.get("/", pages.index),
            web.get("/metrics", pages.metrics),
            web.get("/-/healthy", pages.healthy),
            web.get("/-/ready", pages.ready),
            web.post("/-/reload", pages.reload),
            web.get("/api/v1/deployments", pages.deployments),
            web.get("/api/v1/figures", pages.figures),
            web.get("/api/v1/targets", pages.targets),
            web.get("/api/v1/catalog", pages.catalog),
        ]
    )
    return application


class _BadParameterError(Exception):
    """A parameter of a request is wrong; the text says what would be right."""


class _Pages:
    """The handlers."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._renderer = PageRenderer()
        self._rendering = asyncio.Lock()

    async def index(self, request: web.Request) -> web.Response:
        paths = sorted({resource.canonical for resource in request.app.router.resources()} - {"/"})
        return web.Response(text="servescope collector\n\n" + "".join(f"{path}\n" for path in paths))

    async def metrics(self, _: web.Request) -> web.Response:
        page = self._page()
        async with self._rendering:
            body = await asyncio.to_thread(self._renderer.render, page)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    def _page(self) -> Page:
        """What `/metrics` shows now; targets that fail, or are not scraped any more, show no sample."""
        collector = self._collector
        evaluation = collector.evaluation
        derivations = list(evaluation.deployments.values()) if evaluation else []
        return Page(
            [
                Scraped(each.target.target_id, *each.ring.latest())
                for each in collector.watched
                if collector.is_fresh(each)
            ],
            [sample for derivation in derivations for sample in (*derivation.counted, *derivation.exposed)],
            [watched.status for watched in collector.watched],
            collector.telemetry,
        )

    async def healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(self, _: web.Request) -> web.Response:
        if self._collector.evaluation is None:
            return web.Response(text="not ready: no figures were derived yet\n", status=503)
        return web.Response(text="ok\n")

    async def reload(self, _: web.Request) -> web.Response:
        """Read the configuration anew; one that is wrong is answered with 400, and the former stays."""
        try:
            loading = await self._collector.reload()
        except ServescopeError as error:
            return _json({"error": str(error)}, status=400)
        return _json(asdict(loading))

    async def deployments(self, request: web.Request) -> web.Response:
        _check_parameters(request, ())
        latest = await asyncio.to_thread(self._collector.history.latest_figures)
        return _json({"deployments": [_deployment_shown(each, latest[each]) for each in sorted(latest)]})

    async def figures(self, request: web.Request) -> web.Response:
        _check_parameters(request, (*DEPLOYMENT_LABELS, "start_ms", "end_ms", "name", "max_points"))
        end_ms = _whole_number(request, "end_ms", self._collector.now_ms, most=_LATEST_MS)
        start_ms = _whole_number(request, "start_ms", max(0, end_ms - DEFAULT_RANGE_MS), most=_LATEST_MS)
        if start_ms > end_ms:
            raise _BadParameterError(f"start_ms {start_ms} is after end_ms {end_ms}")
        points = _whole_number(request, "max_points", DEFAULT_POINTS, least=1, most=MOST_POINTS)
        names = _figure_names(request.query.getall("name", []))
        chosen = _choose(await asyncio.to_thread(self._collector.history.deployments), request.query)
        tables = [await asyncio.to_thread(self._read, each, start_ms, end_ms, names, points) for each in chosen]
        shown = [_table_shown(each, table) for each, table in zip(chosen, tables, strict=True)]
        return _json({"start_ms": start_ms, "end_ms": end_ms, "deployments": shown})

    def _read(
        self, deployment: Deployment, start_ms: int, end_ms: int, names: Sequence[str], points: int
    ) -> FigureTable:
        """The figures of the names; a name without labels stands for all that bear it."""
        table = self._collector.history.read_figures(deployment, start_ms, end_ms, max_points=points)
        if not names:
            return table
        kept = {key: values for key, values in table.values.items() if key in names or key.partition("{")[0] in names}
        return FigureTable(table.times, kept)

    async def targets(self, request: web.Request) -> web.Response:
        _check_parameters(request, ())
        collector = self._collector
        return _json(
            {
                "targets": [_target_shown(watched) for watched in collector.watched],
                "problems": collector.problems,
                "lists": [asdict(each) for each in collector.discovery.lists()],
                "configuration": asdict(collector.loading),
            }
        )

    async def catalog(self, request: web.Request) -> web.Response:
        _check_parameters(request, ())
        window = format_duration(self._collector.settings.window_ms)
        return _json(
            {
                "metrics": [_metric_shown(metric) for metric in METRICS.values()],
                "figures": [_figure_shown(figure, window) for figure in FIGURES.values()],
            }
        )


@web.middleware
async def _compress_and_report(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except _BadParameterError as error:
        return _json({"error": str(error)}, status=400)
    except StoreError as error:
        return _json({"error": str(error)}, status=503)
    if (response.content_length or 0) >= _COMPRESS_FROM_BYTES:
        response.enable_compression()
    return response


def _json(value: object, *, status: int = 200) -> web.Response:
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    return web.Response(text=text, status=status, content_type="application/json")


def _check_parameters(request: web.Request, known: Sequence[str]) -> None:
    for name in request.query:
        if name not in known:
            raise _BadParameterError(f"unknown parameter {name!r}, supported: {', '.join(known) or 'none'}")
    for name in request.query:
        if name != "name" and len(request.query.getall(name)) > 1:
            raise _BadParameterError(f"parameter {name!r} is given twice")


def _whole_number(request: web.Request, name: str, default: int, *, least: int = 0, most: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    # Twenty digits are more than any bound; more of them are not even read.
    if not (text.isascii() and text.isdigit()) or len(text) > 20 or not least <= int(text) <= most:
        raise _BadParameterError(f"{name} {text!r} is wrong, expected a whole number from {least} to {most}")
    return int(text)


def _figure_names(names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if name.partition("{")[0] not in FIGURES:
            raise _BadParameterError(f"unknown figure {name!r}, supported: {', '.join(FIGURES)}")
    return names


def _choose(deployments: Sequence[Deployment], query: Mapping[str, str]) -> list[Deployment]:
    """The deployments whose labels are those of the query, which must name a `deployment_id`."""
    wanted = {name: query[name] for name in DEPLOYMENT_LABELS if name in query}
    if "deployment_id" not in wanted:
        raise _BadParameterError(f"deployment_id is missing, supported: {_ids(deployments)}")
    chosen = [each for each in deployments if all(getattr(each, name) == value for name, value in wanted.items())]
    if not chosen:
        told = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
        raise _BadParameterError(f"no deployment with {told}, supported: {_ids(deployments)}")
    return chosen


def _ids(deployments: Sequence[Deployment]) -> str:
    return ", ".join(sorted({repr(each.deployment_id) for each in deployments})) or "none yet"


def _labels_shown(deployment: Deployment) -> dict[str, str]:
    return {name: getattr(deployment, name) for name in DEPLOYMENT_LABELS}


def _deployment_shown(deployment: Deployment, latest: tuple[int, dict[str, float]]) -> dict[str, object]:
    time_ms, figures = latest
    return {"deployment": _labels_shown(deployment), "time_ms": time_ms, "figures": figures}


def _table_shown(deployment: Deployment, table: FigureTable) -> dict[str, object]:
    figures = {
        key: [None if math.isnan(value) else value for value in column.tolist()] for key, column in table.values.items()
    }
    return {"deployment": _labels_shown(deployment), "times_ms": table.times.tolist(), "figures": figures}


def _target_shown(watched: Watched) -> dict[str, Any]:
    pace = {
        "scrape_interval_ms": watched.target.scraping.interval_ms,
        "next_scrape_ms": watched.next_scrape_ms,
    }
    return {**asdict(watched.status), **pace}


def _metric_shown(metric: Metric) -> dict[str, object]:
    return {
        "name": metric.name,
        "kind": metric.kind,
        "unit": metric.unit,
        "component": metric.component,
        "help": metric.help,
        "absent": metric.absent,
        "labels": list(metric.labels),
        "label_values": {label: list(values) for label, values in metric.label_values.items()},
    }


def _figure_shown(figure: Figure, window: str) -> dict[str, object]:
    return {
        "name": figure.name,
        "title": figure.title,
        "group": figure.group,
        "unit": figure.unit,
        "help": figure.help,
        "better": figure.better,
        "idle": figure.idle,
        "labels": list(figure.by),
        "exposed": figure.exposed,
        "record": figure.record(window),
        "promql": promql(figure.expression, window=window, by=(*DEPLOYMENT_LABELS, *figure.by)),
        "band": _band_shown(figure.band) if figure.band else None,
    }


def _band_shown(band: Band) -> list[dict[str, object]]:
    """The steps of a band in ascending order; the first has no start."""
    lowest = {"start": None, "inclusive": False, **asdict(band.lowest)}
    return [
        lowest,
        *({"start": step.start, "inclusive": step.inclusive, **asdict(step.verdict)} for step in band.steps),
    ]
