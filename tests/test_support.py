"""Waiting, as every test does it: for a condition, with a deadline that grows with the machine's slowness."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import slowness, waiting
from tests.support.busy import run_busy
from tests.support.waiting import NotInTimeError, wait_for, wait_for_async
from tests.support.workers import slow_files_first


def test_the_first_true_value_is_returned() -> None:
    """The condition is asked again while it returns nothing or raises what is ignored."""
    answers = iter([None, ZeroDivisionError(), [], ["figures"]])

    def look() -> list[str] | None:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert wait_for(look, "figures", ignoring=(ZeroDivisionError,)) == ["figures"]


def test_what_did_not_come_is_named() -> None:
    """With the seconds waited, what was seen last, and nothing else that was raised hidden."""
    with pytest.raises(NotInTimeError, match=r"waited for two targets: not within 0 s; last seen: \[\]"):
        wait_for(list, "two targets", seconds=0)
    with pytest.raises(NotInTimeError, match=r"waited for a number: .*last seen: ZeroDivisionError\("):
        wait_for(lambda: 1 / 0, "a number", ignoring=(ZeroDivisionError,), seconds=0)
    with pytest.raises(ZeroDivisionError):
        wait_for(lambda: 1 / 0, "a number")


def test_a_process_that_ended_is_not_waited_for(tmp_path: Path) -> None:
    """Its code and the end of its log are in the message; what held at its end still counts."""
    log = tmp_path / "collect.log"
    log.write_text("starting\nno disk\n", encoding="utf-8")
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])

    with pytest.raises(NotInTimeError, match=r"(?s)ended with code 3.*no disk"):
        wait_for(lambda: None, "a page", process=process, log=log)
    assert wait_for(lambda: process.poll() == 3, "the code", process=process)


def test_tasks_wait_as_threads_do() -> None:
    """The loop goes on meanwhile."""
    assert asyncio.run(wait_for_async([7, 0, 0].pop, "a number")) == 7


def test_deadlines_grow_with_the_measured_slowness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six times slower, six times longer; the environment variable passes the measurement on."""
    monkeypatch.setenv(slowness.VARIABLE, "6.00")

    assert slowness.slowness() == 6
    assert waiting.deadline_seconds(10) == 60
    assert waiting.timeout_of_a_test() == 6 * waiting.TEST_SECONDS


def test_the_slowness_is_measured_once_and_never_below_usual_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is faster waits as long as the usual one."""
    monkeypatch.delenv(slowness.VARIABLE)
    seconds = iter([1e-6] * 5)
    monkeypatch.setattr(slowness, "_loop_seconds", lambda: next(seconds))

    assert slowness.slowness() == 1
    assert slowness.slowness() == 1
    assert os.environ[slowness.VARIABLE] == "1.00"


class _Item(NamedTuple):
    """What the order of tests depends on."""

    path: str
    is_slow: bool

    def get_closest_marker(self, name: str) -> str | None:
        return name if name == "slow" and self.is_slow else None


def test_files_with_slow_tests_come_first_whole() -> None:
    """A quick test of such a file comes with it; files and their tests otherwise keep their order."""
    items = [_Item("a", False), _Item("b", False), _Item("b", True), _Item("c", False), _Item("d", True)]

    assert slow_files_first(items) == [items[1], items[2], items[4], items[0], items[3]]


def test_a_busy_command_keeps_its_exit_code() -> None:
    """That of the command, not of the loops beside it."""
    assert run_busy([sys.executable, "-c", "raise SystemExit(3)"]) == 3
