"""Ways out of a process by being asked: Prometheus text and OpenMetrics, a server, apps to mount, a collector."""

from __future__ import annotations

import logging
import os
import socket
import threading
import weakref
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from typing import TYPE_CHECKING, Any

from servescope.contract import openmetrics
from servescope.contract.types import Metric
from servescope.errors import ServescopeError, UsageError
from servescope.exposition.negotiation import OPENMETRICS, TEXT
from servescope.exposition.pages import CACHE_SECONDS, Answer, Pages, refusal
from servescope.exposition.web import PATH, AsgiApp, WsgiApp
from servescope.instruments.instrument import Exposed, require_whole

if TYPE_CHECKING:
    from types import TracebackType

    from prometheus_client.metrics_core import Metric as PrometheusMetric

CONTENT_TYPE = TEXT
OPENMETRICS_CONTENT_TYPE = OPENMETRICS

_AT_ONCE = 8
_SOCKET_SECONDS = 10.0

_logger = logging.getLogger("servescope")


def render(*instruments: Exposed) -> bytes:
    """The instruments' page in the Prometheus text format 0.0.4; a metric of several has its lines together.

    Any thread may call it; it does not hold up those who record. Raises UsageError when two instruments have one
    identity, since their series could not be told apart.
    """
    require_distinct(instruments)
    page: dict[str, list[bytes]] = {}
    for one in instruments:
        for metric, lines in one.text():
            if metric.name not in page:
                page[metric.name] = [_head(metric)]
            page[metric.name] += lines
    return b"".join(chain.from_iterable(page.values()))


def render_openmetrics(*instruments: Exposed) -> bytes:
    """The same page in OpenMetrics 1.0, with units, and the exemplars of requests that were given a trace id."""
    require_distinct(instruments)
    page: dict[str, list[bytes]] = {}
    for one in instruments:
        for metric, lines in one.openmetrics():
            if metric.name not in page:
                page[metric.name] = [openmetrics.head(metric)]
            page[metric.name] += lines
    return b"".join((*chain.from_iterable(page.values()), openmetrics.END))


def serve(
    *instruments: Exposed, port: int = 0, address: str = "127.0.0.1", cache_seconds: float = CACHE_SECONDS
) -> MetricsServer:
    """Serve the instruments' page at `/metrics` from a thread of its own, until closed; port 0 picks a free one.

    Text or OpenMetrics, as the scraper prefers, compressed when it may be; a page is rendered once for all who ask
    within `cache_seconds`. Raises UsageError for a port that is none or instruments of one identity, ServescopeError
    when the address cannot be bound.
    """
    pages = _pages(instruments, cache_seconds)
    return MetricsServer(pages, address, require_whole("port", port, 0, 65535))


def make_asgi_app(*instruments: Exposed, cache_seconds: float = CACHE_SECONDS) -> AsgiApp:
    """The page as an ASGI app, to mount in a FastAPI or Starlette app: `app.mount("/metrics", make_asgi_app(engine))`.

    It renders in a thread of its own, never on the event loop, once for all who ask within `cache_seconds`. Raises
    UsageError when two instruments have one identity.
    """
    return AsgiApp(_pages(instruments, cache_seconds))


def make_wsgi_app(*instruments: Exposed, cache_seconds: float = CACHE_SECONDS) -> WsgiApp:
    """The page as a WSGI app, rendered once for all who ask within `cache_seconds`, by the server's thread that asks.

    Raises UsageError when two instruments have one identity.
    """
    return WsgiApp(_pages(instruments, cache_seconds))


class MetricsServer:
    """A running server; `url` is where its page is. Closing it twice does nothing. Also a context manager."""

    def __init__(self, pages: Pages, address: str, port: int) -> None:
        try:
            self._server = _Server((address, port), pages)
        except (OSError, UnicodeError) as error:
            raise ServescopeError(f"cannot serve metrics at {address!r} port {port}: {error}") from error
        host = f"[{address}]" if ":" in address else address
        self.port: int = self._server.server_address[1]
        self.url = f"http://{host}:{self.port}{PATH}"
        # The poll interval only bounds how long close() takes.
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="servescope-metrics", daemon=True
        )
        self._thread.start()
        _running.add(self)

    def close(self) -> None:
        """Stop serving and release the port."""
        _running.discard(self)
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PrometheusCollector:
    """The instruments as a collector for a prometheus_client registry, beside metrics of your own.

        REGISTRY.register(PrometheusCollector(engine))

    Raises UsageError when two instruments have one identity.
    """

    def __init__(self, *instruments: Exposed) -> None:
        require_distinct(instruments)
        self._instruments = instruments

    def collect(self) -> Iterator[PrometheusMetric]:
        """The families with their samples now; absent ones are left out."""
        return (family for family in self._families() if family.samples)

    def describe(self) -> Iterator[PrometheusMetric]:
        """Every family there can be, so that a registry finds clashing names at registration."""
        return iter(self._families())

    def _families(self) -> list[PrometheusMetric]:
        from prometheus_client.metrics_core import Metric as PrometheusMetric

        families: dict[str, PrometheusMetric] = {}
        for one in self._instruments:
            for metric, samples, exemplars in one.exemplified():
                # The library names a counter's family without `_total`, and its samples with it.
                family = families.setdefault(
                    metric.name,
                    PrometheusMetric(metric.documented, metric.help, metric.kind, openmetrics.unit_of(metric)),
                )
                for sample in samples:
                    exemplar = exemplars.get((sample.name, sample.labels))
                    family.add_sample(
                        sample.name, dict(sample.labels), sample.value,
                        exemplar=None if exemplar is None else openmetrics.for_prometheus_client(exemplar),
                    )  # fmt: skip
        return list(families.values())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a client that never reads must not keep close() waiting

    def __init__(self, address: tuple[str, int], pages: Pages) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.pages = pages
        self._free = threading.BoundedSemaphore(_AT_ONCE)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve in a thread of its own, or hang up when as many as allowed are busy."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started, which would have released it
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _logger.debug("a client of the metrics server went away", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SOCKET_SECONDS
    server_version = "servescope"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the page, or say where it is."""
        found = self.path.partition("?")[0] == PATH
        asked = (", ".join(self.headers.get_all(name) or ()) or None for name in ("Accept", "Accept-Encoding"))
        self._answer(refusal(self.command, found=found, where=PATH) or self.server.pages.answer(*asked))

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET  # noqa: N815 - names http.server calls

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name http.server gives it
        _logger.debug(format, *args)

    def _answer(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)


def _pages(instruments: tuple[Exposed, ...], cache_seconds: float) -> Pages:
    require_distinct(instruments)
    return Pages(
        {TEXT: lambda: render(*instruments), OPENMETRICS: lambda: render_openmetrics(*instruments)}, cache_seconds
    )


_running: weakref.WeakSet[MetricsServer] = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked child has no thread that would answer: it must not hold the port after its parent's end."""
    for server in list(_running):
        server._server.socket.close()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def _head(metric: Metric) -> bytes:
    text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {metric.name} {text}\n# TYPE {metric.name} {metric.kind}\n".encode()


def require_distinct(instruments: tuple[Exposed, ...]) -> None:
    """Raises UsageError unless these are instruments whose series can be told apart, at least one."""
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
