"""The nodes of a document: values with the places they have in its text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(slots=True, eq=False)
class DocumentNode:
    """One node: `text[start:end]` is it, with its anchor and tag, without comments after it; lines count from 1.

    `value` is what Python gets. An alias has the name of its anchor as `alias`, and the anchored node as `target`.
    """

    kind: Literal["scalar", "sequence", "mapping"]
    start: int
    end: int
    line: int
    column: int
    value: Any = None
    is_flow: bool = False
    style: str | None = None
    anchor: str | None = None
    alias: str | None = None
    target: DocumentNode | None = None
    items: list[DocumentNode] = field(default_factory=list)
    entries: list[MappingEntry] = field(default_factory=list)

    @property
    def real(self) -> DocumentNode:
        """The node itself, or the one that an alias repeats."""
        return self.target or self

    def find(self, *keys: str) -> DocumentNode | None:
        """The node below these keys; None where one of them is missing or no mapping holds it."""
        node: DocumentNode | None = self
        for key in keys:
            entry = node.real.entry(key) if node is not None else None
            node = entry.value if entry is not None else None
        return node

    def value_of(self, *keys: str) -> Any:
        """The value of the node below these keys; None where there is none."""
        found = self.find(*keys)
        return None if found is None else found.value

    def entry(self, key: str) -> MappingEntry | None:
        """The entry of a mapping with this key, also where a merge (`<<`) brings it."""
        for each in self.entries:
            if not each.is_merge and each.key.value == key:
                return each
        for each in self.entries:
            if each.is_merge:
                for merged in [each.value.real, *each.value.real.items]:
                    if found := merged.real.entry(key):
                        return found
        return None

    def walk(self) -> Iterator[DocumentNode]:
        """The node and all below it, in the order of the text; aliases are not followed."""
        yield self
        for entry in self.entries:
            yield from entry.key.walk()
            yield from entry.value.walk()
        for item in self.items:
            yield from item.walk()


@dataclass(slots=True, eq=False)
class MappingEntry:
    """A key of a mapping with its value."""

    key: DocumentNode
    value: DocumentNode
    is_merge: bool = False


def make_tree(value: object) -> DocumentNode:
    """The node of a value that comes from no text: all its places are 0."""
    node = DocumentNode("scalar", 0, 0, 0, 0, value)
    if isinstance(value, Mapping):
        node.kind = "mapping"
        node.value = dict(value)
        node.entries = [MappingEntry(make_tree(key), make_tree(each)) for key, each in value.items()]
    elif isinstance(value, list | tuple):
        node.kind = "sequence"
        node.value = list(value)
        node.items = [make_tree(each) for each in value]
    return node
