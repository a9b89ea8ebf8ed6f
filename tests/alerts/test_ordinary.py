"""Ordinary life in virtual time: upgrades, a morning, restarts and a night send no page and no ticket."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from tests.alerts.support.incidents import Incidents
from tests.alerts.support.long_lives import fired_in_life
from tests.alerts.support.ordinary import Life, Process

pytestmark = pytest.mark.slow
_EACH_MINUTE = pytest.mark.parametrize("scrape_seconds", [60])
"""A minute of a life is a scrape."""
_LOADS = 12
"""Minutes that a replica loads weights."""


def _restarting(name: str, minutes: int, *at: int, loads: int = _LOADS) -> list[Process]:
    """The processes of a replica that serves from the beginning, and is restarted under its name."""
    begins = [-_LOADS, *at]
    return [
        Process(name, max(0, begin), max(0, begin + loads), end)
        for begin, end in zip(begins, [*at, minutes], strict=True)
    ]


@pytest.mark.proof
@_EACH_MINUTE
def test_a_rolling_upgrade_of_eight(incidents: Incidents) -> None:
    """One after the other is replaced by a new one, under a name of its own, in an hour and a half."""
    minutes, lead = 180, 70
    old = [Process(f"old-{number}", 0, 0, lead + 10 * (number + 1) + _LOADS) for number in range(8)]
    new = [Process(f"new-{n}", lead + 10 * (n + 1), lead + 10 * (n + 1) + _LOADS, minutes) for n in range(8)]
    life = Life(minutes, [*old, *new], lambda _: 16.0, lambda _: 8)

    assert incidents.fired(life.series(), life.minutes) == {}


def _day(replicas: int, night: int, *, every: int, upgrade: int) -> Life:
    """Hours with a restart every so many minutes, an evening and a night, a morning, and an upgrade to new names.

    A tenth of the replicas is replaced at a time.
    """
    few, full, tenth = replicas * 2 // 5, 2.0 * replicas, replicas // 10
    evening, dawn = 180, 180 + 60 + night
    morning = dawn + 75
    minutes = morning + 10 * upgrade + 60

    def load(minute: int) -> float:
        if minute < evening or minute >= morning:
            return full
        if minute < evening + 60:
            return full * math.exp2((evening - minute) / 5)
        return 0.0 if minute < dawn else full * max(0.02, (minute - dawn) / 75)

    def wanted(minute: int) -> int:
        return few if evening + 60 <= minute < dawn else replicas

    processes = []
    for number in range(replicas):
        replaced = morning + (number // tenth + 1) * upgrade
        at = [minute for minute in range(20, evening - 30, every) if minute // every % replicas == number]
        ends = replaced + _LOADS
        if number < few:
            processes += _restarting(f"a{number}", ends, *at)
        else:
            processes += _restarting(f"a{number}", evening + 60, *at)
            processes.append(Process(f"b{number}", dawn, dawn + _LOADS, ends))
        processes.append(Process(f"c{number}", replaced, replaced + _LOADS, minutes))
    return Life(minutes, processes, load, wanted)


@pytest.mark.parametrize(
    ("replicas", "every"),
    [(20, 40), *(pytest.param(*fleet, marks=pytest.mark.proof) for fleet in ((200, 4), (2_000, 2)))],
)
def test_a_day(prometheus: Path, promtool: Path, tmp_path: Path, replicas: int, every: int) -> None:
    """Restarts, an evening and a night without traffic, a morning that starts three fifths, and a rolling upgrade."""
    life = _day(replicas, night=60, every=every, upgrade=8)

    assert fired_in_life(life, prometheus=prometheus, promtool=promtool, folder=tmp_path) == {}


@pytest.mark.proof
@_EACH_MINUTE
def test_an_office_tool_from_its_second_evening_on(incidents: Incidents) -> None:
    """Nobody uses it from 18 to 8 o'clock; it is up all day."""
    second = 24 * 60
    minutes = second + 15 * 60
    processes = [Process(f"r{number}", 0, 0, minutes) for number in range(2)]
    life = Life(minutes, processes, lambda minute: 4.0 * (minute % second < 10 * 60), lambda _: 2)

    assert incidents.fired(life.series(), life.minutes, since=second + 60) == {}


@_EACH_MINUTE
def test_a_failure_in_it_is_reported(incidents: Incidents, prometheus: Path, promtool: Path, tmp_path: Path) -> None:
    """The same kind of life, in which an upgrade's replicas do not come up; promtool and a Prometheus find the same."""
    minutes, lead = 110, 20
    old = [Process(f"old-{number}", 0, 0, lead + 5 * (number + 1)) for number in range(8)]
    new = [Process(f"new-{n}", lead + 5 * (n + 1), minutes, minutes) for n in range(8)]
    life = Life(minutes, [*old, *new], lambda _: 16.0, lambda _: 8)

    (found,) = incidents.fired(life.series(), life.minutes).values()
    names = set(re.findall(r'alertname="(\w+)"', found))
    assert names >= {"ServescopeReplicasBelowDesired", "ServescopeDeploymentDown"}
    assert fired_in_life(life, prometheus=prometheus, promtool=promtool, folder=tmp_path).keys() == names
