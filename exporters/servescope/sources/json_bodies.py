"""Bodies that are JSON in place of an exposition: what they are, by the keys in them."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from typing import Final, NamedTuple

from servescope.settings.tables import REQUIRED, Setting, Table, parse_document

_FILE: Final = "json.toml"
_BODY: Final = (Setting("keys", REQUIRED), Setting("is", REQUIRED))
_READ_BYTES: Final = 65_536  # of a body, in which its keys are


class _Body(NamedTuple):
    keys: tuple[str, ...]
    title: str


def name_json(body: bytes) -> str:
    """What a body of JSON is, "" when that is not known."""
    text = body[:_READ_BYTES].decode("utf-8", "replace")
    found = set(re.findall(r'"(\w{1,60})"\s*:', text))
    is_empty = re.fullmatch(r"(\s*#[^\n]*\n)*\s*\[\s*\]\s*", text) is not None
    return next((each.title for each in _known() if (found.issuperset(each.keys) if each.keys else is_empty)), "")


@lru_cache(maxsize=1)
def _known() -> tuple[_Body, ...]:
    text = files(__package__).joinpath("unmapped", _FILE).read_text("utf-8")
    table = Table(parse_document(text, _FILE), _FILE, "")
    return tuple(
        _Body(tuple(each.strings("keys", [])), each.string("is", None)) for each in table.tables("bodies", _BODY)
    )
