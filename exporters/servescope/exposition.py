"""Ways out of a process: Prometheus text, a server for it, and a collector for a prometheus_client registry."""

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

from servescope.catalog import Metric
from servescope.errors import ServescopeError, UsageError
from servescope.instruments import Exposed, require_whole

if TYPE_CHECKING:
    from types import TracebackType

    from prometheus_client.metrics_core import Metric as PrometheusMetric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PATH = "/metrics"
_AT_ONCE = 8
_SOCKET_SECONDS = 10.0

_logger = logging.getLogger("servescope")


def render(*instruments: Exposed) -> bytes:
    """The instruments' page in the Prometheus text format 0.0.4; a metric of several has its lines together.

    Any thread may call it; it does not hold up those who record. Raises UsageError when two instruments have one
    identity, since their series could not be told apart.
    """
    _require_distinct(instruments)
    page: dict[str, list[bytes]] = {}
    for one in instruments:
        for metric, lines in one.text():
            if metric.name not in page:
                page[metric.name] = [_head(metric)]
            page[metric.name] += lines
    return b"".join(chain.from_iterable(page.values()))


def serve(*instruments: Exposed, port: int = 0, address: str = "127.0.0.1") -> MetricsServer:
    """Serve the instruments' page at `/metrics` from a thread of its own, until closed; port 0 picks a free one.

    Raises UsageError for a port that is none or instruments of one identity, ServescopeError when the address cannot
    be bound.
    """
    _require_distinct(instruments)
    return MetricsServer(instruments, address, require_whole("port", port, 0, 65535))


class MetricsServer:
    """A running server; `url` is where its page is. Closing it twice does nothing. Also a context manager."""

    def __init__(self, instruments: tuple[Exposed, ...], address: str, port: int) -> None:
        try:
            self._server = _Server((address, port), instruments)
        except (OSError, UnicodeError) as error:
            raise ServescopeError(f"cannot serve metrics at {address!r} port {port}: {error}") from error
        host = f"[{address}]" if ":" in address else address
        self.port: int = self._server.server_address[1]
        self.url = f"http://{host}:{self.port}{_PATH}"
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
        _require_distinct(instruments)
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
            for metric, samples in one.families():
                # The library names a counter's family without `_total`, and its samples with it.
                family = families.setdefault(metric.name, PrometheusMetric(metric.documented, metric.help, metric.kind))
                for sample in samples:
                    family.add_sample(sample.name, dict(sample.labels), sample.value)
        return list(families.values())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a client that never reads must not keep close() waiting

    def __init__(self, address: tuple[str, int], instruments: tuple[Exposed, ...]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.instruments = instruments
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
        if self.path.partition("?")[0] != _PATH:
            self._answer(404, "text/plain; charset=utf-8", f"not found; metrics are at {_PATH}\n".encode())
            return
        try:
            page = render(*self.server.instruments)
        except Exception:
            _logger.exception("the metrics page could not be rendered")
            self._answer(500, "text/plain; charset=utf-8", b"the page could not be rendered, see the log\n")
            return
        self._answer(200, CONTENT_TYPE, page)

    do_HEAD = do_GET  # noqa: N815 - the name http.server calls

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name http.server gives it
        _logger.debug(format, *args)

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


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


def _require_distinct(instruments: tuple[Exposed, ...]) -> None:
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
