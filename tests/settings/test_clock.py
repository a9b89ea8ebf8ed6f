"""The clock that programs read: the machine's, or an emulation's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from servescope.errors import UsageError
from servescope.settings.clock import CLOCK_VARIABLE, EmulatedTime, program_clock


def test_without_the_variable_it_is_the_clock_of_the_machine() -> None:
    """Also with an empty one."""
    before = time.time()
    assert before <= program_clock({}).now() <= time.time()
    assert program_clock({CLOCK_VARIABLE: ""}).speed == 1.0


def test_an_emulation_passes_faster_once_it_runs(tmp_path: Path) -> None:
    """Until its start its time is that of the start; then an hour of the machine is sixty of the clock."""
    path = tmp_path / "clock"
    EmulatedTime(time.time() + 9e6, 1_700_000_000.0, 60.0).write(path)
    clock = program_clock({CLOCK_VARIABLE: str(path)})
    before = clock.now(), clock.speed
    EmulatedTime(time.time() - 3600, 1_700_000_000.0, 60.0).write(path)

    assert before == (1_700_000_000.0, 60.0)
    assert clock.now() == pytest.approx(1_700_000_000 + 216_000, abs=600)
    path.unlink()
    assert clock.now() == pytest.approx(1_700_000_000 + 216_000, abs=600)


@pytest.mark.parametrize("text", ["fast", "1=2", "1=2*0", "1=2*1e9", "nan=1*2", "1..2=3*4", "1=2*20000"])
def test_a_clock_that_is_not_understood_is_refused(tmp_path: Path, text: str) -> None:
    """With its value, and what was expected."""
    path = tmp_path / "clock"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        program_clock({CLOCK_VARIABLE: str(path)})
    assert f"holds {text!r}, expected WALL=TIME*SPEED" in str(caught.value)


def test_a_clock_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """By its path."""
    with pytest.raises(UsageError, match="SERVESCOPE_CLOCK: cannot read"):
        program_clock({CLOCK_VARIABLE: str(tmp_path / "none")})
