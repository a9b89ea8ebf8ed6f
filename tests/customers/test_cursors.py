"""What a lane remembers: acknowledged once and for all, read back bit by bit, deleted without a trace."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from servescope.contract.identity import Identity
from servescope.contract.samples import Series
from servescope.customers.lanes.cursors import (
    Acknowledgement,
    Cursor,
    CursorError,
    CursorFile,
    Delivery,
    Gap,
    LaneId,
    NoCursorsError,
    RemovedError,
)
from servescope.customers.points.reading import FleetState
from servescope.customers.points.tracks import TargetTrack
from servescope.store.records import StoreError

SECRET = "endpoint-of-acme"
ACME, OTHER = LaneId("acme", SECRET), LaneId("other", "otlp")
MINUTE = 60_000


@pytest.fixture
def cursors(tmp_path: Path) -> Iterator[CursorFile]:
    with CursorFile(tmp_path / "customers.db", deliver=True) as cursors:
        yield cursors


def make_cursor(boundary_ms: int = 5 * MINUTE) -> Cursor:
    identity = Identity("llama", "chat-v1", "v1", environment="é", replica="engine-0")
    series = (Series("output_tokens_total", ()), Series("requests_total", (("outcome", 'o"k'),)))
    track = TargetTrack(
        identity,
        series,
        np.array([0.1 + 0.2, np.nan]),
        np.array([7.0, 0.0]),
        np.array([True, False]),
        np.array([True, True]),
        1_234,
        4_321,
    )
    return Cursor(FleetState(boundary_ms, {identity: track}), "{}")


def acknowledge(cursors: CursorFile, lane: LaneId, cursor: Cursor, delivery: Delivery | None = None) -> None:
    """Begin or go on with a lane, and acknowledge an edge."""
    cursors.begin(lane, 1)
    cursors.hold(lane, Acknowledgement(cursor, delivery))
    cursors.write_held(lane)


def test_a_cursor_is_read_back_as_it_was(cursors: CursorFile) -> None:
    """Numbers bit by bit, series and identities with whatever characters they have."""
    acknowledge(cursors, ACME, make_cursor())
    found = cursors.cursor(ACME)

    assert found is not None
    assert (found.state.boundary_ms, found.totals) == (5 * MINUTE, "{}")
    assert (cursors.begun_ms(ACME), cursors.begin(ACME, 9)) == (1, 1)
    (identity, track), (_, kept) = *found.state.tracks.items(), *make_cursor().state.tracks.items()
    assert identity == kept.identity
    assert (track.series, track.since_ms, track.scrape_ms) == (kept.series, kept.since_ms, kept.scrape_ms)
    for part in ("values", "counted", "present", "scraped"):
        np.testing.assert_array_equal(getattr(track, part), getattr(kept, part))
    assert cursors.cursor(OTHER) is None


def test_deliveries_add_up_by_the_hour(cursors: CursorFile) -> None:
    """A statement of months is read from a few hundred rows."""
    for boundary_ms in (MINUTE, 2 * MINUTE, 61 * MINUTE):
        acknowledge(cursors, ACME, make_cursor(boundary_ms), Delivery(boundary_ms - MINUTE, boundary_ms, 1, 10, 1, 2))

    assert cursors.deliveries(ACME, 0, 120 * MINUTE) == [
        Delivery(0, 2 * MINUTE, 2, 20, 2, 4),
        Delivery(60 * MINUTE, 61 * MINUTE, 1, 10, 1, 2),
    ]
    assert cursors.deliveries(OTHER, 0, 120 * MINUTE) == []


def test_a_gap_is_one_however_often_it_is_found(cursors: CursorFile) -> None:
    """A lane that is killed finds the same gap again."""
    for _ in range(2):
        cursors.add_gap(ACME, Gap(0, 5 * MINUTE, "retention"))

    assert cursors.gaps(ACME) == [Gap(0, 5 * MINUTE, "retention")]
    assert cursors.gaps(ACME, 6 * MINUTE) == []


def test_lanes_acknowledge_at_the_same_time(cursors: CursorFile) -> None:
    """From several threads: every acknowledgement is kept, and none fails because of another."""
    edges = [(LaneId(f"customer-{number}", "push"), edge) for edge in range(1, 11) for number in range(8)]

    def deliver(of: tuple[LaneId, int]) -> None:
        lane, edge = of
        acknowledge(cursors, lane, make_cursor(edge), Delivery(edge - 1, edge, 1, 1, 0, 1))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(deliver, edges))
    delivered = [each.boundaries for lane in cursors.lanes() for each in cursors.deliveries(lane, 0, MINUTE)]
    assert delivered == [10] * 8


def test_one_process_delivers(cursors: CursorFile) -> None:
    """Two would send everything twice."""
    with pytest.raises(StoreError, match=r"another `servescope customers run` \(process \d+\) is writing it"):
        CursorFile(cursors.path, deliver=True)
    with CursorFile(cursors.path) as other:
        assert other.lanes() == []


def test_what_is_removed_is_gone_from_the_file_and_stops_its_lane(cursors: CursorFile) -> None:
    """By another process, while the lane runs; the other customers' lanes go on."""
    acknowledge(cursors, ACME, make_cursor(), Delivery(0, MINUTE, 1, 1, 0, 1))
    cursors.add_gap(ACME, Gap(0, MINUTE, "age"))
    acknowledge(cursors, OTHER, make_cursor())
    with CursorFile(cursors.path) as other:
        assert other.remove("acme", 9) == 3

    assert cursors.rows_of("acme") == 0
    assert cursors.removed() == {"acme": 9}
    assert cursors.lanes() == [OTHER]
    with pytest.raises(RemovedError, match="customer 'acme' was removed"):
        acknowledge(cursors, ACME, make_cursor())
    acknowledge(cursors, OTHER, make_cursor(6 * MINUTE))
    assert all(SECRET.encode() not in path.read_bytes() for path in cursors.path.parent.iterdir())


def test_a_customer_that_comes_back_begins_anew(cursors: CursorFile) -> None:
    """After it was admitted again."""
    cursors.remove("acme", 9)
    cursors.readmit("acme")
    acknowledge(cursors, ACME, make_cursor())
    assert cursors.removed() == {}


def _write_text(path: Path) -> None:
    path.write_bytes(b"no database " * 100)


def _write_tables(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.executescript("CREATE TABLE t (a); PRAGMA user_version = 3;")
    connection.close()


@pytest.mark.parametrize(
    ("prepare", "message"),
    [(_write_text, "not a database"), (_write_tables, "another program"), (Path.mkdir, "unable to open")],
)
def test_another_file_is_refused_and_left_alone(tmp_path: Path, prepare: Callable[[Path], None], message: str) -> None:
    """With its name and why."""
    path = tmp_path / "customers.db"
    prepare(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(CursorError, match=rf"customers\.db.*{message}"):
        CursorFile(path, deliver=True)
    assert (path.read_bytes() if path.is_file() else None) == before


def test_reading_a_file_that_is_not_there_says_what_makes_it(tmp_path: Path) -> None:
    """And makes none; one that a full disk left empty is none either, and is filled."""
    with pytest.raises(NoCursorsError, match="`servescope customers run` makes it"):
        CursorFile(tmp_path / "customers.db")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "customers.db").touch()
    with pytest.raises(NoCursorsError, match="is empty; `servescope customers run` fills it"):
        CursorFile(tmp_path / "customers.db")
    CursorFile(tmp_path / "customers.db", deliver=True).close()
    CursorFile(tmp_path / "customers.db").close()


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_acknowledged_in_a_file_that_is_gone(tmp_path: Path, replaced: bool) -> None:
    """Removed or replaced while it was in use, it would be lost with the process; moved back, it is written again."""
    path = tmp_path / "customers.db"
    with CursorFile(path, deliver=True) as cursors:
        acknowledge(cursors, ACME, make_cursor(MINUTE))
        path.rename(tmp_path / "aside.db")
        if replaced:
            path.write_bytes((tmp_path / "aside.db").read_bytes())
        with pytest.raises(CursorError, match="removed or replaced while it was in use"):
            cursors.begin(ACME, 2)
        (tmp_path / "aside.db").rename(path)
        acknowledge(cursors, ACME, make_cursor(2 * MINUTE))
        assert cursors.boundary_ms(ACME) == 2 * MINUTE
