"""Values by label sets as arrays, with which alerts are evaluated: the label sets of a fleet rarely change."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from servescope.contract.expressions import Matchers, Vector, matches
from servescope.contract.samples import Labels, pick_labels

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Found = TypeVar("Found")

_RESTRICTED: Final = 1 << 15
_MOST_REMEMBERED: Final = 32


class Keys:
    """Label sets, in the order of the values that belong to them; remembers how they match others."""

    __slots__ = ("_remembered", "labels")

    def __init__(self, labels: Sequence[Labels]) -> None:
        self.labels = list(labels)
        # By what was asked; what is asked about others holds them, so that they are the same objects.
        self._remembered: dict[Hashable, tuple[Keys, Rows]] = {}

    def updated(self, labels: list[Labels]) -> Keys:
        """The keys of some label sets: these where they are the same."""
        return self if labels == self.labels else Keys(labels)

    def restricted(self, by: tuple[str, ...]) -> Keys:
        """Each with only the labels in `by`."""
        known = self._remembered.get(by)
        if known is None:
            known = self._remember(by, Keys([restrict(labels, by) for labels in self.labels]), _NO_ROWS)
        return known[0]

    def labelled(self, pair: tuple[str, str]) -> Keys:
        """Each with one more label."""
        known = self._remembered.get(("labelled", pair))
        if known is None:
            known = self._remember(
                ("labelled", pair), Keys([tuple(sorted((*labels, pair))) for labels in self.labels]), _NO_ROWS
            )
        return known[0]

    def groups(self, by: tuple[str, ...]) -> tuple[Keys, Rows]:
        """The distinct label sets of the labels in `by`, and the one to which each belongs."""
        known = self._remembered.get(("groups", by))
        if known is None:
            rows: dict[Labels, int] = {}
            of_each = [rows.setdefault(restrict(labels, by), len(rows)) for labels in self.labels]
            known = self._remember(("groups", by), Keys(list(rows)), np.array(of_each, dtype=np.intp))
        return known

    def rows_in(self, others: Keys, on: tuple[str, ...]) -> Rows:
        """For each the row of the last of `others` with the same labels in `on`, -1 where there is none."""
        known = self._remembered.get((id(others), on))
        if known is None:
            rows = {restrict(labels, on): row for row, labels in enumerate(others.labels)}
            found = [rows.get(restrict(labels, on), -1) for labels in self.labels]
            known = self._remember((id(others), on), others, np.array(found, dtype=np.intp))
        return known[1]

    def matching(self, where: Matchers) -> NDArray[np.bool_]:
        """For each whether it matches."""
        known = self._remembered.get(("matching", where))
        if known is None:
            rows = [row for row, labels in enumerate(self.labels) if matches(dict(labels), where)]
            known = self._remember(("matching", where), self, np.array(rows, dtype=np.intp))
        found = np.zeros(len(self.labels), dtype=np.bool_)
        found[known[1]] = True
        return found

    def taken(self, kept: NDArray[np.bool_]) -> Keys:
        """Those where `kept` (n,) is true."""
        name = kept.tobytes()
        known = self._remembered.get(name)
        if known is None:
            rows = np.flatnonzero(kept)
            known = self._remember(name, Keys([self.labels[row] for row in rows.tolist()]), rows)
        return known[0]

    def _remember(self, asked: Hashable, keys: Keys, rows: Rows) -> tuple[Keys, Rows]:
        if len(self._remembered) >= _MOST_REMEMBERED:
            self._remembered.clear()
        self._remembered[asked] = keys, rows
        return keys, rows


class Labelled(NamedTuple):
    """Values (n,) and the label sets that they belong to."""

    keys: Keys
    values: Floats

    def vector(self) -> Vector:
        """The values by their labels."""
        return dict(zip(self.keys.labels, self.values.tolist(), strict=True))

    def matching(self, where: Matchers) -> Labelled:
        """The values whose labels match."""
        return self.where(self.keys.matching(where)) if where else self

    def present(self) -> Labelled:
        """The values that are not NaN."""
        return self.where(self.values == self.values)

    def where(self, kept: NDArray[np.bool_]) -> Labelled:
        """The values where `kept` (n,) is true."""
        count = np.count_nonzero(kept)
        if count == kept.size:
            return self
        return Labelled(self.keys.taken(kept), self.values[kept]) if count else NOTHING

    def paired(self, other: Labelled, on: tuple[str, ...], kept: tuple[str, ...]) -> tuple[Labelled, Floats]:
        """The values that have one of `other` with the same labels in `on`, by those in `kept`, and the other's."""
        rows = self.keys.rows_in(other.keys, on)
        mine = self.where(rows >= 0)
        return Labelled(mine.keys.restricted(kept), mine.values), other.values[rows[rows >= 0]]

    def joined(self, other: Labelled) -> Labelled:
        """These values, and those of `other` for the labels that these have none of."""
        if not self.values.size:
            return other
        if not other.values.size:
            return self
        return labelled_values({**other.vector(), **self.vector()})


_NO_ROWS: Final = np.zeros(0, dtype=np.intp)
NOTHING: Final = Labelled(Keys([]), np.zeros(0))


def labelled_values(vector: Vector, known: Keys = NOTHING.keys) -> Labelled:
    """The values of a vector, with the keys that are `known` where they are the same."""
    return Labelled(known.updated(list(vector)), np.fromiter(vector.values(), np.float64, len(vector)))


# The same labels are restricted at every evaluation.
restrict = lru_cache(_RESTRICTED)(pick_labels)
