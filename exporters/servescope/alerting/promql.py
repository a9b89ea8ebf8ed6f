"""Compiles the conditions of alerts to PromQL on the recording rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from servescope.alerting.records import (
    All,
    Always,
    Any,
    Badness,
    Compare,
    Condition,
    Except,
    Extreme,
    Gone,
    Measured,
    Over,
    Own,
    Present,
    Quotient,
    Scaled,
    Shifted,
    Shown,
    Term,
    Vanished,
    is_grouped,
    open_labels,
)
from servescope.contract.expressions import Matchers, matchers_promql, promql
from servescope.contract.figures import FIGURES
from servescope.contract.own_metrics import FOREIGN_SERIES
from servescope.contract.types import DEFAULT_WINDOW


def condition_promql(condition: Condition, window: str = DEFAULT_WINDOW, scope: str = "") -> str:
    """The condition as PromQL over the recording rules of figures over `window`.

    `scope` is matchers as PromQL text for every series that is not recorded, and not Prometheus' or Alertmanager's own.
    """
    match condition:
        case Compare(left, operator, right):
            if isinstance(right, float):
                return f"{_operand(left, window, scope)} {operator} {_number(right)}"
            return f"{_operand(left, window, scope)} {operator} {_on(left, right)} {_operand(right, window, scope)}"
        case Present(term):
            return term_promql(term, window, scope)
        case All(conditions):
            return _joined("and", conditions, window, scope)
        case Any(conditions):
            return " or ".join(f"({condition_promql(each, window, scope)})" for each in conditions)
        case Except(each, unless):
            return _joined("unless", (each, unless), window, scope)
        case Gone(name):
            return f"absent({name}{_matchers(name, (), scope)}) == 1"
        case Vanished(own, before):
            now = term_promql(own, window, scope)
            then = f"{own.name}{_matchers(own.name, own.where, scope)} offset {before}"
            return f"{then} unless on ({', '.join(condition.on)}) {now}"
        case Always():
            return "vector(1) == 1"
        case _:
            assert_never(condition)


def term_promql(term: Term, window: str = DEFAULT_WINDOW, scope: str = "") -> str:
    """The term as PromQL, as `condition_promql` has it."""
    match term:
        case Shown(figure, where):
            return f"{FIGURES[figure].record(window)}{matchers_promql(where)}"
        case Own(name, by, where, increase_over):
            if not increase_over:
                return f"{name}{_matchers(name, where, scope)}"
            return f"sum by ({', '.join(by)}) (increase({name}{_matchers(name, where, scope)}[{increase_over}]))"
        case Measured(expression):
            return promql(expression, window=window, by=term.labels, scope=scope)
        case Badness(objective, stretch):
            return objective.record(stretch)
        case Over(function, shown, stretch, before):
            name = "changes" if function == "changes" else f"{function}_over_time"
            offset = f" offset {before}" if before else ""
            return f"{name}({term_promql(shown, window, scope)}[{stretch}]{offset})"
        case Extreme(function, of, by, before):
            offset = f" offset {before}" if before else ""
            return f"{function} by ({', '.join(by)}) ({term_promql(of, window, scope)}{offset})"
        case Quotient(numerator, denominator):
            below = f"({_operand(denominator, window, scope)} > 0)"
            return f"{_operand(numerator, window, scope)} / {_on(numerator, denominator)} {below}"
        case Scaled(scaled, factor):
            return f"{_number(factor)} * {_operand(scaled, window, scope)}"
        case Shifted(shifted, by_number):
            sign = "-" if by_number < 0 else "+"
            return f"{_operand(shifted, window, scope)} {sign} {_number(abs(by_number))}"
        case _:
            assert_never(term)


def _joined(word: str, conditions: Sequence[Condition], window: str, scope: str) -> str:
    first, *others = conditions
    text = f"({condition_promql(first, window, scope)})"
    for other in others:
        shared = [label for label in open_labels(first) if label in open_labels(other)]
        text += f" {word} on ({', '.join(shared)}) ({condition_promql(other, window, scope)})"
    return text


def _operand(term: Term, window: str, scope: str) -> str:
    text = term_promql(term, window, scope)
    return f"({text})" if isinstance(term, Quotient | Scaled | Shifted | Measured) else text


def _on(left: Term, right: Term) -> str:
    """The matching of two terms: on the labels that identify the right one's values."""
    grouped = " group_left ()" if is_grouped(left, right) else ""
    return f"on ({', '.join(open_labels(right))}){grouped}"


def _matchers(name: str, where: Matchers, scope: str) -> str:
    return matchers_promql(where, "" if name in FOREIGN_SERIES else scope)


def _number(value: float) -> str:
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)
