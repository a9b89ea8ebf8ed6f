"""A loopback webhook for every receiver of Alertmanager's configuration, which records what it was sent."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.answering import serving

_MOST_BYTES = 4_000_000


@dataclass(frozen=True, slots=True)
class Notification:
    """One notification as a receiver got it; `at` is of `time.monotonic`.

    Rendered by the templates it is what Slack would get; otherwise it is a webhook's, with `alerts`.
    """

    at: float
    receiver: str
    body: Mapping[str, Any]

    @property
    def alerts(self) -> list[Mapping[str, Any]]:
        """Its alerts, each with `status` (`firing` or `resolved`), `labels` and `annotations`."""
        return list(self.body["alerts"])


@dataclass
class Receivers:
    """The receivers and all they were sent.

    `refused` are the calls without the token of the receiver called; those in `shut` take no call.
    """

    tokens: Mapping[str, str]
    port: int = 0
    refused: list[str] = field(default_factory=list)
    shut: set[str] = field(default_factory=set)
    _sent: list[Notification] = field(default_factory=list)
    _rendered: list[Notification] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sent(self, first: int = 0) -> list[Notification]:
        """Every notification until now, in the order they came, from the one of number `first` on."""
        with self._lock:
            return self._sent[first:]

    def rendered(self) -> list[Notification]:
        """Every notification as the templates rendered it."""
        with self._lock:
            return list(self._rendered)

    def take(self, path: str, authorization: str, body: bytes) -> int:
        """Record a notification at /NAME, or a rendered one at /rendered/NAME; returns the HTTP status."""
        rendered, _, receiver = path.strip("/").rpartition("/")
        if rendered:
            with self._lock:
                self._rendered.append(Notification(time.monotonic(), receiver, json.loads(body)))
            return 200
        if authorization != f"Bearer {self.tokens.get(receiver)}":
            self.refused.append(receiver)
            return 401
        if receiver in self.shut:
            return 403
        with self._lock:
            self._sent.append(Notification(time.monotonic(), receiver, json.loads(body)))
        return 200


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    # Alertmanager notifies of many groups at the same time.
    request_queue_size = 128
    receivers: Receivers

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a caller that hung up is part of the play."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        """Answer a call as the receivers say."""
        length = min(int(self.headers.get("Content-Length", 0)), _MOST_BYTES)
        body = self.rfile.read(length)
        self.send_response(self.server.receivers.take(self.path, self.headers.get("Authorization", ""), body))
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def listening(tokens: Mapping[str, str]) -> Iterator[Receivers]:
    """Receivers on a free port of loopback, each with the token its callers must show."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.receivers = Receivers(tokens, port=server.server_port)
    with serving(server):
        yield server.receivers
