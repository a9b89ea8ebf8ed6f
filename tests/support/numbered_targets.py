"""Targets that number their answers, so that a test knows which scrapes must be in a store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.answering import serving

METRIC = "output_tokens_total"


class NumberedTargets(ThreadingHTTPServer):
    """Answers for all targets; the path is a target's name, the number of the answer its counter."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._lock = threading.Lock()
        self._sent: dict[str, int] = {}
        self._unsent: dict[str, set[int]] = {}

    def next_answer(self, name: str) -> int:
        """The number of a target's next answer."""
        with self._lock:
            self._sent[name] = self._sent.get(name, 0) + 1
            return self._sent[name]

    def note_unsent(self, name: str, answer: int) -> None:
        """Remember that an answer could not be sent: the client was killed meanwhile."""
        with self._lock:
            self._unsent.setdefault(name, set()).add(answer)

    def last_sent(self, name: str) -> int:
        """The number of a target's last answer, 0 before the first."""
        with self._lock:
            return self._sent.get(name, 0)

    def unsent(self, name: str) -> set[int]:
        """The answers that could not be sent."""
        with self._lock:
            return {*self._unsent.get(name, ())}

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: the client was killed."""


class _Handler(BaseHTTPRequestHandler):
    server: NumberedTargets

    def do_GET(self) -> None:
        replica = self.path.split("/")[1]
        answer = self.server.next_answer(self.path)
        labels = f'model_name="llama",deployment_id="chat",inference_stack="v1",replica="{replica}",role="aggregated"'
        body = f"# TYPE {METRIC} counter\n{METRIC}{{{labels}}} {answer}\n".encode()
        try:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.server.note_unsent(self.path, answer)
            raise

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Print nothing."""


@contextmanager
def answering_with_numbers() -> Iterator[NumberedTargets]:
    """A server for any number of targets on a free port."""
    server = NumberedTargets()
    with serving(server):
        yield server
