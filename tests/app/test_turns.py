"""Runs of the pages' scripts take turns: so many at once, in order, and none that nobody wants any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

from app.turns import Turns, UnwantedError
from tests.support.waiting import deadline_seconds, wait_for

MOST = 3


@dataclass
class Run:
    """A thread that takes a turn, and holds it until it is ended."""

    number: int
    end: threading.Event = field(default_factory=threading.Event)
    wanted: bool = True
    waits: bool = False
    result: Future[None] | None = None

    def is_wanted(self) -> bool:
        """Whether the session of this run is open; asked by who waits."""
        self.waits = True
        return self.wanted

    def error(self) -> BaseException | None:
        """What the run ended with."""
        assert self.result is not None
        return self.result.exception(deadline_seconds())


class Runs:
    """Runs that take turns, `begun` by their numbers."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.turns = Turns(MOST)
        self.begun: list[int] = []
        self.started: dict[int, Run] = {}
        self._pool = pool

    def start(self, number: int, then: Callable[[], None] = lambda: None) -> Run:
        """A run that does `then` with its turn; it waits, or has begun, when this returns."""
        started = self.started[number] = Run(number)

        def run() -> None:
            with self.turns.take(started.is_wanted):
                self.begun.append(number)
                then()
                started.end.wait(deadline_seconds())

        started.result = self._pool.submit(run)
        wait_for(lambda: number in self.begun or started.waits, f"run {number}")
        return started

    def end(self, *numbers: int) -> None:
        """Have these runs give their turns back."""
        for number in numbers:
            self.started[number].end.set()


@pytest.fixture
def runs() -> Iterator[Runs]:
    """Runs that are all ended with the test."""
    with ThreadPoolExecutor(20) as pool:
        started = Runs(pool)
        yield started
        started.end(*started.started)


def test_so_many_run_at_once_and_the_others_in_order(runs: Runs) -> None:
    """The fourth waits until one of the first three has ended; whoever came first goes first."""
    for number in range(6):
        runs.start(number)
    assert sorted(runs.begun) == [0, 1, 2]

    runs.end(1)
    wait_for(lambda: len(runs.begun) == 4, "the next run")
    runs.end(0, 2)
    wait_for(lambda: len(runs.begun) == 6, "the last runs")

    assert runs.begun[3] == 3


def test_what_a_closed_session_asked_for_is_dropped(runs: Runs) -> None:
    """A run whose session closes while it waits never begins, and those behind it move up."""
    started = [runs.start(number) for number in range(6)]
    for closed in started[3:5]:
        closed.wanted = False
        assert isinstance(closed.error(), UnwantedError)

    runs.end(0)
    wait_for(lambda: 5 in runs.begun, "the run behind them")
    assert len(runs.begun) == 4


def test_a_run_takes_one_turn(runs: Runs) -> None:
    """A fragment within a run goes on with the turn of the run, while all turns are taken."""
    within: list[int] = []

    def run_fragment() -> None:
        with runs.turns.take(lambda: False):
            within.append(1)

    for number in range(MOST - 1):
        runs.start(number)
    runs.start(MOST - 1, run_fragment)
    wait_for(lambda: within, "the fragment")
    runs.start(MOST)
    assert MOST not in runs.begun

    runs.end(MOST - 1)
    wait_for(lambda: MOST in runs.begun, "the next run")


def test_a_run_that_fails_gives_its_turn_back(runs: Runs) -> None:
    """A page's error, or a newer request that interrupts it, leaves no turn taken."""

    def fail() -> None:
        raise ValueError("a page's error")

    for number in range(10):
        assert isinstance(runs.start(number, fail).error(), ValueError)

    assert runs.begun == list(range(10))


@pytest.mark.parametrize("closes", [False, True])
def test_a_long_run_lets_others_go_first(runs: Runs, *, closes: bool) -> None:
    """In its middle a long run passes its turn on and waits for another one; its session may close meanwhile."""
    middle, again = threading.Event(), threading.Event()

    def pass_on() -> None:
        middle.wait(deadline_seconds())
        runs.turns.pass_on(lambda: runs.started[0].wanted)
        again.set()

    long = runs.start(0, pass_on)
    for number in range(1, MOST + 1):
        runs.start(number)
    middle.set()
    wait_for(lambda: MOST in runs.begun, "the run that waited")
    assert not again.is_set()

    if closes:
        long.wanted = False
        assert isinstance(long.error(), UnwantedError)
    runs.end(1)
    if not closes:
        assert again.wait(deadline_seconds())
    runs.end(*runs.started)
    for number in range(10, 10 + MOST + 1):
        runs.start(number)
    wait_for(lambda: len(runs.begun) == 2 * MOST + 1, "as many turns as before")
    assert runs.started[10 + MOST].waits


def test_a_run_with_nobody_behind_it_keeps_its_turn(runs: Runs) -> None:
    """Passing on costs nothing while nobody waits."""
    asked: list[bool] = []

    def is_wanted() -> bool:
        asked.append(True)
        return True

    runs.start(0, lambda: runs.turns.pass_on(is_wanted))
    assert asked == []
