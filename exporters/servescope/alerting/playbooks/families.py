"""Playbooks: one topic each, and what to do about it on each family of engines. Their texts are files of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from servescope.settings.tables import REQUIRED, Setting, Table, parse_document

_TOPIC = (Setting("topic", REQUIRED), Setting("parts", REQUIRED))


@dataclass(frozen=True, slots=True)
class Playbook:
    """Where each family shows a topic, and the switches it has for it; says so where it has none.

    `parts` are by family, in the order of `FAMILIES`.
    """

    topic: str
    parts: tuple[tuple[str, str], ...]

    def of(self, family: str) -> str:
        """The part of one family."""
        return dict(self.parts)[family]


def _read(name: str) -> Table:
    file = f"{name}.toml"
    return Table(parse_document(files(__package__).joinpath(file).read_text("utf-8"), file), file, "")


FAMILIES: Final = tuple(_read("families").strings("families", None))


def read_topics(name: str) -> Mapping[str, Playbook]:
    """The playbooks of a file by their keys; raises ConfigurationError when it is wrong."""
    table = _read(name)
    return MappingProxyType({key: _read_topic(table.table(key, _TOPIC)) for key in table.values})


def _read_topic(table: Table) -> Playbook:
    parts = table.table("parts", [Setting(family, REQUIRED) for family in FAMILIES])
    return Playbook(table.string("topic", None), tuple((family, parts.string(family, None)) for family in FAMILIES))
