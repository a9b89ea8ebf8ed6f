"""A YAML 1.1 document with the place of every node in its text, read as `yaml.safe_load` reads it, within limits."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from yaml import MappingNode, SequenceNode, YAMLError
from yaml.constructor import SafeConstructor
from yaml.error import Mark, MarkedYAMLError
from yaml.events import (
    AliasEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)  # fmt: skip
from yaml.nodes import ScalarNode
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import Resolver
from yaml.scanner import Scanner

from servescope.errors import ConfigurationError
from servescope.migration.document.nodes import DocumentNode, MappingEntry

LARGEST_BYTES: Final = 1 << 20
DEEPEST: Final = 50
MOST_ALIASES: Final = 200
MOST_VALUES: Final = 20_000
"""Values of a document, those that an alias repeats counted each time."""

_MOST_BITS: Final = 4096
_LONGEST_SHOWN: Final = 40

BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""A line break, as YAML 1.1 has them."""

_TAG: Final = "tag:yaml.org,2002:"
_MERGE: Final = f"{_TAG}merge"
_SCALAR_TAGS: Final = frozenset(
    _TAG + name for name in ("str", "int", "float", "bool", "null", "timestamp", "binary", "merge", "value")
)


class DocumentError(ConfigurationError):
    """A document cannot be read; `line` and `column` count from 1, and are 0 where the whole file is meant."""

    def __init__(self, origin: str, line: int, column: int, what: str) -> None:
        super().__init__(f"{origin}:{line}:{column}: {what}" if line else f"{origin}: {what}")
        self.line = line
        self.column = column
        self.what = what


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """A text that was read; `root` is None for one without content, and `value` then too."""

    text: str
    origin: str
    root: DocumentNode | None

    @property
    def value(self) -> Any:
        """What `yaml.safe_load` returns for the text."""
        return None if self.root is None else self.root.value

    def error(self, node: DocumentNode | None, what: str) -> DocumentError:
        """An error at the place of a node."""
        return DocumentError(self.origin, node.line if node else 0, node.column if node else 0, what)


def decode(data: bytes, origin: str) -> str:
    """The text of a file, which keeps its byte order mark; raises DocumentError where it is no UTF-8, or too large."""
    if len(data) > LARGEST_BYTES:
        raise DocumentError(origin, 0, 0, f"has {len(data)} bytes, expected at most {LARGEST_BYTES}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        line, column = _place(before, len(before))
        raise DocumentError(origin, line, column, f"byte 0x{data[error.start]:02x}, expected UTF-8 text") from error


def read_document(text: str, origin: str) -> Document:
    """A document of a text; raises DocumentError with the place, and what was expected there.

    Refused are broken YAML, a second document, duplicate keys, keys that are no scalars, tags beyond YAML's own
    scalars, an anchor within itself, and what exceeds the limits of this module.
    """
    if len(text) > LARGEST_BYTES:
        raise DocumentError(origin, 0, 0, f"has {len(text)} characters, expected at most {LARGEST_BYTES}")
    try:
        loader = _Loader(text, origin)
        return Document(text, origin, loader.read())
    except ReaderError as error:
        line, column = _place(text, error.position)
        code = error.character if isinstance(error.character, int) else 0
        raise DocumentError(origin, line, column, f"character U+{code:04X}, expected printable text") from error
    except MarkedYAMLError as error:
        raise _located(error, origin) from error
    except YAMLError as error:
        raise DocumentError(origin, 0, 0, f"not YAML: {error}") from error


def is_same(one: object, other: object) -> bool:
    """Whether two trees are alike in types and values; not a number is like itself, and the order of keys is free."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return one == other


def _located(error: MarkedYAMLError, origin: str) -> DocumentError:
    mark = error.problem_mark or error.context_mark
    what = " ".join(part for part in (error.context, error.problem) if part)
    if mark is None:
        return DocumentError(origin, 0, 0, f"not YAML: {what}")
    return DocumentError(origin, mark.line + 1, mark.column + 1, f"not YAML: {what}")


def _place(text: str, position: int) -> tuple[int, int]:
    """Line and column, from 1."""
    ends = [match.end() for match in BREAK.finditer(text, 0, position)]
    return len(ends) + 1, position - (ends[-1] if ends else 0) + 1


def _start(event: Event) -> Mark:
    """Where an event begins: one of this parser always has a mark."""
    return cast(Mark, event.start_mark)


def _end(event: Event) -> Mark:
    return cast(Mark, event.end_mark)


class _Loader(Reader, Scanner, Parser, SafeConstructor, Resolver):
    """PyYAML's reader, scanner and parser in Python, whose marks are exact; nodes and limits are ours."""

    def __init__(self, text: str, origin: str) -> None:
        self._text = text
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._origin = origin
        self._anchors: dict[str, DocumentNode | None] = {}  # None while the node is being read
        self._sizes: dict[int, int] = {}
        self._aliases = 0
        self._nodes = 0

    if TYPE_CHECKING:  # what types-PyYAML leaves untyped

        def get_event(self) -> Event: ...
        def peek_event(self) -> Event: ...
        def resolve(self, kind: type, value: object, implicit: object) -> str: ...

    def read(self) -> DocumentNode | None:
        self.get_event()
        if self.check_event(StreamEndEvent):
            return None
        self.get_event()
        root = self._value(0)
        self.get_event()
        if not self.check_event(StreamEndEvent):
            raise self._error(_start(self.peek_event()), "a second document, expected one")
        return root

    def fetch_flow_collection_start(self, TokenClass: type) -> None:  # noqa: N803 - PyYAML's name
        # Simple keys are looked for at every level of the flow for each token: depth has to end here.
        if self.flow_level >= DEEPEST:
            raise self._error(self.get_mark(), f"nested deeper than {DEEPEST}")
        super().fetch_flow_collection_start(TokenClass)

    def _error(self, mark: Mark, what: str) -> DocumentError:
        return DocumentError(self._origin, mark.line + 1, mark.column + 1, what)

    def _node(self, depth: int) -> DocumentNode:
        event = self.get_event()
        start, end = _start(event), _end(event)
        if isinstance(event, AliasEvent):
            return self._alias(event)
        event = cast(NodeEvent, event)
        self._nodes += 1
        if self._nodes > MOST_VALUES:
            raise self._error(start, f"more than {MOST_VALUES} values")
        if depth > DEEPEST:
            raise self._error(start, f"nested deeper than {DEEPEST}")
        if event.anchor in self._anchors:
            raise self._error(start, f"anchor &{event.anchor} is set a second time")
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        node = DocumentNode("scalar", start.index, end.index, start.line + 1, start.column + 1, anchor=event.anchor)
        if isinstance(event, ScalarEvent):
            self._scalar(node, event)
        elif isinstance(event, SequenceStartEvent):
            self._sequence(node, event, depth)
        elif isinstance(event, MappingStartEvent):
            self._mapping(node, event, depth)
        size = 1 + sum(self._size(each) for each in node.items)
        size += sum(self._size(entry.key) + self._size(entry.value) for entry in node.entries)
        if size > MOST_VALUES:
            raise self._error(start, f"more than {MOST_VALUES} values, with what aliases repeat")
        self._sizes[id(node)] = size
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _value(self, depth: int) -> DocumentNode:
        node = self._node(depth)
        if node.style in ("<<", "="):
            raise DocumentError(self._origin, node.line, node.column, f"{node.value!r} as a value, expected it quoted")
        return node

    def _size(self, node: DocumentNode) -> int:
        return self._sizes[id(node.real)]

    def _alias(self, event: AliasEvent) -> DocumentNode:
        start, name = _start(event), event.anchor
        self._aliases += 1
        if name not in self._anchors:
            raise self._error(start, f"alias *{name} has no anchor before it")
        target = self._anchors[name]
        if target is None:
            raise self._error(start, f"alias *{name} is within its own anchor")
        if self._aliases > MOST_ALIASES:
            raise self._error(start, f"more than {MOST_ALIASES} aliases")
        return DocumentNode(
            target.kind, start.index, _end(event).index, start.line + 1, start.column + 1,
            target.value, is_flow=True, alias=name, target=target,
        )  # fmt: skip

    def _scalar(self, node: DocumentNode, event: ScalarEvent) -> None:
        tag = event.tag
        if tag is None or tag == "!":
            tag = self.resolve(ScalarNode, event.value, event.implicit)
        if tag not in _SCALAR_TAGS:
            raise self._error(_start(event), f"tag {_short(tag)}, expected none")
        node.style = event.style
        if event.style in ("|", ">"):
            node.end = node.start + len(self._text[node.start : node.end].rstrip())
        if tag in (_MERGE, f"{_TAG}value"):
            # Only a key may be one: for PyYAML `=` is a text there, and `<<` brings in another mapping.
            node.value, node.style = event.value, "<<" if tag == _MERGE else "="
            return
        try:
            node.value = self.construct_object(ScalarNode(tag, event.value, _start(event), _end(event)))
            _check_digits(node.value)
        except (ValueError, OverflowError, LookupError, AttributeError) as error:  # of a tag on what it does not fit
            shown = event.value if len(event.value) <= _LONGEST_SHOWN else f"{event.value[:_LONGEST_SHOWN]}…"
            raise self._error(_start(event), f"{shown!r} cannot be read as {_short(tag)[2:]}") from error

    def _sequence(self, node: DocumentNode, event: SequenceStartEvent, depth: int) -> None:
        node.kind, node.is_flow = "sequence", bool(event.flow_style)
        self._check_tag(event, SequenceNode, "seq")
        while not self.check_event(SequenceEndEvent):
            node.items.append(self._value(depth + 1))
        end = _end(self.get_event()).index
        node.end = end if node.is_flow else max(node.items[-1].end, node.end)
        node.value = [each.value for each in node.items]

    def _mapping(self, node: DocumentNode, event: MappingStartEvent, depth: int) -> None:
        node.kind, node.is_flow = "mapping", bool(event.flow_style)
        self._check_tag(event, MappingNode, "map")
        while not self.check_event(MappingEndEvent):
            key = self._node(depth + 1)
            if key.kind != "scalar":
                raise DocumentError(self._origin, key.line, key.column, f"a {key.kind} as a key, expected a name")
            node.entries.append(MappingEntry(key, self._value(depth + 1), key.style == "<<"))
        end = _end(self.get_event()).index
        node.end = end if node.is_flow else max(node.entries[-1].value.end, node.entries[-1].key.end)
        self._set_value(node)

    def _set_value(self, node: DocumentNode) -> None:
        """Give a mapping its value, with what merges bring; refuse keys that are there twice."""
        own: dict[Any, Any] = {}
        lines: dict[Any, int] = {}
        merged: dict[Any, Any] = {}
        for entry in node.entries:
            key = entry.key
            if entry.is_merge:
                for value in reversed(self._merged(entry.value)):
                    merged = {**merged, **value}
                continue
            if key.value in own:
                what = f"key {key.value!r} is there a second time, first in line {lines[key.value]}"
                raise DocumentError(self._origin, key.line, key.column, what)
            own[key.value] = entry.value.value
            lines[key.value] = key.line
        node.value = {**merged, **own}

    def _merged(self, node: DocumentNode) -> list[dict[Any, Any]]:
        values = node.real.items if node.kind == "sequence" else [node]
        for each in values:
            if each.kind != "mapping":
                what = f"a merge (<<) of a {each.kind}, expected a mapping or a list of them"
                raise DocumentError(self._origin, each.line, each.column, what)
        return [each.value for each in values]

    def _check_tag(self, event: MappingStartEvent | SequenceStartEvent, kind: type, name: str) -> None:
        tag = event.tag
        if tag is None or tag == "!":
            tag = self.resolve(kind, None, event.implicit)
        if tag != _TAG + name:
            raise self._error(_start(event), f"tag {_short(tag)}, expected none")


def _check_digits(value: object) -> None:
    """Refuse a whole number, which YAML may write in base 2, 8, 16 and 60, that Python cannot write in base 10."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ValueError


def _short(tag: str) -> str:
    short = f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag
    return short if len(short) <= _LONGEST_SHOWN else f"{short[:_LONGEST_SHOWN]}…"
