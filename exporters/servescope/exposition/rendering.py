"""The instruments' page as bytes: the Prometheus text format and OpenMetrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from servescope.contract import openmetrics
from servescope.contract.samples import escape_help
from servescope.contract.types import Metric
from servescope.errors import UsageError
from servescope.exposition.negotiation import OPENMETRICS, TEXT
from servescope.exposition.page_cache import PageCache
from servescope.instruments.instrument import Exposed

__all__ = ["CONTENT_TYPE", "OPENMETRICS_CONTENT_TYPE", "render", "render_openmetrics"]

CONTENT_TYPE = TEXT
OPENMETRICS_CONTENT_TYPE = OPENMETRICS


def render(*instruments: Exposed) -> bytes:
    """The instruments' page in the Prometheus text format 0.0.4; the lines of a metric are together.

    Any thread may call it; it does not block threads that record. Raises UsageError when two instruments have the same
    identity, since they would have the same series.
    """
    return b"".join(_lines(instruments, lambda one: one.text(), _head))


def render_openmetrics(*instruments: Exposed) -> bytes:
    """The same page in OpenMetrics 1.0, with units, and the exemplars of requests that were given a trace id."""
    return b"".join((*_lines(instruments, lambda one: one.openmetrics(), openmetrics.head), openmetrics.END))


def _lines(
    instruments: tuple[Exposed, ...],
    read: Callable[[Exposed], Iterable[tuple[Metric, list[bytes]]]],
    head: Callable[[Metric], bytes],
) -> Iterator[bytes]:
    """The lines of a page, each metric's together below its head."""
    require_distinct(instruments)
    page: dict[str, list[bytes]] = {}
    for one in instruments:
        for metric, lines in read(one):
            if metric.name not in page:
                page[metric.name] = [head(metric)]
            page[metric.name] += lines
    return chain.from_iterable(page.values())


def cached_pages(instruments: tuple[Exposed, ...], cache_seconds: float) -> PageCache:
    """The instruments' page in both formats, rendered on demand and kept for `cache_seconds`. Raises UsageError."""
    require_distinct(instruments)
    return PageCache(
        {TEXT: lambda: render(*instruments), OPENMETRICS: lambda: render_openmetrics(*instruments)}, cache_seconds
    )


def require_distinct(instruments: tuple[Exposed, ...]) -> None:
    """Raises UsageError unless there is at least one, all are instruments, and no two have the same identity."""
    if not instruments:
        raise UsageError("no instruments given, expected at least one")
    seen = set()
    for one in instruments:
        if not isinstance(one, Exposed):
            raise UsageError(f"{one!r} are no instruments, expected engine, router or autoscaler instruments")
        for identity in one.identities():
            if identity in seen:
                raise UsageError(f"two instruments have one identity, {identity!r}: give each a replica of its own")
            seen.add(identity)


def _head(metric: Metric) -> bytes:
    return f"# HELP {metric.name} {escape_help(metric.help)}\n# TYPE {metric.name} {metric.kind}\n".encode()
