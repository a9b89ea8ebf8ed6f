"""Starts that load weights for minutes: they are silent, and one that never succeeds is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.alert_stories import figure
from tests.support.incidents import Stretches, firing, of_replica

pytestmark = pytest.mark.slow

_UP = "servescope_target_up"
_ACTIVE = figure("replica_count_by_status", status="active")
_TARGET = "ServescopeTargetDown"
_ALL = (_TARGET, "ServescopeDeploymentDown", "ServescopeNoActiveReplica")


def _silent(minutes: range) -> dict[str, dict[int, bool]]:
    return {name: dict.fromkeys(minutes, False) for name in _ALL}


def test_a_first_start_is_silent(promtool: Path, tmp_path: Path) -> None:
    """Two replicas of a new deployment load weights for 12 minutes."""
    start: Stretches = [(12, 0.0), (60, 1.0)]
    given = {of_replica(_UP): start, of_replica(_UP, "r1"): start, _ACTIVE: [(12, 0.0), (60, 2.0)]}

    assert firing(promtool, tmp_path, given, _silent(range(0, 70, 3))) == {}


def test_a_scale_up_is_silent(promtool: Path, tmp_path: Path) -> None:
    """A second replica of a deployment that has served for two hours loads weights for 8 minutes."""
    given: dict[str, Stretches] = {
        of_replica(_UP): [(180, 1.0)],
        of_replica(_UP, "r1"): [(120, None), (8, 0.0), (52, 1.0)],
    }

    assert firing(promtool, tmp_path, given, _silent(range(120, 150, 3))) == {}


def test_a_start_that_never_succeeds_is_reported(promtool: Path, tmp_path: Path) -> None:
    """30 minutes of grace, and what each alert waits; the new deployment beside it has a page as well."""
    scaled_up: dict[str, Stretches] = {of_replica(_UP): [(240, 1.0)], of_replica(_UP, "r1"): [(120, None), (120, 0.0)]}
    late = {minute: minute >= 155 for minute in (125, 140, 154, 155, 170, 235)}
    assert firing(promtool, tmp_path, scaled_up, {_TARGET: late}) == {}

    new: dict[str, Stretches] = {of_replica(_UP): [(120, None), (120, 0.0)], _ACTIVE: [(120, None), (120, 0.0)]}
    assert firing(promtool, tmp_path, new, dict.fromkeys(_ALL, late)) == {}
