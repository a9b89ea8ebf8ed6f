"""Targets of a deployment, so many at once that their series are one answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from servescope.contract.identity import Deployment
from servescope.contract.samples import escape_label_value
from servescope.store.prometheus.client import LateError, TooMuchError
from servescope.store.prometheus.figure_queries import matchers
from servescope.store.prometheus.selectors import selector

MOST_AT_ONCE: Final = 200
"""The targets that are asked for by one query."""
_MOST_TEXT: Final = 6_000
"""The length of their names, as a VictoriaMetrics takes no query above 16 KiB."""

T = TypeVar("T")
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class AskedTargets:
    """Some processes of a deployment, by their `replica` and the `instance` they were scraped at; all where both are
    empty.
    """

    deployment: Deployment
    replicas: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()

    def matchers(self) -> str:
        """The matchers of their series."""
        chosen = [
            f'{label}=~"{escape_label_value("|".join(map(re.escape, sorted(set(values)))))}"'
            for label, values in (("replica", self.replicas), ("instance", self.instances))
            if values
        ]
        return ",".join((matchers(self.deployment), *chosen))

    def select(self, names: Sequence[str]) -> str:
        """The selector of their series of these names, without what a collector derives of several targets."""
        return selector(names=names, extra=f'{{{self.matchers()},derived="",window=""}}')


def read_in_parts(elements: Sequence[E], length: Callable[[E], int], read: Callable[[Sequence[E]], T]) -> Iterator[T]:
    """What `read` returns for parts of the elements, each as large as an answer may be; raises PrometheusError.

    `length` is that of an element's names in a query.
    """
    first, most = 0, MOST_AT_ONCE
    while first < len(elements):
        last, text = first, 0
        while last < len(elements) and last - first < most and (last == first or text < _MOST_TEXT):
            text += length(elements[last])
            last += 1
        try:
            found = read(elements[first:last])
        except LateError:
            raise  # fewer would be waited for as long
        except TooMuchError:
            if last - first == 1:
                raise
            most = (last - first) // 2
            continue
        yield found
        first = last
