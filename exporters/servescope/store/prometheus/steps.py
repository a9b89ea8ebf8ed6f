"""A query at every step of a long time, in as many parts as its size needs."""

from __future__ import annotations

from collections.abc import Iterator

from servescope.store.prometheus.client import LateError, Prometheus, TooMuchError, Track

_POINTS = 400_000
_FIRST_STEPS, _MOST_STEPS = 12, 600
# A Prometheus that does not answer in time is asked for less so many times, as it may not answer at all.
_PATIENCE = 2


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
