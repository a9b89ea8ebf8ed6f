"""The page that a customer scrapes: the points of the latest boundary, in the Prometheus text format and in
OpenMetrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor

from servescope.contract.openmetrics import END
from servescope.contract.samples import escape_help, escape_label_value, format_series, format_value
from servescope.customers.points.points import Accepted, Descriptor, Stream, StreamPoint
from servescope.customers.points.prometheus_series import labels_of, lines, unit_of, with_le
from servescope.exposition.negotiation import OPENMETRICS


class CustomerPage:
    """The page of one customer, and the sender of the lane that fills it; rendered once for each boundary and format.

    A page is served until `most_age_ms` after its boundary, and none that is further ahead of the clock. Not thread
    safe; it renders in threads of `executor`.
    """

    def __init__(self, most_age_ms: int, executor: Executor, now_ms: Callable[[], int]) -> None:
        self._most_age_ms, self._executor, self._now_ms = most_age_ms, executor, now_ms
        self._boundary_ms: int | None = None
        self._points: Sequence[StreamPoint] = ()
        self._rendered: dict[str, asyncio.Future[bytes]] = {}

    def split(self, points: Sequence[StreamPoint]) -> list[Sequence[StreamPoint]]:
        """All points at once."""
        return [points] if points else []

    async def send(self, batch: Sequence[StreamPoint]) -> Accepted:
        """Serve the last boundary of these points from now on."""
        self._boundary_ms = max(point.time_ms for point in batch)
        latest: dict[Stream, StreamPoint] = {
            point.stream: point for point in batch if point.time_ms == self._boundary_ms
        }
        self._points = [point for point in latest.values() if point.value is not None]
        self._rendered.clear()
        return Accepted(len(batch))

    async def close(self) -> None:
        """Nothing is open."""

    async def read(self, content_type: str) -> bytes | None:
        """The page in one of the two formats; None while there is none that is not too old."""
        if self._boundary_ms is None or abs(self._now_ms() - self._boundary_ms) > self._most_age_ms:
            return None
        rendering = self._rendered.get(content_type)
        if rendering is None:
            loop = asyncio.get_running_loop()
            render = render_openmetrics if content_type == OPENMETRICS else render_text
            rendering = self._rendered[content_type] = loop.run_in_executor(self._executor, render, self._points)
        # A client that goes away does not cancel what others wait for.
        return await asyncio.shield(rendering)


def render_text(points: Iterable[StreamPoint]) -> bytes:
    """The points as a page of the Prometheus text format 0.0.4."""
    page = []
    for metric, of_metric in _by_family(points).items():
        page += [f"# HELP {metric.family} {escape_help(metric.help)}\n# TYPE {metric.family} {metric.kind}\n"]
        page += _sample_lines(metric.family, of_metric)
    return "".join(page).encode()


def render_openmetrics(points: Iterable[StreamPoint]) -> bytes:
    """The points as a page of OpenMetrics 1.0."""
    page = []
    for metric, of_metric in _by_family(points).items():
        family = metric.family.removesuffix("_total") if metric.kind == "counter" else metric.family
        page += [f"# HELP {family} {escape_label_value(metric.help)}\n# TYPE {family} {metric.kind}\n"]
        if unit := unit_of(metric):
            page += [f"# UNIT {family} {unit}\n"]
        page += _sample_lines(f"{family}_total" if metric.kind == "counter" else family, of_metric)
    return "".join(page).encode() + END


def _by_family(points: Iterable[StreamPoint]) -> dict[Descriptor, list[StreamPoint]]:
    families: dict[Descriptor, list[StreamPoint]] = {}
    for point in points:
        families.setdefault(point.stream.metric, []).append(point)
    return families


def _sample_lines(name: str, points: Iterable[StreamPoint]) -> Iterable[str]:
    for point in points:
        labels = labels_of(point.stream)
        for line in lines(point):
            series = format_series(name + line.suffix, with_le(labels, line.le))
            yield f"{series} {format_value(line.value)}\n"
