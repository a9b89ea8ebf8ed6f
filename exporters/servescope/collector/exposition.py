"""The collector's `/metrics`: contract samples as scraped, derived figures, and its own series, as one exposition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.catalog import FIGURES, METRICS, SAMPLE_FAMILIES
from servescope.collector.store import TargetStatus
from servescope.collector.telemetry import Telemetry
from servescope.samples import Sample, Series, format_series, format_value


class Scraped(NamedTuple):
    """One target's last scrape: its series and their values, NaN where one was absent."""

    target_id: str
    series: tuple[Series, ...]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Page:
    """What one `/metrics` shows: taken on the event loop, rendered anywhere."""

    scraped: Sequence[Scraped]
    figures: Sequence[Sample]
    targets: Sequence[TargetStatus]
    telemetry: Telemetry


@dataclass(slots=True)
class _Family:
    kind: str
    help: str
    lines: list[str] = field(default_factory=list)


class _Layout(NamedTuple):
    series: tuple[Series, ...]
    places: list[tuple[str, str]]


class PageRenderer:
    """Renders pages as Prometheus text 0.0.4: every family once, with its HELP and TYPE. Not thread safe.

    The text before a value is kept from page to page, as long as a target keeps its series.
    """

    def __init__(self) -> None:
        self._layouts: dict[str, _Layout] = {}

    def render(self, page: Page) -> bytes:
        """The text of a page; no value on it is NaN or infinite."""
        families = _empty_families()
        self._layouts = {scraped.target_id: self._layout(scraped) for scraped in page.scraped}
        for scraped in page.scraped:
            _add_scraped(families, self._layouts[scraped.target_id].places, scraped.values.tolist())
        for name, labels, value in page.figures:
            _add(families, name, f"{format_series(name, labels)} {format_value(value)}\n")
        _add_targets(families, page.targets)
        _add_telemetry(families, page.telemetry)
        return "".join(_text(families)).encode()

    def _layout(self, scraped: Scraped) -> _Layout:
        known = self._layouts.get(scraped.target_id)
        if known is not None and known.series is scraped.series:
            return known
        places = [(SAMPLE_FAMILIES.get(series.name, series.name), format_series(*series)) for series in scraped.series]
        return _Layout(scraped.series, places)


def _empty_families() -> dict[str, _Family]:
    """The families of the catalog, in its order: contract metrics, then the figures with a name of their own."""
    families = {metric.name: _Family(metric.kind, metric.help) for metric in METRICS.values()}
    for figure in FIGURES.values():
        if figure.exposed is not None:
            # A documented ratio is the figure's here: that of a single process is not collected.
            families[figure.exposed] = _Family("gauge", figure.help)
    return families


def _add(families: dict[str, _Family], sample_name: str, line: str) -> None:
    families.setdefault(SAMPLE_FAMILIES.get(sample_name, sample_name), _Family("untyped", "")).lines.append(line)


def _add_scraped(families: dict[str, _Family], places: list[tuple[str, str]], values: list[float]) -> None:
    for (family, prefix), value in zip(places, values, strict=True):
        if value == value:
            line = f"{prefix} {format_value(value)}\n"
            families.setdefault(family, _Family("untyped", "")).lines.append(line)


def _add_targets(families: dict[str, _Family], targets: Sequence[TargetStatus]) -> None:
    """The collector's view of each target that was scraped."""
    shown = [(target, target.identity.labels()) for target in targets if target.last_scrape_ms is not None]
    for name, text, values in (
        (
            "servescope_target_up",
            "1 when the target's last scrape succeeded, else 0.",
            [(labels, float(target.healthy)) for target, labels in shown],
        ),
        (
            "servescope_target_samples",
            "Contract samples of the target's last scrape.",
            [(labels, float(target.samples)) for target, labels in shown],
        ),
        (
            "servescope_target_scrape_duration_seconds",
            "Duration of the target's last scrape.",
            [(labels, target.duration_seconds or 0.0) for target, labels in shown],
        ),
    ):
        lines = [f"{format_series(name, labels)} {format_value(value)}\n" for labels, value in values]
        families[name] = _Family("gauge", text, lines)


def _add_telemetry(families: dict[str, _Family], telemetry: Telemetry) -> None:
    for metric in telemetry.collect():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        lines = [
            f"{format_series(sample.name, tuple(sample.labels.items()))} {format_value(sample.value)}\n"
            for sample in metric.samples
            if not sample.name.endswith("_created")
        ]
        families[name] = _Family(metric.type, metric.documentation, lines)


def _text(families: dict[str, _Family]) -> Iterable[str]:
    for name, family in families.items():
        if family.lines:
            escaped = family.help.replace("\\", r"\\").replace("\n", r"\n")
            yield f"# HELP {name} {escaped}\n# TYPE {name} {family.kind}\n"
            yield from family.lines
