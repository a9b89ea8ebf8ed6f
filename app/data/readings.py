"""How a figure reads: as harm that users notice, by the objectives, or as tuning, by the figure's own band."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from app.data.promised import Promises
from app.elements import display
from servescope.contract.bands import request_evidence
from servescope.contract.expressions import Quantile
from servescope.contract.figures import FIGURES
from servescope.contract.filling import describe_filling, is_filling, is_over_window
from servescope.contract.metrics import BROKEN_STATUSES
from servescope.contract.objectives import BURN_WINDOWS
from servescope.contract.own_metrics import FILLED_SERIES
from servescope.contract.types import Band, Figure, Objective, Rating, Status, Step

_PAGES_FROM: Final = BURN_WINDOWS[0].factor
_OF_REQUESTS: Final = ("request_error_share", "request_rejected_share")
NONE_ACTIVE: Final = Rating("critical", "no active replica", "Every request fails or waits.")
_WITHIN: Final = Rating("good", "within the objective", "Nothing to do.")
_WEIGHTS: Final = {"good": 0, "warning": 1, "critical": 2}


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a value means; `harm` when users notice it."""

    rating: Rating
    harm: bool

    @property
    def weight(self) -> int:
        """How much attention it asks for: harm before tuning, 0 for none."""
        weight = _WEIGHTS[self.rating.status]
        return weight + 2 if self.harm and weight else weight


@dataclass(frozen=True, slots=True)
class FiguresAt:
    """The figures of a deployment at one instant, by key, and the length of their window."""

    figures: Mapping[str, float]
    window_ms: int

    def filling(self, figure: Figure) -> str:
        """How much of the figure's window is there, `filling, 1 of 5 min`; "" where it is whole, or there is none."""
        filled = self.figures.get(FILLED_SERIES, math.nan)
        is_part = is_filling(filled) and is_over_window(figure.expression)
        return describe_filling(filled, self.window_ms) if is_part else ""

    def lacking(self, figure: Figure, promised: Promises) -> str:
        """Why the window is not enough to judge by, `too little evidence: 8 of 300 draft tokens`; "" where it is, and
        where what counts as evidence was not measured.
        """
        band, _ = band_of(figure, promised)
        evidence = None if band is None else band.evidence
        rate = math.nan if evidence is None else self.figures.get(evidence.figure, math.nan)
        if evidence is None or math.isnan(rate):
            return ""
        return evidence.describe_lack(rate * self.window_ms / 1000)


def read(figure: Figure, value: float | None, promised: Promises, moment: FiguresAt | None = None) -> Meaning | None:
    """What a figure's value means; None without a value, of a figure that neither harms nor is tuned, and where the
    window has too little to judge by, as far as the figures of the same `moment` show it.
    """
    band, harm = band_of(figure, promised)
    if band is None or value is None or math.isnan(value) or (moment and moment.lacking(figure, promised)):
        return None
    return Meaning(band.judge(value), harm)


def read_replicas(counts: Mapping[str, float]) -> Meaning | None:
    """That no replica is active, where some are unhealthy or failed: none at all may be what was asked for."""
    broken = any(counts.get(status) for status in BROKEN_STATUSES)
    return Meaning(NONE_ACTIVE, harm=True) if broken and not counts.get("active") else None


def band_of(figure: Figure, promised: Promises) -> tuple[Band | None, bool]:
    """The band that a figure is read by, and whether beyond it is harm."""
    found = harm_band(figure.name, promised)
    return (found, True) if found is not None else (figure.band, False)


def worst(readings: Iterable[Meaning | None]) -> Meaning | None:
    """The reading that asks for most attention; None without any."""
    return max((each for each in readings if each is not None), key=lambda each: each.weight, default=None)


def harm_band(name: str, promised: Promises) -> Band | None:
    """The band of what users are promised of a figure; None where they are promised nothing of it."""
    expression = FIGURES[name].expression
    if name in _OF_REQUESTS:
        return _band_of_share(promised["requests"])
    if not isinstance(expression, Quantile):
        return None
    objective = promised.get(expression.histogram.removesuffix("_seconds"))
    return None if objective is None else _band_of_quantile(objective, expression.quantile)


@cache
def _band_of_share(objective: Objective) -> Band:
    page = round(_PAGES_FROM * objective.budget, 12)
    return Band(
        _WITHIN,
        (
            Step(objective.budget, False, _beyond("warning", objective)),
            Step(page, True, _beyond("critical", objective)),
        ),
        request_evidence(1.0),
    )


@cache
def _band_of_quantile(objective: Objective, quantile: float) -> Band:
    """Above the promised latency at least 1 − q of the requests are late: how bad that is depends on the goal."""
    late = round(1.0 - quantile, 12)
    status: Status = "critical" if late >= _PAGES_FROM * objective.budget else "warning"
    return Band(_WITHIN, (Step(objective.edges_seconds[0], False, _beyond(status, objective)),), request_evidence(late))


def _beyond(status: Status, objective: Objective) -> Rating:
    label = "beyond the objective" if status == "warning" else "far beyond the objective"
    return Rating(status, label, f"Promised: {objective.promise}.")


def objective_line(figure: Figure, promised: Promises) -> tuple[float, str] | None:
    """From where on a figure is beyond its objective, and what a chart calls that; None without an objective."""
    band = harm_band(figure.name, promised)
    if band is None:
        return None
    start = band.steps[0].start
    words = display.format_planned(start) if figure.unit == "ratio" else display.format_value(start, figure.unit)
    return start, f"objective {words}"
