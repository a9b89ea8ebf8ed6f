"""The scrapes of targets, put together again from the samples in a Prometheus.

All samples of one scrape have the time of its `up`: at 1 a series without a sample there was absent, at 0 the scrape
failed. Behind a collector `servescope_target_up` has the same meaning for each of its targets; a scrape that was not
understood (`servescope_target_understood` at 0) brought nothing, and counts as failed. A target behind a translator is
up where its `servescope_probe_success` is 1, too. Where none of them exists, every instant at which any
series has a sample is a scrape.

The API does not return stale markers. Where `up` pauses, it is queried whether it was still valid then: if not, the
target had left, and its series end there as they did in Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

import numpy as np

from servescope.contract.samples import Labels, Series, Window, format_edge, format_series, make_labels
from servescope.store.prometheus.client import LateError, Prometheus, TooMuchError, Track
from servescope.store.prometheus.steps import POINTS, SizedQuery, at_once
from servescope.store.prometheus.targets import ScrapedTarget

# Scrapes are read so far beyond both ends of a stretch, to see whether they pause there.
MARGIN_MS: Final = 120_000
_USUAL_INTERVAL_MS = 15_000
_PAUSE_INTERVALS = 1.9
_SHORTEST_SPAN_MS = 60_000


@dataclass(frozen=True, slots=True, eq=False)
class PastScrapes:
    """The scrapes of a target over a stretch of time; `succeeded` is whether the scrape at each instant did.

    `strays` is the number of samples at instants of no scrape, which are left out.
    """

    window: Window
    succeeded: tuple[bool, ...]
    strays: int


def read_scrape_times(
    prometheus: Prometheus, target: ScrapedTarget, start_ms: int, end_ms: int
) -> dict[int, bool] | None:
    """The instants of a target's scrapes from start to end, both included, and whether each succeeded.

    None when neither `up` nor a health beside it exists, so that every instant with samples is a scrape.
    """
    first, last = start_ms - MARGIN_MS, end_ms + MARGIN_MS
    ups = read_all_samples(prometheus, target.up, first, last) if target.has_up else []
    health = read_all_samples(prometheus, target.health, first, last) if target.health else []
    return scrape_times(prometheus, target, ups, health, start_ms, end_ms)


def scrape_times(
    prometheus: Prometheus,
    target: ScrapedTarget,
    ups: Sequence[Track],
    health: Sequence[Track],
    start_ms: int,
    end_ms: int,
) -> dict[int, bool] | None:
    """The same from the samples of its `up` and of its health, from `MARGIN_MS` before to as long behind."""
    scraped = _values_at(ups) if target.has_up else None
    if target.form == "probed" and scraped is not None:
        succeeded = _all_at(health)
        scraped = {time_ms: is_up and succeeded.get(time_ms, False) for time_ms, is_up in scraped.items()}
    elif target.health:
        scraped = _combine(scraped, _all_at(health))
    if scraped is None:
        return None
    marker = target.up if target.has_up or target.health is None else target.health
    scraped |= _departures(prometheus, marker, sorted(scraped), start_ms, end_ms)
    return {time_ms: scraped[time_ms] for time_ms in sorted(scraped) if start_ms <= time_ms <= end_ms}


def _values_at(tracks: Sequence[Track]) -> dict[int, bool]:
    found: dict[int, bool] = {}
    for track in tracks:
        found |= {time_ms: value > 0 for time_ms, value in zip(track.times.tolist(), track.values, strict=True)}
    return found


def _all_at(tracks: Sequence[Track]) -> dict[int, bool]:
    """By instant, whether each of the tracks that has a value there has one above 0."""
    found: dict[int, bool] = {}
    for track in tracks:
        for time_ms, value in zip(track.times.tolist(), track.values.tolist(), strict=True):
            found[time_ms] = found.get(time_ms, True) and value > 0
    return found


def _combine(page: Mapping[int, bool] | None, health: Mapping[int, bool]) -> dict[int, bool]:
    """When a collector's target was scraped, by the scrapes of the collector's page and the health it exposed."""
    if page is None:
        return dict(health)
    scraped: dict[int, bool] = {}
    before = False
    for time_ms in sorted(page):
        healthy = page[time_ms] and health.get(time_ms, False)
        # The first page without the target ends its series; later ones have nothing to do with it.
        if time_ms in health or before:
            scraped[time_ms] = healthy
        before = healthy
    return scraped


def _departures(
    prometheus: Prometheus, marker: str, times: Sequence[int], start_ms: int, end_ms: int
) -> dict[int, bool]:
    """The instants from start to end at which a target left, as failed scrapes: where its scrapes pause and its marker
    was not valid.
    """
    if not times:
        return {}
    interval = interval_of(times)
    pauses = [
        earlier
        for earlier, later in pairwise([*times, end_ms + MARGIN_MS])
        if later - earlier > _PAUSE_INTERVALS * interval and start_ms <= earlier + interval <= end_ms
    ]
    if not pauses:
        return {}
    # Between the stale marker, which is where the next scrape would have been, and the scrape after that.
    asked = [time_ms + interval * 3 // 2 for time_ms in pauses]
    gone = _invalid_at(prometheus, marker, asked, max(1, interval // 4))
    return {time_ms + interval: False for time_ms, left in zip(pauses, gone, strict=True) if left}


def interval_of(times: Sequence[int]) -> int:
    """The usual distance of scrapes, in milliseconds, as these instants show it."""
    between = round(median(later - earlier for earlier, later in pairwise(times))) if len(times) > 2 else 0
    return between or _USUAL_INTERVAL_MS


def _invalid_at(prometheus: Prometheus, marker: str, instants: Sequence[int], step_ms: int) -> list[bool]:
    # A VictoriaMetrics, and the query frontend of Thanos, answer at multiples of the step, whatever the start is.
    first = instants[0] // step_ms * step_ms
    tracks = prometheus.query_range(marker, start_ms=first, end_ms=instants[-1] + step_ms, step_ms=step_ms)
    valid = {time_ms for track in tracks for time_ms in track.times.tolist()}
    return [first + -(-(instant - first) // step_ms) * step_ms not in valid for instant in instants]


def read_scrapes(
    prometheus: Prometheus,
    target: ScrapedTarget,
    names: Sequence[str],
    scraped: Mapping[int, bool] | None,
    start_ms: int,
    end_ms: int,
) -> PastScrapes:
    """A target's scrapes from start to end, both included, of the series of these names, as the target exposed them."""
    return place_samples(target, read_all_samples(prometheus, target.select(names), start_ms, end_ms), scraped)


def place_samples(target: ScrapedTarget, tracks: Sequence[Track], scraped: Mapping[int, bool] | None) -> PastScrapes:
    """A target's scrapes of these series; every instant with a sample where nothing says when it was scraped."""
    if scraped is None:
        scraped = dict.fromkeys(sorted({time_ms for track in tracks for time_ms in track.times.tolist()}), True)
    times = np.array(list(scraped), dtype=np.int64)
    succeeded = np.array(list(scraped.values()), dtype=bool)
    rows: dict[Series, int] = {}
    own_series = own_series_of(target)
    placed = [rows.setdefault(own_series(track.labels), len(rows)) for track in tracks]
    values = np.full((len(rows), len(times)), np.nan)
    strays = 0
    for row, track in zip(placed, tracks, strict=True):
        columns = np.searchsorted(times, track.times)
        fits = columns < len(times)
        fits[fits] = times[columns[fits]] == track.times[fits]
        fits[fits] = succeeded[columns[fits]]
        values[row, columns[fits]] = track.values[fits]
        strays += int(len(fits) - fits.sum())
    return PastScrapes(Window(tuple(rows), times, values), tuple(succeeded.tolist()), strays)


def own_series_of(target: ScrapedTarget) -> Callable[[Labels], Series]:
    """What makes of the labels of a series that series as the target exposed it: without the labels Prometheus added,
    with the identity where it is known.
    """
    attached = dict(target.attached)
    identity = {} if target.form == "engine" else dict(target.identity.labels())

    def own_series(labels: Labels) -> Series:
        own = {label: value for label, value in labels if attached.get(label) != value}
        name = own.pop("__name__", "")
        for label in [each for each in own if each.removeprefix("exported_") in attached]:
            # Prometheus renamed it, as it adds a label of that name itself.
            own[label.removeprefix("exported_")] = own.pop(label)
        if "le" in own:
            own["le"] = format_edge(float(own["le"]))
        return Series(name, make_labels(own | identity))

    return own_series


def read_samples_each(
    prometheus: Prometheus, asked: Sequence[SizedQuery], start_ms: int, end_ms: int
) -> list[list[Track]]:
    """The samples of each selector from start to end, both included; a series comes once in each part of the time.

    An empty selector has none.
    """
    parts = [(number, *part) for number, each in enumerate(asked) for part in sample_parts(each, start_ms, end_ms)]
    found: list[list[Track]] = [[] for _ in asked]
    read = at_once(lambda part: read_all_samples(prometheus, *part[1:]), parts)
    for (number, *_), tracks in zip(parts, read, strict=True):
        found[number] += tracks
    return found


def sample_parts(asked: SizedQuery, start_ms: int, end_ms: int) -> Iterator[tuple[str, int, int]]:
    """The selector, with the ends of each part of the time that an answer may have the samples of."""
    reach_ms = max(1, POINTS // max(1, asked.series)) * _USUAL_INTERVAL_MS
    for begin_ms in range(start_ms, end_ms + 1, reach_ms) if asked.expression else ():
        yield asked.expression, begin_ms, min(begin_ms + reach_ms - 1, end_ms)


def read_all_samples(
    prometheus: Prometheus, wanted: str, start_ms: int, end_ms: int, *, patience: int = 2
) -> list[Track]:
    """The samples of a selector from start to end, both included; in several queries where they are too many.

    A Prometheus that does not answer in time is asked for half as much so many times, as it may not answer at all.
    """
    try:
        return prometheus.read_samples(wanted, start_ms=start_ms, end_ms=end_ms)
    except LateError:
        patience -= 1
        if patience < 0:
            raise
    except TooMuchError:
        if end_ms - start_ms < _SHORTEST_SPAN_MS:
            raise
    middle = (start_ms + end_ms) // 2
    halves = [(start_ms, middle), (middle + 1, end_ms)]
    by_labels: dict[Labels, list[Track]] = {}
    for track in (track for half in halves for track in read_all_samples(prometheus, wanted, *half, patience=patience)):
        by_labels.setdefault(track.labels, []).append(track)
    return [_joined(labels, parts) for labels, parts in by_labels.items()]


def _joined(labels: Labels, parts: Sequence[Track]) -> Track:
    times = np.concatenate([part.times for part in parts])
    return Track(labels, times, np.concatenate([part.values for part in parts]))


def expositions(window: Window) -> Iterator[bytes]:
    """The text of each scrape of a window, as the target would have exposed it."""
    prefixes = [f"{format_series(*series)} " for series in window.series]
    for column in window.values.T:
        present = np.flatnonzero(column == column)
        lines = [
            f"{prefixes[row]}{value!r}\n" for row, value in zip(present.tolist(), column[present].tolist(), strict=True)
        ]
        yield "".join(lines).encode()
