"""A running stack notifies of its faults: one page, one ticket, one alert that is muted, and all are resolved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from alerts.alertmanager import RECEIVERS
from servescope.alerting.alerts import ALERTS
from tests.proofs.live.campaign import run_lanes
from tests.proofs.live.deployments import EMULATED, Emulated, find_emulator
from tests.proofs.live.episodes import EPISODES, NOT_SHOWN, OF_ALL
from tests.proofs.live.frontend import FRONTENDS
from tests.proofs.live.report import MARKERS, PAGE
from tests.proofs.live.stack import live_stack
from tests.proofs.live.watch import Watch
from tests.support.waiting import wait_for

TIMES = 60
"""How many times as fast time passes here: a quarter of an hour in as many seconds."""


# --- Shorter durations ------------------------------------------------------------------------------------------------


# --- The faults -------------------------------------------------------------------------------------------------------


def test_an_episode_names_alerts_and_deployments_that_exist() -> None:
    """None of an alert that is said to have none; `make live` asks for episodes that are missing."""
    shown = {place.alert for episode in (*EPISODES, *OF_ALL) for place in episode.places()}
    muted = {episode.place(written).alert for episode in (*EPISODES, *OF_ALL) for written in episode.muted}
    assert shown | muted <= ALERTS.keys()
    assert not shown & NOT_SHOWN.keys()
    for episode in (*EPISODES, *OF_ALL):
        assert not episode.deployment or episode.deployment in FRONTENDS or find_emulator(episode.deployment)


def test_the_page_has_rows_of_alerts_that_exist() -> None:
    """One that no longer exists fails here: run `make live`."""
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index(MARKERS.begin) : text.index(MARKERS.end)]
    if not table.removeprefix(MARKERS.begin).strip():
        pytest.skip("docs/alerts.md holds no run yet: make live")
    assert set(re.findall(r"(?m)^\| \[(\w+)\]", table)) <= ALERTS.keys()
    rows = [[cell.strip() for cell in line.split("|")] for line in re.findall(r"(?m)^\| \[.*", table)]
    for name, messages in ((row[1], row[7]) for row in rows):
        one = r"(?:none|(?:1 page(?:, 1 ticket)?|1 ticket)(?:, \d+ updates?)?)?"
        assert re.fullmatch(one, messages), name
    assert "**never**" not in table
    assert "**nobody**" not in table


# --- The table --------------------------------------------------------------------------------------------------------


# --- A running stack --------------------------------------------------------------------------------------------------


@pytest.mark.proof
def test_faults_reach_whom_they_concern(tmp_path: Path, prometheus: Path, alertmanager: Path) -> None:
    """No active replica is a page, muting the ticket of its failed ones; those of another deployment are a ticket."""
    chosen = [episode for episode in EPISODES if episode.deployment == "down"]
    emulated = {
        "serve": Emulated(tuple(each for each in EMULATED["serve"].deployments if each.name in ("down", "failing")))
    }
    with (
        live_stack(tmp_path, times=TIMES, prometheus=prometheus, alertmanager=alertmanager, emulated=emulated) as stack,
        Watch(stack) as watch,
    ):
        _wait_for_watchdog(watch)
        # Prometheus begins to scrape some seconds after it evaluates, which are minutes here.
        assert {each.name for each in watch.received()} <= {"ServescopeWatchdog", "ServescopeCollectorGone"}
        since = watch.now()
        outcomes = run_lanes(stack, watch, chosen, lambda _: None)
        received = watch.received(since=since)

    assert [problem for outcome in outcomes for problem in outcome.problems] == []
    assert {(outcome.alert, outcome.receiver) for outcome in outcomes} == {
        ("ServescopeNoActiveReplica", "page"),
        ("ServescopeReplicasFailed", "ticket"),
    }
    calls = {(each.name, each.deployment, each.receiver) for each in received if each.receiver in ("page", "ticket")}
    assert calls >= {("ServescopeNoActiveReplica", "down", "page"), ("ServescopeReplicasFailed", "failing", "ticket")}
    assert ("ServescopeReplicasFailed", "down", "ticket") not in calls
    assert all(each.receiver == RECEIVERS[ALERTS[each.name].severity] for each in received)


def _wait_for_watchdog(watch: Watch) -> None:
    wait_for(lambda: any(each.receiver == "watchdog" for each in watch.received()), "the watchdog's notification")
