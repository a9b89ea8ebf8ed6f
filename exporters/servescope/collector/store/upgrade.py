"""Former stores become stores of today, in one transaction: all of it, or nothing.

Schema 1 had one deflated row a scrape; schema 2 nothing of alerts.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.collector.store.packing import RUN_ROWS, Keys, Row, parse_key
from servescope.collector.store.records import StoreError
from servescope.collector.store.schema import ALERT_TABLES, FIGURES, LATEST_MS, SCHEMA_VERSION, SCRAPES, TABLES

_logger = logging.getLogger(__name__)

WriteRuns = Callable[[int, int, Sequence[Row]], None]
"""Writes ascending rows of a kind and an owner."""

_FORMER_TABLES = ("deployments", "targets", "layouts", "figures", "scrapes")
# A scrape's key was its target and its time in one number.
_FORMER_TIME_BITS: Final = 44
_TOLD_EVERY = 0.1


def upgrade(connection: sqlite3.Connection, path: Path, version: int, write_runs: WriteRuns) -> None:
    """Rewrite a store of this schema; when it fails, or the process ends, the store is as it was.

    Others may read the former store meanwhile. Raises StoreError for a row that cannot be read, and sqlite3.Error.
    """
    if version > 1:
        _add_tables(connection)
        _logger.info("%s: upgraded from schema %d to %d", path, version, SCHEMA_VERSION)
        return
    total = _count_rows(connection)
    _logger.info("%s: upgrading from schema 1 to %d: %d scrapes and figures", path, SCHEMA_VERSION, total)
    connection.execute("BEGIN IMMEDIATE")
    try:
        for table in _FORMER_TABLES:
            connection.execute(f"ALTER TABLE {table} RENAME TO former_{table}")
        for statement in TABLES:
            connection.execute(statement)
        _copy_names(connection)
        done, told = 0, 0.0
        for kind, owner, rows in _stretches(connection, path):
            write_runs(kind, owner, rows)
            done += len(rows)
            if done / total >= told + _TOLD_EVERY:
                told = done / total
                _logger.info("%s: upgraded %.0f %%", path, 100 * told)
        for table in _FORMER_TABLES:
            connection.execute(f"DROP TABLE former_{table}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    _shrink(connection, path)
    _logger.info("%s: upgraded", path)


def _add_tables(connection: sqlite3.Connection) -> None:
    """What schema 2 had stays as it is."""
    connection.executescript(
        f"BEGIN IMMEDIATE; {'; '.join(ALERT_TABLES)}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
    )


def _shrink(connection: sqlite3.Connection, path: Path) -> None:
    """Give the room of the former rows back; where that fails, new rows use it."""
    try:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("VACUUM")
    except sqlite3.Error as error:
        _logger.warning("%s: the room that the former rows had is not given back: %s", path, error)


def _count_rows(connection: sqlite3.Connection) -> int:
    return sum(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("scrapes", "figures"))  # noqa: S608  constants


def _copy_names(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO deployments SELECT id, labels FROM former_deployments")
    connection.execute("INSERT INTO targets SELECT id, target_id, deployment, listed FROM former_targets")
    for target, status, coverage in connection.execute("SELECT id, status, coverage FROM former_targets").fetchall():
        digest = hashlib.blake2b(coverage.encode(), digest_size=16).digest()
        connection.execute("INSERT OR IGNORE INTO coverages (digest, text) VALUES (?, ?)", (digest, coverage))
        connection.execute(
            "INSERT INTO statuses SELECT ?, ?, id FROM coverages WHERE digest = ?", (target, status, digest)
        )


def _stretches(connection: sqlite3.Connection, path: Path) -> Iterator[tuple[int, int, list[Row]]]:
    layouts: dict[int, Keys] = {}
    for (deployment,) in connection.execute("SELECT id FROM deployments").fetchall():
        query = (
            "SELECT time_ms, layout, body FROM former_figures WHERE deployment = ?1 AND time_ms BETWEEN ?2 AND ?3 "
            "ORDER BY time_ms LIMIT ?4"
        )
        for rows in _batches(connection, query, deployment, 0):
            yield FIGURES, deployment, [_row(connection, path, layouts, row, _floats) for row in rows]
    for (target,) in connection.execute("SELECT id FROM targets").fetchall():
        first = target << _FORMER_TIME_BITS
        query = (
            "SELECT id - ?1, layout, body FROM former_scrapes WHERE id BETWEEN ?1 + ?2 AND ?1 + ?3 ORDER BY id LIMIT ?4"
        )
        for rows in _batches(connection, query, first, 0):
            yield SCRAPES, target, [_row(connection, path, layouts, row, _unpack) for row in rows]


_Stored = tuple[int, int | None, bytes]


def _batches(connection: sqlite3.Connection, query: str, owner: int, from_ms: int) -> Iterator[list[_Stored]]:
    while rows := connection.execute(query, (owner, from_ms, LATEST_MS, RUN_ROWS)).fetchall():
        yield rows
        from_ms = rows[-1][0] + 1


def _row(
    connection: sqlite3.Connection,
    path: Path,
    layouts: dict[int, Keys],
    stored: _Stored,
    unpack: Callable[[bytes], NDArray[np.float64]],
) -> Row:
    time_ms, layout, body = stored
    if layout is None:
        return Row(time_ms, None, None)
    try:
        if layout not in layouts:
            layouts[layout] = _keys(connection, layout)
        values = unpack(body)
        if len(values) != len(layouts[layout]):
            raise ValueError(f"{len(values)} values of {len(layouts[layout])} series")
    except (TypeError, ValueError, zlib.error) as error:
        raise StoreError(f"store {path}: cannot be upgraded: a row of time {time_ms} is damaged: {error}") from error
    return Row(time_ms, layouts[layout], values)


def _keys(connection: sqlite3.Connection, layout: int) -> Keys:
    (keys,) = connection.execute("SELECT keys FROM former_layouts WHERE id = ?", (layout,)).fetchone()
    return tuple(map(parse_key, json.loads(zlib.decompress(keys))))


def _floats(body: bytes) -> NDArray[np.float64]:
    return np.frombuffer(body, "<f8")


def _unpack(body: bytes) -> NDArray[np.float64]:
    """A scrape's values: neighbours were XORed, bytes grouped by place, and deflated."""
    planes = np.frombuffer(zlib.decompress(body), dtype=np.uint8)
    bits = np.ascontiguousarray(planes.reshape(8, len(planes) // 8).T).view("<u8").ravel()
    return np.bitwise_xor.accumulate(bits).view("<f8")
