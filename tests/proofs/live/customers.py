"""Customers of the running stack: a deployment for each, and a backend that answers each as an episode has it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from tests.proofs.live.exporter import Exporter, exporting
from tests.support.answering import serving

CUSTOMERS: Final = ("refused", "slow", "withheld", "rejected")
"""Each by what an episode does to it."""
METRIC, OTHER_METRIC = "output_tokens_total", "requests_total"
"""What their deployments report, and what they do not."""
CONFIGURATION: Final = "customers.toml"
_SLOW_SECONDS: Final = 100.0


def labels_of(customer: str) -> dict[str, str]:
    """The labels of a customer's deployment."""
    return {
        "model_name": "model-customers", "deployment_id": f"of-{customer}", "inference_stack": "v2",
        "environment": "live",
    }  # fmt: skip


@dataclass
class Backend:
    """The customers' backend: the status that each one's requests get, 200 where none is set, and who waits for it.

    A request of those in `slow` is answered after 100 seconds, or when `released` is set.
    """

    url: str = ""
    statuses: dict[str, int] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    released: threading.Event = field(default_factory=threading.Event)

    def answer(self, customer: str) -> int:
        """The status of a request."""
        if customer in self.slow:
            self.released.wait(_SLOW_SECONDS)
        return self.statuses.get(customer, 200)


def write_customers(folder: Path, backend: Backend) -> Path:
    """The configuration of the export; the collector's is beside it."""
    lines = ['collector = "servescope.toml"']
    for customer in CUSTOMERS:
        lines += [
            "", "[[customers]]", f'name = "{customer}"', f'metrics = ["{METRIC}"]', 'labels = ["deployment_id"]',
            'interval = "10s"', "[[customers.deployments]]",
            *(f'{name} = "{value}"' for name, value in labels_of(customer).items()),
            "[[customers.push]]", 'protocol = "otlp-http"', f'url = "{backend.url}/{customer}"', 'timeout = "2m"',
        ]  # fmt: skip
    path = folder / CONFIGURATION
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    backend: Backend

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: an export that is killed hangs up."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        """Answer a request of a customer's destination."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.server.backend.answer(self.path.strip("/")))
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def receiving() -> Iterator[Backend]:
    """The backend on a free port of loopback."""
    server = _Server(("127.0.0.1", 0), _Handler)
    with serving(server) as url:
        server.backend = Backend(url)
        yield server.backend


@contextmanager
def customer_targets() -> Iterator[list[Exporter]]:
    """A target of each customer's deployment."""
    with ExitStack() as opened:
        yield [opened.enter_context(exporting(labels_of(customer))) for customer in CUSTOMERS]
