"""The part of a page that is one deployment's, where the page measures several: an endpoint picker, a gateway."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from servescope.contract.samples import Labels, Series
from servescope.sources.maps import Values


@dataclass(frozen=True, slots=True)
class PagePart:
    """The series whose labels have the values in `select`, all of them; an empty one is the whole page.

    A missing label has the value "". `others` is what the other targets at the same URL select.
    """

    select: Values = ()
    others: tuple[Values, ...] = ()

    def has(self, labels: Labels) -> bool:
        """Whether a series with these labels is in the part."""
        return not self.select or agree(dict(labels), self.select)

    def absent(self, series: Iterable[Series]) -> list[str]:
        """The labels that are selected and that no series of a page has, as text."""
        if not self.select:
            return []
        shown = self._shown(series)
        pairs = {pair for found in shown for pair in found}
        absent = [
            f"{label}={value!r}"
            for label, values in self.select
            for value in values
            if value and (label, value) not in pairs
        ]
        return absent or ([] if any(map(self.has, shown)) else [self.describe()])

    def unclaimed(self, series: Iterable[Series]) -> dict[str, int]:
        """How many series of a page have labels that no target of it selects, by these labels as text, sorted.

        Series without any of the labels that split the page are of no deployment, and are not counted.
        """
        if not self.select:
            return {}
        every = (self.select, *self.others)
        return {
            describe_labels(found): count
            for found, count in sorted(self._shown(series).items())
            if not any(agree(dict(found), select) for select in every)
        }

    def _shown(self, series: Iterable[Series]) -> Counter[Labels]:
        """How many series there are by those of their labels that split the page, without those that have none."""
        splitting = {label for select in (self.select, *self.others) for label, _ in select}
        shown = Counter(tuple(pair for pair in each.labels if pair[0] in splitting) for each in series)
        del shown[()]
        return shown

    def describe(self) -> str:
        """The labels that its series have, as text."""
        return ", ".join(f"{label}={' or '.join(map(repr, values))}" for label, values in self.select)


WHOLE_PAGE: Final = PagePart()


def agree(labels: Mapping[str, str], wanted: Values) -> bool:
    """Whether each label has one of its values; a missing one has the value ""."""
    return all(labels.get(label, "") in values for label, values in wanted)


def overlap(one: Values, other: Values) -> bool:
    """Whether a series can be in both: unless some label has other values in each."""
    theirs = dict(other)
    return not any(label in theirs and not set(values) & set(theirs[label]) for label, values in one)


def describe_labels(labels: Labels) -> str:
    """Labels as text."""
    return ", ".join(f"{label}={value!r}" for label, value in labels)


def read_select(texts: Iterable[str]) -> Values:
    """What is selected by texts `LABEL=VALUE`, several of one label being its values; raises ValueError."""
    select: dict[str, list[str]] = {}
    for text in texts:
        label, separator, value = text.partition("=")
        if not separator or not is_splitting(label):
            raise ValueError(f"{text!r} is not LABEL=VALUE, such as 'model=v2'")
        select.setdefault(label, []).append(value)
    return tuple((label, tuple(values)) for label, values in select.items())


def is_splitting(label: str) -> bool:
    """Whether a page can be split by a label: any but `le`, by which a histogram is."""
    return re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", label) is not None and label != "le"
