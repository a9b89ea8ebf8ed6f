"""The boundaries of a lane, read from the past: as much of the store at once as it returns, however many boundaries it
has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import numpy as np

from servescope.contract.figures import FIGURES
from servescope.contract.identity import IDENTITY_LABELS, Deployment, Identity
from servescope.contract.metrics import REPLICA_START_TIME
from servescope.contract.samples import Labels, Series, Window
from servescope.customers.points.edges import IntervalSnapshot, TargetInterval, join
from servescope.customers.points.tracks import INTERVALS_FRESH, TargetTrack, follow
from servescope.increments.extrapolation import LOOKBACK_MS
from servescope.store.history import History
from servescope.store.records import FigureTable, TooLargeError

READ_MS: Final = 3_600_000
"""How much is read at once, at most, of a lane that has fallen behind."""
_RUN_VALUES: Final = 200_000
"""How many series are read at once, counted again for each boundary: all lanes that are behind hold what they read."""
FORGET_MS: Final = 86_400_000
"""After so long a target that left is forgotten: if it comes back, it begins there."""
_INTERVAL_MS: Final = 15_000
_FIGURES_INTERVAL_MS: Final = 15_000
_WINDOW_MS: Final = 300_000


@dataclass(frozen=True, slots=True, eq=False)
class FleetState:
    """The deployments of a customer as they were at a boundary: what the next boundary is compared with."""

    boundary_ms: int
    tracks: Mapping[Identity, TargetTrack] = field(default_factory=lambda: MappingProxyType({}))

    def set_back(self, boundary_ms: int) -> FleetState:
        """The same counts as of an earlier time: what was counted until then was stamped by a clock that was ahead."""
        tracks = {
            identity: replace(
                track, since_ms=min(track.since_ms, boundary_ms), scrape_ms=min(track.scrape_ms, boundary_ms)
            )
            for identity, track in self.tracks.items()
        }
        return FleetState(boundary_ms, tracks)


class IntervalReader:
    """Reads a customer's deployments; `metrics` are names of the contract, `figures` keys of derived figures.

    Of a deployment that is the customer's from a time on, which `since_ms` has, nothing before it is read: no scrape,
    no count, and no figure whose window reaches back behind it. It keeps nothing of what it read between two calls but
    the names of series. Raises ServescopeError.
    """

    def __init__(
        self,
        history: History,
        deployments: Iterable[Deployment],
        metrics: Iterable[str],
        figures: Iterable[str],
        since_ms: Mapping[Deployment, int] = MappingProxyType({}),
    ) -> None:
        self._history = history
        self._since_ms = {deployment: since_ms.get(deployment, 0) for deployment in sorted(deployments)}
        self._metrics = tuple(sorted({*metrics, REPLICA_START_TIME})) if metrics else ()
        self._figures = tuple(sorted(figures))
        # By target: its series as the store has them, and without the labels of its identity.
        self._names: dict[Identity, tuple[tuple[Series, ...], tuple[Series, ...]]] = {}

    def read(
        self, state: FleetState | None, boundaries: Sequence[int]
    ) -> Iterator[tuple[IntervalSnapshot, FleetState]]:
        """The fleet at each of the boundaries, ascending, and the state to go on from behind it; None begins a lane."""
        left = list(boundaries)
        while left:
            found = self.read_some(state, left)
            for snapshot, state in found:
                yield snapshot, state
            left = left[len(found) :]

    def read_some(
        self, state: FleetState | None, boundaries: Sequence[int]
    ) -> list[tuple[IntervalSnapshot, FleetState]]:
        """The same of the first of the boundaries: at most `READ_MS`, fewer of many series or where
        the store refuses.
        """
        if state is not None and boundaries[0] - state.boundary_ms > READ_MS:
            return [self._read_long(state, boundaries[0])]
        # What is not there at the first boundary of a lane came after it, which is known from the second part on.
        most = 1 if state is None else _most_boundaries(state)
        part = [boundary for boundary in boundaries if boundary - boundaries[0] < READ_MS][:most]
        while True:
            try:
                return self._read_boundaries(state, part)
            except TooLargeError:
                if len(part) == 1:
                    raise
                part = part[: len(part) // 2]

    def _read_long(self, state: FleetState, boundary_ms: int) -> tuple[IntervalSnapshot, FleetState]:
        """A boundary long after the one before, as after an outage: what lies between is read an hour at a time."""
        ((joined, after),) = self._read_boundaries(state, [min(state.boundary_ms + READ_MS, boundary_ms)])
        while after.boundary_ms < boundary_ms:
            ((snapshot, after),) = self._read_boundaries(after, [min(after.boundary_ms + READ_MS, boundary_ms)])
            joined = join(joined, snapshot)
        return joined, after

    def _read_boundaries(
        self, state: FleetState | None, boundaries: Sequence[int]
    ) -> list[tuple[IntervalSnapshot, FleetState]]:
        before_ms = None if state is None else state.boundary_ms
        tracks = {} if state is None else self._owned(state.tracks)
        targets: list[list[TargetInterval]] = [[] for _ in boundaries]
        after: list[dict[Identity, TargetTrack]] = [{} for _ in boundaries]
        windows = self._windows(boundaries, before_ms)
        intervals = self._history.scrape_intervals()
        for identity in sorted({*windows, *tracks}):
            window = windows.get(identity, _NO_SCRAPES)
            fresh_ms = round(INTERVALS_FRESH * intervals.get(identity, _INTERVAL_MS))
            since_ms = self._since_ms.get(identity.deployment(), 0)
            steps = follow(identity, tracks.get(identity), window, boundaries, before_ms, fresh_ms, since_ms)
            for place, (found, track) in enumerate(steps):
                if found is not None:
                    targets[place].append(found)
                if track is not None and boundaries[place] - track.scrape_ms < FORGET_MS:
                    after[place][identity] = track
        figures = {deployment: self._figures_of(deployment, boundaries) for deployment in self._since_ms}
        snapshots = []
        for place, boundary_ms in enumerate(boundaries):
            shown = {
                deployment: at_boundaries[place]
                for deployment, at_boundaries in figures.items()
                if at_boundaries[place]
            }
            snapshot = IntervalSnapshot(
                boundary_ms, before_ms, tuple(targets[place]), shown, self._window_ms(boundary_ms)
            )
            snapshots.append((snapshot, FleetState(boundary_ms, after[place])))
            before_ms = boundary_ms
        return snapshots

    def _owned(self, tracks: Mapping[Identity, TargetTrack]) -> dict[Identity, TargetTrack]:
        """The tracks of the customer's deployments; what was known of one before it became the customer's is not."""
        return {
            identity: track
            for identity, track in tracks.items()
            if (since_ms := self._since_ms.get(identity.deployment())) is not None and track.scrape_ms > since_ms
        }

    def _windows(self, boundaries: Sequence[int], before_ms: int | None) -> dict[Identity, Window]:
        """The scrapes of every target, by its identity, with series without the identity's labels."""
        if not self._metrics:
            return {}
        start_ms = boundaries[0] - LOOKBACK_MS + 1 if before_ms is None else before_ms + 1
        found: dict[Identity, Window] = {}
        names: dict[Identity, tuple[tuple[Series, ...], tuple[Series, ...]]] = {}
        for deployment, since_ms in self._since_ms.items():
            first_ms = max(start_ms, since_ms + 1)
            if first_ms > boundaries[-1]:
                continue
            for window in self._history.read_samples(deployment, self._metrics, first_ms, boundaries[-1]):
                if not window.series:
                    continue  # only failed scrapes: it is as if there was none
                identity = _identity_of(window.series[0].labels)
                names[identity] = self._without_identity(identity, window.series)
                found[identity] = Window(names[identity][1], window.times, window.values)
        self._names = names
        return found

    def _without_identity(
        self, identity: Identity, series: tuple[Series, ...]
    ) -> tuple[tuple[Series, ...], tuple[Series, ...]]:
        known = self._names.get(identity)
        if known is not None and known[0] == series:
            return known
        named = tuple(
            Series(name, tuple(pair for pair in labels if pair[0] not in IDENTITY_LABELS)) for name, labels in series
        )
        return series, _shared(named)

    def _figures_of(self, deployment: Deployment, boundaries: Sequence[int]) -> list[dict[str, float]]:
        if not self._figures:
            return [{} for _ in boundaries]
        settings = self._history.settings_at(boundaries[-1])
        interval_ms = _FIGURES_INTERVAL_MS if settings is None else settings.evaluation_interval_ms
        fresh_ms = round(INTERVALS_FRESH * interval_ms)
        # The keys of figures that have labels of their own are known only once all are read.
        names = None if any(FIGURES[name].by for name in self._figures) else self._figures
        # The figures of a time have samples of the window before it, or of the time that Prometheus looks back.
        reach_ms = max(LOOKBACK_MS, *(self._window_ms(each) for each in (boundaries[0] - fresh_ms, *boundaries)))
        whole_ms = self._since_ms[deployment] + reach_ms
        first_ms = max(boundaries[0] - fresh_ms + 1, whole_ms)
        if first_ms > boundaries[-1]:
            return [{} for _ in boundaries]
        table = self._history.read_figures(deployment, first_ms, boundaries[-1], names=names)
        return [_figures_at(table, boundary, fresh_ms) for boundary in boundaries]

    def _window_ms(self, time_ms: int) -> int:
        settings = self._history.settings_at(time_ms)
        return _WINDOW_MS if settings is None else settings.window_ms


def _most_boundaries(state: FleetState) -> int:
    """How many boundaries are read at once after a state."""
    return max(_RUN_VALUES // max(sum(len(track.series) for track in state.tracks.values()), 1), 1)


@lru_cache(maxsize=256)
def _shared(series: tuple[Series, ...]) -> tuple[Series, ...]:
    """The same object for equal series: replicas of a fleet have the same ones."""
    return series


_NO_SCRAPES = Window((), np.zeros(0, dtype=np.int64), np.zeros((0, 0)))


def _identity_of(labels: Labels) -> Identity:
    return Identity(**{name: value for name, value in labels if name in IDENTITY_LABELS})


def _figures_at(table: FigureTable, boundary_ms: int, fresh_ms: int) -> dict[str, float]:
    place = int(np.searchsorted(table.times, boundary_ms, "right")) - 1
    if place < 0 or table.times[place] <= boundary_ms - fresh_ms:
        return {}
    found = {key: float(values[place]) for key, values in table.values.items()}
    return {key: value for key, value in found.items() if value == value}
