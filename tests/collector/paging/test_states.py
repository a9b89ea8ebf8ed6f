"""Alert states over a restart, and the limits on their number."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.evaluation import Active, duration_ms
from servescope.alerting.rules.records import (
    AdHocExpression,
    Alert,
    BadRatio,
    Compare,
    FigureRef,
    OverTime,
    RequestsEnded,
    SelfMetric,
    Subquery,
)
from servescope.collector.paging.states import (
    GRACE_MS,
    KEPT_FREE,
    MOST_ACTIVE,
    OUTAGE_TOLERATED_MS,
    RESOLVED_KEPT_MS,
    RESOLVED_OWED_MS,
    AlertInstance,
    AlertStates,
)
from servescope.contract.expressions import Vector
from servescope.contract.samples import Labels

STEP_MS = 15_000
START = 1_800_000_000_000
CHAT: Labels = (("deployment_id", "chat"),)
GAPS = replace(ALERTS["ServescopeCacheEventsMissed"], condition=Compare(FigureRef("router_event_gap_rate"), ">", 0.0))


class OneFigure:
    """A view in which one figure has these values."""

    def __init__(self) -> None:
        self.values: Vector = {}

    def figure(self, _: FigureRef) -> Vector:
        return self.values

    def over(self, _: OverTime) -> Vector:
        return {}

    def own(self, _: SelfMetric, before: str = "") -> Vector:
        return {}

    def measured(self, _: AdHocExpression) -> Vector:
        return {}

    def highest(self, _: SelfMetric, window: str) -> Vector:
        return {}

    def lately(self, _: Subquery) -> Vector:
        return {}

    def badness(self, _: BadRatio) -> Vector:
        return {}

    def ended(self, _: RequestsEnded) -> Vector:
        return {}


def _fail(message: str) -> None:
    raise AssertionError(message)


def _state(states: AlertStates) -> list[tuple[str, Active]]:
    return [(each.state, each.active) for each in states.instances()]


alerts = st.builds(
    lambda wait, keep: replace(GAPS, for_=wait, keep_firing_for=keep),
    st.sampled_from(["", "1m", "10m", "15m", "30m"]), st.sampled_from(["", "1m", "10m"]),
)  # fmt: skip


@given(alerts, st.lists(st.booleans(), min_size=1, max_size=80), st.integers(0, 79))
def test_a_restart_without_an_outage_changes_nothing_of_what_fires(alert: Alert, held: list[bool], at: int) -> None:
    """After a restart a firing alert goes on as if there had been none, with the same start."""
    view, whole = OneFigure(), AlertStates([alert], _fail)
    again = AlertStates([alert], _fail)
    for number, holds in enumerate(held):
        at_ms = START + number * STEP_MS
        view.values = {CHAT: 1.0} if holds else {}
        whole.evaluate(view, at_ms)
        if number == min(at, len(held) - 1):
            # Pending alerts are tested on their own below.
            if any(each.state == "pending" for each in whole.instances()):
                return
            again.restore(whole.instances(), down_ms=at_ms, at_ms=at_ms, settle_ms=0)
        elif number > at:
            again.evaluate(view, at_ms)
    assert _state(again) == _state(whole)


@given(alerts, st.integers(0, 120), st.integers(0, 2 * OUTAGE_TOLERATED_MS))
def test_a_pending_alert_goes_on_as_in_prometheus(alert: Alert, steps: int, outage_ms: int) -> None:
    """The outage does not count; it fires at the earliest after the grace, unless its `for` starts over."""
    waits_ms = duration_ms(alert.for_)
    since_ms, down_ms = START, START + steps * STEP_MS
    if down_ms - since_ms >= waits_ms:
        return
    at_ms = down_ms + outage_ms
    states = AlertStates([alert], _fail)
    instance = AlertInstance(alert.name, CHAT, Active(1.0, since_ms))
    states.restore([instance], down_ms=down_ms, at_ms=at_ms, settle_ms=0)
    view = OneFigure()
    view.values = {CHAT: 1.0}
    fires_ms = None
    for number in range(2 + waits_ms // STEP_MS):
        states.evaluate(view, at_ms + number * STEP_MS)
        if fires_ms is None and _state(states)[0][0] == "firing":
            fires_ms = at_ms + number * STEP_MS
    assert fires_ms is not None
    if outage_ms > OUTAGE_TOLERATED_MS or waits_ms < GRACE_MS:
        expected_ms = waits_ms
    else:
        expected_ms = max(waits_ms - (down_ms - since_ms), GRACE_MS)
    assert 0 <= fires_ms - at_ms - expected_ms < STEP_MS


def test_what_held_is_assumed_to_hold_right_after_a_restart() -> None:
    """Rates need two scrapes: until there can be two, a condition without a value does not resolve the alert."""
    states, view = AlertStates([replace(GAPS, keep_firing_for="")], _fail), OneFigure()
    fired = AlertInstance(GAPS.name, CHAT, Active(3.0, START - 900_000, START - 300_000))
    states.restore([fired], down_ms=START - STEP_MS, at_ms=START, settle_ms=60_000)
    for offset_ms in range(0, 60_000, STEP_MS):
        states.evaluate(view, START + offset_ms)
        assert _state(states) == [("firing", fired.active)]
    states.evaluate(view, START + 60_000)
    assert [each.state for each in states.instances()] == ["resolved"]


def test_what_held_again_and_ended_resolves_at_once() -> None:
    """Once the condition was seen to hold after the restart, its end counts."""
    states, view = AlertStates([replace(GAPS, keep_firing_for="")], _fail), OneFigure()
    fired = AlertInstance(GAPS.name, CHAT, Active(3.0, START - 900_000, START - 300_000))
    states.restore([fired], down_ms=START - STEP_MS, at_ms=START, settle_ms=60_000)
    view.values = {CHAT: 2.0}
    states.evaluate(view, START)
    view.values = {}
    states.evaluate(view, START + STEP_MS)
    assert [each.state for each in states.instances()] == ["resolved"]


def test_alerts_above_the_limit_are_left_out_and_counted() -> None:
    """Those that are active stay; there is room again when some resolve."""
    states, view = AlertStates([replace(GAPS, for_="", keep_firing_for="", severity="critical")], _fail), OneFigure()
    view.values = {(("deployment_id", f"chat-{number:05}"),): 1.0 for number in range(MOST_ACTIVE + 7)}
    states.evaluate(view, START)
    assert (len(states.instances()), states.left_out) == (MOST_ACTIVE, 7)
    view.values = dict(list(view.values.items())[7:])
    states.evaluate(view, START + STEP_MS)
    states.evaluate(view, START + 2 * STEP_MS)
    assert sum(each.state == "firing" for each in states.instances()) == MOST_ACTIVE
    assert states.left_out == 0


def test_warnings_leave_room_for_critical_alerts() -> None:
    """However many of them there are: an outage of everything has a warning per target, and a page per deployment."""
    page = replace(GAPS, name="Page", for_="", keep_firing_for="", severity="critical")
    states, view = AlertStates([replace(GAPS, for_="", keep_firing_for=""), page], _fail), OneFigure()
    view.values = {(("deployment_id", f"chat-{number:05}"),): 1.0 for number in range(MOST_ACTIVE)}
    states.evaluate(view, START)
    fired = [each.alert for each in states.instances()]
    assert (fired.count(GAPS.name), fired.count("Page")) == (MOST_ACTIVE - KEPT_FREE, KEPT_FREE)


@pytest.mark.parametrize("back", [False, True])
def test_a_resolved_alert_is_kept_for_fifteen_minutes(back: bool) -> None:
    """Or until it fires again."""
    states, view = AlertStates([replace(GAPS, for_="", keep_firing_for="")], _fail), OneFigure()
    view.values = {CHAT: 1.0}
    states.evaluate(view, START)
    view.values = {}
    states.evaluate(view, START + STEP_MS)
    view.values = {CHAT: 1.0} if back else {}
    states.evaluate(view, START + STEP_MS + RESOLVED_KEPT_MS)
    assert [each.state for each in states.instances()] == (["firing"] if back else ["resolved"])
    states.evaluate(view, START + 2 * STEP_MS + RESOLVED_KEPT_MS)
    assert [each.state for each in states.instances()] == (["firing"] if back else [])


def test_a_resolved_alert_is_kept_for_a_day_where_a_receiver_needs_it() -> None:
    """Their number is limited as well, and the oldest are dropped first."""
    states, view = AlertStates([replace(GAPS, for_="", keep_firing_for="")], _fail), OneFigure()
    view.values = {CHAT: 1.0}
    states.evaluate(view, START)
    view.values = {}
    owed = {(GAPS.name, CHAT)}
    for after_ms, expected in ((STEP_MS, 1), (RESOLVED_OWED_MS + STEP_MS, 1), (RESOLVED_OWED_MS + 2 * STEP_MS, 0)):
        states.evaluate(view, START + after_ms, owed=owed)
        assert len(states.instances()) == expected
    for round_ in range(3):
        view.values = {(("deployment_id", f"chat-{round_}-{number}"),): 1.0 for number in range(MOST_ACTIVE - 1)}
        states.evaluate(view, START + round_ * STEP_MS)
    assert len(states.instances()) <= 2 * MOST_ACTIVE
