"""The cache of parsed lines that all targets share."""

from __future__ import annotations

import threading

from servescope.contract.samples import Labels, Series

_MOST_BYTES = 16_000_000
_ENTRY_BYTES = 300  # about what a line takes beside its text
_LINE_BYTES = 120  # about the text of a line
# Of a generation, however few series there are: targets that are read one after the other share what they expose.
_LEAST_BYTES = 500_000


class _Generation:
    """Entries that were added or used since the generation began; `room` is the bytes left."""

    __slots__ = ("heads", "lines", "pairs", "room", "texts")

    def __init__(self, room: int) -> None:
        self.room = room
        self.heads: dict[bytes, tuple[bytes, Series]] = {}
        self.texts: dict[str, str] = {}
        self.pairs: dict[tuple[str, str], tuple[str, str]] = {}
        self.lines: dict[bytes, bytes] = {}


class SeriesCache:
    """The series of lines that were read before, kept once for all targets that expose them; bounded.

    An entry that is not used for a generation is dropped, so targets that left take no memory. A generation ends when
    its entries fill half of `most_bytes`, or about as much as all series in memory take (`resize`). Thread safe.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = self._generation_bytes = most_bytes // 2
        # Held while generations change; what another thread adds meanwhile is in one of them, or is parsed again.
        self._changing = threading.Lock()
        self._now, self._before = _Generation(self._generation_bytes), _Generation(0)

    def resize(self, series: int) -> None:
        """Make a generation no larger than so many series take, which are all that are in memory now."""
        fitting = min(max(series * (_ENTRY_BYTES + _LINE_BYTES), _LEAST_BYTES), self._most_bytes)
        with self._changing:
            self._now.room += fitting - self._generation_bytes
            self._generation_bytes = fitting

    def get(self, head: bytes) -> tuple[bytes, Series] | None:
        """The head, and the series of lines that begin with it; None when it is not in the cache."""
        known = self._now.heads.get(head)
        if known is None:
            known = self._before.heads.get(head)
            if known is not None:
                self._make_room(head)
                self._now.heads[head] = known
        return known

    def add(self, head: bytes, name: str, labels: Labels) -> tuple[bytes, Series]:
        """Add a head and its series."""
        self._make_room(head)
        name = self._now.texts.setdefault(name, self._before.texts.get(name, name))
        known = self._now.heads[head] = head, Series(name, labels)
        return known

    def intern_labels(self, labels: Labels) -> Labels:
        """Equal labels, made of pairs that are kept once."""
        now, before = self._now.pairs, self._before.pairs
        return tuple([now.get(pair) or now.setdefault(pair, before.get(pair, pair)) for pair in labels])

    def intern_line(self, line: bytes) -> bytes:
        """An equal line, kept once; for lines without a sample."""
        known = self._now.lines.get(line)
        if known is None:
            self._make_room(line)
            known = self._now.lines[line] = self._before.lines.get(line, line)
        return known

    def _make_room(self, text: bytes) -> None:
        with self._changing:
            self._now.room -= len(text) + _ENTRY_BYTES
            if self._now.room < 0:
                self._before, self._now = self._now, _Generation(self._generation_bytes)
