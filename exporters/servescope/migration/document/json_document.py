"""A JSON document (RFC 8259) with the place of every node in its text, within the limits of a YAML one."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from servescope.migration.document import document
from servescope.migration.document.nodes import DocumentNode, MappingEntry

_BREAK: Final = re.compile(r"\r\n|[\n\r]")
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_CHARACTERS: Final = re.compile(r'(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD: Final = re.compile(r"[^\s,:\[\]{}\"]+")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_NAMES: Final = {"true": True, "false": False, "null": None}
_LONGEST_SHOWN: Final = 40


def read_named(text: str, origin: str) -> document.Document:
    """A document by the name of its file: JSON where it ends in `.json`, else YAML; raises DocumentError."""
    return read_json(text, origin) if is_named_json(origin) else document.read_document(text, origin)


def is_named_json(origin: str) -> bool:
    """Whether a file is JSON by its name."""
    return origin.lower().endswith(".json")


def read_json(text: str, origin: str) -> document.Document:
    """A document of a JSON text; raises DocumentError with the place, and what was expected there.

    Beyond broken JSON, refused are duplicate keys, halves of surrogate pairs, numbers that are infinite, and what
    exceeds the limits of YAML documents. A byte order mark is skipped.
    """
    if len(text) > document.LARGEST_BYTES:
        raise document.DocumentError(
            origin, 0, 0, f"has {len(text)} characters, expected at most {document.LARGEST_BYTES}"
        )
    return document.Document(text, origin, _Parser(text, origin).read())


class _Parser:
    """A parser that reads one value after the other; `_at` is the position of the next character."""

    def __init__(self, text: str, origin: str) -> None:
        self._text = text
        self._origin = origin
        self._at = 1 if text.startswith("\ufeff") else 0
        self._lines = [0, *(match.end() for match in _BREAK.finditer(text))]
        self._nodes = 0
        self._depth = 0

    def read(self) -> DocumentNode:
        self._skip()
        root = self._value("a value")
        self._skip()
        if self._at < len(self._text):
            self._refuse(self._at, f"{self._shown(self._at)} behind the end of the document")
        return root

    def _skip(self) -> None:
        self._at = self._end_of(_SPACE)
        if self._text.startswith(("//", "/*", "#"), self._at):
            self._refuse(self._at, "a comment, which JSON does not have")

    def _end_of(self, pattern: re.Pattern[str]) -> int:
        """Where a pattern, which may be empty here, ends."""
        match = pattern.match(self._text, self._at)
        return match.end() if match else self._at

    def _value(self, expected: str) -> DocumentNode:
        start = self._text[self._at : self._at + 1]
        if start == "{":
            return self._mapping()
        if start == "[":
            return self._sequence()
        return self._text_value(expected) if start == '"' else self._word(expected)

    def _node(self, kind: Any, start: int) -> DocumentNode:
        self._nodes += 1
        if self._nodes > document.MOST_VALUES:
            self._refuse(start, f"more than {document.MOST_VALUES} values", prefix="")
        line, column = self._place(start)
        return DocumentNode(kind, start, self._at, line, column, is_flow=True)

    def _mapping(self) -> DocumentNode:
        node = self._node("mapping", self._at)
        node.value = {}
        lines: dict[str, int] = {}
        with self._within(node):
            while self._has_another(node, "}", "a key in double quotes"):
                key = self._text_value("a key in double quotes")
                if key.value in lines:
                    what = f"key {key.value!r} is there a second time, first in line {lines[key.value]}"
                    self._refuse(key.start, what, prefix="")
                lines[key.value] = key.line
                self._skip()
                if not self._take(":"):
                    self._refuse(self._at, f"{self._shown(self._at)}, expected ':' behind the key {key.value!r}")
                self._skip()
                value = self._value("a value")
                node.entries.append(MappingEntry(key, value))
                node.value[key.value] = value.value
        return node

    def _sequence(self) -> DocumentNode:
        node = self._node("sequence", self._at)
        with self._within(node):
            while self._has_another(node, "]", "a value"):
                node.items.append(self._value("a value"))
        node.value = [each.value for each in node.items]
        return node

    @contextmanager
    def _within(self, node: DocumentNode) -> Iterator[None]:
        """Between the brackets of a node, whose end is known afterwards."""
        self._depth += 1
        if self._depth > document.DEEPEST:
            self._refuse(node.start, f"nested deeper than {document.DEEPEST}", prefix="")
        self._at += 1
        yield
        self._depth -= 1
        node.end = self._at

    def _has_another(self, node: DocumentNode, close: str, expected: str) -> bool:
        """Whether an entry follows; then the comma before it is read, else the closing bracket."""
        self._skip()
        if self._take(close):
            return False
        if not node.entries and not node.items:
            return True
        comma = self._at
        if not self._take(","):
            self._refuse(comma, f"{self._shown(comma)}, expected ',' or '{close}'")
        self._skip()
        if self._text.startswith(close, self._at):
            self._refuse(comma, f"a comma before '{close}', expected none, or {expected} behind it")
        return True

    def _take(self, character: str) -> bool:
        if not self._text.startswith(character, self._at):
            return False
        self._at += 1
        return True

    def _text_value(self, expected: str) -> DocumentNode:
        start = self._at
        if not self._take('"'):
            self._refuse(start, f"{self._shown(start)}, expected {expected}")
        self._at = self._end_of(_CHARACTERS)
        if not self._take('"'):
            self._refuse_text(start)
        value = json.loads(self._text[start : self._at])
        if _SURROGATE.search(value):
            self._refuse(start, "a text with half of a surrogate pair, expected both")
        node = self._node("scalar", start)
        node.value, node.style = value, '"'
        return node

    def _refuse_text(self, start: int) -> NoReturn:
        """A text stops here: at its missing end, at a control character, or at an escape that JSON does not have."""
        character = self._text[self._at : self._at + 1]
        if not character:
            self._refuse(start, "a text that does not end, expected '\"' behind it")
        if character == "\\":
            what = f"the escape {self._text[self._at : self._at + 2]!r}"
            self._refuse(self._at, f'{what}, expected one of \\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX')
        if character in "\n\r":
            self._refuse(start, "a text that does not end in its line, expected '\"' behind it")
        self._refuse(self._at, f"character U+{ord(character):04X} in a text, expected it escaped")

    def _word(self, expected: str) -> DocumentNode:
        start = self._at
        match = _WORD.match(self._text, start)
        word = match.group() if match else ""
        if word in _NAMES:
            value = _NAMES[word]
        elif _NUMBER.fullmatch(word):
            value = self._number(word)
        else:
            self._refuse(start, f"{self._shown(start)}, expected {expected}")
        self._at = start + len(word)
        node = self._node("scalar", start)
        node.value = value
        return node

    def _number(self, word: str) -> Any:
        try:
            value = json.loads(word)
        except ValueError:  # more digits than Python reads
            value = float("inf")
        if abs(value) == float("inf"):
            self._refuse(self._at, f"{self._shown(self._at)}, expected a number that is finite")
        return value

    def _shown(self, at: int) -> str:
        """What is at a position, in a few characters."""
        if at >= len(self._text):
            return "the end of the document"
        match = _WORD.match(self._text, at)
        shown = match.group() if match else self._text[at]
        return repr(shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…")

    def _place(self, at: int) -> tuple[int, int]:
        line = bisect_right(self._lines, at)
        return line, at - self._lines[line - 1] + 1

    def _refuse(self, at: int, what: str, prefix: str = "not JSON: ") -> NoReturn:
        raise document.DocumentError(self._origin, *self._place(at), f"{prefix}{what}")
