"""Evaluates alerts without a Prometheus: which conditions hold, and how an alert's state changes.

Both match Prometheus: terms are matched on the same labels as in the PromQL of `servescope.alerting.promql`, and an
alert is pending, firing, kept firing and resolved at the same evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import eq, ge, gt, le, lt, ne
from typing import Final, Protocol, assert_never

from servescope.alerting import records
from servescope.contract.expressions import Vector
from servescope.contract.own_metrics import FOREIGN_SERIES, own_family
from servescope.contract.samples import Labels, pick_labels
from servescope.settings.clock import not_after

_RESTRICTED: Final = 1 << 15


class View(Protocol):
    """What an evaluation reads, at its instant; absent values are not in a vector."""

    def figure(self, shown: records.FigureRef) -> Vector:
        """A figure's values, by the deployment's labels and the figure's own."""

    def over(self, over: records.OverTime) -> Vector:
        """An aggregate of a figure's values at the evaluations of a past window."""

    def own(self, own: records.SelfMetric, before: str = "") -> Vector:
        """The collector's own series now, or `before` ago."""

    def highest(self, own: records.SelfMetric, window: str) -> Vector:
        """The highest values of one of the collector's own series within a past window."""

    def lately(self, lately: records.Subquery) -> Vector:
        """The maximum or minimum of a term over a past window."""

    def measured(self, measured: records.AdHocExpression) -> Vector:
        """An expression over the default window, by `measured.labels`."""

    def badness(self, badness: records.BadRatio) -> Vector:
        """An objective's bad share over its window."""

    def ended(self, ended: records.RequestsEnded) -> Vector:
        """The number of requests that ended over a window of objectives."""


def is_evaluated_by_collector(alert: records.Alert) -> bool:
    """Whether a collector has the data for it: not for series of other programs, nor for its own absence."""
    read = [
        own_family(term.name)
        for each in records.conditions_of(alert)
        for term in records.terms(each)
        if isinstance(term, records.SelfMetric)
    ]
    # Of `up`, which Prometheus makes, the catalog says that it is about a collector.
    # What rules record of other programs does not exist for a collector.
    ours = all(
        record and record.program in ("collector", "rules") and record.name not in FOREIGN_SERIES for record in read
    )
    return ours and not isinstance(alert.condition, records.Absent)


def active_now(alert: records.Alert, before: Mapping[Labels, Active], view: View) -> Vector:
    """The labels for which an alert is active now: its condition holds, or it fired `before` and `lasts`."""
    held = holding(alert.condition, view)
    fired = {labels for labels, active in before.items() if active.fired_ms is not None}
    if alert.lasts is None or fired <= held.keys():
        return held
    return {**{labels: value for labels, value in holding(alert.lasts, view).items() if labels in fired}, **held}


def holding(condition: records.Condition, view: View) -> Vector:
    """The labels for which a condition holds now, with the values for notifications."""
    match condition:
        case records.Compare(left, operator, right):
            compare = OPERATORS[operator]
            if isinstance(right, float):
                return {labels: value for labels, value in values_of(left, view).items() if compare(value, right)}
            return {labels: value for labels, value, other in _paired(left, right, view) if compare(value, other)}
        case records.Present(term):
            return dict(values_of(term, view))
        case records.All((first, *others)):
            held = holding(first, view)
            for other in others:
                if not held:
                    break
                held = _keep(held, first, other, view, present=True)
            return held
        case records.Any(conditions):
            found: Vector = {}
            for each in conditions:
                found = {**holding(each, view), **found}
            return found
        case records.Except(first, unless):
            held = holding(first, view)
            return _keep(held, first, unless, view, present=False) if held else held
        case records.Disappeared(own, before):
            same = condition.on
            now = {_restrict(labels, same) for labels in view.own(own)}
            past = view.highest(own, before) if condition.at_any_time else view.own(own, before)
            return {labels: value for labels, value in past.items() if _restrict(labels, same) not in now}
        case records.Absent(name):
            return {} if view.own(records.SelfMetric(name)) else {(): 1.0}
        case records.Always():
            return {(): 1.0}
        case records.All():
            return {}
        case _:
            assert_never(condition)


def values_of(term: records.Term, view: View) -> Vector:
    """The values of a term now."""
    match term:
        case records.FigureRef():
            return view.figure(term)
        case records.SelfMetric():
            return view.own(term)
        case records.AdHocExpression():
            return view.measured(term)
        case records.BadRatio():
            return view.badness(term)
        case records.Budget(objective, window):
            shares = view.badness(records.BadRatio(objective, window))
            return {labels: objective.of(dict(labels)).budget for labels in shares}
        case records.RequestsEnded():
            return view.ended(term)
        case records.OverTime():
            return view.over(term)
        case records.Extreme(function, of, by):
            extremes: Vector = {}
            for labels, value in (view.figure(of) if isinstance(of, records.FigureRef) else view.own(of)).items():
                group = _restrict(labels, by)
                extremes[group] = _EXTREMES[function](value, extremes.get(group, value))
            return extremes
        case records.Total(shown, by):
            totals: Vector = {}
            for labels, value in view.figure(shown).items():
                group = _restrict(labels, by)
                totals[group] = totals.get(group, 0.0) + value
            return totals
        case records.Subquery():
            return view.lately(term)
        case records.Count(condition):
            count = len(holding(condition, view))
            return {(): float(count)} if count else {}
        case records.Quotient(numerator, denominator):
            return {
                labels: value / below for labels, value, below in _paired(numerator, denominator, view) if below > 0
            }
        case records.Product(left, right):
            return {labels: value * other for labels, value, other in _paired(left, right, view)}
        case records.Scaled(scaled, factor):
            return {labels: factor * value for labels, value in values_of(scaled, view).items()}
        case records.Shifted(shifted, by_number):
            return {labels: value + by_number for labels, value in values_of(shifted, view).items()}
        case _:
            assert_never(term)


def _paired(left: records.Term, right: records.Term, view: View) -> Iterable[tuple[Labels, float, float]]:
    """The matching values of two terms, with the labels of the result."""
    on = records.open_labels(right)
    others = {_restrict(labels, on): value for labels, value in values_of(right, view).items()}
    kept = records.labels_of(left) if records.is_grouped(left, right) else records.open_labels(left)
    for labels, value in values_of(left, view).items():
        other = others.get(_restrict(labels, on))
        if other is not None:
            yield _restrict(labels, kept), value, other


def _keep(held: Vector, first: records.Condition, other: records.Condition, view: View, *, present: bool) -> Vector:
    """The values for which another condition holds too, or does not hold."""
    others = records.open_labels(other)
    shared = tuple(label for label in records.open_labels(first) if label in others)
    known = {_restrict(labels, shared) for labels in holding(other, view)}
    return {labels: value for labels, value in held.items() if (_restrict(labels, shared) in known) is present}


# The same labels are restricted at every evaluation.
_restrict = lru_cache(_RESTRICTED)(pick_labels)


OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": lt, "<=": le, ">": gt, ">=": ge, "==": eq, "!=": ne,
}  # fmt: skip
_EXTREMES: Final[Mapping[str, Callable[[float, float], float]]] = {"max": max, "min": min}


# --- From evaluation to evaluation ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Active:
    """A pending or firing alert of one set of labels; times are in milliseconds.

    `fired_ms` is None while it is pending; `kept_ms` is when its condition stopped holding, None while it holds.
    """

    value: float
    since_ms: int
    fired_ms: int | None = None
    kept_ms: int | None = None

    def known_at(self, time_ms: int) -> Active:
        """It with no time later than an instant, to which the clock was set back."""
        fired_ms, kept_ms = not_after(time_ms, self.fired_ms), not_after(time_ms, self.kept_ms)
        return replace(self, since_ms=min(self.since_ms, time_ms), fired_ms=fired_ms, kept_ms=kept_ms)


def advance(alert: records.Alert, before: Mapping[Labels, Active], held: Vector, at_ms: int) -> dict[Labels, Active]:
    """The pending and firing alerts after an evaluation at which the condition holds for `held`.

    A firing alert that is not in the result is resolved.
    """
    waits_ms, keeps_ms = duration_ms(alert.for_), duration_ms(alert.keep_firing_for)
    after: dict[Labels, Active] = {}
    for labels, value in held.items():
        known = before.get(labels, Active(value, at_ms))
        # A clock that was ahead for a while must not extend `for` or `keep_firing_for`.
        since_ms = min(known.since_ms, at_ms)
        is_due = known.fired_ms is None and at_ms - since_ms >= waits_ms
        fired_ms = at_ms if is_due else known.fired_ms
        after[labels] = replace(known, value=value, since_ms=since_ms, fired_ms=fired_ms, kept_ms=None)
    for labels, known in before.items():
        if labels in after or known.fired_ms is None or not keeps_ms:
            continue
        kept_ms = at_ms if known.kept_ms is None else min(known.kept_ms, at_ms)
        if at_ms - kept_ms < keeps_ms:
            after[labels] = replace(known, kept_ms=kept_ms)
    return after


_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(duration: str) -> int:
    """A duration of one unit, such as `5m`, in milliseconds; 0 for none."""
    return int(duration[:-1]) * _UNITS_MS[duration[-1]] if duration else 0
