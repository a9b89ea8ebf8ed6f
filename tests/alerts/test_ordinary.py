"""Ordinary life in virtual time: upgrades, a morning, restarts and a night send no page and no ticket."""

from __future__ import annotations

import math

import pytest

from tests.support.incidents import Incidents
from tests.support.ordinary import Life, Process

pytestmark = pytest.mark.slow
_EACH_MINUTE = pytest.mark.parametrize("scrape_seconds", [60])
"""A minute of a life is a scrape."""
_TOO_MANY = ("ServescopeTargetDown", "ServescopeFleetUnseen")
"""They load more samples of two hundred replicas than promtool allows, which are 10,000 for a rule."""
_LOADS = 12
"""Minutes that a replica loads weights."""


def _restarting(name: str, minutes: int, *at: int, loads: int = _LOADS) -> list[Process]:
    """The processes of a replica that serves from the beginning, and is restarted under its name."""
    begins = [-_LOADS, *at]
    return [
        Process(name, max(0, begin), max(0, begin + loads), end)
        for begin, end in zip(begins, [*at, minutes], strict=True)
    ]


@_EACH_MINUTE
def test_a_rolling_upgrade_of_eight(incidents: Incidents) -> None:
    """One after the other is replaced by a new one, under a name of its own, in an hour and a half."""
    minutes, lead = 180, 70
    old = [Process(f"old-{number}", 0, 0, lead + 10 * (number + 1) + _LOADS) for number in range(8)]
    new = [Process(f"new-{n}", lead + 10 * (n + 1), lead + 10 * (n + 1) + _LOADS, minutes) for n in range(8)]
    life = Life(minutes, [*old, *new], lambda _: 16.0, lambda _: 8)

    assert incidents.fired(life.series(), life.minutes) == {}


def _day(replicas: int, night: int, *, every: int, upgrade: int) -> Life:
    """Hours with a restart every so many minutes, an evening and a night, a morning, and an upgrade to new names."""
    few, full = replicas * 2 // 5, 2.0 * replicas
    evening, dawn = 180, 180 + 60 + night
    morning = dawn + 75
    minutes = morning + replicas * upgrade // 2 + 60

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
        # Two at a time.
        replaced = morning + (number // 2 + 1) * upgrade
        at = [minute for minute in range(20, evening - 30, every) if minute // every % replicas == number]
        ends = replaced + _LOADS
        if number < few:
            processes += _restarting(f"a{number}", ends, *at)
        else:
            processes += _restarting(f"a{number}", evening + 60, *at)
            processes.append(Process(f"b{number}", dawn, dawn + _LOADS, ends))
        processes.append(Process(f"c{number}", replaced, replaced + _LOADS, minutes))
    return Life(minutes, processes, load, wanted)


@pytest.mark.proof
@_EACH_MINUTE
def test_a_day_of_twenty(incidents: Incidents) -> None:
    """Restarts, an evening and a night without traffic, a morning from 8 to 20 replicas, and a rolling upgrade."""
    life = _day(20, night=60, every=40, upgrade=8)

    assert incidents.fired(life.series(), life.minutes) == {}


@pytest.mark.proof
@pytest.mark.parametrize("scrape_seconds", [120])
def test_hours_of_two_hundred(incidents: Incidents) -> None:
    """One of them is restarted every other minute, and loads weights for twelve."""
    replicas, minutes = 200, 180
    at = {number: range(20 + 2 * number, minutes, 2 * replicas) for number in range(replicas)}
    processes = [each for number in at for each in _restarting(f"r{number}", minutes, *at[number])]
    life = Life(minutes, processes, lambda _: 2.0 * replicas, lambda _: replicas)

    assert incidents.fired(life.series(), life.minutes, without=_TOO_MANY) == {}


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
def test_a_failure_in_it_is_reported(incidents: Incidents) -> None:
    """The same kind of life, in which an upgrade's replicas do not come up."""
    minutes, lead = 150, 20
    old = [Process(f"old-{number}", 0, 0, lead + 10 * (number + 1)) for number in range(8)]
    new = [Process(f"new-{n}", lead + 10 * (n + 1), minutes, minutes) for n in range(8)]
    life = Life(minutes, [*old, *new], lambda _: 16.0, lambda _: 8)

    (found,) = incidents.fired(life.series(), life.minutes).values()
    assert 'alertname="ServescopeReplicasBelowDesired"' in found
    assert 'alertname="ServescopeDeploymentDown"' in found
