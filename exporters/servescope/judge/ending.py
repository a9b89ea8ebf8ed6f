"""A judge ends soon after SIGTERM, whatever it is at: reading a store that does not answer, or waiting for a lock."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NoReturn, TypeVar

SECONDS: Final = 2.0
"""What a signal leaves for what is in progress. SQLite finishes, or undoes, at the next opening what was written."""
_INTERRUPTED: Final = 130

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


@contextmanager
def ended_in_time() -> Iterator[None]:
    """Within, SIGINT and SIGTERM end the process in `SECONDS`, also where a call does not return to Python."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received, signalled = os.pipe()
    os.set_blocking(signalled, False)
    done = threading.Event()

    def watch() -> None:
        while number := os.read(received, 1):
            if number[0] in {signal.SIGINT, signal.SIGTERM} and not done.wait(SECONDS):
                _leave(_INTERRUPTED)
        os.close(received)

    # The handler of Python itself runs only between two of its own instructions.
    before = signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    threading.Thread(target=watch, name="ending", daemon=True).start()
    try:
        yield
    finally:
        done.set()
        signal.set_wakeup_fd(before)
        os.close(signalled)


class Worker:
    """Makes calls in a thread of their own, one at a time, that need not have ended when the process does."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    async def call(self, function: Callable[[], _T]) -> _T:
        """What a function returns; where this is cancelled, it goes on."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def settle(result: _T | None, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)  # type: ignore[arg-type] # what the function returned
            else:
                future.set_exception(error)

        def work() -> None:
            result, error = None, None
            try:
                result = function()
            except BaseException as raised:
                error = raised
            # The loop may have been closed meanwhile.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result, error)

        self._thread = threading.Thread(target=work, name="judging", daemon=True)
        self._thread.start()
        return await future

    def leave(self) -> None:
        """Wait a moment for a call in progress, and end the process where it goes on."""
        if self._thread is None:
            return
        self._thread.join(SECONDS)
        if self._thread.is_alive():
            _logger.warning("a judgement in progress is left undone")
            _leave(0)


def _leave(code: int) -> NoReturn:
    logging.shutdown()
    os._exit(code)
