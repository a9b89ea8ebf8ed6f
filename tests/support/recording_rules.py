"""The recording rules that are to be written, each with the expression of the catalog that it records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import yaml

from alerts.__main__ import FILES, GENERATED
from servescope.contract.expressions import Expression, Rate
from servescope.contract.figures import FIGURES, RECORDED_HISTOGRAMS, record_buckets
from servescope.contract.objectives import BURN_WINDOWS, ENDED, OBJECTIVES, record_ended
from servescope.contract.types import DEFAULT_WINDOW
from tests.support.alert_stories import minutes

RECORDING_FILES = tuple(name for name in FILES if name != "alerting.rules.yml")


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
    recorded = yaml.safe_load((GENERATED / "objectives.rules.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    for objective, rule in product(OBJECTIVES.values(), recorded):
        window = rule["record"].rpartition("rate")[2]
        if rule["record"] == objective.record(window):
            yield Rule(rule["record"], objective.bad, minutes(window))
    for window in dict.fromkeys(row.long for row in BURN_WINDOWS):
        yield Rule(record_ended(window), ENDED, minutes(window))


RULES = {rule.name: rule for rule in _expected_rules()}
