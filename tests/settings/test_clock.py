"""The clock that programs read: the machine's, or an emulation's."""

from __future__ import annotations

import time

import pytest

from servescope.errors import UsageError
from servescope.settings.clock import CLOCK_VARIABLE, ProgramClock, program_clock


def test_without_the_variable_it_is_the_clock_of_the_machine() -> None:
    """Also with an empty one."""
    before = time.time()
    assert before <= program_clock({}).now() <= time.time()
    assert program_clock({CLOCK_VARIABLE: ""}) == ProgramClock()


def test_an_emulation_passes_faster() -> None:
    """An hour of the machine is sixty of the clock, and another process that is given its text reads the same."""
    clock = ProgramClock(wall=time.time() - 3600, origin=1_700_000_000.0, speed=60.0)

    assert clock.now() == pytest.approx(1_700_000_000 + 216_000, abs=600)
    assert program_clock({CLOCK_VARIABLE: clock.describe()}) == clock


@pytest.mark.parametrize("text", ["fast", "1=2", "1=2*0", "1=2*1e9", "nan=1*2", "1..2=3*4", "1=2*20000"])
def test_a_clock_that_is_not_understood_is_refused(text: str) -> None:
    """With its value, and what was expected."""
    with pytest.raises(UsageError, match=f"SERVESCOPE_CLOCK is '{text.replace('*', '.')}', expected WALL=TIME"):
        program_clock({CLOCK_VARIABLE: text})
