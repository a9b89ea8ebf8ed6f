"""Customers of the running stack: a deployment for each, and a backend that answers each as an episode has it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.proofs.live.exporter import Exporter, exporting
from tests.support.answering import Handler, answering

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

    def answer(self, request: Handler) -> None:
        """Answer a request of a customer's destination."""
        customer = request.path.strip("/")
        if customer in self.slow:
            self.released.wait(_SLOW_SECONDS)
        request.reply(self.statuses.get(customer, 200), "", Content_Type="application/x-protobuf")


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


@contextmanager
def receiving() -> Iterator[Backend]:
    """The backend on a free port of loopback."""
    backend = Backend()
    with answering(backend.answer) as backend.url:
        yield backend


@contextmanager
def customer_targets() -> Iterator[list[Exporter]]:
    """A target of each customer's deployment."""
    with ExitStack() as opened:
        yield [opened.enter_context(exporting(labels_of(customer))) for customer in CUSTOMERS]
