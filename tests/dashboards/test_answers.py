"""Queries of panels give the right numbers: each is executed by promtool on series whose answer is known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from servescope.contract.figures import FIGURES
from servescope.contract.objectives import OBJECTIVES
from tests.support.boards import panels, read_board, substitute
from tests.support.promtool import Suite, failures

pytestmark = pytest.mark.slow

WHO = 'model_name="m",deployment_id="chat",inference_stack="v1",environment="production"'
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@pytest.fixture(params=["promtool", "promtool_3"])
def executes(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Checks what a query answers on series, with promtool of Prometheus 2 and 3."""
    promtool: Path = request.getfixturevalue(request.param)

    def check(
        expression: str, series: Mapping[str, str], expected: Mapping[str, float], *, at: str, interval: str = "1m"
    ) -> None:
        # Floats of the two releases differ in the last digit, and a range holds its first moment in one of them only.
        rounded = f"round({substitute(expression)}, 0.001)"
        test = {
            "interval": interval,
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": rounded,
                    "eval_time": at,
                    "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()],
                }
            ],
        }
        assert failures(promtool, tmp_path, {"panel": Suite([test])}) == {}

    return check


def query(board: str, title: str, number: int = 0) -> str:
    """A query of a panel."""
    (panel,) = [each for each in panels(read_board(board)) if each["title"] == title]
    expression: str = panel["targets"][number]["expr"]
    return expression


def column(board: str, title: str, heading: str) -> str:
    """The query of a table's column."""
    (panel,) = [each for each in panels(read_board(board)) if each["title"] == title]
    names = {
        new: old
        for step in panel["transformations"] if step["id"] == "organize"
        for old, new in step["options"]["renameByName"].items()
    }  # fmt: skip
    (target,) = [each for each in panel["targets"] if names[heading] == f"Value #{each['refId']}"]
    expression: str = target["expr"]
    return expression


REQUESTS = OBJECTIVES["requests"]
LEFT, KEPT = (f"{REQUESTS.title}, {what}" for what in ("budget left", "3 days"))


def test_a_young_deployment_has_most_of_its_budget_left(executes: Any) -> None:
    """One hour with 0.9 % failed requests spends nine times an hour's share of the month, not nine months."""
    bad = f"{REQUESTS.record('1h')}{{{WHO}}}"

    executes(
        column("requests", "Error budgets", LEFT), {bad: "0.009x6"}, {f"{{{WHO}}}": 0.985}, at="1h", interval="10m"
    )


def test_a_month_within_the_budget_leaves_the_rest(executes: Any) -> None:
    """Half of the allowed failures over all 30 days leave half of the budget."""
    bad = f"{REQUESTS.record('1h')}{{{WHO}}}"

    executes(
        column("requests", "Error budgets", LEFT), {bad: "0.0005x4400"}, {f"{{{WHO}}}": 0.5}, at="43200m",
        interval="10m",
    )  # fmt: skip


def test_a_deployment_has_one_budget_for_all_its_phases(executes: Any) -> None:
    """It is promoted after an hour: one row, which has spent what both phases spent."""
    name = REQUESTS.record("1h")
    series = {
        f'{name}{{{WHO},rollout_phase="promoting"}}': "0.009x5 _x6",
        f'{name}{{{WHO},rollout_phase="stable"}}': "_x5 0.001 0.009x4",
    }

    executes(
        column("requests", "Error budgets", LEFT),
        series,
        {f"{{{WHO}}}": round(1 - 11 * 9 / 4320, 3)},
        at="110m",
        interval="10m",
    )


def test_three_days_are_of_all_phases_by_their_requests(executes: Any) -> None:
    """A phase of few requests, half of which failed, hardly counts beside the many of the next."""
    name, rate = REQUESTS.record("3d"), FIGURES["request_rate"].record()
    series = {
        f'{name}{{{WHO},rollout_phase="promoting"}}': "0.5x12",
        f'{rate}{{{WHO},rollout_phase="promoting"}}': "1x5 0x6",
        f'{name}{{{WHO},rollout_phase="stable"}}': "0x12",
        f'{rate}{{{WHO},rollout_phase="stable"}}': "0x5 9x6",
    }

    executes(
        column("requests", "Error budgets", KEPT), series, {f"{{{WHO}}}": round(1 - 0.5 * 6 / (6 + 54), 4)}, at="110m",
        interval="10m",
    )  # fmt: skip


def test_a_deployment_that_is_down_keeps_its_row(executes: Any) -> None:
    """It has no other figure than its replicas, of which the unhealthy and the failed ones are added up."""
    name = FIGURES["replica_count_by_status"].record()
    counts = {"active": 0, "unhealthy": 2, "failed": 1, "starting": 5}
    series = {f'{name}{{{WHO},status="{status}"}}': f"{count}x6" for status, count in counts.items()}

    executes(column("fleet", "Deployments", "Unhealthy"), series, {f"{{{WHO}}}": 3.0}, at="5m")
