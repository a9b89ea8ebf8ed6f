"""YAML as the vendor's tool reads it, and an error with its place for everything that is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from servescope.errors import ConfigurationError
from servescope.migration.document.document import LARGEST_BYTES, DocumentError, decode, is_same, read_document

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + level)}: &{chr(98 + level)} [{','.join(['*' + chr(97 + level)] * 9)}]\n" for level in range(10)
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: key 'a' is there a second time, first in line 1"),
        ("a:\n  yes: 1\n  true: 2\n", "f.yaml:3:3: key True is there a second time, first in line 2"),
        ("{a: 1, 'a': 2}", "f.yaml:1:8: key 'a' is there a second time, first in line 1"),
        ("a: [1, 2\nb", "f.yaml:2:2: not YAML: while parsing a flow sequence expected ',' or ']'"),
        ("a: b: c", "f.yaml:1:5: not YAML: mapping values are not allowed here"),
        ("\ta: 1", "f.yaml:1:1: not YAML: while scanning for the next token found character '\\t'"),
        ("a: \x01", "f.yaml:1:4: character U+0001, expected printable text"),
        ("a: !!python/object/apply:os.system [x]", "f.yaml:1:4: tag !!python/object/apply:os.system, expected none"),
        ("a: !mine x", "f.yaml:1:4: tag !mine, expected none"),
        ("a: !!int", "f.yaml:1:4: '' cannot be read as int"),
        ("a: !!bool maybe", "f.yaml:1:4: 'maybe' cannot be read as bool"),
        ("a: !!timestamp x", "f.yaml:1:4: 'x' cannot be read as timestamp"),
        ("a: !!set {x}", "f.yaml:1:4: tag !!set, expected none"),
        ("a: 2024-13-45", "f.yaml:1:4: '2024-13-45' cannot be read as timestamp"),
        ("a: " + "9" * 5000, f"f.yaml:1:4: '{'9' * 40}…' cannot be read as int"),
        ("? [1]\n: 2", "f.yaml:1:3: a sequence as a key, expected a name"),
        ("--- 1\n--- 2", "f.yaml:2:1: a second document, expected one"),
        ("a: *q", "f.yaml:1:4: alias *q has no anchor before it"),
        ("a: &a [*a]", "f.yaml:1:8: alias *a is within its own anchor"),
        ("a: &a 1\nb: &a 2", "f.yaml:2:4: anchor &a is set a second time"),
        ("a: {<<: [1]}", "f.yaml:1:10: a merge (<<) of a scalar, expected a mapping or a list of them"),
        ("a: =", "f.yaml:1:4: '=' as a value, expected it quoted"),
        ("[" * 5000, "f.yaml:1:51: nested deeper than 50"),
        ("a: " + "{a: " * 60 + "1" + "}" * 60, "f.yaml:1:201: nested deeper than 50"),
        ("- " * 300 + "1", "f.yaml:1:103: nested deeper than 50"),
        ("[" + "1," * 20_000 + "]", "f.yaml:1:40000: more than 20000 values"),
        (BOMB, "f.yaml:5:4: more than 20000 values, with what aliases repeat"),
        ("a: &a 1\nb: [" + "*a, " * 300 + "]", "f.yaml:2:805: more than 200 aliases"),
        ("x" * (LARGEST_BYTES + 1), f"f.yaml: has {LARGEST_BYTES + 1} characters, expected at most {LARGEST_BYTES}"),
    ],
)  # fmt: skip
def test_what_is_refused_names_its_place(text: str, expected: str) -> None:
    """File, line, column, and what is wrong there."""
    with pytest.raises(ConfigurationError) as raised:
        read_document(text, "f.yaml")

    assert str(raised.value).startswith(expected)


def test_a_file_that_is_no_text_names_the_byte() -> None:
    """Its line and column, and the byte; a file that is too large is not decoded at all."""
    with pytest.raises(DocumentError, match=r"^f:2:4: byte 0xff, expected UTF-8 text$"):
        decode(b"a: 1\nb: \xff", "f")
    with pytest.raises(DocumentError, match=r"^f: has 1048577 bytes, expected at most 1048576$"):
        decode(b"\xff" * (LARGEST_BYTES + 1), "f")
    with pytest.raises(DocumentError, match=r"^f:1:1: byte 0xfe, expected UTF-8 text$"):
        decode("a: 1".encode("utf-16-be").join([b"\xfe\xff", b""]), "f")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment\n",
        "a: 1:30\nb: 0x1F\nc: 010\nd: 1_000\ne: 1e3\nf: .inf\ng: .nan\nh: 1.5",
        "a: yes\nb: No\nc: on\nd: ~\ne: null\nf:\ng: y",
        "a: 2024-01-02\nb: 2024-01-02 03:04:05 +1\nc: !!binary aGk=\nd: !!str 1\ne: !!int '7'",
        "base: &base {x: 1, y: 2}\na: {<<: *base, y: 3}\nb: {<<: [*base, {z: 4, x: 9}], w: 5}\nc: *base",
        "a: |\n  text\n  # in it\n\nb: >-\n  folded\n  text\nc: 'it''s'\nd: \"\\u00e4\\n\"",
        "? a\n: 1\n? [b]\n: 2".replace("[b]", "b"),
        "\ufeffa: 1\r\nb: [1,\r\n 2]\r\n",
        "=: 1\n1: 2\n1.5: 3\nnull: 4\n2024-01-02: 5",
        "---\n{a: 1, b: [x, y,], c: {}, d: []}\n...\n",
        "- a\n-\n- - 1\n  - 2\n- k: v\n  l: w\n",
    ],
)
def test_a_text_means_what_safe_load_reads(text: str) -> None:
    """YAML 1.1, merges and aliases included."""
    assert is_same(read_document(text, "f").value, yaml.safe_load(text.removeprefix("\ufeff")))


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6) | st.integers(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(TREES, st.booleans(), st.booleans())
def test_what_is_dumped_is_read(tree: Any, flow: bool, indented: bool) -> None:
    """Any tree that PyYAML writes, in block and in flow style, is read as PyYAML reads it."""
    text = yaml.safe_dump(tree, default_flow_style=flow, indent=4 if indented else 2, allow_unicode=True)

    assert is_same(read_document(text, "f").value, yaml.safe_load(text))


@given(st.text(alphabet="ab:-#[]{},&*!|>'\"%@` \n\t?<=~0", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Never another error; what is read is what PyYAML reads, but that PyYAML takes the last of two equal keys."""
    try:
        value = read_document(text, "f").value
    except DocumentError:
        return
    assert is_same(value, yaml.safe_load(text))


def test_the_place_of_a_node_is_its_text() -> None:
    """Aliases and anchors included, comments behind it not."""
    text = "\ufeffa: &x [1,\n  2] # c\nb:\n  c: 'q' # d\n  # e\nd: *x\n"
    root = read_document(text, "f").root
    assert root is not None

    def written(*keys: str) -> str:
        node = root.find(*keys)
        assert node is not None
        return text[node.start : node.end]

    assert written("a") == "&x [1,\n  2]"
    assert written("b") == "c: 'q'"
    assert written("b", "c") == "'q'"
    assert written("d") == "*x"
    assert root.find("d").real is root.find("a")  # type: ignore[union-attr]
    assert (root.find("b", "c").line, root.find("b", "c").column) == (4, 6)  # type: ignore[union-attr]


def test_trees_are_compared_by_type_and_value() -> None:
    """1 is neither true nor 1.0, and what is no number is like itself."""
    assert is_same({"a": [math.nan, 1], "b": None}, {"b": None, "a": [math.nan, 1]})
    assert not is_same(1, True)
    assert not is_same(1, 1.0)
    assert not is_same([1], [1, 2])
    assert not is_same({"a": 1}, {"b": 1})
