"""Which trials show what the judge is to be proven of, and the tables that say what they showed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np

from benchmarks._judge_recordings import RecordedTrial
from benchmarks._judge_rivals import RIVALS
from benchmarks._judge_traffic import REPLICAS, Confounder, Harm, HarmKind
from benchmarks._judge_trials import PLAIN, Order, Trial, true_cost
from servescope.contract.judged import DEFAULT_MARGIN
from servescope.cutover.forecast.self_test import clopper_pearson

_T = TypeVar("_T")

SHARES: Final = tuple(REPLICAS)
FIRST_TOKEN: Final = "time_to_first_token_seconds"
ERRORS: Final = "request_error_share"
SPEED: Final = "tps_per_request"

NO_HARM: Final = Harm()
MEANS: Final = tuple(Harm("mean", size) for size in (0.02, 0.05, 0.10, 0.15, 0.20, 0.50))
AT_MARGIN, BEYOND_MARGIN = Harm("mean", DEFAULT_MARGIN), Harm("mean", 1.5 * DEFAULT_MARGIN)
SLOWER: Final = tuple(Harm("tps", 1 - 1 / (1 + size)) for size in (0.10, 0.15, 0.20))
ERRING: Final = tuple(Harm("errors", factor - 1) for factor in (1.5, 2.0, 3.0, 5.0, 10.0))
SHAPES: Final = (
    Harm("tail", 0.10), Harm("tail", 0.20), Harm("tail", 0.344), Harm("bimodal", 0.20), Harm("one pod", 0.20),
    Harm("drift", 0.01), Harm("step", 0.20, hour=3.0), Harm("step", 0.20, hour=9.0), Harm("step", 0.50, hour=9.0),
)  # fmt: skip
RIVALLED: Final = (NO_HARM, Harm("mean", 0.10), Harm("mean", 0.20), Harm("mean", 0.50), Harm("errors", 4.0))
CONFOUNDERS: Final = (
    *(Confounder(mix_distance=distance) for distance in (0.02, 0.05, 0.10, 0.20)),
    *(Confounder(warm_up_minutes=minutes) for minutes in (10.0, 20.0, 60.0)),
    Confounder(replicas_factor=3), Confounder(saturated=("v2",)), Confounder(saturated=("v1", "v2")),
)  # fmt: skip
CONFOUNDED_SHARE: Final = 0.25

DEMANDED: Final[Mapping[tuple[HarmKind, float], tuple[str, Mapping[float, float]]]] = {
    ("mean", 0.20): ("p90", {0.01: 240, 0.05: 90, 0.25: 60}),
    ("mean", 0.50): ("p90", {0.01: 90, 0.05: 30, 0.25: 20}),
    ("errors", 4.0): ("p50", {0.01: 150, 0.05: 40, 0.25: 15}),
}
"""The delays in minutes that are demanded, of which quantile, by harm and share."""
DEMANDED_HEALTHY: Final[Mapping[float, float]] = {0.01: 240, 0.05: 100, 0.25: 60}
"""The median minutes until the first token's time is proven equal."""


def orders(share: float, days: int) -> list[Order]:
    """The trials of one past: `days` of each question that needs most, a part of it of the others."""
    some, few = max(1, days // 2), max(1, days // 10)
    listed = [
        Order(few, RIVALLED, rivals=True),
        Order(days, (NO_HARM,)),
        Order(some, (AT_MARGIN, BEYOND_MARGIN)),
        Order(few, (*MEANS, *ERRING, *SLOWER, *SHAPES)),
    ]
    if share == CONFOUNDED_SHARE:
        listed += [Order(max(1, few // 2), (NO_HARM, Harm("mean", 0.20)), each) for each in CONFOUNDERS]
    return listed


# --- Tables -----------------------------------------------------------------------------------------------------------


def false_alarms(trials: Sequence[Trial]) -> Iterator[str]:
    """A/A: how often a day of watching two equal stacks ends in DEGRADED, over all metrics together."""
    yield from table_head("share", "days", "pasts", "false DEGRADED", "95 % interval", "clustered by past", "of which")
    equal = undisturbed(trials, NO_HARM)
    for name, chosen in (*((f"{share:.0%}", of_share(equal, share)) for share in SHARES), ("all", equal)):
        if chosen:
            wrong = [trial for trial in chosen if trial.degraded is not None]
            causes = ", ".join(sorted({trial.cause.split(":")[0] for trial in wrong})) or "–"
            yield table_row(
                name, len(chosen), len({trial.past for trial in chosen}), percent(len(wrong), len(chosen)),
                interval(len(wrong), len(chosen)),
                clustered(chosen, lambda trial: trial.past, lambda trial: trial.degraded is not None), causes,
            )  # fmt: skip


def by_hour(trials: Sequence[Trial]) -> Iterator[str]:
    """A/A by the hour of the day at which the stage began, and at which it was DEGRADED first."""
    yield from table_head("hour of day (UTC)", "stages begun", "false DEGRADED of those", "false DEGRADED in that hour")
    equal = undisturbed(trials, NO_HARM)
    for hour in range(0, 24, 3):
        begun = [trial for trial in equal if hour <= trial.hour < hour + 3]
        wrong = sum(trial.degraded is not None for trial in begun)
        then = sum(
            trial.degraded is not None and hour <= (trial.hour + trial.degraded / 60) % 24 < hour + 3 for trial in equal
        )
        yield table_row(f"{hour:02d}–{hour + 3:02d}", len(begun), wrong, then)


def coverage(trials: Sequence[Trial]) -> Iterator[str]:
    """How often an interval holds the truth at every one of a day's 288 looks."""
    yield from table_head("metric", *(f"{share:.0%}" for share in SHARES), "all", "lower 95 % limit")
    # One day with another harm is the same day for the metrics that the harm leaves alone: each truth counts once.
    days: dict[tuple[str, float], dict[tuple[int, int, float, str], bool]] = {}
    for trial in trials:
        for metric, each in trial.metrics.items() if trial.confounder == PLAIN else ():
            truth = true_cost(trial.harm, metric)
            if truth is not None:
                held = each.missed_low is None and each.missed_high is None
                kind = trial.harm.kind if truth else "none"
                days.setdefault((metric, trial.share), {})[trial.past, trial.seed, truth, kind] = held
    for metric in dict.fromkeys(name for name, _ in days):
        by_share = [list(days.get((metric, share), {}).values()) for share in SHARES]
        total, kept = sum(map(len, by_share)), sum(map(sum, by_share))
        low, _ = exact_interval(kept, total)
        cells = [percent(sum(each), len(each)) for each in by_share]
        yield table_row(f"`{metric}`", *cells, f"{percent(kept, total)} of {total}", f"{low:.1%}")


def false_health(trials: Sequence[Trial]) -> Iterator[str]:
    """How often a stack at the margin, or beyond, is HEALTHY at any time of a day."""
    yield from table_head(
        "true effect", "share", "days", "metric ever HEALTHY", "95 % interval", "whole verdict ever HEALTHY"
    )
    rows = (
        ("TTFT +10 % (margin)", AT_MARGIN, FIRST_TOKEN), ("TTFT +15 % (1.5 ×)", BEYOND_MARGIN, FIRST_TOKEN),
        ("errors × 2 (margin)", ERRING[1], ERRORS), ("errors × 3 (1.5 ×)", ERRING[2], ERRORS),
        ("TPS ÷ 1.10 (margin)", SLOWER[0], SPEED), ("TPS ÷ 1.15 (1.5 ×)", SLOWER[1], SPEED),
    )  # fmt: skip
    for name, harm, metric in rows:
        harmed = undisturbed(trials, harm)
        for share, chosen in (*((f"{share:.0%}", of_share(harmed, share)) for share in SHARES), ("all", harmed)):
            if chosen:
                wrong = sum(trial.metrics[metric].healthy is not None for trial in chosen)
                whole = sum(trial.healthy is not None for trial in chosen)
                yield table_row(
                    name, share, len(chosen), percent(wrong, len(chosen)), interval(wrong, len(chosen)),
                    percent(whole, len(chosen)),
                )  # fmt: skip


def power(trials: Sequence[Trial]) -> Iterator[str]:
    """How many of each harm are DEGRADED within the day, and after how long."""
    cells = [f"{share:.0%}: found, p50 / p90" for share in SHARES]
    yield from table_head("harm in v2", *cells)
    for harm in (*MEANS, *ERRING, *SLOWER, *SHAPES):
        harmed = undisturbed(trials, harm)
        row = []
        for share in SHARES:
            delays = [delay(trial) for trial in of_share(harmed, share)]
            found = percent(sum(each < math.inf for each in delays), len(delays))
            row.append(f"{found}, {minutes(delays, 0.5)} / {minutes(delays, 0.9)}" if delays else "–")
        yield table_row(spell(harm), *row)


def demanded(trials: Sequence[Trial]) -> Iterator[str]:
    """The delays that docs/judge-method.md demands, and what was measured: of all stages, and of those begun by day."""
    yield from table_head("what", "share", "demanded, min", "begun at any hour, min", "begun by day, min", "met by day")
    for (kind, size), (quantile, limits) in DEMANDED.items():
        harmed = undisturbed(trials, Harm(kind, size))
        what = f"{spell(Harm(kind, size))} DEGRADED, {quantile}"
        for share, limit in limits.items():
            yield table_row(what, f"{share:.0%}", *_delays(of_share(harmed, share), delay, quantile, limit))
    equal = undisturbed(trials, NO_HARM)
    for share, limit in DEMANDED_HEALTHY.items():
        found = _delays(of_share(equal, share), lambda trial: healthy_at(trial, FIRST_TOKEN), "p50", limit)
        yield table_row("TTFT HEALTHY when equal, p50", f"{share:.0%}", *found)


def _delays(
    trials: Sequence[Trial], delay_of: Callable[[Trial], float], quantile: str, limit: float
) -> tuple[str, str, str, str]:
    """The limit, the quantile of all delays and of those by day, and whether the latter is within the limit."""
    part = 0.9 if quantile == "p90" else 0.5
    # From 00 to 09 the generator's load is at least its mean, and stays so for the three hours that follow.
    everything, by_day = (
        quantile_of([delay_of(trial) for trial in chosen], part)
        for chosen in (trials, [trial for trial in trials if trial.hour < 9])
    )
    met = "yes" if by_day <= limit else "**no**"
    return f"≤ {limit:g}", spell_minutes(everything), spell_minutes(by_day), met


def health(trials: Sequence[Trial]) -> Iterator[str]:
    """When equal stacks are proven so: metric by metric, and all required ones together."""
    yield from table_head("metric", *(f"{share:.0%}: proven in a day, p50 / p90" for share in SHARES))
    equal = undisturbed(trials, NO_HARM)
    for metric in dict.fromkeys(name for trial in equal for name in trial.metrics):
        times = {share: [healthy_at(each, metric) for each in of_share(equal, share)] for share in SHARES}
        yield table_row(f"`{metric}`", *(_proven(times[share]) for share in SHARES))
    times = {
        share: [math.inf if each.healthy is None else each.healthy for each in of_share(equal, share)]
        for share in SHARES
    }
    yield table_row("all required", *(_proven(times[share]) for share in SHARES))


def confounded(trials: Sequence[Trial]) -> Iterator[str]:
    """What becomes of equal stacks, and of one that is 20 % slower, while something else differs."""
    yield from table_head(
        "what differs", "days", "equal: DEGRADED", "equal: HEALTHY", "+20 %: DEGRADED", "+20 %: HEALTHY", "why"
    )
    for confounder in CONFOUNDERS:
        cells: list[object] = []
        why: dict[str, int] = {}
        count = 0
        for harm in (NO_HARM, Harm("mean", 0.20)):
            chosen = [trial for trial in trials if trial.harm == harm and trial.confounder == confounder]
            count = len(chosen)
            cells += [
                percent(sum(trial.degraded is not None for trial in chosen), count),
                percent(sum(trial.healthy is not None for trial in chosen), count),
            ]
            for trial in chosen if harm == NO_HARM else ():
                found = next(
                    (part for part in trial.cause.split("; ") if FIRST_TOKEN in part), trial.cause.split("; ")[0]
                )
                why[found] = why.get(found, 0) + 1
        usual = max(why, key=lambda each: why[each]) if why else "–"
        yield table_row(_spell_confounder(confounder), count, *cells, usual)


def side_by_side(trials: Sequence[Trial]) -> Iterator[str]:
    """Each judge on the same requests: rejections of an equal v2 in 3 and in 24 hours, misses, and delays."""
    yield from table_head(
        "share", "judge", "equal: 3 h", "equal: 24 h", *(f"{spell(harm)}: missed in 24 h, p50" for harm in RIVALLED[1:])
    )
    compared = [trial for trial in trials if trial.rivals and trial.confounder == PLAIN]
    for share in SHARES:
        for judge in ("servescope", *RIVALS):
            times = {
                harm: [rejected_at(each, judge) for each in of_share(compared, share) if each.harm == harm]
                for harm in RIVALLED
            }
            equal = times[NO_HARM]
            if not equal:
                continue
            cells = [
                percent(sum(each <= 180 for each in equal), len(equal)),
                percent(sum(each < math.inf for each in equal), len(equal)),
            ]
            for harm in RIVALLED[1:]:
                missed = percent(sum(each == math.inf for each in times[harm]), len(times[harm]))
                cells.append(f"{missed}, {minutes(times[harm], 0.5)}")
            yield table_row(f"{share:.0%}", judge, *cells)


def recorded_alarms(trials: Sequence[RecordedTrial]) -> Iterator[str]:
    """A/A on recordings of the emulated stack."""
    yield from table_head(
        "stacks", "recordings", "days", "false DEGRADED", "clustered by recording", "coverage", "of which"
    )
    groups = [
        ("3 of 12 replicas", [trial for trial in trials if trial.kind == "one" and trial.share == 0.25]),
        ("6 of 12 replicas", [trial for trial in trials if trial.kind == "one" and trial.share == 0.5]),
        ("two identical deployments", [trial for trial in trials if trial.kind == "two"]),
        ("all", list(trials)),
    ]
    for name, chosen in groups:
        if chosen:
            wrong = [trial for trial in chosen if trial.degraded is not None]
            intervals = [each for trial in chosen for each in trial.metrics.values()]
            held = sum(each.missed_low is None and each.missed_high is None for each in intervals)
            yield table_row(
                name, len({trial.recording for trial in chosen}), len(chosen), percent(len(wrong), len(chosen)),
                clustered(chosen, lambda trial: trial.recording, lambda trial: trial.degraded is not None),
                percent(held, len(intervals)), ", ".join(sorted({trial.cause for trial in wrong})) or "–",
            )  # fmt: skip


# --- Figures ----------------------------------------------------------------------------------------------------------


def exact_interval(count: int, total: int) -> tuple[float, float]:
    """The exact 95 % interval of a probability from so many of a total, of which there may be none."""
    return clopper_pearson(count, total) if total else (0.0, 1.0)


def clustered(trials: Sequence[_T], cluster: Callable[[_T], int], wrong: Callable[[_T], bool]) -> str:
    """A 95 % interval of a share of trials that depend on each other within a cluster, by drawing clusters anew."""
    groups: dict[int, list[bool]] = {}
    for trial in trials:
        groups.setdefault(cluster(trial), []).append(wrong(trial))
    counts = np.array([sum(each) for each in groups.values()])
    if not counts.sum():
        # None in any cluster: the rule of three over clusters is all that can be said without assuming independence.
        return f"≤ {1 - 0.05 ** (1 / len(groups)):.1%} of {len(groups)} clusters have one"
    sizes = np.array([len(each) for each in groups.values()])
    drawn = np.random.default_rng(4).integers(len(groups), size=(4000, len(groups)))
    low, high = np.quantile(counts[drawn].sum(axis=1) / sizes[drawn].sum(axis=1), [0.025, 0.975])
    return f"{low:.1%}–{high:.1%}"


def quantile_of(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of them does not exceed, infinite where it is never."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def minutes(values: Sequence[float], share: float) -> str:
    """A quantile of delays as it is written in a table."""
    return spell_minutes(quantile_of(values, share))


def spell(harm: Harm) -> str:
    """A harm as a table names it."""
    size = f"+{harm.size:.0%}"
    match harm.kind:
        case "errors":
            return f"errors × {1 + harm.size:g}"
        case "tps":
            return f"TPS ÷ {1 / (1 - harm.size):.2f}"
        case "drift":
            return f"TTFT {size} an hour"
        case "step":
            return f"TTFT {size} after {harm.hour:g} h"
        case "mean":
            return f"TTFT {size}"
        case _:
            return f"TTFT {size}, {harm.kind}"


def _spell_confounder(each: Confounder) -> str:
    if each.mix_distance:
        return f"prompts, total variation {each.mix_distance:.2f}"
    if each.warm_up_minutes:
        return f"v2 starts cold, 80 % slower, decays over {each.warm_up_minutes:g} min"
    if each.replicas_factor > 1:
        return f"v2 has {each.replicas_factor} × the replicas"
    return f"{' and '.join(each.saturated)} saturated"


def rejected_at(trial: Trial, judge: str) -> float:
    """Minutes until a judge rejected v2, infinite where it never did."""
    found = trial.degraded if judge == "servescope" else trial.rivals[judge]
    return math.inf if found is None else found


def delay(trial: Trial) -> float:
    """Minutes from the harm's beginning until DEGRADED, infinite where it was not found; one before it is false."""
    begun = trial.harm.hour * 60
    return math.inf if trial.degraded is None or trial.degraded <= begun else trial.degraded - begun


def healthy_at(trial: Trial, metric: str) -> float:
    """Minutes until a metric was HEALTHY first, infinite where it never was."""
    found = trial.metrics[metric].healthy
    return math.inf if found is None else found


def _proven(times: Sequence[float]) -> str:
    if not times:
        return "–"
    found = percent(sum(each < math.inf for each in times), len(times))
    return f"{found}, {minutes(times, 0.5)} / {minutes(times, 0.9)}"


def undisturbed(trials: Iterable[Trial], harm: Harm) -> list[Trial]:
    """The trials with this harm in which nothing else differs."""
    return [trial for trial in trials if trial.harm == harm and trial.confounder == PLAIN]


def of_share(trials: Iterable[Trial], share: float) -> list[Trial]:
    """The trials in which v2 has this share."""
    return [trial for trial in trials if trial.share == share]


def spell_minutes(value: float) -> str:
    """A delay as it is written in a table, – where there is none."""
    return "–" if not math.isfinite(value) else f"{value:.0f}"


def percent(count: int, total: int) -> str:
    """A share as it is written in a table, – of nothing."""
    return f"{count / total:.1%}" if total else "–"


def interval(count: int, total: int) -> str:
    """The exact 95 % interval of a share as it is written in a table."""
    low, high = exact_interval(count, total)
    return f"{low:.1%}–{high:.1%}"


def table_head(*names: str) -> Iterator[str]:
    """The first two lines of a table."""
    yield table_row(*names)
    yield table_row(*("---" for _ in names))


def table_row(*cells: object) -> str:
    """One line of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"
