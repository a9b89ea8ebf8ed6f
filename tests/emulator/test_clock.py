"""Time in the emulator."""

from __future__ import annotations

import threading
import time

import pytest

from servescope.emulator.clock import VirtualClock, WallClockRunner
from servescope.errors import UsageError


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


def test_runner_follows_the_wall_clock() -> None:
    """With a speed-up of 1000, a thousand times as many seconds pass as outside, never more."""
    clock = VirtualClock()
    runner = WallClockRunner(clock, speed_up=1000.0)
    began = time.monotonic()
    runner.start()
    assert not runner.wait(0.5)
    runner.close()
    assert 100.0 < clock.now <= 1000.0 * (time.monotonic() - began)


def test_runner_keeps_the_failure_that_ended_it() -> None:
    """An event that raises ends the thread, which is noticed by whoever waits."""

    def fail() -> None:
        raise ValueError("broken event")

    clock = VirtualClock()
    clock.schedule(0.0, fail)
    runner = WallClockRunner(clock)
    runner.start()
    assert runner.wait(5.0)
    assert str(runner.failure) == "broken event"
    runner.close()


@pytest.mark.parametrize("speed_up", [0.0, -1.0, float("inf"), float("nan")])
def test_speed_up_must_be_above_zero(speed_up: float) -> None:
    """A speed-up that is no positive number is refused with its value."""
    with pytest.raises(UsageError, match=f"speed-up is {speed_up!r}"):
        WallClockRunner(VirtualClock(), speed_up=speed_up)


def test_runner_ends_however_fast_time_passes() -> None:
    """Time passes in short stretches: nobody waits for all of what a great speed-up makes due."""
    clock = VirtualClock()
    clock.every(1.0, lambda: None)
    runner = WallClockRunner(clock, speed_up=1e300)
    runner.start()
    assert not runner.wait(0.3)
    closing = threading.Thread(target=runner.close, daemon=True)
    closing.start()
    closing.join(5.0)

    assert not closing.is_alive()
