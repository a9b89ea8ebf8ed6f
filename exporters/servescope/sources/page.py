"""A page whose layout is known, and the limits of one.

A target exposes the same lines at every scrape, with other values. `LearnedPage` keeps the layout of a body and reads
the values of the next one by comparing, without parsing it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import compress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.samples import Series
from servescope.sources.grammar import TAILS, VALUE_CHARACTERS


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLimits:
    """How much a body may hold: samples, labels of each, bytes of a label's name or value, bytes of a line."""

    max_series: int = 20_000
    max_labels: int = 64
    max_label_bytes: int = 4096
    max_line_bytes: int = 65_536

    def by_name(self) -> dict[str, int]:
        """These limits alone, whatever else a subclass holds."""
        return {each.name: getattr(self, each.name) for each in fields(PageLimits)}


DEFAULT_LIMITS: Final = PageLimits()


class LearnedPage:
    """The layout of a body: its lines without samples, and the heads of the others, which end where a value begins.

    `series` are those of its n samples in their order, also where the value is NaN or infinite.
    """

    __slots__ = ("_fixed_bytes", "_heads", "_is_other", "_is_sample", "_longest_head", "_others", "series")

    def __init__(self, is_sample: bytearray, others: Sequence[bytes], heads: Sequence[bytes], series: list[Series]):
        self.series: Final = tuple(series)
        self._heads = tuple(heads)
        self._others = tuple(others)
        self._is_sample = bytes(is_sample)
        self._is_other = self._is_sample.translate(bytes((1, 0)) + bytes(254))
        self._fixed_bytes = sum(map(len, (*heads, *others))) + len(is_sample) - 1
        self._longest_head = max(map(len, heads), default=0)

    @property
    def layout(self) -> tuple[bytes, tuple[bytes, ...], tuple[bytes, ...]]:
        """What two pages have in common that read the same bodies in the same way."""
        return self._is_sample, self._heads, self._others

    def read(self, body: bytes, limits: PageLimits | None = None) -> NDArray[np.float64] | None:
        """The (n,) values of a body of this layout, NaN and infinities included.

        None when the body has another layout, is no exposition, or is beyond the limits that the page was learned
        under: then call `learn_page`.
        """
        # At most one part more than expected is split off, however many lines there are.
        lines = body.split(b"\n", len(self._is_sample))
        if len(lines) != len(self._is_sample) or tuple(compress(lines, self._is_other)) != self._others:
            return None
        rests = list(map(bytes.removeprefix, compress(lines, self._is_sample), self._heads))
        text = b"\n".join(rests)
        # removeprefix leaves a line that has another head whole, so the text is longer than expected.
        if len(text) - max(len(rests) - 1, 0) != len(body) - self._fixed_bytes:
            return None
        if limits is not None and not self._fits(lines, len(text), limits):
            return None
        if text.translate(None, VALUE_CHARACTERS + b"\n"):
            # A match is the whole of its line, so as many matches as lines are all the lines.
            values = TAILS.findall(text + b"\n")
            if len(values) != len(rests) or b"".join(values).translate(None, VALUE_CHARACTERS):
                return None
            rests = values
        try:
            return np.fromiter(map(float, rests), np.float64, len(rests))
        except ValueError:
            return None

    def _fits(self, lines: list[bytes], rest_bytes: int, limits: PageLimits) -> bool:
        return self._longest_head + rest_bytes <= limits.max_line_bytes or max(map(len, lines)) <= limits.max_line_bytes
