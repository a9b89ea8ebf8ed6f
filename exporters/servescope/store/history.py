"""Where figures of the past are read: a collector's store, or a Prometheus that holds the same series.

`History` is what the console and a judge ask; `Store` is one as it is.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from servescope.contract.expressions import Level, leaves, promql
from servescope.contract.figures import FIGURES, figure_key
from servescope.contract.identity import DEPLOYMENT_LABELS, IDENTITY_LABELS, Deployment, Identity
from servescope.contract.metrics import SAMPLE_FAMILIES
from servescope.contract.samples import Labels, Window
from servescope.contract.types import DEFAULT_WINDOW, Figure
from servescope.errors import IdentityError
from servescope.store.observed import CONTRACT_NAMES, TARGET_UP, UP, find_contract_targets, read_clock, recall
from servescope.store.prometheus import MAX_STEPS, Point, Prometheus, TooMuchError, Track, escape, selector
from servescope.store.records import FigureTable, RecordedSettings, TargetStatus

PROMETHEUS_VARIABLE: Final = "SERVESCOPE_PROMETHEUS"
"""The environment variable that tells the console's pages which Prometheus to read, as JSON for `connect`."""

T = TypeVar("T")


class History(Protocol):
    """Figures, targets and samples of the past; times in milliseconds. Raises ServescopeError."""

    def deployments(self) -> list[Deployment]:
        """Every deployment it holds something of."""

    def latest_figures(self, *, until_ms: int | None = None) -> dict[Deployment, tuple[int, dict[str, float]]]:
        """The last figures of each deployment, of those not after `until_ms`, and when they are from."""

    def read_figures(
        self,
        deployment: Deployment,
        start_ms: int,
        end_ms: int,
        *,
        names: Sequence[str] | None = None,
        max_points: int | None = None,
    ) -> FigureTable:
        """A deployment's figures from start to end, both included; `names` are figure keys, all when None.

        At most about `max_points` instants, of which the last is the newest there is.
        """

    def targets(self) -> list[TargetStatus]:
        """The latest status of every target, by target id."""

    def time_range(self) -> tuple[int, int] | None:
        """When the first and the last figures are from; None when there are none."""

    def read_samples(self, deployment: Deployment, names: Sequence[str], start_ms: int, end_ms: int) -> list[Window]:
        """The native samples of a deployment's targets, one window each; `names` are metrics of the contract."""

    def settings_at(self, time_ms: int) -> RecordedSettings | None:
        """How the figures of a time were derived; None when that is not known."""


STEP_MS: Final = 15_000
"""The shortest distance of the instants at which a Prometheus is asked for figures."""
DAYS_LOOKED_BACK: Final = 30

_LOOKED_BACK_MS = DAYS_LOOKED_BACK * 86_400_000
_LISTED_MS = 7 * 86_400_000
_LIST_SECONDS, _PAGE_SECONDS = 30.0, 4.0
_PAGES_KEPT = 64
# Up to this much time the figures of all deployments are asked for at once, as for a table of them.
_SHORT_MS = 600_000
_FIGURE, _TIME = "servescope_figure", "time"
_EXPOSED: Mapping[str, str] = {figure.exposed: figure.name for figure in FIGURES.values() if figure.exposed}
_RECORDED: Mapping[str, str] = {figure.record(): figure.name for figure in FIGURES.values()}
_EXTRA = tuple(sorted({label for figure in FIGURES.values() for label in figure.by}))
_TELLING = tuple(name for name in CONTRACT_NAMES if not name.endswith("_bucket"))

SCRAPE_COLLECTOR: Final = """\
scrape_configs:
  - job_name: servescope
    scrape_interval: 15s
    static_configs:
      - targets: ["127.0.0.1:9900"]   # where `servescope collect` listens
"""
"""What a Prometheus lacks that holds no series of the contract."""


@dataclass(frozen=True, slots=True)
class _Way:
    """How a deployment's figures are had: `exposed` by a collector, `recorded` by rules, or `computed` from samples.

    `places` are the `job` and `instance` of each collector's page that shows its figures, those of now first: of two
    that watch the same at once, one counts.
    """

    kind: str
    places: tuple[Labels, ...] = ()


_Tracks = dict[Deployment, dict[Labels, dict[str, Track]]]
"""The tracks of each deployment by where they were scraped, and by figure key."""


class PrometheusHistory:
    """The past as a Prometheus holds it that scrapes collectors' `/metrics`, or our instruments without a collector.

    Figures are those that collectors expose; where they are not there, those of the recording rules; else their PromQL
    is evaluated over the samples of the contract. A Prometheus does not hold how a target is read: statuses leave its
    URL, source, versions, coverage and the reason of a failure empty. Answers are kept for a few seconds. Safe from
    several threads.
    """

    def __init__(
        self, prometheus: Prometheus, *, clock: Callable[[], float] = time.time, step_ms: int = STEP_MS
    ) -> None:
        self.prometheus = prometheus
        self._clock, self._step_ms = clock, step_ms
        self._kept: dict[object, tuple[float, object]] = {}
        self._lock = threading.Lock()

    @property
    def _now_ms(self) -> int:
        return round(self._clock() * 1000)

    # --- What there is ------------------------------------------------------------------------------------------------

    def deployments(self) -> list[Deployment]:
        """Every deployment with series within the last seven days."""
        return sorted(self._ways())

    def _ways(self) -> dict[Deployment, _Way]:
        return self._keep("ways", _LIST_SECONDS, self._find_ways)

    def _find_ways(self) -> dict[Deployment, _Way]:
        now = self._now_ms
        bounds = {"start_ms": now - _LISTED_MS, "end_ms": now}
        pages = [selector(names=list(_EXPOSED), extra='{window!="",deployment_id!=""}'), TARGET_UP]
        found = {deployment: _Way("computed") for deployment in self._computed(bounds)}
        recorded = self.prometheus.series([selector(names=list(_RECORDED))], **bounds)
        found |= {one: _Way("recorded") for labels in recorded if (one := _deployment(labels)) is not None}
        places: dict[Deployment, dict[Labels, None]] = {}
        # A page may show the targets of a deployment without its figures, which are then had elsewhere.
        watched: dict[Deployment, dict[Labels, None]] = {}
        for since_ms in (now - _SHORT_MS, now - _LISTED_MS):
            for labels in sorted(self.prometheus.series(pages, start_ms=since_ms, end_ms=now)):
                deployment = _deployment(labels)
                if deployment is not None:
                    shown = places if dict(labels).get("window") else watched
                    shown.setdefault(deployment, {})[_place(labels)] = None
        ways = [{one: _Way("exposed", tuple(seen)) for one, seen in shown.items()} for shown in (watched, places)]
        return ways[0] | found | ways[1]

    def _computed(self, bounds: Mapping[str, int]) -> set[Deployment]:
        """The deployments with series of the contract, from whomever."""
        extra = '{deployment_id!="",window=""}'
        try:
            found = self.prometheus.series([selector(names=_TELLING, extra=extra)], **bounds)
        except TooMuchError:
            # Their number alone is too large: then those that are there now.
            by = ", ".join(DEPLOYMENT_LABELS)
            query = f"group by ({by}) ({selector(names=_TELLING, extra=extra)})"
            found = [point.labels for point in self.prometheus.query(query, at_ms=bounds["end_ms"])]
        return {deployment for labels in found if (deployment := _deployment(labels)) is not None}

    def time_range(self) -> tuple[int, int] | None:
        """When the first and the last figures are from, to within a minute, as far back as thirty days."""
        return self._keep("range", _LIST_SECONDS, self._find_range)

    def _find_range(self) -> tuple[int, int] | None:
        now, coarse_ms = self._now_ms, _LOOKED_BACK_MS // 240
        for names in ([TARGET_UP, *_EXPOSED, *_RECORDED], _TELLING):
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

    def latest_figures(self, *, until_ms: int | None = None) -> dict[Deployment, tuple[int, dict[str, float]]]:
        """The figures now, or then, of each deployment that has any, and when their samples are from."""
        now = self._now_ms if until_ms is None else min(self._now_ms, until_ms)
        return self._keep(("latest", now // 1000), _PAGE_SECONDS, lambda: self._read_latest(now))

    def _read_latest(self, at_ms: int) -> dict[Deployment, tuple[int, dict[str, float]]]:
        ways = self._ways()
        latest: dict[Deployment, tuple[int, dict[str, float]]] = {}
        for kind in sorted({way.kind for way in ways.values()}):
            points = self.prometheus.query(_ask(kind, tuple(FIGURES.values()), ""), at_ms=at_ms)
            for deployment, seen in _sorted_out(_at(points, at_ms)).items():
                way = ways.get(deployment)
                if way is None or way.kind != kind:
                    continue
                pages = {place: seen[place] for place in way.places or seen if place in seen}
                if pages:
                    latest[deployment] = _newest_of(pages, at_ms)
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

        Where several deployments are likely to be asked for in turn, all are answered by one query.
        """
        way = self._ways().get(deployment)
        if way is None or end_ms < start_ms:
            return FigureTable(np.zeros(0, dtype=np.int64), {name: np.zeros(0) for name in names or ()})
        wanted = {name.partition("{")[0] for name in names} if names is not None else set(FIGURES)
        figures = tuple(figure for figure in FIGURES.values() if figure.name in wanted)
        at_once = names is not None or end_ms - start_ms <= _SHORT_MS
        where = "" if at_once else _matchers(deployment)
        page = self._page(way.kind, figures, where, start_ms, end_ms, max_points)
        seen = page.get(deployment, {})
        shown = [_measured(seen[place]) for place in (*way.places, ()) if place in seen]
        return _table(_merged(shown), names)

    def _page(
        self, kind: str, figures: tuple[Figure, ...], where: str, start_ms: int, end_ms: int, max_points: int | None
    ) -> _Tracks:
        step_ms = self._step(end_ms - start_ms, max_points)
        query = _ask(kind, figures, where)

        def ask() -> _Tracks:
            # Steps are multiples of their length, so that a picture does not change shape while its range moves on.
            first, last = -(-start_ms // step_ms) * step_ms, end_ms // step_ms * step_ms
            tracks = self._range(query, first, last, step_ms) if first <= last else []
            newest = self.prometheus.query(query, at_ms=end_ms) if last < end_ms else []
            return _sorted_out([*tracks, *_at(newest, end_ms)])

        return self._keep((query, start_ms, end_ms, step_ms), _PAGE_SECONDS, ask)

    def _step(self, span_ms: int, max_points: int | None) -> int:
        if max_points is None:
            return self._step_ms
        return max(1, -(-span_ms // max(1, max_points) // self._step_ms)) * self._step_ms

    def _range(self, query: str, first_ms: int, last_ms: int, step_ms: int) -> list[Track]:
        """The query at every step, however many there are."""
        tracks: list[Track] = []
        reach = (MAX_STEPS - 1) * step_ms
        while first_ms <= last_ms:
            end_ms = min(first_ms + reach, last_ms)
            tracks += self.prometheus.query_range(query, start_ms=first_ms, end_ms=end_ms, step_ms=step_ms)
            first_ms = end_ms + step_ms
        return tracks

    # --- Targets and samples ------------------------------------------------------------------------------------------

    def targets(self) -> list[TargetStatus]:
        """The latest status of every target as far as a Prometheus tells it, by target id."""
        return self._keep("targets", _PAGE_SECONDS, self._read_targets)

    def _read_targets(self) -> list[TargetStatus]:
        now = self._now_ms
        told = [
            self._by_identity(query, now)
            for query in (
                TARGET_UP,
                f"timestamp({TARGET_UP})",
                "servescope_target_scrape_duration_seconds",
                "servescope_target_samples",
            )
        ]
        collected = []
        for identity, pages in told[1].items():
            # Of two collectors that watch it, the one that said something last.
            newest = max(pages, key=lambda page: pages[page])
            up, seconds, duration, samples = (each.get(identity, {}).get(newest) for each in told)
            collected.append(_status(identity, bool(up), seconds, duration, samples))
        known = {status.identity.deployment() for status in collected}
        bare = [status for status in self._bare_targets(now) if status.identity.deployment() not in known]
        return sorted([*collected, *bare], key=lambda status: status.target_id)

    def _by_identity(self, query: str, at_ms: int) -> dict[Identity, dict[Labels, float]]:
        """The values of each target by the collector's page they are from."""
        found: dict[Identity, dict[Labels, float]] = {}
        for point in self.prometheus.query(query, at_ms=at_ms):
            values = dict(point.labels)
            try:
                identity = Identity(**{name: values.get(name, "") for name in IDENTITY_LABELS})
            except IdentityError:
                continue  # a series that is nobody's; an import tells of it
            found.setdefault(identity, {})[_place(point.labels)] = point.value
        return found

    def _bare_targets(self, now_ms: int) -> list[TargetStatus]:
        """The targets a Prometheus scrapes itself, without a collector."""
        if not any(way.kind != "exposed" for way in self._ways().values()):
            return []
        found, _ = find_contract_targets(self.prometheus, start_ms=now_ms - 3_600_000, end_ms=now_ms)
        ups = {
            tuple(pair for pair in point.labels if pair[0] in ("job", "instance")): point.value
            for point in self.prometheus.query(UP, at_ms=now_ms)
        }
        statuses = []
        for target in found:
            place = tuple(pair for pair in target.attached if pair[0] in ("job", "instance"))
            statuses.append(_status(target.identity, ups.get(place, 0.0) > 0, now_ms / 1000 if place in ups else None))
        return statuses

    def read_samples(self, deployment: Deployment, names: Sequence[str], start_ms: int, end_ms: int) -> list[Window]:
        """The native samples of a deployment's targets, one window for each that has any; as an import takes them."""
        wanted = tuple(name for name in CONTRACT_NAMES if SAMPLE_FAMILIES[name] in names or name in names)
        targets, _ = find_contract_targets(
            self.prometheus, f"{{{_matchers(deployment)}}}", start_ms=start_ms, end_ms=end_ms
        )
        windows = []
        for target in targets:
            clock = read_clock(self.prometheus, target, start_ms, end_ms)
            windows.append(recall(self.prometheus, target, wanted, clock, start_ms, end_ms).window)
        return [window for window in windows if len(window.times)]

    def settings_at(self, time_ms: int) -> RecordedSettings | None:
        """None: a Prometheus holds the figures, not how they were derived."""
        return None

    def _keep(self, key: object, seconds: float, make: Callable[[], T]) -> T:
        """What was made for this key a moment ago, or now."""
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


def _ask(kind: str, figures: Sequence[Figure], where: str) -> str:
    """One query for all figures, each element labelled with its figure; and for when their samples are from."""
    if kind == "exposed":
        return " or ".join(_ask_exposed(figures, where))
    if kind == "recorded":
        names = [figure.record() for figure in figures]
        recorded = selector(names=names, extra=f"{{{where}}}")
        return f"{_named_by_itself(recorded)} or {_named(_TIME, _newest(names, where))}"
    computed = [_named(figure.name, f"({_compute(figure, where)})") for figure in figures]
    names = sorted({name for figure in figures for name in _read_names(figure) if not name.endswith("_bucket")})
    return " or ".join([*computed, _named(_TIME, _newest(names, where or 'deployment_id!=""'))])


def _ask_exposed(figures: Sequence[Figure], where: str) -> Iterable[str]:
    exposed = [figure.exposed for figure in figures if figure.exposed is not None]
    # A gauge of the contract is no second series on a collector's page: its sum is the figure.
    for over in ("sum", "avg", "max"):
        names = [
            figure.expression.name
            for figure in figures
            if figure.exposed is None and isinstance(figure.expression, Level) and figure.expression.over == over
        ]
        if names:
            by = ", ".join(("__name__", *DEPLOYMENT_LABELS, *_EXTRA, "job", "instance"))
            gauges = selector(names=names, extra=f'{{{where}{"," if where else ""}deployment_id!=""}}')
            yield _named_by_itself(f"{over} by ({by}) ({gauges})")
    told = selector(names=exposed, extra=f'{{{where}{"," if where else ""}window!=""}}')
    if exposed:
        yield _named_by_itself(told)
    yield _named(_TIME, _newest([TARGET_UP], where, ("job", "instance")))


def _named_by_itself(query: str) -> str:
    # `or` tells elements apart by their labels without their names.
    return f'label_replace({query}, "{_FIGURE}", "$1", "__name__", "(.+)")'


def _named(name: str, query: str) -> str:
    return f'label_replace({query}, "{_FIGURE}", "{name}", "", "")'


def _newest(names: Sequence[str], where: str, by: Sequence[str] = ()) -> str:
    """When the samples are from, of the first name that a deployment has."""
    group = ", ".join((*DEPLOYMENT_LABELS, *by))
    # Each name by itself: without their names, which `timestamp` takes off, series would be the same.
    return "(" + " or ".join(f"max(timestamp({name}{{{where}}})) by ({group})" for name in names) + ")"


def _compute(figure: Figure, where: str) -> str:
    """The figure's PromQL over the series that `where` matches."""
    text = promql(figure.expression, window=DEFAULT_WINDOW, by=(*DEPLOYMENT_LABELS, *figure.by))
    matchers = where or 'deployment_id!=""'
    for name in sorted(_read_names(figure), key=len, reverse=True):
        text = _restrict(text, name, matchers)
    return text


def _restrict(text: str, name: str, matchers: str) -> str:
    """The PromQL with more matchers on every selector of a series name."""

    def selected(match: re.Match[str]) -> str:
        return f"{name}{{{matchers}{',' if match[1] else '}'}"

    return re.sub(rf"(?<![\w:]){name}(?![\w:])(\{{)?", selected, text)


def _read_names(figure: Figure) -> set[str]:
    """The names of the series that a figure is computed from."""
    names = set()
    for name in leaves(figure.expression):
        parts = [part for part in CONTRACT_NAMES if SAMPLE_FAMILIES[part] == name]
        names |= {name} if name in CONTRACT_NAMES and len(parts) == 1 else set(parts) or {name}
    return names


def _matchers(deployment: Deployment) -> str:
    return ",".join(f'{name}="{escape(getattr(deployment, name))}"' for name in DEPLOYMENT_LABELS)


def _deployment(labels: Labels) -> Deployment | None:
    values = dict(labels)
    try:
        return Identity(**{name: values.get(name, "") for name in DEPLOYMENT_LABELS}).deployment()
    except IdentityError:
        return None


def _place(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] in ("job", "instance"))


def _at(points: Iterable[Point], at_ms: int) -> list[Track]:
    return [Track(point.labels, np.array([at_ms]), np.array([point.value])) for point in points]


def _sorted_out(tracks: Iterable[Track]) -> _Tracks:
    """Each track by its deployment, where it was scraped, and its figure key."""
    found: _Tracks = {}
    for track in tracks:
        values, deployment = dict(track.labels), _deployment(track.labels)
        told = values.get(_FIGURE, "")
        name = _EXPOSED.get(told) or _RECORDED.get(told) or told
        if deployment is None or (name not in FIGURES and name != _TIME):
            continue
        extra = {label: values[label] for label in (FIGURES[name].by if name in FIGURES else ()) if label in values}
        key, seen = figure_key(name, extra), found.setdefault(deployment, {}).setdefault(_place(track.labels), {})
        seen[key] = _appended(seen[key], track) if key in seen else track
    return found


def _newest_of(seen: Mapping[Labels, Mapping[str, Track]], at_ms: int) -> tuple[int, dict[str, float]]:
    """The time and the figures of the page, of two that show the same, that was scraped last."""

    def moment(tracks: Mapping[str, Track]) -> float:
        return float(tracks[_TIME].values[-1]) if _TIME in tracks else -math.inf

    tracks = max((seen[place] for place in sorted(seen)), key=moment)
    time_ms = round(moment(tracks) * 1000) if _TIME in tracks else at_ms
    return time_ms, {key: float(track.values[-1]) for key, track in tracks.items() if key != _TIME}


def _measured(tracks: Mapping[str, Track]) -> dict[str, Track]:
    """The tracks of one page at the instants that showed samples newer than those of the instant before.

    A Prometheus goes on showing the last sample for five minutes; what was not measured again is not drawn again. The
    last instant, if it showed new ones, is told as when they are from.
    """
    moments = tracks.get(_TIME)
    if moments is None:
        return dict(tracks)
    fresh = np.append(True, moments.values[1:] != moments.values[:-1])
    asked, sampled = moments.times[fresh], np.rint(moments.values[fresh] * 1000).astype(np.int64)
    told = asked.copy()
    if fresh[-1] and (len(asked) == 1 or asked[-2] < sampled[-1]):
        told[-1] = min(asked[-1], sampled[-1])
    return {key: _moved(track, asked, told) for key, track in tracks.items()}


def _moved(track: Track, asked: NDArray[np.int64], told: NDArray[np.int64]) -> Track:
    """The track at those instants alone, with the time told of each."""
    kept = np.isin(track.times, asked)
    return Track(track.labels, told[np.searchsorted(asked, track.times[kept])], track.values[kept])


def _merged(pages: Sequence[Mapping[str, Track]]) -> dict[str, Track]:
    """One track of each figure: the first page's, and the others' at instants that it does not have."""
    merged: dict[str, Track] = {}
    for page in pages:
        known = merged.get(_TIME)
        for key, track in page.items():
            if known is not None:
                fresh = ~np.isin(track.times, known.times)
                track = Track(track.labels, track.times[fresh], track.values[fresh])
            merged[key] = _appended(merged[key], track) if key in merged else track
    return merged


def _appended(track: Track, other: Track) -> Track:
    """Both tracks as one; where they have an instant in common, as two windows of a collector may, the first counts."""
    fresh = ~np.isin(other.times, track.times)
    times = np.concatenate([track.times, other.times[fresh]])
    values = np.concatenate([track.values, other.values[fresh]])
    order = np.argsort(times, kind="stable")
    return Track(track.labels, times[order], values[order])


def _table(tracks: Mapping[str, Track], names: Sequence[str] | None) -> FigureTable:
    """The figures at every instant at which any was measured, NaN where one was absent."""
    times = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *(track.times for track in tracks.values())]))
    keys = names if names is not None else sorted(key for key in tracks if key != _TIME)
    return FigureTable(times, {key: _spread(tracks.get(key), times) for key in keys})


def _spread(track: Track | None, times: NDArray[np.int64]) -> NDArray[np.float64]:
    """The track's values at the times, NaN where it has none."""
    values = np.full(len(times), np.nan)
    if track is not None:
        values[np.searchsorted(times, track.times)] = track.values
    return values


def _status(
    identity: Identity,
    healthy: bool,
    scraped_seconds: float | None,
    duration_seconds: float | None = None,
    samples: float | None = None,
) -> TargetStatus:
    scraped_ms = None if scraped_seconds is None else round(scraped_seconds * 1000)
    return TargetStatus(
        target_id=identity.target_id,
        url="",
        identity=identity,
        source="",
        versions="",
        healthy=healthy,
        last_scrape_ms=scraped_ms,
        last_success_ms=scraped_ms if healthy else None,
        duration_seconds=duration_seconds,
        samples=round(samples or 0),
        error=None,
    )
