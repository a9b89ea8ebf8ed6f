"""The data types between the stages: series, samples, and the window of samples that figures are evaluated over."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Labels = tuple[tuple[str, str], ...]
"""Label pairs sorted by name; a label with an empty value is no label."""


class Series(NamedTuple):
    """One time series: its name and its labels."""

    name: str
    labels: Labels


class Sample(NamedTuple):
    """One value of one series; a histogram is flat: `x_bucket{le}`, `x_sum`, `x_count`."""

    name: str
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The result of one scrape of one target: distinct `series` and their `values`, (m,), all finite.

    `series` is the same object from scrape to scrape while the target exposes the same series in the same order, so
    that every stage can cache by its identity what it computed from them.
    """

    series: tuple[Series, ...]
    values: NDArray[np.float64]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Snapshot:
        """The snapshot of samples, in their order."""
        import numpy as np

        series = tuple(Series(sample.name, sample.labels) for sample in samples)
        return cls(series, np.array([sample.value for sample in samples], dtype=np.float64))

    def samples(self) -> list[Sample]:
        """The samples, in the order of the series."""
        return [Sample(*series, value) for series, value in zip(self.series, self.values.tolist(), strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The samples of one target over a stretch of time.

    `series` are the m rows; `times` the n scrapes in milliseconds, ascending, failed ones included; `values` is
    (m, n) with NaN where a series was absent. A scrape that failed is a column of NaN, so that a series ends there as
    it does after a stale marker in Prometheus.
    """

    series: tuple[Series, ...]
    times: NDArray[np.int64]
    values: NDArray[np.float64]


def make_labels(pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> Labels:
    """Labels in their canonical form: sorted by name, empty values left out."""
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    return tuple(sorted([(name, value) for name, value in items if value != ""]))


def pick_labels(labels: Labels, names: Container[str]) -> Labels:
    """Those of the labels that have one of these names."""
    return tuple(pair for pair in labels if pair[0] in names)


def format_value(value: float) -> str:
    """The text of a value in an exposition, in the form prometheus_client prints: `1.0`, `0.25`, `1e+06`, `+Inf`."""
    if value == math.inf:
        return "+Inf"
    if value == -math.inf:
        return "-Inf"
    if value != value:
        return "NaN"
    text = repr(float(value))
    dot = text.find(".")
    # Go prints an exponent from 1e6 up where Python prints digits; readers compare `le` as text.
    if value > 0 and dot > 6 and "e" not in text:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{dot - 1:02d}"
    return text


format_edge = format_value
"""The canonical `le` of a bucket edge: the same number always has the same text (`1`, `1.0` and `1e0` give `1.0`)."""


def escape_help(text: str) -> str:
    """The text as the Prometheus format writes it behind HELP."""
    return text.replace("\\", r"\\").replace("\n", r"\n")


def escape_label_value(value: str) -> str:
    """The value as it is written between quotes in an exposition; OpenMetrics writes the text of HELP so, too."""
    return escape_help(value).replace('"', r"\"")


def format_series(name: str, labels: Labels) -> str:
    """The series as text, `name{label="value"}`; the bare name when it has no labels."""
    if not labels:
        return name
    pairs = ",".join(f'{label}="{escape_label_value(value)}"' for label, value in labels)
    return f"{name}{{{pairs}}}"
