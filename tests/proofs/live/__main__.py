"""Triggers every alert in a running stack, and records which receiver got it and when.

`python -m tests.proofs.live` has an emulated healthy hour first, then every fault.
It ends with 1 when something was not as it should be.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from servescope.alerting.alerts import ALERTS
from servescope.errors import UsageError
from tests import tools
from tests.proofs.live.campaign import check_notifications, check_rendered, find_strays, run_healthy_hour, run_lanes
from tests.proofs.live.deployments import EMULATED, Emulated, find_emulator
from tests.proofs.live.episodes import EPISODES, LISTED_BY_HAND, OF_ALL, Episode, without_episode
from tests.proofs.live.frontend import FRONTENDS
from tests.proofs.live.pace import Pace, find_laggards
from tests.proofs.live.report import Run, never_run, read_version, render, write
from tests.proofs.live.stack import live_stack
from tests.proofs.live.watch import Watch
from tests.support.proofs import run_in_folder

TIMES = 20
"""How many times as fast time passes."""
LEAD, HOUR = "15m", "60m"
GRACE = "60m"
"""How long notifications of a deployment may arrive after its fault has ended."""


def main() -> int:
    """0 when every alert did what it should."""
    parser = argparse.ArgumentParser(prog="python -m tests.proofs.live", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="ALERT", help="the episodes of these alerts alone")
    parser.add_argument(
        "--times", type=int, default=TIMES, help="how many times as fast time passes (default: %(default)s)"
    )
    parser.add_argument("--lead", default=LEAD, metavar="DURATION", help="until it is settled (default: %(default)s)")
    parser.add_argument(
        "--healthy", default=HOUR, metavar="DURATION", help="how long it is well at first (default: %(default)s)"
    )
    parser.add_argument(
        "--face", action="append", default=[], metavar="DEPLOYMENT=NAME",
        help="show this deployment in the names of another engine or frontend; may be repeated",
    )  # fmt: skip
    parser.add_argument("--write", action="store_true", help="put the table into docs/alerts.md, or the rows of --only")
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs and data")
    arguments = parser.parse_args()
    return run_in_folder("tests.proofs.live", lambda folder: _prove(folder, arguments), keep=arguments.keep)


def _prove(folder: Path, arguments: argparse.Namespace) -> int:
    unknown = sorted(set(arguments.only) - set(ALERTS))
    if unknown:
        raise UsageError(f"unknown alert {unknown[0]!r}, supported: {', '.join(ALERTS)}")
    for face in arguments.face:
        _check_face(face)
    run = _run(folder, arguments)
    print(render(run))
    for problem in run.failed:
        print(f"not as it should be: {problem}", file=sys.stderr)
    if arguments.write:
        write(run, rows_of=arguments.only)
    for name in never_run():
        print(
            f"docs/alerts.md has no row of {name}: `python -m tests.proofs.live --write --only {name}`", file=sys.stderr
        )
    return 1 if run.failed else 0


def _check_face(face: str) -> None:
    """The emulator checks the name; it is given only those of its own deployments."""
    known = [deployed.name for emulated in EMULATED.values() for deployed in emulated.deployments]
    if face.partition("=")[0] not in known:
        raise UsageError(f"--face {face!r}: unknown deployment, expected DEPLOYMENT=NAME of {', '.join(known)}")


def _run(folder: Path, arguments: argparse.Namespace) -> Run:
    prometheus, alertmanager = tools.prometheus_binary(), tools.alertmanager_binary()
    if prometheus is None or alertmanager is None:
        raise UsageError("prometheus or alertmanager not found: `python -m tests.tools` prepares them")
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    with (
        live_stack(
            folder, times=arguments.times, prometheus=prometheus, alertmanager=alertmanager,
            emulated=_needed(arguments.only), listed_by_hand=LISTED_BY_HAND,
            faces=arguments.face,
        ) as stack,
        Watch(stack) as watch,
    ):  # fmt: skip
        say("the stack runs")
        pace = Pace(stack.emulators, arguments.times)
        health = run_healthy_hour(stack, watch, lead=arguments.lead, length=arguments.healthy)
        say(f"healthy: {', '.join(health.fired) or 'nothing'} fired")
        outcomes = run_lanes(stack, watch, _choose(EPISODES, arguments.only), say)
        outcomes += run_lanes(stack, watch, _choose(OF_ALL, arguments.only), say)
        received, shares = watch.received(), pace.shares()
        return Run(
            times=arguments.times,
            seconds=time.monotonic() - began,
            programs={"Prometheus": read_version(prometheus), "Alertmanager": read_version(alertmanager)},
            health=health,
            outcomes=outcomes,
            watchdogs=sum(each.receiver == "watchdog" for each in received),
            notifications=len(stack.receivers.sent()),
            slowest=min(shares.values()),
            problems=[
                *(f"{name} has no episode in tests/proofs/live/episodes.py" for name in without_episode()),
                *find_laggards(shares),
                *check_notifications(watch),
                *check_rendered(stack.receivers),
                *find_strays(watch, outcomes, since=health.ended, grace=stack.seconds(GRACE)),
                *(f"Alertmanager showed {name} no token" for name in sorted(set(stack.receivers.refused))),
            ],
        )


def _needed(only: Sequence[str]) -> dict[str, Emulated]:
    """The emulators that the chosen episodes need; one of no deployment is shown with those listed by hand."""
    named = {
        each.deployment if each.deployment not in ("", *FRONTENDS) else LISTED_BY_HAND[0]
        for each in _choose((*EPISODES, *OF_ALL), only)
    }
    if not only:
        return dict(EMULATED)
    return {find_emulator(name): EMULATED[find_emulator(name)] for name in sorted(named)}


def _choose(episodes: Sequence[Episode], only: Sequence[str]) -> list[Episode]:
    return [each for each in episodes if not only or any(place.alert in only for place in each.places())]


if __name__ == "__main__":
    sys.exit(main())
