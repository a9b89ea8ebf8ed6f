"""The collector's `/metrics` as scrapers see it: two formats, compressed, rendered once for many."""

from __future__ import annotations

import asyncio
import gzip
import random
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from servescope.catalog import METRICS
from servescope.collector.api.bounds import Bounds
from servescope.collector.exposition import Page, PageRenderer, Scraped
from servescope.collector.telemetry import Telemetry
from servescope.identity import Identity
from tests.fake_targets import FakeTarget
from tests.test_serve import Scene, play, scene

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


async def scrape_everything(stage: Scene, *, shuffled: bool = False) -> None:
    """Two scrapes of targets that show all of the contract; their lines in any order when `shuffled`."""
    targets = {
        name: FakeTarget(name, Identity("m", "d", "s", replica=name, role=role), seed)
        for seed, (name, role) in enumerate((("v1-0", "aggregated"), ("v1-1", "router"), ("v2-0", "autoscaler")))
    }
    mixer = random.Random(7)
    for step in range(2):
        for name, target in targets.items():
            lines = target.exposition(step).splitlines()
            if shuffled:
                mixer.shuffle(lines)
            stage.pages.texts[name] = "\n".join(lines) + "\n"
        await stage.step()


async def fetch(stage: Scene, **headers: str) -> tuple[bytes, dict[str, str]]:
    asked = {"Accept-Encoding": "identity", **headers}
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.get(f"{stage._url}/metrics", headers=asked) as response,
    ):
        assert response.status == 200
        return await response.read(), dict(response.headers)


def samples(families: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The samples but for those that change from one page to the next by themselves."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.startswith("servescope_api_")
    }


@pytest.mark.parametrize("shuffled", [False, True])
def test_openmetrics_says_the_same_as_text(tmp_path: Path, shuffled: bool) -> None:
    """Valid to the letter, whatever the order of lines at the targets, with the same samples under the same names."""

    async def act(stage: Scene) -> tuple[bytes, dict[str, str], bytes, dict[str, str]]:
        await scrape_everything(stage, shuffled=shuffled)
        return *await fetch(stage), *await fetch(stage, Accept=f"{OPENMETRICS};q=0.9,text/plain;q=0.5")

    text, text_headers, page, page_headers = play(tmp_path, act)
    assert text_headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert page_headers["Content-Type"] == f"{OPENMETRICS}; charset=utf-8"
    assert page_headers["Cache-Control"] == text_headers["Cache-Control"] == "no-store"
    assert page.endswith(b"\n# EOF\n")
    families = list(parse_openmetrics(page.decode()))  # type: ignore[no-untyped-call] # the library's
    assert samples(families) == samples(parse_text(text.decode()))
    shown = {family.name: family for family in families}
    assert {metric.documented for metric in METRICS.values()} - set(shown) <= {
        metric.documented for metric in METRICS.values() if metric.unit == "ratio"
    }
    assert shown["output_tokens"].type == "counter"
    assert shown["decode_seconds"].unit == "seconds"


def test_the_page_is_compressed_for_who_takes_it(tmp_path: Path) -> None:
    """In either format."""

    async def act(stage: Scene) -> list[tuple[bytes, dict[str, str]]]:
        await scrape_everything(stage)
        accepts = ("text/plain", OPENMETRICS)
        return [await fetch(stage, **{"Accept": each, "Accept-Encoding": "gzip"}) for each in accepts]

    for body, headers in play(tmp_path, act):
        assert headers["Content-Encoding"] == "gzip"
        assert headers["Vary"] == "Accept, Accept-Encoding"
        assert b"\n# TYPE output_tokens" in gzip.decompress(body)


@pytest.mark.parametrize(("seconds", "renderings"), [(60.0, 1), (0.0, 5)])
def test_one_rendering_serves_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, renderings: int
) -> None:
    """Who asks while a page is fresh gets that page; with none kept each has its own."""
    counted = []
    original = PageRenderer.render

    def render(self: PageRenderer, page: Page) -> bytes:
        counted.append(page)
        return original(self, page)

    monkeypatch.setattr(PageRenderer, "render", render)

    async def act() -> None:
        async with scene(tmp_path, Bounds(page_seconds=seconds, page_share=0.0)) as stage:
            await stage.step()
            for _ in range(5):
                await fetch(stage)

    asyncio.run(act())
    assert len(counted) == renderings


def test_only_what_changed_is_written_anew(tmp_path: Path) -> None:
    """The page of a renderer that made others before is the one that a new renderer makes."""

    async def act(stage: Scene) -> list[tuple[bytes, bytes]]:
        kept = PageRenderer()
        pages: list[tuple[bytes, bytes]] = []
        for text in (
            'running_requests{engine="1"} 2\nqueued_requests{engine="1"} 1',
            'running_requests{engine="1"} 3',
            "",
        ):
            stage.pages.texts["v1-1"] = "".join(
                f'queued_requests{{engine="{number}"}} {number * len(pages)}\n' for number in range(4)
            )
            await stage.step()
            pages.append((kept.render(taken(stage)), PageRenderer().render(taken(stage))))
            stage.pages.texts["v1-0"] = f"{text}\nqueued_requests 5\n"
        return pages

    for one, other in play(tmp_path, act):
        assert one == other


def taken(stage: Scene) -> Page:
    """What the page would show now, without the collector's own series."""
    fresh = [each for each in stage.collector.watched if stage.collector.is_fresh(each)]
    return Page([Scraped(each.target.target_id, *each.ring.latest()) for each in fresh], (), (), Telemetry())
