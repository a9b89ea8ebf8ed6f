"""What queries for figures return, sorted by deployment and collector and put together to tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from servescope.contract.figures import FIGURES, figure_key
from servescope.contract.identity import DEPLOYMENT_LABELS, Deployment, Identity
from servescope.contract.own_metrics import FILLED_SERIES
from servescope.contract.samples import Labels, pick_labels
from servescope.errors import IdentityError
from servescope.store.prometheus.client import Point, Track
from servescope.store.prometheus.figure_queries import FIGURE_LABEL, TIME
from servescope.store.prometheus.places import page_of
from servescope.store.records import FigureTable

FigureTracks = dict[Deployment, dict[Labels, dict[str, Track]]]
"""The tracks of each deployment by where they were scraped, and by figure key."""
_FIGURE_OF: Mapping[str, str] = {
    name: figure.name for figure in FIGURES.values() for name in (figure.exposed, figure.record()) if name
}


def deployment_of(labels: Labels) -> Deployment | None:
    """The deployment of a series; None when it has none."""
    return _deployment_of(pick_labels(labels, DEPLOYMENT_LABELS))


@lru_cache(maxsize=1024)
def _deployment_of(labels: Labels) -> Deployment | None:
    try:
        return Identity(**{"model_name": "", "deployment_id": "", "inference_stack": "", **dict(labels)}).deployment()
    except IdentityError:
        return None


def tracks_at(points: Iterable[Point], at_ms: int) -> list[Track]:
    """The points of an instant as tracks of one value."""
    return [Track(point.labels, np.array([at_ms]), np.array([point.value])) for point in points]


def sort_tracks(tracks: Iterable[Track]) -> FigureTracks:
    """Each track by its deployment, where it was scraped, and its figure key."""
    found: FigureTracks = {}
    for track in tracks:
        values, deployment = dict(track.labels), deployment_of(track.labels)
        label = values.get(FIGURE_LABEL, "")
        name = _FIGURE_OF.get(label, label)
        if deployment is None or (name not in FIGURES and name not in (TIME, FILLED_SERIES)):
            continue
        extra = {label: values[label] for label in (FIGURES[name].by if name in FIGURES else ()) if label in values}
        key, seen = figure_key(name, extra), found.setdefault(deployment, {}).setdefault(page_of(track.labels), {})
        seen[key] = _appended(seen[key], track) if key in seen else track
    return found


def newest_figures(seen: Mapping[Labels, Mapping[str, Track]], at_ms: int) -> tuple[int, dict[str, float]]:
    """The time and the figures of the page that was scraped last."""

    def moment(tracks: Mapping[str, Track]) -> float:
        return float(tracks[TIME].values[-1]) if TIME in tracks else -math.inf

    tracks = max((seen[place] for place in sorted(seen)), key=moment)
    time_ms = round(moment(tracks) * 1000) if TIME in tracks else at_ms
    return time_ms, {key: float(track.values[-1]) for key, track in tracks.items() if key != TIME}


def measured(tracks: Mapping[str, Track]) -> dict[str, Track]:
    """The tracks of one page at the instants whose samples are newer than those of the instant before.

    A Prometheus returns the last sample for five minutes; what was not measured again is left out. The last instant,
    if its samples are new, is replaced by their time.
    """
    moments = tracks.get(TIME)
    if moments is None:
        return dict(tracks)
    fresh = np.append(True, moments.values[1:] != moments.values[:-1])
    asked, sampled = moments.times[fresh], np.rint(moments.values[fresh] * 1000).astype(np.int64)
    shown = asked.copy()
    if fresh[-1] and (len(asked) == 1 or asked[-2] < sampled[-1]):
        shown[-1] = min(asked[-1], sampled[-1])
    return {key: _moved(track, asked, shown) for key, track in tracks.items()}


def _moved(track: Track, asked: NDArray[np.int64], shown: NDArray[np.int64]) -> Track:
    """The track at those instants alone, each replaced by the time to show."""
    kept = np.isin(track.times, asked)
    return Track(track.labels, shown[np.searchsorted(asked, track.times[kept])], track.values[kept])


def merge(pages: Sequence[Mapping[str, Track]]) -> dict[str, Track]:
    """One track of each figure: the first page's, and the others' at instants that it does not have."""
    merged: dict[str, Track] = {}
    for page in pages:
        known = merged.get(TIME)
        for key, track in page.items():
            if known is not None:
                fresh = ~np.isin(track.times, known.times)
                track = Track(track.labels, track.times[fresh], track.values[fresh])
            merged[key] = _appended(merged[key], track) if key in merged else track
    return merged


def _appended(track: Track, other: Track) -> Track:
    """Both tracks as one; the first has precedence at instants that both have, as two windows of a collector may."""
    fresh = ~np.isin(other.times, track.times)
    times = np.concatenate([track.times, other.times[fresh]])
    values = np.concatenate([track.values, other.values[fresh]])
    order = np.argsort(times, kind="stable")
    return Track(track.labels, times[order], values[order])


def make_table(tracks: Mapping[str, Track], names: Sequence[str] | None) -> FigureTable:
    """The figures at every instant at which any was measured, NaN where one was absent."""
    times = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *(track.times for track in tracks.values())]))
    keys = names if names is not None else sorted(key for key in tracks if key != TIME)
    return FigureTable(times, {key: _spread(tracks.get(key), times) for key in keys})


def _spread(track: Track | None, times: NDArray[np.int64]) -> NDArray[np.float64]:
    """The track's values at the times, NaN where it has none."""
    values = np.full(len(times), np.nan)
    if track is not None:
        values[np.searchsorted(times, track.times)] = track.values
    return values
