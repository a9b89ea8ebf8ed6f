"""The types of alerts: conditions over the catalog's figures, compiled to PromQL on the recording rules.

A `Term` has one value per deployment (and per value of its other labels); a condition keeps those for which it holds.
Thresholds are not defined here: they are the catalog's bands, bounds and objectives.

Shown                 a figure, as recorded
Own                   one of the collector's own series
Measured              an expression of the contract's counters and gauges that is no figure
Badness               the bad share of an objective over one of its windows
Over                  the average, maximum, minimum or number of changes of a figure over a past window
Extreme               the maximum or minimum of the values of several deployments or targets
Quotient              a term ÷ another
Scaled, Shifted       a term × a number, a term + a number
Compare               term against term or number;  Present  of a term;  All, Any, Except  of conditions
Gone, Vanished        of series
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, assert_never

from servescope.contract.expressions import Expression, Matchers, matchers_promql, promql
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.contract.own_metrics import FOREIGN_SERIES
from servescope.contract.types import DEFAULT_WINDOW, BurnWindow, Objective
from servescope.errors import UsageError

Operator = Literal["<", "<=", ">", ">=", "==", "!="]
Severity = Literal["critical", "warning", "info", "none"]


@dataclass(frozen=True, slots=True)
class Shown:
    """A figure of the catalog, filtered by `where`."""

    figure: str
    where: Matchers = ()

    def __post_init__(self) -> None:
        if self.figure not in FIGURES:
            raise UsageError(f"unknown figure {self.figure!r}, supported: {', '.join(FIGURES)}")


@dataclass(frozen=True, slots=True)
class Own:
    """A series of the collector itself, or one of the catalog's `FOREIGN_SERIES`, with its identifying labels.

    With `increase_over` it is the increase of a counter over that window.
    """

    name: str
    by: tuple[str, ...] = ()
    where: Matchers = ()
    increase_over: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """An expression that is not a figure, per deployment and per value of the labels in `by`.

    With `level` it is aggregated by those labels instead, for example over the deployments of a model.
    """

    expression: Expression
    by: tuple[str, ...] = ()
    level: tuple[str, ...] = DEPLOYMENT_LABELS

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of its values."""
        return (*self.level, *self.by)


@dataclass(frozen=True, slots=True)
class Badness:
    """The bad share of an objective over a window."""

    objective: Objective
    window: str


@dataclass(frozen=True, slots=True)
class Over:
    """An aggregate of a figure over a `window` that ended `before` ago."""

    function: Literal["avg", "max", "min", "changes"]
    shown: Shown
    window: str
    before: str = ""


@dataclass(frozen=True, slots=True)
class Extreme:
    """The maximum or minimum by the labels `by`, for example over the deployments of a model.

    With `before` it is the value at that time ago, which only the collector's own series support.
    """

    function: Literal["max", "min"]
    of: Shown | Own
    by: tuple[str, ...]
    before: str = ""

    def __post_init__(self) -> None:
        if self.before and isinstance(self.of, Shown):
            raise UsageError(f"extreme of figure {self.of.figure!r} {self.before} ago: only an `Own` has a `before`")


@dataclass(frozen=True, slots=True)
class Quotient:
    """Numerator ÷ denominator of the same deployment; absent where the denominator is not above 0."""

    numerator: Term
    denominator: Term


@dataclass(frozen=True, slots=True)
class Scaled:
    """A term times a number."""

    term: Term
    factor: float


@dataclass(frozen=True, slots=True)
class Shifted:
    """A term plus a number."""

    term: Term
    by: float


Term = Shown | Own | Measured | Badness | Over | Extreme | Quotient | Scaled | Shifted


@dataclass(frozen=True, slots=True)
class Compare:
    """Holds where the comparison is true; its value is the left one."""

    left: Term
    operator: Operator
    right: Term | float


@dataclass(frozen=True, slots=True)
class Present:
    """Holds where the term has any value."""

    term: Term


@dataclass(frozen=True, slots=True)
class All:
    """Holds where all conditions hold; labels and value are the first one's."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Any:
    """Holds where any condition holds; labels and value are those of the first that does."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Except:
    """Holds where the first condition holds and the second does not."""

    condition: Condition
    unless: Condition


@dataclass(frozen=True, slots=True)
class Gone:
    """Holds if there is no such series."""

    name: str


@dataclass(frozen=True, slots=True)
class Vanished:
    """Holds for each series that existed `before` ago and does not now; the labels in `whatever` may differ."""

    own: Own
    before: str
    whatever: tuple[str, ...] = ()

    @property
    def on(self) -> tuple[str, ...]:
        """The labels that identify a series."""
        return tuple(label for label in self.own.by if label not in self.whatever)


@dataclass(frozen=True, slots=True)
class Always:
    """Always holds."""


Condition = Compare | Present | All | Any | Except | Gone | Vanished | Always


@dataclass(frozen=True, slots=True)
class Runbook:
    """The sections of a runbook."""

    meaning: str
    impact: str
    diagnosis: str
    mitigation: str
    false_positives: str


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert.

    `wait` and `keep` are Prometheus' `for` and `keep_firing_for`, "" for none. `summary` is a sentence about the
    condition; `description` may use `{{ $labels.… }}` of the condition's labels and `{{ $value }}`. A critical alert
    inhibits the warnings of its `family`. `figure` is shown by a panel of `dashboard`, that with the title `panel` if
    given (see `servescope.alerting.links`). `waits_less` is the reason for a `wait` below five minutes.
    """

    name: str
    severity: Severity
    component: str
    family: str
    condition: Condition
    summary: str
    description: str
    runbook: Runbook
    dashboard: str
    figure: str
    wait: str = "10m"
    keep: str = ""
    waits_less: str = ""
    panel: str = ""

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels that the rule adds to those of its condition."""
        return {"severity": self.severity, "component": self.component, "family": self.family, "team": TEAM}


TEAM: Final = "serving"

WHO: Final = "{{ $labels.deployment_id }} ({{ $labels.model_name }}, {{ $labels.inference_stack }})"
PERCENT: Final = "{{ $value | humanizePercentage }}"
NUMBER: Final = "{{ $value | humanize }}"
"""Templates for the deployment and the value in a description."""


# --- Labels -----------------------------------------------------------------------------------------------------------


def labels_of(value: Term | Condition) -> tuple[str, ...]:
    """The labels that the values of a term or a condition have."""
    match value:
        case Shown(figure, _):
            return (*DEPLOYMENT_LABELS, *FIGURES[figure].by)
        case Own(_, by, _, _) | Extreme(_, _, by, _):
            return by
        case Measured():
            return value.labels
        case Badness():
            return DEPLOYMENT_LABELS
        case Over(_, shown, _, _):
            return labels_of(shown)
        case Scaled(term, _) | Shifted(term, _) | Present(term):
            return labels_of(term)
        case Quotient(left, right) | Compare(left, _, right):
            if isinstance(right, float) or is_grouped(left, right):
                return labels_of(left)
            # One to one, Prometheus keeps what both are matched on.
            return open_labels(left)
        case All(conditions) | Any(conditions):
            return labels_of(conditions[0])
        case Except(condition, _):
            return labels_of(condition)
        case Vanished(own):
            return labels_of(own)
        case Gone() | Always():
            return ()
        case _:
            assert_never(value)


def open_labels(value: Term | Condition) -> tuple[str, ...]:
    """The labels that identify values: all but those with a single value by a matcher."""
    match value:
        case Shown(_, where) | Own(_, _, where, _) | Over(_, Shown(_, where), _, _) | Compare(Shown(_, where), _, _):
            settled = {label for label, values in where if len(values) == 1}
            return tuple(label for label in labels_of(value) if label not in settled)
        case _:
            return labels_of(value)


def is_grouped(left: Term, right: Term) -> bool:
    """Whether several values on the left match one on the right."""
    return open_labels(left) != open_labels(right)


def terms(condition: Condition) -> Iterator[Term]:
    """Every term that a condition reads, including nested ones."""
    match condition:
        case Compare(left, _, right):
            yield from _within(left)
            if not isinstance(right, float):
                yield from _within(right)
        case Present(term):
            yield from _within(term)
        case All(conditions) | Any(conditions):
            for each in conditions:
                yield from terms(each)
        case Except(each, unless):
            yield from terms(each)
            yield from terms(unless)
        case Vanished(own, _):
            yield own
        case Gone(name):
            yield Own(name)
        case Always():
            return
        case _:
            assert_never(condition)


def _within(term: Term) -> Iterator[Term]:
    yield term
    match term:
        case Over(_, shown, _, _) | Extreme(_, shown, _, _):
            yield shown
        case Quotient(numerator, denominator):
            yield from _within(numerator)
            yield from _within(denominator)
        case Scaled(inner, _) | Shifted(inner, _):
            yield from _within(inner)
        case _:
            return


# --- PromQL -----------------------------------------------------------------------------------------------------------


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


# --- Objectives -------------------------------------------------------------------------------------------------------


def burns(objective: Objective, window: BurnWindow, traffic: Condition) -> Condition:
    """The burn rate of the objective's error budget is above `factor` over both windows."""
    bound = round(window.factor * objective.budget, 12)
    return All((
        Compare(Badness(objective, window.long), ">", bound),
        Compare(Badness(objective, window.short), ">", bound),
        traffic,
    ))  # fmt: skip
