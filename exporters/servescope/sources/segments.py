"""The segments of a source: which of its labels separates tenants, routes or priorities, and how many it may have."""

from __future__ import annotations

from servescope.contract.metrics import MOST_SEGMENTS, OTHER_SEGMENT, SEGMENT
from servescope.contract.samples import Labels


class SegmentNames:
    """The segments of one target by its native label `label`.

    The first `MOST_SEGMENTS` values keep their names, for as long as this is there, so that no counter changes its
    name; all others are `other`, and their series are added.
    """

    def __init__(self, label: str = SEGMENT) -> None:
        self.label = label
        self._known: dict[str, None] = {}

    def rename(self, native: Labels) -> Labels:
        """The labels of a native series, that of the segment under the contract's name."""
        return tuple(self._rename(label, value) for label, value in native)

    def _rename(self, label: str, value: str) -> tuple[str, str]:
        if label == self.label:
            return SEGMENT, self._value(value)
        return (f"exported_{label}" if label == SEGMENT else label), value

    def _value(self, value: str) -> str:
        if value in self._known or value == OTHER_SEGMENT or not value:
            return value
        if len(self._known) >= MOST_SEGMENTS:
            return OTHER_SEGMENT
        self._known[value] = None
        return value
