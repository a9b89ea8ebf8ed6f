"""The types of alerts: conditions over the catalog's figures.

A `Term` has one value per deployment (and per value of its other labels); a condition keeps those for which it holds.
Thresholds are not defined here: they are the catalog's bands, bounds and objectives.

FigureRef             a figure, as recorded
SelfMetric            one of the collector's own series
AdHocExpression       an expression of the contract's counters and gauges that is no figure
BadRatio              the bad share of an objective over one of its windows
Budget                the share that may be bad of an objective
RequestsEnded         how many requests ended over a window of objectives
OverTime              the average, maximum, minimum, last value or number of changes of a figure over a past window
Extreme               the maximum or minimum of the values of several deployments or targets
Total                 the sum of a figure over several deployments
Subquery              the maximum, minimum or number of changes of one of these over a past window
Count                 for how many a condition holds
Quotient, Product     a term ÷ another, a term × another
Scaled, Shifted       a term × a number, a term + a number
Compare               term against term or number;  Present  of a term;  All, Any, Except  of conditions
Because               a condition, with the cause as a label of its values
Absent, Disappeared   of series
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Final, Literal, assert_never

from servescope.alerting.playbooks.families import Playbook
from servescope.contract.expressions import Expression, Matchers, Pattern
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.contract.types import Objective
from servescope.errors import UsageError

Operator = Literal["<", "<=", ">", ">=", "==", "!="]
Severity = Literal["critical", "warning", "info", "none"]


@dataclass(frozen=True, slots=True)
class FigureRef:
    """A figure of the catalog, filtered by `where`."""

    figure: str
    where: Matchers = ()

    def __post_init__(self) -> None:
        if self.figure not in FIGURES:
            raise UsageError(f"unknown figure {self.figure!r}, supported: {', '.join(FIGURES)}")


@dataclass(frozen=True, slots=True)
class SelfMetric:
    """A series of the collector itself, of a judge, or one of `FOREIGN_SERIES`, with its identifying labels.

    With `increase_over` it is the increase of a counter over that window.
    """

    name: str
    by: tuple[str, ...] = ()
    where: Matchers = ()
    increase_over: str = ""


@dataclass(frozen=True, slots=True)
class AdHocExpression:
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


def by_replica(figure: str) -> AdHocExpression:
    """A figure by the replicas that report its metrics."""
    return AdHocExpression(FIGURES[figure].expression, ("replica", *FIGURES[figure].by))


@dataclass(frozen=True, slots=True)
class BadRatio:
    """The bad share of an objective over a window."""

    objective: Objective
    window: str


@dataclass(frozen=True, slots=True)
class Budget:
    """The share that may be bad of an objective, of each deployment with a bad share over a window."""

    objective: Objective
    window: str


@dataclass(frozen=True, slots=True)
class RequestsEnded:
    """The number of requests that ended over a window of objectives."""

    window: str


@dataclass(frozen=True, slots=True)
class OverTime:
    """An aggregate of a figure over a `window` that ended `before` ago."""

    function: Literal["avg", "max", "min", "last", "changes"]
    shown: FigureRef
    window: str
    before: str = ""


def an_hour_ago(shown: FigureRef) -> OverTime:
    """A figure's average over the hour that ended 30 minutes ago."""
    return OverTime("avg", shown, "1h", before="30m")


@dataclass(frozen=True, slots=True)
class Extreme:
    """The maximum or minimum by the labels `by`, for example over the deployments of a model."""

    function: Literal["max", "min"]
    of: FigureRef | SelfMetric
    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of a figure by the labels `by`, for example over the stacks of a model."""

    shown: FigureRef
    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Subquery:
    """The maximum, minimum or number of changes of a term, sampled each `every` of a `window` that ended `before` ago.

    What was absent at a sample is left out of it, and what was absent at all samples has no value.
    """

    function: Literal["max", "min", "changes"]
    of: Extreme | Total | AdHocExpression
    window: str
    every: str = "5m"
    before: str = ""


@dataclass(frozen=True, slots=True)
class Count:
    """For how many label sets a condition holds, over all deployments; absent where it holds for none."""

    condition: Condition


@dataclass(frozen=True, slots=True)
class Quotient:
    """Numerator ÷ denominator of the same deployment; absent where the denominator is not above 0."""

    numerator: Term
    denominator: Term


@dataclass(frozen=True, slots=True)
class Product:
    """A term times another of the same deployment."""

    left: Term
    right: Term


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


Term = (
    FigureRef | SelfMetric | AdHocExpression | BadRatio | Budget | RequestsEnded | OverTime | Extreme | Total | Subquery
    | Count | Quotient | Product | Scaled | Shifted
)  # fmt: skip


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
    """Holds where any condition holds; labels and value are those of the first that does, by the same labels."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Because:
    """Holds where the condition does, with the label `cause`: one alert on several causes says which it is.

    `panel` is the title of the panel that shows it, where that is not its figure's.
    """

    cause: str
    condition: Condition
    panel: str = ""


@dataclass(frozen=True, slots=True)
class Except:
    """Holds where the first condition holds and the second does not."""

    condition: Condition
    unless: Condition


@dataclass(frozen=True, slots=True)
class Absent:
    """Holds if there is no such series."""

    name: str


@dataclass(frozen=True, slots=True)
class Disappeared:
    """Holds for each series that existed `before` ago and does not now; the labels in `whatever` may differ.

    With `at_any_time` it existed at any time since then; its value is the highest one.
    """

    own: SelfMetric
    before: str
    whatever: tuple[str, ...] = ()
    at_any_time: bool = False

    @property
    def on(self) -> tuple[str, ...]:
        """The labels that identify a series."""
        return tuple(label for label in self.own.by if label not in self.whatever)


@dataclass(frozen=True, slots=True)
class Always:
    """Always holds."""


Condition = Compare | Present | All | Any | Because | Except | Absent | Disappeared | Always


@dataclass(frozen=True, slots=True)
class FirstCheck:
    """What to look at first: one query by deployment, and how a `bad` and a `good` answer look.

    `by_replica` asks the same of the replicas, or the targets, of a deployment, of which the worst ten are shown: the
    highest values unless `lowest`. `apart` says how to read it.
    """

    query: Term
    bad: str
    good: str
    by_replica: Term | None = None
    apart: str = ""
    lowest: bool = False


@dataclass(frozen=True, slots=True)
class Runbook:
    """The sections of a runbook; `impact` is what users notice, `mitigation` what to do now on every engine.

    `playbooks` are the topics whose logs, metrics and switches of each engine family belong to it. `avoid` is what not
    to do, `call` whom to call and when, `over` how to know that it is over.
    """

    meaning: str
    impact: str
    diagnosis: str
    mitigation: str
    false_positives: str
    first: FirstCheck
    playbooks: tuple[Playbook, ...]
    avoid: str
    call: str
    over: str


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert.

    `for_` and `keep_firing_for` are Prometheus', "" for none. `summary` is a sentence about the
    condition; `description` may use `{{ $labels.… }}` of the condition's labels and `{{ $value }}`. A critical alert
    inhibits the warnings of its `family`. `figure` is shown by a panel of `dashboard`, that with the title `panel` if
    given (see `links`). `waits_less` is the reason for a `for_` below five minutes. An alert that
    fires stays active while `lasts` holds, even if its `condition` no longer does; both have the same labels.
    `headline` is that of `servescope.alerting.headlines`; `LISTED` in it and in the description are the values of the
    last label of `lists`, of the series with the alert's labels.
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
    for_: str = "10m"
    keep_firing_for: str = ""
    waits_less: str = ""
    panel: str = ""
    lasts: Condition | None = None
    lists: SelfMetric | None = None
    headline: str = ""

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels that the rule adds to those of its condition."""
        return {"severity": self.severity, "component": self.component, "family": self.family, "team": TEAM}


TEAM: Final = "serving"
ALERTING: Final = "alerting"
"""The component of alerts on the Prometheus and the Alertmanager that evaluate and send the others."""

ALSO_FIRING: Final = "also_firing"
"""The annotation of a page that lists the other alerts of its deployment and model, pending ones marked as such."""

WHO: Final = "{{ $labels.deployment_id }} ({{ $labels.model_name }}, {{ $labels.inference_stack }})"
PERCENT: Final = '{{ $value | humanizePercentage | reReplaceAll "%" " %" }}'
NUMBER: Final = "{{ $value | humanize }}"
LISTED: Final = "{{ listed }}"
NOTHING_LISTED: Final = "metrics"
"""Templates for the deployment, the value and what an alert lists in a description, and what is there without any."""

CAUSE: Final = "cause"
"""The label of what an alert on several causes holds for."""


def by_cause(texts: Mapping[str, str]) -> str:
    """A template for a part of a description that differs by cause."""
    return "".join(f"{{{{ if eq $labels.{CAUSE} `{cause}` }}}}{text}{{{{ end }}}}" for cause, text in texts.items())


# --- Labels -----------------------------------------------------------------------------------------------------------


def labels_of(value: Term | Condition) -> tuple[str, ...]:
    """The labels that the values of a term or a condition have."""
    match value:
        case FigureRef(figure, _):
            return (*DEPLOYMENT_LABELS, *FIGURES[figure].by)
        case SelfMetric(_, by, _, _) | Extreme(_, _, by) | Total(_, by):
            return by
        case AdHocExpression():
            return value.labels
        case BadRatio() | Budget() | RequestsEnded():
            return DEPLOYMENT_LABELS
        case OverTime(_, shown, _, _):
            return labels_of(shown)
        case Scaled(term, _) | Shifted(term, _) | Present(term):
            return labels_of(term)
        case Quotient(left, right) | Product(left, right) | Compare(left, _, right):
            if isinstance(right, float) or is_grouped(left, right):
                return labels_of(left)
            # One to one, Prometheus keeps what both are matched on.
            return open_labels(left)
        case All(conditions):
            return labels_of(conditions[0])
        case Any(conditions):
            return tuple(dict.fromkeys(label for each in conditions for label in labels_of(each)))
        case Except(condition, _):
            return labels_of(condition)
        case Because(condition=condition):
            return (*labels_of(condition), CAUSE)
        case Disappeared(own):
            return labels_of(own)
        case Subquery(_, of):
            return labels_of(of)
        case Count() | Absent() | Always():
            return ()
        case _:
            assert_never(value)


def open_labels(value: Term | Condition) -> tuple[str, ...]:
    """The labels that identify values: all but those with a single value by a matcher."""
    match value:
        case (
            FigureRef(_, where)
            | SelfMetric(_, _, where, _)
            | OverTime(_, FigureRef(_, where), _, _)
            | Compare(FigureRef(_, where), _, _)
        ):
            settled = {label for label, values in where if len(values) == 1 and not isinstance(values[0], Pattern)}
            return tuple(label for label in labels_of(value) if label not in settled)
        case _:
            return labels_of(value)


def is_grouped(left: Term, right: Term) -> bool:
    """Whether several values on the left match one on the right."""
    return open_labels(left) != open_labels(right)


def conditions_of(alert: Alert) -> tuple[Condition, ...]:
    """An alert's condition, and what it `lasts` for."""
    return (alert.condition,) if alert.lasts is None else (alert.condition, alert.lasts)


# --- The walk over a condition ----------------------------------------------------------------------------------------


def parts(value: Term | Condition) -> tuple[Term | Condition, ...]:
    """The terms and conditions that one is directly made of, in their order."""
    read = (getattr(value, each.name) for each in fields(value))
    return tuple(
        part for each in read for part in (each if isinstance(each, tuple) else (each,)) if isinstance(part, _PART)
    )


_PART: Final = Term | Condition


def within(value: Term | Condition) -> Iterator[Term | Condition]:
    """A term or a condition, then everything that it is made of."""
    yield value
    for each in parts(value):
        yield from within(each)


def terms(condition: Condition) -> Iterator[Term]:
    """Every term that a condition reads, including nested ones."""
    for each in within(condition):
        if isinstance(each, Absent):
            yield SelfMetric(each.name)
        elif isinstance(each, Term):
            yield each


def decisive(condition: Condition) -> Iterator[Condition]:
    """The conditions of which one or all must hold for it to hold, without those that must not."""
    match condition:
        case All(conditions) | Any(conditions):
            for each in conditions:
                yield from decisive(each)
        case Except(first, _) | Because(condition=first):
            yield from decisive(first)
        case _:
            yield condition


def holds_by(condition: Condition, holds: Callable[[Condition], bool]) -> bool:
    """Whether it can hold, by which of its `decisive` conditions do: one that must not may as well not hold."""
    match condition:
        case All(conditions):
            return all(holds_by(each, holds) for each in conditions)
        case Any(conditions):
            return any(holds_by(each, holds) for each in conditions)
        case Except(first, _) | Because(condition=first):
            return holds_by(first, holds)
        case _:
            return holds(condition)
