"""The history that a Prometheus holds."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np

from servescope.contract.events import Event
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS, Deployment, Identity
from servescope.contract.metrics import REPLICA_START_TIME, SAMPLE_FAMILIES
from servescope.contract.own_metrics import COVERAGE_SERIES, COVERED_RATIO
from servescope.contract.samples import Labels, Window, make_labels
from servescope.contract.types import Figure
from servescope.increments.blocks import TargetIncrements
from servescope.settings.clock import AHEAD_MS
from servescope.store.history import History
from servescope.store.prometheus import client
from servescope.store.prometheus.events import read_events
from servescope.store.prometheus.figure_queries import figures_queries, matchers
from servescope.store.prometheus.increments import read_increments
from servescope.store.prometheus.places import PAIR_LABELS, far_of, names_apart, page_of
from servescope.store.prometheus.processes import Process, SeenProcesses, read_processes
from servescope.store.prometheus.selectors import selector
from servescope.store.prometheus.steps import at_once, read_series
from servescope.store.prometheus.targets import (
    CONTRACT_NAMES,
    PROBE_SUCCESS,
    TARGET_UP,
    UP,
)
from servescope.store.prometheus.tracks import (
    FigureTracks,
    deployment_of,
    make_table,
    measured,
    merge,
    newest_figures,
    sort_tracks,
    tracks_at,
)
from servescope.store.prometheus.windows import read_windows
from servescope.store.records import FigureTable, KeptAlert, TargetStatus

T = TypeVar("T")

STEP_MS: Final = 15_000
"""The shortest distance of the instants at which a Prometheus is asked for figures."""
COMPUTED_STEP_MS: Final = 60_000
"""The same for charts of figures that it computes at each request, of five minutes each: computing them takes it some
hundred times as long as returning recorded ones.
"""
DAYS_LOOKED_BACK: Final = 30

_LOOKED_BACK_MS = DAYS_LOOKED_BACK * 86_400_000
_LISTED_MS = 7 * 86_400_000
_HELD_MS = 35 * 86_400_000
_LIST_SECONDS, _PAGE_SECONDS = 30.0, 4.0
_PAGES_KEPT = 64
# Up to this much time one query reads the figures of all deployments, as for a table of them.
_SHORT_MS = 600_000
# A scrape is stored with the time it began, when it is over; agents send it on, and a VictoriaMetrics shows it, later.
_SETTLED_MS = 30_000
_UNHELD = (
    "a Prometheus holds no deploys that were reported to a collector, and other events with a time to within a minute"
)
ALERT_RULES: Final = "alerting.rules.yml"
"""The generated file of the rules that alert."""
_WATCHDOG = 'ALERTS{alertname="ServescopeWatchdog"}'
_NO_ALERTS = f"this Prometheus does not evaluate {ALERT_RULES}, so that no alert of it is known"
_EXPOSED: Mapping[str, str] = {figure.exposed: figure.name for figure in FIGURES.values() if figure.exposed}
_RECORDED: Mapping[str, str] = {figure.record(): figure.name for figure in FIGURES.values()}
_RECORDED_LABELS = frozenset(
    {"__name__", *DEPLOYMENT_LABELS, *PAIR_LABELS, *(label for figure in FIGURES.values() for label in figure.by)}
)
_IDENTIFYING = tuple(name for name in CONTRACT_NAMES if not name.endswith("_bucket"))

SCRAPE_COLLECTOR: Final = """\
scrape_configs:
  - job_name: servescope
    scrape_interval: 15s
    static_configs:
      - targets: ["127.0.0.1:9900"]   # where `servescope collect` listens
"""
"""What to add to a Prometheus that holds no series of the contract."""


@dataclass(frozen=True, slots=True)
class _FigureSource:
    """Where a deployment's figures are read: `exposed` by a collector, `recorded` by rules, or `computed` from samples.

    `pages` are the `job` and `instance` of each collector that exposes its figures, current ones first: of two that
    watch the same at once, the first counts. `in_parts` are computed ones of which rules record parts.
    """

    kind: str
    pages: tuple[Labels, ...] = ()
    in_parts: bool = False


class PrometheusHistory(History):
    """The history that a Prometheus holds that scrapes collectors' `/metrics`, or our instruments without a collector.

    Figures are those that collectors expose, else those of the recording rules, else their PromQL evaluated over the
    samples of the contract. A Prometheus does not hold how a target is read: statuses have an empty URL, source,
    versions, coverage and reason of a failure. What is later than `clock` shows is not read, as a clock was ahead.
    Answers are cached for a few seconds. Safe from several threads.
    """

    def __init__(self, prometheus: client.Prometheus, *, clock: Callable[[], float] = time.time) -> None:
        self.prometheus = prometheus
        self._whole = prometheus.only_whole()
        self.clock = clock
        self._kept: dict[object, tuple[float, object]] = {}
        self._intervals: dict[Identity, int] = {}
        self._unidentified: dict[str, None] = {}
        self._lock = threading.Lock()

    @property
    def settle_ms(self) -> int:
        """How long after an instant all is there that was scraped up to it, as agents and remote storages delay it."""
        return _SETTLED_MS

    @property
    def prometheus_url(self) -> str:
        """Where it is."""
        return self.prometheus.url

    @property
    def _now_ms(self) -> int:
        return round(self.clock() * 1000)

    def _until(self, time_ms: int) -> int:
        return min(time_ms, self._now_ms + AHEAD_MS)

    # --- What there is ------------------------------------------------------------------------------------------------

    def deployments(self) -> list[Deployment]:
        """Every deployment with series within the last days that a judge may look back. Raises PartialError."""
        return self._keep("deployments", _LIST_SECONDS, lambda: self._find_deployments(self._whole))

    def listed_deployments(self) -> list[Deployment]:
        """The same without those that a partial answer lacks, which `partial` reports."""
        return self._keep("listed", _LIST_SECONDS, lambda: self._find_deployments(self.prometheus))

    def _find_deployments(self, prometheus: client.Prometheus) -> list[Deployment]:
        now = self._now_ms
        # One series for each target, so that weeks of them are few.
        wanted = [TARGET_UP, REPLICA_START_TIME]
        found = read_series(prometheus, wanted, start_ms=now - _HELD_MS, end_ms=now, by=DEPLOYMENT_LABELS)
        held = {deployment for labels in found if (deployment := deployment_of(labels)) is not None}
        return sorted(held | self._sources().keys())

    def _sources(self) -> dict[Deployment, _FigureSource]:
        return self._keep("sources", _LIST_SECONDS, self._find_sources)

    def _find_sources(self) -> dict[Deployment, _FigureSource]:
        now = self._now_ms
        pages = [selector(names=list(_EXPOSED), extra='{window!="",deployment_id!=""}'), TARGET_UP]

        def read(wanted: Sequence[str], since_ms: int) -> list[Labels]:
            return list(read_series(self.prometheus, wanted, start_ms=since_ms, end_ms=now))

        wanted: Sequence[Callable[[], list[Labels]]] = (
            lambda: self._computed(now - _LISTED_MS, now),
            lambda: read([selector(names=list(_RECORDED))], now - _LISTED_MS),
            lambda: read(pages, now - _SHORT_MS),
            lambda: read(pages, now - _LISTED_MS),
        )
        held, recorded, *exposing = at_once(lambda ask: ask(), wanted)
        computed = map(deployment_of, held)
        found = {deployment: _FigureSource("computed") for deployment in computed if deployment is not None}
        for one, clusters in _count_clusters(recorded).items():
            if clusters == 1:
                found[one] = _FigureSource("recorded")
            elif one in found:
                found[one] = _FigureSource("computed", in_parts=True)
        places: dict[Deployment, dict[Labels, None]] = {}
        # A page may expose the targets of a deployment without its figures, which are then read elsewhere.
        watched: dict[Deployment, dict[Labels, None]] = {}
        for listed, is_current in zip(exposing, (True, False), strict=True):
            for labels in sorted({*listed}):
                deployment = deployment_of(labels)
                if deployment is not None and self._is_admitted(deployment, page_of(labels), int(is_current)):
                    shown = places if dict(labels).get("window") else watched
                    shown.setdefault(deployment, {})[page_of(labels)] = None
        without, exposed = (
            {
                one: _FigureSource("exposed", tuple(seen))
                for one, seen in shown.items()
                # What collectors of several clusters expose are parts, which is computed as a whole.
                if one not in found or len({far_of(page) for page in seen}) == 1
            }
            for shown in (watched, places)
        )
        return without | found | exposed

    def _computed(self, start_ms: int, end_ms: int) -> list[Labels]:
        """A series of the contract of each deployment that has any, whoever exposes it."""
        wanted = selector(names=_IDENTIFYING, extra='{deployment_id!="",window=""}')
        try:
            return self.prometheus.series([wanted], start_ms=start_ms, end_ms=end_ms, by=DEPLOYMENT_LABELS)
        except client.TooMuchError:
            # Their number alone is too large: then those that are there now.
            query = f"group by ({', '.join(DEPLOYMENT_LABELS)}) ({wanted})"
            return [point.labels for point in self.prometheus.query(query, at_ms=end_ms)]

    def time_range(self) -> tuple[int, int] | None:
        """When the first and the last figures are from, to within a minute, as far back as thirty days."""
        return self._keep("range", _LIST_SECONDS, self._find_range)

    def _find_range(self) -> tuple[int, int] | None:
        now, coarse_ms = self._now_ms, _LOOKED_BACK_MS // 240
        for names in ([TARGET_UP, *_EXPOSED, *_RECORDED], [REPLICA_START_TIME], _IDENTIFYING):
            there = f"group({selector(names=names)})"
            coarse = self._instants(there, now - _LOOKED_BACK_MS, now, coarse_ms)
            if coarse:
                earlier = self._instants(there, coarse[0] - coarse_ms, coarse[0], 60_000)
                later = self._instants(there, coarse[-1], min(coarse[-1] + coarse_ms, now), 60_000)
                return min([*earlier, coarse[0]]), max([*later, coarse[-1]])
        return None

    def _instants(self, query: str, start_ms: int, end_ms: int, step_ms: int) -> list[int]:
        tracks = self.prometheus.query_range(query, start_ms=start_ms, end_ms=end_ms, step_ms=step_ms)
        return sorted({time_ms for track in tracks for time_ms in track.times.tolist()})

    # --- Figures ------------------------------------------------------------------------------------------------------

    def latest_figures(self) -> dict[Deployment, tuple[int, dict[str, float]]]:
        """The figures now of each deployment that has any, and when their samples are from."""
        now = self._now_ms
        return self._keep(("latest", now // 1000), _PAGE_SECONDS, lambda: self._read_latest(now))

    def _read_latest(self, at_ms: int) -> dict[Deployment, tuple[int, dict[str, float]]]:
        sources = self._sources()
        latest: dict[Deployment, tuple[int, dict[str, float]]] = {}
        for kind in sorted({source.kind for source in sources.values()}):
            queries = figures_queries(kind, tuple(FIGURES.values()), "")
            answers = at_once(lambda query: self.prometheus.query(query, at_ms=at_ms), queries)
            points = [point for answer in answers for point in answer]
            for deployment, seen in sort_tracks(tracks_at(points, at_ms)).items():
                source = sources.get(deployment)
                if source is None or source.kind != kind:
                    continue
                pages = {place: seen[place] for place in source.pages or seen if place in seen}
                if pages:
                    latest[deployment] = newest_figures(pages, at_ms)
        return latest

    def read_figures(
        self,
        deployment: Deployment,
        start_ms: int,
        end_ms: int,
        *,
        names: Sequence[str] | None = None,
        max_points: int | None = None,
    ) -> FigureTable:
        """A deployment's figures from start to end, both included, at steps of one length, and at the end itself.

        Where several deployments are likely to be read one after the other, one query reads all of them.
        """
        source, end_ms = self._sources().get(deployment), self._until(end_ms)
        if source is None or end_ms < start_ms:
            return FigureTable(np.zeros(0, dtype=np.int64), {name: np.zeros(0) for name in names or ()})
        wanted = {name.partition("{")[0] for name in names} if names is not None else set(FIGURES)
        figures = tuple(figure for figure in FIGURES.values() if figure.name in wanted)
        of_all = names is not None or end_ms - start_ms <= _SHORT_MS
        where = "" if of_all else matchers(deployment)
        page = self._page(source.kind, figures, where, start_ms, end_ms, max_points)
        seen = page.get(deployment, {})
        shown = [measured(seen[place]) for place in (*source.pages, ()) if place in seen]
        return self._admit_figures(deployment, source.kind, make_table(merge(shown), names))

    def _page(
        self, kind: str, figures: tuple[Figure, ...], where: str, start_ms: int, end_ms: int, max_points: int | None
    ) -> FigureTracks:
        step_ms = self._step(kind, end_ms - start_ms, max_points)
        queries = figures_queries(kind, figures, where)

        def ask() -> FigureTracks:
            # Steps are multiples of their length, so that a graph does not change shape while its range moves on.
            first, last = -(-start_ms // step_ms) * step_ms, end_ms // step_ms * step_ms

            def ask_one(query: str) -> list[client.Track]:
                tracks = self._range(query, first, last, step_ms) if first <= last else []
                return [
                    *tracks,
                    *(tracks_at(self.prometheus.query(query, at_ms=end_ms), end_ms) if last < end_ms else []),
                ]

            return sort_tracks(track for tracks in at_once(ask_one, queries) for track in tracks)

        return self._keep((*queries, start_ms, end_ms, step_ms), _PAGE_SECONDS, ask)

    def _step(self, kind: str, span_ms: int, max_points: int | None) -> int:
        if max_points is None:
            return STEP_MS
        least_ms = COMPUTED_STEP_MS if kind == "computed" else STEP_MS
        return max(1, -(-span_ms // max(1, max_points) // least_ms)) * least_ms

    def _range(self, query: str, first_ms: int, last_ms: int, step_ms: int) -> list[client.Track]:
        """The query at every step, however many there are, in parts that are not too much."""
        tracks: list[client.Track] = []
        reach = (client.MAX_STEPS - 1) * step_ms
        while first_ms <= last_ms:
            end_ms = min(first_ms + reach, last_ms)
            try:
                tracks += self.prometheus.query_range(query, start_ms=first_ms, end_ms=end_ms, step_ms=step_ms)
            except client.LateError:
                raise
            except client.TooMuchError:
                if end_ms == first_ms:
                    raise
                reach = (end_ms - first_ms) // step_ms // 2 * step_ms
                continue
            first_ms = end_ms + step_ms
        return tracks

    # --- Targets and samples ------------------------------------------------------------------------------------------

    def targets(self) -> list[TargetStatus]:
        """The latest status of every target as far as a Prometheus holds it, by target id.

        Processes of one identity in several clusters or tenants have those in their names, as in their increments.
        """
        found = self._processes()
        named = ((name, found[process]) for process, name in names_apart(found).items())
        statuses = (replace(status, identity=name, target_id=name.target_id) for name, status in named)
        return sorted(statuses, key=lambda status: status.target_id)

    def spread(self) -> dict[Deployment, list[Labels]]:
        """The deployments with targets in several clusters, namespaces or tenants, and which these are."""
        places: dict[Deployment, set[Labels]] = {}
        for identity, far in self._processes():
            places.setdefault(identity.deployment(), set()).add(far)
        return {deployment: sorted(fars) for deployment, fars in sorted(places.items()) if len(fars) > 1}

    def unidentified(self) -> tuple[str, ...]:
        """The problems of targets whose labels are no identity, so that no page shows them."""
        return self._read().problems

    def _processes(self) -> Mapping[Process, TargetStatus]:
        return self._read().statuses

    def _read(self) -> SeenProcesses:
        def read() -> SeenProcesses:
            sources = self._sources()
            unwatched = [one for one, source in sources.items() if source.kind != "exposed"]
            return read_processes(self.prometheus, self._now_ms, unwatched)

        return self._keep("targets", _PAGE_SECONDS, read)

    def read_samples(self, deployment: Deployment, names: Sequence[str], start_ms: int, end_ms: int) -> list[Window]:
        """The native samples of a deployment's processes, one window for each that has any; as an import reads them.

        Raises PartialError.
        """
        wanted = tuple(name for name in CONTRACT_NAMES if SAMPLE_FAMILIES[name] in names or name in names)
        found = read_windows(
            self._whole, deployment, wanted, start_ms, self._until(end_ms),
            lambda place, series: self._is_admitted(deployment, place, series),
        )  # fmt: skip
        self._intervals |= {read.identity: read.interval_ms for read in found}
        return [read.window for read in found if len(read.window.times)]

    def _admit_figures(self, deployment: Deployment, kind: str, table: FigureTable) -> FigureTable:
        """The figures that count, as they are read: all do, but where a subclass compares whose they are."""
        return table

    def _is_admitted(self, deployment: Deployment, place: Labels, series: int = 0) -> bool:
        """Whether what was scraped at a place counts for a deployment; `series` is how many of it are read there.

        All of it does, but where a subclass compares whose it is.
        """
        return True

    def scrape_intervals(self) -> dict[Identity, int]:
        """The distance of the scrapes of each process whose samples were read, in milliseconds."""
        return dict(self._intervals)

    def read_increments(
        self, deployment: Deployment, names: Sequence[str], start_ms: int, end_ms: int
    ) -> list[TargetIncrements]:
        """The increments of a deployment's targets in the blocks that lie between start and end.

        A block is there once it ended a little while ago, as Prometheus stores a scrape when that is over. Raises
        PartialError where a part of the samples could not be read.
        """
        settled_ms = min(end_ms, self._now_ms - _SETTLED_MS)
        found, problems = read_increments(self._whole, deployment, names, start_ms, settled_ms)
        with self._lock:
            self._unidentified |= dict.fromkeys(problems[: client.MAX_WARNINGS - len(self._unidentified)])
        return found

    def read_events(self, start_ms: int, end_ms: int) -> list[Event]:
        """The events after start up to end that its series show, without deploys. Raises PartialError."""
        return read_events(self._whole, start_ms, self._until(end_ms))

    def read_alerts(self) -> list[KeptAlert]:
        """Those of the rules that it evaluates, ours or any others, that are pending or firing: its series `ALERTS`."""
        now = self._now_ms
        begun = {
            tuple(pair for pair in point.labels if pair[0] != "__name__"): round(1000 * point.value)
            for point in self.prometheus.query("ALERTS_FOR_STATE", at_ms=now)
        }
        found = []
        for point in self.prometheus.query("ALERTS", at_ms=now):
            labels = {name: value for name, value in point.labels if name not in ("__name__", "alertstate")}
            since_ms = begun.get(make_labels(labels), now)
            fired_ms = since_ms if ("alertstate", "firing") in point.labels else None
            name = labels.pop("alertname", "alert")
            found.append(KeptAlert(name, make_labels(labels), since_ms, fired_ms, None, None, value=math.nan))
        return found

    def partial(self) -> tuple[str, ...]:
        """What answers of the last minute said of parts that are missing in them; empty while all were whole."""
        return self.prometheus.partial_since(time.monotonic() - _LIST_SECONDS - _PAGE_SECONDS)

    def missing_rules(self) -> dict[str, str]:
        """The generated files of rules that this Prometheus does not evaluate, and what is missing without each."""
        return self._keep("rules", _LIST_SECONDS, self._find_missing_rules)

    def _find_missing_rules(self) -> dict[str, str]:
        now = self._now_ms
        missing = {}
        sources = self._sources()
        if any(source.kind == "computed" and not source.in_parts for source in sources.values()):
            missing["recording.rules.yml"] = "figures are computed from the samples at each request"
        if sources and not self.prometheus.query(_WATCHDOG, at_ms=now):
            missing[ALERT_RULES] = "no alert is evaluated"
        scraped = f'{PROBE_SUCCESS} or {UP}{{deployment_id!=""}}'
        if self.prometheus.query(f"group({scraped}) unless group({TARGET_UP})", at_ms=now):
            missing["without-collector.rules.yml"] = "replicas are not counted, and the health of targets has no alert"
        return missing

    def uncovered(self, at_ms: int) -> dict[Deployment, float]:
        """The deployments whose window was not whole then: their totals are those of this share of it (0 to 1)."""
        at_ms = min(at_ms, self._now_ms)
        # Of several clusters, the one that lacks most.
        query = f"min by ({', '.join(DEPLOYMENT_LABELS)}) ({COVERAGE_SERIES}) < {COVERED_RATIO:g}"

        def ask() -> dict[Deployment, float]:
            points = self.prometheus.query(query, at_ms=at_ms)
            return {one: point.value for point in points if (one := deployment_of(point.labels)) is not None}

        return self._keep((query, at_ms // 1000), _PAGE_SECONDS, ask)

    def remarks(self) -> tuple[str, ...]:
        """What is not in a Prometheus, and what was not read or was warned of in increments and events."""
        try:
            unevaluated = (_NO_ALERTS,) if ALERT_RULES in self.missing_rules() else ()
        except client.PrometheusError as error:
            unevaluated = (str(error),)
        unread = (f"not read: {problem}" for problem in self._unidentified)
        return _UNHELD, *unevaluated, *unread, *self.prometheus.warnings, *self._whole.warnings

    def forget(self) -> None:
        """Ask anew for everything that answers are kept of."""
        with self._lock:
            self._kept.clear()

    def _keep(self, key: object, seconds: float, make: Callable[[], T]) -> T:
        """What was made for this key within the last seconds, or is made now."""
        now = time.monotonic()
        with self._lock:
            self._kept = {each: kept for each, kept in self._kept.items() if kept[0] > now}
            if key in self._kept:
                return self._kept[key][1]  # type: ignore[return-value]  # what this key was kept with
        made = make()
        with self._lock:
            if len(self._kept) < _PAGES_KEPT:
                self._kept[key] = (time.monotonic() + seconds, made)
        return made


def _count_clusters(found: Iterable[Labels]) -> dict[Deployment, int]:
    """How many clusters the recorded series of each deployment are of; of several, each has figures of its own.

    A cluster is whatever the rules' `extra_labels` distinguish: labels beside those of the figures and of a pair.
    """
    clusters: dict[Deployment, set[Labels]] = {}
    for labels in found:
        deployment = deployment_of(labels)
        if deployment is not None:
            others = tuple(pair for pair in labels if pair[0] not in _RECORDED_LABELS)
            clusters.setdefault(deployment, set()).add(others)
    return {deployment: len(seen) for deployment, seen in clusters.items()}
