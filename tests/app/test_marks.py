"""What is marked in the charts of a deployment."""

from __future__ import annotations

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

from app.charts import marks
from app.selection import TimeRange
from servescope.contract.events import Event
from servescope.contract.identity import Deployment
from servescope.contract.samples import make_labels

CHAT = Deployment("llama", "chat-v2", "v2")
SPAN = TimeRange(1_000_000, 2_000_000, live=False)


def appeared(time_ms: int) -> Event:
    return Event(time_ms, "target_appeared", make_labels(dict(CHAT.labels())), "engine-1 appeared")


def restarts(*starts: tuple[int, float], events: tuple[Event, ...] = ()) -> list[int]:
    """When restarts are marked."""
    return [
        each.start_ms for each in marks.find_marks(events, CHAT, SPAN, starts) if each.look is marks.RESTARTED
    ]  # fmt: skip


def test_a_restart_is_marked_when_the_replica_started() -> None:
    """Once, however often it was scraped since, and the next one, too; the key has their number."""
    starts = ((1_100_000, 900.0), (1_200_000, 900.0), (1_300_000, 1_250.5), (1_400_000, 1_250.5), (1_500_000, 1_450.0))

    assert restarts(*starts) == [1_250_500, 1_450_000]
    assert "↻</b> replica restarted (2)" in marks.draw_key(marks.find_marks((), CHAT, SPAN, starts))


def test_no_restart_is_what_the_range_began_with_or_what_is_not_known() -> None:
    """Nor that the replica which started last is gone."""
    assert restarts((1_100_000, 900.0), (1_200_000, float("nan")), (1_300_000, 900.0), (1_400_000, 500.0)) == []


def test_a_replica_that_appears_has_one_mark() -> None:
    """Its own; one that started again later has both."""
    starts = ((1_100_000, 900.0), (1_300_000, 1_250.0), (1_600_000, 1_550.0))

    assert restarts(*starts, events=(appeared(1_290_000),)) == [1_550_000]
