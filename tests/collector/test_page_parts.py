"""One page that measures several deployments: scraped once, each deployment having the series that it selects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from servescope.collector.config import read_configuration
from servescope.collector.discovery.targets import Discovery, check_targets
from servescope.errors import ConfigurationError
from tests.conftest import PAGES
from tests.support.picker_page import START, Counted, PickerCollector, collecting_picker, configuration, picker_page

BOTH = configuration("v1", "v2")


def run(folder: Path, text: str, steps: Callable[[PickerCollector], Awaitable[None]]) -> None:
    async def within() -> None:
        async with collecting_picker(folder, text) as world:
            await steps(world)

    asyncio.run(within())


def answers(count: int, seconds: float) -> Counted:
    return Counted().answer(seconds, count)


def test_each_deployment_has_the_series_that_it_selects(tmp_path: Path) -> None:
    """Counters, histograms, outcomes and what was never used are each deployment's own; the page is asked for once."""

    async def steps(world: PickerCollector) -> None:
        await world.step(picker_page(v1=answers(10, 0.5)))
        figures = await world.step(
            picker_page(v1=answers(40, 0.5), v2=Counted({"ResourceExhausted": 5}).answer(0.9, 15)), seconds=60
        )
        assert world.asked == 2
        assert figures["v1"]["request_duration_mean"] == pytest.approx(0.5)
        assert figures["v2"]["request_duration_mean"] == pytest.approx(0.9)
        assert figures["v1"]["request_rejected_share"] == 0.0
        # What v2 counted before its first series was scraped counts: its counters were 0 until then.
        assert figures["v2"]["request_rejected_share"] == 0.25
        assert figures["v1"]["request_rate"] > figures["v2"]["request_rate"] > 0

    run(tmp_path, BOTH, steps)


def test_what_has_none_of_the_labels_is_of_no_deployment(tmp_path: Path) -> None:
    """A gauge of the pool is of neither stack, and the target says why; the start of the process is of both."""

    async def steps(world: PickerCollector) -> None:
        await world.step(picker_page(v1=answers(1, 0.5), v2=answers(1, 0.5)))
        for watched in world.collector.fleet.watched:
            replicas = watched.status.coverage["replica_count_by_status"]
            assert replicas["status"] == "impossible"
            assert f"exposed without {watched.status.select}" in (replicas["reason"] or "")
            assert watched.status.coverage["replica_start_time_seconds"]["status"] == "present"
            assert watched.status.warnings == []

    run(tmp_path, BOTH, steps)


def test_a_restart_of_the_page_is_one_of_each_deployment(tmp_path: Path) -> None:
    """Counters that fall count from 0 on, for each deployment, and none is negative."""

    async def steps(world: PickerCollector) -> None:
        await world.step(picker_page(v1=answers(100, 0.5), v2=answers(50, 0.5)))
        await world.step(picker_page(v1=answers(130, 0.5), v2=answers(80, 0.5)))
        figures = await world.step(picker_page(START + 40, v1=answers(30, 0.5), v2=answers(60, 0.5)))
        # 30 before and 30 after the restart of the one, 30 and 60 of the other.
        assert figures["v1"]["request_rate"] / figures["v2"]["request_rate"] == pytest.approx(60 / 90)

    run(tmp_path, BOTH, steps)


def test_values_of_no_deployment_and_deployments_without_series_are_named(tmp_path: Path) -> None:
    """Nothing is lost in silence: a warning counts the series and names the first values."""

    async def steps(world: PickerCollector) -> None:
        await world.step(picker_page(v1=answers(1, 0.5), v3=answers(1, 0.5)))
        warnings = {each.target.identity.deployment_id: each.status.warnings for each in world.collector.fleet.watched}
        unclaimed = "series are of no deployment, as no target selects their labels (1): target_model_name='llama-v3'"
        assert len(warnings["v1"]) == 1
        assert unclaimed in warnings["v1"][0]
        absent = "no series of the page has the labels that are selected: target_model_name='llama-v2'"
        assert warnings["v2"][0] == absent
        assert unclaimed in warnings["v2"][1]
        await world.step(picker_page(v1=answers(1, 0.5), v2=answers(1, 0.5)))
        assert [each.status.warnings for each in world.collector.fleet.watched] == [[], []]

    run(tmp_path, BOTH, steps)


def test_a_page_that_fails_fails_for_all(tmp_path: Path) -> None:
    """And for none when it answers again."""

    async def steps(world: PickerCollector) -> None:
        await world.step(None)
        assert world.asked == 1
        assert [each.status.state for each in world.collector.fleet.watched] == ["down", "down"]
        await world.step(picker_page(v1=answers(1, 0.5)))
        assert [each.status.state for each in world.collector.fleet.watched] == ["up", "up"]

    run(tmp_path, BOTH, steps)


def test_the_model_is_what_the_part_names(tmp_path: Path) -> None:
    """Where none is configured: that of clients, which both stacks have in common."""

    async def steps(world: PickerCollector) -> None:
        page = picker_page(v1=answers(1, 0.5), v2=answers(1, 0.5)).replace(
            'model_name="llama",priority="0",target_model_name="llama-v2"',
            'model_name="other",priority="0",target_model_name="llama-v2"',
        )
        await world.step(page)
        assert {each.target.identity.deployment_id: each.target.identity.model_name
                for each in world.collector.fleet.watched} == {"v1": "llama", "v2": "other"}  # fmt: skip

    run(tmp_path, configuration("v1", "v2", model=""), steps)


def test_one_task_scrapes_a_page_for_all_its_parts(tmp_path: Path) -> None:
    """Also when the target that it was started for is no longer listed; the next scrape is shown for each."""

    async def steps(world: PickerCollector) -> None:
        fleet, scraping = world.collector.fleet, world.collector.scraping
        await world.collector.discovering.discover()
        async with asyncio.TaskGroup() as tasks:
            scraping.start(tasks)
            first, second = fleet.watched
            assert (first.task is not None, second.task) == (True, None)
            await asyncio.sleep(0)
            assert first.next_scrape_ms == second.next_scrape_ms is not None
            fleet.retire(first.target.target_id)
            scraping.start(tasks)
            assert second.task is not None
            second.stop()

    run(tmp_path, BOTH, steps)


def test_a_page_counts_once_for_the_limit_of_its_host(tmp_path: Path) -> None:
    """Two parts are one request."""
    path = tmp_path / "servescope.toml"
    limited = BOTH.replace("select", "max_scrapes_per_minute = 6\nselect")
    path.write_text(limited, encoding="utf-8")

    async def steps(world: PickerCollector) -> None:
        await world.collector.discovering.discover()
        (first, *_) = world.collector.fleet.watched
        assert world.collector.fleet.pacer.interval_ms(first.target) == 15_000

    run(tmp_path, limited, steps)


@pytest.mark.parametrize(
    ("replaced", "by", "message"),
    [
        (
            "llama-v2",
            "llama-v1",
            r"deployments 'v1' and 'v2' select the same series \(target_model_name='llama-v1' and",
        ),
        ('select = { target_model_name = "llama-v2" }', "", r"select the same series \(.*and the whole page\)"),
        ('{ target_model_name = "llama-v2" }', '{ model_name = "llama" }', "select the same series"),
        ('{ target_model_name = "llama-v2" }', '{ le = "1" }', r"select: .* is wrong, expected labels"),
        ('{ target_model_name = "llama-v2" }', "{ target_model_name = [] }", r"select: .* is wrong, expected labels"),
        ('{ target_model_name = "llama-v2" }', "[]", r"select: \[\] is wrong, .* or a list of such tables"),
        ('{ target_model_name = "llama-v2" }', "[{}]", r"select: .* is wrong, .* or a list of such tables"),
        ('{ target_model_name = "llama-v2" }', '["v2"]', r"select: .* is wrong, expected a table of strings"),
        (
            '{ target_model_name = "llama-v2" }',
            '[{ target_model_name = "llama-v2" }, { target_model_name = "llama-*" }]',
            r"\(target_model_name='llama-v1' and target_model_name='llama-v2'; or target_model_name='llama-\*'\)",
        ),
    ],
)
def test_series_that_two_deployments_select_are_refused(tmp_path: Path, replaced: str, by: str, message: str) -> None:
    """A series is of one deployment; the error names both, and what they select."""
    path = tmp_path / "servescope.toml"
    path.write_text(BOTH.replace(replaced, by), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message):
        check_targets(read_configuration(path))


def test_series_with_different_labels_are_one_deployments(tmp_path: Path) -> None:
    """Of a list of tables one has to fit."""
    several = configuration("v1").replace(
        '{ target_model_name = "llama-v1" }', '[{ target_model_name = "llama-v1" }, { name = "pool" }]'
    )

    async def steps(world: PickerCollector) -> None:
        figures = await world.step(picker_page(v1=answers(10, 0.5), v2=answers(15, 0.9)))
        (watched,) = world.collector.fleet.watched
        assert watched.status.select == "target_model_name='llama-v1'; or name='pool'"
        assert figures["v1"]['replica_count_by_status{status="active"}'] == 4.0
        (warning,) = watched.status.warnings
        assert warning.endswith("as no target selects their labels (1): target_model_name='llama-v2'")

    run(tmp_path, several, steps)


def test_lists_select_too(tmp_path: Path) -> None:
    """Of two lists that select the same series the second is left out, and a problem says so."""
    (tmp_path / "pickers.json").write_text(json.dumps([{"targets": ["picker:9090"]}]), encoding="utf-8")
    text = BOTH.replace("[[deployments.targets]]\nurl = \"http://picker:9090/metrics\"",
                        '[[deployments.file_sd]]\nfiles = ["pickers.json"]')  # fmt: skip
    path = tmp_path / "servescope.toml"
    path.write_text(text, encoding="utf-8")
    found = Discovery(read_configuration(path))
    assert [each.part.describe() for each in found.targets] == [
        "target_model_name='llama-v1'", "target_model_name='llama-v2'",
    ]  # fmt: skip
    path.write_text(text.replace("llama-v2", "llama-v1"), encoding="utf-8")
    found = Discovery(read_configuration(path))
    assert len(found.targets) == 1
    assert "select the same series" in found.problems[0]


EXPORT = """
[[deployments]]
deployment_id = "{name}"
inference_stack = "{name}"
[[deployments.targets]]
url = "https://export.example/metrics"
source = "baseten"
role = "router"
select = {{ deployment_id = "{selected}" }}
scrape_interval = "1m"
max_scrapes_per_minute = 6
"""


def test_a_deployment_of_an_export_counts_from_its_first_request(tmp_path: Path) -> None:
    """Before it, its requests are 0 where its replicas are exposed, so that the first failures are not lost."""
    page = (PAGES / "baseten-2026-1.txt").read_text("utf-8")
    lines = page.splitlines(keepends=True)
    before = "".join(each for each in lines if "inference_requests" not in each or 'deployment_id="d2"' not in each)

    async def steps(world: PickerCollector) -> None:
        first = await world.step(before, seconds=60)
        figures = await world.step(page, seconds=60)
        assert world.asked == 2
        assert first["v2"].get("request_rate") is None
        # Ten that are ok and two that are the client's mistake; of the other deployment nothing came since.
        assert figures["v2"]["client_error_share"] == pytest.approx(2 / 12)
        assert figures["v1"]["request_rate"] == 0.0
        assert [figures[name]['replica_count_by_status{status="active"}'] for name in ("v1", "v2")] == [2, 1]

    run(tmp_path, EXPORT.format(name="v1", selected="d1") + EXPORT.format(name="v2", selected="d2"), steps)
