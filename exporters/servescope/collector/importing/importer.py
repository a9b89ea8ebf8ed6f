"""The import itself: for each stretch of time the scrapes of every target, then the figures over them.

Each stretch of time is one transaction. An import that was interrupted can be started again: what is stored
is not read again, and importing the same twice changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from servescope.collector.config import CollectorSettings
from servescope.collector.figures.derive import derive_figures
from servescope.collector.importing.health import TargetHealth, count_replicas, failed_healths
from servescope.collector.importing.targets import ImportedScrape, ImportedTarget, Tally, TargetStretch, is_within
from servescope.contract.events import Event
from servescope.contract.identity import Deployment
from servescope.contract.metrics import METRICS
from servescope.increments.extrapolation import LOOKBACK_MS
from servescope.settings.clock import program_clock
from servescope.settings.values import format_instant
from servescope.store.embedded import Store
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.targets import ScrapedTarget
from servescope.store.records import RecordedSettings, TargetStatus

STRETCH_MS: Final = 1_800_000
"""How much time is imported in one transaction: it bounds the memory, and what an interrupted import loses."""
# A deployment's samples of one stretch, at most: 1 GB.
_MOST_NUMBERS = 128_000_000


class ImportProgress(NamedTuple):
    """The progress of an import: the instant reached, and what was imported so far."""

    until_ms: int
    scrapes: int
    samples: int
    figures: int


class Import:
    """Imports the scrapes of targets from a Prometheus into a store.

    `settings` gives the window and the instants of figures, and the limit on the samples of a scrape.
    """

    def __init__(
        self, prometheus: Prometheus, store: Store, targets: Iterable[ScrapedTarget], settings: CollectorSettings
    ) -> None:
        self._prometheus, self._store, self._settings = prometheus, store, settings
        self._hold_ms = max(settings.window_ms, LOOKBACK_MS)
        self._members = ImportedTarget.group(targets, prometheus.url, settings)
        # Instants up to which figures see scrapes that were written in this run.
        self._touched_until: dict[Deployment, int] = {}
        self._figures = 0

    @property
    def tallies(self) -> dict[str, Tally]:
        """What was imported of every target, by its id."""
        return {member.target_id: member.tally for members in self._members.values() for member in members}

    def not_understood(self) -> dict[str, list[str]]:
        """By target, the names of its series that its source map does not read."""
        return {
            member.target_id: names
            for members in self._members.values()
            for member in members
            if (names := member.unread_names())
        }

    def run(self, start_ms: int, end_ms: int, report: Callable[[ImportProgress], None] = lambda _: None) -> None:
        """Import from start to end, both included; raises ServescopeError, and keeps complete stretches."""
        known = {status.target_id: status for status in self._store.targets()}
        self._record_settings(start_ms, end_ms)
        for first_ms, last_ms in _stretches(start_ms, end_ms):
            with self._store.transaction():
                for deployment, members in self._members.items():
                    self._import(deployment, members, known, first_ms, last_ms)
            while self._store.pack_due():
                pass
            tallies = self.tallies.values()
            report(
                ImportProgress(last_ms, sum(t.scrapes for t in tallies), sum(t.samples for t in tallies), self._figures)
            )

        self._store.close_blocks(end_ms)
        self._store.append_events(self._events(start_ms, end_ms))

    def _events(self, start_ms: int, end_ms: int) -> Iterator[Event]:
        """That there is a past now which those who read on from where they were have not seen."""
        now_ms = program_clock().now_ms()
        span = (("from_ms", str(start_ms)), ("to_ms", str(end_ms)))
        for deployment in self._members:
            text = f"the past from {format_instant(start_ms)} to {format_instant(end_ms)} was imported"
            yield Event(now_ms, "import", deployment.labels(), text, span)

    def _record_settings(self, start_ms: int, end_ms: int) -> None:
        """Record how these figures are derived; later figures keep their own settings."""
        settings = self._settings
        ours = RecordedSettings(
            settings.window_ms, settings.evaluation_interval_ms, settings.scrape_interval_ms, settings.window_bounds
        )
        with self._store.transaction():
            former = self._store.settings_at(end_ms + 1)
            self._store.record_settings(start_ms, ours)
            if former is not None:
                self._store.record_settings(end_ms + 1, former)

    def _import(
        self,
        deployment: Deployment,
        members: Sequence[ImportedTarget],
        known: dict[str, TargetStatus],
        first_ms: int,
        last_ms: int,
    ) -> None:
        stretches = [member.plan(self._prometheus, self._store, first_ms, last_ms) for member in members]
        written: list[int] = []
        if any(stretch.wanted for stretch in stretches):
            # Those of all targets, also where some are stored: a metric that one supplies is not read from another.
            written = [event.time_ms for event in self._write(stretches, known)]
        self._derive(deployment, stretches, written, first_ms, last_ms)

    def _write(self, stretches: Sequence[TargetStretch], known: dict[str, TargetStatus]) -> Iterator[ImportedScrape]:
        """Read the scrapes of a deployment in the order of time, as a collector would, and store the new ones."""
        for event in heapq.merge(*(stretch.events() for stretch in stretches), key=lambda event: event.time_ms):
            member = event.stretch.member
            snapshot = member.read(event)
            if event.time_ms not in event.stretch.wanted:
                continue
            if member.target_id not in known:
                known[member.target_id] = member.status
                self._store.set_target(member.status)
            self._store.append_scrape(member.target_id, event.time_ms, snapshot)
            member.count(event.time_ms, snapshot)
            yield event
        for stretch in stretches:
            status, former = stretch.member.status, known.get(stretch.member.target_id)
            if former is not None and (status.last_scrape_ms or 0) > (former.last_scrape_ms or 0):
                known[status.target_id] = status
                self._store.set_target(status)

    # --- Figures ------------------------------------------------------------------------------------------------------

    def _derive(
        self,
        deployment: Deployment,
        stretches: Sequence[TargetStretch],
        written: Sequence[int],
        first_ms: int,
        last_ms: int,
    ) -> None:
        """Store the figures whose window has a scrape written now, or that have scrapes and are not stored yet."""
        interval = self._settings.evaluation_interval_ms
        instants = range(-(-first_ms // interval) * interval, last_ms + 1, interval)
        touched_until = self._touched_until.get(deployment, -1)
        there = set(self._store.read_figures(deployment, first_ms, last_ms).times.tolist())
        news = np.array(sorted(written), dtype=np.int64)
        due = [
            at_ms
            for at_ms in instants
            if at_ms not in there or at_ms <= touched_until or is_within(news, at_ms - self._hold_ms, at_ms)
        ]
        if written:
            self._touched_until[deployment] = max(written) + self._hold_ms
        if not due:
            return
        names, from_ms = list(METRICS), first_ms - self._hold_ms
        windows = self._store.read_samples(deployment, names, from_ms, last_ms, most=_MOST_NUMBERS)
        healths = [TargetHealth.of(window) for window in windows] + failed_healths(stretches)
        for at_ms in due:
            if not any(health.within(at_ms - self._hold_ms, at_ms) for health in healths):
                continue
            derived = derive_figures(
                windows,
                at_ms=at_ms,
                window_ms=self._settings.window_ms,
                bounds=self._settings.window_bounds,
                counted=count_replicas(deployment, healths, at_ms),
            )
            self._store.append_figures(deployment, at_ms, derived.stored)
            self._figures += 1


def _stretches(start_ms: int, end_ms: int) -> Iterator[tuple[int, int]]:
    """Stretches of time that are the same in every run, from start to end, both included."""
    first = start_ms
    while first <= end_ms:
        last = min((first // STRETCH_MS + 1) * STRETCH_MS - 1, end_ms)
        yield first, last
        first = last + 1
