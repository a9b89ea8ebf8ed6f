"""The algebra of derived figures, compiled to PromQL and evaluated over windows of samples.

An expression is what is computed; the labels it is grouped by (`by`) and the window are arguments of its compilation.
Counters are increased per native series, then summed by group, then divided: no ratio is an average of gauges. Both
compilers agree with Prometheus 2.42 on the same samples: the window is closed on both sides, counter resets are added
back, increases are extrapolated to the window's ends, a gauge is read from the last scrape within five minutes. A group
without data is absent: no result is ever NaN or infinite.

Rate, increase           `sum by (…) (rate(x[5m]))`
level                    `sum|avg|max by (…) (x)`, a gauge
ratio, difference        of two expressions; a ratio over nothing (0) is absent
mean, quantile,          of a histogram's observations within the window
fraction_above
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, assert_never

from servescope.contract.samples import Labels, escape_label_value, format_edge
from servescope.errors import ExpressionError

Vector = dict[Labels, float]
"""One value per group; a group without data is not in it."""

Matchers = tuple[tuple[str, tuple[str, ...]], ...]
"""Pairs of a label and the values it may have."""


class Pattern(str):
    """A value of a matcher that is a regular expression, which all of a label's value has to match."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Rate:
    """Increase of a counter per second, summed over the group."""

    name: str
    where: Matchers = ()


@dataclass(frozen=True, slots=True)
class Increase:
    """Increase of a counter over the window, summed over the group."""

    name: str
    where: Matchers = ()


@dataclass(frozen=True, slots=True)
class Level:
    """A gauge now, summed, averaged or its highest value over the group."""

    name: str
    over: Literal["sum", "avg", "max"] = "sum"
    where: Matchers = ()


@dataclass(frozen=True, slots=True)
class Ratio:
    """Numerator ÷ denominator; absent where the denominator is not above 0."""

    numerator: Expression
    denominator: Expression


@dataclass(frozen=True, slots=True)
class Difference:
    """Left − right; absent where either is."""

    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Quantile:
    """The quantile (0 … 1) of a histogram's observations within the window, interpolated linearly in its bucket."""

    quantile: float
    histogram: str

    def __post_init__(self) -> None:
        if not 0 <= self.quantile <= 1:
            raise ExpressionError(f"quantile {self.quantile!r} is not within 0 … 1")


@dataclass(frozen=True, slots=True)
class FractionAbove:
    """Share of a histogram's observations within the window above an edge; exact, absent where it is no edge.

    A group without that edge takes the first of `further` that it has: engines have edges of their own.
    """

    edge: float
    histogram: str
    further: tuple[float, ...] = ()

    @property
    def edges(self) -> tuple[float, ...]:
        """All edges, in the order in which they are looked for."""
        return (self.edge, *self.further)


Expression = Rate | Increase | Level | Ratio | Difference | Quantile | FractionAbove


def rate(name: str, **where: str | tuple[str, ...]) -> Rate:
    """Increase of a counter per second; `where` keeps the series whose labels have one of the values."""
    return Rate(name, _matchers(where))


def increase(name: str, **where: str | tuple[str, ...]) -> Increase:
    """Increase of a counter over the window; `where` as for `rate`."""
    return Increase(name, _matchers(where))


def level(name: str, over: Literal["sum", "avg", "max"] = "sum") -> Level:
    """A gauge now."""
    return Level(name, over)


def mean(histogram: str) -> Ratio:
    """Mean of a histogram's observations within the window."""
    return Ratio(Rate(f"{histogram}_sum"), Rate(f"{histogram}_count"))


def _matchers(where: Mapping[str, str | tuple[str, ...]]) -> Matchers:
    return tuple(
        sorted((label, (value,) if isinstance(value, str) else tuple(value)) for label, value in where.items())
    )


def leaves(expression: Expression) -> set[str]:
    """The names of the metrics an expression reads (a histogram by its family name for quantiles and fractions)."""
    match expression:
        case Rate(name) | Increase(name) | Level(name):
            return {name}
        case Quantile(_, histogram) | FractionAbove(histogram=histogram):
            return {histogram}
        case Ratio(left, right) | Difference(left, right):
            return leaves(left) | leaves(right)
        case _:
            assert_never(expression)


def rename(expression: Expression, *, label: Callable[[str], str], series: Callable[[str], str] = str) -> Expression:
    """The expression over series and labels of other names; a histogram is renamed by its family name."""

    def matching(where: Matchers) -> Matchers:
        return tuple((label(name), values) for name, values in where)

    def renamed(part: Expression) -> Expression:
        return rename(part, label=label, series=series)

    match expression:
        case Rate(name, where) | Increase(name, where) | Level(name, _, where):
            return replace(expression, name=series(name), where=matching(where))
        case Quantile(_, histogram) | FractionAbove(histogram=histogram):
            return replace(expression, histogram=series(histogram))
        case Ratio(left, right):
            return Ratio(renamed(left), renamed(right))
        case Difference(left, right):
            return Difference(renamed(left), renamed(right))
        case _:
            assert_never(expression)


# --- PromQL -----------------------------------------------------------------------------------------------------------


_PLAIN_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")

COLLECTOR_LABELS = ("instance", "job", "pod")
"""The labels by which a Prometheus distinguishes the collectors that it scrapes, on Kubernetes too."""


def promql(
    expression: Expression,
    *,
    window: str,
    by: Sequence[str],
    scope: str = "",
    collectors: Sequence[str] = COLLECTOR_LABELS,
    edge_text: Callable[[float], str] = format_edge,
) -> str:
    """The expression as PromQL; `window` is a Prometheus duration such as `5m`, `by` the labels of a group.

    `scope` is matchers as PromQL text that every selector gets beside its own. Of series that differ in the labels
    `collectors` alone the highest counts: collectors that watch the same processes expose the same series. Without such
    labels every series counts. `edge_text` is what `le` is of an edge, where histograms do not come from an exposition.
    """
    group = ", ".join(by)

    def compiled(of: Expression) -> str:
        return promql(of, window=window, by=by, scope=scope, collectors=collectors, edge_text=edge_text)

    def counter(function: str, name: str, where: Matchers) -> str:
        # Each collector's increases by themselves: its restarts and gaps do not show.
        rates = f"{function}({selector_promql(name, where, scope)}[{window}])"
        return f"sum by ({group}) ({once_promql(rates, collectors)})"

    def operand(of: Expression) -> str:
        return compiled(of) if isinstance(of, Rate | Increase | Level) else f"({compiled(of)})"

    match expression:
        case Rate(name, where):
            return counter("rate", name, where)
        case Increase(name, where):
            return counter("increase", name, where)
        case Level(name, over, where):
            levels = selector_promql(name, where, scope)
            # The highest is the same however often it is there.
            return f"{over} by ({group}) ({levels if over == 'max' else once_promql(levels, collectors)})"
        case Ratio(numerator, denominator):
            below = f"({compiled(denominator)} > 0)"
            return f"{operand(numerator)} / {below}"
        case Difference(left, right):
            return f"{operand(left)} - {operand(right)}"
        case Quantile(quantile, histogram):
            rates = f"rate({selector_promql(f'{histogram}_bucket', (), scope)}[{window}])"
            buckets = f"sum by ({', '.join((*by, 'le'))}) ({once_promql(rates, collectors)})"
            return quantile_promql(quantile, buckets)
        case FractionAbove(histogram=histogram):
            at_edges = [
                counter("rate", f"{histogram}_bucket", (("le", (edge_text(each),)),)) for each in expression.edges
            ]
            below = at_edges[0] if len(at_edges) == 1 else f"({' or '.join(at_edges)})"
            return f"1 - {below} / ({counter('rate', f'{histogram}_count', ())} > 0)"
        case _:
            assert_never(expression)


def once_promql(series: str, collectors: Sequence[str], *, best: Literal["max", "min"] = "max") -> str:
    """One of the series that differ in the labels of collectors alone: the highest, or the lowest."""
    return f"{best} without ({', '.join(collectors)}) ({series})" if collectors else series


def quantile_promql(quantile: float, buckets: str) -> str:
    """The quantile (0 … 1) of histograms whose cumulative buckets are the result of a PromQL expression."""
    # A histogram without observations has the quantile NaN, which no comparison lets through.
    return f"histogram_quantile({quantile!r}, {buckets}) >= -Inf"


def native_rate_promql(
    histogram: str, *, window: str, by: str, scope: str = "", collectors: Sequence[str] = COLLECTOR_LABELS
) -> str:
    """The rate of a native histogram, or of a classic one that Prometheus converts, summed over a group.

    Of series that differ in the labels `collectors` alone the one with the most observations counts.
    """
    rates = f"rate({histogram}{matchers_promql((), scope)}[{window}])"
    # Histograms have no highest one, their numbers of observations do.
    once = f" and topk without ({', '.join(collectors)}) (1, histogram_count({rates}))" if collectors else ""
    return f"sum by ({by}) ({rates}{once})"


def matchers_promql(where: Matchers, scope: str = "") -> str:
    """The matchers of a selector in their braces, "" for none; `scope` is more of them as PromQL text."""
    matchers = [_matcher(label, values) for label, values in where]
    if scope:
        matchers.append(scope)
    return f"{{{','.join(matchers)}}}" if matchers else ""


def selector_promql(name: str, where: Matchers = (), scope: str = "") -> str:
    """The selector of a metric; names such as `tokens.input` are quoted, which Prometheus has from 3 on."""
    matchers = matchers_promql(where, scope)
    if _PLAIN_NAME.fullmatch(name):
        return f"{name}{matchers}"
    return f"{{{name_promql(name)}{f',{matchers[1:-1]}' if matchers else ''}}}"


def name_promql(name: str) -> str:
    """The name of a metric or of a label as PromQL has it: one such as `service.name` is quoted."""
    return name if _PLAIN_NAME.fullmatch(name) else f'"{escape_label_value(name)}"'


def _matcher(label: str, values: tuple[str, ...]) -> str:
    label = name_promql(label)
    if len(values) == 1 and not isinstance(values[0], Pattern):
        return f'{label}="{escape_label_value(values[0])}"'
    patterns = (value if isinstance(value, Pattern) else re.escape(value) for value in values)
    return f'{label}=~"{"|".join(map(escape_label_value, patterns))}"'


def is_per_second(expression: Expression) -> bool:
    """Whether the value depends on how long the window was, as a plain rate does and a ratio of two does not."""
    match expression:
        case Rate():
            return True
        case Difference(left, right):
            return is_per_second(left) or is_per_second(right)
        case Ratio(numerator, denominator):
            return is_per_second(numerator) != is_per_second(denominator)
        case Increase() | Level() | Quantile() | FractionAbove():
            return False
        case _:
            assert_never(expression)


def describe_selector(where: Matchers) -> str:
    """Matchers of one value each as text."""
    return " ".join(f"{label} {value}" for label, (value,) in where)


def matches(labels: Mapping[str, str], where: Matchers) -> bool:
    """Whether every label has one of its values; one that is absent has the empty value, as in Prometheus."""
    return all(_is_one_of(labels.get(label, ""), values) for label, values in where)


def _is_one_of(text: str, values: tuple[str, ...]) -> bool:
    return text in values or any(isinstance(value, Pattern) and re.fullmatch(value, text) for value in values)
