"""Servers on loopback that answer from a thread; one in place of a Prometheus, whose every answer is the test's."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

Answer = Callable[["Handler"], None]
Labels = Mapping[str, str]


class Handler(BaseHTTPRequestHandler):
    """One request: its path, parameters, headers and body, and the answer of the test."""

    protocol_version = "HTTP/1.0"
    answer: Answer
    body = b""

    def do_GET(self) -> None:
        self.asked(urlsplit(self.path).query)

    def do_POST(self) -> None:
        self.body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked(self.body.decode(errors="replace"))

    def asked(self, query: str) -> None:
        self.parameters = parse_qs(query)
        try:
            type(self).answer(self)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client has had enough

    def reply(self, status: int, body: bytes | str, **headers: str) -> None:
        """Answer with a body and its headers."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body.encode() if isinstance(body, str) else body)

    def vector(self, *values: str) -> None:
        """Answer with an instant vector."""
        result = [{"metric": {"__name__": "x", "n": str(n)}, "value": [1.5, value]} for n, value in enumerate(values)]
        self.reply(200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}))

    def found(self, series: Sequence[Labels], points: Iterable[tuple[Labels, float]], at: float) -> None:
        """Answer with these series, with these points at an instant, or with no track, as is asked."""
        data: object = {"resultType": "matrix", "result": []}
        if self.path.endswith("/series"):
            data = series
        elif self.path.endswith("/query"):
            result = [{"metric": labels, "value": [at, str(value)]} for labels, value in points]
            data = {"resultType": "vector", "result": result}
        self.reply(200, json.dumps({"status": "success", "data": data}))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        pass


@contextmanager
def answering(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The base URL of a server with this answer; of one that speaks TLS as if it did not."""
    handler = type("Answering", (Handler,), {"answer": staticmethod(answer)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    with serving(server) as url:
        yield url


@contextmanager
def serving(server: HTTPServer) -> Iterator[str]:
    """The base URL of a server, which answers for as long as the block runs."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
