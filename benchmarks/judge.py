"""The judge on cutovers of known truth: false alarms, coverage, power and delay, beside other judges; and its speed.

Trials are kept under `.cache/judge`, so that an interrupted run goes on where it was. Seeds are fixed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks import _judge_experiments as experiments
from benchmarks import _judge_recordings as recordings
from benchmarks._judge_curves import draw_all
from benchmarks._judge_errors import errors_alone
from benchmarks._judge_guards import print_guards
from benchmarks._judge_memory import measure_memory
from benchmarks._judge_reuse import compare_left
from benchmarks._judge_speed import measure_speed
from benchmarks._judge_traces import compare_traces
from benchmarks._judge_trials import Trial, run_trials
from benchmarks._judge_worlds import WORLDS
from benchmarks._judge_worlds_tables import print_worlds

PICTURES: Final = Path(__file__).parent.parent / "docs" / "pictures"

_TABLES: Final[Sequence[tuple[str, Callable[[Sequence[Trial]], Iterator[str]]]]] = (
    ("False alarms of equal stacks, a day of watching", experiments.false_alarms),
    ("The same by hour of the day", experiments.by_hour),
    ("Coverage at every look of a day", experiments.coverage),
    ("False HEALTHY", experiments.false_health),
    ("Demanded and measured", experiments.demanded),
    ("Harms found within a day, with the delay in minutes", experiments.power),
    ("Equal stacks proven so, minutes", experiments.health),
    ("Confounders", experiments.confounded),
    ("Beside other judges", experiments.side_by_side),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this benchmark."""
    group = parser.add_argument_group("judge")
    group.add_argument("--speed", action="store_true", help="measure only how long a judgement takes, and its memory")
    group.add_argument(
        "--speed-days", type=int, nargs="+", default=(1, 7), metavar="DAYS", help="of the stage that is judged then"
    )
    group.add_argument(
        "--memory", type=int, nargs="+", metavar="DAYS", help="measure only the memory of judging runs of so many days"
    )
    group.add_argument("--record", action="store_true", help="record the emulated stacks that are not recorded yet")
    group.add_argument("--pasts", type=int, default=25, metavar="N", help="deployments' pasts (default: %(default)s)")
    group.add_argument(
        "--days", type=int, default=20, metavar="N",
        help="days of equal stacks for each share and past, a tenth of it of most harms (default: %(default)s)",
    )  # fmt: skip
    group.add_argument("--shares", type=float, nargs="+", default=experiments.SHARES, metavar="SHARE")
    group.add_argument(
        "--worlds", nargs="*", choices=[*WORLDS, "all"], metavar="NAME",
        help="judge so many --days of each of these worlds instead, a quarter of them with each harm, at 25 %% unless "
        "--shares says otherwise; "
        f"all of them by default: {', '.join(WORLDS)}",
    )  # fmt: skip
    group.add_argument(
        "--traces", type=Path, metavar="FOLDER", help="compare the worlds with the traces in a folder instead"
    )
    group.add_argument(
        "--guards",
        action="store_true",
        help="only what guards find, and withhold, on so many --days after each of --pasts",
    )
    group.add_argument("--rivals", action="store_true", help="with --worlds: other judges on the same requests, too")
    group.add_argument("--pictures", action="store_true", help="draw the curves into docs/pictures")


def run(arguments: argparse.Namespace) -> None:
    """Print the tables, in the form of docs/judge.md."""
    if arguments.memory:
        measure_memory(arguments.memory)
        return
    if arguments.speed:
        measure_speed(arguments.speed_days)
        return
    if arguments.traces is not None:
        print("\n".join([*compare_traces(arguments.traces), "", *compare_left(arguments.traces)]))
        return
    if arguments.guards:
        print_guards(arguments.pasts, arguments.days, arguments.shares)
        return
    if arguments.worlds is not None:
        names = [name for name in arguments.worlds if name != "all"] or list(WORLDS)
        shares = [0.25] if arguments.shares == experiments.SHARES else arguments.shares
        print_worlds([WORLDS[name] for name in names], arguments.days, shares, rivals=arguments.rivals)
        return
    if arguments.record:
        recordings.record_missing()
    print("## Five times the errors, in the published setting\n")
    print("\n".join(errors_alone()))
    trials = list(_trials(arguments))
    for title, table in _TABLES:
        print(f"\n## {title}\n")
        print("\n".join(table(trials)))
    recorded = [trial for each in recordings.recorded() for trial in recordings.run_recorded(*each)]
    if recorded:
        print("\n## False alarms on recordings\n")
        print("\n".join(experiments.recorded_alarms(recorded)))
    if arguments.pictures:
        draw_all(PICTURES, trials)


def _trials(arguments: argparse.Namespace) -> Iterator[Trial]:
    """Past by past over all shares, so that what is there after an interruption is balanced."""
    began = time.monotonic()
    for past in range(arguments.pasts):
        for share in arguments.shares:
            yield from run_trials(share, past, experiments.orders(share, arguments.days))
        print(f"past {past + 1} of {arguments.pasts}, {time.monotonic() - began:.0f} s", flush=True)
