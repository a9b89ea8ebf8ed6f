"""Alerts with one mistake each, such as somebody might make: every one must fail the proof of the alert it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from servescope.alerting.records import (
    Absent,
    AdHocExpression,
    Alert,
    All,
    Always,
    Any,
    Compare,
    Condition,
    Count,
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
)
from tests.support.alert_stories import minutes

_FLIPPED: dict[Operator, tuple[Operator, ...]] = {
    "<": (">", "<="), "<=": (">", "<"), ">": ("<", ">="), ">=": ("<", ">"), "==": ("!=",), "!=": ("==",),
}  # fmt: skip
_SHIFT = 0.05
_OTHER_END = "the other end"
_REMEMBERED = "remembered: "


def mutants(alert: Alert) -> Iterator[tuple[str, Alert]]:
    """Each mutant of an alert, with what was changed."""
    for what, condition in _conditions(alert.condition):
        yield what, replace(alert, condition=condition)
    if alert.lasts is not None:
        yield "what it lasts for dropped", replace(alert, lasts=None)
        for what, condition in _conditions(alert.lasts):
            # What it remembers ends after a day, which is longer than a story.
            if not what.startswith(_REMEMBERED):
                yield f"what it lasts for: {what}", replace(alert, lasts=condition)
    if alert.for_:
        yield "for halved", replace(alert, for_=f"{minutes(alert.for_) // 2}m")
        yield "for doubled", replace(alert, for_=f"{minutes(alert.for_) * 2}m")
    if alert.keep_firing_for:
        yield "keep_firing_for halved", replace(alert, keep_firing_for=f"{minutes(alert.keep_firing_for) // 2}m")
        yield "keep_firing_for dropped", replace(alert, keep_firing_for="")


def _conditions(condition: Condition) -> Iterator[tuple[str, Condition]]:
    match condition:
        case Compare(left, operator, right):
            remembered = _REMEMBERED if isinstance(left, Subquery) and left.window == "1d" else ""
            # An average of many values meets a number exactly by chance alone.
            is_average = isinstance(left, OverTime) and left.function == "avg"
            for flipped in _FLIPPED[operator]:
                if is_average and flipped.strip("=") == operator.strip("="):
                    continue
                yield f"{remembered}{operator} became {flipped}", Compare(left, flipped, right)
            for what, term in _terms(left):
                yield what, Compare(term, operator, right)
            if isinstance(right, float):
                for shifted in _shifted(right):
                    yield f"{remembered}{right:g} became {shifted:g}", Compare(left, operator, shifted)
            else:
                for what, term in _terms(right):
                    yield what, Compare(left, operator, term)
        case All(each) | Any(each):
            for number, one in enumerate(each):
                others = (*each[:number], *each[number + 1 :])
                yield f"condition {number} dropped", type(condition)(others)
                for what, mutant in _conditions(one):
                    yield what, type(condition)((*each[:number], mutant, *each[number + 1 :]))
        case Except(first, unless):
            yield "exception dropped", first
            for what, mutant in _conditions(first):
                yield what, Except(mutant, unless)
            for what, mutant in _conditions(unless):
                yield what, Except(first, mutant)
        case Disappeared(own, before):
            yield "whether it is back dropped", Compare(own, ">=", -1.0)
            for what, mutated in _terms(own):
                if isinstance(mutated, SelfMetric):
                    yield what, replace(condition, own=mutated)
            if condition.whatever:
                yield "all labels asked for", Disappeared(own, before)
        case Present(term):
            for what, mutated in _terms(term):
                # Whichever of several is taken, there is one.
                if what != _OTHER_END:
                    yield what, Present(mutated)
        case Absent() | Always():
            return
        case _:
            assert_never(condition)


def _shifted(value: float) -> tuple[float, ...]:
    # A count is off by one; what is measured, by a twentieth.
    is_count = value == int(value)
    by = 1.0 if is_count else abs(value) * _SHIFT
    return round(value - by, 6), round(value + by, 6)


def _terms(term: Term) -> Iterator[tuple[str, Term]]:
    match term:
        case FigureRef(_, where) if where:
            yield "matcher dropped", replace(term, where=())
        case SelfMetric(_, _, where, _) if where:
            yield "matcher dropped", replace(term, where=())
        case OverTime(_, shown, _, before):
            for what, mutant in _terms(shown):
                if isinstance(mutant, FigureRef):
                    yield what, replace(term, shown=mutant)
            if before:
                yield "offset dropped", replace(term, before="")
        case Extreme(function, of, _):
            yield _OTHER_END, replace(term, function="min" if function == "max" else "max")
            for what, mutant in _terms(of):
                if isinstance(mutant, FigureRef | SelfMetric):
                    yield what, replace(term, of=mutant)
        case Subquery(function, of, _, _, before):
            yield _OTHER_END, replace(term, function="min" if function == "max" else "max")
            for what, mutant in _terms(of):
                # How several are made one matters little to whether there is one.
                if what != _OTHER_END and isinstance(mutant, Extreme | Total | AdHocExpression):
                    yield f"{_REMEMBERED}{what}", replace(term, of=mutant)
            if before:
                yield "offset dropped", replace(term, before="")
        case Count(condition):
            for what, mutated in _conditions(condition):
                yield what, Count(mutated)
        case Quotient(numerator, denominator):
            yield "not divided", numerator
            for what, mutant in _terms(numerator):
                yield what, Quotient(mutant, denominator)
            for what, mutant in _terms(denominator):
                yield what, Quotient(numerator, mutant)
        case Product(left, right):
            yield "not multiplied", left
            for what, mutant in _terms(left):
                yield what, Product(mutant, right)
            for what, mutant in _terms(right):
                yield what, Product(left, mutant)
        case Scaled(scaled, factor):
            for shifted in _shifted(factor):
                yield f"factor {factor:g} became {shifted:g}", Scaled(scaled, shifted)
            for what, mutant in _terms(scaled):
                yield what, Scaled(mutant, factor)
        case Shifted(inner, by):
            yield "not shifted", inner
            for shifted in _shifted(by):
                yield f"by {by:g} became {shifted:g}", Shifted(inner, shifted)
            for what, mutant in _terms(inner):
                yield what, Shifted(mutant, by)
        case _:
            return
