"""What a value of a configuration may be, as data, and the findings of a document that is checked against it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

from servescope.errors import suggest
from servescope.migration.document.nodes import DocumentNode

Severity = Literal["error", "warning"]

_LONGEST_SHOWN: Final = 60
_FEW: Final = 8


@dataclass(frozen=True, slots=True)
class ConfigurationFinding:
    """Something wrong in a configuration, with its place; line and column count from 1 and are 0 for the whole file."""

    severity: Severity
    path: str
    line: int
    column: int
    message: str

    @property
    def sentence(self) -> str:
        """The path and the message; the vendor's own messages name the path themselves."""
        return self.message if self.message.startswith("Field ") else f"{self.path} {self.message}".strip()


@dataclass(frozen=True, slots=True)
class ValueShape:
    """Anything; the shapes below are narrower."""

    is_nullable: bool = False

    @property
    def text(self) -> str:
        """What is expected, in words."""
        return "any value"

    def check(self, node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
        """The findings of a value and all below it."""
        if node.value is None:
            if not self.is_nullable:
                yield wrong(node, path, f"is null, expected {self.text}")
            return
        yield from self._check(node, path)

    def _check(self, node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
        yield from ()


ANYTHING: Final = ValueShape(is_nullable=True)


@dataclass(frozen=True, slots=True)
class WholeShape(ValueShape):
    """A whole number within bounds, both inclusive, and a multiple of something."""

    low: int | None = None
    high: int | None = None
    multiple: int = 1
    excluded: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """What is expected, in words."""
        if self.low is not None and self.low == self.high:
            return str(self.low)
        kind = "a whole number" if self.multiple == 1 else f"a multiple of {self.multiple}, "
        bounds = _bounds(self.low, self.high)
        return f"{kind}{bounds}{''.join(f', not {each}' for each in self.excluded)}".replace(",  of", ", from")

    def _check(self, node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
        value = node.value
        # A bool is an int in Python, and never meant as one here.
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if (
            not is_whole
            or not _is_within(value, self.low, self.high)
            or value % self.multiple
            or value in self.excluded
        ):
            yield wrong(node, path, f"is {show(value)}, expected {self.text}")


@dataclass(frozen=True, slots=True)
class NumberShape(ValueShape):
    """A finite number within bounds; the lower one may be exclusive."""

    low: float | None = None
    high: float | None = None
    is_above: bool = False

    @property
    def text(self) -> str:
        """What is expected, in words."""
        if self.is_above:
            return f"a number above {self.low:g}" + (f" and up to {self.high:g}" if self.high is not None else "")
        return f"a number{_bounds(self.low, self.high)}"

    def _check(self, node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
        value = node.value
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
        is_edge = self.is_above and value == self.low
        if not is_number or is_edge or not _is_within(value, self.low, self.high):
            yield wrong(node, path, f"is {show(value)}, expected {self.text}")


@dataclass(frozen=True, slots=True)
class SwitchShape(ValueShape):
    """True or false."""

    @property
    def text(self) -> str:
        """What is expected, in words."""
        return "true or false"

    def _check(self, node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
        if not isinstance(node.value, bool):
            yield wrong(node, path, f"is {show(node.value)}, expected {self.text}")


@dataclass(frozen=True, slots=True)
class TextShape(ValueShape):
    """A text, of a pattern where there is one; `what` says in words what the pattern means."""

    pattern: str = ""
    what: str = "a text"
    is_secret: bool = False

    @property
    def text(self) -> str:
        """What is expected, in words."""
        return self.what

    def _check(self, node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
        if not isinstance(node.value, str):
            shown = f"is {_name_type(node.value)}" if self.is_secret else f"is {show(node.value)}"
            yield wrong(node, path, f"{shown}, expected {self.text}")
        elif self.pattern and not re.fullmatch(self.pattern, node.value):
            yield wrong(node, path, f"is {show(node.value)}, expected {self.text}")


@dataclass(frozen=True, slots=True)
class ChoiceShape(ValueShape):
    """One of some texts, in any case where `any_case`; `refused` are known ones with the reason against them."""

    values: tuple[str, ...] = ()
    any_case: bool = False
    refused: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def text(self) -> str:
        """What is expected, in words."""
        return f"one of: {', '.join(self.values)}"

    def _check(self, node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
        value = node.value
        if isinstance(value, str) and value in self.refused:
            yield wrong(node, path, f"is {show(value)}: {self.refused[value]}")
            return
        known = {each.lower() for each in self.values} if self.any_case else self.values
        if not isinstance(value, str) or (value.lower() if self.any_case else value) not in known:
            near = nearest(value, self.values) if isinstance(value, str) else ""
            yield wrong(node, path, f"is {show(value)}, expected {self.text}{near}")


@dataclass(frozen=True, slots=True)
class ListShape(ValueShape):
    """A list of values of one shape."""

    item: ValueShape = ANYTHING
    is_filled: bool = False

    @property
    def text(self) -> str:
        """What is expected, in words."""
        return "a list"

    def _check(self, node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
        if node.kind != "sequence":
            yield wrong(node, path, f"is {show(node.value)}, expected {self.text}")
            return
        if self.is_filled and not node.real.items:
            yield wrong(node, path, "is empty, expected at least one")
        for number, item in enumerate(node.real.items):
            yield from self.item.check(item, f"{path}[{number}]")


@dataclass(frozen=True, slots=True)
class _MappingShape(ValueShape):
    @property
    def text(self) -> str:
        return "a mapping"

    def _check(self, node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
        if node.kind != "mapping":
            yield wrong(node, path, f"is {show(node.value)}, expected {self.text}")
            return
        yield from self._check_entries(node, path)

    def _check_entries(self, node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
        yield from ()


@dataclass(frozen=True, slots=True)
class NamedShape(_MappingShape):
    """A mapping of names of one's own to values of one shape."""

    item: ValueShape = ANYTHING
    pattern: str = ""
    what: str = "a name"

    def _check_entries(self, node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
        for entry in each_entry(node):
            name = entry[0].value
            if not isinstance(name, str):
                yield wrong(entry[0], path, f"has the name {show(name)}, expected a text")
            elif self.pattern and not re.fullmatch(self.pattern, name):
                yield wrong(entry[0], path, f"has the name {show(name)}, expected {self.what}")
            yield from self.item.check(entry[1], join(path, name))


@dataclass(frozen=True, slots=True)
class FieldShape:
    """A key of a table: its value, its default, and where it is documented.

    `elsewhere` is the reason why the key is wrong in this table although it is known; `note` is a warning that the key
    always brings.
    """

    shape: ValueShape = ANYTHING
    default: Any = None
    is_required: bool = False
    source: str = "S4"
    elsewhere: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class TableShape(_MappingShape):
    """A mapping with known keys; unknown ones are warnings that name the nearest known one.

    `misplaced` are keys of other tables, with the path of their own.
    """

    keys: Mapping[str, FieldShape] = field(default_factory=lambda: MappingProxyType({}))
    misplaced: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def _check_entries(self, node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
        there = set()
        for name, value in each_entry(node):
            there.add(name.value)
            key = self.keys.get(name.value) if isinstance(name.value, str) else None
            inner = join(path, name.value)
            if key is None:
                what = f"is an unknown field{self._suggest(name.value)}"
                yield ConfigurationFinding("warning", inner, name.line, name.column, what)
            elif key.elsewhere:
                yield wrong(name, inner, key.elsewhere)
            else:
                if key.note:
                    yield ConfigurationFinding("warning", inner, name.line, name.column, key.note)
                yield from key.shape.check(value, inner)
        for name_, key in self.keys.items():
            if key.is_required and name_ not in there:
                yield wrong(node, join(path, name_), f"is missing, expected {key.shape.text}")

    def _suggest(self, name: object) -> str:
        """Where the field belongs, else the nearest known one, or all of them where they are few."""
        if isinstance(name, str) and name in self.misplaced:
            return f" here: it belongs to {self.misplaced[name]}"
        known = [each for each, field in self.keys.items() if not field.elsewhere]
        near = nearest(name, [*known, *self.misplaced])
        return near or (f", expected one of: {', '.join(known)}" if 0 < len(known) <= _FEW else "")


def each_entry(node: DocumentNode) -> Iterator[tuple[DocumentNode, DocumentNode]]:
    """The keys of a mapping with their values, with those that merges bring and that it does not set itself."""
    own = set()
    for entry in node.real.entries:
        if not entry.is_merge:
            own.add(entry.key.value)
            yield entry.key, entry.value
    for entry in node.real.entries:
        if entry.is_merge:
            for merged in [entry.value.real, *entry.value.real.items]:
                if merged.kind == "mapping":
                    for key, value in each_entry(merged):
                        if key.value not in own:
                            own.add(key.value)
                            yield key, value


def wrong(node: DocumentNode | None, path: str, message: str) -> ConfigurationFinding:
    """An error at a node."""
    return ConfigurationFinding("error", path, node.line if node else 0, node.column if node else 0, message)


def join(path: str, name: object) -> str:
    """The path of a key below another."""
    shown = str(name) if str(name).isprintable() else repr(str(name))[1:-1]
    shown = shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"
    return f"{path}.{shown}" if path else shown


def nearest(name: object, known: list[str] | tuple[str, ...]) -> str:
    """`, did you mean …?`, or nothing where no known name is near."""
    near = suggest(str(name), known)
    return f", {near}" if near else ""


def show(value: object) -> str:
    """A value as an error shows it: short, and a collection by its kind."""
    if isinstance(value, dict | list):
        return _name_type(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    shown = "null" if value is None else repr(value)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"


def _name_type(value: object) -> str:
    names = {
        dict: "a mapping",
        list: "a list",
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), type(value).__name__)


def _is_within(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


def _bounds(low: float | None, high: float | None) -> str:
    if low is None:
        return "" if high is None else f" of {high} or less"
    return f" of {low} or more" if high is None else f" of {low} to {high}"
