"""Ordinary life in virtual time: upgrades, a morning, restarts and a night send no page and no ticket."""

from __future__ import annotations

import math

import pytest

from tests.support.incidents import Incidents
from tests.support.ordinary import Life, Process

# A minute of a life is a scrape.
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("scrape_seconds", [60])]
_LOADS = 12
"""Minutes that a replica loads weights."""


def _restarting(name: str, minutes: int, *at: int, loads: int = _LOADS) -> list[Process]:
    """The processes of a replica that serves from the beginning, and is restarted under its name."""
    begins = [-_LOADS, *at]
    return [
        Process(name, max(0, begin), max(0, begin + loads), end)
        for begin, end in zip(begins, [*at, minutes], strict=True)
    ]


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
def test_a_day_of_twenty(incidents: Incidents) -> None:
    """Restarts, an evening and a night without traffic, a morning from 8 to 20 replicas, and a rolling upgrade."""
    life = _day(20, night=60, every=40, upgrade=8)

    assert incidents.fired(life.series(), life.minutes) == {}


def test_a_failure_in_it_is_reported(incidents: Incidents) -> None:
    """The same kind of life, in which an upgrade's replicas do not come up."""
    minutes, lead = 150, 20
    old = [Process(f"old-{number}", 0, 0, lead + 10 * (number + 1)) for number in range(8)]
    new = [Process(f"new-{n}", lead + 10 * (n + 1), minutes, minutes) for n in range(8)]
    life = Life(minutes, [*old, *new], lambda _: 16.0, lambda _: 8)

    (found,) = incidents.fired(life.series(), life.minutes).values()
    assert 'alertname="ServescopeReplicasBelowDesired"' in found
    assert 'alertname="ServescopeDeploymentDown"' in found
