"""One number, one truth: what the rules record of probed series is what they record of the collector's.

Pages of captured engines advance over a virtual hour, with restarts, failures and series that come and go. A collector
scrapes them, and a translator is asked for each beside it, whose answers get a scraper's labels. A Prometheus 2.42
holds both and evaluates the generated rules.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from servescope.collector.api.serve import make_application
from servescope.collector.collector import Collector
from servescope.collector.config import CollectorSettings, Configuration
from servescope.collector.scrapes.scrape import Limits
from servescope.collector.targets.deployments import DeploymentSettings, TargetSettings
from servescope.collector.targets.target import Target
from servescope.contract.identity import Deployment
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.samples import Labels, Series, format_series, format_value, make_labels
from servescope.store.embedded import Store
from servescope.web.bounds import Bounds
from servescope.web.connections import FetchError
from tests.proofs.engines.captures import ENGINES, LAYERED, Captured, Engine, grow, read_capture
from tests.support.differential import ABSOLUTE, RELATIVE
from tests.support.filled_prometheus import EVERY_RULE, RETENTION, SCRAPE_SECONDS, START_SECONDS, fill
from tests.support.prometheus import Prometheus, running
from tests.support.recording_rules import RULES
from tests.support.translating import Answered, Translating, translating

SECONDS: Final = 3600
COLLECTED, PROBED = "collected", "probed"
_STEPS = range(SCRAPE_SECONDS, SECONDS + 1, SCRAPE_SECONDS)
_ENGINES = (*ENGINES, LAYERED)
_BEHIND = "frontend,router"

Samples = dict[Series, float]


class Advancing:
    """What one target shows at each step: counters grow unevenly, a restart sets them back, some scrapes fail."""

    def __init__(self, text: str, seed: str) -> None:
        self._text, chance = text, random.Random(seed)
        self._shares: dict[int, float] = {}
        share, self.failing = 0.0, set[int]()
        for elapsed in _STEPS:
            # A restart leaves a fifth: of what was counted before a process began nothing is left.
            share = -0.99 if chance.random() < 0.01 else share + chance.random() * 0.02
            self._shares[elapsed] = share
            if chance.random() < 0.04:
                self.failing.add(elapsed)
        self._quiet = range(*sorted(chance.sample(list(_STEPS), 2)))

    def page(self, elapsed: int) -> str:
        """The page; for a while without its histograms."""
        text = grow(self._text, self._shares[elapsed])
        if elapsed not in self._quiet:
            return text
        return "".join(line for line in text.splitlines(keepends=True) if "time_to_first_token" not in line)


@pytest.mark.proof
@pytest.mark.reference
def test_every_recorded_figure_of_probed_series_is_the_collectors(
    reference: Path, tmp_path: Path, prometheus: Path, promtool: Path
) -> None:
    """Every rule, at every scrape of the hour, within 1e-9 relative or 1e-12 absolute; absent where it is absent."""
    lines = asyncio.run(_scrape_both(reference / "captures", tmp_path))
    folder = tmp_path / "prometheus"
    fill(prometheus, promtool, folder, lines, seconds=SECONDS, times=EVERY_RULE)
    with running(prometheus, folder, {}, options=RETENTION) as server:
        compared, differing = 0, list[str]()
        recorded = set()
        for name in RULES:
            collected, probed = (_recorded(server, name, each) for each in (COLLECTED, PROBED))
            differing += [f"{name}{dict(labels)} at {time}" for labels, time in collected.keys() ^ probed.keys()]
            for key in collected.keys() & probed.keys():
                ours, theirs = probed[key], collected[key]
                compared += 1
                recorded.add(name)
                if abs(ours - theirs) > max(ABSOLUTE, RELATIVE * abs(theirs)) and not (
                    ours != ours and theirs != theirs
                ):
                    differing.append(f"{name}{dict(key[0])} at {key[1]}: probed {ours!r}, collected {theirs!r}")
    assert differing[:20] == []
    print(f"{compared} values of {len(recorded)} rules compared")
    assert len(recorded) > 60
    assert compared > 20_000


def _recorded(server: Prometheus, name: str, environment: str) -> dict[tuple[Labels, int], float]:
    found = server.query_range(
        f'{{__name__="{name}",environment="{environment}"}}',
        start_ms=(START_SECONDS + SCRAPE_SECONDS) * 1000,
        end_ms=(START_SECONDS + SECONDS) * 1000,
        step_ms=SCRAPE_SECONDS * 1000,
    )
    return {
        (tuple(pair for pair in each.labels if pair[0] != "environment"), time): value
        for each in found
        for time, value in zip(each.times, each.values, strict=True)
    }


async def _scrape_both(captures: Path, folder: Path) -> list[bytes]:
    """The samples of both, as lines with their time."""
    pages = {
        engine.url(target): Advancing(read_capture(captures, target), f"{engine.name} {target.capture}")
        for engine in _ENGINES
        for target in engine.targets
    }
    elapsed, lines = 0, list[bytes]()

    async def fetch(target: Target, _: Limits, /) -> bytes:
        if elapsed in pages[target.url].failing:
            raise FetchError("unreachable", "cannot connect")
        return pages[target.url].page(elapsed).encode()

    async def answer(request: web.Request) -> web.Response:
        shown = pages[f"http://{request.path.removeprefix('/')}"]
        if elapsed in shown.failing:
            return web.Response(status=503)
        return web.Response(text=shown.page(elapsed))

    configuration = Configuration(
        CollectorSettings(store=folder / "servescope.db"), tuple(map(_settings, _ENGINES)), "the captures"
    )
    store = Store(configuration.collector.store)
    history = Store(configuration.collector.store, read_only=True)
    collector = Collector(configuration, store, history, fetch, clock=lambda: float(START_SECONDS + elapsed))
    async with AsyncExitStack() as resources:
        resources.push_async_callback(asyncio.to_thread, collector.close)
        await collector.discovering.discover()
        application = make_application(collector, bounds=Bounds(page_seconds=0.0, page_share=0.0))
        client = await resources.enter_async_context(TestClient(TestServer(application)))
        routes = {url.removeprefix("http:/"): answer for url in pages}
        stages: dict[str, Translating] = {}
        for url in pages:
            # Each target has its own path here; elsewhere it has its own address.
            path = url.removeprefix("http:/")
            (folder / str(len(stages))).mkdir()
            text = f'[[targets]]\nmatch = ["TARGET"]\nmetrics_path = "{path}"\n'
            stages[url] = await resources.enter_async_context(
                translating(folder / str(len(stages)), {path: routes[path]}, text)
            )
        for elapsed in _STEPS:
            for watched in collector.fleet.watched:
                await collector.scraping.scrape(watched)
            collector.evaluating.evaluate(collector.clock.now_ms)
            async with client.get("/metrics") as answered:
                shown = Answered(answered.status, await answered.text(), {}).samples()
            lines += _stamped(_scraped_alone(shown), elapsed)
            for engine in _ENGINES:
                for number, target in enumerate(engine.targets):
                    behind = _BEHIND if number else ""
                    probed = (await stages[engine.url(target)].probe(behind=behind)).samples()
                    lines += _stamped(_with_target_labels(probed, engine, target), elapsed)
    return lines


def _settings(engine: Engine) -> DeploymentSettings:
    targets = tuple(TargetSettings(engine.url(each), replica=each.capture, role=each.role) for each in engine.targets)
    return DeploymentSettings(_deployment(engine, COLLECTED), targets)


def _deployment(engine: Engine, environment: str) -> Deployment:
    return Deployment("captured", engine.name, engine.name, environment, "stable")


def _scraped_alone(page: Mapping[tuple[str, Labels], float]) -> Samples:
    """What the collector scraped, without what it derived or counted itself, which no probe has."""
    return {
        Series(name, labels): value
        for (name, labels), value in page.items()
        if SAMPLE_FAMILIES.get(name, name) in METRICS and not {"derived", "window"} & set(dict(labels))
    }


def _with_target_labels(page: Mapping[tuple[str, Labels], float], engine: Engine, target: Captured) -> Samples:
    """What Prometheus stores of a page without `honor_labels`."""
    attached = dict(_deployment(engine, PROBED).labels()) | {"replica": target.capture, "role": target.role}
    attached |= {"job": "servescope-targets", "instance": f"{target.capture}:8000"}
    return {
        Series(
            name,
            make_labels({f"exported_{each}" if each in attached else each: text for each, text in labels} | attached),
        ): value
        for (name, labels), value in page.items()
    }


def _stamped(samples: Samples, elapsed: int) -> Iterator[bytes]:
    for series, value in samples.items():
        yield f"{format_series(*series)} {format_value(value)} {START_SECONDS + elapsed}\n".encode()
