"""How pytest-xdist spreads the tests over the cores: whole files, those with slow tests first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from xdist.scheduler import LoadGroupScheduling


class ByFile(LoadGroupScheduling):  # type: ignore[misc] # of a package without types
    """A file's tests run in one worker and share its fixtures; tests of one `xdist_group` do, whatever their files."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        return scope.partition("::")[0]


class Marked(Protocol):
    """A test with its file and its marks, as pytest collects it."""

    @property
    def path(self) -> Any:
        """The file it is in."""

    def get_closest_marker(self, name: str) -> Any:
        """The mark of this name; None where it has none."""


Item = TypeVar("Item", bound=Marked)


def slow_files_first(items: Iterable[Item]) -> list[Item]:
    """The tests in an order that ends with short files, so that no core waits long for another.

    Files, and tests within a file, otherwise keep their order.
    """
    items = list(items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    return sorted(items, key=lambda item: item.path not in slow)
