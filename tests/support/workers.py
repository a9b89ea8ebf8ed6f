"""How pytest-xdist spreads the tests over the cores: whole files, those with slow tests first."""

from __future__ import annotations

import fcntl
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from xdist.scheduler import LoadGroupScheduling

_FILE_MARKS = re.compile(r"^pytestmark = (.*)$", re.MULTILINE)
_PROOFS = Path(__file__).parents[1] / "proofs"
_LOCK = Path(__file__).parents[2] / ".cache" / "importing.lock"
_MARK = re.compile(r"pytest\.mark\.(\w+)")


class ByFile(LoadGroupScheduling):  # type: ignore[misc] # of a package without types
    """A file's tests run in one worker and share its fixtures; tests of one `xdist_group` do, whatever their files."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        return scope.partition("::")[0]


@contextmanager
def importing_alone(path: Path) -> Iterator[None]:
    """Have no other worker import this file meanwhile, so that the next one reads the bytecode that this one wrote.

    They import the same files in the same order; in a fresh clone each would otherwise compile all of them.
    """
    _LOCK.parent.mkdir(parents=True, exist_ok=True)
    with _LOCK.open("w") as lock:
        place = zlib.crc32(bytes(path))
        fcntl.lockf(lock, fcntl.LOCK_EX, 1, place)
        yield


@cache
def is_proof(path: Path) -> bool:
    """Whether it is in `tests/proofs`, where every test is a proof without its mark."""
    return path.is_relative_to(_PROOFS)


def is_left_out(path: Path, expression: str) -> bool:
    """Whether a `-m` of "not …" joined by "and" leaves out all tests of a file: then it is not imported either.

    Read from a `pytestmark` on one line; some files take seconds to import.
    """
    terms = expression.split(" and ")
    if not all(term.startswith("not ") for term in terms):
        return False
    if is_proof(path):
        return "not proof" in terms
    if path.suffix != ".py":
        return False
    found = _FILE_MARKS.search(path.read_text(encoding="utf-8"))
    marks = _MARK.findall(found[1]) if found else []
    return any(f"not {mark}" in terms for mark in marks)


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
