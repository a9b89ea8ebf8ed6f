"""Trials of the judge, and of its rivals, in each world: false alarms, harms found, and what no verdict waits for."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from benchmarks._judge_experiments import (
    NO_HARM,
    delay,
    interval,
    minutes,
    percent,
    rejected_at,
    spell,
    table_head,
    table_row,
)
from benchmarks._judge_rivals import RIVALS
from benchmarks._judge_traffic import Harm, World
from benchmarks._judge_trials import Order, Trial, run_trials

DAYS_PER_PAST: Final = 4
"""Days after each of a deployment's pasts: few, as days of one past depend on each other."""
HARMS: Final = (NO_HARM, Harm("mean", 0.20), Harm("errors", 4.0), Harm("one pod", 0.50))
GROSS: Final = (Harm("mean", 4.0), Harm("mean", 9.0))
"""Harms that are due to be found while v2 is still warming."""


def world_trials(
    worlds: Iterable[World], days: int, share: float, *, harms: Sequence[Harm] = (NO_HARM,), rivals: bool = False
) -> Iterator[Trial]:
    """So many days of each world, each with every one of these harms; the same seeds in every world and run."""
    for world in worlds:
        for past in range(math.ceil(days / DAYS_PER_PAST)):
            left = min(DAYS_PER_PAST, days - past * DAYS_PER_PAST)
            yield from run_trials(share, past, [Order(left, tuple(harms), world.confounder, rivals)], world)


def print_worlds(worlds: Sequence[World], days: int, shares: Sequence[float], *, rivals: bool) -> None:
    """Run the worlds at each share and print their tables, in the form of docs/judge.md.

    Equal stacks have all of the days, harms a quarter of them.
    """
    for share in shares:
        harmed: list[Trial] = []
        equal: list[Trial] = []
        for world in worlds:
            began = time.process_time()
            harms = (*HARMS, *GROSS) if world.name == "fresh" else HARMS
            harmed += world_trials([world], math.ceil(days / 4), share, harms=harms, rivals=rivals)
            equal += world_trials([world], days, share, rivals=rivals)
            print(f"{world.name} at {share:.0%}: {time.process_time() - began:.0f} s of CPU", flush=True)
        print(f"\n## Worlds at {share:.0%}: equal stacks, a day of watching\n")
        print("\n".join(equal_stacks(worlds, equal)))
        print(f"\n## Worlds at {share:.0%}: harms found within a day, minutes p50 / p90\n")
        print("\n".join(harms_found(worlds, harmed)))
        for harm in HARMS if rivals else ():
            what = "equal stacks rejected" if harm == NO_HARM else f"{spell(harm)} found, median minutes"
            print(f"\n## Worlds at {share:.0%}, beside other judges: {what}\n")
            print("\n".join(beside_rivals(worlds, equal if harm == NO_HARM else harmed, harm)))


def equal_stacks(worlds: Iterable[World], trials: Sequence[Trial]) -> Iterator[str]:
    """False alarms, the time to HEALTHY, and the share of looks without a verdict by its cause."""
    yield from table_head(
        "world", "days", "false DEGRADED", "95 % interval", "of which", "HEALTHY, p50 / p90", "no verdict"
    )
    for world in worlds:
        equal = _of(trials, world, NO_HARM)
        wrong = [trial for trial in equal if trial.degraded is not None]
        healthy = [math.inf if trial.healthy is None else trial.healthy for trial in equal]
        yield table_row(
            world.title, len(equal), percent(len(wrong), len(equal)), interval(len(wrong), len(equal)),
            _most(trial.cause.split("; ")[0] for trial in wrong), _found(healthy), _waits(equal),
        )  # fmt: skip


def harms_found(worlds: Iterable[World], trials: Sequence[Trial]) -> Iterator[str]:
    """The share of days on which each harm is found, and how soon; on how many days one was HEALTHY, and before it."""
    harms = list(dict.fromkeys(trial.harm for trial in trials if trial.harm != NO_HARM))
    yield from table_head("world", *map(spell, harms))
    for world in worlds:
        yield table_row(world.title, *(_found_and_passed(_of(trials, world, harm)) for harm in harms))


def beside_rivals(worlds: Iterable[World], trials: Sequence[Trial], harm: Harm) -> Iterator[str]:
    """Each judge on the same requests: equal stacks rejected, ours with an interval, or harm found and its median."""
    judges = ("servescope", *RIVALS)
    yield from table_head("world", "days", *judges)
    for world in worlds:
        chosen = [trial for trial in _of(trials, world, harm) if trial.rivals]
        if not chosen:
            continue
        cells = []
        for judge in judges:
            times = [rejected_at(trial, judge) for trial in chosen]
            found = sum(each < math.inf for each in times)
            cell = percent(found, len(times))
            if harm != NO_HARM:
                cell += f", {minutes(times, 0.5)}"
            elif judge == "servescope":
                cell += f" ({interval(found, len(times))})"
            cells.append(cell)
        yield table_row(world.title, len(chosen), *cells)


def _of(trials: Iterable[Trial], world: World, harm: Harm) -> list[Trial]:
    return [trial for trial in trials if trial.world == world.name and trial.harm == harm]


def _found_and_passed(harmed: Sequence[Trial]) -> str:
    if not harmed:
        return ""
    found = _found([delay(trial) for trial in harmed])
    passed = [trial for trial in harmed if trial.healthy is not None]
    if not passed:
        return found
    before = sum((trial.healthy or math.inf) < (trial.degraded or math.inf) for trial in passed)
    return f"{found}; {len(passed)} HEALTHY, {before} before"


def _found(times: Sequence[float]) -> str:
    found = sum(each < math.inf for each in times) / len(times)
    return f"{found:.0%}, {minutes(times, 0.5)} / {minutes(times, 0.9)}"


def _most(causes: Iterable[str]) -> str:
    return ", ".join(f"{cause} ({count})" for cause, count in Counter(causes).most_common(2)) or "–"


def _waits(trials: Sequence[Trial]) -> str:
    """The commonest causes of no verdict, with their share of all looks."""
    total: dict[str, float] = {}
    for cause, share in (each for trial in trials for each in trial.looks.items()):
        total[cause] = total.get(cause, 0.0) + share / len(trials)
    shares = sorted(total.items(), key=lambda each: -each[1])[:3]
    return ", ".join(f"{cause} {share:.0%}" for cause, share in shares if share >= 0.005) or "–"
