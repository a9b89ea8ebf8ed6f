"""Starts that load weights for minutes: they are silent, and one that never succeeds is reported."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.alerts.support.incidents import Incidents, Stretches, of_replica
from tests.support.alert_stories import DEPLOYMENT, figure, series

pytestmark = pytest.mark.slow

_UP = "servescope_target_up"
_ACTIVE = figure("replica_count_by_status", status="active")
_TARGET = "ServescopeTargetDown"
_ALL = (_TARGET, "ServescopeDeploymentDown", "ServescopeNoActiveReplica")
_ROUTER, _PHASE, _FLEET = "ServescopeRouterDown", "ServescopePhaseDown", "ServescopeFleetUnseen"


def _silent(minutes: range, names: Iterable[str] = _ALL) -> dict[str, dict[int, bool]]:
    return {name: dict.fromkeys(minutes, False) for name in names}


def test_a_first_start_is_silent(by_the_minute: Incidents) -> None:
    """Two replicas of a new deployment load weights for 12 minutes."""
    start: Stretches = [(12, 0.0), (60, 1.0)]
    given = {of_replica(_UP): start, of_replica(_UP, "r1"): start, _ACTIVE: [(12, 0.0), (60, 2.0)]}

    assert by_the_minute.firing(given, _silent(range(0, 70, 3))) == {}


def test_a_scale_up_is_silent(by_the_minute: Incidents) -> None:
    """A second replica of a deployment that has served for two hours loads weights for 8 minutes."""
    given: dict[str, Stretches] = {
        of_replica(_UP): [(180, 1.0)],
        of_replica(_UP, "r1"): [(120, None), (8, 0.0), (52, 1.0)],
    }

    assert by_the_minute.firing(given, _silent(range(120, 150, 3))) == {}


def test_a_start_that_never_succeeds_is_reported(by_the_minute: Incidents) -> None:
    """30 minutes of grace, and what each alert waits; the new deployment beside it has a page as well."""
    scaled_up: dict[str, Stretches] = {of_replica(_UP): [(240, 1.0)], of_replica(_UP, "r1"): [(120, None), (120, 0.0)]}
    late = {minute: minute >= 155 for minute in (125, 140, 154, 155, 170, 235)}
    assert by_the_minute.firing(scaled_up, {_TARGET: late}) == {}

    new: dict[str, Stretches] = {of_replica(_UP): [(120, None), (120, 0.0)], _ACTIVE: [(120, None), (120, 0.0)]}
    assert by_the_minute.firing(new, dict.fromkeys(_ALL, late)) == {}


def _phased(decode: Stretches, router: Stretches) -> dict[str, Stretches]:
    """A disaggregated deployment, whose prefill workers are up from the start."""
    roles: dict[str, Stretches] = {"prefill": [(120, 1.0)], "decode": decode, "router": router}
    return {of_replica(_UP, f"{role}-{number}", role=role): each for role, each in roles.items() for number in range(2)}


def test_a_router_and_a_phase_have_as_long(by_the_minute: Incidents) -> None:
    """12 minutes of their first start are silent; what does not come up is a page and a ticket that names it."""
    names = (_TARGET, _PHASE, _ROUTER)
    starts = _phased([(12, 0.0), (108, 1.0)], [(8, 0.0), (112, 1.0)])
    assert by_the_minute.firing(starts, _silent(range(0, 60, 3), names)) == {}

    stuck = _phased([(120, 0.0)], [(120, 0.0)])
    late = {minute: minute >= 35 for minute in (5, 20, 34, 35, 100)}
    pages = {_PHASE: late, _ROUTER: late}
    assert by_the_minute.firing(stuck, pages) == {}

    # What was up has no grace.
    dies = _phased([(60, 1.0), (60, 0.0)], [(60, 1.0), (60, 0.0)])
    soon = {minute: minute >= 65 for minute in (59, 64, 65, 115)}
    assert by_the_minute.firing(dies, {_PHASE: soon, _ROUTER: soon}) == {}


def test_a_morning_is_no_blindness(by_the_minute: Incidents) -> None:
    """A deployment grows from 8 to 20 replicas that load weights for 12 minutes; those that do not come up page."""
    grown: Stretches = [(60, None), (12, 0.0), (48, 1.0)]
    given: dict[str, Stretches] = {of_replica(_UP, f"r{number}"): [(120, 1.0)] for number in range(8)}
    morning = {**given, **{of_replica(_UP, f"r{number}"): grown for number in range(8, 20)}}
    assert by_the_minute.firing(morning, _silent(range(55, 115, 2), (_FLEET, _TARGET))) == {}

    stuck = {**given, **{of_replica(_UP, f"r{number}"): [(60, None), (60, 0.0)] for number in range(8, 20)}}
    late = {minute: minute >= 93 for minute in (65, 80, 92, 93, 115)}
    assert by_the_minute.firing(stuck, {_FLEET: late}) == {}


def test_one_of_many_has_as_long_to_be_restarted(by_the_minute: Incidents) -> None:
    """12 minutes are silent; one that stays down is a ticket, and so are two of the same twenty at once."""
    well: dict[str, Stretches] = {of_replica(_UP, f"r{number}"): [(120, 1.0)] for number in range(2, 20)}

    def counted(*down: tuple[int, float]) -> dict[str, Stretches]:
        up = [(minutes, 20 - value) for minutes, value in down]
        return {
            series("servescope_targets", {**DEPLOYMENT, "health": "down"}): down,
            series("servescope_targets", {**DEPLOYMENT, "health": "up"}): up,
        }

    soon: Stretches = [(60, 1.0), (12, 0.0), (48, 1.0)]
    never: Stretches = [(60, 1.0), (60, 0.0)]
    restarted = {**well, of_replica(_UP, "r0"): soon, **counted((60, 0.0), (12, 1.0), (48, 0.0))}
    dead = {**well, of_replica(_UP, "r0"): never, **counted((60, 0.0), (60, 1.0))}
    two = {**well, of_replica(_UP, "r0"): never, of_replica(_UP, "r1"): never, **counted((60, 0.0), (60, 2.0))}

    assert by_the_minute.firing(restarted, _silent(range(55, 115, 2), [_TARGET])) == {}
    assert by_the_minute.firing(dead, {_TARGET: {at: at >= 96 for at in (66, 85, 96, 115)}}) == {}
    # Both of them are.
    both = {at: at >= 65 for at in (64, 65, 115)}
    assert by_the_minute.firing(two, {_TARGET: both}, count=2) == {}
