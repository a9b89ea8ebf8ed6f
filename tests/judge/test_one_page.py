"""Both arms of a cutover on one page of an endpoint picker, read by a collector and judged from its store."""

from __future__ import annotations

import asyncio
import random
import tomllib
from pathlib import Path

import pytest

from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.judgement import Judgement
from servescope.cutover.plan.files import parse_plan
from servescope.judge.case import freeze_plan, judge_case
from servescope.store.embedded import Store
from tests.support.picker_page import START, Counted, collecting_picker, configuration, picker_page

HOURS = 6
STEP_SECONDS = 150
REQUESTS = 150
_PLAN = f"""
name = "one-page"
preset = "none"
calibration = "{HOURS}h"
arms = {{ v1 = {{ deployment_id = "v1" }}, v2 = {{ deployment_id = "v2" }} }}
stages = [{{ share = 0.5 }}]
[[metrics]]
name = "request_duration_seconds"
[[metrics]]
name = "request_error_share"
margin = 3.0
"""


def judge(folder: Path, times_slower: float, failing: float) -> Judgement:
    """Hours in which v1 has all requests, and as many in which v2 has half of them, is so many times slower, and fails
    to answer this share.
    """
    started_ms = (START + HOURS * 3600) * 1000

    async def collect() -> None:
        chance, counted = random.Random(7), {"v1": Counted({"Internal": 0}), "v2": Counted({"Internal": 0})}
        settings = f'scrape_interval = "{STEP_SECONDS}s"\nscrape_timeout = "10s"'
        async with collecting_picker(folder, configuration("v1", "v2", settings=settings)) as world:
            for step in range(2 * HOURS * 3600 // STEP_SECONDS):
                for _ in range(REQUESTS):
                    is_new = world.seconds * 1000 >= started_ms and chance.random() < 0.5
                    seconds = 0.5 * chance.lognormvariate(0, 0.4) * (times_slower if is_new else 1.0)
                    if is_new and chance.random() < failing:
                        counted["v2"].unanswered += 1
                    else:
                        counted["v2" if is_new else "v1"].answer(seconds)
                await world.scrape(picker_page(START, **counted), seconds=STEP_SECONDS)
                assert world.asked == step + 1

    asyncio.run(collect())
    with Store(folder / "servescope.db", read_only=True) as store:
        assert [each.select for each in store.targets()] == [
            "target_model_name='llama-v1'",
            "target_model_name='llama-v2'",
        ]
        frozen = freeze_plan(store, parse_plan(tomllib.loads(_PLAN), "plan.toml"), started_ms)
        decisions = (Decision("start", started_ms, stage=0),)
        return judge_case(store, frozen, decisions, started_ms + HOURS * 3_600_000)


@pytest.mark.parametrize(
    ("times_slower", "failing", "verdict", "advice"),
    [(1.0, 0.0, "HEALTHY", "go on"), (1.5, 0.0, "DEGRADED", "roll back"), (1.0, 0.2, "NO DATA", "hold")],
)
def test_the_arms_of_one_page_are_compared(
    tmp_path: Path, times_slower: float, failing: float, verdict: str, advice: str
) -> None:
    """Equal stacks are healthy, and a slower v2 is to be rolled back, though both are counted at one place.

    Where v2 does not answer, which a picker does not count as errors, it is not healthy for what it answers.
    """
    found = judge(tmp_path, times_slower, failing)
    assert (found.verdict, found.advice) == (verdict, advice), found.reason
