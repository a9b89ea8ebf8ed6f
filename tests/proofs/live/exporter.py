"""A target beside the emulated ones, which can be made to show new series with every scrape."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from tests.support.answering import answering

LABELS: Final = {
    "model_name": "model-exporter", "deployment_id": "exporter", "inference_stack": "v2", "environment": "live",
}  # fmt: skip
_NEW_SERIES: Final = 400


@dataclass
class Pages:
    """A target of ours: `url` is its page."""

    url: str

    def page(self) -> bytes:
        """What the next scrape gets."""
        raise NotImplementedError


@dataclass
class Exporter(Pages):
    """While `overflows` is set each scrape finds 400 series it has not seen."""

    labels: dict[str, str]
    overflows: threading.Event = field(default_factory=threading.Event)
    _served: int = 0

    def page(self) -> bytes:
        """What the next scrape gets."""
        first = self._served * _NEW_SERIES
        self._served += self.overflows.is_set()
        engines = range(first, first + _NEW_SERIES) if self.overflows.is_set() else range(2)
        identity = ",".join(f'{name}="{value}"' for name, value in self.labels.items())
        lines = [f'output_tokens_total{{{identity},engine="{number}"}} 1' for number in engines]
        return ("\n".join(lines) + "\n").encode()


@contextmanager
def exporting(labels: Mapping[str, str] = LABELS) -> Iterator[Exporter]:
    """The target of a deployment on a free port of loopback."""
    exporter = Exporter("", dict(labels))
    with serving(exporter):
        yield exporter


@contextmanager
def serving(pages: Pages) -> Iterator[None]:
    """Serve a target's page on a free port of loopback."""
    headers = {"Content_Type": "text/plain; version=0.0.4"}
    with answering(lambda handler: handler.reply(200, pages.page(), **headers)) as address:
        pages.url = f"{address}/metrics"
        yield
