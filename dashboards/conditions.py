"""From an alert's terms and conditions to the PromQL of a panel: the rule's expression within the variables' scope."""

from __future__ import annotations

from typing import assert_never

from dashboards.options import Options
from dashboards.queries import compile_expression, compile_figure, compile_own, own_scope, scope
from dashboards.queries import matchers as where_matchers
from servescope.alerting import (
    All,
    Badness,
    Compare,
    Condition,
    Except,
    Highest,
    Measured,
    Over,
    Own,
    Quotient,
    Scaled,
    Shown,
    Term,
    Vanished,
    is_grouped,
    open_labels,
)
from servescope.errors import UsageError
from servescope.expressions import Increase
from servescope.identity import DEPLOYMENT_LABELS


def compile_term(term: Term, options: Options) -> str:
    """The term's values in scope, over the windows that the alert looks back."""
    match term:
        case Shown(figure, where):
            return compile_figure(figure, options, where=where)
        case Own(name, by, where, increase_over):
            if increase_over:
                return compile_own(Increase(name, where), options, by=by, window=increase_over)
            return _own(term, options)
        case Measured(expression, by):
            return compile_expression(
                expression, options, by=(*DEPLOYMENT_LABELS, *by), replica="replica" in by, window=options.window
            )
        case Badness(objective, window):
            if options.figures == "raw":
                return compile_expression(objective.bad, options, by=DEPLOYMENT_LABELS, window=window)
            return f"{objective.record(window)}{{{scope(options)}}}"
        case Over(function, shown, window, before):
            name = "changes" if function == "changes" else f"{function}_over_time"
            # What is no series has its past only by being computed for each moment of it.
            stretch = f"[{window}]" if options.figures == "recorded" else f"[{window}:{options.scrape_interval}]"
            values = compile_term(shown, options)
            values = values if options.figures == "recorded" else f"({values})"
            return f"{name}({values}{stretch}{f' offset {before}' if before else ''})"
        case Highest(shown, by):
            return f"max by ({_names(by, options)}) ({compile_term(shown, options)})"
        case Quotient(numerator, denominator):
            below = f"({_operand(denominator, options)} > 0)"
            return f"{_operand(numerator, options)} / {_on(numerator, denominator, options)} {below}"
        case Scaled(scaled, factor):
            return f"{factor!r} * {_operand(scaled, options)}"
        case _:
            assert_never(term)


def compile_condition(condition: Condition, options: Options) -> str:
    """Where the condition holds now, with the value that is told."""
    match condition:
        case Compare(left, operator, right):
            if isinstance(right, float):
                return f"{_operand(left, options)} {operator} {right!r}"
            return f"{_operand(left, options)} {operator} {_on(left, right, options)} {_operand(right, options)}"
        case All(conditions):
            return _joined("and", conditions, options)
        case Except(first, unless):
            return _joined("unless", (first, unless), options)
        case Vanished(own, before):
            gone = f"{_own(own, options)} offset {before}"
            return f"{gone} unless on ({_names(own.by, options)}) {_own(own, options)}"
        case _:
            raise UsageError(f"no panel shows a condition such as {condition!r}")


def _own(own: Own, options: Options) -> str:
    chosen = ",".join([*where_matchers(own.where, options), own_scope(own.name, options)])
    return f"{own.name}{{{chosen}}}"


def _joined(word: str, conditions: tuple[Condition, ...], options: Options) -> str:
    first, *others = conditions
    text = f"({compile_condition(first, options)})"
    for other in others:
        shared = tuple(label for label in open_labels(first) if label in open_labels(other))
        text += f" {word} on ({_names(shared, options)}) ({compile_condition(other, options)})"
    return text


def _operand(term: Term, options: Options) -> str:
    text = compile_term(term, options)
    simple = isinstance(term, Own | Over | Highest) or (
        isinstance(term, Shown | Badness) and options.figures == "recorded"
    )
    return text if simple else f"({text})"


def _on(left: Term, right: Term, options: Options) -> str:
    grouped = " group_left ()" if is_grouped(left, right) else ""
    return f"on ({_names(open_labels(right), options)}){grouped}"


def _names(labels: tuple[str, ...], options: Options) -> str:
    return ", ".join(map(options.label, labels))
