"""The soak in its short form."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import FAULTS, TARGETS, find_trends, soak


@pytest.mark.proof
def test_a_collector_outlives_churning_targets(tmp_path: Path) -> None:
    """Half an hour by its clock: it scrapes on, and files, threads and tasks come back to where they were."""
    run = soak(tmp_path, seconds=20, speed=90)
    assert run.happened["targets"] > 2 * TARGETS
    assert all(run.happened[fault] for fault in (*FAULTS, "restart"))
    assert run.scrapes > 1000
    trends = {trend.name: trend for trend in find_trends(run.seconds, run.samples)}
    assert all(trends[name].flat for name in ("threads", "tasks")), trends
    assert trends["open files"].peak < 200
    assert "Traceback" not in run.log
