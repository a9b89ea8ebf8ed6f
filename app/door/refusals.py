"""What the console's server writes to its log: what it refused as one line a minute, and nothing many times."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from typing import Final

from starlette.types import Scope

EVERY_SECONDS: Final = 60.0
_LOG: Final = logging.getLogger("servescope.console")


class Refusals:
    """Counts what was refused, and writes it: the first at once, then a line a minute while there is more."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._last = ""
        self._pending: asyncio.TimerHandle | None = None

    def note(self, what: str, scope: Scope) -> None:
        """Count a refusal; only in the server's event loop."""
        self._counts[what] += 1
        peer = scope.get("client")
        self._last = peer[0] if peer else "an unknown peer"
        if self._pending is None:
            self._write()

    def _write(self) -> None:
        self._pending = None
        if self._counts:
            counted = ", ".join(f"{what} ({count} times)" for what, count in self._counts.items())
            _LOG.warning("servescope: the console refused %s, last from %s", counted, self._last)
            self._counts.clear()
            self._pending = asyncio.get_running_loop().call_later(EVERY_SECONDS, self._write)


class LogLimit(logging.Filter):
    """Passes what one place in the code logs once a minute, and says then how often it was left out.

    A warning is one line, without a traceback.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._passed: dict[tuple[str, int], float] = {}
        self._left_out: Counter[tuple[str, int]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written; it may have been changed."""
        if record.name == _LOG.name:
            return True
        place, now = (record.pathname, record.lineno), time.monotonic()
        with self._lock:
            if now - self._passed.get(place, -EVERY_SECONDS) < EVERY_SECONDS:
                self._left_out[place] += 1
                return False
            self._passed[place] = now
            left_out = self._left_out.pop(place, 0)
        text = record.getMessage()
        if record.levelno < logging.ERROR:
            text, record.exc_info = " ".join([text, *_name(record)]), None
        record.msg, record.args = (f"{text} (and {left_out} times before)" if left_out else text), None
        return True


def _name(record: logging.LogRecord) -> list[str]:
    error = record.exc_info[1] if record.exc_info else None
    return [] if error is None else [f"{type(error).__name__}: {error}"]


def limit_logs() -> None:
    """Put a `LogLimit` before every logger of this process, also those that are made later."""
    limit = LogLimit()

    class LimitedLogger(logging.Logger):
        def __init__(self, name: str, level: int = logging.NOTSET) -> None:
            super().__init__(name, level)
            self.addFilter(limit)

    logging.setLoggerClass(LimitedLogger)
    for known in (logging.root, *logging.root.manager.loggerDict.values()):
        if isinstance(known, logging.Logger):
            known.addFilter(limit)
