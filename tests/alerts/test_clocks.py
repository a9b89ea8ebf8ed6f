"""Clocks that are wrong, and samples that get their times from them: how far they are off is recorded."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from alerts.fleet import fleet_rules
from servescope.contract.own_metrics import CLOCK_OFFSET_SERIES, CLOCK_SERIES
from tests.support.alert_stories import STALE, TARGET, series
from tests.support.prometheus import running
from tests.support.promtool import Suite, failures, unit_test

_AGENT_TIME: Final = "prometheus_remote_storage_highest_timestamp_in_seconds"
_AGENT: Final = {"job": "servescope-agents", "instance": "agent-1:9090"}
_COLLECTOR: Final = {"job": "servescope", "instance": "collector:9900"}
_PROBED: Final = {**TARGET, "job": "servescope-targets", "instance": "10.0.0.7:8000"}
_RULE: Final = next(rule for rule in fleet_rules() if rule["record"] == CLOCK_OFFSET_SERIES)


def _clock(offset: float) -> str:
    """The values of a clock, which promtool starts at 0."""
    return f"{offset:g}+60x60"


def _found(promtool: Path, folder: Path, given: Mapping[str, str], expected: Mapping[int, Iterable[str]]) -> Any:
    """What promtool finds otherwise, by the minute: which series have which value, as "job instance value"."""
    checks = [
        {
            "expr": CLOCK_OFFSET_SERIES,
            "eval_time": f"{minute}m",
            "exp_samples": [
                {"labels": series(CLOCK_OFFSET_SERIES, {"job": job, "instance": instance}), "value": float(value)}
                for job, instance, value in map(str.split, each)
            ],
        }
        for minute, each in expected.items()
    ]
    suite = Suite([unit_test(given, checks)], [{"name": "clocks", "rules": [_RULE]}])
    return failures(promtool, folder, {"clocks": suite})


@pytest.mark.slow
def test_agents_and_collectors_are_compared_with_prometheus(promtool: Path, tmp_path: Path) -> None:
    """Behind and ahead, each by its address; targets of an agent whose clock is known to be wrong add nothing."""
    given = {
        series(_AGENT_TIME, _AGENT): _clock(-300),
        series(_AGENT_TIME, {**_AGENT, "instance": "agent-2:9090"}): _clock(240),
        series(CLOCK_SERIES, _COLLECTOR): _clock(-1),
        series("up", _PROBED): "1x20 _x40",
    }
    known = ["servescope-agents agent-1:9090 -300", "servescope-agents agent-2:9090 240"]

    assert _found(promtool, tmp_path, given, {23: [*known, "servescope collector:9900 -1"]}) == {}


@pytest.mark.slow
def test_samples_that_end_are_late_for_less_than_the_alert_waits(promtool: Path, tmp_path: Path) -> None:
    """A target that left the list, or whose agent died, is so for at most ten minutes; one that is scraped never is."""
    given = {
        series("up", {**_PROBED, "instance": "well"}): "1x60",
        series("up", {**_PROBED, "instance": "left"}): f"1x20 {STALE}",
        series("up", {**_PROBED, "instance": "dead"}): "1x20",
    }
    expected: dict[int, list[str]] = {
        20: [], 21: ["servescope-targets left -300"],
        25: ["servescope-targets dead -300", "servescope-targets left -300"],
        27: ["servescope-targets dead -420"], 32: [], 40: [],
    }  # fmt: skip

    assert _found(promtool, tmp_path, given, expected) == {}


@pytest.mark.slow
@pytest.mark.parametrize("program", ["prometheus", pytest.param("prometheus_3", marks=pytest.mark.proof)])
def test_samples_from_a_host_whose_clock_is_behind(
    request: pytest.FixtureRequest, tmp_path: Path, program: str
) -> None:
    """As a Prometheus receives them, minute by minute: its own time for one target, earlier ones for the others."""
    behind = {"well": 0, "four": 240, "six": 360, "few": 60}
    begins = round(time.time()) // 60 * 60 - 7200
    found: dict[str, list[float]] = {}
    with running(request.getfixturevalue(program), tmp_path, {}, options=["--web.enable-remote-write-receiver"]) as it:
        for now in range(begins, begins + 30 * 60, 60):
            it.write(
                ("up", {**_PROBED, "instance": name}, 1.0, (now - seconds - 5) * 1000)
                for name, seconds in behind.items()
            )
            for point in it.query(_RULE["expr"], at_ms=now * 1000):
                found.setdefault(dict(point.labels)["instance"], []).append(point.value)

    assert found == {"four": [-245.0] * 30, "six": [-365.0] * 30}
