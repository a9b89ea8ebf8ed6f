"""A tenant of few requests that waits on v2, end to end: emulated, recorded in a store, and judged from that."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.plan.files import parse_plan
from servescope.emulator.scenario.recording import START_MS, record
from servescope.emulator.scenario.scenario import make_scenario
from servescope.emulator.workload.mixes import SMALL_TENANT
from servescope.judge.case import freeze_plan, judge_case
from servescope.store.embedded import Store
from tests.judge.support.small_stacks import DEPLOYMENT, TRAFFIC

pytestmark = pytest.mark.proof

PAST_HOURS = 24
HOURS = 4
_SCENARIO = f"""
{TRAFFIC.format(rate=2.5)}tenants = 5
{DEPLOYMENT.format(name="old", share=0.75, replicas=6)}
{DEPLOYMENT.format(name="new", share=0.25, replicas=2)}
[[faults]]
kind = "tenant-slow"
intensity = 0.7
deployment = "new"
start = "{PAST_HOURS}h"
"""
_PLAN = """
name = "slow-tenant"
calibration = "1d"
arms = { v1 = { deployment_id = "old" }, v2 = { deployment_id = "new" } }
stages = [{ share = 0.25 }]
"""


def test_a_tenant_that_waits_is_found_in_an_emulated_cutover(tmp_path: Path) -> None:
    """It is named with what harms it, nobody else is, and v2 is not HEALTHY."""
    scenario = make_scenario(tomllib.loads(_SCENARIO), origin="slow_tenant.toml", directory=Path())
    record(scenario, tmp_path / "recorded.db", hours=PAST_HOURS + HOURS, scrape_seconds=60.0)
    started_ms = START_MS + PAST_HOURS * 3_600_000
    with Store(tmp_path / "recorded.db", read_only=True) as store:
        frozen = freeze_plan(store, parse_plan(tomllib.loads(_PLAN), "plan.toml"), started_ms)
        decisions = (Decision("start", started_ms, stage=0),)
        judgement = judge_case(store, frozen, decisions, started_ms + HOURS * 3_600_000)

    assert [each.name for each in judgement.segments if each.finding == "harm"] == [SMALL_TENANT]
    assert judgement.reason.startswith(f"harm in segment '{SMALL_TENANT}': Time to first token × ")
    assert (judgement.verdict, judgement.advice) == ("INCONCLUSIVE", "hold")
    assert len(judgement.segments) == 5
