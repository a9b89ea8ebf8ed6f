"""How figures were derived, from when on."""

from __future__ import annotations

import sqlite3
from dataclasses import asdict
from pathlib import Path

from servescope.store.records import RecordedSettings
from servescope.store.schema import LATEST_MS, checked_time, decode, write_text


class SettingsTable:
    """The settings that figures were derived with, by the time of the first. Not thread safe."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path

    def record(self, time_ms: int, settings: RecordedSettings) -> None:
        """Keep the settings in force from an instant on; nothing is written where they are already."""
        text = write_text(asdict(settings))
        if self._text_at(time_ms) != text:
            self._connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (checked_time(time_ms), text))

    def at(self, time_ms: int) -> RecordedSettings | None:
        """The settings in force at an instant; the first ones when it is older, None when there are none."""
        text = self._text_at(time_ms) or self._read("SELECT settings FROM settings ORDER BY time_ms LIMIT 1")
        if text is None:
            return None
        return decode(text, lambda stored: RecordedSettings(**stored), self._path, "the settings of figures")

    def last_ms(self) -> int | None:
        """Since when the last ones are in force; None without any."""
        (last,) = self._connection.execute("SELECT max(time_ms) FROM settings").fetchone()
        return None if last is None else int(last)

    def forget_after(self, time_ms: int) -> None:
        """Have the last of those that began later than an instant begin then."""
        latest = self._text_at(LATEST_MS)
        self._connection.execute("DELETE FROM settings WHERE time_ms > ?", (time_ms,))
        if latest is not None and latest != self._text_at(time_ms):
            self._connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (checked_time(time_ms), latest))

    def delete_before(self, time_ms: int) -> None:
        """Delete all that were replaced before an instant."""
        # The settings in force at the start of what is kept began before it.
        self._connection.execute(
            "DELETE FROM settings WHERE time_ms < (SELECT max(time_ms) FROM settings WHERE time_ms <= ?)", (time_ms,)
        )

    def _text_at(self, time_ms: int) -> str | None:
        return self._read("SELECT settings FROM settings WHERE time_ms <= ? ORDER BY time_ms DESC LIMIT 1", time_ms)

    def _read(self, query: str, *parameters: int) -> str | None:
        found = self._connection.execute(query, parameters).fetchone()
        return None if found is None else str(found[0])
