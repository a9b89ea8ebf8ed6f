"""The history that the arguments of a command choose: a collector's store, or a Prometheus."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from servescope.errors import UsageError
from servescope.settings.clock import AHEAD_MS, program_clock
from servescope.settings.values import format_instant
from servescope.store.embedded import Store
from servescope.store.history import History
from servescope.store.prometheus.history import PrometheusHistory
from servescope.store.prometheus.options import OPTIONS, open_prometheus
from servescope.store.spans import read_instant

DEFAULT_STORE: Final = "servescope.db"


@contextmanager
def open_history(arguments: argparse.Namespace) -> Iterator[History]:
    """The history that the arguments name; raises UsageError, StoreError, PrometheusError when it does not answer."""
    if arguments.prometheus is not None:
        if arguments.store is not None:
            raise UsageError("--store and --prometheus are both given, expected one of them")
        # What is judged, delivered or planned by is of whole answers alone; pages show a part, and that it is one.
        history = PrometheusHistory(open_prometheus(arguments.prometheus, arguments).only_whole())
        history.deployments()
        yield history
        return
    for option in OPTIONS:
        if getattr(arguments, option):
            raise UsageError(f"--{option.replace('_', '-')} goes with --prometheus")
    path = arguments.store or Path(DEFAULT_STORE)
    if arguments.store is None and not path.exists():
        raise UsageError(f"no {DEFAULT_STORE} here, expected --store PATH or --prometheus URL")
    with Store(path, read_only=True, now_ms=program_clock().now_ms) as store:
        yield store


def read_time(option: str, text: str | None) -> int:
    """The time of an option in milliseconds, now without it; raises UsageError, also for one that is later than now."""
    now_ms = program_clock().now_ms()
    found_ms = now_ms if text is None else read_instant(option, text, now_ms)
    if found_ms > now_ms + AHEAD_MS:
        raise UsageError(f"{option} {text!r} is later than now, {format_instant(now_ms)}")
    return found_ms
