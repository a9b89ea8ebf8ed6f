"""The targets of an import: which scrapes of theirs a Prometheus holds, and how these are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.collector.targets.target import Target
from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import Series, Snapshot, Window
from servescope.sources.cache import SeriesCache
from servescope.sources.layers import Supply
from servescope.sources.map_files import load_sources
from servescope.sources.page import PageLimits
from servescope.sources.reader import Reader, ReadError
from servescope.store.embedded import Store
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.scrapes import PastScrapes, expositions, read_scrape_times, read_scrapes
from servescope.store.prometheus.targets import CONTRACT_NAMES, ScrapedTarget, native_names
from servescope.store.records import TargetStatus

# How far beyond both ends of a stretch scrapes of somebody else are searched in the store.
AROUND_MS: Final = 120_000


@dataclass(slots=True)
class Tally:
    """What was imported of one target: scrapes, the failed ones among them, samples, and what was left out."""

    scrapes: int = 0
    failed: int = 0
    samples: int = 0
    already_there: int = 0
    strays: int = 0
    problems: Counter[str] = field(default_factory=Counter)


class ImportedScrape(NamedTuple):
    """One scrape of the past: a column of a window, and the text the target exposed, None behind a collector."""

    time_ms: int
    stretch: TargetStretch
    past: PastScrapes
    column: int
    body: bytes | None


@dataclass(slots=True)
class TargetStretch:
    """One target within a stretch of time: its scrapes by where it was scraped, and the instants to be stored."""

    member: ImportedTarget
    prometheus: Prometheus
    parts: list[tuple[ScrapedTarget, Mapping[int, bool]]]
    wanted: frozenset[int]
    first_ms: int
    last_ms: int

    def events(self) -> Iterator[ImportedScrape]:
        """Its scrapes, ascending."""
        for observed, scraped in self.parts:
            names = self.member.names(self.prometheus, observed, self.first_ms, self.last_ms)
            past = read_scrapes(self.prometheus, observed, names, scraped, self.first_ms, self.last_ms)
            self.member.tally.strays += past.strays
            bodies = expositions(past.window) if observed.form != "collected" else None
            for column, time_ms in enumerate(past.window.times.tolist()):
                body = next(bodies) if bodies else None
                yield ImportedScrape(time_ms, self, past, column, body)


class ImportedTarget:
    """One target: how its past is read, and what was imported of it."""

    def __init__(
        self, places: Sequence[ScrapedTarget], url: str, limits: PageLimits, supply: Supply, cache: SeriesCache
    ) -> None:
        first = places[0]
        self.places = places
        self.tally = Tally()
        source = "servescope" if first.form == "contract" else first.source
        target = Target(f"{url} {first.up}", first.identity, source)
        self.target_id = target.target_id
        self.reader = Reader(target.identity, target.source, supply=supply, cache=cache)
        self._limits = limits
        self._names: dict[ScrapedTarget, tuple[str, ...]] = {}
        self._seen_names: set[str] = set()
        self._kept: tuple[Window, bytes, tuple[Series, ...]] | None = None
        self.status = TargetStatus(target.target_id, target.url, target.identity, source or "")

    @staticmethod
    def group(targets: Iterable[ScrapedTarget], url: str, limits: PageLimits) -> dict[Deployment, list[ImportedTarget]]:
        """The targets of each deployment; what was scraped at several addresses, or by two jobs, is one target."""
        places: dict[Identity, list[ScrapedTarget]] = {}
        for target in targets:
            places.setdefault(target.identity, []).append(target)
        members: dict[Deployment, list[ImportedTarget]] = {}
        supplies: dict[Deployment, Supply] = {}
        cache = SeriesCache()
        for identity, seen in places.items():
            supply = supplies.setdefault(identity.deployment(), Supply())
            members.setdefault(identity.deployment(), []).append(ImportedTarget(seen, url, limits, supply, cache))
        return members

    def plan(self, prometheus: Prometheus, store: Store, first_ms: int, last_ms: int) -> TargetStretch:
        """The scrapes of this target from first to last, both included, and which of them the store lacks."""
        around = self._parts(prometheus, first_ms - AROUND_MS, last_ms + AROUND_MS)
        there = sorted(time_ms for _, scraped in around for time_ms in scraped)
        scrapes = store.read_scrapes(self.target_id, first_ms - AROUND_MS, last_ms + AROUND_MS)
        stored = {time_ms for time_ms, _ in scrapes}
        # Where a collector scraped the target itself, the scrapes of Prometheus would be the same a second time.
        foreign = np.array(sorted(stored.difference(there)), dtype=np.int64)
        parts = [
            (place, {at: up for at, up in scraped.items() if first_ms <= at <= last_ms}) for place, scraped in around
        ]
        instants = [time_ms for time_ms in there if first_ms <= time_ms <= last_ms]
        if usual_ms := _usual_distance(there):
            self.status = replace(self.status, scrape_interval_ms=usual_ms)
        near_ms = max(_usual_distance(there), _usual_distance(foreign.tolist()))
        wanted = frozenset(
            at for at in instants if at not in stored and not is_within(foreign, at - near_ms, at + near_ms)
        )
        self.tally.already_there += len(instants) - len(wanted)
        return TargetStretch(self, prometheus, [part for part in parts if part[1]], wanted, first_ms, last_ms)

    def _parts(
        self, prometheus: Prometheus, first_ms: int, last_ms: int
    ) -> list[tuple[ScrapedTarget, Mapping[int, bool]]]:
        """Where the target was scraped when; of two places at the same time, the one with more scrapes counts."""
        times_seen = [(place, self._scrape_times(prometheus, place, first_ms, last_ms)) for place in self.places]
        kept: list[tuple[ScrapedTarget, Mapping[int, bool]]] = []
        for place, scraped in sorted((each for each in times_seen if each[1]), key=lambda each: -len(each[1])):
            if any(min(scraped) <= max(other) and min(other) <= max(scraped) for _, other in kept):
                self.tally.problems[f"scraped a second time at {place.up}; those scrapes are left out"] += 1
            else:
                kept.append((place, scraped))
        return sorted(kept, key=lambda each: min(each[1]))

    def _scrape_times(
        self, prometheus: Prometheus, place: ScrapedTarget, first_ms: int, last_ms: int
    ) -> Mapping[int, bool]:
        scraped = read_scrape_times(prometheus, place, first_ms, last_ms)
        if scraped is not None:
            return scraped
        names = self.names(prometheus, place, first_ms, last_ms)
        past = read_scrapes(prometheus, place, names, None, first_ms, last_ms)
        return dict.fromkeys(past.window.times.tolist(), True)

    def names(self, prometheus: Prometheus, place: ScrapedTarget, first_ms: int, last_ms: int) -> tuple[str, ...]:
        """The series names to read: of an engine those that it has and some source map reads."""
        if place.form != "engine":
            return CONTRACT_NAMES
        there = prometheus.metric_names([place.select(())], start_ms=first_ms, end_ms=last_ms)
        self._seen_names.update(there)
        wanted = set(native_names())
        return tuple(name for name in there if name in wanted) or ("up",)

    def read(self, event: ImportedScrape) -> Snapshot | None:
        """A scrape translated to the contract; None where it failed, or where no source map can read it."""
        if not event.past.succeeded[event.column]:
            return None
        if event.body is None:
            return self._translated(event)
        try:
            snapshot = self.reader.read(event.body, self._limits).snapshot
        except ReadError as error:
            self.tally.problems[str(error)] += 1
            return None
        return snapshot

    def _translated(self, event: ImportedScrape) -> Snapshot:
        """A scrape that a collector translated already."""
        window = event.past.window
        column = window.values[:, event.column]
        present = ~np.isnan(column)
        marks = present.tobytes()
        if self._kept is None or self._kept[0] is not window or self._kept[1] != marks:
            series = tuple(series for series, there in zip(window.series, present, strict=True) if there)
            # The same tuple while the target exposes the same series, as the store expects it.
            former = self._kept[2] if self._kept is not None else ()
            self._kept = (window, marks, former if former == series else series)
        return Snapshot(self._kept[2], column[present])

    def count(self, time_ms: int, snapshot: Snapshot | None) -> None:
        """Count a scrape that was stored, and update the status."""
        self.tally.scrapes += 1
        samples = 0 if snapshot is None else len(snapshot.series)
        self.tally.failed += snapshot is None
        self.tally.samples += samples
        self.status = replace(
            self.status,
            source=self.reader.source or self.status.source,
            versions=self.reader.versions,
            layer=self.reader.layer or self.status.layer,
            healthy=snapshot is not None,
            last_scrape_ms=time_ms,
            last_success_ms=self.status.last_success_ms if snapshot is None else time_ms,
            samples=samples,
            error=f"{self.status.url}: the scrape failed" if snapshot is None else None,
            coverage=self.reader.coverage,
        )

    def unread_names(self) -> list[str]:
        """The series names of its engine that its source map does not read."""
        source = load_sources().get(self.reader.source or "")
        if source is None:
            return sorted(self._seen_names)
        wanted = set(native_names())
        return sorted(
            name for name in self._seen_names - wanted if name.replace(":", "_").startswith(_canonical(source.prefixes))
        )


def _canonical(prefixes: Sequence[str]) -> tuple[str, ...]:
    return tuple(prefix.replace(":", "_") for prefix in prefixes)


def _usual_distance(instants: Sequence[int]) -> int:
    """The usual time between two of the instants, as far as it matters; 0 where they are too few."""
    return min(AROUND_MS, int(np.median(np.diff(instants)))) if len(instants) > 2 else 0


def is_within(instants: NDArray[np.int64], start_ms: int, end_ms: int) -> bool:
    """Whether one of the instants, which are ascending, lies from start to end, both included."""
    first = int(np.searchsorted(instants, start_ms))
    return first < len(instants) and int(instants[first]) <= end_ms
