"""The embedded store, in one SQLite file: written by one collector, read by any number of processes meanwhile."""

from servescope.store.embedded import Store
from servescope.store.records import (
    AHEAD_MS,
    FigureTable,
    KeptAlert,
    RecordedSettings,
    RefusedError,
    StoreError,
    TargetStatus,
    TooLargeError,
)
from servescope.store.writer import Round, StoreWriter

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
