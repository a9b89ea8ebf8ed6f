"""The past that a Prometheus holds, taken into a store.

Time is taken stretch by stretch, each in one transaction: the scrapes of every target, put together again and read as
the collector would have read them, then the figures over them. So an import may be ended at any moment and begun
again: what is there already is not fetched again, and nothing changes by taking it twice.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.collector.config import CollectorSettings
from servescope.collector.derive import count_targets, derive_figures
from servescope.collector.target import Target
from servescope.contract.extrapolation import LOOKBACK_MS
from servescope.contract.identity import Deployment, Identity
from servescope.contract.metrics import METRICS
from servescope.contract.samples import Sample, Series, Snapshot, Window
from servescope.sources.cache import SeriesCache
from servescope.sources.layers import Supply
from servescope.sources.map_files import load_sources
from servescope.sources.page import PageLimits
from servescope.sources.reader import Reader, ReadError
from servescope.store.embedded import Store
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.scrapes import PastScrapes, expositions, read_scrape_times, read_scrapes
from servescope.store.prometheus.targets import CONTRACT_NAMES, ScrapedTarget, native_names
from servescope.store.records import RecordedSettings, TargetStatus

STRETCH_MS: Final = 1_800_000
"""How much time is taken at once: what bounds the memory, and what an interrupted import loses."""
# How far beyond both ends of a stretch is looked for what is stored there by somebody else.
_AROUND_MS = 120_000
# A deployment's samples of one stretch, at most: 1 GB.
_MOST_NUMBERS = 128_000_000
_REPLICA_ROLES = ("aggregated", "prefill", "decode")


@dataclass(slots=True)
class Tally:
    """What became of one target: scrapes taken and failed ones among them, samples, and what was left out."""

    scrapes: int = 0
    failed: int = 0
    samples: int = 0
    already_there: int = 0
    strays: int = 0
    problems: Counter[str] = field(default_factory=Counter)


class Progress(NamedTuple):
    """How far an import is: up to which instant, and what was taken so far."""

    until_ms: int
    scrapes: int
    samples: int
    figures: int


class Import:
    """Takes the scrapes of targets out of a Prometheus into a store; `run` does it.

    `settings` gives the window and the instants of figures, and the limit on the samples of a scrape.
    """

    def __init__(
        self, prometheus: Prometheus, store: Store, targets: Iterable[ScrapedTarget], settings: CollectorSettings
    ) -> None:
        self._prometheus, self._store, self._settings = prometheus, store, settings
        self._hold_ms = max(settings.window_ms, LOOKBACK_MS)
        self._members = _Member.group(targets, prometheus.url, _page_limits(settings))
        # Instants up to which figures see scrapes that were written in this run.
        self._touched_until: dict[Deployment, int] = {}
        self._figures = 0

    @property
    def tallies(self) -> dict[str, Tally]:
        """What became of every target, by its id."""
        return {member.target_id: member.tally for members in self._members.values() for member in members}

    def not_understood(self) -> dict[str, list[str]]:
        """Per target the series names that were there beside those its source map reads."""
        return {
            member.target_id: names
            for members in self._members.values()
            for member in members
            if (names := member.unread_names())
        }

    def run(self, start_ms: int, end_ms: int, tell: Callable[[Progress], None] = lambda _: None) -> None:
        """Take what lies from start to end, both included; raises ServescopeError, keeping all whole stretches."""
        known = {status.target_id: status for status in self._store.targets()}
        self._record_settings(start_ms, end_ms)
        for first_ms, last_ms in _stretches(start_ms, end_ms):
            with self._store.transaction():
                for deployment, members in self._members.items():
                    self._take(deployment, members, known, first_ms, last_ms)
            while self._store.pack_due():
                pass
            tallies = self.tallies.values()
            tell(Progress(last_ms, sum(t.scrapes for t in tallies), sum(t.samples for t in tallies), self._figures))

    def _record_settings(self, start_ms: int, end_ms: int) -> None:
        """Keep how these figures are derived; what holds of those behind them goes on holding."""
        settings = self._settings
        ours = RecordedSettings(
            settings.window_ms, settings.evaluation_interval_ms, settings.scrape_interval_ms, settings.window_bounds
        )
        with self._store.transaction():
            former = self._store.settings_at(end_ms + 1)
            self._store.record_settings(start_ms, ours)
            if former is not None:
                self._store.record_settings(end_ms + 1, former)

    def _take(
        self,
        deployment: Deployment,
        members: Sequence[_Member],
        known: dict[str, TargetStatus],
        first_ms: int,
        last_ms: int,
    ) -> None:
        passages = [member.plan(self._prometheus, self._store, first_ms, last_ms) for member in members]
        written: list[int] = []
        if any(passage.wanted for passage in passages):
            # All of them, though some be stored already: what one target supplies is not taken from another.
            written = [event.time_ms for event in self._write(passages, known)]
        self._derive(deployment, passages, written, first_ms, last_ms)

    def _write(self, passages: Sequence[_Passage], known: dict[str, TargetStatus]) -> Iterator[_Event]:
        """Read the scrapes of a deployment in the order of time, as a collector meets them, and store the new ones."""
        for event in heapq.merge(*(passage.events() for passage in passages), key=lambda event: event.time_ms):
            member = event.passage.member
            snapshot = member.read(event)
            if event.time_ms not in event.passage.wanted:
                continue
            if member.target_id not in known:
                known[member.target_id] = member.status
                self._store.set_target(member.status)
            self._store.append_scrape(member.target_id, event.time_ms, snapshot)
            member.book(event.time_ms, snapshot)
            yield event
        for passage in passages:
            status, former = passage.member.status, known.get(passage.member.target_id)
            if former is not None and (status.last_scrape_ms or 0) > (former.last_scrape_ms or 0):
                known[status.target_id] = status
                self._store.set_target(status)

    # --- Figures ------------------------------------------------------------------------------------------------------

    def _derive(
        self,
        deployment: Deployment,
        passages: Sequence[_Passage],
        written: Sequence[int],
        first_ms: int,
        last_ms: int,
    ) -> None:
        """Store the figures of the instants that see a scrape written now, or that have scrapes and no figures yet."""
        interval = self._settings.evaluation_interval_ms
        instants = range(-(-first_ms // interval) * interval, last_ms + 1, interval)
        touched_until = self._touched_until.get(deployment, -1)
        there = set(self._store.read_figures(deployment, first_ms, last_ms).times.tolist())
        news = np.array(sorted(written), dtype=np.int64)
        due = [
            at_ms
            for at_ms in instants
            if at_ms not in there or at_ms <= touched_until or _is_within(news, at_ms - self._hold_ms, at_ms)
        ]
        if written:
            self._touched_until[deployment] = max(written) + self._hold_ms
        if not due:
            return
        names, from_ms = list(METRICS), first_ms - self._hold_ms
        windows = self._store.read_samples(deployment, names, from_ms, last_ms, most=_MOST_NUMBERS)
        beats = [_Beat.of(window) for window in windows] + _silent_beats(passages)
        for at_ms in due:
            if not any(beat.within(at_ms - self._hold_ms, at_ms) for beat in beats):
                continue
            derived = derive_figures(
                windows,
                at_ms=at_ms,
                window_ms=self._settings.window_ms,
                bounds=self._settings.window_bounds,
                counted=_count(deployment, beats, at_ms),
            )
            self._store.append_figures(deployment, at_ms, derived.figures)
            self._figures += 1


def _stretches(start_ms: int, end_ms: int) -> Iterator[tuple[int, int]]:
    """Stretches of time that are the same in every run, from start to end, both included."""
    first = start_ms
    while first <= end_ms:
        last = min((first // STRETCH_MS + 1) * STRETCH_MS - 1, end_ms)
        yield first, last
        first = last + 1


class _Event(NamedTuple):
    """One scrape of the past: a column of what was recalled, and its text as the target answered it; a collector's page
    has none.
    """

    time_ms: int
    passage: _Passage
    recalled: PastScrapes
    column: int
    body: bytes | None


@dataclass(slots=True)
class _Passage:
    """What one target did within a stretch: its instants by the places it was seen at, and those to be stored."""

    member: _Member
    prometheus: Prometheus
    parts: list[tuple[ScrapedTarget, Mapping[int, bool]]]
    wanted: frozenset[int]
    first_ms: int
    last_ms: int

    def events(self) -> Iterator[_Event]:
        """Its scrapes, ascending."""
        for observed, clock in self.parts:
            names = self.member.names(self.prometheus, observed, self.first_ms, self.last_ms)
            recalled = read_scrapes(self.prometheus, observed, names, clock, self.first_ms, self.last_ms)
            self.member.tally.strays += recalled.strays
            bodies = expositions(recalled.window) if observed.form != "collected" else None
            for column, time_ms in enumerate(recalled.window.times.tolist()):
                body = next(bodies) if bodies else None
                yield _Event(time_ms, self, recalled, column, body)


class _Member:
    """One target: how its past is read, and what became of it."""

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
        self.status = TargetStatus(
            target_id=target.target_id,
            url=target.url,
            identity=target.identity,
            source=source or "",
            versions="",
            healthy=False,
            last_scrape_ms=None,
            last_success_ms=None,
            duration_seconds=None,
            samples=0,
            error=None,
        )

    @staticmethod
    def group(targets: Iterable[ScrapedTarget], url: str, limits: PageLimits) -> dict[Deployment, list[_Member]]:
        """The targets of each deployment; what was seen at several places, or in two jobs, is one target."""
        places: dict[Identity, list[ScrapedTarget]] = {}
        for target in targets:
            places.setdefault(target.identity, []).append(target)
        members: dict[Deployment, list[_Member]] = {}
        supplies: dict[Deployment, Supply] = {}
        cache = SeriesCache()
        for identity, seen in places.items():
            supply = supplies.setdefault(identity.deployment(), Supply())
            members.setdefault(identity.deployment(), []).append(_Member(seen, url, limits, supply, cache))
        return members

    def plan(self, prometheus: Prometheus, store: Store, first_ms: int, last_ms: int) -> _Passage:
        """What there is of this target from first to last, both included, and what of it the store lacks."""
        around = self._parts(prometheus, first_ms - _AROUND_MS, last_ms + _AROUND_MS)
        there = sorted(time_ms for _, clock in around for time_ms in clock)
        scrapes = store.read_scrapes(self.target_id, first_ms - _AROUND_MS, last_ms + _AROUND_MS)
        stored = {time_ms for time_ms, _ in scrapes}
        # A collector's own scrapes stay alone: beside them, those of Prometheus would be the same ones a second time.
        foreign = np.array(sorted(stored.difference(there)), dtype=np.int64)
        parts = [(place, {at: up for at, up in clock.items() if first_ms <= at <= last_ms}) for place, clock in around]
        instants = [time_ms for time_ms in there if first_ms <= time_ms <= last_ms]
        near_ms = max(_usual_distance(there), _usual_distance(foreign.tolist()))
        wanted = frozenset(
            at for at in instants if at not in stored and not _is_within(foreign, at - near_ms, at + near_ms)
        )
        self.tally.already_there += len(instants) - len(wanted)
        return _Passage(self, prometheus, [part for part in parts if part[1]], wanted, first_ms, last_ms)

    def _parts(
        self, prometheus: Prometheus, first_ms: int, last_ms: int
    ) -> list[tuple[ScrapedTarget, Mapping[int, bool]]]:
        """Where the target was seen when; of two places at the same time, that with more scrapes counts."""
        clocks = [(place, self._clock(prometheus, place, first_ms, last_ms)) for place in self.places]
        kept: list[tuple[ScrapedTarget, Mapping[int, bool]]] = []
        for place, clock in sorted((each for each in clocks if each[1]), key=lambda each: -len(each[1])):
            if any(min(clock) <= max(other) and min(other) <= max(clock) for _, other in kept):
                self.tally.problems[f"seen a second time at {place.up}, which is left out there"] += 1
            else:
                kept.append((place, clock))
        return sorted(kept, key=lambda each: min(each[1]))

    def _clock(self, prometheus: Prometheus, place: ScrapedTarget, first_ms: int, last_ms: int) -> Mapping[int, bool]:
        clock = read_scrape_times(prometheus, place, first_ms, last_ms)
        if clock is not None:
            return clock
        names = self.names(prometheus, place, first_ms, last_ms)
        recalled = read_scrapes(prometheus, place, names, None, first_ms, last_ms)
        return dict.fromkeys(recalled.window.times.tolist(), True)

    def names(self, prometheus: Prometheus, place: ScrapedTarget, first_ms: int, last_ms: int) -> tuple[str, ...]:
        """The series names to ask for: of an engine those that it has and some source map reads."""
        if place.form != "engine":
            return CONTRACT_NAMES
        there = prometheus.label_values("__name__", [place.select(())], start_ms=first_ms, end_ms=last_ms)
        self._seen_names.update(there)
        wanted = set(native_names())
        return tuple(name for name in there if name in wanted) or ("up",)

    def read(self, event: _Event) -> Snapshot | None:
        """A scrape in the words of the contract; None where it failed, or where it cannot be understood."""
        if not event.recalled.succeeded[event.column]:
            return None
        if event.body is None:
            return self._take_over(event)
        try:
            snapshot = self.reader.read(event.body, self._limits).snapshot
        except ReadError as error:
            self.tally.problems[str(error)] += 1
            return None
        return snapshot

    def _take_over(self, event: _Event) -> Snapshot:
        """A scrape that a collector translated already."""
        window = event.recalled.window
        column = window.values[:, event.column]
        present = ~np.isnan(column)
        marks = present.tobytes()
        if self._kept is None or self._kept[0] is not window or self._kept[1] != marks:
            series = tuple(series for series, there in zip(window.series, present, strict=True) if there)
            # The same tuple while the target shows the same series, as the stages behind expect it.
            former = self._kept[2] if self._kept is not None else ()
            self._kept = (window, marks, former if former == series else series)
        return Snapshot(self._kept[2], column[present])

    def book(self, time_ms: int, snapshot: Snapshot | None) -> None:
        """Count a scrape that was stored, and keep it as the latest health if it is."""
        self.tally.scrapes += 1
        samples = 0 if snapshot is None else len(snapshot.series)
        self.tally.failed += snapshot is None
        self.tally.samples += samples
        self.status = replace(
            self.status,
            source=self.reader.source or self.status.source,
            versions=self.reader.versions,
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


def _page_limits(settings: CollectorSettings) -> PageLimits:
    return PageLimits(settings.max_series, settings.max_labels, settings.max_label_bytes, settings.max_line_bytes)


def _canonical(prefixes: Sequence[str]) -> tuple[str, ...]:
    return tuple(prefix.replace(":", "_") for prefix in prefixes)


def _is_within(instants: NDArray[np.int64], start_ms: int, end_ms: int) -> bool:
    """Whether one of the instants, which are ascending, lies from start to end, both included."""
    first = int(np.searchsorted(instants, start_ms))
    return first < len(instants) and int(instants[first]) <= end_ms


def _usual_distance(instants: Sequence[int]) -> int:
    """The usual time between two of the instants, as far as it matters; 0 where they are too few to tell."""
    return min(_AROUND_MS, int(np.median(np.diff(instants)))) if len(instants) > 2 else 0


class _Beat(NamedTuple):
    """When one target was scraped, whether that succeeded, and how long each counts; `role` is None where unknown."""

    times: NDArray[np.int64]
    healthy: NDArray[np.bool_]
    role: str | None
    lasting_ms: int

    @classmethod
    def of(cls, window: Window) -> _Beat:
        role = dict(window.series[0].labels).get("role") if window.series else None
        healthy = np.isfinite(window.values).sum(axis=0) > 0
        return cls(window.times, healthy, role, _lasting_ms(window.times))

    def within(self, start_ms: int, end_ms: int) -> bool:
        """Whether there was a scrape from start to end, both included."""
        return _is_within(self.times, start_ms, end_ms)

    def health(self, at_ms: int) -> bool | None:
        """Whether the last scrape succeeded; None when it is too long ago, or of no replica."""
        last = int(np.searchsorted(self.times, at_ms, side="right")) - 1
        if self.role not in _REPLICA_ROLES or last < 0 or at_ms - int(self.times[last]) > self.lasting_ms:
            return None
        return bool(self.healthy[last])


def _lasting_ms(times: NDArray[np.int64]) -> int:
    """How long a target counts after its last scrape: two of its intervals and a half."""
    return int(2.5 * np.median(np.diff(times))) if len(times) > 1 else 60_000


def _silent_beats(passages: Sequence[_Passage]) -> list[_Beat]:
    """The targets of which no scrape of the stretch succeeded: nothing stored tells their role."""
    beats = []
    for passage in passages:
        clock = {time_ms: succeeded for _, part in passage.parts for time_ms, succeeded in part.items()}
        if clock and not any(clock.values()):
            times = np.array(sorted(clock), dtype=np.int64)
            role = passage.member.status.identity.role
            beats.append(_Beat(times, np.zeros(len(times), dtype=bool), role, _lasting_ms(times)))
    return beats


def _count(deployment: Deployment, beats: Sequence[_Beat], at_ms: int) -> list[Sample]:
    healthy = [health for beat in beats if (health := beat.health(at_ms)) is not None]
    return count_targets(deployment, healthy) if healthy else []
