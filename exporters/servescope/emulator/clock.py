"""Time in the emulator: one virtual clock that runs events, and a thread that lets it follow the wall clock."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from servescope.errors import ServescopeError, UsageError
from servescope.instruments.instrument import Instruments

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_Instruments = TypeVar("_Instruments", bound=Instruments)

# Beyond these a clock looks stopped, or jumps.
_SLOWEST, _FASTEST = 1e-3, 1e6
_TICK_SECONDS = 0.1
# While a client follows its answer token by token.
_FINE_TICK_SECONDS = 0.005
# Of the emulated time, so that a thread that waits for the lock, or for the end, does not wait for hours of it.
_LONGEST_STEP_SECONDS = 10.0
# Behind by more than this, the debt is forgiven: catching up would only be slower still.
_FORGIVEN_LAG_SECONDS = 1.0


class VirtualClock:
    """Seconds since the start of the emulation, and the events to come; for one thread at a time.

    Events of the same moment happen in the order they were scheduled in, so that one seed gives one history. `epoch` is
    when the emulation starts in Unix seconds, None for one that lives in the time of this machine.
    """

    def __init__(self, epoch: float | None = None) -> None:
        self.now = 0.0
        self.epoch = epoch
        self._ahead: list[tuple[float, int, Callable[[], object]]] = []
        self._scheduled = 0

    def read(self) -> float:
        """The time in seconds; the clock that instruments are given."""
        return self.now

    def date(self, instruments: _Instruments, *, age_seconds: float = 0.0) -> _Instruments:
        """The instruments of a process that begins now, or is so old already, with its start time."""
        if self.epoch is not None:
            instruments.begin_at(self.epoch + self.now - age_seconds)
        return instruments

    def schedule(self, delay_seconds: float, action: Callable[[], object]) -> None:
        """Run `action` in `delay_seconds`, at once when that is zero or less."""
        self._scheduled += 1
        heapq.heappush(self._ahead, (self.now + max(delay_seconds, 0.0), self._scheduled, action))

    def schedule_at(self, time_seconds: float, action: Callable[[], object]) -> None:
        """Run `action` at that time, at once when it is past."""
        self._scheduled += 1
        heapq.heappush(self._ahead, (max(time_seconds, self.now), self._scheduled, action))

    def every(self, period_seconds: float, action: Callable[[], object]) -> None:
        """Run `action` every `period_seconds`, for the first time one period from now."""

        def happen() -> None:
            action()
            self.schedule(period_seconds, happen)

        self.schedule(period_seconds, happen)

    def run_until(self, time_seconds: float) -> None:
        """Run everything that is due up to and at `time_seconds`, which is the time afterwards."""
        ahead = self._ahead
        while ahead and ahead[0][0] <= time_seconds:
            self.now, _, action = heapq.heappop(ahead)
            action()
        self.now = max(self.now, time_seconds)


class WallClockRunner:
    """A thread that moves a virtual clock along with the wall clock, `speed_up` times as fast.

    With `source` it moves it to what that returns instead: how many seconds of the virtual clock are to have passed.
    Other threads change what the clock drives by `call`, at the present moment; to read it, holding `lock` is enough.
    `after_tick` is called in the thread, without the lock. `failure` is the exception that ended the thread, None while
    it runs.
    """

    def __init__(
        self,
        clock: VirtualClock,
        *,
        speed_up: float = 1.0,
        source: Callable[[], float] | None = None,
        after_tick: Callable[[], object] = lambda: None,
    ) -> None:
        if not _SLOWEST <= speed_up <= _FASTEST:
            raise UsageError(f"speed-up is {speed_up!r}, expected a number from {_SLOWEST:g} to {_FASTEST:g}")
        self.lock = threading.Lock()
        self.failure: BaseException | None = None
        self._clock = clock
        self._speed_up = speed_up
        self._source = source
        self._after_tick = after_tick
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._followers = 0
        self._counting = threading.Lock()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="servescope-emulator", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the runner has ended, at most `seconds`; True when it has."""
        return self._ended.wait(seconds)

    def close(self) -> None:
        """Stop time; returns when the thread has ended. Without effect on one that never started."""
        self._ended.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._refuse_calls()

    def call(self, action: Callable[[], _Result]) -> Future[_Result]:
        """Run `action` in the clock's thread once the emulation has reached the present moment; for any thread.

        What it returns or raises is the future's. When the emulation has ended, the future raises ServescopeError.
        """
        future: Future[_Result] = Future()
        self._calls.append((future, action))
        self._wake.set()
        if self._ended.is_set():
            self._refuse_calls()
        return future

    @contextmanager
    def following(self) -> Iterator[None]:
        """Advance in short steps while a client is within, so that events happen when they are due."""
        # A lock of its own: a client must not wait for a step to end.
        with self._counting:
            self._followers += 1
        self._wake.set()
        try:
            yield
        finally:
            with self._counting:
                self._followers -= 1

    def _run(self) -> None:
        try:
            self._follow()
        except ServescopeError as failure:
            self.failure = failure
        except Exception as failure:
            # A bug of ours must not leave a server that answers with a stopped clock: every call raises `failure`.
            self.failure = failure
            logger.exception("the emulation stopped")
        finally:
            self._ended.set()
            self._refuse_calls()

    def _follow(self) -> None:
        wall, virtual, warned = time.monotonic(), self._clock.now, False
        while not self._ended.is_set():
            self._wake.wait(_FINE_TICK_SECONDS if self._followers else _TICK_SECONDS)
            self._wake.clear()
            target = self._source() if self._source else virtual + (time.monotonic() - wall) * self._speed_up
            while self._clock.now < target and not self._ended.is_set():
                step = min(_TICK_SECONDS * self._speed_up, _LONGEST_STEP_SECONDS)
                self._advance(min(target, self._clock.now + step))
            self._answer_calls()
            self._after_tick()
            lag = time.monotonic() - wall - (target - virtual) / self._speed_up
            if lag > _FORGIVEN_LAG_SECONDS and self._source is None:
                wall, virtual = time.monotonic(), self._clock.now
                if not warned:
                    logger.warning("this machine cannot keep up with speed-up %g; time passes slower", self._speed_up)
                    warned = True

    def _advance(self, time_seconds: float) -> None:
        with self.lock:
            self._clock.run_until(time_seconds)

    def _answer_calls(self) -> None:
        # Those that come while others are answered have their turn after the next step.
        for _ in range(len(self._calls)):
            future, action = self._calls.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                with self.lock:
                    result = action()
            except Exception as error:
                # Raised in the thread that called; the clock continues.
                future.set_exception(error)
            else:
                future.set_result(result)

    def _refuse_calls(self) -> None:
        while True:
            try:
                future, _ = self._calls.popleft()
            except IndexError:
                return
            if future.set_running_or_notify_cancel():
                future.set_exception(ServescopeError("the emulation has ended"))
