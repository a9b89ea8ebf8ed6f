"""The tables of the store, and how times and texts are stored in them.

deployments      the labels of each deployment
targets          each target's identity; `listed` is 0 once it left the configuration
statuses         each target's latest status, and its coverage, which nearly all targets of one kind share
layouts          what the numbers of a recent row are, in order: figure keys, or series; once per distinct list
recent_scrapes   one row per target and scrape: float64, little-endian, in the order of its layout; none when it failed
recent_figures   one row per deployment and evaluation, likewise
recent_increments  one row per target and block of five minutes, by the block's end, likewise (`increments.block_rows`)
runs             stretches of up to `PACK_ROWS` former rows of one target, or deployment, packed; no two of one overlap
shapes           what the numbers of a run are (`packing.Shape`); once per distinct one
chunks           the packed numbers of a run, a few series over all its instants each (`codec.encode_block`)
settings         how figures were derived, from when on
sums             per instant, what the counters of objectives had counted by then (`alerts.AlertTables`)
alerts           every alert that is pending, firing, or was resolved lately
events           what happened, appended only: its time and kind, and as JSON its labels, text and details
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from servescope.errors import ServescopeError
from servescope.store.records import RefusedError, StoreError

APPLICATION_ID: Final = 0x53565343  # "SVSC"
SCHEMA_VERSION: Final = 4
# A row's key is its target, or deployment, and its time in one number, so that those of one lie together on pages.
TIME_BITS: Final = 42
LATEST_MS: Final = (1 << TIME_BITS) - 1
"""The last time that can be stored, in the year 2109."""
LAST_OWNER: Final = (1 << (63 - TIME_BITS)) - 1
# Chunks are appended in the order they are made, so that pages are full: those of a run follow one another.
CHUNK_BITS: Final = 16
SCRAPES, FIGURES, INCREMENTS = 0, 1, 2
"""What a run holds."""
RECENT: Final = {SCRAPES: "recent_scrapes", FIGURES: "recent_figures", INCREMENTS: "recent_increments"}

T = TypeVar("T")

TABLES: Final = (
    "CREATE TABLE deployments (id INTEGER PRIMARY KEY, labels TEXT NOT NULL UNIQUE)",
    "CREATE TABLE targets (id INTEGER PRIMARY KEY, target_id TEXT NOT NULL UNIQUE, deployment INTEGER NOT NULL, "
    "listed INTEGER NOT NULL)",
    "CREATE TABLE statuses (target INTEGER PRIMARY KEY, status TEXT NOT NULL, coverage INTEGER NOT NULL)",
    "CREATE TABLE coverages (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, text TEXT NOT NULL)",
    "CREATE TABLE layouts (id INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE, "
    "used_ms INTEGER NOT NULL, keys BLOB NOT NULL)",
    "CREATE TABLE shapes (id INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE, "
    "used_ms INTEGER NOT NULL, keys BLOB NOT NULL)",
    "CREATE TABLE recent_scrapes (id INTEGER PRIMARY KEY, layout INTEGER, body BLOB)",
    "CREATE TABLE recent_figures (id INTEGER PRIMARY KEY, layout INTEGER NOT NULL, body BLOB NOT NULL)",
    "CREATE TABLE recent_increments (id INTEGER PRIMARY KEY, layout INTEGER NOT NULL, body BLOB NOT NULL)",
    "CREATE TABLE runs (id INTEGER PRIMARY KEY AUTOINCREMENT, kind INTEGER NOT NULL, owner INTEGER NOT NULL, "
    "start_ms INTEGER NOT NULL, end_ms INTEGER NOT NULL, count INTEGER NOT NULL, shape INTEGER NOT NULL, "
    "stamps BLOB NOT NULL)",
    "CREATE INDEX runs_of_owner ON runs (kind, owner, start_ms)",
    "CREATE INDEX runs_by_end ON runs (kind, end_ms)",
    "CREATE TABLE chunks (id INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE TABLE settings (time_ms INTEGER PRIMARY KEY, settings TEXT NOT NULL)",
    "CREATE TABLE sums (time_ms INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE TABLE alerts (alert TEXT NOT NULL, labels TEXT NOT NULL, state TEXT NOT NULL)",
    "CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, time_ms INTEGER NOT NULL, kind TEXT NOT NULL, "
    "body TEXT NOT NULL)",
    "CREATE INDEX events_by_time ON events (time_ms)",
)


def checked_time(time_ms: int) -> int:
    """A time that can be stored; raises RefusedError for any other."""
    if not 0 <= time_ms <= LATEST_MS:
        raise RefusedError(f"the time {time_ms!r} ms cannot be stored, expected 0 … {LATEST_MS}")
    return time_ms


def latest_ms() -> int:
    """A clock by which nothing is in the future: the last time that can be stored."""
    return LATEST_MS


def clamped_time(time_ms: int) -> int:
    """The nearest time that can be stored, for the ends of what is read."""
    return min(max(time_ms, 0), LATEST_MS)


def write_text(value: object) -> str:
    """A value as it is stored, the same text for the same value."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(text: str) -> bytes:
    """The 16 bytes (BLAKE2b) by which a text that is stored only once is looked up."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def decode(text: str, make: Callable[[Any], T], path: Path, what: str) -> T:
    """What a stored JSON text is made into; raises StoreError, naming the file and `what`, when the text is damaged."""
    try:
        return make(json.loads(text))
    except (ServescopeError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"store {path}: {what} is damaged: {error}") from error
