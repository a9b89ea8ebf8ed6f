"""How many runs of the pages' scripts compute at once: the others wait in the order in which they came.

Without a bound, every session's run is a thread that competes with the server's event loop for the interpreter.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import streamlit as st
from streamlit import runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx

MOST_RUNS: Final = 4
_POLL_SECONDS: Final = 0.5


class UnwantedError(Exception):
    """What waited for its turn is not wanted any more."""


class Turns:
    """Turns for threads, at most `most` at once, in the order in which they were asked for.

    `is_wanted` is asked now and then while a turn is waited for, and answers at once.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()
        self._mine = threading.local()

    @contextmanager
    def take(self, is_wanted: Callable[[], bool]) -> Iterator[None]:
        """Hold a turn, or go on with the one that this thread holds; raises UnwantedError."""
        if self._holds():
            yield
            return
        self._wait(is_wanted)
        try:
            yield
        finally:
            if self._holds():
                self._give_back()

    def pass_on(self, is_wanted: Callable[[], bool]) -> None:
        """Have those who wait go first, in the middle of a long run that holds a turn; raises UnwantedError."""
        if self._waiting and self._holds():
            self._give_back()
            self._wait(is_wanted)

    def _holds(self) -> bool:
        return getattr(self._mine, "held", False)

    def _wait(self, is_wanted: Callable[[], bool]) -> None:
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                while self._waiting[0] is not ticket or not self._free:
                    if not is_wanted():
                        raise UnwantedError
                    self._changed.wait(_POLL_SECONDS)
                self._free -= 1
                self._mine.held = True
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()

    def _give_back(self) -> None:
        self._mine.held = False
        with self._changed:
            self._free += 1
            self._changed.notify_all()


_TURNS: Final = Turns(MOST_RUNS)


@contextmanager
def take_turn() -> Iterator[None]:
    """Hold a turn of this console; the run ends here when its session closes before the turn comes."""
    with _ended_unless_wanted(), _TURNS.take(_is_connected):
        yield


def pass_turn_on() -> None:
    """Have the runs that wait go first, in the middle of a long one."""
    with _ended_unless_wanted():
        _TURNS.pass_on(_is_connected)


@contextmanager
def _ended_unless_wanted() -> Iterator[None]:
    try:
        yield
    except UnwantedError:
        st.stop()


def _is_connected() -> bool:
    context = get_script_run_ctx()
    return context is None or not runtime.exists() or runtime.get_instance().is_active_session(context.session_id)
