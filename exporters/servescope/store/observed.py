"""Targets as a Prometheus saw them: found by their labels, and their samples put together into scrapes again.

All samples of one scrape have the time of its `up`, so `up` is the clock of a target: at 1 a series without a sample
there was absent, at 0 the scrape failed. Behind a collector `servescope_target_up` says the same of each of its
targets. Where neither is there, every instant at which any series has a sample is a scrape.

Prometheus tells no stale markers. Where `up` itself pauses, it is asked whether it was still valid then: if not, the
target had left, and its series end there as they did for Prometheus.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Final, Literal

import numpy as np

from servescope.contract.identity import IDENTITY_LABELS, Deployment, Identity
from servescope.contract.metrics import PROCESS_RATIOS, SAMPLE_FAMILIES
from servescope.contract.samples import Labels, Series, Window, format_edge, format_series, make_labels
from servescope.errors import IdentityError
from servescope.store.prometheus import Prometheus, TooMuchError, Track, selector

Form = Literal["engine", "contract", "collected"]
"""What a target's series are: an engine's own, those of our instruments, or what a collector shows of it."""

UP: Final = "up"
TARGET_UP: Final = "servescope_target_up"
CONTRACT_NAMES: Final = tuple(name for name, family in SAMPLE_FAMILIES.items() if family not in PROCESS_RATIOS)
"""Every sample name of the contract but the ratios of single processes, which nothing is derived from."""
_TELLING = tuple(name for name in CONTRACT_NAMES if not name.endswith("_bucket"))
# What a target's clock is read beyond both ends of a stretch, to see whether it pauses there.
_MARGIN_MS = 120_000
_USUAL_INTERVAL_MS = 15_000
_PAUSE_INTERVALS = 1.9
_SHORTEST_PAGE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Observed:
    """One target as a Prometheus saw it.

    `attached` are the labels Prometheus put on its series, which are those of its `up`; `clocked` tells whether there
    is one. `source` is the source map to read an engine with, None to identify it.
    """

    identity: Identity
    attached: Labels
    form: Form
    clocked: bool
    source: str | None = None

    def select(self, names: Sequence[str]) -> str:
        """The selector of its series of these names."""
        return selector(self._matchers(), names=names)

    @property
    def up(self) -> str:
        """The selector of its `up`."""
        return selector([("__name__", UP), *self.attached])

    @property
    def health(self) -> str:
        """The selector of what a collector says of its health."""
        return selector([("__name__", TARGET_UP), *self._matchers()])

    def _matchers(self) -> list[tuple[str, str]]:
        if self.form == "engine":
            return list(self.attached)
        identity = {name: getattr(self.identity, name) for name in IDENTITY_LABELS}
        # Labels that are empty count as well: a series of another environment is another target's.
        return [*identity.items(), *((name, value) for name, value in self.attached if name not in identity)]


@dataclass(frozen=True, slots=True, eq=False)
class Recalled:
    """The scrapes of a target over a stretch of time: `succeeded` says of each instant of the window whether it was one
    that brought something. `strays` are samples at instants of no scrape, which are left out.
    """

    window: Window
    succeeded: tuple[bool, ...]
    strays: int


# --- Finding them -----------------------------------------------------------------------------------------------------


def find_engines(
    prometheus: Prometheus,
    match: str,
    deployment: Deployment,
    *,
    role: str,
    replica_label: str,
    source: str | None,
    start_ms: int,
    end_ms: int,
) -> list[Observed]:
    """The engines a Prometheus scraped itself: every `up` that `match` selects is a target of the deployment.

    Without an `up` the series with an engine's names are told apart by `job` and `instance`. The replica is called as
    `replica_label` says.
    """
    ups = prometheus.series([selector([("__name__", UP)], extra=match)], start_ms=start_ms, end_ms=end_ms)
    attached = [_without_name(labels) for labels in ups]
    clocked = bool(attached)
    if not clocked:
        names = [name for name in native_names() if not name.endswith("_bucket")]
        found = prometheus.series([selector(names=names, extra=match)], start_ms=start_ms, end_ms=end_ms)
        attached = [_pick(labels, ("job", "instance", replica_label)) for labels in found]
    return [
        Observed(_engine_identity(deployment, labels, role, replica_label), labels, "engine", clocked, source)
        for labels in sorted(set(attached))
    ]


def _engine_identity(deployment: Deployment, attached: Labels, role: str, replica_label: str) -> Identity:
    values = dict(attached)
    replica = values.get(replica_label) or values.get("instance", "")
    return Identity(**dict(deployment.labels()), replica=replica, role=role)


def find_contract_targets(
    prometheus: Prometheus, match: str = "", *, start_ms: int, end_ms: int
) -> tuple[list[Observed], list[str]]:
    """The targets whose series of the contract a Prometheus holds, and what is wrong with series that are nobody's.

    They come from collectors' pages, or from our instruments scraped without a collector.
    """
    told = prometheus.series([selector([("__name__", TARGET_UP)], extra=match)], start_ms=start_ms, end_ms=end_ms)
    bare = _telling_series(prometheus, match, start_ms, end_ms)
    problems: dict[str, None] = {}
    collected = _identified(told, problems)
    known = set(collected)
    ways = collected | {key: None for key in _identified(bare, problems) if key not in known}
    ups = _ups_by_place(prometheus, (rest for _, rest in ways), start_ms, end_ms)
    return [_observed(key, "collected" if key in known else "contract", ups) for key in sorted(ways)], list(problems)


def _telling_series(prometheus: Prometheus, match: str, start_ms: int, end_ms: int) -> Iterator[Labels]:
    """The series of the contract, but for buckets; asked for name by name where they are too many."""
    # What a collector counts itself, marked as derived, is of no target.
    extra = f'{{{_inner(match)}deployment_id!="",derived=""}}'
    try:
        yield from prometheus.series([selector(names=_TELLING, extra=extra)], start_ms=start_ms, end_ms=end_ms)
    except TooMuchError:
        for name in _TELLING:
            yield from prometheus.series([selector(names=[name], extra=extra)], start_ms=start_ms, end_ms=end_ms)


def _inner(match: str) -> str:
    inner = match.strip().removeprefix("{").removesuffix("}").strip().rstrip(",")
    return f"{inner}," if inner else ""


def _identified(found: Iterable[Labels], problems: dict[str, None]) -> dict[tuple[Identity, Labels], None]:
    """Whose the series are and where they were scraped, each once."""
    targets: dict[tuple[Identity, Labels], None] = {}
    for labels in found:
        values = dict(labels)
        try:
            identity = Identity(**{name: values.get(name, "") for name in IDENTITY_LABELS})
        except IdentityError as error:
            problems[f"series such as {values.get('__name__', '')!r}: {error}"] = None
            continue
        targets[identity, _pick(labels, ("job", "instance"))] = None
    return targets


def _ups_by_place(
    prometheus: Prometheus, places: Iterable[Labels], start_ms: int, end_ms: int
) -> dict[Labels, list[Labels]]:
    """The labels of every `up` by its job and instance."""
    jobs = sorted({dict(place)["job"] for place in places if len(place) == 2})
    ups: dict[Labels, list[Labels]] = {}
    if jobs:
        wanted = [selector([("__name__", UP), ("job", job)]) for job in jobs]
        for labels in prometheus.series(wanted, start_ms=start_ms, end_ms=end_ms):
            ups.setdefault(_pick(labels, ("job", "instance")), []).append(_without_name(labels))
    return ups


def _observed(key: tuple[Identity, Labels], form: Form, ups: Mapping[Labels, list[Labels]]) -> Observed:
    identity, place = key
    identified = set(identity.labels())
    fitting = [
        labels
        for labels in ups.get(place, ())
        if all(pair in identified for pair in labels if pair[0] in IDENTITY_LABELS)
    ]
    # Several differ in labels the series need not bear, so what they have in common is matched.
    common = tuple(pair for pair in fitting[0] if all(pair in labels for labels in fitting)) if fitting else place
    return Observed(identity, common, form, clocked=bool(fitting))


@lru_cache(maxsize=1)
def native_names() -> tuple[str, ...]:
    """Every series name that some source map reads or recognises a source by, in both its spellings."""
    from servescope.sources.map_files import load_sources

    names: set[str] = set()
    for source in load_sources().values():
        names |= {*source.signs.all, *source.signs.any, *source.signs.none, *source.first_use.when}
        names |= {source.first_use.like} if source.first_use.like else set()
        names |= {name for rule in source.versions for name in rule.present}
        for metric_map in source.metrics.values():
            names |= set(metric_map.zero_when)
            for alternative in metric_map.alternatives:
                names |= {*alternative.requires, *alternative.unless, *(term.native for term in alternative.terms)}
    parts = {f"{name}{part}" for name in names for part in ("", "_bucket", "_sum", "_count")}
    return tuple(sorted(parts | {name.replace(":", "_") for name in parts}))


# --- Reading them -----------------------------------------------------------------------------------------------------


def read_clock(prometheus: Prometheus, target: Observed, start_ms: int, end_ms: int) -> dict[int, bool] | None:
    """The instants of a target's scrapes from start to end, both included, and whether each succeeded.

    None when nothing tells, so that only the samples themselves do.
    """
    first, last = start_ms - _MARGIN_MS, end_ms + _MARGIN_MS
    clock = _samples_at(prometheus, target.up, first, last) if target.clocked else None
    if target.form == "collected":
        clock = _combine(clock, _samples_at(prometheus, target.health, first, last))
    if clock is None:
        return None
    marker = target.up if target.clocked else target.health
    clock |= _departures(prometheus, marker, sorted(clock), last)
    return {time_ms: clock[time_ms] for time_ms in sorted(clock) if start_ms <= time_ms <= end_ms}


def _samples_at(prometheus: Prometheus, wanted: str, start_ms: int, end_ms: int) -> dict[int, bool]:
    found: dict[int, bool] = {}
    for track in fetch(prometheus, wanted, start_ms, end_ms):
        found |= {time_ms: value > 0 for time_ms, value in zip(track.times.tolist(), track.values, strict=True)}
    return found


def _combine(page: Mapping[int, bool] | None, health: Mapping[int, bool]) -> dict[int, bool]:
    """When a collector's target was scraped, by the scrapes of the collector's page and by what that page said."""
    if page is None:
        return dict(health)
    clock: dict[int, bool] = {}
    before = False
    for time_ms in sorted(page):
        healthy = page[time_ms] and health.get(time_ms, False)
        # A page that does not show a target any more ends it once; after that it is not the page's.
        if time_ms in health or before:
            clock[time_ms] = healthy
        before = healthy
    return clock


def _departures(prometheus: Prometheus, marker: str, times: Sequence[int], end_ms: int) -> dict[int, bool]:
    """The instants at which a target left, as failed scrapes: where its clock pauses and was not valid meanwhile."""
    if not times:
        return {}
    interval = round(median(later - earlier for earlier, later in pairwise(times))) if len(times) > 2 else 0
    interval = interval or _USUAL_INTERVAL_MS
    pauses = [earlier for earlier, later in pairwise([*times, end_ms]) if later - earlier > _PAUSE_INTERVALS * interval]
    if not pauses:
        return {}
    # Between the marker, which stands where the next scrape would have, and the one after that.
    asked = [time_ms + interval * 3 // 2 for time_ms in pauses]
    gone = _invalid_at(prometheus, marker, asked, max(1, interval // 4))
    return {time_ms + interval: False for time_ms, left in zip(pauses, gone, strict=True) if left}


def _invalid_at(prometheus: Prometheus, marker: str, instants: Sequence[int], step_ms: int) -> list[bool]:
    first = instants[0]
    tracks = prometheus.query_range(marker, start_ms=first, end_ms=instants[-1] + step_ms, step_ms=step_ms)
    valid = {time_ms for track in tracks for time_ms in track.times.tolist()}
    return [first + -(-(instant - first) // step_ms) * step_ms not in valid for instant in instants]


def recall(
    prometheus: Prometheus,
    target: Observed,
    names: Sequence[str],
    clock: Mapping[int, bool] | None,
    start_ms: int,
    end_ms: int,
) -> Recalled:
    """A target's scrapes from start to end, both included, of the series of these names, as the target exposed them."""
    tracks = fetch(prometheus, target.select(names), start_ms, end_ms)
    if clock is None:
        clock = dict.fromkeys(sorted({time_ms for track in tracks for time_ms in track.times.tolist()}), True)
    times = np.array(list(clock), dtype=np.int64)
    succeeded = np.array(list(clock.values()), dtype=bool)
    rows: dict[Series, int] = {}
    placed = [rows.setdefault(_own_series(track.labels, target), len(rows)) for track in tracks]
    values = np.full((len(rows), len(times)), np.nan)
    strays = 0
    for row, track in zip(placed, tracks, strict=True):
        columns = np.searchsorted(times, track.times)
        fits = columns < len(times)
        fits[fits] = times[columns[fits]] == track.times[fits]
        fits[fits] = succeeded[columns[fits]]
        values[row, columns[fits]] = track.values[fits]
        strays += int(len(fits) - fits.sum())
    return Recalled(Window(tuple(rows), times, values), tuple(succeeded.tolist()), strays)


def _own_series(labels: Labels, target: Observed) -> Series:
    """The series as the target exposed it, without what Prometheus attached; with the identity where it is known."""
    attached = dict(target.attached)
    own: dict[str, str] = {}
    name = ""
    for label, value in labels:
        original = label.removeprefix("exported_")
        if label == "__name__":
            name = value
        elif original != label and original in attached:
            # Prometheus renamed it, because its own label of that name came in its way.
            own[original] = value
        elif attached.get(label) != value:
            own[label] = format_edge(float(value)) if label == "le" else value
    if target.form != "engine":
        own |= dict(target.identity.labels())
    return Series(name, make_labels(own))


def fetch(prometheus: Prometheus, wanted: str, start_ms: int, end_ms: int) -> list[Track]:
    """The samples of a selector from start to end, both included; asked for in halves where they are too many."""
    try:
        return prometheus.read_samples(wanted, start_ms=start_ms, end_ms=end_ms)
    except TooMuchError:
        if end_ms - start_ms < _SHORTEST_PAGE_MS:
            raise
    middle = (start_ms + end_ms) // 2
    halves = [*fetch(prometheus, wanted, start_ms, middle), *fetch(prometheus, wanted, middle + 1, end_ms)]
    by_labels: dict[Labels, list[Track]] = {}
    for track in halves:
        by_labels.setdefault(track.labels, []).append(track)
    return [_joined(labels, parts) for labels, parts in by_labels.items()]


def _joined(labels: Labels, parts: Sequence[Track]) -> Track:
    times = np.concatenate([part.times for part in parts])
    return Track(labels, times, np.concatenate([part.values for part in parts]))


def expositions(window: Window) -> Iterator[bytes]:
    """The text of each scrape of a window, as a target would have answered it."""
    prefixes = [f"{format_series(*series)} " for series in window.series]
    for column in window.values.T:
        present = np.flatnonzero(column == column)
        lines = [
            f"{prefixes[row]}{value!r}\n" for row, value in zip(present.tolist(), column[present].tolist(), strict=True)
        ]
        yield "".join(lines).encode()


def _without_name(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] != "__name__")


def _pick(labels: Labels, names: Sequence[str]) -> Labels:
    return tuple(pair for pair in labels if pair[0] in names)
