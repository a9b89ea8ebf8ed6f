"""What a target shows may be wrong in many ways: each costs its own scrape or its own sample, counted and named."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from servescope.collector.api.serve import make_application
from servescope.collector.collector import Collector
from servescope.collector.config import make_configuration
from servescope.collector.scrapes.fetch import HttpFetch
from servescope.store.embedded import Store
from servescope.web.bounds import Bounds
from tests.support.loopback import running

LIMITS = {"max_series": 40, "max_labels": 12, "max_label_bytes": 100, "max_line_bytes": 400}
LABELS = '{engine="0",model_name="m"}'


def vllm_page(count: float, *more: str, without: str = "nothing") -> str:
    """What a vLLM shows after so many tokens."""
    lines = [
        f"vllm:num_requests_running{LABELS} 1",
        f"vllm:num_requests_waiting{LABELS} 5",
        f"vllm:generation_tokens_total{LABELS} {count}",
        f"vllm:prompt_tokens_total{LABELS} {count}",
        f"vllm:kv_cache_usage_perc{LABELS} 0.5",
        f"vllm:prefix_cache_queries_total{LABELS} {count}",
        f"vllm:prefix_cache_hits_total{LABELS} 0",
        f"vllm:inter_token_latency_seconds_sum{LABELS} 1",
        f"vllm:inter_token_latency_seconds_count{LABELS} 1",
    ]
    return "".join(f"{line}\n" for line in (*lines, *more) if without not in line)


MANY_LABELS = "x{" + ",".join(f'l{place}="1"' for place in range(13)) + "} 1"


class Scene:
    """A collector of two targets over HTTP, and what a user reads of it; time advances by 15 seconds a step."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.seconds = 1_800_000_000.0
        self.answers: dict[str, bytes] = {}
        self.headers: dict[str, str] = {}
        self.url = ""
        self.collector: Collector

    async def answer(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return web.Response(body=self.answers[name], headers=self.headers if name == "odd" else None)

    async def step(self, count: float, odd: str | bytes | None = None) -> Mapping[str, float]:
        """Let the good target count, and the odd one show something: the figures of the deployment."""
        self.seconds += 15
        self.answers["good"] = vllm_page(count).encode()
        shown = vllm_page(count) if odd is None else odd
        self.answers["odd"] = shown if isinstance(shown, bytes) else shown.encode()
        for watched in self.collector.fleet.watched:
            await self.collector.scraping.scrape(watched)
        evaluation = self.collector.evaluating.evaluate(self.collector.clock.now_ms)
        return next(iter(evaluation.deployments.values())).figures

    async def status(self, replica: str) -> Any:
        """What /api/v1/targets says of a target."""
        async with self.session.get(f"{self.url}/api/v1/targets") as response:
            targets = json.loads(await response.text())["targets"]
        return next(target for target in targets if target["identity"]["replica"] == replica)

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of the series of a name on /metrics with these labels."""
        async with self.session.get(f"{self.url}/metrics") as response:
            text = await response.text()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


@asynccontextmanager
async def scene(folder: Path, source: str | None = None) -> AsyncIterator[Scene]:
    async with aiohttp.ClientSession() as session:
        stage = Scene(session)
        application = web.Application()
        application.router.add_get("/{name}", stage.answer)
        async with running(application) as base:
            targets = [{"url": f"{base}/{name}", "replica": name} for name in ("good", "odd")]
            if source:
                targets[1]["source"] = source
            deployment = {"deployment_id": "chat", "model_name": "llama", "inference_stack": "v1", "targets": targets}
            document = {"collector": LIMITS, "deployments": [deployment]}
            configuration = make_configuration(document, origin="test", directory=folder)
            path = folder / "servescope.db"
            store = Store(path)
            history = Store(path, read_only=True)
            stage.collector = Collector(configuration, store, history, HttpFetch(session), clock=lambda: stage.seconds)
            await stage.collector.discovering.discover()
            async with running(
                make_application(stage.collector, bounds=Bounds(page_seconds=0.0, page_share=0.0))
            ) as stage.url:
                try:
                    yield stage
                finally:
                    await asyncio.to_thread(stage.collector.close)


OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "content_type", "outcome", "cause"),
    [
        (vllm_page(9, "vllm:x{oops} 1"), "text/plain", "malformed", "line 10: expected label="),
        (vllm_page(9, "vllm:x 1_000"), "text/plain", "malformed", "line 10: '1_000' is not a number"),
        ("<html>\n<body>sign in</body>\n", "text/plain; version=0.0.4", "malformed", "the body is HTML"),
        ("\ufeff<!DOCTYPE html>\n<html/>\n", "text/html", "malformed", "the body is HTML"),
        ('{"vllm": {"requests": 1}}', "text/plain; version=0.0.4", "malformed", "the body is JSON"),
        ("\ufeff" + vllm_page(9), "text/plain", "malformed", "a byte order mark precedes the text"),
        (b"\x1f\x8b\x08" + bytes(range(256)), "text/plain", "malformed", "gzip, which its Content-Encoding does not"),
        (bytes(range(256)) * 4, "application/octet-stream", "malformed", "not text: a compressed or binary body"),
        (vllm_page(9).encode("utf-16"), "text/plain; charset=utf-16", "malformed", "UTF-16, expected UTF-8"),
        (vllm_page(9, 'x{a="é"} 1').encode("latin-1"), "text/plain; charset=latin-1", "malformed", "not UTF-8"),
        (vllm_page(9)[:-20], "text/plain", "truncated", "the answer ended within its last line; line 9: "),
        (vllm_page(9, "x 12345")[:-3], "text/plain", "truncated", "the last line has no end"),
        (vllm_page(9), OPENMETRICS, "truncated", "its Content-Type is OpenMetrics, and no '# EOF' ends it"),
        (vllm_page(9, "# EOF", "x 1"), OPENMETRICS, "truncated", "no '# EOF' ends it"),
        (vllm_page(9, "# EOF", "x 1", "# EOF"), OPENMETRICS, "malformed", "line 11: text after '# EOF'"),
        ("", "text/plain", "empty", "no samples in the answer"),
        ("# HELP vllm:x y\n# TYPE vllm:x gauge\n\n", "text/plain", "empty", "no samples in the answer"),
        (vllm_page(9, *(f"x{i} 1" for i in range(40))), "text/plain", "too_many_series",
         "the limit of 40 (max_series)"),
        ("\n" * 99_999, "text/plain", "too_many_series", "99999 lines, above the 246"),
        (vllm_page(9, MANY_LABELS), "", "too_many_labels", "13 labels, above"),
        (vllm_page(9, f'x{{a="{"y" * 101}"}} 1'), "", "label_too_long", "label 'a': a value of 101 bytes, above"),
        (vllm_page(9, f'x{{{"a" * 101}="y"}} 1'), "", "label_too_long", "a name of 101 bytes, above the limit of 100"),
        (vllm_page(9, f"# HELP x {'y' * 400}"), "", "line_too_long", "a line of 409 bytes, above the limit of 400"),
        (
            "my_app_requests_total 1\n", "text/plain", "unknown_source",
            "no source map reads what it exposes: no name in it",
        ),
        (vllm_page(9).replace(" ", " NaN\n#"), "text/plain", "unknown_source", "there are no samples"),
    ],
)  # fmt: skip
async def test_a_text_that_is_wrong_costs_its_own_scrape(
    tmp_path: Path, body: str | bytes, content_type: str, outcome: str, cause: str
) -> None:
    """The outcome is counted, the error names URL and cause; the other target, and the next scrape, are as ever."""
    async with scene(tmp_path) as stage:
        for count in (100, 115):
            await stage.step(count)
        stage.headers = {"Content-Type": content_type} if content_type else {}
        figures = await stage.step(130, body)
        odd, good = await stage.status("odd"), await stage.status("good")
        assert not odd["healthy"]
        assert odd["error"].startswith("http://127.0.0.1:")
        assert cause in odd["error"]
        assert await stage.metric("servescope_scrapes_total", outcome=outcome) == 1
        assert (good["healthy"], good["error"]) == (True, None)
        assert await stage.metric("output_tokens_total") == 130
        assert figures["output_tokens_per_second"] > 0

        stage.headers = {}
        await stage.step(145)
        odd = await stage.status("odd")
        assert (odd["healthy"], odd["error"], odd["warnings"]) == (True, None, [])
        assert await stage.metric("output_tokens_total") == 290


@pytest.mark.parametrize(
    ("body", "reason", "count", "warning"),
    [
        (
            vllm_page(9, f"vllm:generation_tokens_total{LABELS} 70", "other 1", "other 2"),
            "duplicate",
            2,
            "series are exposed more than once, the first value of each is used (2): "
            f"vllm:generation_tokens_total{LABELS}",
        ),
        (vllm_page(9, "x NaN", "y +Inf"), "not_finite", 2, "samples dropped, as they are NaN or infinite (2): x, y"),
        (vllm_page(9, "x 1e999"), "not_finite", 1, "samples dropped, as they are NaN or infinite (1): x"),
        (
            vllm_page(9, f"vllm:num_requests_running{LABELS} 1e308".replace('"0"', '"1"')).replace(" 5\n", " 1.7e308\n")
            .replace(" 1\n", " 1.7e308\n", 1),
            "not_finite",
            1,
            "samples dropped, as their values overflow (1): concurrent_requests{",
        ),
    ],
)  # fmt: skip
async def test_a_sample_that_is_wrong_costs_itself(
    tmp_path: Path, body: str, reason: str, count: int, warning: str
) -> None:
    """The others of its text are kept; it is counted by its reason and named while it is so."""
    async with scene(tmp_path) as stage:
        await stage.step(9)
        for times in (1, 2):
            await stage.step(9, body)
            odd = await stage.status("odd")
            assert (odd["healthy"], odd["error"], len(odd["warnings"])) == (True, None, 1)
            assert odd["warnings"][0].startswith(warning)
            assert await stage.metric("servescope_dropped_samples_total", reason=reason) == count * times
            assert await stage.metric("output_tokens_total") == 18
        await stage.step(9)
        assert (await stage.status("odd"))["warnings"] == []


@pytest.mark.parametrize("stamp", ["1", "1700000000000", "9999999999999", "-5", "1.8e9"])
async def test_time_stamps_are_not_gone_by(tmp_path: Path, stamp: str) -> None:
    """Past, future or out of order: a sample counts for the time of its scrape."""

    seen: list[Mapping[str, float]] = []
    for folder in ("stamped", "plain"):
        (tmp_path / folder).mkdir()
        async with scene(tmp_path / folder) as stage:
            for count in (100, 115, 130):
                plain = vllm_page(count)
                odd = plain.replace("\n", f" {stamp}\n", 4).replace(f" {stamp}\n", " 7\n", 1)
                seen.append(await stage.step(count, odd if len(seen) < 3 else plain))
            assert await stage.metric("output_tokens_total") == 260
            assert (await stage.status("odd"))["warnings"] == []
    assert seen[2] == seen[5]
    assert seen[2]["output_tokens_per_second"] > 0


async def test_a_metric_that_was_renamed_is_missed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The status and a series report target, metric and its former source until it is back; the log has it once."""
    caplog.set_level(logging.INFO)
    async with scene(tmp_path) as stage:
        await stage.step(9)
        renamed = vllm_page(9).replace("vllm:kv_cache_usage_perc", "vllm:kv_cache_use")
        for _ in range(3):
            await stage.step(9, renamed)
        odd = await stage.status("odd")
        assert odd["missing_metrics"] == {"kv_cache_usage": "vllm:kv_cache_usage_perc"}
        warning = "metrics that were exposed are missing (1): kv_cache_usage (was vllm:kv_cache_usage_perc)"
        assert odd["warnings"] == [warning]
        assert odd["coverage"]["kv_cache_usage"]["status"] == "impossible"
        assert (odd["healthy"], odd["source"]) == (True, "vllm")
        assert await stage.metric("output_tokens_total") == 18
        assert await stage.metric("servescope_target_missing_metrics", replica="odd") == 1
        assert await stage.metric("servescope_target_missing_metrics", replica="good") == 0

        await stage.step(9, "nothing known 1\n")
        assert (await stage.status("odd"))["missing_metrics"] == odd["missing_metrics"]
        await stage.step(9)
        assert (await stage.status("odd"))["missing_metrics"] == {}
        assert await stage.metric("servescope_target_missing_metrics") == 0
    logged = [record.getMessage() for record in caplog.records if "metrics " in record.getMessage()]
    assert [text.partition(": ")[2] for text in logged if text.startswith("chat/aggregated/odd")] == [
        "metrics that were exposed are missing: kv_cache_usage (was vllm:kv_cache_usage_perc)",
        "metrics are there again: kv_cache_usage",
    ]


@pytest.mark.slow
async def test_a_metric_that_comes_and_goes_is_logged_ever_more_rarely(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names it with how often it was missing meanwhile; the status shows the last scrape."""
    caplog.set_level(logging.INFO)
    async with scene(tmp_path) as stage:
        await stage.step(9)
        for _ in range(40):
            await stage.step(9, vllm_page(9).replace("vllm:kv_cache_usage_perc", "vllm:kv_cache_use"))
            assert (await stage.status("odd"))["missing_metrics"] == {"kv_cache_usage": "vllm:kv_cache_usage_perc"}
            await stage.step(9)
            assert (await stage.status("odd"))["missing_metrics"] == {}
    logged = [record.getMessage() for record in caplog.records if "metrics " in record.getMessage()]
    lines = [text.partition(": ")[2] for text in logged if text.startswith("chat/aggregated/odd")]
    assert lines[:2] == [
        "metrics that were exposed are missing: kv_cache_usage (was vllm:kv_cache_usage_perc)",
        "metrics are there again: kv_cache_usage",
    ]
    assert re.fullmatch(r"metrics are there again: kv_cache_usage \(missing 2 more times since .* UTC\)", lines[2])
    assert len(lines) < 10


async def test_a_gauge_that_is_nan_is_missed(tmp_path: Path) -> None:
    """It is absent, and reported so; the source stays the same as long as its names are there."""
    async with scene(tmp_path) as stage:
        await stage.step(9)
        await stage.step(
            9,
            vllm_page(9).replace(
                "vllm:num_requests_waiting" + LABELS + " 5", "vllm:num_requests_waiting" + LABELS + " NaN"
            ),
        )
        odd = await stage.status("odd")
        assert odd["source"] == "vllm"
        assert odd["missing_metrics"]["queued_requests"] == "vllm:num_requests_waiting"
        assert len(odd["warnings"]) == 2


async def test_a_pinned_source_may_have_nothing_to_count_yet(tmp_path: Path) -> None:
    """A server that was asked nothing yet shows the series by which its zeros are known."""
    async with scene(tmp_path, source="dynamo-frontend") as stage:
        await stage.step(9, "dynamo_frontend_event_loop_stall_total 0\n")
        odd = await stage.status("odd")
        assert (odd["healthy"], odd["source"]) == (True, "dynamo-frontend")
        await stage.step(9, "dynamo_frontend_event_loop_stalls 0\n")
        assert not (await stage.status("odd"))["healthy"]


async def test_a_pinned_source_that_finds_nothing_is_an_error(tmp_path: Path) -> None:
    """It is no success with zero series; the error says what the text looks like."""
    async with scene(tmp_path, source="dynamo-frontend") as stage:
        await stage.step(9)
        odd = await stage.status("odd")
        assert (odd["healthy"], odd["samples"]) == (False, 0)
        assert (
            "source = 'dynamo-frontend' is configured, but it finds nothing in the answer: it is 'vllm'" in odd["error"]
        )
        assert await stage.metric("servescope_scrapes_total", outcome="unknown_source") == 1
