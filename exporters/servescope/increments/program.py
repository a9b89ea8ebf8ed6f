"""The values of expressions, as one program over arrays: each step is done once, for all groups of all deployments.

A leaf is what is added up from series: its values are (n,), one per group, NaN where a group has no data. What two
figures have in common is computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, assert_never

import numpy as np
from numpy.typing import NDArray

from servescope.contract.expressions import (
    Difference,
    Expression,
    FractionAbove,
    Increase,
    Level,
    Matchers,
    Quantile,
    Rate,
    Ratio,
)
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.increments.extrapolation import Floats

Kind = Literal["rate", "increase", "sum", "avg", "max", "buckets"]
"""What is added up: rates, increases, values now (summed, averaged or the highest), or rates of buckets by edge."""


class Leaf(NamedTuple):
    """Series of one name, those that match, added up by labels."""

    kind: Kind
    name: str
    where: Matchers
    by: frozenset[str]


class Sums(Protocol):
    """The values of the leaves at an instant, per group; a leaf is called by its number."""

    def values(self, leaf: int) -> Floats:
        """The sums, (n,)."""

    def quantiles(self, leaf: int, quantile: float) -> Floats:
        """The quantile of each group's buckets, (n,)."""

    def buckets(self, leaf: int, edge: float) -> Floats:
        """The sums of the buckets of one edge, (n,)."""


class _Step(NamedTuple):
    expression: Expression
    inputs: tuple[int, ...]
    leaf: int


class Derived(Protocol):
    """What a program derives: an expression, for every value of a deployment's labels and of those in `by`.

    A figure of the catalog is one. `exposed` is the name it has on `/metrics`, None for none.
    """

    @property
    def name(self) -> str:
        """What it is called, as no other of the program is."""

    @property
    def expression(self) -> Expression:
        """How it is computed."""

    @property
    def by(self) -> tuple[str, ...]:
        """The labels by which its values within one deployment differ."""

    @property
    def exposed(self) -> str | None:
        """Its name on `/metrics`."""


class Program:
    """Figures, compiled; `leaves` are what it reads, `leaves_of` their numbers by the name of their series.

    `grouped_by` are by figure the labels of the groups that it has values for: those of `level`, and its own.
    """

    def __init__(self, figures: Iterable[Derived], level: Sequence[str] = DEPLOYMENT_LABELS) -> None:
        self.figures = tuple(figures)
        self.grouped_by = [frozenset((*level, *figure.by)) for figure in self.figures]
        self._leaves: dict[Leaf, int] = {}
        self._steps: list[_Step] = []
        self._registers: dict[tuple[Expression, frozenset[str]], int] = {}
        self._results = [
            self._compile(figure.expression, by) for figure, by in zip(self.figures, self.grouped_by, strict=True)
        ]
        self.leaves = tuple(self._leaves)
        self.leaves_of: Mapping[str, Sequence[int]] = {
            name: [number for number, leaf in enumerate(self.leaves) if leaf.name == name]
            for name in dict.fromkeys(leaf.name for leaf in self.leaves)
        }

    def run(self, sums: Sums) -> list[Floats]:
        """The values of every figure in their order, per group, NaN where absent; never infinite."""
        registers: list[Floats] = []
        with np.errstate(all="ignore"):
            for expression, inputs, leaf in self._steps:
                value = _computed(expression, [registers[each] for each in inputs], leaf, sums)
                registers.append(np.where(np.isfinite(value), value, np.nan))
        return [registers[result] for result in self._results]

    def _compile(self, expression: Expression, by: frozenset[str]) -> int:
        """The register that will hold the expression's values."""
        known = self._registers.get((expression, by))
        if known is not None:
            return known
        inputs: tuple[int, ...] = ()
        leaf: Leaf | None = None
        match expression:
            case Rate(name, where):
                leaf = Leaf("rate", name, where, by)
            case Increase(name, where):
                leaf = Leaf("increase", name, where, by)
            case Level(name, over, where):
                leaf = Leaf(over, name, where, by)
            case Ratio(left, right) | Difference(left, right):
                inputs = (self._compile(left, by), self._compile(right, by))
            case Quantile(_, histogram):
                leaf = Leaf("buckets", f"{histogram}_bucket", (), by)
            case FractionAbove(histogram=histogram):
                inputs = (self._compile(Rate(f"{histogram}_count"), by),)
                leaf = Leaf("buckets", f"{histogram}_bucket", (), by)
            case _:
                assert_never(expression)
        number = -1 if leaf is None else self._leaves.setdefault(leaf, len(self._leaves))
        self._steps.append(_Step(expression, inputs, number))
        self._registers[expression, by] = register = len(self._steps) - 1
        return register


def _computed(expression: Expression, inputs: Sequence[Floats], leaf: int, sums: Sums) -> Floats:
    match expression:
        case Rate() | Increase() | Level():
            return sums.values(leaf)
        case Ratio():
            return _quotient(inputs[0], inputs[1])
        case Difference():
            return inputs[0] - inputs[1]
        case Quantile(quantile, _):
            return sums.quantiles(leaf, quantile)
        case FractionAbove():
            below = sums.buckets(leaf, expression.edge)
            for edge in expression.further:
                below = np.where(np.isnan(below), sums.buckets(leaf, edge), below)
            return 1.0 - _quotient(below, inputs[0])
        case _:
            assert_never(expression)


def _quotient(above: Floats, below: Floats) -> Floats:
    return np.where(below > 0, above / below, np.nan)


def bucket_quantiles(quantile: float, edges: Floats, counts: Floats) -> Floats:
    """The quantile of each of many histograms of the same ascending edges (n,), as `histogram_quantile` finds it.

    Their cumulative `counts` are (k, n), none of them NaN. It is NaN when there is no observation, no `+Inf` bucket, or
    no other bucket. Above the highest finite edge it is that edge.
    """
    if len(edges) < 2 or edges[-1] != np.inf:
        return np.full(len(counts), np.nan)
    # Scrapes are not atomic, so a cumulative bucket may be below the one before it; Prometheus raises it.
    counts = np.maximum.accumulate(counts, axis=1)
    ranks = quantile * counts[:, -1]
    reached = counts[:, :-1] >= ranks[:, None]
    index, rows = reached.argmax(axis=1), np.arange(len(counts))
    starts = np.concatenate(([0.0], edges))[index]
    below = np.where(index > 0, counts[rows, index - 1], 0.0)
    # 0 ÷ 0, for the quantile 0 of an empty lowest bucket, is NaN as in Prometheus.
    with np.errstate(all="ignore"):
        found = starts + (edges[index] - starts) * ((ranks - below) / (counts[rows, index] - below))
    if edges[0] <= 0:
        found = np.where(index == 0, edges[0], found)
    found = np.where(reached.any(axis=1), found, edges[-2])
    quantiles: NDArray[np.float64] = np.where(counts[:, -1] > 0, found, np.nan)
    return quantiles
