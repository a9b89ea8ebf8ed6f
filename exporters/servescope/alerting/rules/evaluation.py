"""Evaluates alerts without a Prometheus: which conditions hold, and how an alert's state changes.

Both match Prometheus: terms are matched on the same labels as in the PromQL of `promql`, and an alert
is pending, firing, kept firing and resolved at the same evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce
from typing import Final, Protocol, assert_never

import numpy as np
from numpy.typing import NDArray

from servescope.alerting.rules import records
from servescope.alerting.rules.labelled import NOTHING, Floats, Labelled, labelled_values
from servescope.contract.expressions import Vector
from servescope.contract.own_metrics import FOREIGN_SERIES, own_family
from servescope.contract.samples import Labels
from servescope.contract.types import Objective
from servescope.settings.clock import not_after

_MOST_COMPILED: Final = 4096


Readings = Vector | Labelled
"""What is read of a view: values by their labels."""


class View(Protocol):
    """What an evaluation reads, at its instant; absent values are left out."""

    def figure(self, shown: records.FigureRef) -> Readings:
        """A figure's values, by the deployment's labels and the figure's own."""

    def over(self, over: records.OverTime) -> Readings:
        """An aggregate of a figure's values at the evaluations of a past window."""

    def own(self, own: records.SelfMetric, before: str = "") -> Readings:
        """The collector's own series now, or `before` ago."""

    def highest(self, own: records.SelfMetric, window: str) -> Readings:
        """The highest values of one of the collector's own series within a past window."""

    def lately(self, lately: records.Subquery) -> Readings:
        """The maximum or minimum of a term over a past window."""

    def measured(self, measured: records.AdHocExpression) -> Readings:
        """An expression over the default window, by `measured.labels`."""

    def badness(self, badness: records.BadRatio) -> Readings:
        """An objective's bad share over its window."""

    def ended(self, ended: records.RequestsEnded) -> Readings:
        """The number of requests that ended over a window of objectives."""


@lru_cache(_MOST_COMPILED)
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


class Instant:
    """One evaluation of conditions: what a term or a condition reads of `view` is computed once for all alerts."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._known: dict[_Part, Labelled] = {}

    def read(self, part: _Part) -> Labelled:
        """The values of a part now."""
        known = self._known.get(part)
        if known is None:
            known = self._known[part] = part.compute(self)
        return known

    def vector(self, part: _Part) -> Vector:
        """The values of a part now, by their labels."""
        # A product of 0 and infinity is NaN, as in Prometheus.
        with np.errstate(invalid="ignore", over="ignore"):
            return self.read(part).vector()


@dataclass(frozen=True, slots=True)
class CompiledAlert:
    """The condition of an alert, ready to be evaluated."""

    condition: _Part
    lasts: _Part | None

    def active(self, before: Mapping[Labels, Active], at: Instant) -> Vector:
        """The labels for which it is active now: its condition holds, or it fired `before` and `lasts`."""
        held = at.vector(self.condition)
        fired = {labels for labels, active in before.items() if active.fired_ms is not None}
        if self.lasts is None or fired <= held.keys():
            return held
        return {**{labels: value for labels, value in at.vector(self.lasts).items() if labels in fired}, **held}


def compile_alert(alert: records.Alert) -> CompiledAlert:
    """An alert ready to be evaluated."""
    return CompiledAlert(_compiled(alert.condition), None if alert.lasts is None else _compiled(alert.lasts))


def values_of(term: records.Term, at: Instant) -> Vector:
    """The values of a term now."""
    return at.vector(_compiled(term))


# --- Compiling --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A term or a condition, ready to be computed; equal ones of all alerts are one."""

    compute: Callable[[Instant], Labelled]


class _Read:
    """What is read of a view, with keys that stay the same objects while the labels do."""

    def __init__(self, read: Callable[[View], Readings]) -> None:
        self._read = read
        self._keys = NOTHING.keys

    def __call__(self, at: Instant) -> Labelled:
        read = self._read(at.view)
        found = read if isinstance(read, Labelled) else labelled_values(read, self._keys)
        self._keys = found.keys
        return found


@lru_cache(_MOST_COMPILED)
def _compiled(part: records.Term | records.Condition) -> _Part:
    if isinstance(part, records.Present):
        return _compiled(part.term)
    return _Part(_condition(part) if isinstance(part, records.Condition) else _term(part))


def _condition(condition: records.Condition) -> Callable[[Instant], Labelled]:
    """How to compute for which labels a condition holds, with the values for notifications."""
    match condition:
        case records.Compare(left, operator, right):
            return _comparison(left, OPERATORS[operator], right)
        case records.Present(term):
            return _compiled(term).compute
        case records.All((first, *others)):
            return _all(_compiled(first), [(_compiled(each), _shared(first, each)) for each in others])
        case records.Any(conditions):
            each_of = [_compiled(each) for each in conditions]
            return lambda at: reduce(Labelled.joined, map(at.read, each_of), NOTHING)
        case records.Because(cause, caused, _):
            return _because(_compiled(caused), (records.CAUSE, cause))
        case records.Except(first, unless):
            return _except(_compiled(first), _compiled(unless), _shared(first, unless))
        case records.Disappeared(own, before):
            return _disappeared(_compiled(own), _Read(partial(_past, condition, own, before)), condition.on)
        case records.Absent(name):
            read = _compiled(records.SelfMetric(name))
            return lambda at: labelled_values({} if at.read(read).values.size else {(): 1.0})
        case records.Always():
            return _Read(lambda _: {(): 1.0})
        case records.All():
            return lambda _: NOTHING
        case _:
            assert_never(condition)


def _comparison(
    left: records.Term, compare: Callable[[Floats, Floats | float], NDArray[np.bool_]], right: records.Term | float
) -> Callable[[Instant], Labelled]:
    of = _compiled(left)
    if isinstance(right, float):
        bound = right

        def compute(at: Instant) -> Labelled:
            found = at.read(of)
            return found.where(compare(found.values, bound)) if found.values.size else NOTHING

        return compute
    pair = _pairing(left, right)

    def compute_pairs(at: Instant) -> Labelled:
        found, others = pair(at)
        return found.where(compare(found.values, others))

    return compute_pairs


def _pairing(left: records.Term, right: records.Term) -> Callable[[Instant], tuple[Labelled, Floats]]:
    """The values of a term that match one of another, with the labels of the result, and those of the other."""
    on = records.open_labels(right)
    kept = records.labels_of(left) if records.is_grouped(left, right) else records.open_labels(left)
    mine, others = _compiled(left), _compiled(right)

    def pair(at: Instant) -> tuple[Labelled, Floats]:
        found = at.read(mine)
        return found.paired(at.read(others), on, kept) if found.values.size else (NOTHING, NOTHING.values)

    return pair


def _shared(first: records.Condition, other: records.Condition) -> tuple[str, ...]:
    """The labels by which the values of two conditions are matched."""
    others = records.open_labels(other)
    return tuple(label for label in records.open_labels(first) if label in others)


def _all(first: _Part, others: Sequence[tuple[_Part, tuple[str, ...]]]) -> Callable[[Instant], Labelled]:
    def compute(at: Instant) -> Labelled:
        held = at.read(first)
        for other, shared in others:
            if not held.values.size:
                break
            held = held.where(held.keys.rows_in(at.read(other).keys, shared) >= 0)
        return held

    return compute


def _except(first: _Part, unless: _Part, shared: tuple[str, ...]) -> Callable[[Instant], Labelled]:
    def compute(at: Instant) -> Labelled:
        held = at.read(first)
        return held.where(held.keys.rows_in(at.read(unless).keys, shared) < 0) if held.values.size else held

    return compute


def _because(caused: _Part, cause: tuple[str, str]) -> Callable[[Instant], Labelled]:
    def compute(at: Instant) -> Labelled:
        held = at.read(caused)
        return Labelled(held.keys.labelled(cause), held.values) if held.values.size else held

    return compute


def _past(condition: records.Disappeared, own: records.SelfMetric, before: str, view: View) -> Readings:
    return view.highest(own, before) if condition.at_any_time else view.own(own, before)


def _disappeared(now: _Part, past: _Read, on: tuple[str, ...]) -> Callable[[Instant], Labelled]:
    def compute(at: Instant) -> Labelled:
        found = past(at)
        return found.where(found.keys.rows_in(at.read(now).keys, on) < 0) if found.values.size else NOTHING

    return compute


def _term(term: records.Term) -> Callable[[Instant], Labelled]:
    """How to compute the values of a term."""
    match term:
        case records.FigureRef():
            return _Read(lambda view: view.figure(term))
        case records.SelfMetric():
            return _Read(lambda view: view.own(term))
        case records.AdHocExpression():
            return _Read(lambda view: view.measured(term))
        case records.BadRatio():
            return _Read(lambda view: view.badness(term))
        case records.Budget(objective, window):
            return _budget(objective, _compiled(records.BadRatio(objective, window)))
        case records.RequestsEnded():
            return _Read(lambda view: view.ended(term))
        case records.OverTime():
            return _Read(lambda view: view.over(term))
        case records.Subquery():
            return _Read(lambda view: view.lately(term))
        case records.Extreme(function, of, by):
            return _grouped(_compiled(of), by, np.fmax if function == "max" else np.fmin, np.nan)
        case records.Total(shown, by):
            return _grouped(_compiled(shown), by, np.add, 0.0)
        case records.Count(condition):
            counted = _compiled(condition)
            return lambda at: labelled_values({(): float(count)} if (count := at.read(counted).values.size) else {})
        case records.Quotient(numerator, denominator):
            return _quotient(_pairing(numerator, denominator))
        case records.Product(left, right):
            return _mapped(_pairing(left, right), np.multiply)
        case records.Scaled(scaled, factor):
            return _mapped(_with(_compiled(scaled), factor), np.multiply)
        case records.Shifted(shifted, by_number):
            return _mapped(_with(_compiled(shifted), by_number), np.add)
        case _:
            assert_never(term)


def _budget(objective: Objective, shares: _Part) -> Callable[[Instant], Labelled]:
    last = NOTHING

    def compute(at: Instant) -> Labelled:
        nonlocal last
        keys = at.read(shares).keys
        if keys is not last.keys:
            last = Labelled(keys, np.array([objective.of(dict(labels)).budget for labels in keys.labels]))
        return last

    return compute


def _grouped(of: _Part, by: tuple[str, ...], reduce_to: np.ufunc, first: float) -> Callable[[Instant], Labelled]:
    def compute(at: Instant) -> Labelled:
        found = at.read(of)
        if not found.values.size:
            return NOTHING
        keys, rows = found.keys.groups(by)
        values = np.full(len(keys.labels), first)
        reduce_to.at(values, rows, found.values)
        return Labelled(keys, values)

    return compute


def _quotient(pair: Callable[[Instant], tuple[Labelled, Floats]]) -> Callable[[Instant], Labelled]:
    def compute(at: Instant) -> Labelled:
        above, below = pair(at)
        if not below.size:
            return NOTHING
        kept = above.where(below > 0)
        return Labelled(kept.keys, kept.values / below[below > 0])

    return compute


def _with(of: _Part, number: float) -> Callable[[Instant], tuple[Labelled, float]]:
    return lambda at: (at.read(of), number)


def _mapped(
    pair: Callable[[Instant], tuple[Labelled, Floats | float]], operate: np.ufunc
) -> Callable[[Instant], Labelled]:
    def compute(at: Instant) -> Labelled:
        found, others = pair(at)
        return Labelled(found.keys, operate(found.values, others))

    return compute


OPERATORS: Final[Mapping[str, np.ufunc]] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
}  # fmt: skip


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
