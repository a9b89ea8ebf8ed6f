"""Captured `/metrics` of engines as a collector reads them scrape by scrape, and what its own `/metrics` then exposes.

A capture is one moment, a rate needs several. So what an engine had counted when it was captured is counted once more,
evenly over the time replayed: after a share s of it every counter and every part of a histogram is 1 + s times what was
captured. Gauges keep their values. Nothing else is changed: a counter that was 0 stays 0.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp.test_utils import TestClient, TestServer

from servescope.collector.api.serve import make_application
from servescope.collector.collector import Collector
from servescope.collector.config import CollectorSettings, Configuration
from servescope.collector.scrapes.scrape import Limits
from servescope.collector.targets.deployments import DeploymentSettings, TargetSettings
from servescope.collector.targets.target import Target
from servescope.contract.identity import Deployment
from servescope.sources.map_files import load_sources
from servescope.sources.maps import SUPPLIED
from servescope.store.embedded import Store
from servescope.web.bounds import Bounds
from tests.support.filled_prometheus import SCRAPE_SECONDS, SECONDS, START_SECONDS

Covered = Mapping[str, Mapping[str, str | None]]
"""Of every metric of the contract its status, its native series, and the reason, as a target's status has them."""

_TYPE = re.compile(r"# TYPE (\S+) (counter|histogram|summary)\b")
_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)")
_PART = re.compile(r"_(?:bucket|sum|count)$")
_SHOWN = re.compile(rb"^([a-zA-Z_:][^ ]*(?:\{.*\})?) (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Captured:
    """One target of a deployment: the capture it shows, its role, and native names it is shown without."""

    capture: str
    role: str = "aggregated"
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Engine:
    """A column of the matrix: one deployment of the captures of one engine's release."""

    name: str
    title: str
    targets: tuple[Captured, ...]

    @property
    def deployment(self) -> Deployment:
        """Its identity for the collector."""
        return Deployment("captured", self.name, self.name, "captured", "stable")

    def url(self, target: Captured) -> str:
        """The URL of one of its targets in the collector's configuration."""
        return f"http://{self.name}/{target.capture}/metrics"


ENGINES = (
    Engine("vllm-0-32", "vLLM 0.32", (Captured("vllm-0.32.0-1"),)),
    Engine("vllm-0-13", "vLLM 0.13", (Captured("vllm-0.13era-1"),)),
    Engine("sglang-0-5", "SGLang 0.5.7", (Captured("sglang-0.5.7era-1"),)),
    Engine("sglang-0-4", "SGLang 0.4", (Captured("sglang-0.4.x-1"),)),
    Engine(
        "dynamo-1-6", "Dynamo 1.6", (Captured("dynamo-frontend-1.6.1-1", "router"), Captured("dynamo-mocker-1.6.1-1"))
    ),
    Engine("dynamo-0-8", "Dynamo 0.8", (Captured("dynamo-frontend-0.8dev-1", "router"),)),
    Engine("trtllm-1-2", "TensorRT-LLM 1.2", (Captured("trtllm-1.2rc-1"),)),
    Engine("llamacpp", "llama.cpp", (Captured("llamacpp-2026-1"),)),
)

LAYERED = Engine(
    "dynamo-vllm", "vLLM behind Dynamo", (Captured("dynamo-frontend-1.6.1-1", "router"), Captured("vllm-0.32.0-1"))
)
"""Both of its targets count the same requests: each metric is of one of them."""

OLD_NAMES = Engine(
    "dynamo-old-names",
    "Dynamo 1.6 under its older names",
    (
        Captured("dynamo-frontend-1.6.1-1", "router", without=("dynamo_frontend_active_requests",)),
        Captured("dynamo-mocker-1.6.1-1", without=("vllm:kv_cache_usage_perc",)),
    ),
)
"""Dynamo exposes some series under an old name and a new one; here it has the old one alone."""


@dataclass(slots=True)
class Recorded:
    """What a collector showed: its pages as lines of OpenMetrics with their times, and what each map supplied."""

    pages: list[bytes] = field(default_factory=list)
    coverage: dict[str, list[Covered]] = field(default_factory=dict)
    read_as: dict[str, list[str]] = field(default_factory=dict)

    def supplies(self, engine: str, metric: str) -> bool:
        """Whether a target of the engine has the metric, or would have it once there is traffic."""
        return any(each[metric]["status"] in SUPPLIED for each in self.coverage[engine])

    def is_elsewhere(self, engine: str, metric: str) -> bool:
        """Whether a process that was not captured would have the metric."""
        return any(each[metric]["status"] == "elsewhere" for each in self.coverage.get(engine, ()))

    def reasons(self, engine: str, metric: str) -> list[str]:
        """Why no target of the engine supplies the metric."""
        statuses = [each[metric] for each in self.coverage[engine]]
        # Of two targets the one that could not have it at all explains more than the one that leaves it to others.
        impossible = [each for each in statuses if each["status"] == "impossible"]
        return list(dict.fromkeys(each["reason"] or "no reason given" for each in impossible or statuses))


def replay(engines: Sequence[Engine], captures: Path, folder: Path, *, every: int = SCRAPE_SECONDS) -> Recorded:
    """What a collector shows on `/metrics` while it scrapes these engines, `every` so many seconds; `folder` is for its
    store.

    Raises ServescopeError or OSError when a capture is not there, and AssertionError when a target is not read.
    """
    return asyncio.run(_replay(engines, captures, folder, every))


async def _replay(engines: Sequence[Engine], captures: Path, folder: Path, every: int) -> Recorded:
    texts = {engine.url(target): read_capture(captures, target) for engine in engines for target in engine.targets}
    elapsed = 0

    async def fetch(target: Target, _: Limits, /) -> bytes:
        return grow(texts[target.url], elapsed / SECONDS).encode()

    configuration = Configuration(
        CollectorSettings(store=folder / "servescope.db"), tuple(map(_settings, engines)), "the captures"
    )
    store = Store(configuration.collector.store)
    history = Store(configuration.collector.store, read_only=True)
    collector = Collector(configuration, store, history, fetch, clock=lambda: float(START_SECONDS + elapsed))
    recorded = Recorded()
    try:
        await collector.discovering.discover()
        application = make_application(collector, bounds=Bounds(page_seconds=0.0, page_share=0.0))
        async with TestClient(TestServer(application)) as client:
            for elapsed in range(every, SECONDS + 1, every):
                for watched in collector.fleet.watched:
                    scrape = await collector.scraping.scrape(watched)
                    assert scrape.error is None, scrape.error
                collector.evaluating.evaluate(collector.clock.now_ms)
                recorded.pages.append(_stamped(await _read(client), START_SECONDS + elapsed))
        for watched in collector.fleet.watched:
            name = watched.deployment.deployment_id
            recorded.coverage.setdefault(name, []).append(watched.status.coverage)
            recorded.read_as.setdefault(name, []).append(_tell(watched.status.source, watched.status.versions))
    finally:
        await asyncio.to_thread(collector.close)
    return recorded


def _settings(engine: Engine) -> DeploymentSettings:
    targets = tuple(TargetSettings(engine.url(each), replica=each.capture, role=each.role) for each in engine.targets)
    return DeploymentSettings(engine.deployment, targets)


async def _read(client: TestClient) -> bytes:  # type: ignore[type-arg]
    async with client.get("/metrics") as answer:
        assert answer.status == 200
        return await answer.read()


def _stamped(page: bytes, seconds: int) -> bytes:
    time = str(seconds).encode()
    return b"".join(b"%s %s %s\n" % (series, value, time) for series, value in _SHOWN.findall(page))


def _tell(source: str | None, versions: str) -> str:
    title = load_sources()[source].title if source else "nothing"
    return f"{title} {versions}".strip()


def read_capture(captures: Path, target: Captured) -> str:
    """The text of a target's capture, without the series it is to lack."""
    text = (captures / f"{target.capture}.txt").read_text(encoding="utf-8")
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(target.without or ("\0",)))


def grow(text: str, share: float) -> str:
    """The text after what it counts has happened once more in this share: counters are 1 + share times as high."""
    return "".join(
        line if value is None else f"{line} {value * (1 + share)!r}\n" for line, value in split_counted(text)
    )


def split_counted(text: str) -> Iterator[tuple[str, float | None]]:
    """Each line of a page: the series and the value of one that counts, and any other line as it is, with None."""
    counted = {name for name, _ in _TYPE.findall(text)}
    for line in text.splitlines(keepends=True):
        sample = _SAMPLE.match(line)
        if sample and (sample[1] in counted or _PART.sub("", sample[1]) in counted):
            yield f"{sample[1]}{sample[2] or ''}", float(sample[3])
        else:
            yield line, None
