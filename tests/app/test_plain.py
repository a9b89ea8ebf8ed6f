"""Texts from outside are shown as what they are: how they are made plain, and that every text of a page is."""

from __future__ import annotations

import ast
import csv
import io
from collections.abc import Iterator

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

import pandas as pd

from app.elements.plain import Markdown, escape, find_unseen, join, plain, visible, visible_lines
from app.frame import write_csv
from tests.conftest import ROOT
from tests.support.console_pages import read

MODULES = sorted((ROOT / "app").rglob("*.py"))
ESCAPER = "app/elements/plain.py"

# --- A text -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("chat-v1 judged beside chat-v2, 3.5 s (half)", "chat-v1 judged beside chat-v2, 3.5 s (half)"),
        ("plan.toml: 'a_b' is wrong", "plan.toml: 'a_b' is wrong"),
        ("[Sign in](/x)![i](/y)", r"\[Sign in\](/x)!\[i\](/y)"),
        ("**b** _i_ ~s~ `c` $x$ <b> &amp; a|b \\", r"\*\*b\*\* \_i\_ \~s\~ \`c\` \$x\$ \<b> \&amp; a\|b \\"),
        (":red[x] key:value 12:30", r"\:red\[x\] key\:value 12\:30"),
        ("# a", r"\# a"), ("- a", r"\- a"), ("> a", r"\> a"), ("1. a", r"1\. a"), ("---", r"\---"), ("===", r"\==="),
        ("a\n\n- b\n    c", "a\\\n\\\n\\- b\\\n    c"),
        ("at http://host:9090/api: refused", "at `http://host:9090/api`: refused"),
        ("(anna@example.com), WWW.evil.invalid", "(`anna@example.com`), `WWW.evil.invalid`"),
        (":smile: :material/home: a -> b", "`:smile`: &#58;`material/home`: a `->` b"),
        ("http://a/`b``c", "```http://a/`b``c```"),
        (7, "7"), (None, "None"), ("", ""),
    ],
)  # fmt: skip
def test_markdown_reads_as_the_text(text: object, markdown: str) -> None:
    """Signs are escaped where they would begin something; what no escape prevents is in the type of code."""
    assert plain(text) == markdown


def test_markdown_of_our_own_stays() -> None:
    """What the code has written as Markdown is not escaped a second time, alone or beside a text."""
    assert plain(Markdown("use `--auth`")) == "use `--auth`"
    assert join([Markdown("**b**"), "**c**"]) == r"**b** \*\*c\*\*"
    assert plain(plain("*a*")) == r"\*a\*"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("config\u202elmay.exe", r"config\u202elmay.exe"),
        ("a\u200bb\u200d\u2060\ufeff", r"a\u200bb\u200d\u2060\ufeff"),
        ("a\u00adb\xa0c\u2003d", r"a\xadb\xa0c\u2003d"),
        ("\x00\x1b[31m\r\t\x7f", r"\x00\x1b[31m\r\t\x7f"),
        ("\u2066a\u2069 \u2028 \u3164 \u2800 \ufe0f", r"\u2066a\u2069 \u2028 \u3164 \u2800 \ufe0f"),
        ("\U000e0041\ud800", r"\U000e0041\ud800"),
        ("0 of 89\xa0354, 1\xa0234\xa0567", "0 of 89\xa0354, 1\xa0234\xa0567"),
        ("chat\xa0v1, 1\xa02345, 1\xa0, 1\xa0\xa0234", r"chat\xa0v1, 1\xa02345, 1\xa0, 1\xa0\xa0234"),
        ("日本 é ß ſ … – 😄\nnext line", "日本 é ß ſ … – 😄\nnext line"),
    ],
)
def test_what_cannot_be_seen_is_shown_by_its_escape(text: str, shown: str) -> None:
    """Marks of direction, characters of no width, other spaces, control characters and halves; letters stay."""
    assert visible(text) == shown
    assert escape(text) == shown
    assert shown.partition("\n")[0] in read(plain(text).replace("\\\n", "\n"))


def test_html_reads_as_the_text() -> None:
    """Tags, entities and quotes of an attribute are escaped."""
    assert escape("<a href=\"x\" title='y'>&amp;\u202e") == (
        r"&lt;a href=&quot;x&quot; title=&#x27;y&#x27;&gt;&amp;amp;\u202e"
    )


def test_lines_that_hide_something_are_named() -> None:
    """A file's text keeps its tabs, and its lines with what cannot be seen are listed with it."""
    text = "a:\t1\nb: \u202e2\u202e\u200b\nc: 3\n"

    assert visible_lines(text) == "a:\t1\nb: \\u202e2\\u202e\\u200b\nc: 3\n"
    assert find_unseen(text) == [r"line 2: \u202e \u200b"]


# --- A file -----------------------------------------------------------------------------------------------------------


def test_a_spreadsheet_computes_no_text_of_a_csv() -> None:
    """A text that begins as a formula gets an apostrophe, names of columns too; numbers and other texts stay."""
    formulas = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1"]
    frame = pd.DataFrame(
        {
            "text": [*formulas, "a=1", "-0.5", "+3e5", ""],
            "=number": [-0.5, 2.0, float("nan"), *[-3.0] * 9],
            "mixed": ["=1", -1, None, True, *[-2.5] * 8],
            "time": pd.to_datetime([0] * 12, unit="ms", utc=True),
        }
    )
    rows = list(csv.reader(io.StringIO(write_csv(frame), newline="")))

    assert rows[0] == ["text", "'=number", "mixed", "time"]
    assert [row[0] for row in rows[1:]] == [*(f"'{formula}" for formula in formulas), "a=1", "-0.5", "+3e5", ""]
    assert [row[1] for row in rows[1:4]] == ["-0.5", "2.0", ""]
    assert [row[2] for row in rows[1:6]] == ["'=1", "-1", "", "True", "-2.5"]
    assert rows[1][3].startswith("1970-01-01")


def test_a_text_with_another_separator_is_one_cell() -> None:
    """Every text is quoted, so that a spreadsheet that divides at semicolons finds no formula behind one."""
    assert write_csv(pd.DataFrame({"a": ["x;=1+1"], "b": [1]})) == '"a","b"\n"x;=1+1",1\n'


# --- Every text of a page ---------------------------------------------------------------------------------------------

# Functions of Streamlit, and methods of its containers, that read Markdown in the texts they are given.
READ_MARKDOWN = {
    "error", "info", "success", "warning",
    "audio_input", "badge", "button", "camera_input", "caption", "checkbox", "color_picker", "date_input",
    "datetime_input", "download_button", "expander", "feedback", "file_uploader", "form_submit_button", "header",
    "link_button", "menu_button", "markdown", "metric", "multiselect", "number_input", "page_link", "pills", "popover",
    "progress", "radio", "segmented_control", "select_slider", "selectbox", "slider", "spinner", "status", "subheader",
    "table", "tabs", "text_area", "text_input", "time_input", "title", "toast", "toggle", "update", "write",
}  # fmt: skip
# Of these the options are Markdown, too: where they are used, with what.
READ_OPTIONS = {"pills", "radio", "segmented_control", "select_slider"}
OPTIONS = {
    ("app/cutovers/emulated.py", "select_slider"): "shares as numbers",
    ("app/selection.py", "segmented_control"): "presets of the range",
    ("app/views/customers.py", "segmented_control"): "views of the page",
    ("app/views/sources.py", "segmented_control"): "views of the page",
}
READ_NONE = {
    "Page", "cache_resource", "code", "columns", "container", "context", "fragment", "html", "login", "logo", "logout",
    "navigation", "query_params", "rerun", "session_state", "set_page_config", "stop", "user", "vega_lite_chart",
}  # fmt: skip
TEXTS = {"body", "captions", "help", "label", "text"}
# Of our own, which hand a label on.
HAND_ON = {"choose", "choose_rows", "type_text"}
PLAIN = {"code", "join", "len", "plain"}
# Texts of the package's own, in which there is nothing from outside.
CATALOG = {"alert.summary", "display.as_sentence(GEN_AI)", "section.query", "section.text", "section.title"}


@pytest.mark.parametrize("path", [path.relative_to(ROOT).as_posix() for path in MODULES])
def test_every_text_of_a_page_is_plain(path: str) -> None:
    """What Streamlit reads as Markdown is written in the code, or passes through `plain`."""
    assert list(offences((ROOT / path).read_text(encoding="utf-8"), path)) == []


@pytest.mark.parametrize(
    "line",
    [
        "st.caption(error)", "st.caption(str(e))", 'st.error(f"{e}", icon="x")', "st.info(a.sentence, icon='x')",
        "notes.warning(text, icon='x')", "column.markdown(f'**{name}**')", "status.update(label=name)",
        "st.button('x', help=path)", "st.metric('x', 1, help=f'{path}')", "bar.progress(0.5, text=name)",
        "st.expander(name)", "st.caption(name.upper())", "st.caption(' '.join(names))", "st.caption('a' + name)",
        "st.caption(f'`{plain(name)}`')", "st.caption(f'{name!r}')", "st.caption(f'{name:>10}')", "Markdown(name)",
        "Markdown(f'{name}')", "st.balloons()", "st.radio('x', names)", "st.dataframe(frame)",
        "selection.choose(notes, 'a', names, 'b', st.selectbox, label='x')", "st.code(text)", "st.code(f'run {name}')",
        "selection.choose(notes, 'a', names, 'b', st.selectbox, label=name, format_func=visible)",
        "from html import escape", "st.caption(x if y else plain(z))", "column.datetime_input(f'{zone}')",
    ],
)  # fmt: skip
def test_a_text_that_is_not_plain_is_found(line: str) -> None:
    """A variable, what is made of one, a value in a span of code, options and functions that are not known."""
    assert list(offences(line))


@pytest.mark.parametrize(
    "line",
    [
        "st.caption('our words')", "st.caption(plain(error))", 'st.error(f"{plain(error)}: no", icon="x")',
        "st.caption(f'{len(names)} of {total:,} ({share:.0%}), {code(name)}, `--auth`')", "st.code(visible(text))",
        "st.caption(plain(a) if a else None)", "st.caption(_SECRETS)", "Markdown(f'{plain(name)}')", "st.html(made)",
        "selection.choose(notes, 'a', names, 'b', st.selectbox, label='x', format_func=visible)", "values.update(more)",
    ],
)  # fmt: skip
def test_a_plain_text_is_none(line: str) -> None:
    """What is written in the code, what is made plain, and numbers."""
    assert list(offences(line)) == []


def offences(text: str, path: str = "app/page.py") -> Iterator[str]:
    """The calls in a module that could show a text from outside as Markdown or HTML."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(value=ast.Name(id="st"), attr=name) if name not in READ_MARKDOWN | READ_NONE:
                yield f"line {node.lineno}: st.{name} is in neither list of this test"
            case ast.Attribute(attr=name) if name in READ_OPTIONS and (path, name) not in OPTIONS:
                yield f"line {node.lineno}: the options of {name} are Markdown"
            case ast.ImportFrom(module="html") | ast.Import(names=[ast.alias(name="html")]) if path != ESCAPER:
                yield f"line {node.lineno}: HTML is escaped by plain.escape, which shows what cannot be seen"
        match node:
            case ast.Call(func=ast.Name(id="Markdown")) if not _is_plain(node) and path != ESCAPER:
                yield f"line {node.lineno}: {ast.unparse(node)}"
            case ast.Call(func=ast.Attribute(attr=name, value=receiver)) if ast.unparse(receiver) != "_LOG":
                yield from _offences(node, name)
            case ast.Call(func=ast.Name(id=name)) if name in HAND_ON:
                yield from _offences(node, name)


def _offences(node: ast.Call, name: str) -> Iterator[str]:
    if ast.unparse(node.func) == "st.code" and not _is_seen(node.args[0]):
        yield f"line {node.lineno}: code({ast.unparse(node.args[0])})"
    # What updates a status is named, what updates a mapping is not.
    first = node.args[:1] if name in READ_MARKDOWN - {"update"} else []
    asked = name in READ_MARKDOWN | HAND_ON
    named = [keyword.value for keyword in node.keywords if asked and keyword.arg in TEXTS]
    for given in (*first, *named):
        if not _is_plain(given):
            yield f"line {node.lineno}: {name}({ast.unparse(given)})"
    chooses = name == "choose" and any(ast.unparse(given) == "st.selectbox" for given in node.args)
    if chooses and not any(keyword.arg == "format_func" for keyword in node.keywords):
        yield f"line {node.lineno}: choose() shows its options as they are"


def _is_plain(given: ast.expr) -> bool:
    """Whether an expression is a text of the code, or made of such and of what is plain."""
    match given:
        case ast.Constant():
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name) if name.isupper():
            return True  # a constant of the code
        case ast.Call(func=ast.Name(id="Markdown"), args=[made]):
            return _is_plain(made) or ast.unparse(made) in CATALOG
        case ast.Call(func=ast.Name(id=name)):
            return name in PLAIN
        case ast.BinOp(op=ast.Div()):
            return True  # a number
        case ast.IfExp(body=body, orelse=otherwise):
            return _is_plain(body) and _is_plain(otherwise)
        case ast.JoinedStr(values=values):
            own = [part.value for part in values if isinstance(part, ast.Constant)]
            # A text in a span of code of ours could end it.
            return all(str(text).count("`") % 2 == 0 for text in own) and all(
                _is_plain(part.value) or _is_number(part) for part in values if isinstance(part, ast.FormattedValue)
            )
        case _:
            return False


def _is_seen(given: ast.expr) -> bool:
    """Whether what is shown as code has nothing that cannot be seen."""
    match given:
        case ast.Call(func=ast.Name(id="visible" | "visible_lines")):
            return True
        case ast.JoinedStr(values=values):
            return all(_is_seen(part.value) for part in values if isinstance(part, ast.FormattedValue))
        case _:
            return _is_plain(given) or ast.unparse(given) in CATALOG


def _is_number(part: ast.FormattedValue) -> bool:
    """Whether the format is one that only a number has."""
    return part.format_spec is not None and ast.unparse(part.format_spec)[-2] in "dfg,%"
