"""JSON as RFC 8259 has it, not as YAML reads it, and an error with its place for everything that is refused."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servescope.migration.document.document import LARGEST_BYTES, DocumentError, is_same
from servescope.migration.document.json_document import read_json, read_named


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1,\n}', "f.json:1:8: not JSON: a comma before '}', expected none, or a key in double quotes behind it"),
        ("[1,\n2,]", "f.json:2:2: not JSON: a comma before ']', expected none, or a value behind it"),
        ("{'a': 1}", "f.json:1:2: not JSON: \"'a'\", expected a key in double quotes"),
        ("{a: 1}", "f.json:1:2: not JSON: 'a', expected a key in double quotes"),
        ('{"a" 1}', "f.json:1:6: not JSON: '1', expected ':' behind the key 'a'"),
        ('{"a": 1 "b": 2}', "f.json:1:9: not JSON: '\"', expected ',' or '}'"),
        ('{"a": yes}', "f.json:1:7: not JSON: 'yes', expected a value"),
        ('{"a": 010}', "f.json:1:7: not JSON: '010', expected a value"),
        ('{"a": NaN}', "f.json:1:7: not JSON: 'NaN', expected a value"),
        ('{"a": 1e999}', "f.json:1:7: not JSON: '1e999', expected a number that is finite"),
        ("9" * 5000, f"f.json:1:1: not JSON: '{'9' * 40}…', expected a number that is finite"),
        ('"\\ud800"', "f.json:1:1: not JSON: a text with half of a surrogate pair, expected both"),
        ('{"a": "x\ny"}', "f.json:1:7: not JSON: a text that does not end in its line, expected '\"' behind it"),
        ('{"a": "', "f.json:1:7: not JSON: a text that does not end, expected '\"' behind it"),
        ('{"a": "x\\q"}', "f.json:1:9: not JSON: the escape '\\\\q', expected one of"),
        ('{"a": "\x01"}', "f.json:1:8: not JSON: character U+0001 in a text, expected it escaped"),
        ("", "f.json:1:1: not JSON: the end of the document, expected a value"),
        ("{", "f.json:1:2: not JSON: the end of the document, expected a key in double quotes"),
        ("[1", "f.json:1:3: not JSON: the end of the document, expected ',' or ']'"),
        ("{}\r\n{}", "f.json:2:1: not JSON: '{' behind the end of the document"),
        ('{"a": 1, # c\n}', "f.json:1:10: not JSON: a comment, which JSON does not have"),
        ("// c\n{}", "f.json:1:1: not JSON: a comment, which JSON does not have"),
        ('{"a": 1,\n"a": 2}', "f.json:2:1: key 'a' is there a second time, first in line 1"),
        ('{"a": {"\\u0062": 1, "b": 2}}', "f.json:1:21: key 'b' is there a second time, first in line 1"),
        ("[" * 5000, "f.json:1:51: nested deeper than 50"),
        ("[" + "1," * 20_000 + "1]", "f.json:1:40000: more than 20000 values"),
        (" " * (LARGEST_BYTES + 1), f"f.json: has {LARGEST_BYTES + 1} characters, expected at most {LARGEST_BYTES}"),
    ],
)  # fmt: skip
def test_what_is_refused_names_its_place(text: str, expected: str) -> None:
    """File, line, column, and what was expected there."""
    with pytest.raises(DocumentError) as raised:
        read_json(text, "f.json")

    assert str(raised.value).startswith(expected)


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(TREES, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_what_is_written_is_read(tree: Any, ascii_only: bool, indent: int | str | None) -> None:
    """Any tree, with tabs, exponents and escaped surrogate pairs, which YAML 1.1 reads in another way."""
    text = json.dumps(tree, ensure_ascii=ascii_only, indent=indent)

    assert is_same(read_json(text, "f").value, tree)


def load_strictly(text: str) -> Any:
    """What the standard library reads, without what it accepts beyond RFC 8259, and without equal keys."""

    def refuse(name: str) -> Any:
        raise ValueError(name)

    def pair(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError
        return dict(pairs)

    def read_finite(number: str) -> float:
        return float(number) if abs(float(number)) < math.inf else refuse(number)

    value = json.loads(text, parse_constant=refuse, parse_float=read_finite, object_pairs_hook=pair)
    json.dumps(value, ensure_ascii=False).encode()  # fails for half of a surrogate pair
    return value


@given(st.text(alphabet='ab{}[]:,"\\ntrue0123.eE+-/ \n\t\ufeff', max_size=30) | TREES.map(json.dumps), st.data())
def test_any_text_is_read_as_the_standard_library_reads_it(text: str, data: st.DataObject) -> None:
    """Or refused by both; never another error."""
    at = data.draw(st.integers(0, len(text)))
    text = text[:at] + data.draw(st.sampled_from(["", ",", '"', "}", "1e5", "\t", "\\u0041", "nul"])) + text[at:]
    wanted: Any = DocumentError
    with suppress(ValueError):
        wanted = load_strictly(text.removeprefix("\ufeff"))
    try:
        value = read_json(text, "f").value
    except DocumentError:
        assert wanted is DocumentError, text
    else:
        assert is_same(value, wanted)


def test_the_place_of_a_node_is_its_text() -> None:
    """Keys, texts, numbers and brackets, behind a byte order mark and any line end."""
    text = '\ufeff{"a": [1,\r\n  2e0],\r"b": {"c": "q\\n"}}'
    root = read_json(text, "f").root
    assert root is not None
    found = [root, root.find("a"), root.find("b"), root.find("b", "c")]

    assert [text[each.start : each.end] for each in found if each] == [
        text[1:], "[1,\r\n  2e0]", '{"c": "q\\n"}', '"q\\n"',
    ]  # fmt: skip
    assert [(each.line, each.column) for each in found if each] == [(1, 2), (1, 8), (3, 6), (3, 12)]


def test_the_name_decides_how_a_file_is_read() -> None:
    """`.json` is JSON, in any case; all else is YAML."""
    assert read_named('{"a": 1e5}', "f.JSON").value == {"a": 100000.0}
    assert read_named("a: 1e5", "f.yaml").value == {"a": "1e5"}
