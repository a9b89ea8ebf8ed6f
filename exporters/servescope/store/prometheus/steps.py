"""A query at every step of a long time, and the series of a long time, in as many parts as their size needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from servescope.contract.samples import Labels
from servescope.store.prometheus.client import LateError, Prometheus, TooMuchError, Track

_POINTS = 400_000
_FIRST_STEPS, _MOST_STEPS = 12, 600
# A Prometheus that does not answer in time is asked for less so many times, as it may not answer at all.
_PATIENCE = 2
_SHORTEST_SPAN_MS = 3_600_000


def read_steps(prometheus: Prometheus, expression: str, first_ms: int, last_ms: int, step_ms: int) -> Iterator[Track]:
    """The expression at every step from first to last, both included; a series comes once in each part.

    The first part is short; the next ones have so many steps that their series have about `_POINTS` values.
    """
    steps, patience = _FIRST_STEPS, _PATIENCE
    while first_ms <= last_ms:
        end_ms = min(first_ms + (steps - 1) * step_ms, last_ms)
        try:
            tracks = prometheus.query_range(expression, start_ms=first_ms, end_ms=end_ms, step_ms=step_ms)
        except TooMuchError as error:
            patience -= isinstance(error, LateError)
            if steps == 1 or patience < 0:
                raise
            steps = max(1, steps // 4)
            continue
        yield from tracks
        first_ms = end_ms + step_ms
        steps = min(_MOST_STEPS, max(1, _POINTS // max(1, len(tracks))))


def read_series(prometheus: Prometheus, selectors: Sequence[str], *, start_ms: int, end_ms: int) -> Iterator[Labels]:
    """The labels of every series that a selector matches and that has samples between start and end.

    Where they are too many for one answer they are read in halves of the time, in which the same may come again.
    """
    try:
        found = prometheus.series(selectors, start_ms=start_ms, end_ms=end_ms)
    except LateError:
        raise  # one that does not answer at all would be waited for once for each part
    except TooMuchError:
        if end_ms - start_ms < _SHORTEST_SPAN_MS:
            raise
        middle = (start_ms + end_ms) // 2
        yield from read_series(prometheus, selectors, start_ms=start_ms, end_ms=middle)
        yield from read_series(prometheus, selectors, start_ms=middle, end_ms=end_ms)
    else:
        yield from found
