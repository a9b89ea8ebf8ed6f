"""The soak in its short form, and that its verdict finds what grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import BOUNDS, FAULTS, TARGETS, find_trends, soak


def test_the_verdict_finds_what_grows() -> None:
    """A steady climb is distinguished from a level that wavers, however much comes before."""
    seconds = [float(second) for second in range(300)]
    level = [10.0 * second for second in range(100)] + [1000.0 + second % 7 for second in range(200)]
    climb = [1000.0 + second for second in range(300)]
    for samples, flat in ((level, True), (climb, False)):
        trends = find_trends(seconds, dict.fromkeys(BOUNDS, samples))
        assert {trend.flat for trend in trends if trend.name != "series in memory"} == {flat}


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
