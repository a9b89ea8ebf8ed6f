"""What a TOML document may be: how deep, how long, and what its errors quote."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servescope.cli import main
from servescope.errors import ConfigurationError
from servescope.settings.tables import DEEPEST, LARGEST_TEXT, Table, parse_document, read_document
from servescope.settings.toml_text import quote

MANY = 20_000
# A value each, in which brackets, quotes and dots nest nothing.
INERT = st.one_of(
    st.sampled_from(
        ["1.5", "'[{.'", '"""[" ]""[[{"""', "'''['' {\n['''", '"\\"[[{"', '""', "''", '""""""', '"""[""\\""""']
    ),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12).map(quote),
)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * MANY, "a = " + "[" * MANY + "]" * MANY, "a = " + "{b = " * MANY,
        "a = " + "[{b = " * MANY + "1" + "}]" * MANY, "[" * MANY, "a = [\n" * MANY,
        "\n\n" + ".".join("a" * MANY) + " = 1", "[" + ".".join("a" * MANY) + "]",
        "[" + " . ".join(['"b c"'] * MANY) + "]",
    ],
)  # fmt: skip
def test_a_document_that_nests_too_deep_is_refused_by_name(text: str) -> None:
    """Brackets, inline tables, headers and dotted keys beyond the limit end in an error with file, limit and line."""
    with pytest.raises(ConfigurationError, match=rf"^here\.toml: nested deeper than {DEEPEST} \(at line \d+\)$"):
        parse_document(text, "here.toml")


@given(st.integers(1, DEEPEST + 4), st.lists(INERT, min_size=1, max_size=4))
def test_what_nests_nothing_is_not_counted(depth: int, inert: list[str]) -> None:
    """Brackets count where the parser recurses into them, and not in strings and comments, whatever is around them."""
    rows = "".join(f"# [{{[ ' \"\n{value},\n" for value in inert)
    text = f"a = {'[' * depth}\n{rows}{']' * depth} # ]]\nb = 1"
    if depth <= DEEPEST:
        assert parse_document(text, "x")["b"] == 1
    else:
        with pytest.raises(ConfigurationError, match="nested deeper"):
            parse_document(text, "x")


def test_a_document_at_the_limits_is_read() -> None:
    """As many brackets and parts of a key as are allowed, and ones that are beside each other."""
    parse_document(f"a = {'[' * DEEPEST}{']' * DEEPEST}", "x")
    parse_document(f"[{'.'.join('a' * DEEPEST)}]", "x")
    parse_document(f"a = [{'[1.5, 2.5],' * 1000}]", "x")


def test_a_document_that_is_too_long_is_refused(tmp_path: Path) -> None:
    """A text of more characters than are allowed is not parsed, in a file or not."""
    (tmp_path / "long.toml").write_text("#" * (LARGEST_TEXT + 1))
    with pytest.raises(ConfigurationError, match=rf"long\.toml: more than {LARGEST_TEXT} characters"):
        read_document(tmp_path / "long.toml", "plan")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"a.b = 0x{'f' * 5_000}", "a.b"),
        (f"a = [1, {{b = 0b{'1' * 20_000}}}]", "a.b"),
        (f"[[a]]\nb = 0o{'7' * 9_000}", "a.b"),
        ("a = 9223372036854775808", "a"),
        ("a = -9223372036854775809", "a"),
    ],
)
def test_an_integer_that_toml_does_not_have_is_refused_by_name(text: str, key: str) -> None:
    """One of more than 64 bits, in any base: those of thousands of digits cannot be shown in an error."""
    with pytest.raises(ConfigurationError, match=f"^x: {key}: an integer of more than 64 bits$"):
        parse_document(text, "x")
    assert parse_document("a = [-9223372036854775808, 9223372036854775807]", "x")


def test_an_error_quotes_the_beginning_of_a_value() -> None:
    """A value of thousands of characters is shown by its first ones."""
    with pytest.raises(ConfigurationError) as refused:
        Table({"name": ["x" * 10_000]}, "here.toml", "").string("name", None)

    assert str(refused.value).startswith("here.toml: name: ['xxx")
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "words",
    [
        ["judge", "plan", "--store", "none.db", "--plan"],
        ["console", "--store", "none.db", "--no-browser", "--plan"],
        ["customers", "check", "--config"],
        ["collect", "--config"],
    ],
)
def test_every_command_refuses_it_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """A file of brackets ends a command with code 2 and one line."""
    path = tmp_path / "deep.toml"
    path.write_text("a = " + "[" * MANY)
    code = main([*words, str(path)])

    assert (code, f"{path}: nested deeper than {DEEPEST} (at line 1)" in capsys.readouterr().err) == (2, True)
