"""Buffers: what callers append is booked once, in order, and never piles up. Trailing sums forget in time."""

from __future__ import annotations

import threading

from servescope.instruments.ledger import Trailing
from servescope.instruments.record_buffer import DROP_BEYOND, FOLD_AT_MOST, FOLD_EVERY, Mark, RecordBuffer
from servescope.instruments.testing import FakeClock


class Booked:
    """Where a buffer under test books to."""

    def __init__(self, **options: object) -> None:
        self.records: list[int] = []
        self.marks: list[Mark] = []
        self.dropped = 0
        self.lock = threading.Lock()
        self.buffer: RecordBuffer[int] = RecordBuffer(self._book, lock=self.lock, on_drop=self._drop, **options)  # type: ignore[arg-type]

    def fold(self) -> None:
        with self.lock:
            self.buffer.fold()

    def _book(self, records: list[int], marks: list[Mark]) -> None:
        self.marks += [(len(self.records) + count, time) for count, time in marks]
        self.records += records

    def _drop(self) -> None:
        self.dropped += 1


def test_a_fold_books_every_record_once_in_order() -> None:
    """Records are booked in the order of appending, and a second fold books nothing again."""
    booked = Booked()
    for number in range(10):
        booked.buffer.write(number)
    booked.fold()
    booked.fold()
    assert booked.records == list(range(10))


def test_a_fold_ends_though_a_record_was_dropped_meanwhile() -> None:
    """A thread that drops takes a record back which the fold had counted: the fold does not wait for another."""
    booked: list[int] = []

    def book(records: list[int], _: list[Mark]) -> None:
        if not records:
            raise AssertionError("the fold goes on with nothing to book")
        booked.extend(records)
        if len(booked) == len(records):
            buffer.records.pop()

    buffer: RecordBuffer[int] = RecordBuffer(book, lock=threading.Lock())
    for number in range(FOLD_AT_MOST + 1):
        buffer.append(number)
    buffer.fold()
    assert booked == list(range(FOLD_AT_MOST))


def test_a_caller_folds_once_enough_records_have_come() -> None:
    """Nobody reads, and still no more than a fold's records wait."""
    booked = Booked()
    for number in range(5 * FOLD_EVERY + 3):
        booked.buffer.write(number)
    assert booked.records == list(range(5 * FOLD_EVERY))
    assert len(booked.buffer.records) == 3


def test_many_threads_lose_nothing() -> None:
    """Eight threads that never pause, and a reader: every record is booked once, none is dropped."""
    booked = Booked()
    each = 20_000
    start = threading.Barrier(9)

    def hammer(first: int) -> None:
        start.wait()
        for number in range(first, first + each):
            booked.buffer.write(number)

    threads = [threading.Thread(target=hammer, args=(number * each,)) for number in range(8)]
    for thread in threads:
        thread.start()
    start.wait()
    while any(thread.is_alive() for thread in threads):
        booked.fold()
    booked.fold()
    assert booked.dropped == 0
    assert sorted(booked.records) == list(range(8 * each))


def test_a_stuck_fold_bounds_the_backlog_and_counts_what_it_drops() -> None:
    """While another thread holds the lock for good, memory stays bounded; what was kept is booked later."""
    booked = Booked()
    with booked.lock:
        booked.buffer.records.extend(range(DROP_BEYOND))
        kept = [booked.buffer.write(number) for number in range(DROP_BEYOND, DROP_BEYOND + 5)]
        assert len(booked.buffer.records) == DROP_BEYOND
    booked.fold()
    assert kept == [False] * 5
    assert booked.dropped == 5
    assert booked.records == list(range(DROP_BEYOND))


def test_a_buffer_without_on_drop_drops_nothing() -> None:
    """Records that others depend on stay, however many wait."""
    records: list[int] = []
    lock = threading.Lock()
    buffer: RecordBuffer[int] = RecordBuffer(lambda stretch, _: records.extend(stretch), lock=lock)
    with lock:
        buffer.records.extend(range(DROP_BEYOND))
        assert buffer.write(DROP_BEYOND)
    with lock:
        buffer.fold()
    assert records == list(range(DROP_BEYOND + 1))


def test_few_records_are_marked_one_by_one() -> None:
    """With a clock, each of the first records has its own time."""
    clock = FakeClock(0.0)
    booked = Booked(clock=clock)
    for number in range(3):
        clock.seconds = 10.0 * number
        booked.buffer.write(number)
    clock.seconds = 500.0
    booked.fold()
    assert booked.marks == [(1, 0.0), (2, 10.0), (3, 20.0)]


def test_many_records_are_marked_seldom_and_all_are_covered() -> None:
    """Marks grow rare with the backlog, close together they are merged, and the last one covers every record."""
    clock = FakeClock(0.0)
    booked = Booked(clock=clock, mark_seconds=1.0)
    for number in range(FOLD_EVERY - 1):
        clock.seconds += 0.01
        booked.buffer.write(number)
    booked.fold()
    assert len(booked.marks) <= 12
    assert booked.marks[-1][0] == FOLD_EVERY - 1
    assert booked.marks == sorted(booked.marks)


def test_marks_survive_a_fold_of_fewer_records() -> None:
    """A second fold's records get times of their own."""
    clock = FakeClock(5.0)
    booked = Booked(clock=clock)
    booked.buffer.write(0)
    booked.fold()
    clock.seconds = 7.0
    booked.buffer.write(1)
    booked.fold()
    assert booked.marks == [(1, 5.0), (2, 7.0)]


def test_a_trailing_sum_holds_the_window_and_no_more() -> None:
    """An amount counts up to the window's age, and not after it."""
    lately = Trailing(300.0)
    lately.add(1000.0, 5.0)
    assert lately.sum(1000.0) == 5.0
    assert lately.sum(1300.0) == 5.0
    assert lately.sum(1300.1) == 0.0


def test_what_came_together_leaves_together_with_its_latest_part() -> None:
    """Amounts less than a second apart in five minutes may be kept as one, never forgotten early."""
    lately = Trailing(300.0)
    lately.add(1000.0, 5.0)
    lately.add(1000.9, 5.0)
    assert lately.sum(1300.5) == 10.0
    assert lately.sum(1301.0) == 0.0


def test_a_trailing_sum_is_bounded() -> None:
    """A day of amounts a millisecond apart keeps no more than the window's resolution asks for."""
    lately = Trailing(300.0)
    for step in range(200_000):
        lately.add(step * 0.4, 1.0)
    assert len(lately._entries) <= 302
    assert abs(lately.sum(199_999 * 0.4) - 750) <= 5


def test_a_trailing_sum_survives_a_broken_clock() -> None:
    """An amount without a time is not counted, and does not stay for good."""
    lately = Trailing(300.0)
    lately.add(float("nan"), 5.0)
    lately.add(10.0, 1.0)
    lately.add(float("nan"), 5.0)
    assert lately.sum(10.0) == 1.0
