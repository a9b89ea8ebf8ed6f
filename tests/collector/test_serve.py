"""What the collector answers over HTTP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from servescope.collector.api.openapi import describe
from servescope.contract.figures import FIGURES
from servescope.contract.metrics import METRICS
from tests.support.served_collector import START, STEPS, labels, run_for_a_while, scene


async def test_metrics_show_contract_samples_and_figures(tmp_path: Path) -> None:
    """Native series with the identity, one figure per deployment with its window, replicas counted as derived."""
    async with scene(tmp_path) as stage:
        await run_for_a_while(stage)
        series = await stage.series()
    replica = {"replica": "v1-0", "role": "aggregated", "exported_deployment_id": "x"}

    assert series["requests_total", labels("v1", outcome="ok", **replica)] == 3 * (STEPS - 1)
    assert series["queued_requests", labels("v1", **replica)] == 1.5
    assert series["tps_per_request_mean", labels("v1", window="5m")] == pytest.approx(5.0)
    assert series["request_rate", labels("v1", window="5m")] == pytest.approx(2 * 3 / 15)
    assert series["request_rate", labels("v2", window="5m")] == pytest.approx(3 / 15)
    assert series["replica_count_by_status", labels("v2", derived="true", status="active")] == 1
    assert series["replica_count_by_status", labels("v2", derived="true", status="unhealthy")] == 1
    assert series["servescope_target_up", labels("v2", replica="v2-1", role="aggregated")] == 0
    assert series["servescope_scrapes_total", frozenset({("outcome", "unreachable")})] == STEPS
    assert not [name for name, _ in series if name == "speculation_rate"]


async def test_failed_and_stale_targets_show_no_samples_and_their_age(tmp_path: Path) -> None:
    """One that failed, or is not scraped any more, shows how long ago it was read; one never read shows neither."""
    shown, ages = [], []
    async with scene(tmp_path) as stage:
        await run_for_a_while(stage)
        for fail, seconds in ((None, 0.0), ("v1-0", 15.0), (None, 45.0)):
            if fail:
                stage.pages.texts[fail] = None
                await stage.step(seconds)
            else:
                stage.clock.seconds += seconds
            found = [
                (name, dict(which).get("replica"), value) for (name, which), value in (await stage.series()).items()
            ]
            shown.append({replica for name, replica, _ in found if name == "queued_requests"})
            ages.append(
                {replica: age for name, replica, age in found if name == "servescope_target_scrape_age_seconds"}
            )
    assert shown == [{"v1-0", "v1-1", "v2-0"}, {"v1-1", "v2-0"}, set()]
    assert ages == [
        {"v1-0": 0.0, "v1-1": 0.0, "v2-0": 0.0}, {"v1-0": 15.0, "v1-1": 0.0, "v2-0": 0.0},
        {"v1-0": 60.0, "v1-1": 45.0, "v2-0": 45.0},
    ]  # fmt: skip


async def test_ready_after_the_first_evaluation(tmp_path: Path) -> None:
    """Healthy from the start, ready once there are figures."""
    async with scene(tmp_path) as stage:
        before = [(await stage.get(path))[0] for path in ("/-/healthy", "/-/ready", "/metrics")]
        await stage.step()
        assert [*before, (await stage.get("/-/ready"))[0]] == [200, 503, 200, 200]


async def test_deployments_show_their_latest_figures(tmp_path: Path) -> None:
    """Every deployment with the figures of its last instant."""
    async with scene(tmp_path) as stage:
        await run_for_a_while(stage)
        await stage.written()
        one, two = (await stage.get_json("/api/v1/deployments"))["deployments"]
    assert one["deployment"] == {
        "deployment_id": "v1", "model_name": "llama", "inference_stack": "v1", "environment": "", "rollout_phase": "",
    }  # fmt: skip
    assert one["time_ms"] == START * 1000 + STEPS * 15_000
    assert one["figures"]["request_rate"] == pytest.approx(0.4)
    assert two["figures"]['replica_count_by_status{status="active"}'] == 1


async def test_what_a_clock_that_was_ahead_left_is_not_the_latest(tmp_path: Path) -> None:
    """Once it is right again the latest figures are current, and those from the wrong time are gone."""
    async with scene(tmp_path) as stage:
        await run_for_a_while(stage)
        await stage.step(30 * 86_400.0)
        await stage.step()
        ahead_ms = stage.collector.clock.now_ms
        stage.clock.seconds -= 30 * 86_400.0
        await stage.step()
        await stage.written()
        then = f"start_ms={ahead_ms - 60_000}&end_ms={ahead_ms}"
        latest, left = (
            await stage.get_json("/api/v1/deployments"),
            await stage.get_json(f"/api/v1/figures?deployment_id=v1&{then}"),
        )
    assert {each["time_ms"] for each in latest["deployments"]} == {ahead_ms - 30 * 86_400_000 + 15_000}
    assert left["deployments"][0]["times_ms"] == []


async def test_figures_over_time_are_chosen(tmp_path: Path) -> None:
    """By deployment, time, name and number of points; what was absent is null."""
    async with scene(tmp_path) as stage:
        await run_for_a_while(stage)
        await stage.written()
        base = "/api/v1/figures?deployment_id=v1"
        everything, named, ranged, few = (
            answer["deployments"][0]
            for answer in [
                await stage.get_json(base),
                await stage.get_json(f"{base}&name=request_rate&name=replica_count_by_status"),
                await stage.get_json(f"{base}&start_ms={START * 1000 + 30_000}&end_ms={START * 1000 + 60_000}"),
                await stage.get_json(f"{base}&max_points=3&inference_stack=v1"),
            ]
        )
    assert len(everything["times_ms"]) == STEPS
    assert everything["figures"]["request_rate"][0] is None
    assert everything["figures"]["queued_requests"] == [3.0] * STEPS
    assert set(named["figures"]) == {
        "request_rate", 'replica_count_by_status{status="active"}', 'replica_count_by_status{status="unhealthy"}',
    }  # fmt: skip
    assert ranged["times_ms"] == [START * 1000 + offset for offset in (30_000, 45_000, 60_000)]
    assert 0 < len(few["times_ms"]) <= 3


_SAMPLES = "samples?deployment_id=v1"


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("figures?", "deployment_id is missing, supported: 'v1', 'v2'"),
        ("figures?deployment_id=v3", "no deployment with deployment_id='v3', supported: 'v1', 'v2'"),
        ("figures?deployment_id=v1&environment=x", "no deployment with deployment_id='v1', environment='x', supported"),
        ("figures?deployment_id=v1&names=x", "unknown parameter 'names', supported: model_name, deployment_id, "),
        ("figures?deployment_id=v1&deployment_id=v2", "parameter 'deployment_id' is given twice"),
        ("figures?deployment_id=v1&name=ttft", "unknown figure 'ttft', supported: request_rate, "),
        ("figures?deployment_id=v1&start_ms=now", "start_ms 'now' is wrong, expected a whole number from 0 to "),
        ("figures?deployment_id=v1&start_ms=-1", "start_ms '-1' is wrong"),
        ("figures?deployment_id=v1&end_ms=" + "9" * 5000, "end_ms '999"),
        ("figures?deployment_id=v1&end_ms=" + "0" * 20 + "9" * 20, "end_ms '000"),
        ("figures?deployment_id=v1&start_ms=5&end_ms=4", "start_ms 5 is after end_ms 4"),
        ("figures?deployment_id=v1&max_points=0", "max_points '0' is wrong, expected a whole number from 1 to 11000"),
        ("figures?deployment_id=v1&max_points=%C2%B2", "max_points '²' is wrong"),
        (_SAMPLES, "name is missing, supported: tps_per_request, "),
        (f"{_SAMPLES}&name=vllm:x", "unknown metric 'vllm:x', supported: "),
        ("samples?deployment_id=v9&name=requests_total",
         "no deployment with deployment_id='v9', supported: 'v1', 'v2'"),
        (f"{_SAMPLES}&name=requests_total&start_ms=0&end_ms=86400001",
         "start_ms 0 is 86400001 ms before end_ms, at most 86400000 are read"),
        (f"{_SAMPLES}&name=requests_total&max_points=3", "unknown parameter 'max_points', supported: "),
    ],
)  # fmt: skip
async def test_wrong_parameters_are_answered_with_the_alternatives(tmp_path: Path, query: str, error: str) -> None:
    """400, or 404 for what is not there, with the value and what would have been right."""
    async with scene(tmp_path) as stage:
        await stage.step()
        await stage.written()
        status, text = await stage.get(f"/api/v1/{query}")
    expected = 404 if error.startswith("no deployment") else 400
    assert (status, json.loads(text)["error"][: len(error)]) == (expected, error)


async def test_targets_show_health_and_coverage(tmp_path: Path) -> None:
    """Source, freshness, error and coverage of every target, without anything secret."""
    async with scene(tmp_path) as stage:
        await run_for_a_while(stage)
        answer = await stage.get_json("/api/v1/targets")
    one, failing = answer["targets"][0], answer["targets"][3]
    assert answer["problems"] == []
    assert (one["identity"]["replica"], one["source"], one["healthy"], one["error"]) == (
        "v1-0",
        "servescope",
        True,
        None,
    )
    assert one["last_success_ms"] == START * 1000 + STEPS * 15_000
    assert one["coverage"]["queued_requests"]["status"] == "present"
    assert one["coverage"]["queued_requests"]["zero"] is None
    assert (failing["healthy"], failing["last_success_ms"]) == (False, None)
    assert failing["error"] == "http://v2-1/metrics: cannot connect: Connection refused"


async def test_catalog_lists_every_metric_and_figure(tmp_path: Path) -> None:
    """What a client needs to show figures: units, direction, PromQL, bands."""
    async with scene(tmp_path) as stage:
        answer = await stage.get_json("/api/v1/catalog")
    skew = next(figure for figure in answer["figures"] if figure["name"] == "kv_cache_hit_rate_skew")

    assert [metric["name"] for metric in answer["metrics"]] == list(METRICS)
    assert [figure["name"] for figure in answer["figures"]] == list(FIGURES)
    assert [step["status"] for step in skew["band"]] == ["critical", "warning", "good", "warning", "critical"]
    assert [step["start"] for step in skew["band"]] == [None, -0.15, -0.05, 0.15, 0.3]


async def test_unknown_paths_and_methods_are_refused(tmp_path: Path) -> None:
    """What does not exist is 404; the index says what does."""
    async with scene(tmp_path) as stage:
        (missing, _), (found, index), (wrong, error) = [
            await stage.get("/api/v2"),
            await stage.get("/"),
            await stage.get("/api/v1/targets?x=1"),
        ]
    assert (missing, found, wrong) == (404, 200, 400)
    assert "/api/v1/figures\n" in index
    assert json.loads(error) == {"error": "unknown parameter 'x', supported: none"}


async def test_documented_paths_and_series_are_those_that_exist(tmp_path: Path) -> None:
    """docs/api.md and the OpenAPI document name every path, docs/collector.md every series of the collector's own."""
    docs = Path(__file__).parent.parent.parent / "docs"
    page, series = ((docs / name).read_text(encoding="utf-8") for name in ("api.md", "collector.md"))
    async with scene(tmp_path) as stage:
        await stage.step()
        index = (await stage.get("/"))[1]
        _, exposition = await stage.get("/metrics")
        own = {line.split()[2] for line in exposition.splitlines() if line.startswith("# TYPE servescope_")}
    paths = {path for path in index.split("\n")[2:] if path}
    assert {path for path in paths if f"| `{path}` |" not in page} == set()
    assert paths - set(describe()["paths"]) == set()
    assert {name for name in own if f"| `{name}" not in series} == set()


async def test_large_answers_are_compressed(tmp_path: Path) -> None:
    """A client that takes gzip gets it."""
    async with (
        scene(tmp_path) as stage,
        stage._session.get(f"{stage._url}/api/v1/catalog", headers={"Accept-Encoding": "gzip"}) as response,
    ):
        assert response.headers.get("Content-Encoding") == "gzip"
