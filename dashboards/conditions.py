"""Compiles an alert's terms and conditions to PromQL for panels: the rule's expression, filtered by the variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from dashboards.options import Options
from dashboards.queries import SCOPE, Variable, compile_expression, compile_figure, own_scope, relabel, scope
from servescope.alerting.records import (
    All,
    Any,
    Badness,
    Compare,
    Condition,
    Except,
    Extreme,
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
from servescope.contract.expressions import Expression, Increase, Level, Rate, matchers_promql, promql
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.errors import UsageError

_FIGURE_OF: Mapping[Expression, str] = {
    figure.expression: figure.name
    for figure in FIGURES.values()
    if isinstance(figure.expression, Rate) and not figure.by
}
"""The figure of a rate, where there is one: rates of deployments add up."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """Compiles terms and conditions for a dashboard with these variables."""

    options: Options
    variables: tuple[Variable, ...] = SCOPE

    def term(self, term: Term) -> str:
        """The term as an expression, over the alert's windows."""
        match term:
            case Shown(figure, where):
                return compile_figure(figure, self.options, where=where, variables=self._deployments)
            case Own():
                return self._own(term)
            case Measured(expression, by, _):
                known = None if self._is_raw else _FIGURE_OF.get(expression)
                if known is not None and set(term.labels) <= set(DEPLOYMENT_LABELS):
                    # The sum of what is recorded per deployment, from hundreds of times fewer samples.
                    chosen = scope(self.options, variables=self._deployments)
                    record = FIGURES[known].record(self.options.window)
                    return promql(
                        Level(record), window="", by=tuple(map(self.options.label, term.labels)), scope=chosen
                    )
                return compile_expression(
                    expression, self.options, by=term.labels, replica="replica" in by, window=self.options.window,
                    variables=self._deployments,
                )  # fmt: skip
            case Badness(objective, window):
                if self._is_raw:
                    return compile_expression(
                        objective.bad, self.options, by=DEPLOYMENT_LABELS, window=window, variables=self._deployments
                    )
                return f"{objective.record(window)}{{{scope(self.options, variables=self._deployments)}}}"
            case Over():
                return self._past(term)
            case Extreme(function, of, by, before):
                offset = f" offset {before}" if before else ""
                return f"{function} by ({self._names(by)}) ({self.term(of)}{offset})"
            case Quotient(numerator, denominator):
                below = f"({self._operand(denominator)} > 0)"
                return f"{self._operand(numerator)} / {self._on(numerator, denominator)} {below}"
            case Scaled(scaled, factor):
                return f"{factor!r} * {self._operand(scaled)}"
            case Shifted(shifted, number):
                return f"{self._operand(shifted)} {'-' if number < 0 else '+'} {abs(number)!r}"
            case _:
                assert_never(term)

    def condition(self, condition: Condition) -> str:
        """The condition as an expression, with the value that notifications show."""
        match condition:
            case Compare(left, operator, right):
                if isinstance(right, float):
                    return f"{self._operand(left)} {operator} {right!r}"
                return f"{self._operand(left)} {operator} {self._on(left, right)} {self._operand(right)}"
            case Present(term):
                return self.term(term)
            case All(conditions):
                return self._joined("and", conditions)
            case Any(conditions):
                return " or ".join(f"({self.condition(each)})" for each in conditions)
            case Except(first, unless):
                return self._joined("unless", (first, unless))
            case Vanished(own, before):
                return f"{self._own(own)} offset {before} unless on ({self._names(condition.on)}) {self._own(own)}"
            case _:
                raise UsageError(f"no panel shows the condition {condition!r}, which has no series")

    @property
    def _is_raw(self) -> bool:
        return self.options.figures == "raw"

    @property
    def _deployments(self) -> tuple[Variable, ...]:
        return tuple(variable for variable in self.variables if variable.label in DEPLOYMENT_LABELS)

    def _own(self, own: Own) -> str:
        chosen = own_scope(own.name, self.options, self.variables)
        if own.increase_over:
            increase = Increase(own.name, relabel(own.where, self.options))
            by = tuple(map(self.options.label, own.by))
            return promql(increase, window=own.increase_over, by=by, scope=chosen)
        return f"{own.name}{matchers_promql(relabel(own.where, self.options), chosen)}"

    def _past(self, over: Over) -> str:
        function = "changes" if over.function == "changes" else f"{over.function}_over_time"
        offset = f" offset {over.before}" if over.before else ""
        values = self.term(over.shown)
        if self._is_raw:
            # Expressions that are not recorded need a subquery for their past.
            return f"{function}(({values})[{over.window}:{self.options.scrape_interval}]{offset})"
        return f"{function}({values}[{over.window}]{offset})"

    def _joined(self, word: str, conditions: tuple[Condition, ...]) -> str:
        first, *others = conditions
        text = f"({self.condition(first)})"
        for other in others:
            shared = tuple(label for label in open_labels(first) if label in open_labels(other))
            text += f" {word} on ({self._names(shared)}) ({self.condition(other)})"
        return text

    def _operand(self, term: Term) -> str:
        text = self.term(term)
        simple = isinstance(term, Own | Over | Extreme) or (isinstance(term, Shown | Badness) and not self._is_raw)
        return text if simple else f"({text})"

    def _on(self, left: Term, right: Term) -> str:
        grouped = " group_left ()" if is_grouped(left, right) else ""
        return f"on ({self._names(open_labels(right))}){grouped}"

    def _names(self, labels: tuple[str, ...]) -> str:
        return ", ".join(map(self.options.label, labels))
