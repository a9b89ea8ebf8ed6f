"""Alerts with one mistake each, such as somebody might make: every one must fail the proof of the alert it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any as Mutant  # a term where a term was, a condition where a condition was

from servescope.alerting.rules.records import (
    AdHocExpression,
    Alert,
    All,
    Any,
    Compare,
    Condition,
    Disappeared,
    Except,
    Extreme,
    FigureRef,
    Operator,
    OverTime,
    Present,
    Product,
    Quotient,
    Scaled,
    SelfMetric,
    Shifted,
    Subquery,
    Term,
    Total,
    parts,
)
from servescope.contract.expressions import Ratio
from tests.support.alert_stories import minutes

_FLIPPED: dict[Operator, tuple[Operator, ...]] = {
    "<": (">", "<="), "<=": (">", "<"), ">": ("<", ">="), ">=": ("<", ">"), "==": ("!=",), "!=": ("==",),
}  # fmt: skip
Part = Term | Condition
_SHIFT = 0.05
_OTHER_END = "the other end"
_REMEMBERED = "remembered: "

EQUIVALENT = {
    # Half of an average over three hours is met exactly by chance alone.
    "ServescopeAnswerLengthChanged": [">= became >"],
    # Two conditions on replicas of the same status: one matcher suffices.
    "ServescopeColdStartSlow": ["matcher dropped"] * 2,
    # Of the targets that ought to be seen: one that any collector reaches is among them anyway.
    "ServescopeFleetUnseen": ["the other end"],
    # What was known of a target of any role has that role's label.
    "ServescopePhaseDown": ["remembered: matcher dropped"] * 2,
    # One collector counts a deployment's targets; more that are up than down are most of all.
    "ServescopeTargetDown": ["the other end"] * 2 + ["matcher dropped"],
}
"""Mutants by alert that hold exactly where it does."""


def mutants(alert: Alert) -> Iterator[tuple[str, Alert]]:
    """Each mutant of an alert, with what was changed."""
    for what, condition in _mutants(alert.condition):
        yield what, replace(alert, condition=condition)
    if alert.lasts is not None:
        yield "what it lasts for dropped", replace(alert, lasts=None)
        for what, condition in _mutants(alert.lasts):
            # What it remembers ends after a day, which is longer than a story.
            if not what.startswith(_REMEMBERED):
                yield f"what it lasts for: {what}", replace(alert, lasts=condition)
    if alert.for_:
        yield "for halved", replace(alert, for_=f"{minutes(alert.for_) // 2}m")
        yield "for doubled", replace(alert, for_=f"{minutes(alert.for_) * 2}m")
    if alert.keep_firing_for:
        yield "keep_firing_for halved", replace(alert, keep_firing_for=f"{minutes(alert.keep_firing_for) // 2}m")
        yield "keep_firing_for dropped", replace(alert, keep_firing_for="")


def _mutants(value: Part) -> Iterator[tuple[str, Mutant]]:
    """Those of a term or a condition: its own, and it with a mutant of each of its parts."""
    yield from _own(value)
    for part in parts(value) if not isinstance(value, Total) else ():
        for what, mutant in _mutants(part):
            # Of several that are made one, which is taken matters little to whether there is one.
            if what != _OTHER_END or not isinstance(value, Present | Subquery):
                yield f"{_REMEMBERED if isinstance(value, Subquery) else ''}{what}", _with(value, part, mutant)


def _with(value: Mutant, part: Part, other: Mutant) -> Mutant:
    """The value with another part in the place of one."""
    for each in fields(value):
        held = getattr(value, each.name)
        if held is part:
            return replace(value, **{each.name: other})
        if isinstance(held, tuple) and any(one is part for one in held):
            return replace(value, **{each.name: tuple(other if one is part else one for one in held)})
    raise ValueError(f"{part} is no part of {value}")


def _own(value: Part) -> Iterator[tuple[str, Mutant]]:
    match value:
        case Compare(left, operator, right):
            remembered = _REMEMBERED if isinstance(left, Subquery) and left.window == "1d" else ""
            # An average of many values meets a number exactly by chance alone.
            is_average = (isinstance(left, OverTime) and left.function == "avg") or (
                isinstance(left, AdHocExpression) and isinstance(left.expression, Ratio)
            )
            for flipped in _FLIPPED[operator]:
                if not (is_average and flipped.strip("=") == operator.strip("=")):
                    yield f"{remembered}{operator} became {flipped}", replace(value, operator=flipped)
            for shifted in _shifted(right) if isinstance(right, float) else ():
                yield f"{remembered}{right:g} became {shifted:g}", replace(value, right=shifted)
        case All(each) | Any(each):
            for number in range(len(each)):
                yield f"condition {number} dropped", type(value)((*each[:number], *each[number + 1 :]))
        case Except(first, _):
            yield "exception dropped", first
        case Disappeared(own, before):
            yield "whether it is back dropped", Compare(own, ">=", -1.0)
            if value.whatever:
                yield "all labels asked for", Disappeared(own, before)
        case FigureRef(where=where) | SelfMetric(where=where) if where:
            yield "matcher dropped", replace(value, where=())
        case Extreme(function="max") | Subquery(function="max"):
            yield _OTHER_END, replace(value, function="min")
        case Extreme() | Subquery():
            yield _OTHER_END, replace(value, function="max")
        case Quotient(numerator, _):
            yield "not divided", numerator
        case Product(left, _):
            yield "not multiplied", left
        case Scaled(_, factor):
            for shifted in _shifted(factor):
                yield f"factor {factor:g} became {shifted:g}", replace(value, factor=shifted)
        case Shifted(inner, by):
            yield "not shifted", inner
            for shifted in _shifted(by):
                yield f"by {by:g} became {shifted:g}", replace(value, by=shifted)
    if isinstance(value, OverTime | Subquery) and value.before:
        yield "offset dropped", replace(value, before="")


def _shifted(value: float) -> tuple[float, ...]:
    # A count is off by one; what is measured, by a twentieth.
    is_count = value == int(value)
    by = 1.0 if is_count else abs(value) * _SHIFT
    return round(value - by, 6), round(value + by, 6)
