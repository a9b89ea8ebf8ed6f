"""The alerts on error budgets: two for each objective, one for a fast and one for a slow burn."""

from __future__ import annotations

from typing import Final

from servescope.alerting.requests.violations import violation_runbook
from servescope.alerting.rules import records
from servescope.alerting.rules.choices import Choices, bound, in_words
from servescope.contract.bounds import ALL_BAD, ALL_BAD_REQUESTS, BAD_REQUESTS
from servescope.contract.objectives import BURN_WINDOWS
from servescope.contract.types import BurnWindow, Objective

_FIGURES: Final = {
    "time_to_first_token": "time_to_first_token_p95",
    "time_per_output_token": "time_per_output_token_p95",
    "inter_token_latency": "inter_token_latency_p95",
    "requests": "request_error_share",
}
_ENOUGH: Final = bound(BAD_REQUESTS)
_ALL: Final = bound(ALL_BAD_REQUESTS)


def objective_alerts(choices: Choices) -> tuple[records.Alert, ...]:
    """The alerts on the budgets of the chosen objectives."""
    return tuple(
        _burn_alert(each, severity) for each in choices.objectives.values() for severity in ("critical", "warning")
    )


def _burn_alert(objective: Objective, severity: str) -> records.Alert:
    rows = [row for row in BURN_WINDOWS if row.severity == severity]
    camel = "".join(word.capitalize() for word in objective.name.split("_"))
    is_fast = severity == "critical"
    shown = " or ".join(in_words(row.short) for row in rows)
    return records.Alert(
        f"Servescope{camel}Budget{'BurnsFast' if is_fast else 'Burns'}",
        "critical" if is_fast else "warning", "slo", f"slo-{objective.name.replace('_', '-')}",
        records.Any(tuple(_burns(objective, row) for row in rows)),
        f"{objective.title}: the error budget is burning {'fast' if is_fast else 'too fast'}.",
        f"{records.PERCENT} of the {objective.counts} of {records.WHO} within the last {shown} "
        f"violated the objective: {_promised(objective)}.",
        violation_runbook(objective, rows, is_fast=is_fast),
        "requests", _FIGURES[objective.name], for_="2m" if is_fast else "15m", keep_firing_for="10m",
        waits_less="both windows must burn, the longer one for an hour or more" if is_fast else "",
    )  # fmt: skip


def _burns(objective: Objective, window: BurnWindow) -> records.Condition:
    """The error budget burns more than `factor` times too fast over both windows, by more than a few requests."""
    return records.All((
        # The value that is shown is of now: at the crossing, the longer window is full of what was well before.
        _is_above(objective, window.short, window.factor),
        _is_above(objective, window.long, window.factor),
        _are_not_few(objective, window.long),
    ))  # fmt: skip


def _is_above(objective: Objective, window: str, factor: float) -> records.Condition:
    budget = records.Scaled(records.Budget(objective, window), factor)
    limit = budget if objective.others else round(factor * objective.budget, 12)
    return records.Compare(records.BadRatio(objective, window), ">", limit)


def _promised(objective: Objective) -> str:
    """What a deployment is promised, as a template."""
    cases: list[str] = []
    for other in objective.others:
        where = " ".join(f'(eq $labels.{label} "{value}")' for label, (value,) in other.where)
        cases.append(f"{{{{ {'else ' if cases else ''}if and {where} }}}}{other.promise}")
    return f"{''.join(cases)}{{{{ else }}}}{objective.promise}{{{{ end }}}}" if cases else objective.promise


def _are_not_few(objective: Objective, window: str) -> records.Condition:
    """Enough requests were bad over the window, or all there were: on a quiet night one among few would page."""
    ended = records.RequestsEnded(window)
    bad = records.Product(records.BadRatio(objective, window), ended)
    return records.Any((
        records.Compare(bad, ">=", _ENOUGH),
        records.All((records.Compare(bad, ">=", _ALL), records.Compare(bad, ">=", records.Scaled(ended, ALL_BAD)))),
    ))  # fmt: skip
