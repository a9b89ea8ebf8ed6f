"""Queries at every step of a long time, and the series of a long time, in as many parts as their size needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from servescope.contract.samples import Labels
from servescope.store.prometheus.client import LateError, Prometheus, TooMuchError, Track

POINTS: Final = 400_000
"""About how many values an answer has, where it can be chosen."""
AT_ONCE: Final = 4
"""How many queries are asked at the same time; a Prometheus evaluates 20 unless it is told otherwise."""
_FIRST_STEPS, _MOST_STEPS = 12, 600
# A Prometheus that does not answer in time is asked for less so many times, as it may not answer at all.
_PATIENCE = 2
_SHORTEST_SPAN_MS = 3_600_000

T = TypeVar("T")
E = TypeVar("E")


class SizedQuery(NamedTuple):
    """An expression, and about how many series it has."""

    expression: str
    series: int


def at_once(ask: Callable[[E], T], elements: Iterable[E]) -> Iterator[T]:
    """What `ask` returns for each element, in their order, of which `AT_ONCE` are asked for at the same time."""
    begun: deque[Future[T]] = deque()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for element in elements:
            if len(begun) == AT_ONCE:
                yield begun.popleft().result()
            begun.append(threads.submit(ask, element))
        while begun:
            yield begun.popleft().result()


def read_each(
    prometheus: Prometheus, asked: Sequence[SizedQuery], first_ms: int, last_ms: int, step_ms: int
) -> Iterator[tuple[int, list[Track]]]:
    """The number of each expression, and its series at every step from first to last, both included, in parts."""

    def parts() -> Iterator[tuple[int, str, int, int]]:
        for number, (expression, series) in enumerate(asked):
            reach_ms = min(_MOST_STEPS, max(1, POINTS // max(1, series))) * step_ms
            for begin_ms in range(first_ms, last_ms + 1, reach_ms):
                yield number, expression, begin_ms, min(begin_ms + reach_ms - step_ms, last_ms)

    def read(part: tuple[int, str, int, int]) -> tuple[int, list[Track]]:
        number, expression, begin_ms, end_ms = part
        tracks = read_steps(prometheus, expression, begin_ms, end_ms, step_ms, first_steps=_MOST_STEPS)
        return number, list(tracks)

    return at_once(read, parts())


def read_steps(
    prometheus: Prometheus,
    expression: str,
    first_ms: int,
    last_ms: int,
    step_ms: int,
    *,
    first_steps: int = _FIRST_STEPS,
) -> Iterator[Track]:
    """The expression at every step from first to last, both included; a series comes once in each part.

    The first part is short; the next ones have so many steps that their series have about `POINTS` values.
    """
    steps, patience = first_steps, _PATIENCE
    while first_ms <= last_ms:
        end_ms = min(first_ms + (steps - 1) * step_ms, last_ms)
        try:
            tracks = prometheus.query_range(expression, start_ms=first_ms, end_ms=end_ms, step_ms=step_ms)
        except TooMuchError as error:
            patience -= isinstance(error, LateError)
            if end_ms == first_ms or patience < 0:
                raise
            steps = max(1, ((end_ms - first_ms) // step_ms + 1) // 4)
            continue
        yield from tracks
        first_ms = end_ms + step_ms
        steps = min(_MOST_STEPS, max(1, POINTS // max(1, len(tracks))))


def read_series(
    prometheus: Prometheus, selectors: Sequence[str], *, start_ms: int, end_ms: int, by: Sequence[str] = ()
) -> Iterator[Labels]:
    """The labels of every series that a selector matches and that has samples between start and end.

    Where they are too many for one answer they are read in halves of the time, in which the same may come again. With
    `by`, one series for each combination of values of these labels.
    """
    try:
        found = prometheus.series(selectors, start_ms=start_ms, end_ms=end_ms, by=by)
    except LateError:
        raise  # one that does not answer at all would be waited for once for each part
    except TooMuchError:
        if end_ms - start_ms < _SHORTEST_SPAN_MS:
            raise
        middle = (start_ms + end_ms) // 2
        yield from read_series(prometheus, selectors, start_ms=start_ms, end_ms=middle, by=by)
        yield from read_series(prometheus, selectors, start_ms=middle, end_ms=end_ms, by=by)
    else:
        yield from found
