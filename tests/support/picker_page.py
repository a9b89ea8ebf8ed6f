"""One page of an endpoint picker that routes to two stacks, and a collector that reads each part of it."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import accumulate
from pathlib import Path
from typing import Final

from servescope.collector.collector import Collector
from servescope.collector.config import read_configuration
from servescope.collector.scrapes.scrape import Limits
from servescope.collector.targets.target import Target
from servescope.contract.samples import format_edge
from servescope.sources.map_files import load_sources
from servescope.store.embedded import Store
from servescope.web.connections import FetchError

START: Final = 1_800_000_000
_EDGES: Final = load_sources()["epp"].metrics["request_duration_seconds"].edges
_DEPLOYMENT: Final = """
[[deployments]]
deployment_id = "{name}"
inference_stack = "{name}"
{model}
[[deployments.targets]]
url = "http://picker:9090/metrics"
select = {{ target_model_name = "llama-{name}" }}
"""


def configuration(*names: str, settings: str = "", model: str = 'model_name = "llama"') -> str:
    """A collector's configuration: the picker's page, a part of it for each deployment."""
    head = f'[collector]\nlisten = "127.0.0.1:0"\n{settings}\n'
    return head + "".join(_DEPLOYMENT.format(name=name, model=model) for name in names)


class Counted:
    """What the picker has counted for one target model: durations of answers, errors by their code, and requests that
    were sent to a model server and have no answer with its usage.
    """

    def __init__(self, errors: Mapping[str, int] | None = None) -> None:
        self.errors = errors or {}
        self.answers, self.unanswered, self.seconds = 0, 0, 0.0
        self._buckets = [0] * (len(_EDGES) + 1)

    def answer(self, seconds: float, times: int = 1) -> Counted:
        """Count answers that took so long."""
        self.answers += times
        self.seconds += seconds * times
        self._buckets[bisect_left(_EDGES, seconds)] += times
        return self

    def buckets(self) -> Iterator[tuple[str, int]]:
        """The edges of a histogram of their durations, with the answers that took no longer."""
        return zip((*map(str, _EDGES), "+Inf"), accumulate(self._buckets), strict=True)


def picker_page(began: float = START, **counted: Counted) -> str:
    """What a picker exposes, by the part of its target models' names behind `llama-`."""
    lines = [
        'llm_d_epp_info{build_ref="v0.10.0",commit="0"} 1',
        'llm_d_epp_ready_endpoints{name="pool"} 4',
        f"process_start_time_seconds {began}",
    ]
    for name, each in counted.items():
        labels = f'fairness_id="default",model_name="llama",priority="0",target_model_name="llama-{name}"'
        if each.answers:
            lines.append(f"llm_d_epp_request_total{{{labels}}} {each.answers + each.unanswered}")
        lines += _histogram("llm_d_epp_request_duration_seconds", labels, each)
        lines += _prompts(labels, each.answers)
        lines += [
            f'llm_d_epp_request_error_total{{{labels},error_code="{code}"}} {count}'
            for code, count in each.errors.items()
        ]
    return "\n".join(lines) + "\n"


def _prompts(labels: str, answers: int) -> list[str]:
    """Of answers with their usage, for prompts of 100 tokens."""
    name = "llm_d_epp_request_input_tokens"
    edges = load_sources()["epp"].metrics["input_tokens_per_request"].edges
    buckets = [(format_edge(edge), answers if edge >= 100 else 0) for edge in (*edges, math.inf)]
    if not answers:
        return []
    return [
        *(f'{name}_bucket{{{labels},le="{edge}"}} {count}' for edge, count in buckets),
        f"{name}_sum{{{labels}}} {answers * 100}",
        f"{name}_count{{{labels}}} {answers}",
    ]


def _histogram(name: str, labels: str, counted: Counted) -> list[str]:
    if not counted.answers:
        return []
    return [
        *(f'{name}_bucket{{{labels},le="{edge}"}} {count}' for edge, count in counted.buckets()),
        f"{name}_sum{{{labels}}} {counted.seconds}",
        f"{name}_count{{{labels}}} {counted.answers}",
    ]


class PickerCollector:
    """A collector of the picker's page, its clock, and how often the page was asked for; None is a failure."""

    def __init__(self, folder: Path, text: str) -> None:
        self.seconds = float(START)
        self.page: str | None = None
        self.asked = 0
        path = folder / "servescope.toml"
        path.write_text(text, encoding="utf-8")
        found = read_configuration(path)
        self.history = Store(found.collector.store)
        self.collector = Collector(
            found, self.history, Store(found.collector.store, read_only=True), self._fetch, clock=lambda: self.seconds
        )

    async def _fetch(self, target: Target, _: Limits, /) -> bytes:
        self.asked += 1
        if self.page is None:
            raise FetchError("unreachable", "cannot connect: Connection refused")
        return self.page.encode()

    async def step(self, page: str | None, *, seconds: float = 15.0) -> dict[str, Mapping[str, float]]:
        """Scrape this page and evaluate: the figures of each deployment."""
        await self.scrape(page, seconds=seconds)
        evaluation = self.collector.evaluating.evaluate(self.collector.clock.now_ms)
        return {deployment.deployment_id: each.figures for deployment, each in evaluation.deployments.items()}

    async def scrape(self, page: str | None, *, seconds: float) -> None:
        """Scrape this page, so many seconds after the last."""
        self.seconds += seconds
        self.page = page
        await self.collector.discovering.discover()
        for watched in self.collector.fleet.pages:
            await self.collector.scraping.scrape(watched)


@asynccontextmanager
async def collecting_picker(folder: Path, text: str) -> AsyncIterator[PickerCollector]:
    """A collector that is closed at the end."""
    found = PickerCollector(folder, text)
    try:
        yield found
    finally:
        await asyncio.to_thread(found.collector.close)
