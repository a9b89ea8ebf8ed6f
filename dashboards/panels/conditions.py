"""Compiles an alert's terms and conditions to PromQL for panels: the rule's expression, filtered by the variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dashboards.options import Options
from dashboards.panels.queries import SCOPE, Variable, compile_expression, compile_figure, own_scope, relabel, scope
from servescope.alerting.rules import records
from servescope.alerting.rules.promql import ConditionCompiler
from servescope.contract.expressions import Expression, Increase, Level, Rate, matchers_promql, promql
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.contract.objectives import ENDED, record_ended
from servescope.errors import UsageError

_FIGURE_OF: Mapping[Expression, str] = {
    figure.expression: figure.name
    for figure in FIGURES.values()
    if isinstance(figure.expression, Rate) and not figure.by
}
"""The figure of a rate, where there is one: rates of deployments add up."""
_LONG_PASTS = ("1d",)


@dataclass(frozen=True)
class Compiler(ConditionCompiler):
    """Compiles terms and conditions for a dashboard with these variables."""

    options: Options
    variables: tuple[Variable, ...] = SCOPE

    @property
    def _is_raw(self) -> bool:
        return self.options.figures == "raw"

    @property
    def _deployments(self) -> tuple[Variable, ...]:
        return tuple(variable for variable in self.variables if variable.label in DEPLOYMENT_LABELS)

    def _shown(self, shown: records.FigureRef) -> str:
        return compile_figure(shown.figure, self.options, where=shown.where, variables=self._deployments)

    def _collectors(self) -> tuple[str, ...]:
        return self.options.collector_labels

    def _own_series(self, own: records.SelfMetric) -> str:
        chosen = own_scope(own.name, self.options, self.variables)
        if own.increase_over:
            increase = Increase(own.name, relabel(own.where, self.options))
            return promql(
                increase, window=own.increase_over, by=self.options.group(own.by), scope=chosen, collectors=()
            )
        return f"{own.name}{matchers_promql(relabel(own.where, self.options), chosen)}"

    def _measured(self, measured: records.AdHocExpression) -> str:
        known = None if self._is_raw else _FIGURE_OF.get(measured.expression)
        if known is not None and set(measured.labels) <= set(DEPLOYMENT_LABELS):
            # The sum of what is recorded per deployment, from hundreds of times fewer samples.
            chosen = scope(self.options, variables=self._deployments)
            record = FIGURES[known].record(self.options.window)
            by = self.options.group(measured.labels)
            return promql(Level(record), window="", by=by, scope=chosen, collectors=())
        return compile_expression(
            measured.expression, self.options, by=measured.labels, replica="replica" in measured.by,
            window=self.options.window, variables=self._deployments,
        )  # fmt: skip

    def _badness(self, badness: records.BadRatio) -> str:
        objective, window = badness.objective, badness.window
        if self._is_raw:
            return compile_expression(
                objective.bad, self.options, by=DEPLOYMENT_LABELS, window=window, variables=self._deployments
            )
        return f"{objective.record(window)}{{{scope(self.options, variables=self._deployments)}}}"

    def _budget(self, budget: records.Budget) -> str:
        if self._is_raw:
            # As the share beside it, which is at the limits of all other deployments.
            share = self._operand(records.BadRatio(budget.objective, budget.window))
            return f"({budget.objective.budget} + 0 * {share})"
        return f"{budget.objective.record_budget}{{{scope(self.options, variables=self._deployments)}}}"

    def _ended(self, ended: records.RequestsEnded) -> str:
        if self._is_raw:
            return compile_expression(
                ENDED, self.options, by=DEPLOYMENT_LABELS, window=ended.window, variables=self._deployments
            )
        return f"{record_ended(ended.window)}{{{scope(self.options, variables=self._deployments)}}}"

    def _without_series(self, condition: records.Absent | records.Always) -> str:
        raise UsageError(f"no panel shows the condition {condition!r}, which has no series")

    def _past(self, shown: records.FigureRef, window: str) -> str:
        if window in _LONG_PASTS and not self._is_raw:
            # Drawn for every point of a panel, each value of a day would be read hundreds of times.
            return f"{self._shown(shown)}[{window}:5m]"
        # Expressions that are not recorded need a subquery for their past.
        return (
            f"({self._shown(shown)})[{window}:{self.options.scrape_interval}]"
            if self._is_raw
            else super()._past(shown, window)
        )

    def _is_compound(self, term: records.Term) -> bool:
        return super()._is_compound(term) or (
            self._is_raw and isinstance(term, records.FigureRef | records.BadRatio | records.RequestsEnded)
        )

    def _names(self, labels: Iterable[str]) -> str:
        return ", ".join(self.options.group(labels))

    def _number(self, value: float) -> str:
        return repr(value)
