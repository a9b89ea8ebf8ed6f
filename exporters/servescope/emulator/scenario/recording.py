"""A cutover of an emulated stack, recorded into a store by virtual clock: days of it in minutes.

Every target's page is rendered, distorted by the faults that are on, and read through its source map, as a collector
does; of the scrapes the store gets the increments per block and the events, not each scrape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from servescope.contract.events import Event, EventKind
from servescope.contract.identity import Identity
from servescope.contract.samples import Series, Snapshot, Window, make_labels
from servescope.emulator.deployment.deployment import EmulatedTarget
from servescope.emulator.deployment.stack import EmulatedStack
from servescope.emulator.effects import ExpositionEffects
from servescope.emulator.faces.faces import make_pages
from servescope.emulator.faces.pages import OwnPages, Pages
from servescope.emulator.faults.exposition_faults import distort, keep_beginning
from servescope.emulator.faults.faults import Faults
from servescope.emulator.scenario.scenario import Scenario
from servescope.errors import UsageError
from servescope.increments.accumulation import compute_increments, memory_ms
from servescope.increments.blocks import BLOCK_MS
from servescope.sources.cache import SeriesCache
from servescope.sources.reader import Reader, ReadError
from servescope.store.embedded import Store
from servescope.store.records import RecordedSettings, TargetStatus

START_MS: Final = 1_767_225_600_000
"""When recordings begin unless said otherwise: a midnight, so that every recording of a scenario is the same."""

# Blocks are computed several at once, which is cheaper.
_FLUSH_MS = 12 * BLOCK_MS
_LONGEST_HOURS = 24 * 366
_PARTS = 20


@dataclass(frozen=True, slots=True)
class Recording:
    """What was recorded: from when to when, and how many requests were sent in that time."""

    path: Path
    start_ms: int
    end_ms: int
    requests: int


def record(
    scenario: Scenario,
    path: Path,
    *,
    hours: float,
    seed: int | None = None,
    start_ms: int = START_MS,
    scrape_seconds: float = 30.0,
    faces: Sequence[str] = (),
    report: Callable[[float], None] = lambda hours: None,
) -> Recording:
    """Run a scenario for so many hours of its own time, and record it into a new store at `path`.

    `seed` replaces the scenario's; the same seed gives the same recording. `faces` are whose names the pages have that
    are read, as `make_pages` takes them. `report` is called with the hours that are recorded, twenty times. Raises
    UsageError for times that cannot be and faces that there are not, and StoreError when there is a file already.
    """
    interval_ms = round(scrape_seconds * 1000)
    if not 0 < hours <= _LONGEST_HOURS:
        raise UsageError(f"hours are {hours!r}, expected a number above 0, at most {_LONGEST_HOURS}")
    if start_ms % BLOCK_MS:
        raise UsageError(f"start is {start_ms!r} ms, expected a multiple of {BLOCK_MS}, a block's")
    if not 0 < interval_ms <= BLOCK_MS or BLOCK_MS % interval_ms:
        raise UsageError(f"scrape interval is {scrape_seconds!r} s, expected a divisor of {BLOCK_MS // 1000}")
    if path.exists():
        raise UsageError(f"{str(path)!r} exists, expected a path for a new store")
    scenario = replace(scenario.reporting_together(), seed=scenario.seed if seed is None else seed)
    stack = scenario.build(epoch=start_ms / 1000)
    faults = Faults(stack, scenario.faults)
    pages = make_pages(faces, stack.deployments)
    store = Store.begin(path)
    try:
        recorder = StackRecorder(stack, faults, store, start_ms=start_ms, interval_ms=interval_ms, pages=pages)
        for part in range(1, _PARTS + 1):
            recorded = hours * part / _PARTS
            recorder.run_until(recorded * 3600)
            report(recorded)
        recorder.finish()
    finally:
        store.close()
    return Recording(path, start_ms, start_ms + round(hours * 3_600_000), stack.traffic.requests_sent)


class StackRecorder:
    """Scrapes a stack by its own clock and writes the increments of closed blocks; for one thread.

    The stack's clock at 0 is `start_ms` of the store. Blocks are written from `from_ms` on, a multiple of a block's
    length, the start when left out. `pages` are what is scraped, in the contract's own names when left out. With
    `log_shares` the shares of the traffic are events; where nobody goes on with them, the last one would stay true for
    good.
    """

    def __init__(
        self,
        stack: EmulatedStack,
        faults: Faults,
        store: Store,
        *,
        start_ms: int,
        interval_ms: int,
        from_ms: int | None = None,
        log_shares: bool = True,
        pages: Pages | None = None,
    ) -> None:
        self._pages = pages or OwnPages()
        self._log_shares = log_shares
        self._stack = stack
        self._faults = faults
        self._store = store
        self._start_ms = start_ms
        self._interval_ms = interval_ms
        self._cache = SeriesCache()
        self._scraped: dict[str, _ScrapedTarget] = {}
        self._generation = -1
        self._targets: list[EmulatedTarget] = []
        self._shares: dict[str, float] = {}
        self._flushed_ms = start_ms if from_ms is None else from_ms
        self._next_ms = start_ms + math.ceil(stack.clock.now * 1000 / interval_ms) * interval_ms
        store.record_settings(start_ms, RecordedSettings(BLOCK_MS, BLOCK_MS, interval_ms, "closed"))

    def run_until(self, seconds: float) -> None:
        """Let the stack run, and scrape every target at each interval, up to a time of the stack's clock."""
        end_ms = self._start_ms + round(seconds * 1000)
        while self._next_ms <= end_ms:
            self._stack.clock.run_until((self._next_ms - self._start_ms) / 1000)
            self._scrape(self._next_ms)
            if self._next_ms - self._flushed_ms >= _FLUSH_MS:
                self._flush(self._next_ms)
            self._next_ms += self._interval_ms
        self._stack.clock.run_until(seconds)

    def windows(self, since_ms: int) -> dict[Identity, Window]:
        """The scrapes since a time that are not written yet, of the targets that there were all that time."""
        found = {scraped.identity: scraped.window(since_ms) for scraped in self._scraped.values()}
        most = max((len(window.times) for window in found.values()), default=0)
        return {identity: window for identity, window in found.items() if len(window.times) == most}

    def write(self) -> None:
        """Write the blocks that ended."""
        self._flush(self._next_ms - self._interval_ms)

    def finish(self) -> None:
        """Write the blocks that ended, and which targets there are at the end."""
        last_ms = self._next_ms - self._interval_ms
        self._flush(last_ms)
        with self._store.transaction():
            self._store.unlist_targets([target.identity.target_id for target in self._targets])
        while self._store.pack_idle(last_ms + BLOCK_MS):
            pass

    # --- scraping -----------------------------------------------------------------------------------------------------

    def _scrape(self, now_ms: int) -> None:
        if events := [*self._follow_shares(now_ms), *self._follow_targets(now_ms)]:
            with self._store.transaction():
                self._store.append_events(events)
        for target in self._targets:
            page = self._pages.render(target)
            self._scraped[target.identity.target_id].scrape(page, self._faults.exposition(target), now_ms)

    def _follow_targets(self, now_ms: int) -> Iterator[Event]:
        """Take the targets there are now; those that came and went since the start."""
        if self._stack.generation == self._generation:
            return
        self._generation = self._stack.generation
        before = [target.identity for target in self._targets]
        self._targets = [target for target in self._stack.targets() if self._pages.lists(target)]
        now = [target.identity for target in self._targets]
        for identity in now:
            if identity.target_id not in self._scraped:
                self._scraped[identity.target_id] = _ScrapedTarget(identity, self._cache, self._interval_ms)
            if identity not in before and now_ms > self._start_ms:
                yield _target_event(now_ms, "target_appeared", identity)
        for identity in before:
            if identity not in now:
                yield _target_event(now_ms, "target_gone", identity)

    def _follow_shares(self, now_ms: int) -> Iterator[Event]:
        """The shares that are other ones than before."""
        before, self._shares = self._shares, self._stack.traffic.split.shares
        for deployment in self._stack.deployments:
            identity = deployment.plan.identity
            share, former = self._shares[identity.deployment_id], before.get(identity.deployment_id)
            if share != former and self._log_shares:
                detail = {"ratio": f"{share:g}", "former_ratio": "" if former is None else f"{former:g}"}
                text = f"{identity.deployment_id} is to get {share:.4g} of the requests"
                yield Event(now_ms, "traffic_split", identity.labels(), text, make_labels(detail))

    # --- writing ------------------------------------------------------------------------------------------------------

    def _flush(self, now_ms: int) -> None:
        end_ms = now_ms // BLOCK_MS * BLOCK_MS
        with self._store.transaction():
            for scraped in self._scraped.values():
                scraped.write(self._store, self._flushed_ms, end_ms)
        while self._store.pack_due():
            pass
        self._flushed_ms = end_ms


class _ScrapedTarget:
    """One target: how its pages are read, and the scrapes whose blocks are not written yet."""

    def __init__(self, identity: Identity, cache: SeriesCache, interval_ms: int) -> None:
        self.identity = identity
        self._reader = Reader(identity, cache=cache)
        self._interval_ms = interval_ms
        self._scrapes: list[tuple[int, Snapshot | None]] = []
        self._last_success_ms: int | None = None
        self._error: str | None = None

    def scrape(self, page: bytes, effects: ExpositionEffects, now_ms: int) -> None:
        snapshot = None
        if effects.unreachable or effects.delay_seconds * 1000 > self._interval_ms:
            self._error = "unreachable" if effects.unreachable else "timeout"
        else:
            distorted = distort(page, effects, now_seconds=now_ms / 1000)
            try:
                snapshot = self._reader.read(keep_beginning(distorted, effects.kept_share)).snapshot
                self._last_success_ms, self._error = now_ms, None
            except ReadError as error:
                self._error = str(error)
        self._scrapes.append((now_ms, snapshot))

    def window(self, since_ms: int) -> Window:
        """The scrapes since a time that are not written yet."""
        return _window([scrape for scrape in self._scrapes if scrape[0] >= since_ms])

    def write(self, store: Store, start_ms: int, end_ms: int) -> None:
        """Write its blocks between start and end, and keep the scrapes that later ones go on from."""
        if not any(start_ms < time_ms <= end_ms for time_ms, _ in self._scrapes):
            return
        status = self._status()
        store.set_target(status)
        increments = compute_increments(
            status.target_id,
            self.identity,
            _window(self._scrapes),
            start_ms=start_ms,
            end_ms=end_ms,
            interval_ms=self._interval_ms,
        )
        store.append_increments(increments)
        kept_ms = end_ms - memory_ms(self._interval_ms)
        self._scrapes = [scrape for scrape in self._scrapes if scrape[0] >= kept_ms]

    def _status(self) -> TargetStatus:
        last_ms, _ = self._scrapes[-1]
        return TargetStatus(
            self.identity.target_id,
            f"emulated:{self.identity.deployment_id}/{self.identity.replica}",
            self.identity,
            source=self._reader.source or "",
            versions=self._reader.versions,
            healthy=self._error is None,
            last_scrape_ms=last_ms,
            last_success_ms=self._last_success_ms,
            error=self._error,
            coverage=self._reader.coverage,
            warnings=list(self._reader.warnings),
            missing_metrics=dict(self._reader.missing),
            scrape_interval_ms=self._interval_ms,
        )


def _window(scrapes: list[tuple[int, Snapshot | None]]) -> Window:
    """The scrapes as one window, with all series that any of them has."""
    layouts: dict[int, tuple[Series, ...]] = {id(s.series): s.series for _, s in scrapes if s is not None}
    rows = {series: row for row, series in enumerate(dict.fromkeys(each for one in layouts.values() for each in one))}
    places = {key: np.array([rows[each] for each in series], dtype=np.intp) for key, series in layouts.items()}
    values = np.full((len(rows), len(scrapes)), np.nan)
    for column, (_, snapshot) in enumerate(scrapes):
        if snapshot is not None:
            values[places[id(snapshot.series)], column] = snapshot.values
    return Window(tuple(rows), np.array([time_ms for time_ms, _ in scrapes], dtype=np.int64), values)


def _target_event(now_ms: int, kind: EventKind, identity: Identity) -> Event:
    labels = make_labels((*identity.labels(), ("target_id", identity.target_id)))
    happened = "appeared" if kind == "target_appeared" else "is gone"
    return Event(now_ms, kind, labels, f"{identity.deployment_id}/{identity.replica} {happened}")
