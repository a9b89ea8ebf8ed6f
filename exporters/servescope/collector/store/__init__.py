"""The embedded store, in one SQLite file: written by one collector, read by any number of processes meanwhile."""

from servescope.collector.store.records import (
    AHEAD_MS,
    FigureTable,
    KeptAlert,
    RecordedSettings,
    RefusedError,
    StoreError,
    TargetStatus,
    TooLargeError,
)
from servescope.collector.store.store import Store
from servescope.collector.store.writer import Round, StoreWriter

__all__ = [
    "AHEAD_MS",
    "FigureTable",
    "KeptAlert",
    "RecordedSettings",
    "RefusedError",
    "Round",
    "Store",
    "StoreError",
    "StoreWriter",
    "TargetStatus",
    "TooLargeError",
]
