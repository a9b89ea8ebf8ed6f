"""The collector's `/metrics`: contract samples as scraped, derived figures, and its own series, as one exposition."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from prometheus_client.metrics_core import Metric

from servescope.contract import openmetrics
from servescope.contract.expressions import Vector
from servescope.contract.figures import FIGURES
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.own_metrics import OWN_METRICS, TARGET_LACKS, TARGET_UNDERSTOOD
from servescope.contract.samples import (
    Labels,
    Sample,
    Series,
    escape_help,
    escape_label_value,
    format_series,
    format_value,
    make_labels,
)
from servescope.store.records import TargetStatus


class Scraped(NamedTuple):
    """One target's last scrape: its series and their values, NaN where one was absent."""

    target_id: str
    series: tuple[Series, ...]
    values: NDArray[np.float64]


class Gauges(NamedTuple):
    """One family of gauges of the collector's own, by its name in `OWN_METRICS`."""

    name: str
    values: Sequence[tuple[Labels, float]]


class Registered(Protocol):
    """What a program counts about itself, as families of prometheus_client."""

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""


@dataclass(frozen=True, slots=True)
class Page:
    """What one `/metrics` shows: taken on the event loop, rendered anywhere."""

    scraped: Sequence[Scraped]
    figures: Sequence[Sample]
    targets: Sequence[TargetStatus]
    telemetry: Registered
    own: Sequence[Gauges] = ()


class _Family(NamedTuple):
    """One family's HELP, TYPE and UNIT in each of the formats."""

    text: str
    openmetrics: str


class PageRenderer:
    """Renders pages as Prometheus text 0.0.4 or OpenMetrics 1.0: every family once, with its head. Not thread safe.

    What the lines of a target say is kept from page to page, and only those whose value changed are written anew.
    """

    def __init__(self) -> None:
        self._kept: dict[str, _TargetLines] = {}

    def render(self, page: Page) -> bytes:
        """The page in the Prometheus text format; no value on it is NaN or infinite."""
        parts: list[str] = []
        for family, lines in self._families(page):
            parts += (family.text, *lines)
        return "".join(parts).encode()

    def render_openmetrics(self, page: Page) -> bytes:
        """The same in OpenMetrics."""
        parts: list[str] = []
        for family, lines in self._families(page):
            parts += (family.openmetrics, *lines)
        return "".join(parts).encode() + openmetrics.END

    def _families(self, page: Page) -> Iterator[tuple[_Family, list[str]]]:
        """Each family with its lines; those that have none are left out."""
        lines: dict[str, list[str]] = {name: [] for name in _CATALOG}
        self._kept = {scraped.target_id: self._lines(scraped) for scraped in page.scraped}
        for kept in self._kept.values():
            for name, text in kept.by_family():
                lines.setdefault(name, []).append(text)
        for name, labels, value in page.figures:
            family = SAMPLE_FAMILIES.get(name, name)
            lines.setdefault(family, []).append(f"{format_series(name, labels)} {format_value(value)}\n")
        for name, found in lines.items():
            if found:
                yield _CATALOG.get(name) or _family(name, "untyped", ""), found
        for gauges in (*_target_gauges(page.targets), *page.own):
            if gauges.values:
                yield _family(gauges.name, "gauge", OWN_METRICS[gauges.name].help), list(_gauge_lines(gauges))
        yield from _own_families(page.telemetry)

    def _lines(self, scraped: Scraped) -> _TargetLines:
        kept = self._kept.get(scraped.target_id)
        if kept is None or kept.series is not scraped.series:
            kept = _TargetLines(scraped.series)
        kept.update(scraped.values)
        return kept


class _TargetLines:
    """The lines of one target, in the order OpenMetrics asks for: a family, a metric, and its buckets together."""

    def __init__(self, series: tuple[Series, ...]) -> None:
        self.series = series
        places = sorted(((*_place(each), row) for row, each in enumerate(series)))
        self._order = np.array([row for *_, row in places], dtype=np.intp)
        self._prefixes = [f"{format_series(*series[row])} " for row in self._order.tolist()]
        self._lines = [""] * len(series)
        self._values = np.full(len(series), np.nan)
        self._spans = [
            (family, [position for position, _ in group])
            for family, group in groupby(enumerate(places), key=lambda numbered: numbered[1][0])
        ]
        self._texts: list[str] = ["" for _ in self._spans]

    def update(self, values: NDArray[np.float64]) -> None:
        ordered = values[self._order]
        changed = ~((ordered == self._values) | (np.isnan(ordered) & np.isnan(self._values)))
        for position, value in zip(np.flatnonzero(changed).tolist(), ordered[changed].tolist(), strict=True):
            self._lines[position] = f"{self._prefixes[position]}{format_value(value)}\n" if value == value else ""
        self._values = ordered
        for number, (_, positions) in enumerate(self._spans):
            first, last = positions[0], positions[-1] + 1
            if changed[first:last].any():
                self._texts[number] = "".join(self._lines[first:last])

    def by_family(self) -> Iterator[tuple[str, str]]:
        """The text of each family that has any."""
        for (family, _), text in zip(self._spans, self._texts, strict=True):
            if text:
                yield family, text


def _place(series: Series) -> tuple[str, tuple[tuple[str, str], ...], str, float]:
    """The place of a series on the page: its family, its metric, which sample of it, and the bucket's edge."""
    family = SAMPLE_FAMILIES.get(series.name, series.name)
    edge = next((text for name, text in series.labels if name == "le"), None)
    labels = tuple(pair for pair in series.labels if pair[0] != "le")
    return family, labels, series.name.removeprefix(family), math.inf if edge is None else _number(edge)


def _number(edge: str) -> float:
    try:
        return float(edge)
    except ValueError:
        return math.inf


def _family(name: str, kind: str, text: str, unit: str = "") -> _Family:
    # A counter's family bears no `_total` in OpenMetrics, and what has no type is of one that is unknown.
    bare = name.removesuffix("_total") if kind == "counter" else name
    head = f"# HELP {bare} {escape_label_value(text)}\n# TYPE {bare} {'unknown' if kind == 'untyped' else kind}\n"
    if unit:
        head += f"# UNIT {bare} {unit}\n"
    return _Family(f"# HELP {name} {escape_help(text)}\n# TYPE {name} {kind}\n", head)


def _catalog_families() -> dict[str, _Family]:
    """The families of the catalog, in its order: contract metrics, then the figures with a name of their own."""
    families = {
        metric.name: _family(metric.name, metric.kind, metric.help, openmetrics.unit_of(metric))
        for metric in METRICS.values()
    }
    for figure in FIGURES.values():
        if figure.exposed is not None:
            # A documented ratio is the figure's here: that of a single process is not collected.
            families[figure.exposed] = _family(figure.exposed, "gauge", figure.help)
    return families


_CATALOG = _catalog_families()


TARGET_GAUGES: Mapping[str, Callable[[TargetStatus], float | None]] = MappingProxyType(
    {
        "servescope_target_up": lambda target: float(target.state != "down"),
        TARGET_UNDERSTOOD: lambda target: None if target.state == "down" else float(target.healthy),
        "servescope_target_samples": lambda target: float(target.samples or 0),
        "servescope_target_scrape_duration_seconds": lambda target: target.duration_seconds or 0.0,
        "servescope_target_missing_metrics": lambda target: float(len(target.missing_metrics)),
    }
)
"""The collector's view of each target that was scraped: by name, what it is of a target's status, None without any."""


def read_target_gauge(name: str, targets: Iterable[tuple[TargetStatus, Labels]]) -> list[tuple[Labels, float]]:
    """The values of one of `TARGET_GAUGES`, by the labels of targets that were scraped."""
    value = TARGET_GAUGES[name]
    return [(labels, found) for target, labels in targets if (found := value(target)) is not None]


def read_lacking(targets: Iterable[tuple[TargetStatus, Labels]]) -> Vector:
    """The metrics that targets lack, one by one, by their labels and `metric`."""
    return {
        make_labels((*labels, ("metric", name))): 1.0 for target, labels in targets for name in target.missing_metrics
    }


def _target_gauges(targets: Sequence[TargetStatus]) -> list[Gauges]:
    shown = [(target, target.identity.labels()) for target in targets if target.last_scrape_ms is not None]
    return [
        *(Gauges(name, read_target_gauge(name, shown)) for name in TARGET_GAUGES),
        Gauges(TARGET_LACKS, list(read_lacking(shown).items())),
        Gauges("servescope_target_info", [(target.info_labels(), 1.0) for target, _ in shown]),
    ]


def _gauge_lines(gauges: Gauges) -> Iterator[str]:
    for labels, value in gauges.values:
        yield f"{format_series(gauges.name, labels)} {format_value(value)}\n"


def _own_families(telemetry: Registered) -> Iterator[tuple[_Family, list[str]]]:
    for metric in telemetry.collect():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        lines = [
            f"{format_series(sample.name, tuple(sample.labels.items()))} {format_value(sample.value)}\n"
            for sample in metric.samples
        ]
        yield _family(name, metric.type, metric.documentation), lines
