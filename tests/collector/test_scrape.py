"""One scrape: whatever a target does affects only its own scrape, and the error names the cause."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from servescope.collector.scrapes.fetch import HttpFetch
from servescope.collector.scrapes.scrape import Limits, Scrape, scrape_target
from servescope.collector.targets.target import Target
from servescope.contract.identity import Identity
from servescope.settings.access import Access
from servescope.sources.identification import Identification, identify
from servescope.sources.page import PageLimits
from servescope.sources.parse import Exposition
from servescope.sources.reader import Reader, ReadError
from tests.support.loopback import Handler, serving

IDENTITY = Identity("llama", "chat", "v1", replica="r0")
LIMITS = Limits(timeout_seconds=5.0, max_body_bytes=10_000, max_series=100)
OURS = """# TYPE output_tokens_total counter
output_tokens_total{deployment_id="inner",replica="r0"} 7
queued_requests{deployment_id="inner"} 2
"""
VLLM = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="llama"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="llama"} 1.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="llama"} 0.5
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="llama"} 90.0
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="llama"} 40.0
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="llama"} 80.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="llama"} 1.5
vllm:inter_token_latency_seconds_count{engine="0",model_name="llama"} 80.0
"""


def answering(body: str, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body, status=status, headers=headers)

    return answer


def scrape_once(routes: Mapping[str, Handler], access: Access | None = None) -> Scrape:
    async def run() -> Scrape:
        async with serving(routes) as base, aiohttp.ClientSession() as session:
            target = Target(f"{base}/metrics", IDENTITY, None, access or Access())
            return await scrape_target(
                target, Reader(target.identity), HttpFetch(session), LIMITS, clock=lambda: 1_800_000_000
            )

    return asyncio.run(run())


def values(scrape: Scrape) -> dict[str, float]:
    assert scrape.snapshot is not None, scrape.error
    return {sample.name: sample.value for sample in scrape.snapshot.samples()}


def test_a_good_target_gives_contract_samples_of_its_identity() -> None:
    """The configured identity wins, the target's own label is kept beside it; the time is the clock's."""
    scrape = scrape_once({"/metrics": answering(OURS)})

    assert (scrape.outcome, scrape.time_ms, scrape.error, scrape.native_samples) == ("ok", 1_800_000_000_000, None, 2)
    assert values(scrape)["output_tokens_total"] == 7
    assert scrape.snapshot is not None
    labels = dict(scrape.snapshot.series[0].labels)
    assert (labels["deployment_id"], labels["exported_deployment_id"], labels["replica"]) == ("chat", "inner", "r0")


def test_headers_and_tokens_are_sent(tmp_path: Path) -> None:
    """A request carries what is configured, the token file as it is now, and says who asks."""
    seen: list[Mapping[str, str]] = []
    token = tmp_path / "token"

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers)
        return web.Response(text=OURS)

    for secret in ("first", "second"):
        token.write_text(f"{secret}\n")
        access = Access(headers=(("X-Team", "inference"),), bearer_token_file=str(token))
        scrape_once({"/metrics": answer}, access=access)

    assert [each["Authorization"] for each in seen] == ["Bearer first", "Bearer second"]
    assert seen[0]["X-Team"] == "inference"
    assert seen[0]["User-Agent"].startswith("servescope/")
    assert seen[0]["X-Prometheus-Scrape-Timeout-Seconds"] == "5"


def test_redirects_are_followed_at_home() -> None:
    """A server's own; another origin, or a loop, is a fault."""
    routes = {"/metrics": answering("", status=307, headers={"Location": "/metrics/"}), "/metrics/": answering(OURS)}
    assert values(scrape_once(routes))["output_tokens_total"] == 7


def test_the_source_is_identified_at_the_first_success() -> None:
    """Before it, the source is unknown; afterwards it stays, with its coverage."""
    reader = Reader(IDENTITY)
    before = reader.source
    with pytest.raises(ReadError, match="no source map reads what it exposes: no name in it is known"):
        reader.read(b"something 1\n", PageLimits(max_series=100))
    reader.read(VLLM.encode(), PageLimits(max_series=100))

    assert (before, reader.source) == (None, "vllm")
    assert reader.coverage["queued_requests"]["status"] == "present"
    assert reader.coverage["queued_requests"]["native"]


def test_a_pinned_source_is_taken_at_its_word() -> None:
    """What the configuration names is used without identification, as long as it finds something."""
    reader = Reader(IDENTITY, "vllm")
    with pytest.raises(ReadError, match=r"source = 'vllm' is configured, but it finds nothing .*: no name in it is kn"):
        reader.read(b"something 1\n", PageLimits(max_series=100))
    before = reader.source
    snapshot, _, _ = reader.read(b"vllm:num_requests_waiting 1\n", PageLimits(max_series=100))

    assert (before, reader.source) == (None, "vllm")
    assert [series.name for series in snapshot.series] == ["queued_requests"]


def test_a_target_that_changes_its_engine_is_identified_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """When what was observed is gone, the source is looked for again; while nothing is missing it is not."""
    reader = Reader(IDENTITY)
    reader.read(VLLM.encode(), PageLimits(max_series=100))
    looked = []

    def look(exposition: Exposition) -> Identification:
        looked.append(exposition)
        return identify(exposition)

    monkeypatch.setattr("servescope.sources.series_plan.identify", look)
    reader.read(VLLM.encode(), PageLimits(max_series=100))
    while_same = len(looked)
    snapshot, _, _ = reader.read(OURS.encode(), PageLimits(max_series=100))

    assert (while_same, len(looked), reader.source) == (0, 1, "servescope")
    assert {sample.name for sample in snapshot.series} == {"output_tokens_total", "queued_requests"}


def test_what_may_not_be_stored_is_dropped_and_counted() -> None:
    """NaN and infinities go, and the ratios of a single process, which the collector derives itself."""
    text = OURS + "kv_cache_usage NaN\nconcurrent_requests +Inf\nspeculation_rate 0.5\n"
    reader = Reader(IDENTITY)
    snapshot, native, dropped = reader.read(text.encode(), PageLimits(max_series=100))
    again, _, _ = reader.read(OURS.encode(), PageLimits(max_series=100))

    assert {series.name for series in snapshot.series} == {"output_tokens_total", "queued_requests"}
    assert (native, dropped) == (5, {"not_finite": 2})
    assert again.series is snapshot.series
