"""The scrapes of many targets at once: when each was scraped, and the samples of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import Labels, Window, escape_label_value
from servescope.errors import IdentityError
from servescope.store.prometheus import scrapes
from servescope.store.prometheus.batches import AskedTargets, read_in_parts
from servescope.store.prometheus.client import Prometheus, Track
from servescope.store.prometheus.places import Key, far_of, key_of, names_apart, place_of
from servescope.store.prometheus.selectors import selector
from servescope.store.prometheus.steps import SizedQuery
from servescope.store.prometheus.targets import HEALTH, UP, Place, ScrapedTarget, by_place, make_target


@dataclass(frozen=True, slots=True, eq=False)
class TargetWindow:
    """The scrapes of a process, and their usual distance in milliseconds."""

    identity: Identity
    window: Window
    interval_ms: int


Admits = Callable[[Labels, int], bool]
"""Whether series that were scraped at a place are read; called with how many there are."""


def read_windows(
    prometheus: Prometheus,
    deployment: Deployment,
    names: Sequence[str],
    start_ms: int,
    end_ms: int,
    admits: Admits = lambda _place, _series: True,
) -> list[TargetWindow]:
    """The scrapes of a deployment's processes from start to end, both included, of the series of these names.

    A process that was scraped at several places is read where it was scraped most often, of those that are admitted.
    Raises PrometheusError.
    """
    named = AskedTargets(deployment).select(names)
    bounds = {"start_ms": start_ms, "end_ms": end_ms}
    replicas = prometheus.label_values("replica", [named], **bounds)
    # Processes without a name of their own are told from one another by their instance, if there is one.
    unnamed = AskedTargets(deployment, replicas=("",)).select(names)
    instances = ["", *prometheus.label_values("instance", [unnamed], **bounds)]
    found: dict[Place, list[TargetWindow]] = {}

    def read(batch: AskedTargets) -> list[tuple[Place, TargetWindow]]:
        return list(_read_batch(prometheus, batch, names, start_ms, end_ms, admits))

    parts = [
        *read_in_parts(replicas, len, lambda part: read(AskedTargets(deployment, replicas=tuple(part)))),
        *read_in_parts(instances, len, lambda part: read(AskedTargets(deployment, ("",), tuple(part)))),
    ]
    for place, window in (each for part in parts for each in part):
        found.setdefault(place, []).append(window)
    best = {place: max(windows, key=_scrapes) for place, windows in found.items()}
    return [_renamed(best[place], name) for place, name in names_apart(best).items()]


def _scrapes(read: TargetWindow) -> int:
    return int((read.window.values == read.window.values).any(axis=0).sum())


def _renamed(read: TargetWindow, identity: Identity) -> TargetWindow:
    if read.identity == identity:
        return read
    labels = dict(identity.labels())
    series = tuple(
        each._replace(labels=tuple(sorted({**dict(each.labels), **labels}.items()))) for each in read.window.series
    )
    return TargetWindow(identity, Window(series, read.window.times, read.window.values), read.interval_ms)


def _read_batch(
    prometheus: Prometheus, batch: AskedTargets, names: Sequence[str], start_ms: int, end_ms: int, admits: Admits
) -> Iterator[tuple[Place, TargetWindow]]:
    found = _by_key(scrapes.read_all_samples(prometheus, batch.select(names), start_ms, end_ms))
    samples = {key: tracks for key, tracks in found.items() if admits(key[1], len(tracks))}
    scraping = _Scraping(prometheus, batch, [place for _, place in samples], start_ms, end_ms)
    for key, tracks in sorted(samples.items()):
        place = _identified(key)
        if place is None:
            continue  # series without an identity, which an import reports
        target = scraping.target(place)
        target = replace(target, identity=target.process)
        window = scrapes.place_samples(target, tracks, scraping.clock(target, key)).window
        yield (
            (target.identity, far_of(place[1])),
            TargetWindow(target.identity, window, scraping.interval_ms(target, key)),
        )


def read_clocks(
    prometheus: Prometheus, targets: Mapping[Key, ScrapedTarget], batch: AskedTargets, start_ms: int, end_ms: int
) -> dict[Key, dict[int, bool] | None]:
    """When each target of a batch was scraped, as `read_scrape_times` has it."""
    scraping = _Scraping(prometheus, batch, [place for _, place in targets], start_ms, end_ms)
    return {key: scraping.clock(target, key) for key, target in targets.items()}


class _Scraping:
    """When the targets of a batch were scraped at these places: their `up`, and what collectors and translators say."""

    def __init__(
        self, prometheus: Prometheus, batch: AskedTargets, places: Sequence[Labels], start_ms: int, end_ms: int
    ) -> None:
        self._prometheus, self._start_ms, self._end_ms = prometheus, start_ms, end_ms
        wanted = [(_select_ups(places), 1), *((batch.select(names), len(names)) for names in HEALTH.values())]
        ups, *healths = scrapes.read_samples_each(
            prometheus,
            [SizedQuery(selected, series * len(places)) for selected, series in wanted],
            start_ms - scrapes.MARGIN_MS,
            end_ms + scrapes.MARGIN_MS,
        )
        self._ups: dict[Labels, list[Track]] = {}
        for track in ups:
            self._ups.setdefault(place_of(track.labels), []).append(track)
        self._up_labels = by_place(track.labels for track in ups)
        self._healths = {form: _by_key(tracks) for form, tracks in zip(HEALTH, healths, strict=True)}
        self._exposed, self._probed = (
            {place for key in self._healths[form] if (place := _identified(key)) is not None}
            for form in ("collected", "probed")
        )

    def target(self, place: Place) -> ScrapedTarget:
        return make_target(place, self._up_labels, self._exposed, self._probed)

    def clock(self, target: ScrapedTarget, key: Key) -> dict[int, bool] | None:
        ups, health = self._tracks(target, key)
        return scrapes.scrape_times(self._prometheus, target, ups, health, self._start_ms, self._end_ms)

    def interval_ms(self, target: ScrapedTarget, key: Key) -> int:
        """The usual distance of its scrapes."""
        tracks = next((found for found in self._tracks(target, key) if found), [])
        return scrapes.interval_of(sorted({time_ms for track in tracks for time_ms in track.times.tolist()}))

    def _tracks(self, target: ScrapedTarget, key: Key) -> tuple[list[Track], list[Track]]:
        attached = set(target.attached)
        ups = [track for track in self._ups.get(key[1], ()) if attached <= set(track.labels)]
        return ups, self._healths.get(target.form, {}).get(key, [])


def _select_ups(places: Iterable[Labels]) -> str:
    """The selector of the `up` of these places; empty when they have none."""
    found = [values for place in places if (values := dict(place)).keys() >= {"job", "instance"}]
    chosen = [
        f'{label}=~"{escape_label_value("|".join(map(re.escape, sorted({values[label] for values in found}))))}"'
        for label in ("job", "instance")
    ]
    return selector([("__name__", UP)], extra=f"{{{','.join(chosen)}}}") if found else ""


def _by_key(tracks: Iterable[Track]) -> dict[Key, list[Track]]:
    found: dict[Key, list[Track]] = {}
    for track in tracks:
        found.setdefault(key_of(track.labels), []).append(track)
    return found


def _identified(key: Key) -> Place | None:
    identity, place = key
    try:
        return Identity(**dict(identity)), place
    except (IdentityError, TypeError):
        return None
