"""A running stack notifies of its faults: one page, one ticket, one alert that another mutes, and all of them resolved.

`make live` does so for every alert; `docs/alerts.md` holds what it found.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.alertmanager import RECEIVERS, render_alertmanager
from servescope.alerting.alerts import ALERTS
from servescope.errors import ServescopeError, UsageError
from tests.proofs.live.campaign import Health, Outcome, run_lanes
from tests.proofs.live.compression import compress_alertmanager, compress_promql, compress_rules, divided, milliseconds
from tests.proofs.live.deployments import EMULATED, Emulated, find_emulator
from tests.proofs.live.episodes import EPISODES, NOT_SHOWN, OF_ALL, without_episode
from tests.proofs.live.frontend import FRONTENDS
from tests.proofs.live.pace import find_laggards
from tests.proofs.live.report import BEGIN, END, PAGE, Run, never_run, render, write
from tests.proofs.live.stack import GENERATED, live_stack
from tests.proofs.live.watch import Messages, Watch
from tests.support.waiting import wait_for

TIMES = 60
"""How many times as fast time passes here: a quarter of an hour in as many seconds."""


# --- Shorter durations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "shorter"),
    [
        ("rate(x_total[5m])", "rate(x_total[15000ms])"),
        ("avg_over_time(x[1h] offset 30m)", "avg_over_time(x[180000ms] offset 90000ms)"),
        ("max_over_time(rate(x_total[5m])[1h:1m])", "max_over_time(rate(x_total[15000ms])[180000ms:3000ms])"),
        ("deployment:x:rate5m > 15", "deployment:x:rate5m > 15"),
        ('x{window="5m"} == 0', 'x{window="5m"} == 0'),
    ],
)
def test_ranges_and_offsets_are_divided(expression: str, shorter: str) -> None:
    """Names with a window in them, labels and numbers are not changed."""
    assert compress_promql(expression, 20) == shorter


@pytest.mark.parametrize(("duration", "whole"), [("0s", 0), ("250ms", 250), ("1h30m", 5_400_000), ("3d", 259_200_000)])
def test_durations_are_read_as_prometheus_does(duration: str, whole: int) -> None:
    assert milliseconds(duration) == whole


def test_what_cannot_be_divided_is_refused() -> None:
    """A duration that is none, and one that would end within a millisecond: the error names it."""
    with pytest.raises(UsageError, match="duration 'soon' is not understood"):
        milliseconds("soon")
    with pytest.raises(UsageError, match="5ms divided by 2 is no whole number of milliseconds"):
        divided("5ms", 2)


@pytest.mark.parametrize("path", sorted(GENERATED.glob("*.rules.yml")), ids=lambda path: path.stem)
def test_rules_differ_in_their_durations_alone(path: Path) -> None:
    """Every duration of the generated rules is a twentieth, and with the durations put back they are the same."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    shorter = compress_rules(document, 20)
    again = compress_rules(shorter, 1)
    for group, before in zip(again["groups"], document["groups"], strict=True):
        assert milliseconds(group["interval"]) * 20 == milliseconds(before["interval"])
        for rule, old in zip(group["rules"], before["rules"], strict=True):
            for key in ("for", "keep_firing_for"):
                if key in old:
                    assert milliseconds(rule.pop(key)) * 20 == milliseconds(old.pop(key))
            assert _windows(rule.pop("expr"), times=20) == _windows(old.pop("expr"), times=1)
            assert rule == old


def _windows(expression: str, *, times: int) -> str:
    """The expression with every range and offset in milliseconds."""
    return re.sub(
        r"(?<=[\[:])[0-9]+(?:ms|[smhd])(?=[\]:])|(?<=offset )\w+",
        lambda found: str(milliseconds(found[0]) * times),
        expression,
    )


def test_alertmanager_differs_in_its_durations_alone() -> None:
    """Its waits and intervals are a twentieth, routes, receivers and inhibitions what they are."""
    document = yaml.safe_load(render_alertmanager())
    shorter = compress_alertmanager(document, 20)
    assert shorter["route"]["group_wait"] == "1500ms"
    assert shorter["route"]["routes"][0]["repeat_interval"] == "3000ms"
    assert _without_durations(shorter) == _without_durations(document)


def _without_durations(document: Any) -> Any:
    if isinstance(document, dict):
        return {
            key: _without_durations(value)
            for key, value in document.items()
            if not key.endswith(("wait", "interval", "timeout"))
        }
    return [_without_durations(each) for each in document] if isinstance(document, list) else document


# --- The faults -------------------------------------------------------------------------------------------------------


def test_an_episode_names_alerts_and_deployments_that_exist() -> None:
    """None of an alert that is said to have none; `make live` asks for episodes that are missing."""
    shown = {place.alert for episode in (*EPISODES, *OF_ALL) for place in episode.places()}
    muted = {episode.place(written).alert for episode in (*EPISODES, *OF_ALL) for written in episode.muted}
    assert shown | muted <= ALERTS.keys()
    assert not shown & NOT_SHOWN.keys()
    for episode in (*EPISODES, *OF_ALL):
        assert not episode.deployment or episode.deployment in FRONTENDS or find_emulator(episode.deployment)


def test_an_alert_without_an_episode_or_a_row_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next run, which names each; a new alert fails nothing before."""
    page = tmp_path / "alerts.md"
    page.write_text("\n".join(["", *(f"| [{name}](runbook) |" for name in [*ALERTS][1:])]), encoding="utf-8")
    missing, known = next(iter(ALERTS)), without_episode()
    monkeypatch.setattr(
        "tests.proofs.live.episodes.ALERTS", {**ALERTS, "ServescopeNew": ALERTS["ServescopeQueueGrowing"]}
    )

    assert never_run(page) == [missing]
    assert without_episode() == [*known, "ServescopeNew"]


def test_the_page_has_rows_of_alerts_that_exist() -> None:
    """One that no longer exists fails here: run `make live`.

    One fault is one page at most, and one ticket at most.
    """
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index(BEGIN) : text.index(END)]
    if not table.removeprefix(BEGIN).strip():
        pytest.skip("docs/alerts.md holds no run yet: make live")
    assert set(re.findall(r"(?m)^\| \[(\w+)\]", table)) <= ALERTS.keys()
    rows = [[cell.strip() for cell in line.split("|")] for line in re.findall(r"(?m)^\| \[.*", table)]
    for name, messages in ((row[1], row[7]) for row in rows):
        one = r"(?:none|(?:1 page(?:, 1 ticket)?|1 ticket)(?:, \d+ updates?)?)?"
        assert re.fullmatch(one, messages), name
    assert "**never**" not in table
    assert "**nobody**" not in table


# --- The table --------------------------------------------------------------------------------------------------------


def _run_of(*outcomes: Outcome) -> Run:
    health = Health(180.0, 200.0, fired=["ServescopeSpeculationNeedsTuning", "ServescopeWatchdog"])
    return Run(20, 700.0, {"Prometheus": "2.42.0"}, health, outcomes, watchdogs=9, notifications=30, slowest=0.9996)


def test_a_row_has_the_receiver_and_the_times_of_an_alert() -> None:
    """In seconds of the wall clock and in emulated time, with inhibited and other alerts."""
    (episode,) = [each for each in EPISODES if each.deployment == "down"]
    place, _ = episode.places()
    found = Outcome(
        place, episode, "page", 24.9, 46.2, muted=["ServescopeReplicasFailed"], also=["ServescopeTargetGone"],
        messages=Messages(pages=1, updates=2),
    )  # fmt: skip
    run = _run_of(found)
    (row,) = [line for line in render(run).splitlines() if line.startswith("| [ServescopeNoActiveReplica]")]
    assert row.endswith("| page | 25 s (8 min) | 46 s (15 min) | 1 page, 2 updates | ReplicasFailed | TargetGone |")
    assert "`replica-crash-loop:1000`" in row
    assert run.failed == []
    assert "no page and no ticket; informational alerts: ServescopeSpeculationNeedsTuning" in render(run)


def test_problems_are_reported_and_fail_the_run() -> None:
    """An alert that reached nobody, and one that fired in the healthy hour."""
    episode = EPISODES[0]
    run = _run_of(Outcome(episode.places()[0], episode, problems=["reached nobody within 90 s"]))
    run.health.fired.append("ServescopeQueueGrowing")
    assert run.failed == [
        "ServescopeQueueGrowing fired in the healthy hour",
        "ServescopeSpeculationBelowBreakEven: reached nobody within 90 s",
    ]
    assert "| **nobody** | **never** | **never** |" in render(run)
    assert "conversations: ServescopeQueueGrowing" in render(run)


def test_an_emulator_for_which_time_passed_too_slowly_is_a_failure() -> None:
    """What it measured would be too short; one that lost a moment is not, and the slowest is named in the report."""
    (found,) = find_laggards({"cache": 0.981, "queue": 0.9951})
    assert found == "emulator cache fell behind: only 98.1% of the time passed, as the machine is too busy"
    assert "- Emulators: each was at least 99.9 % as fast as that" in render(_run_of())


def test_table_is_written_between_its_markers(tmp_path: Path) -> None:
    """The rest of the page stays; a page without the markers is refused."""
    page = tmp_path / "alerts.md"
    page.write_text(f"before\n{BEGIN}\nof the run before\n{END}\nafter\n", encoding="utf-8")
    write(_run_of(), page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{BEGIN}\n\n- Run: ")
    assert text.endswith(f"\n{END}\nafter\n")
    assert "of the run before" not in text
    page.write_text("before\n", encoding="utf-8")
    with pytest.raises(ServescopeError, match="expected the markers"):
        write(_run_of(), page)


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
    assert calls >= {
        ("ServescopeNoActiveReplica", "down", "page"),
        ("ServescopeReplicasFailed", "failing", "ticket"),
    }
    assert ("ServescopeReplicasFailed", "down", "ticket") not in calls
    assert all(each.receiver == RECEIVERS[ALERTS[each.name].severity] for each in received)


def _wait_for_watchdog(watch: Watch) -> None:
    wait_for(lambda: any(each.receiver == "watchdog" for each in watch.received()), "the watchdog's notification")
