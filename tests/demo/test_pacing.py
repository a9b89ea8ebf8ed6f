"""The pace of the demo: time passes slower for all where scrapes come late."""

from __future__ import annotations

from pathlib import Path

import pytest

from servescope.contract.identity import Identity
from servescope.demo import pacing
from servescope.demo.pacing import FULL_SPEED, Pace
from servescope.settings.clock import ProgramClock
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus

OPENS_AT = 1_700_000_000.0
TARGET = Identity("m", "chat-v1", "v1", replica="engine-0")


class Watch:
    """The seconds since some moment, set by hand."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def time(self) -> float:
        return self.seconds


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    monkeypatch.setattr(pacing, "time", watch)
    monkeypatch.setattr("servescope.settings.clock.time", watch)
    return watch


def scrape(store: Store, at_seconds: float) -> None:
    with store.transaction():
        store.set_target(TargetStatus(TARGET.target_id, "u", TARGET, last_scrape_ms=round(at_seconds * 1000)))


def test_time_begins_with_the_start_and_is_every_programs(tmp_path: Path, watch: Watch) -> None:
    """Until then it stands; afterwards a second is a minute for whoever reads the file."""
    with Store.begin(tmp_path / "s.db") as store:
        pace = Pace(tmp_path / "clock", store.path, OPENS_AT, 60.0)
        watch.seconds += 50
        before = pace.now()
        pace.start()
        other = ProgramClock(tmp_path / "clock")
        watch.seconds += 10

        assert before == OPENS_AT
        assert pace.now() == other.now() == OPENS_AT + 600


def test_time_passes_slower_while_scrapes_are_late(tmp_path: Path, watch: Watch) -> None:
    """And as fast as before once they are not; it never jumps."""
    with Store.begin(tmp_path / "s.db") as store:
        pace = Pace(tmp_path / "clock", store.path, OPENS_AT, 60.0)
        pace.start()
        clock = ProgramClock(tmp_path / "clock")
        scrape(store, OPENS_AT)
        watch.seconds += 3
        before = pace.now()
        pace.adjust()
        slow, after = clock.speed, pace.now()
        for _ in range(20):
            watch.seconds += 3
            scrape(store, pace.now())
            pace.adjust()

        assert before == after == OPENS_AT + 180
        assert slow < FULL_SPEED
        assert clock.speed == FULL_SPEED
