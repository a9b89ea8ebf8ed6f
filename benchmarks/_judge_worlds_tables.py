"""Trials of the judge, and of its rivals, in each world: false alarms, harms found, and what no verdict waits for."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from benchmarks._judge_experiments import NO_HARM, clopper_pearson, delay, minutes, quantile_of, rejected_at, spell
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

    Equal stacks have all of the days, harms and rivals a quarter of them.
    """
    for share in shares:
        harmed: list[Trial] = []
        equal: list[Trial] = []
        for world in worlds:
            began = time.process_time()
            harms = (*HARMS, *GROSS) if world.name == "fresh" else HARMS
            harmed += world_trials([world], math.ceil(days / 4), share, harms=harms, rivals=rivals)
            equal += world_trials([world], days, share)
            print(f"{world.name} at {share:.0%}: {time.process_time() - began:.0f} s of CPU", flush=True)
        print(f"\n## Worlds at {share:.0%}: equal stacks, a day of watching\n")
        print("\n".join(equal_stacks(worlds, equal)))
        print(f"\n## Worlds at {share:.0%}: harms found within a day, minutes p50 / p90\n")
        print("\n".join(harms_found(worlds, harmed)))
        for harm in HARMS if rivals else ():
            what = "equal stacks rejected" if harm == NO_HARM else f"{spell(harm)} found, median minutes"
            print(f"\n## Worlds at {share:.0%}, beside other judges: {what}\n")
            print("\n".join(beside_rivals(worlds, harmed, harm)))


def equal_stacks(worlds: Iterable[World], trials: Sequence[Trial]) -> Iterator[str]:
    """False alarms, the time to HEALTHY, and the share of looks without a verdict by its cause."""
    yield from _head("world", "days", "false DEGRADED", "95 % interval", "of which", "HEALTHY, p50 / p90", "no verdict")
    for world in worlds:
        equal = _of(trials, world, NO_HARM)
        wrong = [trial for trial in equal if trial.degraded is not None]
        low, high = clopper_pearson(len(wrong), len(equal))
        healthy = [math.inf if trial.healthy is None else trial.healthy for trial in equal]
        yield _row(
            world.title, len(equal), f"{len(wrong) / len(equal):.1%}", f"{low:.1%}–{high:.1%}",
            _most(trial.cause.split("; ")[0] for trial in wrong), _found(healthy), _waits(equal),
        )  # fmt: skip


def harms_found(worlds: Iterable[World], trials: Sequence[Trial]) -> Iterator[str]:
    """The share of days on which each harm is found, and how soon; on how many days a look was HEALTHY all the same."""
    harms = list(dict.fromkeys(trial.harm for trial in trials if trial.harm != NO_HARM))
    yield from _head("world", *map(spell, harms))
    for world in worlds:
        cells = []
        for harm in harms:
            chosen = _of(trials, world, harm)
            passed = sum(trial.healthy is not None for trial in chosen)
            cells.append(
                _found([delay(trial) for trial in chosen]) + (f"; {passed} HEALTHY" if passed else "") if chosen else ""
            )
        yield _row(world.title, *cells)


def beside_rivals(worlds: Iterable[World], trials: Sequence[Trial], harm: Harm) -> Iterator[str]:
    """Each judge on the same requests: rejections of equal stacks, or of harmed ones with the median delay."""
    judges = ("servescope", *RIVALS)
    yield from _head("world", "days", *judges)
    for world in worlds:
        chosen = [trial for trial in _of(trials, world, harm) if trial.rivals]
        if not chosen:
            continue
        cells = []
        for judge in judges:
            times = [rejected_at(trial, judge) for trial in chosen]
            rejected = f"{sum(each < math.inf for each in times) / len(times):.1%}"
            cells.append(rejected if harm == NO_HARM else f"{rejected}, {minutes(times, 0.5)}")
        yield _row(world.title, len(chosen), *cells)


def _of(trials: Iterable[Trial], world: World, harm: Harm) -> list[Trial]:
    return [trial for trial in trials if trial.world == world.name and trial.harm == harm]


def _found(times: Sequence[float]) -> str:
    found = sum(each < math.inf for each in times) / len(times)
    return f"{found:.0%}, {minutes(times, 0.5)} / {_spelled(quantile_of(times, 0.9))}"


def _spelled(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "–"


def _most(causes: Iterable[str]) -> str:
    counted: dict[str, int] = {}
    for cause in causes:
        counted[cause] = counted.get(cause, 0) + 1
    most = sorted(counted.items(), key=lambda each: -each[1])[:2]
    return ", ".join(f"{cause} ({count})" for cause, count in most) or "–"


def _waits(trials: Sequence[Trial]) -> str:
    """The commonest causes of no verdict, with their share of all looks."""
    total: dict[str, float] = {}
    for trial in trials:
        for cause, share in trial.looks.items():
            total[cause] = total.get(cause, 0.0) + share / len(trials)
    most = sorted(total.items(), key=lambda each: -each[1])[:3]
    return ", ".join(f"{cause} {share:.0%}" for cause, share in most if share >= 0.005) or "–"


def _head(*names: str) -> Iterator[str]:
    yield _row(*names)
    yield _row(*("---" for _ in names))


def _row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"
