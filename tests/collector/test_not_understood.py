"""A target that answers with metrics which no source map reads: a state of its own, wherever the collector shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from servescope.contract.figures import figure_key
from tests.support.served_collector import Scene, engine, labels, scene
from tests.support.stepped_collector import World, write_targets

TENSORRT = "trtllm_request_success_total 1.0\ntrtllm_kv_cache_utilization 0.5\n"
OLD_VLLM = 'vllm:num_requests_running{model_name="m"} 1\nvllm:num_requests_swapped{model_name="m"} 1\n'
ACTIVE, UNHEALTHY = (figure_key("replica_count_by_status", {"status": each}) for each in ("active", "unhealthy"))


async def _show(stage: Scene, **texts: str | None) -> None:
    stage.pages.texts = {"v1-0": engine(3), "v1-1": engine(3), "v2-0": engine(3), "v2-1": engine(3), **texts}
    await stage.step()


async def test_it_is_a_state_of_its_own_in_the_api_and_on_the_page(tmp_path: Path) -> None:
    """Beside a target that reads and one that is down: up as in Prometheus, not understood, and explained."""
    async with scene(tmp_path) as stage:
        await _show(stage, **{"v1-1": TENSORRT, "v2-0": None})

        targets = {each["identity"]["replica"]: each for each in (await stage.get_json("/api/v1/targets"))["targets"]}
        states = {name: each["state"] for name, each in targets.items()}
        assert states == {"v1-0": "up", "v1-1": "not_understood", "v2-0": "down", "v2-1": "up"}
        error = targets["v1-1"]["error"]
        assert "the nearest is 'TensorRT-LLM'" in error
        assert "write a source map" in error
        counted = (await stage.get_json("/api/v1/status"))["targets"]
        assert counted == {"up": 2, "down": 1, "not_understood": 1, "unknown": 0}

        series = await stage.series()
        shown = {
            replica: tuple(
                series.get((name, labels(replica[:2], role="aggregated", replica=replica)))
                for name in ("servescope_target_up", "servescope_target_understood")
            )
            for replica in ("v1-0", "v1-1", "v2-0")
        }
        assert shown == {"v1-0": (1, 1), "v1-1": (1, 0), "v2-0": (0, None)}
        assert series["servescope_targets", labels("v1", health="not_understood")] == 1
        assert not any(name == "output_tokens_total" and ("replica", "v1-1") in found for name, found in series)


async def test_it_is_counted_as_no_replica_and_by_no_alert_as_down(tmp_path: Path) -> None:
    """Not as an unhealthy one, and not as an active one; a fleet of nothing else is not a fleet without replicas."""
    world = World(tmp_path)
    world.answers = {"a": 1.0, "b": 1.0}
    world.pages = {"b": lambda _: TENSORRT}
    write_targets(tmp_path, "a", "b")
    for count in range(60):
        figures = await world.step(count)
    assert (figures[ACTIVE], figures[UNHEALTHY]) == (1.0, 0.0)
    active = {(each.name, dict(each.labels).get("replica")) for each in world.collector.alerts.shown}
    assert {each for each in active if each[1] == "b"} == {("ServescopeMetricsMissing", "b")}

    world.pages["a"] = world.pages["b"]
    for count in range(60, 120):
        figures = await world.step(count)
    assert (figures.get(ACTIVE), figures.get(UNHEALTHY)) == (None, None)
    names = {each.name for each in world.collector.alerts.shown if each.resolved_ms is None}
    assert names == {"ServescopeMetricsMissing", "ServescopeWatchdog"}
    await world.aclose()


async def test_a_target_that_fails_afterwards_is_down_and_one_that_is_read_is_up(tmp_path: Path) -> None:
    """The state is that of the last scrape."""
    async with scene(tmp_path) as stage:
        for text, state in ((OLD_VLLM, "not_understood"), (None, "down"), (engine(4), "up")):
            await _show(stage, **{"v1-0": text})
            targets = (await stage.get_json("/api/v1/targets"))["targets"]
            assert [each["state"] for each in targets if each["identity"]["replica"] == "v1-0"] == [state]


async def test_what_was_read_before_and_is_not_any_more_is_not_understood(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after an upgrade that renames everything: its series end, and the log names what it is nearest to."""
    async with scene(tmp_path) as stage:
        await _show(stage)
        await _show(stage, **{"v1-0": "acme_generation_tokens_total 1\nacme_num_requests_running 1\n"
                                      "acme_kv_cache_usage_perc 1\nacme_prefix_cache_hits_total 1\n"})  # fmt: skip

        targets = (await stage.get_json("/api/v1/targets"))["targets"]
        (target,) = [each for each in targets if each["identity"]["replica"] == "v1-0"]
        assert (target["state"], target["healthy"], target["samples"]) == ("not_understood", False, 0)
        assert re.search(
            r"4 of its names end as those of vLLM do.*if it is a vLLM whose names are rewritten", caplog.text
        )
