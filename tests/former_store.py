"""Writes stores as schema 1 had them, for what must go on reading those: one deflated row a scrape."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from servescope.collector.store import TargetStatus
from servescope.identity import DEPLOYMENT_LABELS, IDENTITY_LABELS, Deployment
from servescope.samples import Snapshot

_SCHEMA = """
CREATE TABLE deployments (id INTEGER PRIMARY KEY AUTOINCREMENT, labels TEXT NOT NULL UNIQUE);
CREATE TABLE targets (
    id INTEGER PRIMARY KEY AUTOINCREMENT, target_id TEXT NOT NULL UNIQUE, deployment INTEGER NOT NULL,
    listed INTEGER NOT NULL, status TEXT NOT NULL, coverage TEXT NOT NULL
);
CREATE TABLE layouts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE, used_ms INTEGER NOT NULL, keys BLOB NOT NULL
);
CREATE TABLE figures (
    deployment INTEGER NOT NULL, time_ms INTEGER NOT NULL, layout INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (deployment, time_ms)
) WITHOUT ROWID;
CREATE TABLE scrapes (id INTEGER PRIMARY KEY, layout INTEGER, body BLOB);
"""


def write_former_store(
    path: Path,
    targets: Iterable[TargetStatus],
    scrapes: Iterable[tuple[str, int, Snapshot | None]],
    figures: Iterable[tuple[Deployment, int, Mapping[str, float]]],
) -> None:
    """Write a store of schema 1 with these in it."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA page_size = 16384")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA application_id = {0x53565343}; PRAGMA user_version = 1; COMMIT;")
    connection.execute("BEGIN")
    for status in targets:
        _write_target(connection, status)
    for target_id, time_ms, snapshot in scrapes:
        (target,) = connection.execute("SELECT id FROM targets WHERE target_id = ?", (target_id,)).fetchone()
        layout = body = None
        if snapshot is not None:
            layout, body = _layout(connection, snapshot.series, time_ms), _pack(snapshot.values)
        connection.execute("INSERT INTO scrapes VALUES (?, ?, ?)", (target << 44 | time_ms, layout, body))
    for deployment, time_ms, values in figures:
        keys = sorted(values)
        body = np.array([values[key] for key in keys], dtype="<f8").tobytes()
        row = (_deployment(connection, deployment), time_ms, _layout(connection, keys, time_ms), body)
        connection.execute("INSERT INTO figures VALUES (?, ?, ?, ?)", row)
    connection.execute("COMMIT")
    connection.close()


def _write_target(connection: sqlite3.Connection, status: TargetStatus) -> None:
    fields = {
        "url": status.url,
        "identity": {name: getattr(status.identity, name) for name in IDENTITY_LABELS},
        "source": status.source,
        "versions": status.versions,
        "healthy": status.healthy,
        "last_scrape_ms": status.last_scrape_ms,
        "last_success_ms": status.last_success_ms,
        "duration_seconds": status.duration_seconds,
        "samples": status.samples,
        "error": status.error,
    }
    connection.execute(
        "INSERT INTO targets (target_id, deployment, listed, status, coverage) VALUES (?, ?, 1, ?, ?)",
        (
            status.target_id,
            _deployment(connection, status.identity.deployment()),
            _text(fields),
            _text(status.coverage),
        ),
    )


def _deployment(connection: sqlite3.Connection, deployment: Deployment) -> int:
    labels = _text({name: getattr(deployment, name) for name in DEPLOYMENT_LABELS})
    connection.execute("INSERT OR IGNORE INTO deployments (labels) VALUES (?)", (labels,))
    return int(connection.execute("SELECT id FROM deployments WHERE labels = ?", (labels,)).fetchone()[0])


def _layout(connection: sqlite3.Connection, keys: Sequence[object], time_ms: int) -> int:
    text = _text(keys)
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    connection.execute(
        "INSERT OR IGNORE INTO layouts (digest, used_ms, keys) VALUES (?, ?, ?)",
        (digest, time_ms, zlib.compress(text.encode(), 6)),
    )
    return int(connection.execute("SELECT id FROM layouts WHERE digest = ?", (digest,)).fetchone()[0])


def _pack(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> bytes:
    bits = values.astype("<f8").view("<u8").copy()
    bits[1:] ^= values.view("<u8")[:-1]
    return zlib.compress(bits.view(np.uint8).reshape(len(values), 8).T.tobytes(), 6)


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
