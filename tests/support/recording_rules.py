"""The recording rules that are to be written, each with the expression of the catalog that it records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from alerts.__main__ import FILES
from servescope.alerting.rules.promises import objectives_of
from servescope.contract.expressions import Difference, Expression, FractionAbove, Increase, Rate, Ratio
from servescope.contract.figures import FIGURES, RECORDED_HISTOGRAMS, record_buckets
from servescope.contract.objectives import BASE_WINDOW, BURN_WINDOWS, ENDED, record_ended
from servescope.contract.samples import format_edge
from servescope.contract.types import DEFAULT_WINDOW, Objective
from tests.support.alert_stories import minutes

WITHOUT_COLLECTOR = "without-collector.rules.yml"
RECORDING_FILES = tuple(name for name in FILES if name not in ("alerting.rules.yml", WITHOUT_COLLECTOR))
"""Those of the catalog's expressions; what is recorded in place of a collector's series is none."""


def is_of_catalog(rule: Mapping[str, Any]) -> bool:
    """Whether a recording rule records an expression of the catalog: the others are about targets."""
    return str(rule.get("record", "")).startswith("deployment:")


@dataclass(frozen=True)
class Rule:
    """A recording rule, the expression it is to be, its window in minutes and its labels beside the deployment's."""

    name: str
    expression: Expression
    window: int
    by: tuple[str, ...] = ()


def _expected_rules() -> Iterator[Rule]:
    for figure in FIGURES.values():
        yield Rule(figure.record(), figure.expression, minutes(DEFAULT_WINDOW), figure.by)
    for histogram in RECORDED_HISTOGRAMS:
        yield Rule(record_buckets(histogram), Rate(f"{histogram}_bucket"), minutes(DEFAULT_WINDOW), ("le",))
    for objective in objectives_of().values():
        yield Rule(objective.record(BASE_WINDOW), objective.bad, minutes(BASE_WINDOW))
        yield Rule(objective.record_all(BASE_WINDOW), objective.all, minutes(BASE_WINDOW))
        yield Rule(objective.record_bad(BASE_WINDOW), _bad(objective), minutes(BASE_WINDOW))
        for window in dict.fromkeys(window for row in BURN_WINDOWS for window in (row.short, row.long)):
            if window != BASE_WINDOW:
                yield Rule(objective.record(window), objective.bad, minutes(window))
    for window in dict.fromkeys(row.long for row in BURN_WINDOWS):
        yield Rule(record_ended(window), ENDED, minutes(window))


def _bad(objective: Objective) -> Expression:
    """What was bad, counted."""
    if isinstance(objective.bad, FractionAbove):
        below = Increase(f"{objective.bad.histogram}_bucket", (("le", (format_edge(objective.bad.edge),)),))
        return Difference(objective.all, below)
    assert isinstance(objective.bad, Ratio)
    assert isinstance(objective.bad.numerator, Rate)
    return Increase(objective.bad.numerator.name, objective.bad.numerator.where)


RULES = {rule.name: rule for rule in _expected_rules()}
