"""Minutes of an emulated stack in a store, scrape by scrape, with a replica that restarts and faults on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from servescope.contract.identity import Identity
from servescope.emulator.deployment.stack import V1, V2, EmulatedStack
from servescope.emulator.faults.faults import Faults, make_fault
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.exposition.rendering import render
from servescope.sources.cache import SeriesCache
from servescope.sources.reader import Reader
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus
from tests.support.kept import kept

START_MS: Final = 1_790_000_040_000 // 60_000 * 60_000
SCRAPE_MS: Final = 15_000


MINUTES: Final = 7


def recorded_minutes() -> Path:
    """A store with MINUTES of the stack, to be read only."""
    return kept("recorded-stack", lambda folder: record_stack(folder / "past.db", minutes=MINUTES)) / "past.db"


def record_stack(path: Path, *, minutes: int) -> None:
    """Record so many minutes from START_MS on; engines restart after the third."""
    traffic = GeneratedTraffic(Mix(abort_share=0.03))
    stack = EmulatedStack.of([(V1, 0.4), (V2, 0.6)], traffic=traffic, epoch=START_MS / 1000)
    Faults(stack, [make_fault("counters-reset", 50, start_seconds=180, end_seconds=320)])
    cache = SeriesCache()
    readers: dict[Identity, Reader] = {}
    with Store(path) as store:
        for seconds in range(SCRAPE_MS // 1000, minutes * 60 + 1, SCRAPE_MS // 1000):
            stack.clock.run_until(float(seconds))
            for target in stack.targets():
                identity = target.identity
                reader = readers.setdefault(identity, Reader(identity, cache=cache))
                store.set_target(
                    TargetStatus(identity.target_id, "emulated:", identity, healthy=True, scrape_interval_ms=SCRAPE_MS)
                )
                snapshot = reader.read(render(target.instruments)).snapshot
                store.append_scrape(identity.target_id, START_MS + seconds * 1000, snapshot)
