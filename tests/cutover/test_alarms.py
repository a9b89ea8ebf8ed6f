"""Alerts that page somebody: those that fire on an arm are said with the judgement, whatever the metrics show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servescope.contract.events import Event, EventKind
from servescope.contract.samples import make_labels
from servescope.cutover.judgement import Judgement
from servescope.cutover.verdict.alarms import firing_pages
from servescope.judge.report.text import describe_judgement
from tests.cutover.support.cutover_worlds import Phase, make_world
from tests.support.cutover_evidence import Side, plan_of

PLAN = plan_of(0.25)


def event(
    time_ms: int, kind: EventKind = "alert_fired", name: str = "ServescopeUpButNotServing", **labels: str
) -> Event:
    """An event of an alert, by default of v2's."""
    return Event(time_ms, kind, make_labels({"alertname": name, "deployment_id": "chat-v2", **labels}), f"{name} fires")


def names(*events: Event, at_ms: int = 100) -> list[tuple[str, str]]:
    """The arm and the alert of those that fire."""
    return [(each.arm, each.name) for each in firing_pages(PLAN, events, at_ms)]


def test_an_alert_that_pages_is_found_until_it_is_resolved() -> None:
    """Of v1 or of v2, by its labels; of later than the judgement nothing is known."""
    assert names(event(10)) == [("v2", "ServescopeUpButNotServing")]
    assert names(event(10, deployment_id="chat-v1")) == [("v1", "ServescopeUpButNotServing")]
    assert names(event(10), event(20, "alert_resolved")) == []
    assert names(event(30), event(20, "alert_resolved"), event(10)) == [("v2", "ServescopeUpButNotServing")]
    assert names(event(10), at_ms=5) == []


def test_an_alert_that_pages_nobody_or_is_of_neither_arm_is_not() -> None:
    """Warnings, other deployments; a rule of somebody else counts by its severity."""
    assert names(event(10, name="ServescopeAutoscalerPinned")) == []
    assert names(event(10, deployment_id="mail")) == []
    assert names(event(10, name="Ours")) == []
    assert names(event(10, name="Ours", severity="page")) == [("v2", "Ours")]


def judged(*events: Event) -> Judgement:
    """The judgement of two equal stacks, which is HEALTHY, with these events."""
    world = make_world(Phase(Side(replicas=2), 6), requests_per_minute=1200.0)
    return replace(world, evidence=replace(world.evidence, events=events)).judge()


@pytest.mark.slow
def test_no_advice_to_go_on_while_an_alert_of_v2_pages() -> None:
    """The verdict is that of the metrics; a page of v1's, or a warning, changes no advice."""
    begun_ms = 1_800_000_000_000
    fired = judged(event(begun_ms))
    assert (fired.verdict, fired.advice) == ("HEALTHY", "hold")
    assert "ServescopeUpButNotServing fires on v2 since" in "\n".join(describe_judgement(fired).splitlines()[:3])
    assert judged(event(begun_ms, deployment_id="chat-v1")).advice == "go on"
    assert judged().alerts == ()
