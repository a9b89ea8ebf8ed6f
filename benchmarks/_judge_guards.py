"""What guards find of harm beyond speed and errors, how soon, and how often they withhold an equal v2 from HEALTHY."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Final

import numpy as np

from benchmarks._judge_experiments import NO_HARM, clustered, interval, percent, table_head, table_row
from benchmarks._judge_traffic import Harm
from benchmarks._judge_trials import Order, Trial, run_trials

HARMS: Final = {
    Harm("short", 0.5): "answers half as long",
    Harm("truncated", 0.1): "10 % of answers half as long",
    Harm("unended", 0.03): "3 % of requests never end",
    Harm("left", 0.03): "3 % counted as left by their clients",
    Harm("gpus", 2.0): "twice the GPUs for a token",
    Harm("slowest", 0.01): "1 % five times slower",
    Harm("restarts", 6.0): "six restarts a day of each replica",
    Harm("creep", 0.03): "caches fill by 3 % an hour",
}


def print_guards(pasts: int, days: int, shares: Sequence[float]) -> None:
    """Both tables, of so many days after each past."""
    orders = [Order(days, (NO_HARM, *HARMS))]
    places = [(share, past, orders) for past in range(pasts) for share in shares]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        trials = [trial for found in pool.map(_run, places) for trial in found]
    print("\n## Equal stacks that a guard withheld from HEALTHY within a day\n")
    print("\n".join(_withheld(trials, shares)))
    print("\n## Harm that guards are for, within a day\n")
    print("\n".join(_found(trials, shares)))


def _run(place: tuple[float, int, list[Order]]) -> list[Trial]:
    return list(run_trials(*place))


def _withheld(trials: Sequence[Trial], shares: Sequence[float]) -> Iterator[str]:
    yield from table_head(
        "share", "days", "withheld", "95 % interval", "clustered by past", "DEGRADED", "ever HEALTHY", "by"
    )
    equal = [trial for trial in trials if trial.harm == NO_HARM]
    for name, chosen in (*((f"{share:.0%}", [each for each in equal if each.share == share]) for share in shares),
                         ("all", equal)):  # fmt: skip
        wrong = [trial for trial in chosen if trial.guards]
        by = sorted({guard for trial in wrong for guard in trial.guards})
        yield table_row(
            name, len(chosen), percent(len(wrong), len(chosen)), interval(len(wrong), len(chosen)),
            clustered(chosen, lambda trial: trial.past, lambda trial: bool(trial.guards)),
            percent(sum(each.degraded is not None for each in chosen), len(chosen)),
            percent(sum(each.healthy is not None for each in chosen), len(chosen)), ", ".join(by) or "–",
        )  # fmt: skip


def _found(trials: Sequence[Trial], shares: Sequence[float]) -> Iterator[str]:
    yield from table_head("harm", "share", "days", "not HEALTHY at the end", "seen", "p50, min", "p90, min", "by")
    for harm, title in HARMS.items():
        for share in shares:
            chosen = [each for each in trials if each.harm == harm and each.share == share]
            if not chosen:
                continue
            seen = [_first(each) for each in chosen]
            known = [each for each in seen if each is not None]
            delays = [np.inf if each is None else each for each in seen]
            middle, late = (float(np.quantile(delays, part, method="higher")) for part in (0.5, 0.9))
            by = sorted({guard for trial in chosen for guard in trial.guards})
            kept = sum(each.last != "HEALTHY" for each in chosen)
            waits = [f"{each:.0f}" if np.isfinite(each) else "–" for each in (middle, late)]
            yield table_row(
                title, f"{share:.0%}", len(chosen), percent(kept, len(chosen)), percent(len(known), len(chosen)),
                *waits, ", ".join(by),
            )  # fmt: skip


def _first(trial: Trial) -> float | None:
    """When it was seen first, by a guard or as harm of what is required."""
    found = [each for each in (trial.degraded, *trial.guards.values()) if each is not None]
    return min(found) if found else None
