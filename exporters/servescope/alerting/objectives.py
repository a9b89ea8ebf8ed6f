"""The alerts on error budgets: two for each objective, one for a fast and one for a slow burn."""

from __future__ import annotations

from typing import Final

from servescope.alerting.choices import Choices
from servescope.alerting.evaluation import duration_ms
from servescope.alerting.records import (
    PERCENT,
    WHO,
    Alert,
    All,
    Any,
    Badness,
    Compare,
    Condition,
    Over,
    Runbook,
    Shown,
)
from servescope.contract.bounds import REQUEST_TRAFFIC
from servescope.contract.objectives import BURN_WINDOWS
from servescope.contract.types import BurnWindow, Objective

_LONGEST_TRAFFIC: Final = "6h"
_FIGURES: Final = {
    "time_to_first_token": "time_to_first_token_p95",
    "time_per_output_token": "time_per_output_token_p95",
    "requests": "request_error_share",
}


def objective_alerts(choices: Choices) -> tuple[Alert, ...]:
    """The alerts on the budgets of the chosen objectives."""
    return tuple(
        _burn_alert(choices, each, severity)
        for each in choices.objectives.values()
        for severity in ("critical", "warning")
    )


def _burn_alert(choices: Choices, objective: Objective, severity: str) -> Alert:
    rows = [row for row in BURN_WINDOWS if row.severity == severity]
    camel = "".join(word.capitalize() for word in objective.name.split("_"))
    is_fast = severity == "critical"
    burn_rates = " or ".join(f"above {row.factor:g} over {row.long} and {row.short}" for row in rows)
    budget = f"{objective.budget * 100:.6g}%"
    floor = choices.number(REQUEST_TRAFFIC.name)
    return Alert(
        f"Servescope{camel}Budget{'BurnsFast' if is_fast else 'Burns'}",
        "critical" if is_fast else "warning", "slo", f"slo-{objective.name.replace('_', '-')}",
        Any(tuple(_burns(objective, row, _traffic_over(row, floor)) for row in rows)),
        f"{objective.title}: the error budget is burning {'fast' if is_fast else 'too fast'}.",
        f"{PERCENT} of the requests of {WHO} violate the objective: {objective.promise}.",
        Runbook(
            f"The objective is that {objective.promise}. The error budget of {budget} over 30 days burns too "
            f"fast: its burn rate is {burn_rates}.",
            "Users are affected now." if is_fast else "Some users are affected; the budget runs out within the month.",
            "Compare the replicas: is it one, or all? Check the last change, the queue and the KV cache usage.",
            "Roll back the last change; remove a bad replica; add replicas if requests queue.",
            "A new share of requests that are slow by nature, such as very long prompts. A few bad requests among few: "
            f"the alert needs {floor:g} requests per second on average over the longer window, at most 6 hours of it.",
        ),
        "requests", _FIGURES[objective.name], wait="2m" if is_fast else "15m", keep="10m",
        waits_less="both windows must burn, the longer one for an hour or more" if is_fast else "",
    )  # fmt: skip


def _traffic_over(row: BurnWindow, floor: float) -> Condition:
    """Enough requests over the row's longer window, at most over the six hours for which past figures are kept.

    Without it a single bad request among a few in an idle night would page.
    """
    window = min(row.long, _LONGEST_TRAFFIC, key=duration_ms)
    return Compare(Over("avg", Shown("request_rate"), window), ">=", floor)


def _burns(objective: Objective, window: BurnWindow, traffic: Condition) -> Condition:
    """The burn rate of the objective's error budget is above `factor` over both windows."""
    bound = round(window.factor * objective.budget, 12)
    return All((
        Compare(Badness(objective, window.long), ">", bound),
        Compare(Badness(objective, window.short), ">", bound),
        traffic,
    ))  # fmt: skip
