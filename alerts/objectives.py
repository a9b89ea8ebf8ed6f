"""The recording rules of objectives: their bad shares over windows of up to three days, at the cost of an hour.

Counters are read over an hour at most. What increased within five minutes is recorded once a minute, and windows of
more than an hour sum what was recorded: for days of two hundred replicas that is thousands of samples in place of many
millions. There what happened within the last five minutes counts in part, which would delay a page on the short ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from alerts.options import DEFAULTS, Options
from dashboards.options import seconds
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.contract.objectives import (
    BASE_WINDOW,
    BURN_WINDOWS,
    ENDED,
    LONGEST_READ,
    OBJECTIVES_INTERVAL,
    record_ended,
)
from servescope.contract.types import Objective


def objective_group(options: Options = DEFAULTS, *, interval: str = OBJECTIVES_INTERVAL) -> dict[str, Any]:
    """The group of the objectives' bad shares, and of the requests that ended; its rules depend on those before."""
    windows = dict.fromkeys(window for row in BURN_WINDOWS for window in (row.short, row.long))
    objectives = options.choices.objectives
    rules = {
        name: expression
        for objective in objectives.values()
        for name, expression in _rules_of(objective, windows, options)
    }
    # Every request is in as many evaluations as there are within the base window.
    evaluations = round(seconds(BASE_WINDOW) / seconds(interval))
    ended = objectives["requests"].record_all(BASE_WINDOW)
    for window in dict.fromkeys(row.long for row in BURN_WINDOWS):
        is_read = seconds(window) <= seconds(LONGEST_READ)
        counted = options.compile(ENDED, window=window, by=DEPLOYMENT_LABELS)
        rules[record_ended(window)] = (
            counted if is_read else f"sum_over_time({options.recorded(ended)}[{window}]) / {evaluations}"
        )
    return {
        "name": "servescope-objectives",
        "interval": interval,
        "rules": [{"record": name, "expr": expression} for name, expression in rules.items()],
    }


def _rules_of(objective: Objective, windows: dict[str, None], options: Options) -> Iterator[tuple[str, str]]:
    share, count = objective.record(BASE_WINDOW), objective.record_all(BASE_WINDOW)
    bad = objective.record_bad(BASE_WINDOW)
    yield share, _bad(objective, BASE_WINDOW, options)
    yield count, options.compile(objective.all, window=BASE_WINDOW, by=DEPLOYMENT_LABELS)
    recorded_bad, recorded_count = map(options.recorded, (bad, count))
    yield bad, f"{options.recorded(share)} * {recorded_count}"
    for window in windows:
        summed = f"sum_over_time({recorded_bad}[{window}]) / (sum_over_time({recorded_count}[{window}]) > 0)"
        if window != BASE_WINDOW:
            is_read = seconds(window) <= seconds(LONGEST_READ)
            yield objective.record(window), _bad(objective, window, options) if is_read else summed
    # The budgets of one file's deployments are on boards that are written with another file.
    if objective.others or options.covers:
        # Of every deployment that any window has: the longest one does.
        known = objective.record(max(windows, key=seconds))
        budgets = (
            f"{each.budget} + 0 * {options.recorded(known, each.where)}" for each in (*objective.others, objective)
        )
        yield objective.record_budget, options.expression(" or ".join(budgets))


def _bad(objective: Objective, window: str, options: Options) -> str:
    """The bad share of every deployment, by the first of the `others` that is about it."""
    others = objective.others if any(each.bad != objective.bad for each in objective.others) else ()
    shares = [
        options.compile(each.bad, window=window, by=DEPLOYMENT_LABELS, where=each.where)
        for each in (*others, objective)
    ]
    return " or ".join(f"({share})" for share in shares) if others else shares[0]
