"""Compiles the conditions of alerts to PromQL on the recording rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from servescope.alerting.rules import records
from servescope.alerting.rules.listing import unknown
from servescope.contract.expressions import (
    COLLECTOR_LABELS,
    Increase,
    Matchers,
    matchers_promql,
    once_promql,
    promql,
)
from servescope.contract.figures import FIGURES
from servescope.contract.objectives import record_ended
from servescope.contract.own_metrics import FOREIGN_SERIES, SCRAPED_UP
from servescope.contract.types import DEFAULT_WINDOW

_REMEMBERED: Final = "15m"
"""How long ago an alert fired last that stays active: longer than a restart of Prometheus takes."""


def condition_promql(condition: records.Condition, window: str) -> str:
    """The condition as PromQL over the recording rules of figures over `window`."""
    return _RuleCompiler(window, "", (), tuple(COLLECTOR_LABELS)).condition(condition)


def alert_promql(
    alert: records.Alert,
    window: str = DEFAULT_WINDOW,
    scope: str = "",
    *,
    extra: Sequence[str] = (),
    collectors: Sequence[str] = COLLECTOR_LABELS,
    servers: str = "",
    covers: Matchers = (),
) -> str:
    """When an alert is active as PromQL over recorded figures over `window`: its condition and what it `lasts` for.

    `scope` is matchers as PromQL text for every series that is not recorded, `servers` those for Prometheus' and
    Alertmanager's own, and `covers` those for every series, recorded or not, that has their labels, if
    the alert `is_on_deployments`.
    The labels `extra` are in every group and every match; those in `collectors` distinguish collectors, as in `promql`.
    One that `is_kept_unknown` is also active while it is not known to be over.
    """
    covers = covers if is_on_deployments(alert) else ()
    compiler = _RuleCompiler(window, scope, tuple(extra), tuple(collectors), servers, covers)
    parts = [compiler.condition(alert.condition)]
    labels = records.labels_of(alert.condition)
    fired = f'max_over_time(ALERTS{{alertname="{alert.name}",alertstate="firing"}}[{_REMEMBERED}])'
    if alert.lasts is not None:
        parts.append(f"({compiler.condition(alert.lasts)}) and on ({compiler._names(labels)}) {fired}")
    if is_kept_unknown(alert):
        unseen = unknown(labels)
        shared = [label for label in labels if label in records.labels_of(unseen)]
        last = f"-Inf * group by ({compiler._names(labels)}) ({fired})"
        parts.append(f"{last} and on ({compiler._names(shared)}) ({compiler.condition(unseen)})")
    return parts[0] if len(parts) == 1 else " or ".join(f"({part})" for part in parts)


def is_kept_unknown(alert: records.Alert) -> bool:
    """Whether the alert, once it fires, stays active while its targets are `unknown`; its value is then -Inf.

    So do those on what targets expose, unless they have what they `lasts` for: data that are missing resolve none.
    """
    return alert.lasts is None and is_on_deployments(alert)


def is_on_deployments(alert: records.Alert) -> bool:
    """Whether it is about what targets expose, of a deployment or a model in an environment.

    The judge's are not: a cutover may be to deployments of several environments.
    """
    return alert.component != "judge" and "model_name" in records.labels_of(alert.condition)


def term_promql(
    term: records.Term,
    window: str = DEFAULT_WINDOW,
    scope: str = "",
    *,
    extra: Sequence[str] = (),
    collectors: Sequence[str] = COLLECTOR_LABELS,
    servers: str = "",
    covers: Matchers = (),
) -> str:
    """The term as PromQL, as `alert_promql` has it."""
    return _RuleCompiler(window, scope, tuple(extra), tuple(collectors), servers, covers).term(term)


class ConditionCompiler(ABC):
    """How terms and conditions are combined in PromQL; subclasses say which series the simplest terms read."""

    def condition(self, condition: records.Condition) -> str:
        """The condition as an expression, with the value that notifications show."""
        match condition:
            case records.Compare(left, operator, right):
                if isinstance(right, float):
                    return f"{self._operand(left)} {operator} {self._number(right)}"
                return f"{self._operand(left)} {operator} {self._on(left, right)} {self._operand(right)}"
            case records.Present(term):
                return self.term(term)
            case records.All(conditions):
                return self._joined("and", conditions)
            case records.Any(conditions):
                return " or ".join(f"({self.condition(each)})" for each in conditions)
            case records.Because(cause, each, _):
                return f'label_replace({self.condition(each)}, "{records.CAUSE}", "{cause}", "", "")'
            case records.Except(each, unless):
                return self._joined("unless", (each, unless))
            case records.Disappeared(own, before):
                now = self._own_series(own)
                past = f"max_over_time({now}[{before}])" if condition.at_any_time else f"{now} offset {before}"
                return f"{self._once(own, past)} unless on ({self._names(condition.on)}) {now}"
            case records.Absent() | records.Always():
                return self._without_series(condition)
            case _:
                assert_never(condition)

    def term(self, term: records.Term) -> str:
        """The term as an expression, over the alert's windows."""
        match term:
            case records.FigureRef():
                return self._shown(term)
            case records.SelfMetric():
                return self._own(term)
            case records.AdHocExpression():
                return self._measured(term)
            case records.BadRatio():
                return self._badness(term)
            case records.Budget():
                return self._budget(term)
            case records.RequestsEnded():
                return self._ended(term)
            case records.OverTime(function, shown, window, before):
                return f"{_over_time(function)}({self._past(shown, window)}{_offset(before)})"
            case records.Extreme(function, of, by):
                # An extreme is the same however many collectors there are.
                return self._across(
                    function, by, self._own_series(of) if isinstance(of, records.SelfMetric) else self._shown(of)
                )
            case records.Total(shown, by):
                return self._across("sum", by, self._shown(shown))
            case records.Subquery(function, of, window, every, before):
                return f"{_over_time(function)}(({self.term(of)})[{window}:{every}]{_offset(before)})"
            case records.Count(condition):
                by_names = self._names(())
                return f"count{f' by ({by_names})' if by_names else ''} ({self.condition(condition)})"
            case records.Quotient(numerator, denominator):
                below = f"({self._operand(denominator)} > 0)"
                return f"{self._operand(numerator)} / {self._on(numerator, denominator)} {below}"
            case records.Product(left, right):
                return f"{self._operand(left)} * {self._on(left, right)} {self._operand(right)}"
            case records.Scaled(scaled, factor):
                return f"{self._number(factor)} * {self._operand(scaled)}"
            case records.Shifted(shifted, by_number):
                sign = "-" if by_number < 0 else "+"
                return f"{self._operand(shifted)} {sign} {self._number(abs(by_number))}"
            case _:
                assert_never(term)

    def _across(self, function: str, by: Sequence[str], values: str) -> str:
        return f"{function} by ({self._names(by)}) ({values})"

    def _joined(self, word: str, conditions: Sequence[records.Condition]) -> str:
        first, *others = conditions
        text = f"({self.condition(first)})"
        for other in others:
            shared = [label for label in records.open_labels(first) if label in records.open_labels(other)]
            text += f" {word} on ({self._names(shared)}) ({self.condition(other)})"
        return text

    def _operand(self, term: records.Term) -> str:
        text = self.term(term)
        return f"({text})" if self._is_compound(term) else text

    def _is_compound(self, term: records.Term) -> bool:
        """Whether the term as an operand is written in parentheses."""
        return isinstance(
            term, records.Quotient | records.Product | records.Scaled | records.Shifted | records.AdHocExpression
        )

    def _on(self, left: records.Term, right: records.Term) -> str:
        """The matching of two terms: on the labels that identify the right one's values."""
        grouped = " group_left ()" if records.is_grouped(left, right) else ""
        return f"on ({self._names(records.open_labels(right))}){grouped}"

    def _past(self, shown: records.FigureRef, window: str) -> str:
        return f"{self._shown(shown)}[{window}]"

    @abstractmethod
    def _names(self, labels: Iterable[str]) -> str:
        """The labels of a group, or those that two sides are matched on."""

    def _number(self, value: float) -> str:
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)

    @abstractmethod
    def _shown(self, shown: records.FigureRef) -> str: ...

    def _own(self, own: records.SelfMetric) -> str:
        """One of the collector's own series; what several collectors say of the same is said once."""
        return self._own_series(own) if own.increase_over else self._once(own, self._own_series(own))

    def _once(self, own: records.SelfMetric, series: str) -> str:
        if not own.by or set(own.by) & set(self._collectors()) or own.name in FOREIGN_SERIES:
            return series
        # The collector that has scraped a target last knows the most of it.
        return once_promql(series, self._collectors(), best="min" if own.name.endswith("_age_seconds") else "max")

    @abstractmethod
    def _collectors(self) -> Sequence[str]:
        """The labels in which the series of several collectors differ."""

    @abstractmethod
    def _own_series(self, own: records.SelfMetric) -> str: ...

    @abstractmethod
    def _measured(self, measured: records.AdHocExpression) -> str: ...

    @abstractmethod
    def _badness(self, badness: records.BadRatio) -> str: ...

    @abstractmethod
    def _budget(self, budget: records.Budget) -> str: ...

    @abstractmethod
    def _ended(self, ended: records.RequestsEnded) -> str: ...

    @abstractmethod
    def _without_series(self, condition: records.Absent | records.Always) -> str:
        """A condition whose value has no series of its own."""


@dataclass(frozen=True, slots=True)
class _RuleCompiler(ConditionCompiler):
    """For rules, over the recording rules of figures over `window`."""

    window: str
    scope: str
    extra: tuple[str, ...]
    collectors: tuple[str, ...]
    servers: str = ""
    covers: Matchers = ()

    def _shown(self, shown: records.FigureRef) -> str:
        return self._recorded(FIGURES[shown.figure].record(self.window), shown.where)

    def _recorded(self, name: str, where: Matchers = ()) -> str:
        return f"{name}{matchers_promql((*where, *self.covers))}"

    def _names(self, labels: Iterable[str]) -> str:
        return ", ".join((*labels, *self.extra))

    def _collectors(self) -> Sequence[str]:
        return self.collectors

    def _own_series(self, own: records.SelfMetric) -> str:
        scope = self._scope(own.name)
        where = (*own.where, *(each for each in self.covers if each[0] in own.by))
        if own.increase_over:
            increase = Increase(own.name, where)
            return promql(increase, window=own.increase_over, by=(*own.by, *self.extra), scope=scope, collectors=())
        return f"{own.name}{matchers_promql(where, scope)}"

    def _measured(self, measured: records.AdHocExpression) -> str:
        return promql(
            measured.expression, window=self.window, by=(*measured.labels, *self.extra),
            scope=matchers_promql(self.covers, self.scope)[1:-1], collectors=self.collectors,
        )  # fmt: skip

    def _badness(self, badness: records.BadRatio) -> str:
        return self._recorded(badness.objective.record(badness.window))

    def _budget(self, budget: records.Budget) -> str:
        return self._recorded(budget.objective.record_budget)

    def _ended(self, ended: records.RequestsEnded) -> str:
        return self._recorded(record_ended(ended.window))

    def _without_series(self, condition: records.Absent | records.Always) -> str:
        if isinstance(condition, records.Always):
            return "vector(1) == 1"
        return f"absent({condition.name}{matchers_promql((), self._scope(condition.name))}) == 1"

    def _scope(self, name: str) -> str:
        if name in FOREIGN_SERIES:
            return "" if name == SCRAPED_UP else self.servers
        return self.scope


def _over_time(function: str) -> str:
    return "changes" if function == "changes" else f"{function}_over_time"


def _offset(before: str) -> str:
    return f" offset {before}" if before else ""
