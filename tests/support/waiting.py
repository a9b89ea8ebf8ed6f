"""Waiting for a condition: the one place that tests take a deadline from."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from tests.support.slowness import slowness

T = TypeVar("T")

SECONDS = 60.0
TEST_SECONDS = 300.0
_POLL_SECONDS = 0.05
_LOG_LINES = 20


class NotInTimeError(AssertionError):
    """A condition that was waited for did not hold before the deadline, or cannot hold any more."""


class Running(Protocol):
    """A process as `subprocess` starts it."""

    def poll(self) -> int | None:
        """The exit code; None while it runs."""


def deadline_seconds(seconds: float = SECONDS) -> float:
    """Seconds to wait at most on this machine: for `join`, `communicate`, a socket's or a browser's own timeout."""
    return seconds * slowness()


def timeout_of_a_test() -> float:
    """Seconds after which pytest-timeout ends a test: above what a test that waits in vain needs to report it."""
    return TEST_SECONDS * slowness()


def wait_for(
    condition: Callable[[], T | None],
    what: str,
    *,
    ignoring: tuple[type[Exception], ...] = (),
    process: Running | None = None,
    log: Path | None = None,
    seconds: float = SECONDS,
) -> T:
    """The first true value of `condition`, asked for every 0.05 s.

    An exception of `ignoring` counts as not true yet. Raises NotInTimeError, with `what`, the last value or exception
    and the end of `log`, after `seconds` at usual speed, or at once when `process` ended before the condition held.
    """
    attempts = _attempts(condition, what, ignoring, process, log, deadline_seconds(seconds))
    while not (value := next(attempts)):
        time.sleep(_POLL_SECONDS)
    return value


async def wait_for_async(
    condition: Callable[[], T | None],
    what: str,
) -> T:
    """As `wait_for`, for a condition that tasks of this event loop bring about."""
    attempts = _attempts(condition, what, (), None, None, deadline_seconds(SECONDS))
    while not (value := next(attempts)):  # noqa: ASYNC110 - any condition, of which no event is known
        await asyncio.sleep(_POLL_SECONDS)
    return value


def _attempts(
    condition: Callable[[], T | None],
    what: str,
    ignoring: tuple[type[Exception], ...],
    process: Running | None,
    log: Path | None,
    seconds: float,
) -> Iterator[T | None]:
    """Values of the condition; raises NotInTimeError after the last one, taken past the deadline or the end."""
    deadline = time.monotonic() + seconds
    while True:
        # Looked at before the condition is: what held just before the end of the process still counts.
        code = None if process is None else process.poll()
        is_late = time.monotonic() > deadline
        seen: object
        try:
            value = condition()
        except ignoring as error:
            seen = error
            yield None
        else:
            seen = value
            yield value
        if code is not None or is_late:
            reason = f"not within {seconds:.0f} s" if code is None else f"its process ended with code {code}"
            raise NotInTimeError(f"waited for {what}: {reason}; last seen: {seen!r}{_end_of(log)}")


def _end_of(log: Path | None) -> str:
    if log is None or not log.is_file():
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    return "\n".join([f"\nthe end of {log}:", *lines])
