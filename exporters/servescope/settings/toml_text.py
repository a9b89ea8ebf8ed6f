"""TOML as it is written: texts, values and remarks of files that somebody is to read and to edit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping


def quote(text: str) -> str:
    """A text as a string of TOML."""
    return json.dumps(text.encode(errors="replace").decode(), ensure_ascii=False).replace("\x7f", "\\u007f")


def remark(text: str) -> str:
    """A text as a comment on one line."""
    return "# " + "".join(each if each.isprintable() else " " for each in text)


def spell(value: object) -> str:
    """A value of JSON as TOML has it: inline tables without keys that are null, which TOML does not know."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(name)} = {spell(each)}" for name, each in value.items() if each is not None)
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(spell, value))}]"
    return f"{value!r}" if isinstance(value, int | float) else quote(str(value))


def write_table(name: str, values: Mapping[str, object]) -> Iterator[str]:
    """A table with its keys, a blank line before it; nothing where it has no values."""
    if values:
        yield ""
        yield f"[{name}]"
        yield from (f"{_key(key)} = {spell(value)}" for key, value in values.items())


def _key(name: str) -> str:
    return name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else quote(name)
