"""Points in requests of a size that the destination takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from servescope.customers.points.points import StreamPoint
from servescope.web.posting import SendError

CountBytes = Callable[[Iterable[StreamPoint]], Iterator[int]]


def split(points: Sequence[StreamPoint], most_bytes: int, count_bytes: CountBytes) -> list[Sequence[StreamPoint]]:
    """The points in their order, in runs that `count_bytes` finds no larger; one that is larger alone has its own."""
    batches, start = [], 0
    while start < len(points):
        room, end = most_bytes, start
        for size in count_bytes(islice(points, start, None)):
            room -= size
            if room < 0 and end > start:
                break
            end += 1
        batches.append(points[start:end])
        start = end
    return batches


class BatchLimit:
    """The largest request of a destination before compression: as configured, and less where that was too large."""

    def __init__(self, most_bytes: int, count_bytes: CountBytes) -> None:
        self.most_bytes = most_bytes
        self._count_bytes = count_bytes

    def split(self, points: Sequence[StreamPoint]) -> list[Sequence[StreamPoint]]:
        """The points as requests."""
        return split(points, self.most_bytes, self._count_bytes)

    def lower(self, points: Sequence[StreamPoint], message: str) -> SendError:
        """The error of a request that was too large: to be split anew, unless it was of one point."""
        retryable = len(points) > 1
        if retryable:
            self.most_bytes = min(self.most_bytes, max(sum(self._count_bytes(points)) // 2, 1))
            message += f"; requests are split to at most {self.most_bytes} bytes from now on"
        return SendError(message, reason="too_large", retryable=retryable, after_seconds=0.0 if retryable else None)


def count_utf8(text: str) -> int:
    """The bytes of a text."""
    return len(text) if text.isascii() else len(text.encode())
