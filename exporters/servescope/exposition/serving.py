"""A server of its own for the instruments' page, in a thread of the process that records."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import weakref
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from servescope.errors import ServescopeError
from servescope.exposition.page_cache import CACHE_SECONDS, PageCache, Response, refusal
from servescope.exposition.rendering import cached_pages
from servescope.exposition.web import PATH
from servescope.instruments.instrument import Exposed
from servescope.instruments.values import require_whole
from servescope.settings.closing import Closing

_AT_ONCE = 8
_SOCKET_SECONDS = 10.0
_RETRY_SECONDS = 0.1

_logger = logging.getLogger("servescope")


def serve(
    *instruments: Exposed, port: int = 0, address: str = "127.0.0.1", cache_seconds: float = CACHE_SECONDS
) -> MetricsServer:
    """Serve the instruments' page at `/metrics` from a thread of its own, until closed; port 0 picks a free one.

    Text or OpenMetrics, as the scraper prefers, compressed if it accepts that; a page is rendered once for all scrapes
    within `cache_seconds`. Raises UsageError for an invalid port or two instruments of one identity, ServescopeError
    when the address cannot be bound.
    """
    pages = cached_pages(instruments, cache_seconds)
    return MetricsServer(pages, address, require_whole("port", port, 0, 65535))


class MetricsServer(Closing):
    """A running server; `url` is where its page is. Closing it twice does nothing. Also a context manager."""

    def __init__(self, pages: PageCache, address: str, port: int) -> None:
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a client that never reads must not block close()

    def __init__(self, address: tuple[str, int], pages: PageCache) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.pages = pages
        self._free = threading.BoundedSemaphore(_AT_ONCE)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without HTTPServer's look-up of the host's name, which waits for a name server that does not answer."""
        TCPServer.server_bind(self)

    def get_request(self) -> Any:
        """Accept a connection; one that cannot be accepted is still there, and is not tried again at once."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_RETRY_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve in a thread of its own, or close the connection when too many are busy."""
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
        found = self.path.partition("?")[0] == PATH
        asked = (", ".join(self.headers.get_all(name) or ()) or None for name in ("Accept", "Accept-Encoding"))
        self._send(refusal(self.command, found=found, where=PATH) or self.server.pages.response(*asked))

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET  # noqa: N815 - names http.server calls

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name http.server gives it
        _logger.debug(format, *args)

    def _send(self, response: Response) -> None:
        self.send_response(response.status)
        for name, value in response.headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)


_running: weakref.WeakSet[MetricsServer] = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked child has no thread that responds: it must not keep the port open after its parent's end."""
    for server in list(_running):
        server._server.socket.close()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
