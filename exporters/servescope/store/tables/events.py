"""The event log: what happened around the figures, appended only."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from servescope.contract.events import EVENT_KINDS, Event, EventKind
from servescope.contract.samples import Labels
from servescope.store.records import RefusedError
from servescope.store.schema import checked_time, clamped_time, decode, write_text


class EventTable:
    """The events, by time. Not thread safe."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path

    def append(self, events: Iterable[Event]) -> None:
        """Add events; raises RefusedError for a kind that is not known."""
        for event in events:
            if event.kind not in EVENT_KINDS:
                raise RefusedError(f"unknown kind of event {event.kind!r}, supported: {', '.join(EVENT_KINDS)}")
            body = write_text([event.labels, event.text, event.detail])
            self._connection.execute(
                "INSERT INTO events (time_ms, kind, body) VALUES (?, ?, ?)",
                (checked_time(event.time_ms), event.kind, body),
            )

    def between(self, start_ms: int, end_ms: int, kinds: Sequence[EventKind], most: int) -> list[Event]:
        """The last `most` events of these kinds from start to end, both included, ascending.

        Raises StoreError for a damaged one.
        """
        rows = self._connection.execute(
            f"SELECT time_ms, kind, body FROM events WHERE kind IN ({', '.join('?' * len(kinds))}) "  # noqa: S608 marks
            "AND time_ms BETWEEN ? AND ? ORDER BY time_ms DESC, id DESC LIMIT ?",
            (*kinds, clamped_time(start_ms), clamped_time(end_ms), most),
        ).fetchall()
        return [
            decode(body, partial(_event, time_ms, kind), self._path, "an event") for time_ms, kind, body in rows[::-1]
        ]

    def last_ms(self) -> int | None:
        """When the last one was; None without any."""
        (last,) = self._connection.execute("SELECT max(time_ms) FROM events").fetchone()
        return None if last is None else int(last)

    def move_to(self, time_ms: int) -> None:
        """Have those that are later than an instant be of it, in their order: they did happen before."""
        self._connection.execute(
            "UPDATE events SET time_ms = ? WHERE time_ms > ?", (checked_time(time_ms), checked_time(time_ms))
        )

    def delete_before(self, time_ms: int, rows: int) -> int:
        """Delete the oldest events that are before an instant, at most so many; returns how many went."""
        oldest = "SELECT id FROM events WHERE time_ms < ? ORDER BY time_ms LIMIT ?"
        gone = self._connection.execute(
            f"DELETE FROM events WHERE id IN ({oldest})",  # noqa: S608  a constant
            (clamped_time(time_ms), max(rows, 0)),
        )
        return gone.rowcount


def _event(time_ms: int, kind: Any, stored: Any) -> Event:
    labels, text, detail = stored
    return Event(time_ms, kind, _labels(labels), str(text), _labels(detail))


def _labels(stored: Any) -> Labels:
    return tuple((str(name), str(value)) for name, value in stored)
