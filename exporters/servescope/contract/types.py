"""The record classes of the contract, and the checks a metric has to pass."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Literal, get_args

from servescope.contract.expressions import Expression, FractionAbove, Increase, Matchers, Rate, Ratio, matches
from servescope.contract.identity import IDENTITY_LABELS
from servescope.errors import UsageError

Kind = Literal["counter", "gauge", "histogram"]
Component = Literal["engine", "router", "autoscaler", "process"]
Unit = Literal[
    "bytes", "bytes/s", "code", "cores", "decisions", "decisions/s", "deployments", "drafts", "errors", "errors/s",
    "events", "events/s", "preemptions", "preemptions/s", "ratio", "recoveries", "replicas", "requests", "requests/s",
    "seconds", "tokens", "tokens/s", "workers",
]  # fmt: skip
Status = Literal["good", "warning", "critical"]

DEFAULT_WINDOW = "5m"
"""The window figures are derived and recorded over where none is chosen."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of the contract, as it is exposed.

    `labels` are those beyond the identity labels; `label_values` are the closed sets among them; `optional` are labels
    that some of its series may have beside these, which no figure needs: the sum over all series is the metric.
    `edges` are the finite bucket edges our instruments use (a source keeps its own); `absent` is what it means when the
    metric is missing. Raises UsageError for what no exposition can hold.
    """

    name: str
    kind: Kind
    unit: Unit
    component: Component
    help: str
    absent: str = "not observed"
    labels: tuple[str, ...] = ()
    label_values: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    edges: tuple[float, ...] | None = None
    optional: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_name(self)
        _check_labels(self)
        if self.edges is not None:
            _check_edges(self)

    @property
    def documented(self) -> str:
        """The name in the documentation, without the exposition's suffix."""
        return self.name.removesuffix("_total")

    @property
    def own_labels(self) -> tuple[str, ...]:
        """All labels beyond the identity's that a series of it may have."""
        return (*self.labels, *self.optional)


_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_RESERVED_SUFFIXES = ("_total", "_bucket", "_count", "_sum", "_created", "_info")
_RESERVED_LABELS = (*IDENTITY_LABELS, "le", "quantile")


def _check_name(metric: Metric) -> None:
    if metric.kind not in get_args(Kind):
        raise UsageError(
            f"metric {metric.name!r}: unknown kind {metric.kind!r}, supported: {', '.join(get_args(Kind))}"
        )
    if metric.unit not in get_args(Unit):
        raise UsageError(
            f"metric {metric.name!r}: unknown unit {metric.unit!r}, supported: {', '.join(get_args(Unit))}"
        )
    if not _NAME.match(metric.name):
        raise UsageError(f"metric name {metric.name!r} is not allowed, expected letters, digits and underscores")
    if metric.kind == "counter" and not metric.name.endswith("_total"):
        raise UsageError(f"counter {metric.name!r} has no '_total', expected it at the end of a counter's name")
    if metric.documented.endswith(_RESERVED_SUFFIXES) or (
        metric.kind != "counter" and metric.name != metric.documented
    ):
        suffixes = ", ".join(_RESERVED_SUFFIXES)
        raise UsageError(f"{metric.kind} {metric.name!r} ends with a suffix that means something else: {suffixes}")


def _check_labels(metric: Metric) -> None:
    for label in metric.own_labels:
        if not _NAME.match(label) or label.startswith("__"):
            raise UsageError(
                f"metric {metric.name!r}: label {label!r} is not allowed, expected letters and underscores"
            )
        if label in _RESERVED_LABELS:
            raise UsageError(
                f"metric {metric.name!r}: label {label!r} is taken, reserved: {', '.join(_RESERVED_LABELS)}"
            )
    if len(set(metric.own_labels)) != len(metric.own_labels):
        raise UsageError(f"metric {metric.name!r}: a label is named twice in {metric.own_labels!r}")
    strangers = metric.label_values.keys() - set(metric.labels)
    if strangers:
        raise UsageError(
            f"metric {metric.name!r}: values are given for {sorted(strangers)!r}, labels: {metric.labels!r}"
        )


def _check_edges(metric: Metric) -> None:
    edges = metric.edges or ()
    if metric.kind != "histogram":
        raise UsageError(f"{metric.kind} {metric.name!r} has edges {edges!r}, expected them of a histogram only")
    if not edges or not all(math.isfinite(edge) for edge in edges):
        raise UsageError(f"histogram {metric.name!r} has edges {edges!r}, expected at least one, all finite")
    for lower, upper in pairwise(edges):
        if lower >= upper:
            raise UsageError(f"histogram {metric.name!r}: edge {upper!r} follows {lower!r}, expected ascending edges")


@dataclass(frozen=True, slots=True)
class Rating:
    """What a value is by its band: `label` in a few words, `advice` what to do."""

    status: Status
    label: str
    advice: str


@dataclass(frozen=True, slots=True)
class Step:
    """A stretch of a band from `start` upwards; with `inclusive`, `start` itself belongs to it."""

    start: float
    inclusive: bool
    rating: Rating


@dataclass(frozen=True, slots=True)
class LeastEvidence:
    """The least that has to be counted within the window before a figure is judged: `least` of `counts`.

    `figure` is the figure that is their rate.
    """

    figure: str
    least: float
    counts: str

    def describe_lack(self, counted: float) -> str:
        """That this many are too few, `too little evidence: 8 of 300 draft tokens`; "" where they suffice."""
        # A count that was extrapolated is no whole number.
        few = round(counted)
        return f"too little evidence: {few:,} of {self.least:,.0f} {self.counts}" if few < self.least else ""


@dataclass(frozen=True, slots=True)
class Band:
    """How the values of a figure are judged: `lowest` below the first step, then the steps in ascending order.

    With less than the `evidence` in the window a value is not judged.
    """

    lowest: Rating
    steps: tuple[Step, ...]
    evidence: LeastEvidence | None = None

    def judge(self, value: float) -> Rating:
        """The rating of a value."""
        rating = self.lowest
        for step in self.steps:
            if value > step.start or (step.inclusive and value == step.start):
                rating = step.rating
        return rating


@dataclass(frozen=True, slots=True)
class Figure:
    """One derived figure, computed per deployment and per value of the labels in `by`.

    `exposed` is its name on the collector's `/metrics`, beside a `window` label; None where it would only repeat the
    sum of a contract gauge. `idle` is what an idle deployment has: 0, or no value.
    """

    name: str
    title: str
    group: str
    unit: Unit
    expression: Expression
    help: str
    better: Literal["higher", "lower"] | None
    idle: Literal["zero", "absent"]
    by: tuple[str, ...] = ()
    band: Band | None = None
    exposed: str | None = None
    recorded: tuple[str, str] = ("", "")

    def record(self, window: str = DEFAULT_WINDOW) -> str:
        """The name of its recording rule, `deployment:metric:operation`."""
        metric, operation = self.recorded
        # By Prometheus' convention a rate is recorded without `_total`.
        return f"deployment:{metric.removesuffix('_total')}:{operation}{window if operation.endswith('rate') else ''}"


@dataclass(frozen=True, slots=True)
class Bound:
    """A number that an alert compares with and no band has; `meaning` is why.

    An operator may replace it by one from `least` to `most`.
    """

    name: str
    value: float
    unit: Unit
    meaning: str
    least: float = 0.0
    most: float = math.inf


@dataclass(frozen=True, slots=True)
class Objective:
    """What users are promised: the share `goal` of requests, over 30 days, is not among `bad`.

    `bad` is a share, 0 … 1, as an expression over a window; `counts` is what it is a share of. `others` are what the
    deployments with the labels `where` are promised instead, of which the first with a deployment's labels counts.
    """

    name: str
    title: str
    goal: float
    bad: Expression
    promise: str
    counts: Literal["requests", "tokens"] = "requests"
    where: Matchers = ()
    others: tuple[Objective, ...] = ()

    def of(self, labels: Mapping[str, str]) -> Objective:
        """What a deployment with these labels is promised."""
        return next((each for each in self.others if matches(labels, each.where)), self)

    @property
    def budget(self) -> float:
        """The share that may be bad."""
        # Rounded: 1 - 0.999 is not 0.001 in binary.
        return round(1.0 - self.goal, 12)

    @property
    def edges_seconds(self) -> tuple[float, ...]:
        """The latencies that are promised: the first by engines that count it exactly, the others by other engines.

        Empty for an objective of another kind.
        """
        return self.bad.edges if isinstance(self.bad, FractionAbove) else ()

    @property
    def all(self) -> Increase:
        """What `bad` is a share of, counted over a window."""
        if isinstance(self.bad, FractionAbove):
            return Increase(f"{self.bad.histogram}_count")
        if isinstance(self.bad, Ratio) and isinstance(self.bad.denominator, Rate):
            return Increase(self.bad.denominator.name, self.bad.denominator.where)
        raise UsageError(f"objective {self.name!r}: expected a ratio of two rates, or a fraction above an edge")

    def record_all(self, window: str) -> str:
        """The name of the recording rule of what it is a share of."""
        return f"deployment:{self.name}_objective_all:increase{window}"

    def record_bad(self, window: str) -> str:
        """The name of the recording rule of what was bad, counted as in `record_all`."""
        return f"deployment:{self.name}_objective_bad:increase{window}"

    @property
    def record_budget(self) -> str:
        """The name of the recording rule of the share that may be bad, which is one where there are `others`."""
        return f"deployment:{self.name}_objective:budget"

    def record(self, window: str) -> str:
        """The name of the recording rule of its bad share."""
        return f"deployment:{self.name}_objective_bad:ratio_rate{window}"


@dataclass(frozen=True, slots=True)
class BurnWindow:
    """A condition on an error budget: both windows burn it more than `factor` times as fast as it lasts 30 days."""

    severity: Literal["critical", "warning"]
    short: str
    long: str
    factor: float
