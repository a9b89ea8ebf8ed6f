"""Time in the emulator."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from servescope.emulator import clock as clock_module
from servescope.emulator.clock import VirtualClock, WallClockRunner
from servescope.errors import ServescopeError, UsageError
from tests.support.waiting import deadline_seconds, wait_for


def test_events_happen_in_order_of_time_then_of_scheduling() -> None:
    """Earlier events come first, and those of one moment in the order they were scheduled in."""
    clock, seen = VirtualClock(), []
    clock.schedule(2.0, lambda: seen.append(("late", clock.now)))
    clock.schedule(1.0, lambda: seen.append(("first", clock.now)))
    clock.schedule(1.0, lambda: seen.append(("second", clock.now)))
    clock.run_until(1.5)
    assert seen == [("first", 1.0), ("second", 1.0)]
    assert clock.read() == 1.5
    clock.run_until(2.0)
    assert seen[-1] == ("late", 2.0)


def test_events_may_schedule_events() -> None:
    """An event that schedules another within the time to run sees it happen too; a negative delay is none."""
    clock, seen = VirtualClock(), []
    clock.schedule(1.0, lambda: clock.schedule(-5.0, lambda: seen.append(clock.now)))
    clock.run_until(1.0)
    assert seen == [1.0]


def test_every_repeats() -> None:
    """A periodic action happens once per period, for the first time after one."""
    clock, seen = VirtualClock(), []
    clock.every(5.0, lambda: seen.append(clock.now))
    clock.run_until(16.0)
    assert seen == [5.0, 10.0, 15.0]


class WallClock:
    """The monotonic clock of the runner, which the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        monkeypatch.setattr(clock_module, "time", SimpleNamespace(monotonic=lambda: self.seconds))


def test_runner_follows_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a speed-up of 1000 the clock advances a thousand times as far as the wall clock, and no further."""
    clock, wall = VirtualClock(), WallClock(monkeypatch)
    runner = WallClockRunner(clock, speed_up=1000.0)
    runner.start()
    assert runner.call(clock.read).result(deadline_seconds()) == 0.0
    wall.seconds = 0.25
    wait_for(lambda: clock.now >= 250.0, "250 emulated seconds")
    assert runner.call(clock.read).result(deadline_seconds()) == 250.0
    runner.close()


def test_runner_keeps_the_failure_that_ended_it() -> None:
    """An event that raises ends the thread, which is noticed by whoever waits."""

    def fail() -> None:
        raise ValueError("broken event")

    clock = VirtualClock()
    clock.schedule(0.0, fail)
    runner = WallClockRunner(clock)
    runner.start()
    assert runner.wait(deadline_seconds())
    assert str(runner.failure) == "broken event"
    runner.close()


@pytest.mark.parametrize("speed_up", [0.0, -1.0, float("inf"), float("nan")])
def test_speed_up_must_be_above_zero(speed_up: float) -> None:
    """A speed-up that is no positive number is refused with its value."""
    with pytest.raises(UsageError, match=f"speed-up is {speed_up!r}"):
        WallClockRunner(VirtualClock(), speed_up=speed_up)


def test_runner_ends_however_fast_time_passes() -> None:
    """Time passes in short steps: the end does not wait for everything that a great speed-up makes due."""
    clock = VirtualClock()
    clock.every(1.0, lambda: None)
    runner = WallClockRunner(clock, speed_up=1e6)
    runner.start()
    wait_for(lambda: clock.now > 0, "the first step")
    closing = threading.Thread(target=runner.close, daemon=True)
    closing.start()
    closing.join(deadline_seconds())

    assert not closing.is_alive()


def test_runner_does_what_it_is_asked_at_the_moment_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is done between two events, at the present moment, and its result or error comes back."""
    clock, wall = VirtualClock(), WallClock(monkeypatch)
    runner = WallClockRunner(clock)
    runner.start()
    assert runner.call(clock.read).result(deadline_seconds()) == 0.0
    wall.seconds = 0.0625
    assert runner.call(clock.read).result(deadline_seconds()) == 0.0625
    with pytest.raises(ZeroDivisionError):
        runner.call(lambda: 1 / 0).result(deadline_seconds())
    runner.close()


def test_runner_that_has_ended_does_nothing_more() -> None:
    """A call to a closed one raises at once, and so does one that was still waiting."""
    runner = WallClockRunner(VirtualClock())
    waiting = runner.call(lambda: None)
    runner.close()
    for future in (waiting, runner.call(lambda: None)):
        with pytest.raises(ServescopeError, match="the emulation has ended"):
            future.result(deadline_seconds())


def test_runner_steps_finely_while_a_client_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events come when they are due while a client follows, and do not wait for the next tick."""
    monkeypatch.setattr(clock_module, "_TICK_SECONDS", 3600.0)
    clock = VirtualClock()
    came: list[float] = []
    clock.every(0.01, lambda: came.append(clock.now))
    runner = WallClockRunner(clock)
    runner.start()
    with runner.following():
        wait_for(lambda: len(came) > 20, "events while a client follows")
    runner.close()
