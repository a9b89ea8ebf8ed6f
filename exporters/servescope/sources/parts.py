"""The part of a page that is one deployment's, where the page measures several: an endpoint picker, a gateway, a
cluster's exporter."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Final

from servescope.contract.samples import Labels, Series
from servescope.sources.maps import Values

Selects = tuple[Values, ...]
"""Which series are read: those with all the labels of at least one of these; without any, all.

In a value `*` is one part of a name, without a hyphen, as those that Kubernetes appends: `chat-*-*` has `chat-7f9-x2`.
"""

OR: Final = "or"
"""The text between two selects, as each may have several labels."""


@dataclass(frozen=True, slots=True)
class PagePart:
    """The series that one of `select` selects; without any it is the whole page.

    A missing label has the value "". `others` is what the other targets at the same URL select.
    """

    select: Selects = ()
    others: tuple[Selects, ...] = ()

    def has(self, labels: Labels) -> bool:
        """Whether a series with these labels is in the part."""
        return not self.select or _is_in(labels, self.select)

    def absent(self, series: Iterable[Series]) -> list[str]:
        """The labels that are selected and that no series of a page has, as text."""
        if not self.select:
            return []
        shown = self._shown(series)
        pairs = {pair for found in shown for pair in found}
        absent = [
            f"{label}={value!r}"
            for label, value in dict.fromkeys(
                (label, value) for select in self.select for label, values in select for value in values
            )
            if value and not any(name == label and _fits(each, value) for name, each in pairs)
        ]
        return absent or [
            _describe(select) for select in self.select if not any(_is_in(found, (select,)) for found in shown)
        ]

    def unclaimed(self, series: Iterable[Series]) -> dict[str, int]:
        """How many series of a page have labels that no target of it selects, by these labels as text, sorted.

        Series without any of the labels that split the page are of no deployment, and are not counted.
        """
        if not self.select:
            return {}
        every = tuple(select for selects in (self.select, *self.others) for select in selects)
        return {
            describe_labels(found): count
            for found, count in sorted(self._shown(series).items())
            if not _is_in(found, every)
        }

    def _shown(self, series: Iterable[Series]) -> Counter[Labels]:
        """How many series there are by those of their labels that split the page, without those that have none."""
        splitting = {label for selects in (self.select, *self.others) for select in selects for label, _ in select}
        shown = Counter(tuple(pair for pair in each.labels if pair[0] in splitting) for each in series)
        del shown[()]
        return shown

    def describe(self) -> str:
        """The labels that its series have, as text."""
        return "; or ".join(map(_describe, self.select))


WHOLE_PAGE: Final = PagePart()


def agree(labels: Mapping[str, str], wanted: Values) -> bool:
    """Whether each label has one of its values; a missing one has the value ""."""
    return all(labels.get(label, "") in values for label, values in wanted)


def _is_in(labels: Labels, selects: Selects) -> bool:
    own = dict(labels)
    return any(
        all(any(_fits(own.get(label, ""), value) for value in values) for label, values in select) for select in selects
    )


def _fits(text: str, value: str) -> bool:
    return text == value if "*" not in value else _pattern(value).fullmatch(text) is not None


@lru_cache(maxsize=1024)
def _pattern(value: str) -> re.Pattern[str]:
    return re.compile("[^-]+".join(map(re.escape, value.split("*"))))


def overlap(one: Selects, other: Selects) -> bool:
    """Whether a series can be in both: unless some label has other values in each. No select is the whole page."""
    return any(_overlap(dict(first), second) for first, second in product(one or ((),), other or ((),)))


def _overlap(one: Mapping[str, tuple[str, ...]], other: Values) -> bool:
    return all(
        label not in one or any(_can_be_same(*pair) for pair in product(one[label], values)) for label, values in other
    )


def _can_be_same(one: str, other: str) -> bool:
    """Whether a text can fit both values, by each part between hyphens; True where that is not certain."""
    first, second = one.split("-"), other.split("-")
    return len(first) == len(second) and all(
        a == b if "*" not in a + b else _fits(a, b) or _fits(b, a) or ("*" in a and "*" in b)
        for a, b in zip(first, second, strict=True)
    )


def describe_labels(labels: Labels) -> str:
    """Labels as text, several in braces."""
    text = ", ".join(f"{label}={value!r}" for label, value in labels)
    return f"{{{text}}}" if len(labels) > 1 else text


def _describe(select: Values) -> str:
    return ", ".join(f"{label}={' or '.join(map(repr, values))}" for label, values in select)


def read_select(texts: Iterable[str]) -> Selects:
    """What is selected by texts `LABEL=VALUE`, several of one label being its values, and `or` beginning the next
    select; raises ValueError."""
    selects: list[dict[str, list[str]]] = [{}]
    for text in texts:
        label, separator, value = text.partition("=")
        if text == OR and selects[-1]:
            selects.append({})
            continue
        if not separator or not is_splitting(label):
            raise ValueError(f"{text!r} is not LABEL=VALUE, such as 'model=v2'")
        selects[-1].setdefault(label, []).append(value)
    if len(selects) > 1 and not selects[-1]:
        raise ValueError(f"{OR!r} is at the end, expected LABEL=VALUE behind it")
    return tuple(tuple((label, tuple(values)) for label, values in select.items()) for select in selects if select)


def is_splitting(label: str) -> bool:
    """Whether a page can be split by a label: any but `le`, by which a histogram is."""
    return re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", label) is not None and label != "le"
