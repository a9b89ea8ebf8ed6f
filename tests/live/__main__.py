"""Brings about every alert in a running stack, and writes down whom it reached and when.

`python -m tests.live` has an emulated healthy hour first, then every fault; 1 when something was not as it should be.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from servescope.alerts import ALERTS
from servescope.errors import UsageError
from tests import tools
from tests.live.campaign import run_healthy_hour, run_lanes
from tests.live.deployments import EMULATED
from tests.live.episodes import EPISODES, LISTED_BY_HAND, OF_ALL
from tests.live.stack import live_stack
from tests.live.watch import Watch
from tests.proofs import run_in_folder

TIMES = 20
"""How many times as fast time passes."""
LEAD, HOUR = "15m", "60m"


def main() -> int:
    """0 when every alert did what it should."""
    parser = argparse.ArgumentParser(prog="python -m tests.live", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="ALERT", help="the episodes of these alerts alone")
    parser.add_argument(
        "--times", type=int, default=TIMES, help="how many times as fast time passes (default: %(default)s)"
    )
    parser.add_argument("--lead", default=LEAD, metavar="DURATION", help="until it is settled (default: %(default)s)")
    parser.add_argument(
        "--healthy", default=HOUR, metavar="DURATION", help="how long it is well at first (default: %(default)s)"
    )
    parser.add_argument("--write", action="store_true", help="put the table into docs/alerts.md")
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs and data")
    arguments = parser.parse_args()
    return run_in_folder("tests.live", lambda folder: _prove(folder, arguments), keep=arguments.keep)


def _prove(folder: Path, arguments: argparse.Namespace) -> int:
    unknown = sorted(set(arguments.only) - set(ALERTS))
    if unknown:
        raise UsageError(f"unknown alert {unknown[0]!r}, supported: {', '.join(ALERTS)}")
    prometheus, alertmanager = tools.prometheus_binary(), tools.alertmanager_binary()
    if prometheus is None or alertmanager is None:
        raise UsageError("prometheus or alertmanager not found: `python -m tests.tools` prepares them")
    sides, whole = (
        [each for each in episodes if not arguments.only or set(each.alerts) & set(arguments.only)]
        for episodes in (EPISODES, OF_ALL)
    )
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    with (
        live_stack(
            folder,
            times=arguments.times,
            prometheus=prometheus,
            alertmanager=alertmanager,
            emulated=EMULATED,
            listed_by_hand=LISTED_BY_HAND,
        ) as stack,
        Watch(stack) as watch,
    ):
        say("the stack runs")
        health = run_healthy_hour(stack, watch, lead=arguments.lead, length=arguments.healthy)
        say(f"healthy: {', '.join(health.fired)} fired; {', '.join(health.told) or 'nobody'} was called")
        outcomes = [*run_lanes(stack, watch, sides, say), *run_lanes(stack, watch, whole, say)]
        for outcome in outcomes:
            say(f"{outcome.alert}: muted {outcome.muted}, also {outcome.also}, {outcome.problems}")
        for failure in dict.fromkeys(watch.failures):
            say(failure)
    return 1 if health.problems or any(outcome.problems for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
