"""The pictures of docs/judge.md, drawn from trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks._judge_experiments import (
    FIRST_TOKEN,
    MEANS,
    NO_HARM,
    SHARES,
    delay,
    exact_interval,
    healthy_at,
    of_share,
    quantile_of,
    rejected_at,
    undisturbed,
)
from benchmarks._judge_pictures import Axis, Points, draw_curves
from benchmarks._judge_rivals import RIVALS
from benchmarks._judge_trials import Trial

_HOURS = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 9.0, 12.0, 18.0, 24.0)
_RIVALRY_SHARE = 0.05
_SHARES_AXIS = Axis("", 0.0, 1.0, (0.0, 0.25, 0.5, 0.75, 1.0), percent=True)


def draw_all(folder: Path, trials: Sequence[Trial]) -> None:
    """Write every picture into a folder."""
    sizes = Axis("rise of v2's mean time to first token", 0.0, 0.5, (0, 0.05, 0.1, 0.15, 0.2, 0.5), percent=True)
    found = _named(_SHARES_AXIS, "days on which v2 is DEGRADED")
    power = {f"{share:.0%} share": _power(trials, share) for share in SHARES}
    draw_curves(folder / "judge-power.svg", "What is found within a day", sizes, found, power)

    late = Axis(
        "minutes until DEGRADED, p50 up to p90", 4.0, 1440.0, (5, 15, 30, 60, 120, 240, 480, 1440), logarithmic=True
    )
    some = Axis("rise of v2's mean time to first token", 0.045, 0.55, (0.05, 0.1, 0.15, 0.2, 0.5), True, percent=True)
    delays = {f"{share:.0%} share": _delays(trials, share) for share in SHARES}
    draw_curves(folder / "judge-delay.svg", "How soon a slower v2 is DEGRADED", some, late, delays)

    hours = Axis("hours since the stage began", 0.25, 24.0, _HOURS, logarithmic=True)
    proven = _named(_SHARES_AXIS, "equal stacks proven within 10 %")
    health = {f"{share:.0%} share": _health(trials, share) for share in SHARES}
    draw_curves(folder / "judge-healthy.svg", "How soon an equal time to first token is proven", hours, proven, health)

    wrong = _named(_SHARES_AXIS, "equal stacks rejected")
    rivalry = {judge: _false_alarms(trials, judge) for judge in ("servescope", *RIVALS)}
    draw_curves(
        folder / "judge-false-alarms.svg", "False alarms while two equal stacks are watched, v2 at 5 %", hours, wrong,
        rivalry, target=0.05,
    )  # fmt: skip


def _named(axis: Axis, label: str) -> Axis:
    return Axis(label, axis.low, axis.high, axis.ticks, axis.logarithmic, axis.percent)


def _power(trials: Sequence[Trial], share: float) -> Points:
    points = []
    for harm in (NO_HARM, *MEANS):
        times = [delay(each) for each in of_share(undisturbed(trials, harm), share)]
        if times:
            points.append(_share_of(harm.size, times, math.inf))
    return points


def _delays(trials: Sequence[Trial], share: float) -> Points:
    points = []
    for harm in MEANS[1:]:
        times = [delay(each) for each in of_share(undisturbed(trials, harm), share)]
        middle, most = quantile_of(times, 0.5), quantile_of(times, 0.9)
        if times and middle < math.inf:
            points.append((harm.size, middle, middle, most))
    return points


def _health(trials: Sequence[Trial], share: float) -> Points:
    times = [healthy_at(each, FIRST_TOKEN) for each in of_share(undisturbed(trials, NO_HARM), share)]
    return [_share_of(hour, times, hour * 60 + 1e-9) for hour in _HOURS] if times else []


def _false_alarms(trials: Sequence[Trial], judge: str) -> Points:
    equal = [each for each in of_share(undisturbed(trials, NO_HARM), _RIVALRY_SHARE) if each.rivals]
    times = [rejected_at(each, judge) for each in equal]
    return [_share_of(hour, times, hour * 60 + 1e-9) for hour in _HOURS] if times else []


def _share_of(at: float, times: Sequence[float], before: float) -> tuple[float, float, float, float]:
    """How many of the times are before one, with the exact interval."""
    count = sum(each < before for each in times)
    return (at, count / len(times), *exact_interval(count, len(times)))
