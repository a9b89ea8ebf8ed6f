"""A collector whose clock and targets a test steps, in one folder."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from servescope.collector.collector import Collector
from servescope.collector.config import read_configuration
from servescope.collector.scrapes.scrape import Limits
from servescope.collector.targets.target import Target
from servescope.contract.identity import Deployment
from servescope.store.embedded import Store
from servescope.web.connections import FetchError

START = 1_800_000_000


CHAT = Deployment("llama", "chat", "v1")


CONFIGURATION = """
[collector]
listen = "127.0.0.1:0"
{settings}
[[deployments]]
deployment_id = "chat"
model_name = "llama"
inference_stack = "v1"
[[deployments.file_sd]]
files = ["targets.json"]
"""


def page(count: float) -> str:
    return (
        f'requests_total{{deployment_id="x",outcome="ok"}} {count}\noutput_tokens_total{{deployment_id="x"}} {count}\n'
        'queued_requests{deployment_id="x"} 2\n'
    )


def dynamo_page(count: float) -> str:
    """What a Dynamo frontend shows of `count` tokens in as many requests."""
    return (
        "dynamo_frontend_disconnected_clients 0\n"
        f'dynamo_frontend_output_sequence_tokens_sum{{model="m"}} {count}\n'
        f'dynamo_frontend_output_sequence_tokens_count{{model="m"}} {count}\n'
        f'dynamo_frontend_output_tokens_total{{model="m"}} {count}\n'
        f'dynamo_frontend_queued_requests{{model="m"}} 3\n'
    )


def vllm_page(count: float) -> str:
    """What a vLLM worker shows of the same tokens."""
    label = '{engine="0",model_name="m"}'
    return (
        f"vllm:num_requests_running{label} 1\nvllm:num_requests_waiting{label} 5\n"
        f"vllm:generation_tokens_total{label} {count}\nvllm:kv_cache_usage_perc{label} 0.5\n"
        f"vllm:prefix_cache_queries_total{label} {count}\nvllm:prefix_cache_hits_total{label} 0\n"
        f"vllm:inter_token_latency_seconds_sum{label} 1\nvllm:inter_token_latency_seconds_count{label} 1\n"
    )


def write_targets(folder: Path, *names: str, labels: dict[str, str] | None = None) -> None:
    groups = [{"targets": [f"{name}:80"], "labels": {"replica": name, **(labels or {})}} for name in names]
    (folder / "fresh").write_text(json.dumps(groups))
    (folder / "fresh").replace(folder / "targets.json")


class World:
    """A collector of these targets, its clock and what they answer, by replica; None is a failure.

    Of targets that are not named here the test writes the list itself.
    """

    def __init__(self, folder: Path, *names: str, settings: str = "") -> None:
        self.folder = folder
        self.seconds = float(START)
        self.answers: dict[str, float | None] = dict.fromkeys(names, 0.0)
        if names:
            write_targets(folder, *names)
        self.pages: dict[str, Callable[[float], str]] = {}
        self.asked: list[str] = []
        (folder / "servescope.toml").write_text(CONFIGURATION.format(settings=settings))
        self.open()

    def open(self) -> None:
        """Start a collector on the folder's store."""
        configuration = read_configuration(self.folder / "servescope.toml")
        path = configuration.collector.store
        store = Store(path)
        history = Store(path, read_only=True)
        self.collector = Collector(configuration, store, history, self.fetch, clock=lambda: self.seconds)

    async def fetch(self, target: Target, _: Limits, /) -> bytes:
        self.asked.append(target.url)
        count = self.answers.get(target.identity.replica)
        if count is None:
            raise FetchError("unreachable", "cannot connect: Connection refused")
        return self.pages.get(target.identity.replica, page)(count).encode()

    async def step(self, count: float | None = None, *, seconds: float = 15.0) -> dict[str, float]:
        """Let every target count to `count`, discover, scrape, evaluate: the figures of the deployment."""
        self.seconds += seconds
        if count is not None:
            self.answers = {name: count for name, former in self.answers.items() if former is not None}
        await self.collector.discovering.discover()
        for watched in self.collector.fleet.pages:
            await self.collector.scraping.scrape(watched)
        evaluation = self.collector.evaluating.evaluate(self.collector.clock.now_ms)
        return evaluation.deployments[CHAT].figures if CHAT in evaluation.deployments else {}

    async def aclose(self) -> None:
        await asyncio.to_thread(self.collector.close)
