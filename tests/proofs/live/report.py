"""Writes the results of a run as the table in `docs/alerts.md`."""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from servescope import __version__
from servescope.alerting.alerts import ALERTS
from servescope.errors import ServescopeError
from tests.proofs.live.campaign import Health, Outcome
from tests.proofs.live.episodes import NOT_SHOWN, Episode
from tests.proofs.live.stack import EVALUATION_INTERVAL, ROOT, SCRAPE_INTERVAL
from tests.support.markers import Markers

PAGE: Final = ROOT / "docs" / "alerts.md"
MARKERS: Final = Markers("<!-- live: written by `make live`, do not edit -->", "<!-- end of live -->")
_RUNBOOKS: Final = "../alerts/generated/runbooks"


@dataclass(slots=True)
class Run:
    """A whole run: the healthy hour, the outcomes of all faults, and other problems."""

    times: int
    seconds: float
    programs: Mapping[str, str]
    health: Health
    outcomes: Sequence[Outcome]
    watchdogs: int
    notifications: int
    slowest: float
    """The least share of the time that should have passed for an emulator and did."""

    problems: list[str] = field(default_factory=list)

    @property
    def failed(self) -> list[str]:
        """All failures of the run."""
        return [
            *(f"{name} fired in the healthy hour" for name in self.health.problems),
            *(f"{each.alert}: {problem}" for each in self.outcomes for problem in each.problems),
            *self.problems,
        ]


def read_version(binary: Path) -> str:
    """The version of a program of the Prometheus project."""
    said = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=True, timeout=30)
    found = re.search(r"version (\S+)", said.stdout + said.stderr)
    return found[1] if found else "unknown"


def render(run: Run) -> str:
    """The head and the table, in Markdown; every alert has a row."""
    return "\n".join([*_head(run), "", *_table(run)]) + "\n"


def write(run: Run, *, rows_of: Sequence[str] = ()) -> None:
    """Put the head and the table between the page's markers, or the rows of these alerts in place of theirs.

    Raises ServescopeError when the page has no markers.
    """
    if rows_of:
        PAGE.write_text(_replace_rows(PAGE.read_text(encoding="utf-8"), run, rows_of), encoding="utf-8")
    else:
        MARKERS.write(PAGE, render(run))


def never_run() -> list[str]:
    """The alerts of which the page has no row, and of which no reason is given."""
    text = PAGE.read_text(encoding="utf-8")
    return [name for name in ALERTS if name not in NOT_SHOWN and f"\n| [{name}](" not in text]


def _replace_rows(text: str, run: Run, names: Sequence[str]) -> str:
    """The page with other rows of these alerts, and a line in its head that says so."""
    for name in names:
        rows = "".join(f"{line}\n" for line in _table(run) if line.startswith(f"| [{name}]"))
        before, after = _rows_around(text, name)
        text = f"{before}{rows}{after}"
    rerun = f"- Rows of a separate run, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC: {', '.join(map(_short, names))}"
    rerun += f"; failures: {'; '.join(run.failed) or 'nothing'}"
    return re.sub(r"(?m)^(- Failures: .*)$", lambda found: f"{found[1]}\n{rerun}", text, count=1)


def _rows_around(text: str, name: str) -> tuple[str, str]:
    """What is before and after an alert's rows; where it has none, after those of the alert before it."""
    for former in reversed(list(ALERTS)[: list(ALERTS).index(name) + 1]):
        found = re.search(rf"(?m)(?:^\| \[{former}\].*\n)+", text)
        if found:
            return text[: found.start() if former == name else found.end()], text[found.end() :]
    raise ServescopeError(f"{PAGE}: expected a row of an alert before {name}")


def _head(run: Run) -> list[str]:
    health = run.health
    fired = [name for name in health.fired if ALERTS[name].severity == "info"]
    information = f"; informational alerts: {', '.join(fired)}" if fired else ""
    called = ", ".join(health.problems) or "no page and no ticket"
    return [
        f"- Run: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {run.seconds / 60:.0f} minutes, {os.cpu_count()} cores, "
        f"{platform.machine()}",
        f"- Programs: servescope {__version__}, "
        + ", ".join(f"{name} {version}" for name, version in run.programs.items()),
        f"- Time: {run.times} times as fast, so every duration of rules and routes is divided by {run.times}; "
        f"scrape interval {SCRAPE_INTERVAL}, evaluation interval {EVALUATION_INTERVAL} of that time",
        f"- Emulators: each was at least {math.floor(run.slowest * 1000) / 10:.1f} % as fast as that",
        f"- Healthy hour, with bursts and tides of conversations: {called}{information}",
        f"- Notifications: {run.notifications}, {run.watchdogs} of them the watchdog's",
        f"- Failures: {'; '.join(run.failed) or 'nothing'}",
    ]


def _table(run: Run) -> list[str]:
    rows = [
        "| Alert | Severity | Fault | Receiver | after | resolved after | messages | inhibited or muted "
        "| also notified |",
        "|---|---|---|---|---:|---:|---|---|---|",
    ]
    for name, alert in ALERTS.items():
        link = f"[{name}]({_RUNBOOKS}/{name}.md)"
        found = [outcome for outcome in run.outcomes if outcome.alert == name]
        if alert.severity == "none":
            rows.append(f"| {link} | {alert.severity} | none: it always fires | {_watchdog(run)} | | | | | |")
        for outcome in found:
            rows.append(f"| {link} | {alert.severity} | {_row(outcome, run.times)} |")
        muted = {
            outcome.episode.place(written).alert: (outcome.episode, by)
            for outcome in run.outcomes
            for written, by in outcome.episode.muted.items()
        }
        if not found and name in muted:
            episode, by = muted[name]
            rows.append(
                f"| {link} | {alert.severity} | {_fault(episode)} | nobody: inhibited by {_short(by)} | | | none | | |"
            )
        elif not found and alert.severity != "none":
            rows.append(f"| {link} | {alert.severity} | not tested: {NOT_SHOWN.get(name, 'left out')} | | | | | | |")
    return rows


def _watchdog(run: Run) -> str:
    return "watchdog" if run.watchdogs else "**nobody**"


def _row(outcome: Outcome, times: int) -> str:
    return " | ".join([
        _fault(outcome.episode, outcome.place.deployment),
        outcome.receiver or "**nobody**",
        _both(outcome.fired_after, times),
        _both(outcome.resolved_after, times),
        str(outcome.messages) or "none",
        ", ".join(map(_short, outcome.muted)),
        ", ".join(map(_short, outcome.also)),
    ])  # fmt: skip


def _fault(episode: Episode, deployment: str | None = None) -> str:
    """What was done, and in which deployment."""
    where = episode.deployment if deployment is None else deployment
    return f"{episode.how} in `{where}`" if where else episode.how


def _both(seconds: float | None, times: int) -> str:
    """A time on the wall clock, and what it is of the emulated stack's."""
    if seconds is None:
        return "**never**"
    minutes = round(seconds * times / 60)
    long = f"{minutes // 60} h {minutes % 60} min" if minutes >= 90 else f"{minutes} min"
    return f"{seconds:.0f} s ({long})"


def _short(name: str) -> str:
    return name.removeprefix("Servescope")
