"""The collector's `/metrics` as scrapers see it: two formats, compressed, rendered once for many."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from servescope.collector.exposition import Page, PageRenderer, Scraped
from servescope.collector.telemetry import Telemetry
from servescope.contract.metrics import METRICS
from servescope.contract.samples import Series, format_series, make_labels
from servescope.sources.map_files import load_sources
from servescope.web.bounds import Bounds
from tests.support.exposed_metrics import OPENMETRICS, fetch, scrape_everything
from tests.support.served_collector import scene


def samples(families: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The samples but for those that change from one page to the next by themselves."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.startswith(
            ("servescope_api_", "servescope_render_", "servescope_store_append_", "servescope_event_loop_", "process_")
        )
    }


@pytest.mark.parametrize("shuffled", [False, True])
async def test_openmetrics_says_the_same_as_text(tmp_path: Path, shuffled: bool) -> None:
    """Valid to the letter, whatever the order of lines at the targets, with the same samples under the same names."""
    async with scene(tmp_path) as stage:
        await scrape_everything(stage, shuffled=shuffled)
        await stage.written()
        text, text_headers, page, page_headers = (
            *await fetch(stage),
            *await fetch(stage, Accept=f"{OPENMETRICS};q=0.9,text/plain;q=0.5"),
        )
    assert text_headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert page_headers["Content-Type"] == f"{OPENMETRICS}; charset=utf-8"
    assert page_headers["Cache-Control"] == text_headers["Cache-Control"] == "no-store"
    assert page.endswith(b"\n# EOF\n")
    families = list(parse_openmetrics(page.decode()))  # type: ignore[no-untyped-call] # the library's
    assert samples(families) == samples(parse_text(text.decode()))
    shown = {family.name: family for family in families}
    # What our instruments record, but for ratios of one process: another program counts the errors of GPUs.
    own = [METRICS[name] for name, each in load_sources()["servescope"].metrics.items() if each.alternatives]
    assert {metric.documented for metric in own if metric.unit != "ratio"} <= set(shown)
    assert shown["output_tokens"].type == "counter"
    assert shown["decode_seconds"].unit == "seconds"


async def test_the_page_is_compressed_for_who_takes_it(tmp_path: Path) -> None:
    """In either format."""
    async with scene(tmp_path) as stage:
        await scrape_everything(stage)
        for accepts in ("text/plain", OPENMETRICS):
            body, headers = await fetch(stage, **{"Accept": accepts, "Accept-Encoding": "gzip"})
            assert headers["Content-Encoding"] == "gzip"
            assert headers["Vary"] == "Accept, Accept-Encoding"
            assert b"\n# TYPE output_tokens" in gzip.decompress(body)


@pytest.mark.parametrize(("seconds", "renderings"), [(60.0, 1), (0.0, 5)])
async def test_one_rendering_serves_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, renderings: int
) -> None:
    """Who asks while a page is fresh gets that page; with none kept each has its own."""
    counted = []
    original = PageRenderer.render

    def render(self: PageRenderer, page: Page) -> bytes:
        counted.append(page)
        return original(self, page)

    monkeypatch.setattr(PageRenderer, "render", render)
    async with scene(tmp_path, Bounds(page_seconds=seconds, page_share=0.0)) as stage:
        await stage.step()
        for _ in range(5):
            await fetch(stage)
    assert len(counted) == renderings


def test_only_what_changed_is_written_anew() -> None:
    """The page of a renderer that made others before is that of one that made none, whatever came and went."""
    kept = PageRenderer()
    first = [Series("queued_requests", make_labels({"engine": str(number)})) for number in range(4)]
    second = [*first, Series("running_requests", ())]
    nothing = math.nan
    steps: list[tuple[list[Series], list[float]]] = [
        (first, [0, 0, 0, 0]), (first, [0, 1, 2, 3]), (first, [0, nothing, 2, 4]), (first, [nothing] * 4),
        (first, [0, 1, 2, nothing]), (second, [0, 1, 2, 3, 9]), (second, [0, 1, 2, 3, 8]),
    ]  # fmt: skip
    series = {id(each): tuple(each) for each in (first, second)}

    for shown, values in steps:
        page = Page([Scraped("one", series[id(shown)], np.array(values, dtype=np.float64))], (), (), Telemetry())
        lines = kept.render(page).decode().splitlines()
        assert [line for line in lines if line.startswith(("queued", "running"))] == [
            f"{format_series(*each)} {float(value)}"
            for each, value in zip(shown, values, strict=True)
            if not math.isnan(value)
        ]
