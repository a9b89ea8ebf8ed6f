"""What alerting stores: the state of alerts, and what the counters of objectives counted."""

from __future__ import annotations

import json
import math
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any

from servescope.contract.identity import Deployment
from servescope.contract.samples import Labels
from servescope.store.records import KeptAlert, StoreError
from servescope.store.schema import LATEST_MS, checked_time, clamped_time, decode, write_text

Sums = Mapping[Deployment, Sequence[float]]


class AlertTables:
    """The tables of alerting. Not thread safe."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path

    def write_alerts(self, alerts: Iterable[KeptAlert]) -> None:
        """Keep these in place of all former ones."""
        self._connection.execute("DELETE FROM alerts")
        self._connection.executemany(
            "INSERT INTO alerts VALUES (?, ?, ?)",
            [(each.alert, write_text(each.labels), write_text(_state(each))) for each in alerts],
        )

    def read_alerts(self) -> list[KeptAlert]:
        """All that are kept; raises StoreError for one that is damaged."""
        rows = self._connection.execute("SELECT alert, labels, state FROM alerts ORDER BY rowid").fetchall()
        return [self._alert(*row) for row in rows]

    def _alert(self, alert: str, labels: str, state: str) -> KeptAlert:
        what = f"the state of alert {alert!r}"
        pairs = decode(
            labels, lambda stored: tuple((str(name), str(value)) for name, value in stored), self._path, what
        )
        return decode(state, lambda stored: _make_alert(alert, pairs, stored), self._path, what)

    def forget_after(self, time_ms: int) -> None:
        """Forget the sums that are later than an instant, and have no alert be of a later time."""
        self._connection.execute("DELETE FROM sums WHERE time_ms > ?", (clamped_time(time_ms),))
        with suppress(StoreError):  # damaged ones: nobody can read them, and the next that are kept replace them
            self.write_alerts([each.known_at(time_ms) for each in self.read_alerts()])

    def last_sums_ms(self, until_ms: int = LATEST_MS) -> int | None:
        """The last instant that sums are kept of, of those not after another; None without any."""
        (last,) = self._connection.execute(
            "SELECT max(time_ms) FROM sums WHERE time_ms <= ?", (clamped_time(until_ms),)
        ).fetchone()
        return None if last is None else int(last)

    def append_sums(self, time_ms: int, sums: Sums) -> None:
        """Keep what was counted up to an instant; those that are not before it go."""
        self._connection.execute("DELETE FROM sums WHERE time_ms >= ?", (clamped_time(time_ms),))
        text = write_text([[astuple(deployment), list(own)] for deployment, own in sums.items()])
        # Fast rather than small: it is done at every evaluation.
        self._connection.execute(
            "INSERT INTO sums VALUES (?, ?)", (checked_time(time_ms), zlib.compress(text.encode(), 1))
        )

    def forget_sums(self, times: Iterable[int]) -> None:
        """Forget those of some instants."""
        self._connection.executemany("DELETE FROM sums WHERE time_ms = ?", [(time_ms,) for time_ms in times])

    def read_sums(self, until_ms: int) -> list[tuple[int, Sums]]:
        """What was counted up to each instant that is kept, ascending, none of them after `until_ms`."""
        rows = self._connection.execute(
            "SELECT time_ms, body FROM sums WHERE time_ms <= ? ORDER BY time_ms", (clamped_time(until_ms),)
        ).fetchall()
        # One object per deployment, however often it occurs.
        known: dict[Deployment, Deployment] = {}
        found: list[tuple[int, Sums]] = []
        for time_ms, body in rows:
            try:
                sums: dict[Deployment, Sequence[float]] = {}
                for labels, own in json.loads(zlib.decompress(body)):
                    deployment = Deployment(*map(str, labels))
                    sums[known.setdefault(deployment, deployment)] = [float(value) for value in own]
            except (TypeError, ValueError, zlib.error) as error:
                raise StoreError(f"store {self._path}: the sums of time {time_ms} are damaged: {error}") from error
            found.append((time_ms, sums))
        return found


def _make_alert(alert: str, labels: Labels, stored: dict[str, Any]) -> KeptAlert:
    sent = {name: tuple(last) for name, last in stored.pop("sent").items()}
    return KeptAlert(alert, labels, **{**stored, "sent": sent, "value": float(stored["value"])})


def _state(alert: KeptAlert) -> dict[str, object]:
    return {
        "since_ms": alert.since_ms,
        "fired_ms": alert.fired_ms,
        "kept_ms": alert.kept_ms,
        "resolved_ms": alert.resolved_ms,
        "sent": {name: list(last) for name, last in alert.sent.items()},
        # As text where JSON has no number for it.
        "value": alert.value if math.isfinite(alert.value) else str(alert.value),
    }
