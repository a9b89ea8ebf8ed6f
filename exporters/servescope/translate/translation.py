"""A target's text as the contract's page: read, identified, translated and rendered, from this text alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from servescope import __version__
from servescope.collector.exposition import Gauges, Page, PageRenderer, Scraped
from servescope.contract.identity import SCRAPE_LABELS
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.samples import Labels, Series, make_labels
from servescope.sources.cache import SeriesCache
from servescope.sources.map_files import load_sources
from servescope.sources.maps import SUPPLIED, Source
from servescope.sources.page import PageLimits
from servescope.sources.parts import PagePart, Selects
from servescope.sources.reader import check_source, choose_source, parse_page
from servescope.sources.series_plan import SeriesPlan, StoredSeries
from servescope.translate.layouts import PageLayout, PageLayouts
from servescope.translate.outer import Outer

INFO, SUPPLIED_METRICS = "servescope_target_info", "servescope_probe_metrics"
SUCCESS, DURATION, FAILED = (
    "servescope_probe_success", "servescope_probe_duration_seconds", "servescope_probe_failed",
)  # fmt: skip

_NOTHING_REGISTERED = CollectorRegistry()


class Wanted(NamedTuple):
    """What a probe's answer is to be: of which source, behind what, with which labels, and whether also native.

    `select` is the labels of the series that are read, where the page measures several deployments.
    """

    source: str | None
    behind: Outer
    labels: Labels
    native: bool = False
    select: Selects = ()

    def key(self) -> tuple[object, ...]:
        """What distinguishes it from other answers of the same text."""
        return self.source, self.behind.name, self.labels, self.native, self.select


class Translated(NamedTuple):
    """A text that was read: what its page shows, how many native samples it had, and how many were dropped."""

    plan: _Plan
    layout: PageLayout
    contract: Scraped
    native: Scraped | None
    native_samples: int
    dropped: Mapping[str, int]

    def render(self, duration_seconds: float, *, openmetrics: bool) -> bytes:
        """The page of a probe that succeeded after so many seconds."""
        plan, labels = self.plan, self.plan.labels
        own = [
            Gauges(INFO, [(plan.info, 1.0)]),
            Gauges(SUPPLIED_METRICS, [(labels, float(plan.supplied))]),
            Gauges(SUCCESS, [(labels, 1.0)]),
            Gauges(DURATION, [(labels, duration_seconds)]),
        ]
        scraped = [self.contract] if self.native is None else [self.contract, self.native]
        page = Page(scraped, (), (), _NOTHING_REGISTERED, own)
        with self.layout.rendering:
            return plan.renderer.render_openmetrics(page) if openmetrics else plan.renderer.render(page)


class _Plan:
    """How the values of a layout become a page; the lines written last are kept, to write those that changed anew."""

    def __init__(self, series_plan: SeriesPlan, wanted: Wanted) -> None:
        configured = load_sources()[wanted.source] if wanted.source is not None else None
        source, versions = choose_source(series_plan, configured)
        plan = series_plan.plan(source, wanted.labels)
        if configured is not None:
            check_source(series_plan, source, plan)
        self.stored = StoredSeries(plan, wanted.behind.taken_from(source), ())
        self.finite = series_plan.finite
        self.dropped = Counter(self.stored.dropped)
        self.dropped["duplicate"] += len(series_plan.repeated)
        self.labels = wanted.labels
        self.info = _info(source, versions, wanted.labels)
        self.supplied = sum(
            each.status in SUPPLIED and name not in self.stored.elsewhere for name, each in plan.coverage.items()
        )
        self.renderer = PageRenderer()
        self._native = _own_series(series_plan) if wanted.native else None
        series_plan.release()

    def native(self, values: NDArray[np.float64]) -> Scraped | None:
        """The target's own series where they are wanted too."""
        if self._native is None:
            return None
        series, places = self._native
        return Scraped("native", series, values[places])


def _info(source: Source, versions: str, labels: Labels) -> Labels:
    about = (("source", source.name), ("version", versions), ("layer", source.layer), ("translator", __version__))
    return make_labels((*labels, *about))


class Translator:
    """Translates texts. Thread safe."""

    def __init__(self, most_cached_series: int) -> None:
        self.layouts = PageLayouts(most_cached_series)
        self._cache = SeriesCache()

    def translate(self, target: str, body: bytes, wanted: Wanted, limits: PageLimits) -> Translated:
        """The translation of a text; `target` only says whose layout it is likely to have. Raises ReadError."""
        layout, values = self._read(target, body, limits)
        finite = np.isfinite(values)
        key = (finite.tobytes(), *wanted.key())
        plan = layout.plans.get(key)
        if plan is None:
            plan = _Plan(SeriesPlan(layout.page.series, finite, PagePart(wanted.select)), wanted)
            layout.keep(key, plan)
        all_finite = bool(finite.all())
        snapshot, overflown = plan.stored.snapshot(values if all_finite else values[finite], ())
        dropped = Counter(plan.dropped)
        dropped["not_finite"] += len(values) - int(finite.sum()) + len(overflown)
        contract = Scraped("contract", snapshot.series, snapshot.values)
        return Translated(plan, layout, contract, plan.native(values), len(values), +dropped)

    def _read(self, target: str, body: bytes, limits: PageLimits) -> tuple[PageLayout, NDArray[np.float64]]:
        layout = self.layouts.get(target)
        values = layout.page.read(body, limits) if layout is not None else None
        if layout is not None and values is not None:
            return layout, values
        page, values = parse_page(body, self._cache, limits)
        return self.layouts.add(target, page), values


def _own_series(series_plan: SeriesPlan) -> tuple[tuple[Series, ...], NDArray[np.intp]]:
    """The target's own series, each once, and their places; not those with names of ours, which are translated."""
    places: dict[Series, int] = {}
    for place in np.flatnonzero(series_plan.finite).tolist():
        series = series_plan.series[place]
        if not series_plan.part.has(series.labels):
            continue
        if SAMPLE_FAMILIES.get(series.name, series.name) not in METRICS and not series.name.startswith("servescope_"):
            places.setdefault(_as_scraped(series), place)
    return tuple(places), np.fromiter(places.values(), np.intp, len(places))


def _as_scraped(series: Series) -> Series:
    """The series with other names for labels that would say where it was scraped."""
    renamed = ((f"exported_{name}" if name in SCRAPE_LABELS else name, value) for name, value in series.labels)
    return Series(series.name, make_labels(renamed))


def render_failure(reason: str, message: str, labels: Labels, duration_seconds: float, *, openmetrics: bool) -> bytes:
    """The page of a probe that failed; in the text format a comment says why."""
    own = [
        Gauges(SUCCESS, [(labels, 0.0)]),
        Gauges(FAILED, [(make_labels((*labels, ("reason", reason))), 1.0)]),
        Gauges(DURATION, [(labels, duration_seconds)]),
    ]
    page = Page((), (), (), _NOTHING_REGISTERED, own)
    if openmetrics:
        return PageRenderer().render_openmetrics(page)
    shown = "".join(each if each.isprintable() else " " for each in message)
    return f"# {shown}\n".encode("utf-8", "replace") + PageRenderer().render(page)
