"""The pages in a deployment's first minutes: figures whose window is filling, and bands that wait for evidence."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from app.charts import charts as drawing
from app.charts import tables
from app.data import queries, readings
from app.selection import TimeRange
from servescope.contract.bands import request_evidence
from servescope.contract.figures import FIGURES
from servescope.contract.objectives import OBJECTIVES
from servescope.contract.own_metrics import FILLED_SERIES
from servescope.contract.types import LeastEvidence
from servescope.store.records import Health
from tests.support.console_pages import charts, html, open_view, read, stop_clock
from tests.support.served_collector import collecting, engine

if TYPE_CHECKING:
    from streamlit.testing.v1 import AppTest

pytestmark = pytest.mark.slow

SECONDS_APART = 15


def collect(folder: Path, seconds: int, drafted: int) -> int:
    """A store with so many seconds of constant traffic since the first scrape, in which so many draft tokens were
    proposed and none accepted; returns the time of the last evaluation.
    """

    async def run() -> int:
        async with collecting(folder) as (collector, pages, clock):
            for step in range(seconds // SECONDS_APART + 1):
                clock.seconds += SECONDS_APART
                part = min(step, 4) / 4
                pages.texts["v1-0"] = engine(1_000 + step * 80) + (
                    f'spec_decode_num_draft_tokens_total{{deployment_id="x"}} {5_000 + part * drafted}\n'
                    'spec_decode_num_accepted_tokens_total{deployment_id="x"} 77\n'
                )
                for watched in collector.fleet.watched:
                    await collector.scraping.scrape(watched)
                collector.evaluating.evaluate(collector.clock.now_ms)
            return collector.clock.now_ms

    return asyncio.run(run())


def open_at(monkeypatch: pytest.MonkeyPatch, folder: Path, now_ms: int, page: str, **parameters: str) -> AppTest:
    """A page on the store of a folder."""
    monkeypatch.setenv("SERVESCOPE_STORE", str(folder / "servescope.db"))
    stop_clock(monkeypatch, now_ms)
    return open_view(page, range="15m", **parameters)


def said(text: str) -> str:
    """What is shown, without what is on hover."""
    return re.sub(r"<[^>]*>", " ", text)


def test_a_minute_old_deployment_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row and tiles show how much of the window there is, the value as it is; eight draft tokens are not judged."""
    now_ms = collect(tmp_path, 60, drafted=8)
    fleet = html(open_at(monkeypatch, tmp_path, now_ms, "fleet"))
    row = next(each for each in re.findall(r"<tr.*?</tr>", fleet, re.DOTALL) if ">v1<" in each)

    assert "filling, 1 of 5 min" in said(row)
    assert re.search(r'class="value filling"[^>]*>1\.2<', row)
    assert 'data-tip="Speculation rate 0 %: too little evidence: 9 of 300 draft tokens' in row
    assert "tuned critical" not in row
    assert "filling, 1 of 5 min" in said(fleet.split("<table")[0])
    assert "to tune soon" not in said(fleet.split("legend")[0])


def test_a_minute_old_charts_lines_are_dotted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of figures over a window; the line of a gauge is drawn full."""
    now_ms = collect(tmp_path, 60, drafted=8)
    page = open_at(monkeypatch, tmp_path, now_ms, "deployment", deployment="v1")
    drawn = {each["title"]["text"]: each for each in charts(page)}
    dotted = {title for title, each in drawn.items() if any(_is_dotted(layer) for layer in each["layer"])}
    captions = read(" ".join(each.value for each in page.caption))

    assert {"Requests", "Output tokens", "Speculation rate"} <= dotted
    assert not {"Queued", "Replicas"} & dotted
    text = html(page)
    assert "filling, 1 of 5 min" in said(text)
    assert "too little evidence: 9 of 300 draft tokens" in said(text)
    assert "costs more than it saves" not in said(text)
    assert "rates are too low by the part that is missing" in captions


def _is_dotted(layer: dict[str, object]) -> bool:
    mark = layer["mark"]
    return isinstance(mark, dict) and mark.get("strokeDash") == [1, 3]


def test_once_the_window_is_whole_nothing_is_filling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is as ever, and enough draft tokens are judged; the chart's past stays dotted."""
    now_ms = collect(tmp_path, 285, drafted=400)
    fleet = html(open_at(monkeypatch, tmp_path, now_ms, "fleet"))
    page = open_at(monkeypatch, tmp_path, now_ms, "deployment", deployment="v1")
    requests = next(each for each in charts(page) if each["title"]["text"] == "Requests")
    text = html(page)

    assert "filling, " not in said(fleet)
    assert 'class="value tuned critical" data-tip="Speculation rate 0 %: costs more than it saves' in fleet
    assert "filling, " not in said(text)
    # What it moved between is of whole windows.
    assert re.search(r"15m: 5\.33 – 5\.33", said(text))
    assert any(_is_dotted(layer) for layer in requests["layer"])


def test_what_is_filling_is_drawn_apart(tmp_path: Path) -> None:
    """Up to where it meets what is whole on both sides, so that no gap is seen; tooltips have every value."""
    times = pd.Index([0, 1, 2, 3, 4, 5], name="time_ms")
    history = pd.DataFrame(
        {"request_rate": [1.0, 2, 3, 4, 5, 6], FILLED_SERIES: [0.2, 0.4, float("nan"), float("nan"), 0.5, 1.0]}, times
    )
    filling = queries.filling_of(history, "request_rate")
    chart = drawing.draw_lines(
        [drawing.Line("chat", history["request_rate"], "#123456", filling=filling)],
        title="Requests", unit="requests/s", span=TimeRange(0, 5, live=False),
    )  # fmt: skip

    assert chart.data["y0"].tolist() == [1, 2, 3, 4, 5, 6]
    assert chart.data["w0"].dropna().tolist() == [3, 4, 6]
    assert chart.data["f0"].dropna().tolist() == [1, 2, 3, 4, 5, 6]
    assert chart.data["window"].tolist() == ["filling", "filling", "whole", "whole", "filling", "whole"]
    assert queries.whole_values(history, "request_rate").dropna().tolist() == [3, 4, 6]
    assert not queries.filling_of(history, "kv_cache_usage").any()


@pytest.mark.parametrize(
    ("name", "rates", "lack"),
    [
        ("speculation_rate", {"spec_decode_draft_tokens_per_second": 8 / 300}, "8 of 300 draft tokens"),
        ("speculation_rate", {"spec_decode_draft_tokens_per_second": 1.0}, ""),
        ("kv_cache_hit_rate_skew", {"kv_cache_eligible_tokens_per_second": 99.0}, "29,700 of 30,000 prompt tokens"),
        ("kv_cache_hit_rate_efficiency", {"kv_cache_eligible_tokens_per_second": 100.0}, ""),
        ("request_error_share", {"request_rate": 9 / 300}, "9 of 10 requests"),
        ("request_error_share", {"request_rate": 10 / 300}, ""),
        ("time_to_first_token_p95", {"request_rate": 19 / 300}, "19 of 20 requests"),
        ("time_to_first_token_p99", {"request_rate": 20 / 300}, "20 of 100 requests"),
        ("time_to_first_token_p50", {"request_rate": 10 / 300}, ""),
        ("kv_cache_hit_rate", {}, ""),
        ("speculation_rate", {}, ""),
    ],
)
def test_bands_wait_for_the_least_evidence(name: str, rates: dict[str, float], lack: str) -> None:
    """Below it a figure has no reading, and what is lacking is said; what was not measured is not held against it."""
    promised = OBJECTIVES
    moment = readings.FiguresAt(rates, 300_000)
    figure, value = FIGURES[name], 0.0
    assert moment.lacking(figure, promised) == (f"too little evidence: {lack}" if lack else "")
    assert (readings.read(figure, value, promised, moment) is None) == (bool(lack) or name == "kv_cache_hit_rate")


def test_evidence_of_requests_follows_the_quantile() -> None:
    """One request has to lie beyond a quantile; ten are asked for at least."""
    assert [request_evidence(share).least for share in (0.5, 0.05, 0.01, 1.0)] == [10, 20, 100, 10]
    assert LeastEvidence("request_rate", 10.0, "requests").describe_lack(9.6) == ""


@pytest.mark.parametrize(
    ("state", "since_minutes", "shown"),
    [
        ("down", 12, (("starting", "warning"), "for 12 min")),
        ("down", 45, (("failing", "critical"), "no answer for 45 min")),
        ("down", None, (("failing", "critical"), "")),
        ("up", None, (("healthy", "good"), "")),
    ],
)
def test_a_target_that_has_not_answered_yet_starts_for_half_an_hour(
    state: Health, since_minutes: int | None, shown: object
) -> None:
    """As long as no alert fires on it; then it fails, and has not answered for so long."""
    now_ms = 1_800_000_000_000
    since_ms = None if since_minutes is None else now_ms - since_minutes * 60_000
    assert tables.describe_health(state, since_ms, now_ms) == shown
